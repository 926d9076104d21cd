//! The [`Claim`]: the exclusive right to run one operation.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{Action, End, Event, Held, Intent, Limits, State},
    record::{Owner, Status},
    run::{
        driver::{Declined, Driver, Ending, Way},
        handle::ClaimHandle,
        refusal::{Refused, fenced, not_released, unrecorded},
        replay::{Replay, in_span},
        response::Verdict,
        unenforced::Unenforced,
    },
    settings::Execution,
    store::OwnWrites,
    time::Timestamp,
};

/// The exclusive right to run one operation, held under a lease.
///
/// Settle it by [`complete`](Self::complete), [`fail`](Self::fail) or [`release`](Self::release), each of
/// which consumes it. Dropping a claim settles nothing: the library logs one warning. Under at-least-once, the key
/// is free when the lease has ended, and the warning says when. Under at-most-once, an operator must settle it.
///
/// While idempotency isn't enforced ([`Mode`](crate::settings::Mode)), a claim holds nothing.
/// [`commit`](Self::commit) then commits the writes without a record, and the other methods always succeed.
#[must_use = "a claim that is not settled blocks its key until the lease ends"]
pub struct Claim {
    driver: Driver,
    handle: ClaimHandle,
    state: Box<State>,
    /// Whether a copy of the settled record may be cached.
    is_copied: bool,
    /// Whether an extension found that the claim isn't held anymore.
    is_lost: bool,
    /// The right that's used instead of a claim while idempotency isn't enforced.
    unenforced: Option<Box<Unenforced<'static>>>,
}

/// The result of beginning an operation with [`Operation::begin`](crate::Operation::begin), or with `begin_in` in your
/// own transaction.
#[derive(Debug)]
#[must_use]
pub enum Begun<R = Claim> {
    /// The key is claimed: run the operation, then settle the claim.
    Claimed(R),
    /// The operation already has an outcome: answer with it.
    Replay(Replay),
}

impl<R> Begun<R> {
    pub(super) fn map<T>(self, right: impl FnOnce(R) -> T) -> Begun<T> {
        match self {
            Self::Claimed(claim) => Begun::Claimed(right(claim)),
            Self::Replay(replay) => Begun::Replay(replay),
        }
    }

    /// The outcome, if the operation already has one.
    pub(crate) fn replay(&self) -> Option<&Replay> {
        match self {
            Self::Claimed(_) => None,
            Self::Replay(replay) => Some(replay),
        }
    }
}

/// How a claim was settled.
#[derive(Debug)]
#[must_use = "if another run settled first, answer with its outcome, not with your own result"]
pub enum Settled {
    /// The outcome is stored, together with the handler's own writes if there are any. After `begin_in`, your
    /// transaction contains the outcome: commit the transaction.
    Recorded,
    /// Another run of the operation settled first: answer with its outcome. Nothing was written. After
    /// `begin_in`, roll your transaction back.
    Superseded(Replay),
}

impl Settled {
    /// The other run's outcome, if another run settled first.
    pub(super) fn superseding(&self) -> Option<&Replay> {
        match self {
            Self::Recorded => None,
            Self::Superseded(replay) => Some(replay),
        }
    }
}

impl Claim {
    pub(super) fn new(
        driver: Driver,
        key: StoredKey,
        state: Box<State>,
        held: Held,
        is_copied: bool,
    ) -> Self {
        let handle = ClaimHandle::new(key, held);
        Self { driver, handle, state, is_copied, is_lost: false, unenforced: None }
    }

    /// Returns a claim for code that runs while idempotency isn't enforced. It holds nothing; settling it succeeds.
    pub(crate) async fn unenforced(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
    ) -> Self {
        let right = Box::pin(Unenforced::begin(driver, key, fingerprint, invocation, way)).await;
        let limits = *right.limits();
        Self {
            driver: driver.clone(),
            handle: right.handle(),
            // This machine is never driven, so it holds no claim.
            state: driver.machine(Owner::from_bytes([0; 16]), fingerprint, invocation, limits),
            is_copied: false,
            is_lost: false,
            unenforced: Some(Box::new(right)),
        }
    }

    /// Whether nothing is claimed, because idempotency isn't enforced.
    pub(super) fn is_unenforced(&self) -> bool {
        self.unenforced.is_some()
    }

