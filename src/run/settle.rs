//! Settles an operation: turns the verdict into what the machine stores, and drives the machine.

use crate::{
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{Event, Intent, State},
    run::{
        driver::{Declined, Driven, Driver, Ending, Requests},
        response::Verdict,
    },
    store::OwnWrites,
    time::{Stopwatch, Timestamp},
};

impl Driver {
    /// Settles the operation in `state` as `verdict` says, by `requests`.
    ///
    /// While the settlement is prepared, the claim is still held. If this future is dropped at that time, the
    /// library logs that the claim is abandoned.
    pub(super) async fn settle(
        &self,
        key: &StoredKey,
        state: &mut State,
        verdict: Verdict,
        requests: &dyn Requests,
        is_copied: bool,
    ) -> Ending {
        self.drive_settlement(key, state, verdict, requests, is_copied).await.settled()
    }

    /// Settles the operation like [`settle`](Self::settle), together with the handler's own `writes`.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied. If there's a claim, it's still held.
    pub(super) async fn commit(
        &self,
        key: &StoredKey,
        state: &mut State,
        verdict: Verdict,
        writes: &OwnWrites,
        is_copied: bool,
    ) -> Result<Ending, Declined> {
        let requests = self.to_store(Some(writes));
        self.drive_settlement(key, state, verdict, &requests, is_copied).await.committed(state)
    }

    async fn drive_settlement(
        &self,
        key: &StoredKey,
        state: &mut State,
        verdict: Verdict,
        requests: &dyn Requests,
        is_copied: bool,
    ) -> Driven {
        let response = verdict.response().filter(|_| is_copied).cloned();
        let until = state.plan().limits.prepare_by(self.now());
        let intent = self.intent(key, state, verdict, until).await;
        let intent = if requests.commits() { intent.committed() } else { intent };
        let ticket = response.as_ref().and_then(|_| Some(self.cache()?.ticket()));
        let stopwatch = Stopwatch::start();
        let driven = self.drive(key, state, Event::Settle(intent), requests).await;
        observe::settling_ended(stopwatch);
        if let (Some(response), Some(record), Some(cache)) = (response, driven.recorded(), self.cache()) {
            cache.keep_copy(ticket, key, record, &response);
        }
        driven
    }

    /// Prepares a settlement: encodes the response, and writes it in chunks if it's too large for the record,
    /// by the time `until`.
    async fn intent(&self, key: &StoredKey, state: &State, verdict: Verdict, until: Timestamp) -> Intent {
        match verdict {
            Verdict::Complete(response, format) => {
                Intent::Complete(self.outcome(key, state, response, format, until).await)
            }
            Verdict::Fail(Some(failure)) => {
                Intent::Fail(self.outcome(key, state, failure, None, until).await)
            }
            Verdict::Release { interrupted } => Intent::Release { interrupted },
            Verdict::Unanswered { until: Some(until) } => Intent::Unanswered { until },
            Verdict::Unanswered { until: None } => state.unanswered(self.now(), None),
            Verdict::CompleteOmitted => {
                observe::not_retained(key, None, None);
                Intent::Complete(Outcome::Omitted)
            }
            Verdict::Fail(None) => {
                observe::not_retained(key, None, None);
                Intent::Fail(Outcome::Omitted)
            }
        }
    }
}
