//! Optimistic runs: the machine reads, the handler runs, and the finished record is stored.

use super::*;

fn commit() -> Intent {
    Intent::Commit(outcome())
}

/// Returns a machine that has read `found`, and its next action.
fn looked(execution: Execution, found: Option<Record>) -> (Run, Action) {
    let mut run = Run::with(execution);
    assert_eq!(run.feed(Event::Look), Action::Read);
    let action = run.feed(Event::Found(found));
    (run, action)
}

/// Returns the version that a conclusion depends on, its record, and the number of its transaction, if it has one.
fn put(action: Action) -> (Option<Record>, Record, Option<u32>) {
    let (put, submission) = match action {
        Action::Commit { put, submission } => (put, Some(submission)),
        Action::Put(put) => (put, None),
        action => panic!("no conclusion: {action:?}"),
    };
    match put {
        Put::Create(record) => (None, record, submission),
        Put::Replace { seen, new } => (Some(seen), new, submission),
        put @ Put::Mine { .. } => panic!("no conclusion: {put:?}"),
    }
}

/// Returns a machine that has sent its outcome without reading first, and the outcome's record.
fn concluding() -> (Run, Record) {
    let mut run = Run::new();
    let (seen, record, submission) = put(run.feed(Event::Settle(commit())));
    assert_eq!((seen, submission), (None, Some(0)));
    (run, record)
}

const CONFLICT: fn() -> Event = || fault(StoreErrorKind::Conflict, false);
const DEAD: fn() -> Record = || record(RecordState::Completed(outcome()), -3);

#[test]
fn optimistic_read_decides_the_action() {
    #[derive(Debug, PartialEq)]
    enum Reaction {
        Opens,
        Replays,
        Refuses(Refusal),
    }
    use Reaction::*;
    let reaction = |execution, record| match looked(execution, Some(record)).1 {
        Action::Open => Opens,
        Action::Replay(_) => Replays,
        Action::Refused(refusal) => Refuses(refusal),
        action => panic!("unexpected {action:?}"),
    };
    assert_eq!(looked(Execution::AtLeastOnce, None).1, Action::Open);
    let in_progress = Refuses(Refusal::InProgress(started(-2000).lease_until().map(claimable_at)));
    let done = |expires_in| record(RecordState::Completed(outcome()), expires_in);
    for (record, least, most) in [
        (done(10), Replays, Replays),
        (record(RecordState::Failed(outcome()), 10), Replays, Replays),
        (done(-2), Replays, Replays),
        (done(-3), Opens, Opens),
        (record(RecordState::Released, 10), Opens, Opens),
        (started(-2001), Opens, Refuses(Refusal::OutcomeUnknown)),
        (of_another_request(done(10)), Refuses(Refusal::Mismatch), Refuses(Refusal::Mismatch)),
        (of_another_request(started(-2001)), Refuses(Refusal::Mismatch), Refuses(Refusal::Mismatch)),
        (of_another_request(done(-3)), Opens, Opens),
    ] {
        assert_eq!(reaction(Execution::AtLeastOnce, record.clone()), least, "{record:?}");
        assert_eq!(reaction(Execution::AtMostOnce, record.clone()), most, "{record:?}");
    }
    assert_eq!(reaction(Execution::AtLeastOnce, started(-2000)), in_progress);
}

#[test]
fn failed_optimistic_read_refuses_the_delivery() {
    for (kind, refusal) in [
        (StoreErrorKind::Unavailable, Refusal::Unavailable),
        (StoreErrorKind::Rejected, Refusal::Rejected),
        (StoreErrorKind::Corrupt, Refusal::Corrupt),
        (StoreErrorKind::Conflict, Refusal::InProgress(None)),
    ] {
        let mut run = Run::new();
        run.feed(Event::Look);
        assert_eq!(run.feed(fault(kind, false)), Action::Refused(refusal));
    }
}

#[test]
fn first_conclusion_sets_every_field() {
    let (mut run, record) = concluding();
    let expected = Record {
        owner: ME,
        generation: Generation::first(NOW),
        attempt: 1,
        fingerprint: REQUEST,
        lock_acquired_at: NOW,
        execution: Execution::AtLeastOnce,
        expires_at: Some(NOW.saturating_add(RETENTION).rounded_up_to_second()),
        mark: Mark::None,
        request_id: Some("request".into()),
        trace: Some(Arc::new("trace".to_owned())),
        state: RecordState::Completed(outcome()),
    };
    assert_eq!(record, expected);
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
}

