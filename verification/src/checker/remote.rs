//! The remote system: what it may have done for each attempt, what it may answer, and the checks on questions and starts.

use lambda_idempotency::{
    settings::Execution,
    store::{Mark as RecordMark, Record},
    time::Timestamp,
};

use super::{Checker, Happening};
use crate::{
    configuration::{Reconciler, Remote, millis},
    coverage::Mark,
    invariants::Invariant,
    model::{Delivery, ExploredState, RemoteEffect, Slot, Stage, Verdict},
    under_test::Protocol,
};

impl<P: Protocol> Checker<'_, P> {
    /// Whether a claim that ended with this verdict is marked as unanswered. After a panic, that's so only with a
    /// reconciler: without one, the key is released.
    pub(super) fn is_unanswered(&self, delivery: u8, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Interrupt | Verdict::NotKnown | Verdict::NotYet => true,
            Verdict::Panic => self.configuration.reconciler_of(delivery).is_some(),
            _ => false,
        }
    }

    /// How long an effect may be on its way after the lease in `record`, for an executor that asks.
    pub(super) fn arrives_after(&self, record: &Record, delivery: u8) -> std::time::Duration {
        let reconciler = self.configuration.reconciler_of(delivery);
        let waits = reconciler.filter(|_| record.mark != RecordMark::Unanswered);
        millis(waits.map_or(0, |reconciler| reconciler.arrives_within))
    }

    /// Notes that a handler starts, and checks that it's allowed to start after the earlier attempts.
    pub(super) fn effect_begins(&self, it: &mut Happening, number: u8) {
        if self.configuration.reconciler.is_none() {
            return;
        }
        let is_cleared = it.explored.deliveries[usize::from(number)].is_cleared;
        if self.configuration.reconciler_of(number).is_some() {
            let is_first = others(&it.explored, number).all(|(_, earlier)| {
                !matches!(earlier.remote, RemoteEffect::Possible | RemoteEffect::Happened)
            });
            it.flaws.unless(is_first, Invariant::OneEffect);
            let must_ask = it.explored.holder == number && it.explored.operation.was_interrupted;
            it.flaws.unless(is_cleared || !must_ask, Invariant::AskedFirst);
        }
        let delivery = &mut it.explored.deliveries[usize::from(number)];
        (delivery.remote, delivery.arrived) = (RemoteEffect::Possible, 0);
    }

    /// Notes how a handler ends. Returns `None` if an honest remote system contradicts that.
    pub(super) fn effect_ends(&self, it: &mut Happening, at: u8, verdict: Verdict) -> Option<()> {
        if self.configuration.reconciler.is_none() {
            return Some(());
        }
        let is_honest = self.configuration.remote() == Remote::Honest;
        let slot = *it.slot(at);
        let before = it.explored.deliveries[usize::from(slot.delivery)].remote;
        let after = match (before, verdict) {
            (RemoteEffect::Absent, Verdict::Complete) if is_honest => return None,
            (RemoteEffect::Happened, Verdict::Release | Verdict::Fail) if is_honest => return None,
            (RemoteEffect::Past | RemoteEffect::Absent | RemoteEffect::Happened, _) => before,
            (_, Verdict::Complete | Verdict::Commit) => RemoteEffect::Happened,
            (_, Verdict::Release | Verdict::Fail) => RemoteEffect::None,
            _ => {
                self.effect_is_left(it, at);
                RemoteEffect::Possible
            }
        };
        it.explored.deliveries[usize::from(slot.delivery)].remote = after;
        Some(())
    }

    /// Notes that nothing runs in this slot any more, and that its handler's effect may still be on its way.
    pub(super) fn effect_is_left(&self, it: &mut Happening, at: u8) {
        let slot = *it.slot(at);
        let (Some(reconciler), true) = (self.configuration.reconciler, runs(&slot)) else { return };
        let delivery = &mut it.explored.deliveries[usize::from(slot.delivery)];
        if delivery.remote != RemoteEffect::Possible {
            return;
        }
        let now = self.configuration.moment(it.explored.time);
        let sent = self.lease_ends(&slot).map_or(now, |lease_until| lease_until.min(now));
        let until = sent.saturating_add(millis(reconciler.arrives_within));
        let moments = 0..self.configuration.times.len() as u8;
        delivery.arrived = moments.filter(|&time| self.configuration.moment(time) <= until).count() as u8;
    }

    /// Whether the effect of this delivery's handler may still arrive.
    fn may_arrive(&self, explored: &ExploredState, number: u8, reconciler: Reconciler) -> bool {
        if reconciler.remote == Remote::Late {
            return true;
        }
        match explored.slots.iter().find(|slot| slot.delivery == number && runs(slot)) {
            Some(slot) => self.lease_ends(slot).is_some_and(|lease_until| {
                let until = lease_until.saturating_add(millis(reconciler.arrives_within));
                self.configuration.moment(explored.time) <= until
            }),
            None => explored.time < explored.deliveries[usize::from(number)].arrived,
        }
    }

    /// The true time at which the lease ends by the slot's own clock.
    fn lease_ends(&self, slot: &Slot) -> Option<Timestamp> {
        let ahead = self.configuration.clocks.get(usize::from(slot.clock)).copied().unwrap_or(0);
        let lease_until = self.claims.get(slot.held)?.lock.lease_until;
        Some(lease_until.saturating_sub(millis(ahead)).saturating_add(millis(-ahead)))
    }

    /// Checks that a question may be asked now.
    pub(super) fn ask(&self, it: &mut Happening, number: u8) {
        let Some(reconciler) = self.configuration.reconciler else { return };
        let has_cause = it.explored.operation.was_left || it.explored.holder != number;
        it.flaws.unless(has_cause, Invariant::AskedWithCause);
        let has_arrived = others(&it.explored, number).all(|(other, earlier)| {
            earlier.remote != RemoteEffect::Possible || !self.may_arrive(&it.explored, other, reconciler)
        });
        it.flaws.unless(has_arrived, Invariant::AskedInTime);
    }

    /// Notes the answer to a question. Returns `None` if the remote system can't answer so.
    pub(super) fn answers(&self, it: &mut Happening, at: u8, verdict: Verdict) -> Option<()> {
        let reconciler = self.configuration.reconciler?;
        let number = it.slot(at).delivery;
        let any = |effect| others(&it.explored, number).any(|(_, earlier)| earlier.remote == effect);
        let (happened, possible) = (any(RemoteEffect::Happened), any(RemoteEffect::Possible));
        let is_possible = match verdict {
            Verdict::Found => happened || possible,
            Verdict::FoundFailed | Verdict::Absent => !happened,
            _ => true,
        };
        if reconciler.remote != Remote::Lying {
            if !is_possible {
                return None;
            }
            let after = match verdict {
                Verdict::Found if !happened => Some(RemoteEffect::Happened),
                Verdict::FoundFailed | Verdict::Absent => Some(RemoteEffect::Absent),
                _ => None,
            };
            for other in 0..it.explored.delivered {
                let is_possible = it.explored.deliveries[usize::from(other)].remote == RemoteEffect::Possible;
                let Some(after) = after.filter(|_| is_possible && other != number) else { continue };
                // An effect that's still on its way may arrive after the answer.
                let is_sure =
                    after == RemoteEffect::Happened || !self.may_arrive(&it.explored, other, reconciler);
                if is_sure {
                    it.explored.deliveries[usize::from(other)].remote = after;
                }
            }
        }
        it.reach(match verdict {
            Verdict::Found => Mark::AnsweredHappened,
            Verdict::FoundFailed => Mark::AnsweredFailed,
            Verdict::Absent => Mark::AnsweredAbsent,
            Verdict::NotYet => Mark::AnsweredNotYet,
            _ => Mark::AnsweredNothing,
        });
        if verdict == Verdict::Absent {
            it.explored.deliveries[usize::from(number)].is_cleared = true;
            // The user said that the handler may run again then.
            if self.configuration.execution_of(number) == Execution::AtMostOnce
                && reconciler.reruns_when_absent
            {
                it.explored.has_run = false;
            }
        }
        Some(())
    }

    /// Forgets the effects of an operation that's over.
    pub(super) fn forget_effects(&self, it: &mut Happening) {
        if self.configuration.reconciler.is_none() {
            return;
        }
        let slots = it.explored.slots;
        for (delivery, number) in it.explored.deliveries.iter_mut().zip(0..) {
            let is_running = slots.iter().any(|slot| slot.delivery == number && runs(slot));
            delivery.remote = if is_running { RemoteEffect::Past } else { RemoteEffect::None };
            delivery.arrived = 0;
        }
    }
}

/// Whether a handler runs in this slot.
fn runs(slot: &Slot) -> bool {
    matches!(slot.stage, Stage::Running | Stage::Extending) && !slot.is_question
}

/// All deliveries so far, except this one.
fn others(explored: &ExploredState, number: u8) -> impl Iterator<Item = (u8, Delivery)> {
    let all = (0..).zip(explored.deliveries).take(usize::from(explored.delivered));
    all.filter(move |&(other, _)| other != number)
}
