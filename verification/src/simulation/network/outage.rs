//! Outages of the simulated store, and the calls that are reported to the audit.

use lambda_idempotency::store::StoreError;

use super::SimulatedStore;
use crate::simulation::trouble::Outage;

/// A call to the store. When it ends, the audit learns how long it took and whether it was answered.
pub(super) struct Call<'a> {
    store: &'a SimulatedStore,
    executor: u32,
    began: u64,
    is_answered: bool,
}

impl<'a> Call<'a> {
    pub(super) fn begin(store: &'a SimulatedStore) -> Self {
        Self { store, executor: store.world.polled(), began: store.world.now(), is_answered: false }
    }

    pub(super) fn end<T>(mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.is_answered = answer.is_ok();
        answer
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let now = self.store.world.now();
        self.store.audit.call_ended(self.executor, self.began, now, self.is_answered);
    }
}

impl SimulatedStore {
    /// Applies the executor's outage to a request, and returns the client's error, or `None` if no outage affects the
    /// request. In a silent outage, it never returns. If the request reaches the table despite the outage, `arrives`
    /// performs it there.
    pub(super) async fn in_outage(&self, arrives: impl FnOnce(), is_write: bool) -> Option<StoreError> {
        let outage = self.world.config.outage.filter(|_| self.world.is_cut_off())?;
        match outage {
            // Reads don't conflict.
            Outage::Conflict if !is_write => return None,
            Outage::LoseAnswer => arrives(),
            Outage::InternalError | Outage::Silence => self.maybe(arrives),
            _ => {}
        }
        match outage {
            Outage::Silence => std::future::pending().await,
            Outage::LoseRequest | Outage::LoseAnswer => self.no_answer::<()>(outage).await.err(),
            _ => outage.error(),
        }
    }

    fn maybe(&self, arrives: impl FnOnce()) {
        if self.world.random(|random| random.percent(50)) {
            arrives();
        }
    }
}
