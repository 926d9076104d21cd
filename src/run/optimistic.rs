//! Operations without a claim: the handler runs first, then one transaction stores its outcome and its writes.

use crate::{
    error::Error,
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{End, Event, State},
    run::{
        begin::replayed,
        claim::Begun,
        context::refuse_within_itself,
        driver::{Declined, Driver, Ending, Opened},
        lease::Timing,
        refusal::Refused,
        response::Verdict,
    },
    store::OwnWrites,
    time::{Stopwatch, Timestamp},
};

/// An operation that runs without a claim.
pub(super) struct Optimistic {
    driver: Driver,
    key: StoredKey,
    state: Box<State>,
    cut_off: Timestamp,
    /// Whether a copy of the outcome may be cached.
    is_copied: bool,
}

impl Optimistic {
    /// Starts an operation without a claim, or finds its outcome. Sends no request if `reads_first` is false.
    pub(super) async fn begin(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        reads_first: bool,
    ) -> Result<Begun<Self>, Refused> {
        let reported = |error: Error| Refused::from(error).reported(key);
        refuse_within_itself(key).map_err(reported)?;
        let (stopwatch, now) = (Stopwatch::start(), driver.now());
        if let Some(answer) =
            driver.cache().and_then(|cache| cache.recall(&driver.rules(), key, fingerprint, now))
        {
            observe::asked(stopwatch);
            return answer.map(Begun::Replay).map_err(|refused| refused.reported(key));
        }
        let ticket = driver.cache().and_then(|cache| cache.ticket_in(invocation));
        // Without a claim, there's no lease that could be extended or could expire.
        let timing = Timing::unextended(&driver.settings, now, invocation);
        let state = driver.machine(driver.owner()?, fingerprint, invocation, &timing);
        let mut it = Self {
            driver: driver.clone(),
            key: key.clone(),
            state,
            cut_off: timing.cut_off,
            is_copied: ticket.is_some(),
        };
        if !reads_first {
            return Ok(Begun::Claimed(it));
        }
        let requests = driver.to_store(None);
        let opened = driver.open(key, &mut it.state, Event::Look, &requests).await;
        observe::asked(stopwatch);
        match opened.map_err(|refused| refused.reported(key))? {
            Opened::Open | Opened::Claimed(_) => Ok(Begun::Claimed(it)),
            Opened::Recorded(record) => {
                let replay = replayed(driver, key, &record, ticket, timing.limits.answer_by).await;
                replay.map(Begun::Replay).map_err(|refused| refused.reported(key))
            }
        }
    }

    pub(super) fn key(&self) -> &StoredKey {
        &self.key
    }

    /// When the caller's answer is due.
    pub(super) fn answer_by(&self) -> Option<Timestamp> {
        self.state.plan().limits.answer_by
    }

    /// Whether a declined transaction may still be applied.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt()
    }

    /// When the handler is cut off.
    pub(super) fn cut_off(&self) -> Timestamp {
        self.cut_off
    }

    /// Settles as `verdict` says, together with `writes` if there are any. Reports and returns how that ended.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: Option<&OwnWrites>,
    ) -> Result<Ending, Declined> {
        let is_put = !verdict.is_without_outcome();
        let ending = self.driver.settle(&self.key, &mut self.state, verdict, writes, self.is_copied).await?;
        match &ending.end {
            End::Recorded if is_put => observe::concluded(&self.key),
            End::Superseded(_) => observe::outrun(&self.key),
            End::Unresolved(_) => {
                observe::unresolved(&self.key, ending.store_error.as_ref().map(|error| error as _));
            }
            End::Recorded | End::Fenced(_) | End::Unrecorded(_) | End::NotCommitted(_) => {}
        }
        Ok(ending)
    }
}
