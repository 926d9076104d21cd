//! Detects in the table's stream that an operation has ended: its record became COMPLETED or FAILED.

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    DynamoDbStore, RECORD_SORT_KEY,
    codec::{self, Item},
};
use crate::{
    error::{Error, place},
    internal::StoredKeyExt as _,
    internal::StoredResponseExt as _,
    key::StoredKey,
    outcome::{Outcome, Place},
    record::{Record, State},
    store::{StoreError, StoreErrorKind, toolkit::Field},
    time::Timestamp,
};

/// The only view type that shows what a write changed.
const VIEW: &str = "NEW_AND_OLD_IMAGES";

/// Marks the stored key of a chunk. A record's stored key never contains this text, because the names in it can't
/// contain a `#`. In a table with a sort key but no partition, a chunk has its record's stored key. There, only the
/// sort key marks the chunk.
pub(super) const CHUNK: &str = "#part#";

/// An operation that ended, as the table's stream reports it. [`DynamoDbStore::ended_in`] returns this value.
///
/// It serializes to the detail of an event, without the response: `id`, `key`, `function`, `operation`, `outcome`
/// (`completed` or `failed`), `generation`, `attempt`, `interrupted`, `by_operator`, `request_id` (if known), and
/// `claimed_at`, `written_at` (if known) and `expires_at` in ms since the Unix epoch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OperationEnded {
    /// The operation's stored key.
    pub key: StoredKey,
    /// The record with the outcome. If the operation of a key ends more than once, the later record has the greater
    /// generation.
    pub record: Record,
    /// When DynamoDB wrote the record, to about a second. `None` if the stream doesn't say when.
    pub written_at: Option<Timestamp>,
    /// Whether an operator settled the operation. If not, a delivery did.
    pub by_operator: bool,
}

impl OperationEnded {
    /// Returns a UUID that identifies this event. The UUID is derived from the stored key, the owner, the generation
    /// and the status. So if the stream delivers the change again, the UUID is the same. No other event has this UUID.
    pub fn id(&self) -> String {
        let Record { owner, generation, .. } = &self.record;
        self.key.derive(&format!("ended {owner} {generation} {}", self.record.status().as_str()))
    }

    /// Returns the response, if the stream has its bytes. `None` if the response is encrypted, in chunks, or wasn't
    /// retained. The bytes have the form in which the handler's wrapper recorded the response, such as an encoded HTTP
    /// response.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the bytes aren't the response that was recorded.
    pub fn response(&self) -> Result<Option<Bytes>, Error> {
        let (State::Completed(Outcome::Retained(response)) | State::Failed(Outcome::Retained(response))) =
            &self.record.state
        else {
            return Ok(None);
        };
        match &response.place {
            Place::Inline(kept) if response.labels()?.key_id.is_none() => response.decode(kept).map(Some),
            Place::Inline(_) | Place::Chunks(_) => Ok(None),
        }
    }
}

impl Serialize for OperationEnded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Record { generation, attempt, mark, lock_acquired_at, expires_at, .. } = &self.record;
        let (function, operation) = self.key.names().unzip();
        let detail = Detail {
            id: self.id(),
            key: self.key.as_str(),
            function,
            operation,
            outcome: if matches!(self.record.state, State::Failed(_)) { "failed" } else { "completed" },
            generation: generation.get(),
            attempt: *attempt,
            interrupted: mark.is_interrupted(),
            by_operator: self.by_operator,
            request_id: self.record.request_id.as_deref(),
            claimed_at: lock_acquired_at.as_millis(),
            written_at: self.written_at.map(Timestamp::as_millis),
            expires_at: expires_at.map(Timestamp::as_millis),
        };
        detail.serialize(serializer)
    }
}

#[derive(Serialize)]
struct Detail<'a> {
    id: String,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    outcome: &'static str,
    generation: u64,
    attempt: u32,
    interrupted: bool,
    by_operator: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    claimed_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
}

impl DynamoDbStore {
    /// The names of the table's key attributes.
    pub(super) fn key_names(&self) -> impl Iterator<Item = &str> {
        [self.inner.attributes.of(Field::Id)].into_iter().chain(self.inner.sort_key.as_deref())
    }

    pub(super) fn other_key(&self) -> StoreError {
        let table = &self.inner.table;
        StoreError::new(
            StoreErrorKind::Rejected,
            format!(
                "table `{table}` has a key that differs from the configuration; run `idempotency table check`"
            ),
        )
    }