    /// Returns the handler's view of the claim.
    pub fn handle(&self) -> ClaimHandle {
        self.handle.clone()
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.state.plan().limits
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn key(&self) -> &StoredKey {
        self.handle.key()
    }

    /// The claim with its current lease.
    pub(super) fn held(&self) -> Held {
        self.handle.held()
    }

    /// Whether the remote system must be asked for an earlier attempt's effect before the handler runs.
    pub(super) fn is_asking(&self) -> bool {
        self.state.is_asking()
    }

    /// As [`Right::did_not_happen`](super::right::Right::did_not_happen). Reports the refusal.
    pub(super) async fn did_not_happen(&mut self) -> Result<(), Refused> {
        let (key, requests) = (self.handle.key(), self.driver.to_store(None));
        let (opened, cause) =
            self.driver.drive(key, &mut self.state, Event::DidNotHappen, &requests).await.opened();
        match opened {
            Ok(_) => Ok(()),
            Err(refusal) => {
                let refused = Refused::of(key, refusal, cause, &self.state, self.driver.now());
                Err(refused.reported(key))
            }
        }
    }

    /// As [`Right::unanswered_until`](super::right::Right::unanswered_until).
    pub(super) fn unanswered_until(&self, now: Timestamp, ask_again_after: Option<Duration>) -> Timestamp {
        match self.state.unanswered(now, ask_again_after) {
            Intent::Unanswered { until } => until,
            _ => self.held().lock.lease_until,
        }
    }

    /// Whether an extension found that the claim isn't held anymore.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// T4: stores `response` as the operation's outcome.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: another claim took over. Its handler is still running, or its response can't be
    ///   read right now.
    /// - [`ErrorKind::NotRetained`]: the successor settled first, without keeping its response.
    /// - [`ErrorKind::Corrupt`] or [`ErrorKind::Invalid`]: the successor settled first, and its response is damaged, or is
    ///   encrypted and this function has no cipher that can decrypt it.
    /// - [`ErrorKind::Unrecorded`]: the outcome isn't known to be stored. The operation happened; answer with
    ///   its response, since an error would make the caller repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the outcome stored, not stored, or about to be stored. If it isn't stored, the
    /// claim is like one that was dropped.
    pub async fn complete(self, response: impl Into<Bytes>) -> Result<Settled, Error> {
        self.record(Verdict::complete(response)).await
    }

    /// T5: stores `failure` as the operation's outcome: it failed permanently, and won't run again.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, failure: impl Into<Bytes>) -> Result<Settled, Error> {
        self.record(Verdict::Fail(Some(failure.into()))).await
    }

