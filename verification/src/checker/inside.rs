//! Checks that at most one handler runs inside its lease, and that no handler is polled outside its lease.

use lambda_idempotency::time::Timestamp;

use super::Checker;
use crate::{
    configuration::{Host, millis},
    invariants::{Flaws, Invariant},
    model::{ExploredState, Slot, Stage},
    under_test::Protocol,
};

impl<P: Protocol> Checker<'_, P> {
    /// The time from which the handler isn't polled any more. Under a claim, it's the end of the lease less the
    /// reserve. Without a claim, it's the end of the delivery's usable time.
    pub(super) fn cut_off(&self, slot: &Slot) -> Option<Timestamp> {
        let reserve = millis(self.configuration.reserve);
        match self.claims.get(slot.held) {
            Some(held) => Some(held.lock.lease_until.saturating_sub(reserve)),
            None => Some(self.plans.get(slot.plan)?.start_by()),
        }
    }

    /// Checks the invariants that must hold in every state, whichever path led to it.
    pub(super) fn look_at_all(&self, explored: &ExploredState, flaws: &mut Flaws) {
        let mut inside = 0;
        for slot in
            explored.slots.iter().filter(|slot| matches!(slot.stage, Stage::Running | Stage::Extending))
        {
            let (Some(held), Some(cut_off)) = (self.claims.get(slot.held), self.cut_off(slot)) else {
                continue;
            };
            let now = self.configuration.clock(explored.time, slot.clock);
            let is_inside = now <= held.lock.lease_until;
            inside += u8::from(is_inside);
            let may_be_polled = match self.configuration.host {
                Host::Kills => true,
                Host::LetsRun => now < cut_off,
            };
            flaws.unless(is_inside || !may_be_polled, Invariant::PollInsideLease);
        }
        flaws.unless(inside <= 1, Invariant::OneInsideLease);
    }
}