#[test]
fn conclusion_replaces_only_the_seen_version() {
    let ahead = Record { generation: Generation::new(NOW.as_millis() + 5), ..DEAD() };
    for (seen, attempt) in [
        (DEAD(), 1),
        (ahead, 1),
        (record(RecordState::Released, 10), 4),
        (of_another_request(record(RecordState::Released, 10)), 1),
        (started(-2001), 4),
    ] {
        let (mut run, action) = looked(Execution::AtLeastOnce, Some(seen.clone()));
        assert_eq!(action, Action::Open);
        let (on, record, submission) = put(run.feed(Event::Settle(commit())));
        assert_eq!((on, submission), (Some(seen.clone()), Some(0)));
        assert_eq!((record.attempt, record.generation), (attempt, seen.generation.next(NOW)), "{seen:?}");
    }
}

#[test]
fn conclusion_without_writes_needs_no_transaction() {
    for (intent, state) in [
        (complete(), RecordState::Completed(outcome())),
        (Intent::Fail(outcome()), RecordState::Failed(outcome())),
    ] {
        let mut run = Run::new();
        let (_, record, submission) = put(run.feed(Event::Settle(intent)));
        assert_eq!((record.state, submission), (state, None));
    }
    assert_eq!(Run::new().feed(Event::Settle(RELEASE)), Action::Settled(End::Recorded));
}

#[test]
fn conclusion_over_a_live_record_commits_nothing() {
    let until = started(20_000).lease_until().map(claimable_at);
    let owned = Record { owner: ME, ..started(20_000) };
    for (there, end) in [
        (completed(), End::Superseded(completed())),
        (started(20_000), End::NotCommitted(Refusal::InProgress(until))),
        (of_another_request(completed()), End::NotCommitted(Refusal::Mismatch)),
        // Another executor has drawn the same owner.
        (owned, End::NotCommitted(Refusal::InProgress(until))),
    ] {
        for is_doubtful in [false, true] {
            let (mut run, _) = concluding();
            let action = match is_doubtful {
                false => run.feed(refused(Some(there.clone()))),
                true => {
                    run.feed(LOST());
                    assert_eq!(run.feed(LOST()), Action::Read);
                    run.feed(Event::Found(Some(there.clone())))
                }
            };
            assert_eq!(action, Action::Settled(end.clone()), "{is_doubtful}");
        }
    }
    let mut run = Run::with(Execution::AtMostOnce);
    run.feed(Event::Settle(commit()));
    let end = End::NotCommitted(Refusal::OutcomeUnknown);
    assert_eq!(run.feed(refused(Some(started(-2001)))), Action::Settled(end));
}

#[test]
fn refused_conclusion_retries_under_new_numbers() {
    let (mut run, first) = concluding();
    for nth in 1..=3 {
        let there = Record { generation: Generation::new(NOW.as_millis() + u64::from(nth)), ..DEAD() };
        let (seen, record, submission) = put(run.feed(refused(Some(there.clone()))));
        assert_eq!((seen, submission), (Some(there.clone()), Some(nth)));
        assert_ne!(record, first);
    }
    let end = End::NotCommitted(Refusal::InProgress(None));
    assert_eq!(run.feed(refused(Some(DEAD()))), Action::Settled(end));
    // The record was swept after the read.
    let (mut run, _) = looked(Execution::AtLeastOnce, Some(DEAD()));
    run.feed(Event::Settle(commit()));
    let (seen, _, submission) = put(run.feed(refused(None)));
    assert_eq!((seen, submission), (None, Some(1)));
}

#[test]
fn ambiguous_conclusion_is_resent_then_looked_up() {
    for before in [None, Some(DEAD())] {
        let (mut run, _) = looked(Execution::AtLeastOnce, before.clone());
        let first = run.feed(Event::Settle(commit()));
        let (_, after, _) = put(first.clone());
        run.now = run.now.saturating_add(Duration::from_secs(3));
        assert_eq!(run.feed(LOST()), first);
        assert_eq!(run.clone().feed(refused(Some(after.clone()))), Action::Settled(End::Recorded));
        assert_eq!(run.feed(LOST()), Action::Read);
        assert_eq!(run.clone().feed(Event::Found(Some(after))), Action::Settled(End::Recorded));
        assert_eq!(run.clone().retry_until_end(&LOST()), (Action::Settled(End::Unresolved(None)), RETRIES));
        for nth in 0..RETRIES {
            assert_eq!(
                run.feed(Event::Found(before.clone())),
                Action::Pause(nth),
                "the record is unchanged, so the write wasn't applied"
            );
            assert_eq!(run.feed(Event::Resumed), first);
            assert_eq!(run.feed(LOST()), Action::Read);
        }
        assert_eq!(run.feed(Event::Found(before)), Action::Settled(End::Unresolved(None)));
    }
}

