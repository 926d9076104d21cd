//! Checks that live outcomes and claims stay in the table unchanged, and that no record disappears.

use lambda_idempotency::store::State;

use super::{Judge, Snapshot, has_passed, shown};

impl Judge<'_> {
    pub(super) fn standing(&mut self) {
        let facts = self.facts;
        if let Some(first) = facts.deliveries.first() {
            // Before the rival writes, the delivery may change the record. So if there's a rival, the check begins with
            // the rival's record.
            self.stands(facts.rival.as_ref().unwrap_or(&first.before), &first.after);
        }
        for delivery in facts.deliveries.iter().skip(1) {
            self.stands(&delivery.before, &delivery.after);
        }
    }

    fn stands(&mut self, from: &Snapshot, to: &Snapshot) {
        let facts = self.facts;
        let Some(was) = &from.record else { return };
        let told = || format!("{} became {}", shown(facts, from), shown(facts, to));
        let Some(is) = &to.record else {
            return self.must(false, || format!("the record vanished: {}", told()));
        };
        self.must(is.generation >= was.generation, || format!("the generation fell: {}", told()));
        let is_same_claim = is.owner == was.owner && is.generation == was.generation;
        match &was.state {
            State::Completed(_) | State::Failed(_)
                if !was.expires_at.is_some_and(|expires_at| has_passed(expires_at, from)) =>
            {
                self.must(is == was && to.outcome == from.outcome, || {
                    format!("a live outcome changed: {}", told())
                });
            }
            State::Started { lease_until } if !has_passed(*lease_until, to) => {
                self.must(is_same_claim, || format!("a live claim changed: {}", told()));
            }
            State::Started { .. } if facts.case.scenario.at_most_once => {
                self.must(is_same_claim, || format!("an at-most-once claim was taken over: {}", told()));
            }
            _ => {}
        }
    }
}
