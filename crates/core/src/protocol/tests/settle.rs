//! Settling while the store fails: retries and their time limits, claims in doubt, and how the record remembers an
//! interrupted attempt.

use super::*;

#[test]
fn unapplied_settlement_is_resent() {
    let (mut run, held) = Run::completing();
    let still = mine(&mut run, &held, RecordState::Started { lease_until: held.lock.lease_until });
    assert_eq!(run.feed(LOST()), Action::Read);
    let again = run.feed(Event::Found(Some(still.clone())));
    assert!(matches!(again, Action::Put(Put::Mine { .. })), "the first retry has no pause");
    for nth in 1..RETRIES {
        assert_eq!(run.feed(LOST()), Action::Read);
        assert_eq!(run.feed(Event::Found(Some(still.clone()))), Action::Pause(nth));
        assert!(matches!(run.feed(Event::Resumed), Action::Put(Put::Mine { .. })));
    }
    assert_eq!(run.feed(LOST()), Action::Read);
    let last = run.feed(Event::Found(Some(still)));
    assert_eq!(last, Action::Settled(End::Unrecorded(Refusal::Unavailable)));
}

#[test]
fn definite_settlement_errors_are_retried() {
    use StoreErrorKind::*;
    for (kind, refusal) in [
        (Unavailable, Refusal::Unavailable),
        (Conflict, Refusal::InProgress(None)),
        (Rejected, Refusal::Rejected),
    ] {
        let (mut run, held) = Run::completing();
        let expires_at = Some(NOW.saturating_add(RETENTION).rounded_up_to_second());
        let new = mine(&mut run, &held, RecordState::Completed(outcome()));
        let first = Put::Mine { held: held.lock.clone(), new: Record { expires_at, ..new } };
        for nth in 0..RETRIES {
            assert_eq!(run.feed(fault(kind, false)), Action::Pause(nth));
            assert_eq!(run.feed(Event::Resumed), Action::Put(first.clone()), "a retry keeps the response");
        }
        assert_eq!(run.clone().feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
        assert_eq!(run.feed(fault(kind, false)), Action::Settled(End::Unrecorded(refusal)));
    }
}

#[test]
fn read_after_ambiguous_settlement_is_retried() {
    let (mut run, held) = Run::completing();
    let settled = mine(&mut run, &held, RecordState::Completed(outcome()));
    assert_eq!(run.feed(LOST()), Action::Read);
    for nth in 0..RETRIES {
        for maybe_applied in [false, true] {
            let mut run = run.clone();
            assert_eq!(run.feed(fault(StoreErrorKind::Unavailable, maybe_applied)), Action::Pause(nth));
        }
        run.feed(fault(StoreErrorKind::Unavailable, false));
        assert_eq!(run.feed(Event::Resumed), Action::Read);
    }
    assert_eq!(run.clone().feed(Event::Found(Some(settled))), Action::Settled(End::Recorded));
    let last = run.feed(fault(StoreErrorKind::Unavailable, false));
    assert_eq!(last, Action::Settled(End::Unrecorded(Refusal::Unavailable)));
}

#[test]
fn settlement_retries_stop_at_the_time_limit() {
    let answer_by = NOW.saturating_add(Duration::from_secs(5));
    for (limits, ends) in [
        (limits(), NOW.saturating_add(SETTLE_WITHIN)),
        // The lease ends long before these retries do.
        (Limits { settle_within: 2 * SETTLE_WITHIN, ..limits() }, NOW.saturating_add(2 * SETTLE_WITHIN)),
        (Limits { answer_by: Some(answer_by), ..limits() }, answer_by),
    ] {
        let settling = |now: Timestamp| {
            let plan = Plan { limits, ..plan(Execution::AtLeastOnce) };
            let mut run = Run { state: State::new(plan), now: NOW };
            run.feed(Event::Begin);
            run.feed(Event::Answered(PutOutcome::Applied));
            run.feed(Event::Settle(complete()));
            run.now = now;
            run.feed(fault(StoreErrorKind::Unavailable, false))
        };
        assert_eq!(
            settling(ends.saturating_sub(SHORTEST_ANSWER)),
            Action::Pause(0),
            "the settlement is retried if `SHORTEST_ANSWER` is left"
        );
        let late = Timestamp::from_millis(ends.saturating_sub(SHORTEST_ANSWER).as_millis() + 1);
        assert_eq!(settling(late), Action::Settled(End::Unrecorded(Refusal::Unavailable)));
    }
}

#[test]
fn store_calls_end_by_their_limit() {
    let at = |secs: f64| NOW.saturating_add(Duration::from_secs_f64(secs));
    let limits = Limits {
        ask_by: Some(at(2.5)),
        answer_by: Some(at(2.75)),
        deadline: Some(at(3.0)),
        reserve: Duration::from_millis(250),
        ..limits()
    };
    let mut run = Run { state: State::new(Plan { limits, ..plan(Execution::AtLeastOnce) }), now: NOW };
    run.feed(Event::Begin);
    assert_eq!(run.state.call_until(NOW), Some(at(2.5)), "the claim");
    assert_eq!(run.feed(LOST()), Action::Read);
    assert_eq!(run.state.call_until(NOW), Some(at(2.5)), "the read after the claim");
    let mut giving_up = run.clone();
    giving_up.feed(fault(StoreErrorKind::Unavailable, false));
    assert_eq!(giving_up.state.call_until(NOW), Some(at(2.75)), "the release of the claim");
    let own = mine_as_claimed(&run);
    assert!(matches!(run.feed(Event::Found(Some(own))), Action::Claimed(_)));
    assert_eq!(run.state.call_until(NOW), None, "no limit while the handler runs");
    for (now, until) in [
        (0.0, 1.375),
        (2.0, 2.375),
        (2.4, 2.65),
        // Inside the reserve, there's one attempt, until `last_call`.
        (2.6, 2.95),
        (2.9, 2.95),
        // `last_call` has passed, so there's no time for an attempt.
        (2.97, 2.95),
        // The deadline has passed, so another delivery may hold the key. One brief attempt shows whether it does.
        (3.0, 3.5),
        (3.2, 3.7),
    ] {
        let mut run = Run { now: at(now), ..run.clone() };
        run.feed(Event::Settle(complete()));
        assert_eq!(run.state.call_until(run.now), Some(at(until)), "a settlement that begins at {now} s");
    }
}

#[test]
fn settlement_call_ends_before_the_lease_ends() {
    let at = |secs| NOW.saturating_add(Duration::from_secs(secs));
    let mut run = Run { state: State::new(plan(Execution::AtLeastOnce)), now: NOW };
    run.feed(Event::Begin);
    assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Claimed(_)));
    assert_eq!((LEASE, SETTLE_WITHIN), (Duration::from_secs(30), Duration::from_secs(30)));
    // In the last row, the lease has already ended. The settlement can still succeed if no other claim took over.
    for (now, until) in [(0, 15), (10, 20), (20, 25), (40, 55)] {
        let mut run = Run { now: at(now), ..run.clone() };
        run.feed(Event::Settle(complete()));
        assert_eq!(run.state.call_until(run.now), Some(at(until)), "a settlement that begins at {now} s");
    }
}