    /// T6: releases the key; the next delivery runs the handler.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim had been taken over, or the record had been settled, so there's nothing
    ///   left to release.
    /// - [`ErrorKind::Unrecorded`]: it's unknown whether the key is released. If it isn't, the claim is like one
    ///   that was dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the key released, or the claim like one that was dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.record(Verdict::Release { interrupted: false }).await.map(|_| ())
    }

    /// The outcome's name in the operation's span, if this verdict is recorded.
    pub(super) fn outcome_of(&self, verdict: &Verdict) -> &'static str {
        if self.is_unenforced() { "unenforced" } else { verdict.name() }
    }

    /// Settles the claim in the operation's span.
    async fn record(mut self, verdict: Verdict) -> Result<Settled, Error> {
        let span = self.driver.span.clone();
        let name = self.outcome_of(&verdict);
        let settled = in_span(&span, self.settle_within_span(verdict), Settled::superseding).await;
        if let Ok(Settled::Recorded) = settled {
            span.ended(name);
        }
        settled
    }

    async fn settle_within_span(&mut self, verdict: Verdict) -> Result<Settled, Error> {
        let is_released = verdict.is_without_outcome();
        match self.settle(verdict).await {
            Ending { end: End::Recorded, .. } => Ok(Settled::Recorded),
            Ending { end: End::Unrecorded(_), store_error, .. } if is_released => {
                Err(not_released(self.key(), store_error))
            }
            Ending { end: End::Superseded(record), .. } if !is_released => {
                let (key, until) = (self.key(), self.limits().answer_by);
                let outcome = self.driver.successors_outcome(key, &record, ErrorKind::Fenced, until).await;
                outcome.map(Settled::Superseded)
            }
            Ending { end, store_error, .. } => Err(unrecorded(self.key(), &end, store_error)),
        }
    }

    /// Settles the claim. Reports and returns how that ended.
    pub(super) async fn settle(&mut self, verdict: Verdict) -> Ending {
        if let Some(right) = &mut self.unenforced {
            return right.settle(verdict).await;
        }
        let (status, is_asking) = (verdict.status(), self.is_asking());
        let key = self.handle.key();
        let requests = self.driver.to_store(None);
        let ending = self.driver.settle(key, &mut self.state, verdict, &requests, self.is_copied).await;
        if is_asking {
            observe::asked_remotely(key, &self.held(), status);
        }
        self.report(&ending, status);
        ending
    }

    /// Settles the claim together with the handler's own `writes` (T8). Reports and returns how that ended.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied, and the claim is still held.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: &OwnWrites,
    ) -> Result<Ending, Declined> {
        if let Some(right) = &mut self.unenforced {
            return right.settle_with(verdict, writes).await;
        }
        let status = verdict.status();
        let key = self.handle.key();
        let ending = self.driver.commit(key, &mut self.state, verdict, writes, self.is_copied).await?;
        self.report(&ending, status);
        Ok(ending)
    }

    fn report(&self, ending: &Ending, status: Status) {
        let (key, held) = (self.key(), self.held());
        let cause = ending.store_error.as_ref().map(|error| error as _);
        match &ending.end {
            End::Recorded | End::Unrecorded(_) if status == Status::Started => {
                observe::interrupted(key, &held, ending.end == End::Recorded, &self.driver.rules(), cause);
            }
            End::Recorded => observe::settled(key, &held, status),
            End::Superseded(_) | End::Fenced(_) => observe::fenced(key, &held),
            End::Unrecorded(_) if status == Status::Released => observe::not_released(key, &held, cause),
            End::Unrecorded(_) => observe::unrecorded(key, &held, cause),
            End::Unresolved(_) => observe::unresolved(key, cause),
            // The code that answers the caller has the error, and logs it.
            End::NotCommitted(_) => {}
        }
    }

    /// T7: extends the lease to `length` from now, for work that takes longer than its lease. This method
    /// never shortens a lease. The wrappers extend leases automatically if
    /// [`Settings::lease_extension`](crate::settings::Settings::lease_extension) is set.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim has been taken over, or its record has been settled, or is gone or
    ///   unreadable. Stop.
    /// - [`ErrorKind::Unavailable`]: the lease isn't known to be extended, and the claim keeps its old lease: try again
    ///   before that lease ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the lease extended or unchanged; it's never shorter than before.
    pub async fn extend(&mut self, length: Duration) -> Result<(), Error> {
        let until = self.driver.now().saturating_add(length);
        if until <= self.handle.lease_until() {
            return Ok(());
        }
        if let Some(right) = &mut self.unenforced {
            self.handle.move_lease(until);
            right.extend(until).await;
            return Ok(());
        }
        match self.extend_until(until).await {
            Extended::Until(_) => Ok(()),
            Extended::Lost => Err(fenced(self.key(), None)),
            Extended::NotNow => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{}: the lease isn't known to be extended; try again before it ends", self.key()),
            )),
        }
    }

    /// T7: extends the lease to `until`. The state stays in the claim, even if the future is dropped.
    pub(super) async fn extend_until(&mut self, until: Timestamp) -> Extended {
        let (key, requests) = (self.handle.key(), self.driver.to_store(None));
        let driven = self.driver.drive(key, &mut self.state, Event::Extend(until), &requests).await;
        match driven.action {
            Action::Extended(held) => {
                self.handle.move_lease(held.lock.lease_until);
                observe::extended(key, &held);
                Extended::Until(held.lock.lease_until)
            }
            Action::Lost => {
                self.is_lost = true;
                observe::fenced(key, &self.held());
                Extended::Lost
            }
            _ => {
                // Without a store error, nothing was sent: the lease already lasts as long, or a transaction in
                // doubt forbids a longer lease.
                if driven.store_error.is_some() {
                    observe::not_extended(key, &self.held());
                }
                Extended::NotNow
            }
        }
    }
}

/// The result of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extended {
    /// The lease now ends at this time.
    Until(Timestamp),
    /// The lease isn't known to be extended, so the claim keeps its old lease.
    NotNow,
    /// The claim has been taken over, or its record has been settled, or is gone or unreadable.
    Lost,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.state.held().is_some() {
            let (rules, held) = (self.driver.rules(), self.held());
            let frees_at = match rules.execution {
                Execution::AtLeastOnce => Some(rules.claimable_at(held.lock.lease_until)),
                Execution::AtMostOnce => None,
            };
            self.driver.span.span().in_scope(|| observe::abandoned(self.key(), &held, frees_at));
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", self.key()).field("held", &self.held()).finish_non_exhaustive()
    }
}
