//! Stores the outcome in one transaction with the handler's own writes, under a claim (T8) or optimistically.
//! Without a claim and without writes, it stores the finished record in an ordinary write.
//!
//! In the caller's own transaction, the machine puts the finished record, and then commits the transaction if the library
//! began it. A commit can be sent only once. If its answer is lost, the machine looks at the record until the key's lock
//! is free.
//!
//! After an ambiguous answer, the machine sends the same request again. All values of a request are fixed when
//! it's first sent, so the store recognises the request by its token. If no attempt at a transaction can have been
//! applied, the next attempt gets a new submission number, and so a new token: to the store, it's another transaction.

use crate::{
    protocol::{
        Action, Decline, End, Event, Fault, Held, Intent,
        Next::{self, Act},
        Phase, Plan, Refusal, Running, open, over,
        plan::Task,
        refusal_for, settle,
        settlement::{self, is_still_held},
    },
    record::Record,
    store::{Put, PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// A transaction in progress; or a conclusion without any handler writes, which is an ordinary write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Commit {
    pub(super) basis: Basis,
    /// The settlement.
    pub(super) task: Task,
    /// The put as it was first sent.
    pub(super) put: Put,
    pub(super) submission: u32,
    /// How often this same request got an ambiguous answer. After a lost commit of the caller's transaction, the first
    /// look that finds the key's lock free is ambiguous too.
    doubts: u8,
}

/// The state that the transaction depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Basis {
    /// A claim that's held.
    Claim(Held),
    /// Optimistic: only the record that was read.
    Open(open::Basis),
}

impl Commit {
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubts > 0
    }

    /// Whether the record is in the caller's own transaction.
    fn is_inside(&self) -> bool {
        matches!(self.basis, Basis::Open(open::Basis { is_inside: true, .. }))
    }

    /// Whether the conclusion may have been applied, and its record may have expired since. If so, a missing
    /// record doesn't prove that the conclusion wasn't applied, and sending it again might apply it twice, since
    /// there's no claim to prevent that.
    fn may_have_come_and_gone(&self, plan: &Plan, now: Timestamp) -> bool {
        let expires_at = match self.basis {
            Basis::Open(_) => self.put.record().expires_at,
            Basis::Claim(_) => None,
        };
        let soon = now.saturating_add(plan.rules.skew_margin);
        self.is_doubtful() && expires_at.is_some_and(|expires_at| expires_at <= soon)
    }
}

/// T8: sends the completion of a claim together with the handler's own writes.
///
/// The record expires after the lease's end, however short the retention is. Otherwise, a declined transaction
/// in doubt could be applied, and its record swept, while the handler still runs. Then another delivery could
/// claim the key.
pub(super) fn send(plan: &Plan, now: Timestamp, held: Held, task: Task, submission: u32) -> Next {
    let retention = plan.rules.retention.max(now.until(plan.rules.claimable_at(held.lock.lease_until)));
    let put = settlement::of(plan, retention, now, &held, &task);
    begin(Basis::Claim(held), task, put, submission)
}

/// Sends `put` for the first time.
pub(super) fn begin(basis: Basis, task: Task, put: Put, submission: u32) -> Next {
    let commit = Commit { basis, task, put, submission, doubts: 0 };
    if commit.is_inside() {
        let put = commit.put.clone();
        return Act(Phase::Putting(Box::new(commit)), Action::Put(put));
    }
    submit(commit)
}

/// Handles the answer to a put in the caller's transaction. Nobody else sees the record before the commit. So if the put
/// failed, nothing is written, whether or not the put was applied in the transaction.
pub(super) fn putting(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => match commit.task.intent {
            Intent::Commit(_) => submit(commit),
            // The caller commits the transaction.
            _ => over(End::Recorded),
        },
        Event::Answered(PutOutcome::Refused(record)) => examine(plan, now, commit, record, true),
        Event::Failed(Fault { kind, .. }) => over(End::NotCommitted(refusal_for(kind))),
        _ => Act(Phase::Putting(Box::new(commit)), Action::Nothing),
    }
}

fn submit(commit: Commit) -> Next {
    let action = match &commit.task.intent {
        Intent::Commit(_) => Action::Commit { put: commit.put.clone(), submission: commit.submission },
        // The handler staged no writes, so this needs no transaction.
        _ => Action::Put(commit.put.clone()),
    };
    Act(Phase::Committing(Box::new(commit)), action)
}

