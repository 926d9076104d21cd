//! Optimistic runs: the handler runs first, and its outcome is put together with its writes, if there's no
//! live record.
//!
//! Nothing is locked, so nothing can go stale. One of several concurrent runs puts its record; the others
//! write nothing.

use crate::{
    protocol::{
        Action, End, Event, Fault, Next, Phase, Plan, Refusal,
        acquire::MAX_LOSSES,
        commit,
        judge::{self, Judgement, judge},
        plan::Task,
        refusal_for,
        settle::{self, over},
    },
    record::{Generation, Record, State},
    store::{Revision, Settlement, Write},
    time::Timestamp,
};

/// The state that a conclusion depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Basis {
    /// The record that was read, which isn't live.
    pub(super) seen: Option<Record>,
    /// How often another record was there first.
    pub(super) losses: u8,
    /// How many transactions were definitely not applied.
    pub(super) submissions: u32,
    /// Whether one of them had an ambiguous answer before, so that it may still be applied.
    pub(super) is_in_doubt: bool,
}

impl Basis {
    /// Whether the record is still the version that was read.
    pub(super) fn is_as_seen(&self, record: Option<&Record>) -> bool {
        self.seen.as_ref().map(Revision::of) == record.map(Revision::of)
    }
}

/// Handles the read before the handler runs.
pub(super) fn looking(plan: &Plan, now: Timestamp, event: Event) -> Next {
    let open = |seen| (Phase::Open(Basis { seen, ..Basis::default() }), Action::Open);
    let refuse = |refusal| (Phase::Over, Action::Refused(refusal));
    match event {
        // Without a record, nothing can be replayed, and it's too late to run.
        Event::Found(None) if now >= plan.usable_until => refuse(Refusal::NoTimeLeft),
        Event::Found(None) => open(None),
        Event::Found(Some(record)) => match judge(&plan.rules, plan.owner, plan.fingerprint, &record, now) {
            Judgement::Replay => (Phase::Over, Action::Replay(record)),
            Judgement::Reclaim | Judgement::TakeOver if now >= plan.usable_until => {
                refuse(Refusal::NoTimeLeft)
            }
            Judgement::Reclaim | Judgement::TakeOver => open(Some(record)),
            judgement => refuse(refusal(judgement)),
        },
        Event::Failed(Fault { kind, .. }) => refuse(refusal_for(kind)),
        _ => (Phase::Looking, Action::Nothing),
    }
}

/// Puts the finished record, after the handler has run.
pub(super) fn conclude(plan: &Plan, now: Timestamp, basis: Basis, task: Task) -> Next {
    let (generation, (attempt, interrupted)) = match &basis.seen {
        None => (Generation::first(now), (1, false)),
        Some(seen) => (seen.generation.next(now), judge::history(plan.fingerprint, seen)),
    };
    let (state, expires_at) = match settle::outcome(plan.rules.retention, now, &task.intent) {
        Some(Settlement::Complete(outcome, expires_at)) => (State::Completed(outcome), expires_at),
        Some(Settlement::Fail(outcome, expires_at)) => (State::Failed(outcome), expires_at),
        // Nothing was claimed, and nothing is recorded that would fence a transaction in doubt.
        Some(Settlement::Release { .. }) | None if task.is_in_doubt => return over(End::Unresolved(None)),
        Some(Settlement::Release { .. }) | None => return over(End::Recorded),
    };
    let record = Record {
        owner: plan.owner,
        generation,
        attempt,
        fingerprint: plan.fingerprint,
        lock_acquired_at: now,
        expires_at: Some(expires_at),
        interrupted,
        request_id: plan.request_id.clone(),
        state,
    };
    let write = Write::Conclude { seen: basis.seen.as_ref().map(Revision::of), record };
    let submission = basis.submissions;
    commit::begin(commit::Basis::Open(basis), task, write, submission)
}

/// Decides on a record that isn't the version that was read; nothing was written. If it isn't live, concludes
/// again, unless `may_send_again` is false: an earlier attempt may have been applied, and its record may have
/// expired since.
pub(super) fn lost(
    plan: &Plan,
    now: Timestamp,
    basis: Basis,
    submission: u32,
    task: Task,
    record: Option<Record>,
    may_send_again: bool,
) -> Next {
    let not_committed = |refusal| over(End::NotCommitted(refusal));
    let judgement =
        record.as_ref().map(|record| judge(&plan.rules, plan.owner, plan.fingerprint, record, now));
    match (judgement, record) {
        (Some(Judgement::Replay), Some(record)) => over(End::Superseded(record)),
        (None | Some(Judgement::Reclaim | Judgement::TakeOver), seen) => {
            if !may_send_again {
                return over(End::Unresolved(None));
            }
            if basis.losses >= MAX_LOSSES {
                return not_committed(Refusal::InProgress(None));
            }
            // It depends on another version, so it's another transaction.
            conclude(plan, now, Basis { seen, submissions: submission.saturating_add(1), ..basis }, task)
        }
        (Some(judgement), _) => not_committed(refusal(judgement)),
    }
}

fn refusal(judgement: Judgement) -> Refusal {
    match judgement {
        Judgement::Mismatch => Refusal::Mismatch,
        Judgement::InProgress(until) => Refusal::InProgress(Some(until)),
        // This run made no claim, so the same owner was drawn twice.
        Judgement::Own(_) => Refusal::InProgress(None),
        Judgement::OutcomeUnknown => Refusal::OutcomeUnknown,
        // Unreachable: both callers handle these, which permit the write. This answer claims the least.
        Judgement::Replay | Judgement::Reclaim | Judgement::TakeOver => Refusal::InProgress(None),
    }
}