#[test]
fn only_unstorable_responses_are_omitted() {
    let (mut run, _) = Run::completing();
    let unstorable = fault(StoreErrorKind::Unstorable, false);
    let Action::Put(Put::Mine { new, .. }) = run.feed(unstorable.clone()) else {
        panic!("the completion isn't sent again without its response")
    };
    assert_eq!(new.state, RecordState::Completed(Outcome::Omitted));
    assert_eq!(run.feed(unstorable), Action::Settled(End::Unrecorded(Refusal::Rejected)));
}

#[test]
fn interruption_is_remembered_across_release_and_reclaim() {
    let interrupted = Record { mark: Mark::Interrupted, ..record(RecordState::Released, 1000) };
    for (there, is_takeover) in [
        (interrupted.clone(), true),
        (of_another_request(interrupted), false),
        (record(RecordState::Released, 1000), false),
        (Record { mark: Mark::Interrupted, ..record(RecordState::Completed(outcome()), -3) }, false),
        (
            Record { expires_at: Some(Timestamp::from_millis(NOW.as_millis() - 3000)), ..started(-60_000) },
            true,
        ),
        (started(-60_000), true),
    ] {
        let (mut run, action) = Run::claiming_over(Execution::AtLeastOnce, there.clone());
        let Action::Put(write) = action else { panic!("not claimed: {there:?}") };
        assert_eq!(write.record().mark.is_interrupted(), is_takeover, "{there:?}");
        let Action::Claimed(held) = run.feed(Event::Answered(PutOutcome::Applied)) else {
            panic!("not claimed")
        };
        assert_eq!(held.lock.mark.is_interrupted(), is_takeover, "{there:?}");
        // A release keeps `interrupted`, and a panic sets it.
        for panicked in [false, true] {
            let action = run.clone().feed(Event::Settle(Intent::Release { interrupted: panicked }));
            assert_eq!(changed(settlement(&held, action)), released(is_takeover || panicked));
        }
    }
}