pub(super) fn committing(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => over(End::Recorded),
        Event::Answered(PutOutcome::Refused(record)) => examine(plan, now, commit, record, true),
        Event::Declined => declined(commit, Decline::Condition),
        Event::Failed(Fault { kind, maybe_applied: false }) if commit.is_inside() => {
            over(End::NotCommitted(refusal_for(kind)))
        }
        Event::Failed(_) if commit.is_inside() => look_again(commit),
        // Another transaction is using one of the items, or an earlier attempt at this transaction is in progress.
        // This attempt wrote nothing, but an earlier attempt may have.
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, maybe_applied }) => {
            let doubts = commit.doubts.saturating_add(maybe_applied.into());
            not_applied(plan, now, Commit { doubts, ..commit }, StoreErrorKind::Conflict)
        }
        Event::Failed(Fault { kind, maybe_applied }) if maybe_applied || commit.is_doubtful() => {
            doubtful(plan, now, commit, kind)
        }
        Event::Failed(Fault {
            kind: kind @ (StoreErrorKind::Unstorable | StoreErrorKind::Corrupt), ..
        }) => failed(plan, now, commit, kind),
        Event::Failed(Fault { kind, .. }) => not_applied(plan, now, commit, kind),
        Event::Resumed => submit_again(plan, now, commit),
        _ => Act(Phase::Committing(Box::new(commit)), Action::Nothing),
    }
}

/// Handles an attempt that wasn't applied: sends the transaction again after a pause, while there's time.
fn not_applied(plan: &Plan, now: Timestamp, commit: Commit, kind: StoreErrorKind) -> Next {
    let Commit { basis, task, put, submission, doubts } = commit;
    match task.again(plan, now) {
        Ok((task, nth)) => {
            // If no answer was ambiguous, no attempt was applied or is on its way. Then the next one gets a new number.
            let submission = if doubts == 0 { submission.saturating_add(1) } else { submission };
            let again = Commit { basis, task, put, submission, doubts };
            Act(Phase::Committing(Box::new(again)), Action::Pause(nth))
        }
        Err(task) => {
            let commit = Commit { basis, task, put, submission, doubts };
            if commit.is_doubtful() {
                return Act(Phase::LookingForCommit(Box::new(commit)), Action::Read);
            }
            failed(plan, now, commit, kind)
        }
    }
}

/// Handles a definite failure that isn't retried. Without the handler's own writes, there's nothing to decline: the
/// outcome is stored without its response, or not at all.
fn failed(plan: &Plan, now: Timestamp, commit: Commit, kind: StoreErrorKind) -> Next {
    match (commit.basis, settle::omitted(&commit.task.intent)) {
        (basis, _) if matches!(commit.task.intent, Intent::Commit(_)) => {
            declined(Commit { basis, ..commit }, Decline::Store(kind))
        }
        (Basis::Open(basis), Some(intent)) if kind == StoreErrorKind::Unstorable => {
            open::conclude(plan, now, basis, Task { intent, ..commit.task })
        }
        _ if commit.task.is_in_doubt => over(End::Unresolved(None)),
        _ => over(End::NotCommitted(refusal_for(kind))),
    }
}

/// Handles an ambiguous answer: sends the same request again after the first, and reads the record after a later one.
fn doubtful(plan: &Plan, now: Timestamp, commit: Commit, kind: StoreErrorKind) -> Next {
    let doubts = commit.doubts.saturating_add(1);
    let commit = Commit { doubts, ..commit };
    if doubts == 1 && kind != StoreErrorKind::Corrupt {
        return submit_again(plan, now, commit);
    }
    Act(Phase::LookingForCommit(Box::new(commit)), Action::Read)
}

/// Reads the record after an ambiguous answer about a commit that can't be sent again.
fn look_again(commit: Commit) -> Next {
    let doubts = commit.doubts.saturating_add(1);
    Act(Phase::LookingForCommit(Box::new(Commit { doubts, ..commit })), Action::Read)
}

fn submit_again(plan: &Plan, now: Timestamp, commit: Commit) -> Next {
    if commit.may_have_come_and_gone(plan, now) {
        return Act(Phase::LookingForCommit(Box::new(commit)), Action::Read);
    }
    submit(commit)
}