    /// Checks whether a change in the table's stream ended an operation, and returns that operation. `record` is one
    /// element of `Records`, in JSON, as Lambda delivers it. This method sends no request.
    ///
    /// `None` if the change didn't end an operation: a claim, an extension, a takeover, a release, a deletion (TTL's
    /// too), a write that keeps a settled record's outcome, a record in shadow mode, a chunk of a response, or another
    /// item of a shared table.
    ///
    /// The stream needs the view type `NEW_AND_OLD_IMAGES`. The store needs the same attribute names, sort key and
    /// partition as the function that writes the records. In a global table, each Region's stream reports the same
    /// events with the same ids, so publish from one Region.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`] for a stream with another view type, or a table whose key differs from this store's
    /// configuration. [`StoreErrorKind::Corrupt`] if `record` isn't a change from a DynamoDB stream, or if the
    /// idempotency record in it can't be decoded, for example because a newer version wrote it. Don't skip such a
    /// change: it may have ended an operation.
    ///
    /// ```
    /// # use lambda_idempotency::store::{StoreError, dynamodb::DynamoDbStore};
    /// # fn publish(id: String, detail: String) {}
    /// # fn example(store: &DynamoDbStore, record: &serde_json::value::RawValue) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(ended) = store.ended_in(record.get())? {
    ///     publish(ended.id(), serde_json::to_string(&ended)?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn ended_in(&self, record: impl AsRef<[u8]>) -> Result<Option<OperationEnded>, StoreError> {
        let Change { view, written_at, keys, new, old } = Change::parse(record.as_ref())?;
        if view != VIEW {
            return Err(self.other_view(&view));
        }
        let Some(key) = self.changed_record(&keys)? else { return Ok(None) };
        let Some(new) = new else { return Ok(None) };
        let record = self.decode(&key, self.record_item_in(&key, &new)?)?;
        if !matches!(record.state, State::Completed(_) | State::Failed(_)) || key.is_in_shadow() {
            return Ok(None);
        }
        // If the old image can't be decoded, assume that the change ended the operation. At worst, the same event is
        // published again.
        let old = old.and_then(|old| self.record_item_in(&key, &old).ok());
        let old = old.and_then(|old| codec::decode(old, &self.inner.attributes).ok());
        if old.as_ref().is_some_and(|old| is_same_end(old, &record)) {
            return Ok(None);
        }
        let by_operator = old.is_some_and(|old| is_resolved(&old, &record));
        Ok(Some(OperationEnded { key, record, written_at, by_operator }))
    }

    /// Returns the stored key of the record that changed. `None` if the item is a chunk or isn't the library's.
    fn changed_record(&self, keys: &Image<'_>) -> Result<Option<StoredKey>, StoreError> {
        let names: Vec<_> = self.key_names().collect();
        if keys.len() != names.len() || names.iter().any(|name| !keys.contains_key(*name)) {
            return Err(self.other_key());
        }
        let item = self.item_in(keys).map_err(|_| self.other_key())?;
        if item.values().any(|value| value.as_s().is_err()) {
            return Err(self.other_key());
        }
        let is_elsewhere = match (&self.inner.partition, &self.inner.sort_key) {
            (None, Some(name)) => item.get(name) != Some(&codec::text(RECORD_SORT_KEY)),
            _ => false,
        };
        let key = self.stored_key_of(&item).filter(|key| !is_elsewhere && !key.as_str().contains(CHUNK));
        Ok(key)
    }

    fn record_item_in(&self, key: &StoredKey, image: &Image<'_>) -> Result<Item, StoreError> {
        self.item_in(image).map_err(|name| self.corrupt(key, &format!("`{name}` isn't an attribute value")))
    }

    /// Returns the library's attributes in `image`, without the user's own.
    ///
    /// # Errors
    ///
    /// The name of the first attribute whose value can't be decoded.
    fn item_in<'n>(&'n self, image: &Image<'_>) -> Result<Item, &'n str> {
        let names = Field::ALL.map(|field| self.inner.attributes.of(field)).into_iter();
        let named = names.chain(self.inner.sort_key.as_deref());
        let found = named.filter_map(|name| image.get(name).map(|value| (name, *value)));
        found.map(|(name, value)| Ok((name.to_owned(), attribute(value).ok_or(name)?))).collect()
    }

    fn other_view(&self, view: &str) -> StoreError {
        let table = &self.inner.table;
        let known = ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE"].into_iter().find(|known| *known == view);
        StoreError::new(
            StoreErrorKind::Rejected,
            format!(
                "the stream of table `{table}` has {}, which doesn't show what a write changed: enable the stream \
                 again with {VIEW}",
                known.map_or_else(
                    || "an unknown view type".to_owned(),
                    |view| format!("the view type {view}")
                )
            ),
        )
    }
}