#[test]
fn unsettled_at_most_once_claims_never_expire() {
    let mut run = Run::with(Execution::AtMostOnce);
    let Action::Put(claim) = run.feed(Event::Begin) else { panic!("not claimed") };
    assert_eq!(claim.record().expires_at, None);
    let Action::Claimed(_) = run.feed(Event::Answered(PutOutcome::Applied)) else { panic!("not claimed") };
    let extended = run.clone().feed(Event::Extend(NOW.saturating_add(LEASE * 2)));
    let Action::Put(Put::Replace { new, .. }) = extended else { panic!("{extended:?}") };
    assert_eq!(new.expires_at, None);
    for intent in [complete(), Intent::Fail(outcome()), RELEASE] {
        let Action::Put(write) = run.clone().feed(Event::Settle(intent)) else { panic!("not settled") };
        let settled = write.apply_to(Some(claim.record())).unwrap();
        assert!(settled.expires_at.is_some());
    }
    // The lease ended long ago.
    let forever = Record { execution: Execution::AtMostOnce, expires_at: None, ..started(-1_000_000_000) };
    let (_, action) = Run::claiming_over(Execution::AtMostOnce, forever.clone());
    assert_eq!(action, Action::Refused(Refusal::OutcomeUnknown));
    let (_, action) = Run::claiming_over(Execution::AtMostOnce, of_another_request(forever));
    assert_eq!(action, Action::Refused(Refusal::Mismatch));
}

/// Returns the record that the machine's claim writes. The claim was sent, and its answer was lost.
fn mine_as_claimed(run: &Run) -> Record {
    let Phase::LookingForClaim(claiming) = &run.state.phase else { panic!("no claim is in doubt") };
    claiming.put().into_record()
}

#[test]
fn claim_to_record_an_outcome_is_retried() {
    for event in [fault(StoreErrorKind::Unavailable, false), LOST()] {
        let (mut run, _) = Run::completing();
        // The record is gone, so the machine claims the key again to record the outcome.
        assert!(matches!(run.feed(refused(None)), Action::Put(Put::Create(_))));
        let given_up = Action::Settled(End::Unrecorded(Refusal::Unavailable));
        assert_eq!(run.clone().retry_until_end(&event), (given_up, RETRIES));
        run.feed(fault(StoreErrorKind::Unavailable, false));
        assert!(matches!(run.feed(Event::Resumed), Action::Put(Put::Create(_))));
        assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Put(Put::Mine { .. })));
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

