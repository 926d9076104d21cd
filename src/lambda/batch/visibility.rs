//! Extends the visibility timeout of messages that another delivery is processing.

use std::{fmt, sync::Arc, time::Duration};

use crate::future::BoxFuture;

/// The longest time that SQS hides a message, counted from its receipt (SQS developer guide, "Visibility timeout").
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

/// A message to hide.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "sqs-visibility"),
    expect(dead_code, reason = "only the SQS client reads the fields")
)]
pub(super) struct Shown {
    pub(super) queue_arn: String,
    pub(super) receipt_handle: String,
    pub(super) seconds: i32,
}

/// Hides messages.
pub(super) trait Visibility: fmt::Debug + Send + Sync {
    /// Hides each of these messages in its queue, with requests that take no longer than `within`. A failure is logged,
    /// and is harmless: SQS redelivers the message after the queue's visibility timeout.
    fn hide<'a>(&'a self, messages: &'a [Shown], within: Option<Duration>) -> BoxFuture<'a, ()>;
}

pub(super) type SharedVisibility = Arc<dyn Visibility>;

/// Rounds up to whole seconds: at least 1, and at most half of [`LONGEST`], so that SQS accepts the time even if it
/// delivered the message a while ago.
pub(super) fn seconds(until_free: Duration) -> i32 {
    let most = LONGEST.as_secs() / 2;
    let seconds = until_free.as_millis().div_ceil(1000).clamp(1, most.into());
    i32::try_from(seconds).unwrap_or(1)
}