pub(super) fn looking(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, commit, record, false),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => unresolved(plan, &commit),
        Event::Failed(_) => retry(plan, now, commit, |commit| Phase::LookingForCommit(Box::new(commit))),
        Event::Resumed => Act(Phase::LookingForCommit(Box::new(commit)), Action::Read),
        _ => Act(Phase::LookingForCommit(Box::new(commit)), Action::Nothing),
    }
}

/// Retries a commit in doubt after a pause. If there's no time for a retry, the commit's result stays unknown.
fn retry(plan: &Plan, now: Timestamp, commit: Commit, phase: impl FnOnce(Commit) -> Phase) -> Next {
    let Commit { basis, task, put, submission, doubts } = commit;
    match task.again(plan, now) {
        Ok((task, nth)) => Act(phase(Commit { basis, task, put, submission, doubts }), Action::Pause(nth)),
        Err(task) => unresolved(plan, &Commit { basis, task, put, submission, doubts }),
    }
}

/// Decides from the current record how to continue, after the write was rejected or its answers were ambiguous.
fn examine(plan: &Plan, now: Timestamp, commit: Commit, record: Option<Record>, is_refused: bool) -> Next {
    if let Some(record) = &record
        && settlement::is_own_outcome(plan.owner, record)
    {
        // If the outcome isn't this write's, an earlier transaction of this run stored it. That transaction was
        // reported as declined, but was applied after all.
        return over(if is_as_written(&commit, record) {
            End::Recorded
        } else {
            End::Superseded(record.clone())
        });
    }
    match &commit.basis {
        Basis::Claim(held) if record.as_ref().is_some_and(|record| is_still_held(held, record)) => {
            // The write wasn't applied when the record was read, but may still be on its way.
            if is_refused {
                return unresolved(plan, &commit);
            }
            retry(plan, now, commit, |commit| Phase::Committing(Box::new(commit)))
        }
        // The record is gone, so it's unknown whether the transaction was applied.
        Basis::Claim(_) if record.is_none() && commit.doubts > 0 => unresolved(plan, &commit),
        Basis::Claim(held) => Next::RecordAnew { lost: held.clone(), task: commit.task, record },
        // The key's lock is free. But if the session that sent the commit still held it when the record was read, the
        // transaction may have been committed just after that. Only a look that begins later tells.
        Basis::Open(basis) if basis.is_inside && commit.doubts == 1 && basis.is_as_seen(record.as_ref()) => {
            look_again(commit)
        }
        Basis::Open(basis) if !basis.is_inside && !is_refused && basis.is_as_seen(record.as_ref()) => {
            retry(plan, now, commit, |commit| Phase::Committing(Box::new(commit)))
        }
        Basis::Open(basis) => {
            let otherwise = if commit.may_have_come_and_gone(plan, now) {
                Some(End::Unresolved(None))
            } else {
                let has_ended = basis.is_inside && commit.is_doubtful();
                has_ended.then_some(End::NotCommitted(Refusal::Unavailable))
            };
            let basis = open::Basis { losses: basis.losses + 1, ..basis.clone() };
            open::lost(plan, now, basis, commit.submission, commit.task, record, otherwise)
        }
    }
}

fn unresolved(plan: &Plan, commit: &Commit) -> Next {
    over(End::Unresolved(match &commit.basis {
        Basis::Claim(held) => Some(plan.rules.claimable_at(held.lock.lease_until)),
        Basis::Open(_) => None,
    }))
}

/// Returns to the state before the transaction, which was declined. The caller decides how to continue.
fn declined(commit: Commit, why: Decline) -> Next {
    let submissions = commit.submission.saturating_add(1);
    let is_in_doubt = commit.task.is_in_doubt || commit.is_doubtful();
    let phase = match commit.basis {
        Basis::Claim(held) => Phase::Held(Running { held, submissions, is_in_doubt, is_asking: false }),
        Basis::Open(basis) => Phase::Open(open::Basis { submissions, is_in_doubt, ..basis }),
    };
    Act(phase, Action::Declined(why))
}

/// Whether the record is the result of `commit`. Under a claim, only the outcome counts: an operator may have moved the
/// expiry.
fn is_as_written(commit: &Commit, record: &Record) -> bool {
    let written = commit.put.record();
    match commit.basis {
        Basis::Claim(_) => record.state == written.state,
        Basis::Open(_) => record == written,
    }
}