#[test]
fn late_applied_transaction_supersedes_the_conclusion() {
    let (mut run, record) = concluding();
    let earlier = Record { state: RecordState::Completed(Outcome::Omitted), ..record };
    run.feed(LOST());
    run.feed(Event::Declined);
    run.now = run.now.saturating_add(Duration::from_secs(1));
    put(run.feed(Event::Settle(commit())));
    assert_eq!(run.feed(refused(Some(earlier.clone()))), Action::Settled(End::Superseded(earlier)));
}

#[test]
fn conclusion_after_a_decline_has_new_number() {
    let (mut run, _) = looked(Execution::AtLeastOnce, Some(DEAD()));
    run.feed(Event::Settle(commit()));
    assert_eq!(run.feed(CONFLICT()), Action::Pause(0));
    assert_eq!(put(run.feed(Event::Resumed)).2, Some(1));
    for nth in 2..4 {
        assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
        let (seen, _, submission) = put(run.feed(Event::Settle(commit())));
        assert_eq!((seen, submission), (Some(DEAD()), Some(nth)));
    }
    let down = fault(StoreErrorKind::Unavailable, false);
    let declined = Action::Declined(Decline::Store(StoreErrorKind::Unavailable));
    assert_eq!(run.retry_until_end(&down), (declined, RETRIES));
    assert_eq!(run.feed(Event::Settle(RELEASE)), Action::Settled(End::Recorded));
}

#[test]
fn conflict_retries_stop_at_the_time_limit() {
    let (mut run, _) = concluding();
    run.now = NOW.saturating_add(SETTLE_WITHIN);
    assert_eq!(run.feed(CONFLICT()), Action::Declined(Decline::Store(StoreErrorKind::Conflict)));
    let (mut run, _) = concluding();
    run.now = NOW.saturating_add(SETTLE_WITHIN).saturating_sub(SHORTEST_ANSWER);
    assert_eq!(run.feed(CONFLICT()), Action::Pause(0));
}

#[test]
fn optimistic_run_holds_no_claim() {
    let (mut run, action) = looked(Execution::AtLeastOnce, None);
    assert_eq!((action, run.state.held()), (Action::Open, None));
    for event in [Event::Begin, Event::Look, Event::Declined, Event::Extend(NOW.saturating_add(LEASE * 2))] {
        let before = run.state.clone();
        assert_eq!(run.feed(event), Action::Nothing);
        assert_eq!(run.state, before);
    }
}

#[test]
fn expired_conclusion_is_never_resent() {
    let (run, record) = concluding();
    for is_expired in [false, true] {
        let mut run = run.clone();
        run.now = record.expires_at.unwrap().saturating_sub(SKEW);
        if !is_expired {
            run.now = run.now.saturating_sub(Duration::from_millis(1));
            assert_eq!(put(run.feed(LOST())), (None, record.clone(), Some(0)));
            continue;
        }
        assert_eq!(run.feed(LOST()), Action::Read);
        let found = run.clone().feed(Event::Found(Some(record.clone())));
        assert_eq!(found, Action::Settled(End::Recorded));
        // The current record is another one, and has expired. So the write was never applied, or it was applied and its
        // record was swept.
        let stale = Record { expires_at: Some(NOW), ..DEAD() };
        assert_eq!(run.clone().feed(Event::Found(Some(stale))), Action::Settled(End::Unresolved(None)));
        assert_eq!(run.feed(Event::Found(None)), Action::Settled(End::Unresolved(None)));
    }
}

/// Without the handler's own writes, there's no transaction that could be declined.
#[test]
fn conclusion_without_writes_is_never_declined() {
    let concluding = || {
        let mut run = Run::new();
        assert!(matches!(run.feed(Event::Settle(complete())), Action::Put(Put::Create(_))));
        run
    };
    let (action, _) = concluding().retry_until_end(&fault(StoreErrorKind::Unavailable, false));
    assert_eq!(action, Action::Settled(End::NotCommitted(Refusal::Unavailable)));
    let corrupt = concluding().feed(fault(StoreErrorKind::Corrupt, false));
    assert_eq!(corrupt, Action::Settled(End::NotCommitted(Refusal::Corrupt)));
    // If the store never accepts the response, the outcome is stored without it.
    let mut run = concluding();
    let unstorable = || fault(StoreErrorKind::Unstorable, false);
    let Action::Put(Put::Create(new)) = run.feed(unstorable()) else { panic!("not sent again") };
    assert_eq!(new.state, RecordState::Completed(Outcome::Omitted));
    assert_eq!(run.feed(unstorable()), Action::Settled(End::NotCommitted(Refusal::Rejected)));
}
