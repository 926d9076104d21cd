//! Checks that the results of the store calls were true and came in time.

use lambda_idempotency_rehearsal::wire::Exchange;

use super::{Judge, Meaning, Told};
use crate::wire::{answer::Answer, budget, play::Facts, round::TIME_LEFT, watched::Call};

impl Judge<'_> {
    pub(super) fn calls(&mut self) {
        let facts = self.facts;
        for call in &facts.calls {
            self.truth_of(call);
            let requests = facts.requests_of(call);
            if call.told.is_failure() && !requests.iter().any(Exchange::is_broken) {
                self.verdict.unplanned += 1;
            }
            let bound = facts.budget_of(call) + call.late;
            self.must(call.took <= bound, || {
                format!("the call took {:?}, more than its limit of {bound:?}: {call}", call.took)
            });
        }
        for exchange in &facts.exchanges {
            self.must(exchange.meaning != Meaning::Other, || {
                format!("a request that isn't part of the protocol: {exchange}")
            });
        }
        let (count, most) = (facts.calls.len(), budget::max_calls(facts.failures()));
        self.must(count <= most as usize, || format!("{count} store calls, more than the limit of {most}"));
        for (nth, delivery) in facts.deliveries.iter().enumerate() {
            self.must(delivery.answer != Answer::Hung, || {
                format!("delivery {nth} got no answer after {:?}", delivery.took)
            });
        }
        if let Some(first) = facts.deliveries.first() {
            let bound = facts.budget_of_first() + first.late;
            self.must(first.took <= bound, || {
                format!("the answer took {:?}, more than its limit of {bound:?}", first.took)
            });
        }
    }

    /// Checks that one result is true. "Applied" means that the server applied the write, "refused" that the server
    /// rejected it, and "not applied" that the server never applies it.
    fn truth_of(&mut self, call: &Call) {
        let facts = self.facts;
        let requests = facts.requests_of(call);
        let any = |what: fn(&Exchange) -> bool| {
            requests.iter().any(|exchange| exchange.meaning == call.meaning && what(exchange))
        };
        match &call.told {
            Told::Applied => {
                self.must(any(Exchange::applied), || {
                    format!("reported as applied, but the server didn't apply it: {call}")
                });
            }
            Told::Refused(_) => {
                self.must(any(Exchange::refused), || {
                    format!("reported as refused, but the server didn't refuse it: {call}")
                });
            }
            Told::Failed { maybe_applied: false, .. } if call.meaning.has_condition() => {
                self.must(!any(Exchange::applied), || {
                    format!("reported as definitely not applied, but the server applied it: {call}")
                });
            }
            Told::Found(_) | Told::Parts => {
                self.must(any(Exchange::applied), || {
                    format!("reported as read, but the server didn't answer: {call}")
                });
            }
            Told::Failed { .. } => {}
        }
        let known = |owner| {
            facts.deliveries.first().is_some_and(|first| {
                first.owners.contains(&owner)
                    || first.before.record.as_ref().is_some_and(|record| record.owner == owner)
            }) || facts
                .rival
                .as_ref()
                .and_then(|rival| rival.record.as_ref())
                .is_some_and(|r| r.owner == owner)
        };
        if let Some(record) = call.told.record() {
            self.must(known(record.owner), || format!("the record has an unknown owner: {call}"));
        }
    }
}

impl Facts {
    /// Returns the requests that the proxy got during the call.
    pub(in crate::wire) fn requests_of(&self, call: &Call) -> &[Exchange] {
        self.exchanges.get(call.requests.0..call.requests.1).unwrap_or_default()
    }

    /// Returns the time limit of this call.
    pub(in crate::wire) fn budget_of(&self, call: &Call) -> std::time::Duration {
        // Only a claim needs a second request, which reads the item if the rejection didn't return the item.
        let twice = call.meaning == Meaning::Claim
            && self.requests_of(call).iter().any(|exchange| exchange.meaning == Meaning::Look);
        budget::of_store_call(self.time_outs, twice)
    }

    /// Returns the time limit of the delivery with the faults.
    pub(in crate::wire) fn budget_of_first(&self) -> std::time::Duration {
        if self.case.long.is_some() {
            return TIME_LEFT;
        }
        budget::of_delivery(self.calls.iter().map(|call| self.budget_of(call)), self.failures())
    }

    /// Returns the number of failed store calls.
    fn failures(&self) -> u32 {
        let failures = self.calls.iter().filter(|call| call.told.is_failure()).count();
        u32::try_from(failures).unwrap_or(u32::MAX)
    }
}
