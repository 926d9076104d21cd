//! The rules of T7, T8 and optimistic runs, when an answer was ambiguous or time is short.

use super::*;

fn commit() -> Intent {
    Intent::Commit(outcome())
}

fn other_outcome() -> Outcome {
    Outcome::Retained(StoredResponse::new(bytes::Bytes::from_static(b"sold out")))
}

/// Returns the record after `write` was applied to `record`.
fn applied(write: &Put, record: Option<&Record>) -> Record {
    write.apply_to(record).unwrap()
}

/// Returns a machine whose transaction is in doubt, and the transaction's write. The first attempt got an ambiguous
/// answer, and the second was declined.
fn declined_in_doubt(mut run: Run) -> (Run, Put) {
    let first = run.feed(Event::Settle(commit()));
    let Action::Commit { put: write, .. } = first.clone() else { panic!("no transaction: {first:?}") };
    assert_eq!(run.feed(LOST()), first, "the same request is sent again");
    assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
    (run, write)
}

/// Returns a machine that has read, found no record, and runs optimistically.
fn open() -> Run {
    let mut run = Run::new();
    assert_eq!(run.feed(Event::Look), Action::Read);
    assert_eq!(run.feed(Event::Found(None)), Action::Open);
    run
}

#[test]
fn late_applied_transaction_supersedes_the_settlement() {
    let (run, held) = Run::holding();
    let (run, late) = declined_in_doubt(run);
    let after = applied(&late, Some(&mine(&mut run.clone(), &held, started(0).state)));
    for intent in [RELEASE, Intent::Complete(other_outcome()), Intent::Fail(other_outcome())] {
        let mut run = run.clone();
        assert!(matches!(run.feed(Event::Settle(intent)), Action::Put(Put::Mine { .. })));
        let end = run.feed(refused(Some(after.clone())));
        assert_eq!(end, Action::Settled(End::Superseded(after.clone())));
    }
}

#[test]
fn ambiguous_commit_is_unresolved_after_failed_settlement() {
    let (run, held) = Run::holding();
    let (run, _) = declined_in_doubt(run);
    for intent in [RELEASE, Intent::Complete(other_outcome()), Intent::Fail(other_outcome())] {
        let mut run = run.clone();
        assert!(matches!(run.feed(Event::Settle(intent)), Action::Put(Put::Mine { .. })));
        let unresolved = Action::Settled(End::Unresolved(Some(claimable_at(held.lock.lease_until))));
        let down = fault(StoreErrorKind::Unavailable, false);
        assert_eq!(run.retry_until_end(&down), (unresolved, RETRIES));
    }
    // A stored settlement fences the transaction.
    let mut fenced = run.clone();
    assert!(matches!(fenced.feed(Event::Settle(RELEASE)), Action::Put(Put::Mine { .. })));
    assert_eq!(fenced.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
}

#[test]
fn ambiguous_optimistic_commit_is_unresolved_after_release() {
    let (mut run, _) = declined_in_doubt(open());
    assert_eq!(run.feed(Event::Settle(RELEASE)), Action::Settled(End::Unresolved(None)));

    // This transaction's only attempt was declined, so nothing is in doubt.
    let mut run = open();
    assert!(matches!(run.feed(Event::Settle(commit())), Action::Commit { .. }));
    assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
    assert_eq!(run.feed(Event::Settle(RELEASE)), Action::Settled(End::Recorded));
}

#[test]
fn optimistic_run_without_time_only_replays() {
    let found = [
        (None, Action::Refused(Refusal::NoTimeLeft)),
        (Some(record(RecordState::Released, 10)), Action::Refused(Refusal::NoTimeLeft)),
        (Some(started(-10_000)), Action::Refused(Refusal::NoTimeLeft)),
        (Some(completed()), Action::Replay(completed())),
    ];
    for (record, action) in found {
        let mut run = Run::new();
        assert_eq!(run.feed(Event::Look), Action::Read);
        run.now = plan(Execution::AtLeastOnce).start_by();
        assert_eq!(run.feed(Event::Found(record)), action);
    }
}

#[test]
fn abandoned_extension_does_not_block_the_next() {
    let (mut run, held) = Run::holding();
    for seconds in [1, 2] {
        let until = held.lock.lease_until.saturating_add(Duration::from_secs(seconds));
        let action = run.feed(Event::Extend(until));
        let Action::Put(Put::Replace { new, .. }) = action else { panic!("{action:?}") };
        assert_eq!(new.lease_until(), Some(until));
    }
}
