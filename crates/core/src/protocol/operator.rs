//! The operator's writes (rule 10): the put that settles a record in any state, and what follows from its answer.

use std::time::Duration;

use crate::{
    protocol::{
        Action, End, Event, Fault, Intent,
        Next::{self, Act},
        Phase, Plan, outlook, over,
        plan::MIN_LOCK_RETENTION,
        refusal_for, settlement,
    },
    record::{Owner, Record, State, Status},
    store::{Put, PutOutcome},
    time::Timestamp,
};

/// How many times an operator's write is repeated because the running claim's lease was extended. The extensions of one
/// lease are seconds apart, so a write rarely meets more than one.
const MAX_EXTENSIONS: u8 = 5;
/// How many ambiguous answers to one put lead to a read. After the last, the put isn't sent again.
const MAX_DOUBTS: u8 = 2;

/// An operator's write on its way to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Resolving {
    /// The version that the operator was shown, or the same claim with a longer lease.
    seen: Record,
    intent: Intent,
    put: Put,
    /// How many times the lease was extended between a look at the record and the write.
    extensions: u8,
    /// How often this put got an ambiguous answer.
    doubts: u8,
    /// Whether this put, or an earlier one, got an ambiguous answer. An earlier one may still be applied, although the
    /// lease was extended: an interruption (T9) may restore the lease that it replaces.
    is_in_doubt: bool,
}

/// Sends the put for `seen`.
pub(super) fn begin(plan: &Plan, now: Timestamp, seen: Record, intent: Intent) -> Next {
    let put = resolve(&seen, plan.owner, intent.clone(), plan.rules.retention, now);
    submit(Resolving { seen, intent, put, extensions: 0, doubts: 0, is_in_doubt: false })
}

/// Sends the same put as before. It can't be applied twice.
fn submit(it: Resolving) -> Next {
    let put = it.put.clone();
    Act(Phase::Resolving(Box::new(it)), Action::Put(put))
}

pub(super) fn resolving(plan: &Plan, now: Timestamp, it: Resolving, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => resolved(Some(it.put.into_record())),
        Event::Answered(PutOutcome::Refused(record)) => examine(plan, now, it, record),
        Event::Failed(Fault { maybe_applied: true, .. }) => {
            let it = Resolving { doubts: it.doubts + 1, is_in_doubt: true, ..it };
            Act(Phase::LookingForResolution(Box::new(it)), Action::Read)
        }
        Event::Failed(Fault { kind, .. }) if !it.is_in_doubt => over(End::Unrecorded(refusal_for(kind))),
        // An earlier attempt may still be applied.
        Event::Failed(_) => over(End::Unresolved(None)),
        _ => Act(Phase::Resolving(Box::new(it)), Action::Nothing),
    }
}

pub(super) fn looking(plan: &Plan, now: Timestamp, it: Resolving, event: Event) -> Next {
    match event {
        Event::Found(Some(record)) if record.has_version_of(&it.seen) => match it.doubts < MAX_DOUBTS {
            true => submit(it),
            false => over(End::Unresolved(None)),
        },
        Event::Found(record) => examine(plan, now, it, record),
        Event::Failed(_) => over(End::Unresolved(None)),
        _ => Act(Phase::LookingForResolution(Box::new(it)), Action::Nothing),
    }
}

/// Decides from the current record how to continue, after the put was refused or its answer was ambiguous.
fn examine(plan: &Plan, now: Timestamp, it: Resolving, record: Option<Record>) -> Next {
    match record {
        Some(record) if record.owner == plan.owner => resolved(Some(record)),
        // The decision about a claim also applies after an extension of its lease. If an extension counted as a change, no
        // operator could settle a claim whose lease is extended every few seconds.
        Some(record) if it.extensions < MAX_EXTENSIONS && is_same_claim(plan, now, &it.seen, &record) => {
            let put = resolve(&record, plan.owner, it.intent.clone(), plan.rules.retention, now);
            submit(Resolving { seen: record, put, extensions: it.extensions + 1, doubts: 0, ..it })
        }
        _ if !it.is_in_doubt => resolved(None),
        // Every operator's write sets a new owner and generation. So if the claim was settled under those of the version
        // that was seen, no attempt was applied, and none can be.
        Some(record) if record.is_claim_of(&it.seen) && record.status() != Status::Started => resolved(None),
        // An attempt may have been applied, and its record replaced or removed since.
        _ => over(End::Unresolved(None)),
    }
}

fn resolved(record: Option<Record>) -> Next {
    Act(Phase::Over, Action::Resolved(record))
}

/// Whether `record` is still the STARTED claim that was `seen`, except that its lease may have been extended. A claim that
/// was stale and is live again isn't the same: a decision about a stale claim isn't one about a handler that runs.
fn is_same_claim(plan: &Plan, now: Timestamp, seen: &Record, record: &Record) -> bool {
    let is_started = |record: &Record| record.status() == Status::Started;
    let is_stale = |record: &Record| outlook(&plan.rules, record, now).is_stale;
    is_started(seen)
        && is_started(record)
        && record.is_claim_of(seen)
        && (is_stale(record) || !is_stale(seen))
}

