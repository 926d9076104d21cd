//! Transactions: their results for the record and for the handler's own writes.

use std::rc::Rc;

use lambda_idempotency::store::Status;

use super::{Checker, Happening, Heard, Stored, record::counts};
use crate::{
    configuration::millis,
    coverage::Mark,
    invariants::Invariant,
    model::{Late, Made, Slot, Stage, Verdict},
    under_test::{Effect, Protocol, Purpose, Token},
};

impl<P: Protocol> Checker<'_, P> {
    /// Whether the request with this number is a transaction.
    pub(super) fn is_transaction(&self, number: u32) -> bool {
        self.sent(number).is_some_and(|sent| sent.submission.is_some())
    }

    /// Whether the store remembers this transaction's token. If so, the store repeats its first answer and doesn't
    /// apply the transaction again.
    pub(super) fn is_known(&self, it: &mut Happening, number: u32) -> bool {
        let Some(token) = self.token(number) else { return false };
        let now = self.true_time(it);
        let window = millis(self.configuration.token_window);
        let mut is_known = false;
        for made in it.explored.made.into_iter().filter(|made| self.token(made.write) == Some(token)) {
            if self.configuration.moment(made.time).saturating_add(window) < now {
                it.reach(Mark::TokenForgotten);
                continue;
            }
            is_known = true;
            // No other request may have this token: the store would reject that request, or repeat the first
            // request's answer.
            it.flaws.unless(made.write == number, Invariant::TokenKept);
        }
        is_known
    }

    fn token(&self, number: u32) -> Option<Token> {
        self.protocol.token(self.sent(number)?)
    }

    /// Checks a transaction that applied the handler's own writes, whether or not it also changed the record.
    pub(super) fn committed(&self, it: &mut Happening, number: u32, sender: u8, stored: Stored) {
        let after = match stored {
            Stored::Put(after) => self.records.get(after),
            Stored::Removed | Stored::Refused | Stored::Repeated => None,
        };
        let is_completed = after.is_some_and(|after| after.status() == Status::Completed);
        // Until the record of an earlier effect expires, a second effect is a violation. If the clocks are too far
        // apart, a second effect isn't reported: by one of the clocks, the record may already have expired.
        let before = self.records.get(it.explored.record);
        let counts = before.is_some_and(|before| counts(before.expires_at, self.true_time(it)));
        let is_second = it.explored.has_effect && counts && self.configuration.clocks_agree();
        it.flaws.unless(is_completed && !is_second, Invariant::EffectsExactlyOnce);
        if let Some(delivery) = it.explored.deliveries.get_mut(usize::from(sender)) {
            delivery.has_effect = true;
            it.flaws.unless(!delivery.is_denied, Invariant::DeniedStays);
        }
        let time = it.explored.time;
        let room = it.explored.made.iter_mut().find(|made| made.write == 0);
        if let Some(room) = room {
            *room = Made { write: number, time };
        }
    }

    /// Fails a condition on the handler's own writes. Returns `None` if the record's condition fails too, or if
    /// the store remembers the transaction: in both cases the handler's condition doesn't affect the result.
    pub(super) fn decline(&mut self, it: &mut Happening, at: u8) -> Option<()> {
        let (number, _) = it.sent_by(at);
        let sent = Rc::clone(self.writes.get(number)?);
        sent.submission?;
        let is_refused = self.effect(number, it.explored.record).0 == Stored::Refused;
        // After a retry by the SDK, the store must not report the failed condition as definite, since the SDK's
        // first attempt may still be in flight.
        if is_refused || it.slot(at).is_retried || self.is_known(it, number) {
            return None;
        }
        it.explored.declines_left -= 1;
        it.reach(Mark::Declined);
        self.step(it, at, Heard::Declined);
        Some(())
    }

    /// Whether a transaction of another caller holds the key's lock, or one of this executor whose commit is in flight. The
    /// executor has read the record, and now takes the lock, or looks whether it's free.
    pub(super) fn is_locked(&self, it: &mut Happening, at: u8) -> bool {
        if !self.configuration.is_inside() || !it.slot(at).is_open {
            return false;
        }
        let is_held = |slot: &Slot| slot.is_open && matches!(slot.stage, Stage::Running | Stage::Applying);
        let is_commit = |late: &Late| self.is_conclusion(late.write) && self.is_transaction(late.write);
        let is_locked = it.explored.slots.iter().any(is_held) || it.explored.late.iter().any(is_commit);
        if is_locked {
            let has_run = it.explored.deliveries[usize::from(it.slot(at).delivery)].verdict != Verdict::None;
            it.reach(if has_run { Mark::StillLocked } else { Mark::Locked });
        }
        is_locked
    }

    /// Whether the request with this number only puts an outcome into the transaction of the sender's caller. Nobody sees
    /// it before the commit.
    pub(super) fn is_put_inside(&self, it: &Happening, number: u32, sender: u8) -> bool {
        let delivery = it.explored.deliveries.get(usize::from(sender));
        self.configuration.is_inside()
            && self.is_conclusion(number)
            && !self.is_transaction(number)
            && delivery.is_some_and(|delivery| delivery.verdict == Verdict::Commit)
    }

    fn is_conclusion(&self, number: u32) -> bool {
        self.purpose(number) == Some(Purpose::Conclude)
    }

    /// Leaves an unanswered extension in flight when the executor stops waiting for the answer. The extension may
    /// still arrive.
    pub(super) fn leave_extension(&self, it: &mut Happening, at: u8) {
        if it.slot(at).stage == Stage::Extending {
            // If the list of writes in flight is full, the extension counts as lost, which can happen to any
            // request.
            let _ = it.put_in_flight(at);
        }
    }

    /// Checks an answer that says definitely that a delivery's writes weren't applied and never will be.
    pub(super) fn deny(&self, it: &mut Happening, number: u8) {
        let now = self.true_time(it);
        let holder = it.explored.holder;
        let record = self.records.get(it.explored.record);
        let Some(delivery) = it.explored.deliveries.get_mut(usize::from(number)) else { return };
        if !delivery.has_writes {
            return;
        }
        delivery.is_denied = true;
        let stands = holder == number
            && it.explored.has_effect
            && record
                .is_some_and(|record| record.status() == Status::Completed && counts(record.expires_at, now));
        it.flaws.unless(!stands, Invariant::DeniedStays);
    }

    /// The store's result for the request with this `number`, and whether it applies the handler's own writes.
    pub(super) fn make(&mut self, number: u32, current: u32) -> (Stored, bool) {
        let (effect, is_made) = match self.writes.get(number) {
            Some(sent) => {
                let current = self.records.get(current).map(Rc::as_ref);
                if sent.submission.is_some() {
                    self.protocol.commit(&sent.put, current)
                } else {
                    (self.protocol.put(&sent.put, current), false)
                }
            }
            None => (Effect::Refused, false),
        };
        let stored = match effect {
            Effect::Put(record) => Stored::Put(self.records.number(record)),
            Effect::Removed => Stored::Removed,
            Effect::Refused => Stored::Refused,
        };
        (stored, is_made)
    }
}
