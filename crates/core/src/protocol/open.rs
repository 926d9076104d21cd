//! Optimistic runs: the handler runs without a claim, then one transaction stores its outcome and its writes.
//!
//! There's no lock, so no lock can go stale. Of several concurrent runs, one stores its record; the others
//! write nothing.

use crate::{
    protocol::{
        Action, End, Event, Fault,
        Next::{self, Act},
        Phase, Plan, Refusal,
        acquire::MAX_LOSSES,
        judge::{self, Judgement, judge},
        over,
        plan::Task,
        refusal_for, settlement,
    },
    record::{Generation, Mark, Record},
    store::Put,
    time::Timestamp,
};

/// The state that a conclusion depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Basis {
    /// The record that was read, if there was one. It left the key claimable.
    pub(super) seen: Option<Record>,
    /// How often another executor's record was stored first.
    pub(super) losses: u8,
    /// The number of the next transaction; see [`Action::Commit`].
    pub(super) submissions: u32,
    /// Whether an earlier transaction got an ambiguous answer, so that it may still be applied.
    pub(super) is_in_doubt: bool,
    /// Whether the caller's own transaction locks the key, and keeps the record.
    pub(super) is_inside: bool,
}

impl Basis {
    /// Whether the record is still the version that was read.
    pub(super) fn is_as_seen(&self, record: Option<&Record>) -> bool {
        match (&self.seen, record) {
            (Some(seen), Some(record)) => record.has_version_of(seen),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Handles the read before the handler runs.
pub(super) fn looking(plan: &Plan, now: Timestamp, is_inside: bool, event: Event) -> Next {
    let open = |seen| Act(Phase::Open(Basis { seen, is_inside, ..Basis::default() }), Action::Open);
    let refuse = |refusal| Act(Phase::Over, Action::Refused(refusal));
    match event {
        // Without a record, nothing can be replayed, and it's too late to run.
        Event::Found(None) if now >= plan.start_by() => refuse(Refusal::NoTimeLeft),
        Event::Found(None) => open(None),
        Event::Found(Some(record)) => match judge(&plan.rules, plan.fingerprint, &record, now) {
            Judgement::Replay => Act(Phase::Over, Action::Replay(record)),
            Judgement::Refused(refusal) => refuse(refusal),
            Judgement::Reclaim | Judgement::TakeOver if now >= plan.start_by() => refuse(Refusal::NoTimeLeft),
            Judgement::Reclaim | Judgement::TakeOver => open(Some(record)),
        },
        Event::Failed(Fault { kind, .. }) => refuse(refusal_for(kind)),
        _ => Act(Phase::Looking { is_inside }, Action::Nothing),
    }
}

/// Stores the finished record, after the handler has run.
pub(super) fn conclude(plan: &Plan, now: Timestamp, basis: Basis, task: Task) -> Next {
    let (generation, (attempt, mark)) = match &basis.seen {
        None => (Generation::first(now), (1, Mark::None)),
        Some(seen) => (seen.generation.next(now), judge::history(plan.fingerprint, seen)),
    };
    let Some((state, expires_at)) = settlement::outcome(plan.rules.retention, now, &task.intent) else {
        // The run has no claim, and a release has no outcome. So no record will fence a transaction in doubt.
        return over(if task.is_in_doubt { End::Unresolved(None) } else { End::Recorded });
    };
    let new = Record {
        owner: plan.owner,
        generation,
        attempt,
        fingerprint: plan.fingerprint,
        lock_acquired_at: now,
        execution: plan.rules.execution,
        expires_at: Some(expires_at),
        mark,
        request_id: plan.request_id.clone(),
        trace: plan.trace.clone(),
        state,
    };
    let put = match basis.seen.clone() {
        Some(seen) => Put::Replace { seen, new },
        None => Put::Create(new),
    };
    let submission = basis.submissions;
    Next::Conclude { basis, task, put, submission }
}

/// Decides how to continue when the record has changed since it was read, and doesn't have this run's outcome.
///
/// If the key is claimable, this concludes again, unless `otherwise` says how the run ends in that case.
pub(super) fn lost(
    plan: &Plan,
    now: Timestamp,
    basis: Basis,
    submission: u32,
    task: Task,
    record: Option<Record>,
    otherwise: Option<End>,
) -> Next {
    let not_committed = |refusal| over(End::NotCommitted(refusal));
    let seen = match record {
        None => None,
        Some(record) => match judge(&plan.rules, plan.fingerprint, &record, now) {
            Judgement::Replay => return over(End::Superseded(record)),
            Judgement::Refused(refusal) => return not_committed(refusal),
            Judgement::Reclaim | Judgement::TakeOver => Some(record),
        },
    };
    if let Some(end) = otherwise {
        return over(end);
    }
    if basis.losses >= MAX_LOSSES {
        return not_committed(Refusal::InProgress(None));
    }
    // The conclusion now depends on another version of the record, so it's another transaction.
    conclude(plan, now, Basis { seen, submissions: submission.saturating_add(1), ..basis }, task)
}