/// Returns an operator's put on `record`, the version that the operator was shown.
///
/// The put is one compare-and-set. It sets a new owner and the next generation, which fences a claim that
/// still runs. An outcome expires `retention` after `now`. A release keeps the record's expiry, if it has one.
/// After a release with `interrupted: false`, the next attempt doesn't learn that an earlier one was interrupted.
pub fn resolve(record: &Record, owner: Owner, intent: Intent, retention: Duration, now: Timestamp) -> Put {
    let released_until = || {
        let never = || now.saturating_add(retention.max(MIN_LOCK_RETENTION)).rounded_up_to_second();
        record.expires_at.unwrap_or_else(never)
    };
    let (state, expires_at) =
        settlement::outcome(retention, now, &intent).unwrap_or_else(|| (State::Released, released_until()));
    let mark = match intent {
        Intent::Release { interrupted } => interrupted.into(),
        _ => record.mark.is_interrupted().into(),
    };
    let generation = record.generation.next(now);
    let expires_at = Some(expires_at);
    let new = Record { owner, generation, state, expires_at, mark, ..record.clone() };
    Put::Replace { seen: record.clone(), new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fingerprint::Fingerprint,
        outcome::Outcome,
        protocol::{NextDelivery, Outlook, Rules, outlook},
        record::{Generation, Mark},
        settings::Execution,
    };

    const DAY: u64 = 24 * 60 * 60;

    fn rules(execution: Execution) -> Rules {
        Rules {
            skew_margin: Duration::from_secs(2),
            retention: Duration::from_secs(DAY),
            execution,
            reconcile: None,
        }
    }

    fn secs(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// Returns a record that was claimed at 1,000 s and expires at 2,000 s.
    fn record(state: State) -> Record {
        Record {
            owner: Owner::from_bytes([7; 16]),
            generation: Generation::new(1_000_000),
            attempt: 3,
            fingerprint: Fingerprint::of_bytes(b"request"),
            lock_acquired_at: secs(1000),
            execution: Execution::AtLeastOnce,
            expires_at: Some(secs(2000)),
            mark: Mark::Interrupted,
            request_id: Some("invocation".into()),
            trace: None,
            state,
        }
    }

    #[test]
    fn outlook_predicts_the_next_delivery() {
        use NextDelivery::{ClaimsAnew, InProgress, OutcomeUnknown, Replayed, TakesOver};
        let started = State::Started { lease_until: secs(1060) };
        let claimable_at = Timestamp::from_millis(1_062_001);
        let completed = State::Completed(Outcome::Omitted);
        for (state, now, once, more) in [
            (&started, 1062, InProgress(claimable_at), InProgress(claimable_at)),
            (&started, 1063, OutcomeUnknown, TakesOver),
            (&started, 2003, OutcomeUnknown, ClaimsAnew),
            (&completed, 2002, Replayed, Replayed),
            (&completed, 2003, ClaimsAnew, ClaimsAnew),
            (&State::Failed(Outcome::Omitted), 2002, Replayed, Replayed),
            (&State::Released, 1000, ClaimsAnew, ClaimsAnew),
        ] {
            for (execution, next) in [(Execution::AtMostOnce, once), (Execution::AtLeastOnce, more)] {
                let found = outlook(&rules(execution), &record(state.clone()), secs(now));
                let is_stale = now > 1062 && *state == started;
                assert_eq!(found, Outlook { is_stale, is_expired: now > 2002, next }, "{state:?} at {now}");
            }
        }
    }

    #[test]
    fn operator_write_sets_new_owner_and_generation() {
        let owner = Owner::from_bytes([9; 16]);
        for state in [State::Started { lease_until: secs(1060) }, State::Released] {
            let record = record(state);
            let retention = Duration::from_millis(5_500);
            for (now, generation) in [(Timestamp::from_millis(1_500_000), 1_500_000), (secs(5), 1_000_001)] {
                let until = now.saturating_add(retention).rounded_up_to_second();
                for (intent, state, until) in [
                    (Intent::Complete(Outcome::Omitted), State::Completed(Outcome::Omitted), until),
                    (Intent::Fail(Outcome::Omitted), State::Failed(Outcome::Omitted), until),
                    (Intent::Release { interrupted: false }, State::Released, secs(2000)),
                ] {
                    let put = resolve(&record, owner, intent, retention, now);
                    let (generation, expires_at) = (Generation::new(generation), Some(until));
                    let interrupted = record.mark.is_interrupted() && state != State::Released;
                    let new = Record {
                        owner,
                        generation,
                        state,
                        expires_at,
                        mark: interrupted.into(),
                        ..record.clone()
                    };
                    assert_eq!(put, Put::Replace { seen: record.clone(), new: new.clone() });
                    // The put can't be applied twice: the version has changed.
                    assert_eq!(put.apply_to(Some(&new)), None);
                }
            }
        }
    }
}
