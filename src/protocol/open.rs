//! Without a claim: the handler runs first, and its outcome is put, with its writes, if nothing that counts is there.
//!
//! Nothing is locked, so nothing can go stale. Of those that run at once, one puts its record, and the others have
//! done nothing.

use crate::{
    protocol::{
        Action, End, Event, Fault, Next, Phase, Plan, Refusal, Task,
        acquire::MAX_LOSSES,
        commit,
        judge::{self, Judgement, judge},
        refusal_for,
        settle::{self, over},
    },
    record::{Generation, Record, State},
    store::{Seen, Settlement, Write},
    time::Timestamp,
};

/// What a conclusion stands on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Basis {
    /// What was there, and does not count.
    pub(super) seen: Option<Record>,
    /// How often another was there by then.
    pub(super) losses: u8,
    /// How many transactions were definitely not made.
    pub(super) submissions: u32,
}

impl Basis {
    /// Whether what was there is still there.
    pub(super) fn is_as_seen(&self, record: Option<&Record>) -> bool {
        self.seen.as_ref().map(Seen::of) == record.map(Seen::of)
    }
}

/// The record has been asked for before the handler runs.
pub(super) fn looking(plan: &Plan, now: Timestamp, event: Event) -> Next {
    let open = |seen| (Phase::Open(Basis { seen, ..Basis::default() }), Action::Open);
    let refuse = |refusal| (Phase::Over, Action::Refused(refusal));
    match event {
        // There may be an outcome, which takes no time; but nothing to run.
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

/// The handler has run: puts the finished record.
pub(super) fn conclude(plan: &Plan, now: Timestamp, basis: Basis, task: Task) -> Next {
    let (generation, (attempt, interrupted)) = match &basis.seen {
        None => (Generation::first(now), (1, false)),
        Some(seen) => (seen.generation.next(now), judge::history(plan.fingerprint, seen)),
    };
    let (state, expires_at) = match settle::outcome(plan.rules.retention, now, &task.intent) {
        Some(Settlement::Complete(outcome, expires_at)) => (State::Completed(outcome), expires_at),
        Some(Settlement::Fail(outcome, expires_at)) => (State::Failed(outcome), expires_at),
        // Nothing was claimed, and nothing is to be kept.
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
    let write = Write::Conclude { seen: basis.seen.as_ref().map(Seen::of), record };
    let submission = basis.submissions;
    commit::begin(commit::Basis::Open(basis), task, write, submission)
}

/// Another record is there than what was seen, and nothing was written: does it count? If not, it is concluded anew, if it
/// may be: not where it may have been made before, and its record have gone since.
pub(super) fn lost(
    plan: &Plan,
    now: Timestamp,
    basis: Basis,
    submission: u32,
    task: Task,
    record: Option<Record>,
    may_be_anew: bool,
) -> Next {
    let not_committed = |refusal| over(End::NotCommitted(refusal));
    let judgement =
        record.as_ref().map(|record| judge(&plan.rules, plan.owner, plan.fingerprint, record, now));
    match (judgement, record) {
        (Some(Judgement::Replay), Some(record)) => over(End::Superseded(record)),
        (None | Some(Judgement::Reclaim | Judgement::TakeOver), seen) => {
            if !may_be_anew {
                return over(End::Unresolved(None));
            }
            if basis.losses >= MAX_LOSSES {
                return not_committed(Refusal::InProgress(None));
            }
            // It stands on another version, and so it is another transaction.
            conclude(plan, now, Basis { seen, submissions: submission.saturating_add(1), ..basis }, task)
        }
        (Some(judgement), _) => not_committed(refusal(judgement)),
    }
}

fn refusal(judgement: Judgement) -> Refusal {
    match judgement {
        Judgement::Mismatch => Refusal::Mismatch,
        Judgement::InProgress(until) => Refusal::InProgress(Some(until)),
        // A claim of one's own, where none was made: an owner that was drawn twice.
        Judgement::Own(_) => Refusal::InProgress(None),
        Judgement::OutcomeUnknown => Refusal::OutcomeUnknown,
        // These let it be put; and where they are not asked for, nobody may be told that anything is known.
        Judgement::Replay | Judgement::Reclaim | Judgement::TakeOver => Refusal::InProgress(None),
    }
}