/// Whether the operation had ended before the write: `old` has the owner, generation and status of `new`. If so, the
/// write changed something else.
fn is_same_end(old: &Record, new: &Record) -> bool {
    (old.owner, old.generation, old.status()) == (new.owner, new.generation, new.status())
}

/// Whether an operator changed `old` to `new`. An operator's write sets a new owner, and keeps the claim time, the
/// attempt and the fingerprint. No other write does both: a delivery that settles its claim keeps the owner, and a run
/// without a claim writes its own claim time and attempt.
fn is_resolved(old: &Record, new: &Record) -> bool {
    let claim = |record: &Record| (record.lock_acquired_at, record.attempt, record.fingerprint);
    old.owner != new.owner && claim(old) == claim(new)
}

/// An item's attributes by name, as DynamoDB writes them in JSON.
type Image<'r> = HashMap<String, &'r RawValue>;

/// A change of an item.
struct Change<'r> {
    view: Cow<'r, str>,
    written_at: Option<Timestamp>,
    keys: Image<'r>,
    new: Option<Image<'r>>,
    old: Option<Image<'r>>,
}

#[derive(Deserialize)]
struct Wire<'r> {
    #[serde(rename = "eventName")]
    event_name: EventName,
    #[serde(borrow)]
    dynamodb: WireChange<'r>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum EventName {
    Insert,
    Modify,
    Remove,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WireChange<'r> {
    #[serde(borrow)]
    stream_view_type: Cow<'r, str>,
    #[serde(default)]
    approximate_creation_date_time: Option<f64>,
    #[serde(borrow)]
    keys: Image<'r>,
    #[serde(borrow, default)]
    new_image: Option<Image<'r>>,
    #[serde(borrow, default)]
    old_image: Option<Image<'r>>,
}

impl<'r> Change<'r> {
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if `record` isn't a change from a stream. The message names the position, but leaves
    /// out the parser's text, which may quote the record.
    fn parse(record: &'r [u8]) -> Result<Self, StoreError> {
        let Wire { event_name, dynamodb: change } = serde_json::from_slice(record)
            .map_err(|error| not_a_change(&format!("unexpected content at {}", place(&error))))?;
        let (new, old) = (change.new_image, change.old_image);
        let has = (new.is_some(), old.is_some());
        let expected = match event_name {
            EventName::Insert => (true, false),
            EventName::Modify => (true, true),
            EventName::Remove => (false, true),
        };
        if change.stream_view_type == VIEW && has != expected {
            return Err(not_a_change("its images don't match its event name"));
        }
        let millis = change.approximate_creation_date_time.map(|seconds| (seconds * 1000.0).round());
        let millis = millis.filter(|millis| (0.0..1e15).contains(millis));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number in range"
        )]
        let written_at = millis.map(|millis| Timestamp::from_millis(millis as u64));
        Ok(Self { view: change.stream_view_type, written_at, keys: change.keys, new, old })
    }
}

fn not_a_change(why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("the record isn't a change of a DynamoDB stream: {why}"))
}

/// An attribute's value. No attribute of a record has a type that falls under `Other`, so its contents are ignored.
#[derive(Deserialize)]
enum Value {
    S(String),
    N(String),
    B(String),
    #[serde(
        rename = "NULL",
        alias = "BOOL",
        alias = "M",
        alias = "L",
        alias = "SS",
        alias = "NS",
        alias = "BS"
    )]
    Other(IgnoredAny),
}

fn attribute(value: &RawValue) -> Option<AttributeValue> {
    Some(match serde_json::from_str(value.get()).ok()? {
        Value::S(text) => AttributeValue::S(text),
        Value::N(digits) => AttributeValue::N(digits),
        Value::B(text) => AttributeValue::B(Blob::new(STANDARD.decode(text).ok()?)),
        Value::Other(IgnoredAny) => AttributeValue::Null(true),
    })
}
