//! Operations without a claim: the handler runs first, then one transaction stores its outcome and its writes.
//!
//! That transaction may also be the caller's own, in which the handler runs. Its lock holds the key.

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{End, Event, Limits, State},
    record::Record,
    run::{
        begin::replayed,
        claim::Begun,
        context::refuse_within_itself,
        driver::{Declined, Driver, Ending, Inside, Opened, Requests},
        limits,
        refusal::{Refused, concluded, not_committed},
        response::Verdict,
        unenforced::end,
    },
    store::{OwnWrites, StoreError},
    time::{Stopwatch, Timestamp},
};

/// An operation that runs without a claim.
pub(super) struct Optimistic<'t> {
    driver: Driver,
    key: StoredKey,
    state: Box<State>,
    /// Whether a copy of the outcome may be cached.
    is_copied: bool,
    /// The caller's own transaction, if it keeps the record.
    inside: Option<&'t dyn Inside>,
}

impl<'t> Optimistic<'t> {
    /// Starts an operation without a claim, or finds its outcome. Sends no request if `reads_first` is false.
    pub(super) async fn begin(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        reads_first: bool,
        inside: Option<&'t dyn Inside>,
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
        // The caller may still roll its transaction back.
        let ticket =
            driver.cache().filter(|_| inside.is_none()).and_then(|cache| cache.ticket_in(invocation));
        // Without a claim, there's no lease that could be extended or could expire.
        let limits = limits::unextended(&driver.settings, now, invocation);
        let state = driver.machine(driver.owner()?, fingerprint, invocation, limits);
        let mut it =
            Self { driver: driver.clone(), key: key.clone(), state, is_copied: ticket.is_some(), inside };
        if !reads_first {
            return Ok(Begun::Claimed(it));
        }
        let opened = match it.inside {
            Some(inside) => driver.open(key, &mut it.state, Event::Lock, inside).await,
            None => driver.open(key, &mut it.state, Event::Look, &driver.to_store(None)).await,
        };
        observe::asked(stopwatch);
        match opened.map_err(|refused| refused.reported(key))? {
            Opened::Open | Opened::Claimed(_) => Ok(Begun::Claimed(it)),
            Opened::Recorded(record) => {
                let replay = replayed(driver, key, &record, ticket, limits.answer_by).await;
                replay.map(Begun::Replay).map_err(|refused| refused.reported(key))
            }
        }
    }

    pub(super) fn key(&self) -> &StoredKey {
        &self.key
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.state.plan().limits
    }

    /// Whether a declined transaction may still be applied.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt()
    }

    /// Returns this run without the caller's transaction.
    pub(super) fn outside(self) -> Optimistic<'static> {
        let Self { driver, key, state, is_copied, inside: _ } = self;
        Optimistic { driver, key, state, is_copied, inside: None }
    }

    /// Returns this run in the caller's transaction.
    pub(super) fn inside(&mut self, inside: &'t dyn Inside) {
        self.inside = Some(inside);
    }

    /// When the handler is cut off. `None` means never.
    ///
    /// An open transaction would keep its locks in a frozen sandbox, so it's rolled back in the last half of the
    /// reserve.
    pub(super) fn cut_off(&self) -> Option<Timestamp> {
        let limits = self.limits();
        match self.inside {
            Some(_) => limits.deadline.map(|deadline| deadline.saturating_sub(limits.reserve / 2)),
            None => Some(limits.cut_off(limits.lease_until)),
        }
    }

    /// Whether the handler runs in the caller's own transaction.
    pub(super) fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// Whether a handler that has begun may run on after its cut-off.
    pub(super) fn may_run_on(&self) -> bool {
        self.is_inside() && !self.limits().cuts_off
    }

    /// Rolls the caller's transaction back, if there's one that the library began.
    pub(super) async fn roll_back(&self) {
        if let Some(inside) = self.inside {
            // An unanswered rollback happens later.
            let _ = end(&self.driver, inside, *self.limits(), false).await;
        }
    }

    /// As [`concluded`]. `cause` is the store's last error.
    pub(super) fn concluded(&self, end: End, cause: Option<StoreError>) -> Result<Option<Record>, Error> {
        match (self.inside, &end, cause) {
            (Some(inside), End::NotCommitted(_), Some(_)) if inside.has_ended() => {
                Err(ended_early(&self.key))
            }
            (Some(_), End::NotCommitted(_), Some(cause)) => Err(not_committed(&self.key, cause)),
            (_, _, cause) => concluded(&self.key, end, cause, self.driver.now()),
        }
    }

    /// Settles as `verdict` says. Reports and returns how that ended.
    pub(super) async fn settle(&mut self, verdict: Verdict) -> Ending {
        // After `begin_in`, the caller commits the outcome.
        let is_put = !verdict.is_without_outcome() && self.inside.is_none_or(|it| it.commits());
        let to_store = self.driver.to_store(None);
        let requests: &dyn Requests = match self.inside {
            Some(inside) if inside.commits() && !verdict.is_success() => {
                self.roll_back().await;
                return Ending { end: End::Recorded, store_error: None };
            }
            Some(inside) => inside,
            None => &to_store,
        };
        let ending = self.driver.settle(&self.key, &mut self.state, verdict, requests, self.is_copied).await;
        self.report(&ending, is_put);
        ending
    }

    /// Settles together with `writes`. Reports and returns how that ended.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: &OwnWrites,
    ) -> Result<Ending, Declined> {
        let ending = self.driver.commit(&self.key, &mut self.state, verdict, writes, self.is_copied).await?;
        self.report(&ending, true);
        Ok(ending)
    }

    fn report(&self, ending: &Ending, is_put: bool) {
        match &ending.end {
            End::Recorded if is_put => observe::concluded(&self.key),
            End::Superseded(_) => observe::outrun(&self.key),
            End::Unresolved(_) => {
                observe::unresolved(&self.key, ending.store_error.as_ref().map(|error| error as _));
            }
            End::Recorded | End::Fenced(_) | End::Unrecorded(_) | End::NotCommitted(_) => {}
        }
    }
}

/// Returns the error for an operation whose code has ended the transaction with an SQL statement, and reports the
/// error.
fn ended_early(key: &StoredKey) -> Error {
    let error = Error::new(
        ErrorKind::Invalid,
        format!(
            "{key}: the operation's transaction has ended before its outcome was recorded: its code ran COMMIT or \
             ROLLBACK as SQL. So nothing is recorded, what the code committed stays, and a retry runs it again. Leave \
             out the statement; for a partial rollback, use a savepoint"
        ),
    );
    observe::not_committed(key, &error, false);
    error
}
