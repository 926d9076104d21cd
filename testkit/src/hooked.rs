//! A store that asks a test's hook before each call, and then passes the call on, fails it, or leaves it unanswered.

use std::{fmt, future::pending, time::Duration};

use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, Store, StoreError, StoreErrorKind, memory::MemoryStore},
};
use lambda_idempotency_testing::Fault;

/// The library's call.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A write.
    Put(&'a Put),
    /// A read.
    Read,
}

/// The end of a call.
#[derive(Debug)]
pub enum Then {
    /// The inner store answers, at once.
    Pass,
    /// The inner store answers after this time. If it's zero, other tasks run first.
    PassAfter(Duration),
    /// The call meets this fault. A fault without an error or silence lets the call pass.
    Meet(Fault),
    /// The call fails with this error, and the inner store never gets it.
    Fail(StoreError),
}

type Hook = dyn Fn(&StoredKey, Asked<'_>) -> Then + Send + Sync;

/// A store with a hook. It has no chunks and no transactions.
pub struct Hooked<S = MemoryStore> {
    inner: S,
    hook: Box<Hook>,
}

impl<S> Hooked<S> {
    /// A store that calls `hook` before each call to `inner`.
    pub fn new(inner: S, hook: impl Fn(&StoredKey, Asked<'_>) -> Then + Send + Sync + 'static) -> Self {
        Self { inner, hook: Box::new(hook) }
    }

    async fn call<T>(
        &self,
        then: Then,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match then {
            Then::Pass => {}
            Then::PassAfter(Duration::ZERO) => tokio::task::yield_now().await,
            Then::PassAfter(time) => tokio::time::sleep(time).await,
            Then::Meet(Fault::Silence) => return pending().await,
            Then::Meet(Fault::SilenceAfter) => {
                let _ = work.await;
                return pending().await;
            }
            Then::Meet(fault) => {
                let answer = if fault.is_applied() == Some(false) { None } else { Some(work.await) };
                return fault.error().map_or_else(|| answer.expect("an answer, or an error"), Err);
            }
            Then::Fail(error) => return Err(error),
        }
        work.await
    }
}

impl<S> fmt::Debug for Hooked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl<S: Store> Store for Hooked<S> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        let then = (self.hook)(key, Asked::Put(put));
        Box::pin(self.call(then, self.inner.put(key, put)))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        let then = (self.hook)(key, Asked::Read);
        Box::pin(self.call(then, self.inner.read(key)))
    }

    fn close_connections(&self) {
        self.inner.close_connections();
    }
}

/// The error of a store that can't be reached.
pub fn down() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "down")
}

/// A store that can't be reached.
pub fn store_that_is_down() -> Hooked {
    Hooked::new(MemoryStore::new(), |_, _| Then::Fail(down()))
}
