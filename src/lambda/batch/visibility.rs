//! When SQS shows a message again that another delivery is at work on.

use std::{fmt, sync::Arc, time::Duration};

use crate::future::BoxFuture;

/// The most that SQS hides a message for, counted from its receipt (SQS developer guide, "Visibility timeout").
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

/// Hides messages of one queue.
pub(super) trait Visibility: fmt::Debug + Send + Sync {
    /// Hides each of these messages, by its receipt handle, for so many seconds. What fails is told, and harms nothing: the
    /// message is shown when the queue's own time is over.
    fn hide<'a>(&'a self, messages: &'a [(String, i32)], within: Option<Duration>) -> BoxFuture<'a, ()>;
}

pub(super) type SharedVisibility = Arc<dyn Visibility>;

/// Whole seconds, at least 1, and not so many that SQS refuses them for a message that has been received for a while.
pub(super) fn seconds(until_free: Duration) -> i32 {
    let most = LONGEST.as_secs() / 2;
    let seconds = until_free.as_millis().div_ceil(1000).clamp(1, most.into());
    i32::try_from(seconds).unwrap_or(1)
}

#[cfg(feature = "sqs")]
mod sdk {
    use aws_sdk_sqs::{
        Client,
        config::{Config, timeout::TimeoutConfig},
        types::ChangeMessageVisibilityBatchRequestEntry,
    };

    use super::{Arc, BoxFuture, Duration, Visibility, fmt};
    use crate::{
        lambda::batch::{Batch, SqsMessage},
        observe,
    };

    /// The most entries of one request (ChangeMessageVisibilityBatch in the SQS API reference).
    const ENTRIES: usize = 10;
    /// The most that a request takes.
    const TIMEOUT: Duration = Duration::from_secs(2);

    impl Batch<SqsMessage> {
        /// Hides a message that another delivery is at work on until that one's lease has ended, with the margin, instead of
        /// for the queue's visibility time-out: it comes back when there is something to be done with it. The role needs
        /// `sqs:ChangeMessageVisibility` on the queue. A request that fails is told in an event, and harms nothing.
        ///
        /// ```no_run
        /// use lambda_idempotency::{Idempotency, Key, lambda::batch::{Failure, SqsMessage}};
        /// # use lambda_idempotency::store::memory::MemoryStore;
        ///
        /// # async fn ship(_: SqsMessage) -> Result<(), Failure> { Ok(()) }
        /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
        /// # let config = aws_config::SdkConfig::builder().build();
        /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
        /// let worker = idempotency
        ///     .sqs(|message: &SqsMessage| Key::from_json(message, "/order_id"), ship)
        ///     .hide_while_in_progress(aws_sdk_sqs::Client::new(&config), std::env::var("QUEUE_URL")?);
        /// # Ok(())
        /// # }
        /// ```
        pub fn hide_while_in_progress(mut self, client: Client, queue_url: impl Into<String>) -> Self {
            self.visibility = Some(Arc::new(Queue { client, url: queue_url.into() }));
            self
        }
    }

    struct Queue {
        client: Client,
        url: String,
    }

    impl fmt::Debug for Queue {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Queue").field("url", &self.url).finish_non_exhaustive()
        }
    }

    impl Visibility for Queue {
        fn hide<'a>(&'a self, messages: &'a [(String, i32)], within: Option<Duration>) -> BoxFuture<'a, ()> {
            let requests = messages.chunks(ENTRIES).map(move |messages| self.request(messages, within));
            Box::pin(async move {
                futures_util::future::join_all(requests).await;
            })
        }
    }

    impl Queue {
        async fn request(&self, messages: &[(String, i32)], within: Option<Duration>) {
            let entries = messages.iter().enumerate().map(|(nth, (receipt_handle, seconds))| {
                ChangeMessageVisibilityBatchRequestEntry::builder()
                    .id(nth.to_string())
                    .receipt_handle(receipt_handle)
                    .visibility_timeout(*seconds)
                    .build()
            });
            let Ok(entries) = entries.collect::<Result<Vec<_>, _>>() else { return };
            let within = within.map_or(TIMEOUT, |within| within.min(TIMEOUT));
            let timeout = TimeoutConfig::builder().operation_timeout(within).build();
            let request = self.client.change_message_visibility_batch();
            let request = request.queue_url(&self.url).set_entries(Some(entries)).customize();
            let answer = request.config_override(Config::builder().timeout_config(timeout)).send().await;
            let failed = match &answer {
                Ok(answer) => answer.failed().len(),
                Err(_) => messages.len(),
            };
            if failed > 0 {
                let code = answer.as_ref().err().and_then(aws_sdk_sqs::error::ProvideErrorMetadata::code);
                observe::not_hidden(failed, code);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_that_the_queue_takes() {
        for (millis, hidden) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60), (u64::MAX, 21_600)] {
            assert_eq!(seconds(Duration::from_millis(millis)), hidden, "{millis} ms");
        }
    }
}
