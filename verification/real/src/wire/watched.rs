//! A store that notes the library's calls and their results. Before one of the calls, it can run an action, such as a
//! rival's write.

use std::{
    fmt::{self, Debug, Display},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, Owner, Put, PutOutcome, Record, ResponseChunks, Store, StoreError, StoreErrorKind},
    time::Timestamp,
};
use lambda_idempotency_rehearsal::{clock, wire::Meaning};

use super::{
    calls::{Left, Notes},
    lock,
    told::{Brief, Told},
};

/// One store call by the library.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) meaning: Meaning,
    /// When the call ended.
    pub(super) ended: Instant,
    pub(super) took: Duration,
    /// The requests during this call: from the first index up to, but not including, the second.
    pub(super) requests: (usize, usize),
    pub(super) told: Told,
    /// The total lateness of timers during this call.
    pub(super) late: Duration,
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { meaning, took, requests: (first, end), told, .. } = self;
        write!(f, "{meaning:12}  requests {first}..{end}, {:.1} ms: {told:?}", took.as_secs_f64() * 1e3)
    }
}

/// An action that runs once, before the library's first call with a certain meaning.
pub(super) type Interlude = (Meaning, BoxFuture<'static, ()>);

/// The store that notes the library's calls.
pub(super) struct Watched {
    inner: Arc<dyn Store>,
    wire: Notes,
    calls: Arc<Mutex<Vec<Call>>>,
    interlude: Mutex<Option<Interlude>>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Store>, wire: Notes, interlude: Option<Interlude>) -> Self {
        Self { inner, wire, calls: Arc::default(), interlude: Mutex::new(interlude) }
    }

    /// Returns the shared list of calls. The store keeps adding to it.
    pub(super) fn calls(&self) -> Arc<Mutex<Vec<Call>>> {
        Arc::clone(&self.calls)
    }

    async fn noted<T>(
        &self,
        meaning: Meaning,
        left: Option<Left>,
        call: impl Future<Output = Result<T, StoreError>>,
        tell: impl FnOnce(&T) -> Told,
    ) -> Result<T, StoreError> {
        let interlude = lock(&self.interlude).take_if(|(at, _)| *at == meaning);
        if let Some((_, interlude)) = interlude {
            interlude.await;
        }
        let (start, first) = (clock::start(), self.wire.len());
        let begun = self.wire.begin(meaning);
        let result = call.await;
        let (took, ended) = (start.elapsed(), clock::start());
        let told = match &result {
            Ok(value) => tell(value),
            Err(error) => Told::Failed { kind: error.kind(), maybe_applied: error.is_maybe_applied() },
        };
        self.wire.end(begun, left, &told).await;
        let requests = (first, self.wire.len());
        lock(&self.calls).push(Call { meaning, ended, took, requests, told, late: Duration::ZERO });
        result
    }
}

impl Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Store for Watched {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        let left = (put.record().owner, put.record().status());
        let tell = |answer: &PutOutcome| match answer {
            PutOutcome::Applied => Told::Applied,
            PutOutcome::Refused(record) => Told::Refused(record.as_ref().map(Brief::of)),
        };
        Box::pin(self.noted(Meaning::of_put(put), Some(left), self.inner.put(key, put), tell))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        let tell = |record: &Option<Record>| Told::Found(record.as_ref().map(Brief::of));
        Box::pin(self.noted(Meaning::Look, None, self.inner.read(key), tell))
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.inner.chunks().is_some().then_some(self)
    }
}

impl ResponseChunks for Watched {
    fn inline_limit(&self) -> usize {
        self.inner.chunks().map_or(usize::MAX, ResponseChunks::inline_limit)
    }

    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            let parts = self.inner.chunks().ok_or_else(no_parts)?;
            let call = parts.write_chunks(key, owner, bytes, expires_at);
            self.noted(Meaning::PartWritten, None, call, |_| Told::Applied).await
        })
    }

    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move {
            let parts = self.inner.chunks().ok_or_else(no_parts)?;
            let call = parts.read_chunks(key, owner, count, limit);
            self.noted(Meaning::PartRead, None, call, |_| Told::Parts).await
        })
    }
}

fn no_parts() -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, "the inner store doesn't support chunks")
}
