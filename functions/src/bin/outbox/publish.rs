//! Puts events on the bus.

use std::{collections::BTreeSet, time::Duration};

use aws_config::{BehaviorVersion, timeout::TimeoutConfig};
use aws_sdk_eventbridge::{
    Client, error::ProvideErrorMetadata as _, primitives::DateTime, types::PutEventsRequestEntry,
};
use lambda_idempotency::store::dynamodb::OperationEnded;
use lambda_runtime::{Error, tracing};
use serde::Serialize;
use serde_json::value::RawValue;

/// The source of every event.
const SOURCE: &str = "lambda-idempotency";
/// EventBridge's limits for a request: the number of its entries, and their total size ("Quotas" and "Calculating
/// PutEvents event entry size", EventBridge user guide).
const MAX_ENTRIES: usize = 10;
const MAX_BYTES: usize = 256 * 1024;
/// The size that EventBridge counts for an entry's time, in bytes.
const TIME_BYTES: usize = 14;

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// An event, and the sequence number of the stream record that it's about.
#[derive(Debug)]
pub(crate) struct Entry {
    sequence_number: String,
    /// The operation's stored key.
    key: String,
    bytes: usize,
    event: PutEventsRequestEntry,
}

/// The detail of an event.
#[derive(Serialize)]
struct Detail<'a> {
    #[serde(flatten)]
    ended: &'a OperationEnded,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a RawValue>,
}

pub(crate) struct Publisher {
    client: Client,
    bus: String,
    includes_responses: bool,
}

impl Publisher {
    /// Publishes to the bus that `EVENT_BUS` names. With `RESPONSES=include`, events contain responses.
    pub(crate) async fn from_env() -> Result<Self, Error> {
        let bus =
            std::env::var("EVENT_BUS").map_err(|_| "EVENT_BUS isn't set: name the bus to publish to")?;
        let includes_responses = match std::env::var("RESPONSES").as_deref() {
            Err(_) | Ok("") => false,
            Ok("include") => true,
            Ok(_) => return Err("RESPONSES must be empty or `include`".into()),
        };
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .operation_timeout(OPERATION_TIMEOUT)
            .build();
        let config = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts).load().await;
        Ok(Self { client: Client::new(&config), bus, includes_responses })
    }

    /// Returns the event that reports the outcome of an operation.
    pub(crate) fn entry(&self, sequence_number: String, ended: &OperationEnded) -> Result<Entry, Error> {
        let with_response = if self.includes_responses { response(ended) } else { None };
        let mut detail = serde_json::to_string(&Detail { ended, response: with_response.as_deref() })?;
        let is_failure = ended.record.status() == lambda_idempotency::store::Status::Failed;
        let detail_type = if is_failure { "operation failed" } else { "operation completed" };
        let size = |detail: &str| TIME_BYTES + SOURCE.len() + detail_type.len() + detail.len();
        if size(&detail) > MAX_BYTES {
            tracing::warn!(key = %ended.key, "the response is too large for an event, so it's left out");
            detail = serde_json::to_string(ended)?;
        }
        let time = ended.written_at.and_then(|time| i64::try_from(time.as_millis()).ok());
        let event = PutEventsRequestEntry::builder()
            .event_bus_name(&self.bus)
            .source(SOURCE)
            .detail_type(detail_type)
            .set_time(time.map(DateTime::from_millis));
        let bytes = size(&detail);
        Ok(Entry { sequence_number, key: ended.key.to_string(), bytes, event: event.detail(detail).build() })
    }

    /// Publishes the entries in their order.
    ///
    /// # Errors
    ///
    /// Returns the first entry that may be missing on the bus. Some later entries may be on the bus.
    pub(crate) async fn publish<'e>(&self, entries: &'e [Entry]) -> Result<(), &'e Entry> {
        let mut left = entries;
        while !left.is_empty() {
            let (request, behind) = left.split_at(request_of(left));
            self.put(request).await?;
            left = behind;
        }
        Ok(())
    }

    async fn put<'e>(&self, request: &'e [Entry]) -> Result<(), &'e Entry> {
        let events = request.iter().map(|entry| entry.event.clone()).collect();
        let answer = match self.client.put_events().set_entries(Some(events)).send().await {
            Ok(answer) => answer,
            Err(error) => {
                // Logs the error without its sources, since they contain the whole response.
                let code = error.code().unwrap_or("none");
                tracing::error!(%error, code, "EventBridge can't be reached, or refused the request");
                return request.first().map_or(Ok(()), Err);
            }
        };
        // EventBridge accepted an entry only if the entry's result has an event id. The response's count of failed
        // entries doesn't say which ones failed.
        for (nth, entry) in request.iter().enumerate() {
            let result = answer.entries().get(nth);
            if result.and_then(|result| result.event_id()).is_none() {
                let code = result.and_then(|result| result.error_code()).unwrap_or("none");
                tracing::error!(key = entry.key, code, "EventBridge refused an event");
                return Err(entry);
            }
        }
        Ok(())
    }
}

impl Entry {
    pub(crate) fn sequence_number(&self) -> &str {
        &self.sequence_number
    }
}

/// Returns how many entries, from the first on, go into the next request. No two of them have the same key. Otherwise
/// EventBridge could publish two events of one key out of order, since it may refuse an event and accept a later one of
/// the same request.
fn request_of(entries: &[Entry]) -> usize {
    let (mut keys, mut bytes) = (BTreeSet::new(), 0);
    let fitting = entries.iter().take(MAX_ENTRIES).take_while(|entry| {
        bytes += entry.bytes;
        bytes <= MAX_BYTES && keys.insert(&entry.key)
    });
    fitting.count().max(1)
}

/// The response, if the record has one and it's JSON.
fn response(ended: &OperationEnded) -> Option<Box<RawValue>> {
    let bytes = ended.response().unwrap_or_else(|error| {
        tracing::warn!(key = %ended.key, %error, "the response can't be read, so it's left out");
        None
    })?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, bytes: usize) -> Entry {
        let event = PutEventsRequestEntry::builder().build();
        Entry { sequence_number: "1".into(), key: key.into(), bytes, event }
    }

    #[test]
    fn requests_stay_within_the_limits() {
        let many: Vec<_> = (0..25).map(|nth| entry(&nth.to_string(), 600)).collect();
        assert_eq!(request_of(&many), MAX_ENTRIES);
        assert_eq!(request_of(&many[..3]), 3);
        let large: Vec<_> = (0..5).map(|nth| entry(&nth.to_string(), 100 * 1024)).collect();
        assert_eq!(request_of(&large), 2);
        assert_eq!(request_of(&[entry("a", MAX_BYTES + 1), entry("b", 1)]), 1, "`a` is sent alone");
    }

    #[test]
    fn one_request_never_repeats_a_key() {
        let entries = ["a", "b", "a", "c"].map(|key| entry(key, 600));
        assert_eq!(request_of(&entries), 2);
        assert_eq!(request_of(&entries[2..]), 2);
    }
}
