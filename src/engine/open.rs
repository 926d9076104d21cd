//! Optimistic operations: the handler runs first, and its outcome is put together with its writes.

use std::sync::Arc;

use crate::{
    claim::{Replay, Settled, Turned},
    engine::{
        Begun, Engine, Verdict,
        drive::{Driven, Refused, RefusedBy, refusal_error},
    },
    fingerprint::Fingerprint,
    invocation::{Invocation, refuse_within_itself},
    key::StoredKey,
    observe,
    protocol::{Action, End, Event, Refusal, State},
    record::Owner,
    store::OwnWrites,
    time::{Stopwatch, Timestamp},
};

/// How operations are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A claim before the handler, and a settlement after it.
    #[default]
    Claimed,
    /// Nothing before the handler, or one read; its outcome and its writes after it.
    Optimistic { reads_first: bool },
}

/// An operation that runs optimistically.
pub(crate) struct Open {
    engine: Arc<Engine>,
    key: StoredKey,
    owner: Owner,
    state: Box<State>,
    cut_off: Timestamp,
    /// Whether a copy of its outcome may be cached.
    is_copied: bool,
}

/// The state before an optimistic handler runs.
pub(crate) enum Opened {
    /// There's no live record, or it wasn't read.
    Open(Open),
    /// The recorded outcome.
    Replay(Replay),
}

impl Engine {
    /// Starts an optimistic operation. Sends no request unless `reads_first`.
    pub(crate) async fn open(
        self: &Arc<Self>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        reads_first: bool,
    ) -> Result<Opened, Refused> {
        refuse_within_itself(key).map_err(|error| told(key, error.into()))?;
        let (stopwatch, now) = (Stopwatch::start(), self.clock.now());
        match self.recall(key, fingerprint, now) {
            Some(Ok(Begun::Replay(replay))) => {
                observe::asked(stopwatch);
                return Ok(Opened::Replay(replay));
            }
            Some(Err(refused)) => {
                observe::asked(stopwatch);
                return Err(told(key, refused));
            }
            // The cache holds settled records only, and never returns a claim.
            Some(Ok(Begun::Claimed(_))) | None => {}
        }
        let ticket = self.ticket(invocation);
        let (owner, is_copied) = ((self.owners)()?, ticket.is_some());
        // There's no lease to extend, and none that ends.
        let timing = self.unextended(now, invocation);
        let state = self.plan(owner, fingerprint, invocation, timing);
        let cut_off = timing.cut_off;
        let open =
            |state| Open { engine: Arc::clone(self), key: key.clone(), owner, state, cut_off, is_copied };
        if !reads_first {
            return Ok(Opened::Open(open(state)));
        }
        let Driven { state, action, store_error, .. } = self.drive(key, state, Event::Look, None).await;
        observe::asked(stopwatch);
        let refusal = match action {
            Action::Open => return Ok(Opened::Open(open(state))),
            Action::Replay(record) => {
                let refused = |error| told(key, Refused { error, by: RefusedBy::Outcome });
                let replay = self.replay(key, &record, timing.limits.answer_by).await.map_err(refused)?;
                self.keep_copy(ticket, key, &record, &replay.response);
                return Ok(Opened::Replay(replay));
            }
            Action::Refused(refusal) => refusal,
            _ => Refusal::Unavailable,
        };
        let error = refusal_error(key, refusal, store_error, self.clock.now());
        Err(told(key, Refused::of(refusal, error)))
    }
}

fn told(key: &StoredKey, refused: Refused) -> Refused {
    observe::refused(key, &refused.error, refused.by != RefusedBy::Rule);
    refused
}

impl Open {
    pub(crate) fn key(&self) -> &StoredKey {
        &self.key
    }

    /// When the caller's answer is due.
    pub(crate) fn answer_by(&self) -> Option<Timestamp> {
        self.state.plan().limits.answer_by
    }

    /// Whether a declined transaction may still be applied.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state.is_in_doubt()
    }

    /// When the handler is cut off.
    pub(crate) fn cut_off(&self) -> Timestamp {
        self.cut_off
    }

    /// Puts the outcome together with `writes`.
    ///
    /// # Errors
    ///
    /// The unchanged operation, if the transaction was definitely not applied.
    pub(crate) async fn settle_with(
        self,
        verdict: Verdict,
        writes: Option<&OwnWrites>,
    ) -> Result<Settled, Turned<Self>> {
        let Self { engine, key, owner, state, cut_off, is_copied } = self;
        let is_put = !matches!(verdict, Verdict::Release | Verdict::Interrupted);
        let copied = verdict.response().filter(|_| is_copied).map(|response| (None, response.clone()));
        let until = state.prepare_until(engine.clock.now());
        let intent = engine.intent(&key, owner, verdict, until).await;
        let intent = if writes.is_some() { intent.committed() } else { intent };
        let settled =
            engine.settle_with(&key, state, intent, writes, copied).await.map_err(|turned| Turned {
                right: Self {
                    engine: Arc::clone(&engine),
                    key: key.clone(),
                    owner,
                    state: turned.right,
                    cut_off,
                    is_copied,
                },
                why: turned.why,
                details: turned.details,
                store_error: turned.store_error,
            })?;
        match &settled.end {
            End::Recorded if is_put => observe::concluded(&key),
            End::Superseded(_) => observe::outrun(&key),
            End::Unresolved(_) => {
                observe::unresolved(&key, settled.store_error.as_ref().map(|error| error as _));
            }
            End::Recorded | End::Fenced(_) | End::Unrecorded(_) | End::NotCommitted(_) => {}
        }
        Ok(settled)
    }
}
