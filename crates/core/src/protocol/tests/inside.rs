//! Runs in the caller's own transaction: its lock holds the key, the outcome is put into it, and its commit is sent once.

use super::*;

const NOT_COMMITTED: Action = Action::Settled(End::NotCommitted(Refusal::Unavailable));
const LOCKED: fn() -> Event = || fault(StoreErrorKind::Conflict, false);

/// Returns a machine that has put an outcome into the transaction over `found`, and the put.
fn putting(found: Option<Record>, intent: Intent) -> (Run, Put) {
    let mut run = Run::new();
    assert_eq!(run.feed(Event::Lock), Action::Read);
    assert_eq!(run.feed(Event::Found(found)), Action::Open);
    match run.feed(Event::Settle(intent)) {
        Action::Put(put) => (run, put),
        action => panic!("nothing is put: {action:?}"),
    }
}

/// Returns a machine whose commit got no answer, and the record of the commit.
fn in_doubt() -> (Run, Record) {
    let (mut run, put) = putting(None, Intent::Commit(outcome()));
    let commit = Action::Commit { put: put.clone(), submission: 0 };
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), commit);
    assert_eq!(run.feed(LOST()), Action::Read, "the commit is never sent again");
    (run, put.into_record())
}

#[test]
fn outcome_is_put_and_then_committed() {
    for (intent, commits) in [(Intent::Commit(outcome()), true), (complete(), false)] {
        let (mut run, put) = putting(None, intent);
        assert!(matches!(&put, Put::Create(new) if new.state == RecordState::Completed(outcome())));
        let mut action = run.feed(Event::Answered(PutOutcome::Applied));
        if commits {
            assert_eq!(action, Action::Commit { put, submission: 0 });
            action = run.feed(Event::Answered(PutOutcome::Applied));
        }
        assert_eq!(action, Action::Settled(End::Recorded));
    }
}

/// A failed statement aborts a transaction. Without a commit, nothing of it stays, so nothing is in doubt.
#[test]
fn failed_put_or_commit_writes_nothing() {
    for (kind, refusal) in [
        (StoreErrorKind::Unavailable, Refusal::Unavailable),
        (StoreErrorKind::Conflict, Refusal::InProgress(None)),
        (StoreErrorKind::Rejected, Refusal::Rejected),
        (StoreErrorKind::Unstorable, Refusal::Rejected),
        (StoreErrorKind::Corrupt, Refusal::Corrupt),
    ] {
        let end = Action::Settled(End::NotCommitted(refusal));
        for maybe_applied in [false, true] {
            let (mut run, _) = putting(None, Intent::Commit(outcome()));
            assert_eq!(run.feed(fault(kind, maybe_applied)), end);
        }
        let (mut run, _) = putting(None, Intent::Commit(outcome()));
        assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Commit { .. }));
        assert_eq!(run.feed(fault(kind, false)), end);
    }
}

#[test]
fn refused_put_follows_the_current_record() {
    let put = |record: &Record| {
        let (mut run, _) = putting(None, Intent::Commit(outcome()));
        run.feed(refused(Some(record.clone())))
    };
    let (done, live, free) = (completed(), started(5000), record(RecordState::Released, 10));
    assert_eq!(put(&done), Action::Settled(End::Superseded(done.clone())));
    let busy = Refusal::InProgress(live.lease_until().map(claimable_at));
    assert_eq!(put(&live), Action::Settled(End::NotCommitted(busy)));
    assert!(matches!(put(&free), Action::Put(Put::Replace { seen, .. }) if seen == free));
}

/// The key's lock is free during the first look and the second. Only the second one is sure to show the commit.
#[test]
fn lost_commit_needs_a_look_without_lock() {
    let (mut run, own) = in_doubt();
    assert_eq!(run.clone().feed(Event::Found(Some(own.clone()))), Action::Settled(End::Recorded));
    assert_eq!(run.feed(Event::Found(None)), Action::Read, "the lock may have been held when the read began");
    assert_eq!(run.clone().feed(Event::Found(Some(own))), Action::Settled(End::Recorded));
    assert_eq!(run.feed(Event::Found(None)), NOT_COMMITTED);
}

#[test]
fn locked_key_is_looked_at_again() {
    let (mut run, own) = in_doubt();
    for nth in 0..RETRIES {
        assert_eq!(run.feed(LOCKED()), Action::Pause(nth));
        assert_eq!(run.feed(Event::Resumed), Action::Read);
    }
    let unresolved = Action::Settled(End::Unresolved(None));
    assert_eq!(run.clone().feed(LOCKED()), unresolved);
    assert_eq!(run.clone().feed(LOST()), unresolved, "the database doesn't answer");
    assert_eq!(run.clone().feed(fault(StoreErrorKind::Corrupt, false)), unresolved);
    assert_eq!(run.clone().feed(Event::Found(Some(own))), Action::Settled(End::Recorded));
    assert_eq!(run.feed(Event::Found(None)), Action::Read);
    // Another transaction may hold the lock by now. This run's own has ended.
    assert_eq!(run.clone().feed(LOCKED()), unresolved);
    assert_eq!(run.feed(Event::Found(None)), NOT_COMMITTED);
}

/// Another executor's record can only follow the end of this run's transaction.
#[test]
fn other_records_show_a_rolled_back_commit() {
    let found = |record: &Record| in_doubt().0.feed(Event::Found(Some(record.clone())));
    let (done, live) = (completed(), started(5000));
    assert_eq!(found(&done), Action::Settled(End::Superseded(done.clone())));
    let busy = Refusal::InProgress(live.lease_until().map(claimable_at));
    assert_eq!(found(&live), Action::Settled(End::NotCommitted(busy)));
    assert_eq!(found(&record(RecordState::Released, 10)), NOT_COMMITTED);
}

/// The record that the commit replaces is still there, until a look shows otherwise.
#[test]
fn lost_replacement_is_looked_at_twice() {
    let seen = record(RecordState::Released, 10);
    let (mut run, _) = putting(Some(seen.clone()), Intent::Commit(outcome()));
    assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Commit { .. }));
    assert_eq!(run.feed(LOST()), Action::Read);
    assert_eq!(run.feed(Event::Found(Some(seen.clone()))), Action::Read);
    assert_eq!(run.feed(Event::Found(Some(seen))), NOT_COMMITTED);
}

#[test]
fn expired_commit_may_have_been_swept() {
    let (mut run, own) = in_doubt();
    run.now = own.expires_at.unwrap();
    assert_eq!(run.feed(Event::Found(None)), Action::Read);
    assert_eq!(run.feed(Event::Found(None)), Action::Settled(End::Unresolved(None)));
}