#[test]
fn unanswered_claim_is_released_once() {
    let until = claimable_at(NOW.saturating_add(LEASE));
    for (answer, refusal) in [
        (Event::Answered(PutOutcome::Applied), Refusal::Unavailable),
        (refused(None), Refusal::Abandoned(until)),
        (refused(Some(completed())), Refusal::Abandoned(until)),
        (fault(StoreErrorKind::Unavailable, false), Refusal::Abandoned(until)),
        (LOST(), Refusal::Abandoned(until)),
    ] {
        for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Rejected, StoreErrorKind::Conflict] {
            let mut run = Run::new();
            let Action::Put(claim) = run.feed(Event::Begin) else { panic!("not claimed") };
            assert_eq!(run.feed(LOST()), Action::Read);
            let Action::Put(Put::Mine { held, new }) = run.feed(fault(kind, false)) else {
                panic!("not released")
            };
            assert_eq!((&Record::from(held), changed(new)), (claim.record(), released(false)));
            assert_eq!(run.feed(answer.clone()), Action::Refused(refusal), "{answer:?}");
        }
    }
}

#[test]
fn claim_in_doubt_is_resent_unchanged() {
    let mut run = Run::new();
    let Action::Put(claim) = run.feed(Event::Begin) else { panic!("not claimed") };
    assert_eq!(run.feed(LOST()), Action::Read);
    run.now = NOW.saturating_add(Duration::from_millis(700));
    assert_eq!(run.feed(Event::Found(None)), Action::Put(claim.clone()));
    // The second attempt definitely failed, but the first may still be applied.
    let Action::Put(Put::Mine { held, new }) = run.feed(fault(StoreErrorKind::Unavailable, false)) else {
        panic!("not released")
    };
    assert_eq!((&Record::from(held), changed(new)), (claim.record(), released(false)));
    let until = claimable_at(NOW.saturating_add(LEASE));
    assert_eq!(run.feed(refused(None)), Action::Refused(Refusal::Abandoned(until)));
}

#[test]
fn release_of_a_lost_claim_reports_fenced() {
    for left in [None, Some(completed()), Some(started(20_000)), Some(record(RecordState::Released, 10))] {
        let (mut run, _) = Run::holding();
        run.feed(Event::Settle(RELEASE));
        let action = run.feed(refused(left.clone()));
        assert!(matches!(action, Action::Settled(End::Fenced(_))), "{left:?}: {action:?}");
    }
}

#[test]
fn fenced_settlement_reclaims_a_free_key() {
    for (left, kind) in [(None, "T1"), (Some(record(RecordState::Released, 1000)), "T2")] {
        let (mut run, first) = Run::completing();
        // The first lease ended long ago: the new claim's lease must be long enough to settle.
        run.now = NOW.saturating_add(LEASE * 2);
        let lock = match run.feed(refused(left)) {
            Action::Put(put) if put.begins_anew() => put.into_record(),
            action => panic!("{kind}: {action:?}"),
        };
        assert!(lock.lease_until() >= Some(run.now.saturating_add(RECORDING_LEASE)), "{kind}");
        let Action::Put(Put::Mine { new, .. }) = run.feed(Event::Answered(PutOutcome::Applied)) else {
            panic!("{kind}: not settled at once")
        };
        assert_eq!(new.generation, lock.generation);
        assert!(new.generation > first.lock.generation, "{kind}");
        assert_eq!(new.state, RecordState::Completed(outcome()));
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

/// Returns a machine whose handler's process died 5 s after its claim, the claim's record, and the machine's action.
fn interrupting(execution: Execution) -> (Run, Record, Action) {
    interrupting_at(execution, NOW.saturating_add(Duration::from_secs(5)))
}

fn interrupting_at(execution: Execution, now: Timestamp) -> (Run, Record, Action) {
    let mut run = Run::with(execution);
    let Action::Put(Put::Create(record)) = run.feed(Event::Begin) else { panic!("not claimed") };
    assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Claimed(_)));
    run.now = now;
    let intent = run.state.unanswered(now, None);
    let action = run.feed(Event::Settle(intent));
    (run, record, action)
}

