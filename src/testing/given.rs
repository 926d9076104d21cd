//! [`Given`]: the state of the record that a delivery finds.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    bench::Bench,
    fault::Fault,
    world::{Meets, World},
};
use crate::{
    key::StoredKey,
    outcome::{Outcome, StoredResponse},
    record::{Generation, Owner, Record, State},
    store::{StoreError, StoreErrorKind, Write},
    time::Timestamp,
};

/// How long ago the earlier claim was made, and how long ago an expired lease or record expired. It's longer than any
/// skew margin in use.
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The record that the next delivery finds under its key, as an earlier delivery of the same request left it. See
/// [`Bench::given`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Given {
    /// Another delivery runs the operation, and its lease holds for this long.
    InProgress(Duration),
    /// The delivery that claimed the key died, and its lease has expired.
    Stale,
    /// The operation is done, with this response: the JSON of a result, or
    /// [`http::recorded`](crate::lambda::http::recorded).
    Completed(Bytes),
    /// The operation failed permanently, with this failure: the JSON of a
    /// [`RecordedFailure`](crate::RecordedFailure).
    Failed(Bytes),
    /// The operation was done, and its record has expired.
    Expired,
    /// The record can't be read.
    Corrupt,
    /// A newer version of the library wrote the record.
    OfAFutureVersion,
}

impl Bench {
    /// The next delivery finds its key in this state.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lambda_idempotency::{ErrorKind, Key, testing::{Bench, Event, Function, Given}};
    ///
    /// let bench = Bench::new();
    /// let idempotency = bench.idempotency();
    /// let mut function = Function::new(move |order: String| {
    ///     let idempotency = idempotency.clone();
    ///     async move {
    ///         let ship = || async { Ok::<_, std::io::Error>("shipped".to_owned()) };
    ///         idempotency.operation("ship")?.run(Key::new(&order)?, &order, ship).await
    ///     }
    /// });
    /// bench.given(Given::InProgress(Duration::from_secs(20)));
    /// bench.deliver(&mut function, &Event::json(r#""order-17""#)).assert_refused(ErrorKind::InProgress);
    /// ```
    pub fn given(&self, state: Given) -> &Self {
        self.world().state().given = Some(state);
        self
    }
}

/// Puts the test's given record under `key`, if the test set one. Does so only if `write` expects no record, which is
/// true of a delivery's first write.
///
/// # Errors
///
/// If the record can't be read.
pub(super) fn meet(world: &Arc<World>, key: &StoredKey, write: Option<&Write>) -> Result<(), StoreError> {
    let now = world.now();
    let mut state = world.state();
    let fingerprint = match write {
        Some(Write::Claim(lock)) => Some(lock.fingerprint),
        Some(Write::Conclude { seen: None, record }) => Some(record.fingerprint),
        _ => None,
    };
    if let (Some(fingerprint), Some(given)) = (fingerprint, state.given.take()) {
        match given {
            Given::Corrupt => drop(state.unreadable.insert(key.clone(), Meets::Corrupt)),
            Given::OfAFutureVersion => drop(state.unreadable.insert(key.clone(), Meets::FutureVersion)),
            given => {
                let (record, expires_at) = described(given, now);
                let record = Record {
                    owner: Owner::from_bytes([0xee; 16]),
                    generation: Generation::new(now.saturating_sub(HOUR).as_millis()),
                    attempt: 1,
                    fingerprint,
                    lock_acquired_at: now.saturating_sub(HOUR),
                    expires_at: Some(expires_at.rounded_up_to_second()),
                    interrupted: false,
                    request_id: Some("an-earlier-request".into()),
                    state: record,
                };
                world.records.set(key, Some(record));
            }
        }
    }
    let error = match state.unreadable.get(key) {
        None => None,
        Some(Meets::Corrupt) => Fault::Unreadable.error(),
        Some(Meets::FutureVersion) => {
            let text = "the record has a version that this library doesn't know";
            Some(StoreError::new(StoreErrorKind::Corrupt, text))
        }
    };
    error.map_or(Ok(()), Err)
}

/// Returns the record's state, and the time when the record expires.
fn described(given: Given, now: Timestamp) -> (State, Timestamp) {
    let (before, after) = (now.saturating_sub(HOUR), now.saturating_add(DAY));
    let retained = |bytes| Outcome::Retained(StoredResponse::new(bytes));
    match given {
        Given::InProgress(left) => (State::Started { lease_until: now.saturating_add(left) }, after),
        Given::Completed(response) => (State::Completed(retained(response)), after),
        Given::Failed(failure) => (State::Failed(retained(failure)), after),
        Given::Expired => (State::Completed(retained(Bytes::from_static(b"null"))), before),
        Given::Stale | Given::Corrupt | Given::OfAFutureVersion => {
            (State::Started { lease_until: before }, after)
        }
    }
}