#[cfg(feature = "sqs-visibility")]
mod sdk {
    use aws_sdk_sqs::{
        Client,
        config::{Config, timeout::TimeoutConfig},
        types::ChangeMessageVisibilityBatchRequestEntry,
    };

    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Arc, BoxFuture, Duration, Shown, Visibility, fmt};
    use crate::{
        lambda::batch::{Batch, SqsMessage},
        observe,
    };

    /// The limit of entries per request (ChangeMessageVisibilityBatch in the SQS API reference).
    const ENTRIES: usize = 10;
    /// The timeout of one request, if the deadline is further away: the response waits for it.
    const TIMEOUT: Duration = Duration::from_secs(2);

    impl Batch<SqsMessage> {
        /// Hides messages that another delivery is processing, until that delivery's lease and the skew margin
        /// have passed. The function's role needs `sqs:ChangeMessageVisibility` on the queue. Once SQS has
        /// refused a request because this permission is missing, the worker logs that and stops hiding messages. A
        /// failed request is harmless: SQS redelivers the message after the queue's visibility timeout.
        ///
        /// Each redelivery counts as a receive towards the queue's `maxReceiveCount`. Without hiding, a message costs
        /// one receive per visibility timeout until the lease expires: after a crash at the start of a 15-minute
        /// invocation, with a visibility timeout of 30 s, that's 30 receives. A hidden message costs one receive for
        /// each delivery that it waits for: 1 in this example. One request hides up to ten messages.
        ///
        /// ```no_run
        /// use lambda_idempotency::{Failure, Idempotency, Key, lambda::batch::SqsMessage};
        /// # use lambda_idempotency::store::memory::MemoryStore;
        ///
        /// # async fn ship(_: SqsMessage) -> Result<(), Failure> { Ok(()) }
        /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
        /// # let config = aws_config::SdkConfig::builder().build();
        /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
        /// let worker = idempotency
        ///     .sqs(|message| Key::from_json(message, "/order_id"), ship)
        ///     .hide_while_in_progress(aws_sdk_sqs::Client::new(&config));
        /// # Ok(())
        /// # }
        /// ```
        pub fn hide_while_in_progress(mut self, client: Client) -> Self {
            self.visibility = Some(Arc::new(Queues { client, is_forbidden: AtomicBool::new(false) }));
            self
        }
    }

    struct Queues {
        client: Client,
        /// Whether SQS said that the role lacks the permission. Further requests would fail too.
        is_forbidden: AtomicBool,
    }

    impl fmt::Debug for Queues {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Queues").finish_non_exhaustive()
        }
    }

    impl Visibility for Queues {
        fn hide<'a>(&'a self, messages: &'a [Shown], within: Option<Duration>) -> BoxFuture<'a, ()> {
            if self.is_forbidden.load(Ordering::Relaxed) {
                return Box::pin(async {});
            }
            let queues = messages.chunk_by(|one, next| one.queue_arn == next.queue_arn);
            let requests = queues.flat_map(|messages| messages.chunks(ENTRIES));
            let requests = requests.map(move |messages| self.request(messages, within));
            Box::pin(async move {
                futures_util::future::join_all(requests).await;
            })
        }
    }

    impl Queues {
        async fn request(&self, messages: &[Shown], within: Option<Duration>) {
            let entries = messages.iter().enumerate().map(|(nth, message)| {
                ChangeMessageVisibilityBatchRequestEntry::builder()
                    .id(nth.to_string())
                    .receipt_handle(&message.receipt_handle)
                    .visibility_timeout(message.seconds)
                    .build()
            });
            let url = messages.first().and_then(|message| queue_url(&message.queue_arn));
            let (Ok(entries), Some(url)) = (entries.collect::<Result<Vec<_>, _>>(), url) else {
                return observe::not_hidden(messages.len(), None);
            };
            let within = within.map_or(TIMEOUT, |within| within.min(TIMEOUT));
            let timeout = TimeoutConfig::builder().operation_timeout(within).build();
            let request = self.client.change_message_visibility_batch();
            let request = request.queue_url(url).set_entries(Some(entries)).customize();
            let answer = request.config_override(Config::builder().timeout_config(timeout)).send().await;
            let failed = match &answer {
                Ok(answer) => answer.failed().len(),
                Err(_) => messages.len(),
            };
            if failed > 0 {
                let code = answer.as_ref().err().and_then(aws_sdk_sqs::error::ProvideErrorMetadata::code);
                if code.is_some_and(is_forbidden) {
                    self.is_forbidden.store(true, Ordering::Relaxed);
                }
                observe::not_hidden(failed, code);
            }
        }
    }

    /// Whether a code means that the role lacks the permission ("Common errors", SQS API reference; the JSON protocol
    /// adds the suffix `Exception` to the code).
    fn is_forbidden(code: &str) -> bool {
        matches!(code, "AccessDenied" | "AccessDeniedException")
    }

    /// The URL of the queue with this ARN, such as `arn:aws:sqs:eu-west-1:123456789012:orders`; `None` if the
    /// ARN isn't a queue's.
    ///
    /// SQS reads the account and name from the URL; the request goes to the client's own endpoint.
    fn queue_url(arn: &str) -> Option<String> {
        let mut parts = arn.split(':');
        let (Some("arn"), Some(partition), Some("sqs")) = (parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let (Some(region), Some(account), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let suffix = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
        Some(format!("https://sqs.{region}.{suffix}/{account}/{name}"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn queue_urls_come_from_arns() {
            for (arn, url) in [
                (
                    "arn:aws:sqs:eu-west-1:1:orders.fifo",
                    Some("https://sqs.eu-west-1.amazonaws.com/1/orders.fifo"),
                ),
                ("arn:aws-cn:sqs:cn-north-1:1:a", Some("https://sqs.cn-north-1.amazonaws.com.cn/1/a")),
                ("arn:aws:sns:eu-west-1:1:orders", None),
                ("arn:aws:sqs:eu-west-1:1", None),
                ("", None),
            ] {
                assert_eq!(queue_url(arn).as_deref(), url);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visibility_timeouts_are_whole_seconds_within_limits() {
        for (millis, hidden) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60), (u64::MAX, 21_600)] {
            assert_eq!(seconds(Duration::from_millis(millis)), hidden, "{millis} ms");
        }
    }
}