const SHORT: Timestamp = Timestamp::from_millis(1_795_000_015_000);

/// The record with a lease until then.
fn leased(record: &Record, lease_until: Timestamp) -> Record {
    Record { state: RecordState::Started { lease_until }, ..record.clone() }
}

/// Without a reconciler, the claim isn't marked: it's left as after a crash.
#[test]
fn unanswered_claims_are_shortened() {
    let (mut run, record, action) = interrupting(Execution::AtLeastOnce);
    let Action::Put(put) = action else { panic!("no put (T9): {action:?}") };
    // The lease may have been extended, and the machine doesn't know it.
    for there in [record.clone(), leased(&record, NOW.saturating_add(LEASE * 2))] {
        assert_eq!(put.apply_to(Some(&there)), Some(leased(&record, SHORT)));
    }
    let others = [
        Record { owner: OTHER, ..record.clone() },
        Record { generation: record.generation.next(NOW), ..record.clone() },
        Record { state: RecordState::Completed(outcome()), ..record.clone() },
        Record { state: RecordState::Released, ..record },
    ];
    for other in others {
        assert_eq!(put.apply_to(Some(&other)), None, "{other:?}");
    }
    assert_eq!(put.apply_to(None), None);
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
}

#[test]
fn interruption_never_lengthens_a_lease() {
    let (_, record, _) = interrupting(Execution::AtLeastOnce);
    let ending = record.lease_until().unwrap().saturating_sub(Duration::from_secs(1));
    let (_, record, action) = interrupting_at(Execution::AtLeastOnce, ending);
    let Action::Put(put) = action else { panic!("no put (T9): {action:?}") };
    assert_eq!(put.into_record(), record);
}

#[test]
fn interrupted_at_most_once_claims_stay() {
    let (_, _, action) = interrupting(Execution::AtMostOnce);
    assert_eq!(action, Action::Settled(End::Recorded));
}

#[test]
fn interruptions_are_retried_and_looked_into() {
    let (mut run, record, first) = interrupting(Execution::AtLeastOnce);
    // The put's answer is lost: the record shows whether it was applied.
    assert_eq!(run.feed(LOST()), Action::Read);
    let there = leased(&record, SHORT);
    assert_eq!(run.clone().feed(Event::Found(Some(there))), Action::Settled(End::Recorded));
    assert_eq!(run.feed(Event::Found(Some(record))), first);
}

#[test]
fn lost_claims_are_not_interrupted() {
    let fenced = |until: Option<Timestamp>| Action::Settled(End::Fenced(until.map(claimable_at)));
    let successor = started(60_000);
    let lease = successor.lease_until();
    for (there, expected) in [
        (None, fenced(None)),
        (Some(successor), fenced(lease)),
        (Some(record(RecordState::Released, 100)), fenced(None)),
        (Some(completed()), fenced(None)),
    ] {
        let (mut run, ..) = interrupting(Execution::AtLeastOnce);
        assert_eq!(run.clone().feed(refused(there.clone())), expected);
        run.feed(LOST());
        assert_eq!(run.feed(Event::Found(there)), expected);
    }
}

/// The next delivery takes over once the short lease has ended, and learns of the interruption.
#[test]
fn takeovers_of_interrupted_claims_know_it() {
    let left = Record { owner: OTHER, ..leased(&started(0), SHORT) };
    for (secs, is_stale) in [(16, false), (18, true)] {
        let mut run = Run::new();
        run.now = NOW.saturating_add(Duration::from_secs(secs));
        run.feed(Event::Begin);
        let action = run.feed(refused(Some(left.clone())));
        match action {
            Action::Put(Put::Replace { new, .. }) => {
                assert!(is_stale && new.mark.is_interrupted() && new.attempt == left.attempt + 1, "{new:?}");
            }
            other => assert_eq!(
                (other, is_stale),
                (Action::Refused(Refusal::InProgress(Some(claimable_at(SHORT)))), false)
            ),
        }
    }
}
