//! T8 and T7: a transaction under a claim, and a lease that's extended.

use super::*;

/// Returns the write and submission of an `Action::Commit`. Panics on any other action.
fn sent(action: Action) -> (Put, u32) {
    match action {
        Action::Commit { put, submission } => (put, submission),
        action => panic!("no transaction: {action:?}"),
    }
}

fn commit() -> Intent {
    Intent::Commit(outcome())
}

/// Returns a machine that has sent its transaction, and its write.
fn committing() -> (Run, Held, Put) {
    let (mut run, held) = Run::holding();
    let (write, submission) = sent(run.feed(Event::Settle(commit())));
    assert_eq!(submission, 0);
    (run, held, write)
}

/// Returns the record as the claim left it, and as the claim's transaction changes it.
fn before_and_after(run: &mut Run, held: &Held, write: &Put) -> (Record, Record) {
    let before = mine(run, held, RecordState::Started { lease_until: held.lock.lease_until });
    let after = write.apply_to(Some(&before)).unwrap();
    (before, after)
}

const CONFLICT: fn() -> Event = || fault(StoreErrorKind::Conflict, false);

#[test]
fn transaction_completes_the_claims_record() {
    let (mut run, held, write) = committing();
    let expires_at = NOW.saturating_add(RETENTION).rounded_up_to_second();
    let expected = (RecordState::Completed(outcome()), Some(expires_at), false);
    assert_eq!(changed(settlement(&held, Action::Put(write))), expected);
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
}

#[test]
fn only_success_commits_the_handlers_writes() {
    assert_eq!(complete().committed(), commit());
    for intent in [Intent::Fail(outcome()), RELEASE, commit()] {
        assert_eq!(intent.clone().committed(), intent);
    }
}

#[test]
fn transaction_is_rejected_after_a_takeover() {
    let until = started(20_000).lease_until().map(claimable_at);
    let mismatched = Record { owner: OTHER, ..of_another_request(completed()) };
    for (record, end) in [
        (started(20_000), End::Fenced(until)),
        // The machine never takes over a stale successor just to record an outcome.
        (started(-60_000), End::Fenced(started(-60_000).lease_until().map(claimable_at))),
        (completed(), End::Superseded(completed())),
        (
            record(RecordState::Failed(outcome()), 10),
            End::Superseded(record(RecordState::Failed(outcome()), 10)),
        ),
        (mismatched, End::NotCommitted(Refusal::Mismatch)),
    ] {
        let (mut run, ..) = committing();
        assert_eq!(run.feed(refused(Some(record))), Action::Settled(end));
    }
}

#[test]
fn refused_commit_reclaims_a_free_key() {
    for left in
        [None, Some(record(RecordState::Released, 1000)), Some(record(RecordState::Completed(outcome()), -3))]
    {
        let (mut run, first, _) = committing();
        run.now = NOW.saturating_add(Duration::from_secs(20));
        let Action::Put(claim) = run.feed(refused(left.clone())) else { panic!("not claimed: {left:?}") };
        let generation = claim.record().generation;
        assert!(generation > first.lock.generation);
        let (write, submission) = sent(run.feed(Event::Answered(PutOutcome::Applied)));
        assert_eq!((write.record().owner, write.record().generation, submission), (ME, generation, 0));
        assert_eq!(run.feed(CONFLICT()), Action::Pause(0));
        assert_eq!(sent(run.feed(Event::Resumed)), (write, 1));
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

#[test]
fn failed_reclaim_commits_nothing() {
    let (mut run, ..) = committing();
    run.feed(refused(None));
    let down = fault(StoreErrorKind::Unavailable, false);
    let end = Action::Settled(End::NotCommitted(Refusal::Unavailable));
    assert_eq!(run.retry_until_end(&down), (end, RETRIES));
}

#[test]
fn declined_transaction_keeps_the_claim() {
    let settle: [(Intent, RecordState); 3] = [
        (complete(), RecordState::Completed(outcome())),
        (Intent::Fail(outcome()), RecordState::Failed(outcome())),
        (RELEASE, RecordState::Released),
    ];
    for (intent, state) in settle {
        let (mut run, held, _) = committing();
        assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
        assert_eq!(run.state.held(), Some(&held));
        let Action::Put(write) = run.feed(Event::Settle(intent)) else { panic!("nothing sent") };
        let (before, _) = before_and_after(&mut run, &held, &write);
        assert_eq!(write.apply_to(Some(&before)).unwrap().state, state);
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

#[test]
fn transaction_after_a_decline_has_new_number() {
    let (mut run, _, first) = committing();
    for nth in 1..4 {
        assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
        run.now = run.now.saturating_add(Duration::from_secs(1));
        let (write, submission) = sent(run.feed(Event::Settle(commit())));
        assert_eq!(submission, nth);
        assert_ne!(write, first, "it's another transaction");
    }
}

#[test]
fn unstorable_content_is_declined_at_once() {
    for kind in [StoreErrorKind::Unstorable, StoreErrorKind::Corrupt] {
        let (mut run, held, _) = committing();
        assert_eq!(run.feed(fault(kind, false)), Action::Declined(Decline::Store(kind)));
        assert_eq!(run.state.held(), Some(&held));
        assert_eq!(sent(run.feed(Event::Settle(commit()))).1, 1);
    }
}

#[test]
fn failed_transaction_retries_under_a_new_number() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Rejected, StoreErrorKind::Conflict] {
        let (mut run, held, first) = committing();
        for nth in 0..RETRIES {
            assert_eq!(run.feed(fault(kind, false)), Action::Pause(nth));
            run.now = run.now.saturating_add(Duration::from_millis(100));
            let (write, submission) = sent(run.feed(Event::Resumed));
            assert_eq!(
                (write, submission),
                (first.clone(), u32::from(nth) + 1),
                "every value is the same as in the first request"
            );
        }
        assert_eq!(run.feed(fault(kind, false)), Action::Declined(Decline::Store(kind)));
        assert_eq!(run.state.held(), Some(&held));
        assert_eq!(sent(run.feed(Event::Settle(commit()))).1, u32::from(RETRIES) + 1);
    }
}

#[test]
fn conflict_retries_stop_at_the_time_limit() {
    let by = NOW.saturating_add(SETTLE_WITHIN);
    for (now, retries) in
        [(by.saturating_sub(SHORTEST_ANSWER), true), (by, false), (by.saturating_add(LEASE), false)]
    {
        let (mut run, ..) = committing();
        run.now = now;
        let expected = match retries {
            true => Action::Pause(0),
            false => Action::Declined(Decline::Store(StoreErrorKind::Conflict)),
        };
        assert_eq!(run.feed(CONFLICT()), expected, "{now:?}");
    }
}

#[test]
fn committed_record_outlives_its_lease() {
    for (retention, counts_for) in
        [(RETENTION, RETENTION), (Duration::from_secs(1), NOW.until(claimable_at(NOW)) + LEASE)]
    {
        let mut plan = plan(Execution::AtLeastOnce);
        plan.rules.retention = retention;
        let mut run = Run { state: State::new(plan), now: NOW };
        run.feed(Event::Begin);
        run.feed(Event::Answered(PutOutcome::Applied));
        let (write, _) = sent(run.feed(Event::Settle(commit())));
        let expires_at = NOW.saturating_add(counts_for).rounded_up_to_second();
        let new = write.into_record();
        assert_eq!((new.state, new.expires_at), (RecordState::Completed(outcome()), Some(expires_at)));
    }
}

#[test]
fn no_extension_while_transaction_is_in_doubt() {
    let (mut run, held, _) = committing();
    run.feed(LOST());
    assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
    let until = held.lock.lease_until.saturating_add(LEASE);
    assert_eq!(run.feed(Event::Extend(until)), Action::NotExtended);
    assert_eq!(run.state.held(), Some(&held));
}

#[test]
fn ambiguous_transaction_is_resent_then_looked_up() {
    let (mut run, held, first) = committing();
    let (before, after) = before_and_after(&mut run, &held, &first);
    run.now = run.now.saturating_add(Duration::from_secs(3));
    assert_eq!(sent(run.feed(LOST())), (first.clone(), 0));
    assert_eq!(run.clone().feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    assert_eq!(run.clone().feed(refused(Some(after.clone()))), Action::Settled(End::Recorded));
    assert_eq!(run.feed(LOST()), Action::Read);
    assert_eq!(run.clone().feed(Event::Found(Some(after.clone()))), Action::Settled(End::Recorded));
    // The write wasn't applied when the record was read, but may still be on its way.
    for nth in 0..RETRIES {
        assert_eq!(run.feed(Event::Found(Some(before.clone()))), Action::Pause(nth));
        assert_eq!(sent(run.feed(Event::Resumed)), (first.clone(), 0));
        assert_eq!(run.feed(LOST()), Action::Read);
    }
    assert_eq!(run.clone().feed(Event::Found(Some(after))), Action::Settled(End::Recorded));
    let unresolved = Action::Settled(End::Unresolved(Some(claimable_at(held.lock.lease_until))));
    assert_eq!(run.feed(Event::Found(Some(before))), unresolved);
}

#[test]
fn record_decides_an_ambiguous_transaction() {
    let in_doubt = || {
        let (mut run, held, write) = committing();
        run.feed(LOST());
        assert_eq!(run.feed(LOST()), Action::Read);
        (run, held, write)
    };
    let until = started(20_000).lease_until().map(claimable_at);
    for (found, end) in [
        (started(20_000), End::Fenced(until)),
        (completed(), End::Superseded(completed())),
        (of_another_request(completed()), End::NotCommitted(Refusal::Mismatch)),
    ] {
        let (mut run, ..) = in_doubt();
        assert_eq!(run.feed(Event::Found(Some(found))), Action::Settled(end));
    }
    let (mut run, ..) = in_doubt();
    let action = run.feed(Event::Found(Some(record(RecordState::Released, 1000))));
    assert!(matches!(action, Action::Put(Put::Replace { .. })), "{action:?}");
    // The missing record may have had the outcome: if the transaction were sent again, it might be applied twice.
    let (mut run, held, _) = in_doubt();
    let unresolved = End::Unresolved(Some(claimable_at(held.lock.lease_until)));
    assert_eq!(run.feed(Event::Found(None)), Action::Settled(unresolved));
    // The record has another outcome of this claim, from an earlier transaction. That outcome counts, and isn't
    // treated as this transaction's.
    let (mut run, held, write) = in_doubt();
    let (_, mut after) = before_and_after(&mut run, &held, &write);
    after.state = RecordState::Completed(Outcome::Omitted);
    assert_eq!(run.feed(Event::Found(Some(after.clone()))), Action::Settled(End::Superseded(after)));
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Corrupt, StoreErrorKind::Rejected] {
        for maybe_applied in [false, true] {
            let (mut run, held, _) = in_doubt();
            let unresolved = Action::Settled(End::Unresolved(Some(claimable_at(held.lock.lease_until))));
            let pauses = if kind == StoreErrorKind::Corrupt { 0 } else { RETRIES };
            assert_eq!(run.retry_until_end(&fault(kind, maybe_applied)), (unresolved, pauses), "{kind:?}");
        }
    }
}

#[test]
fn commit_refused_despite_held_claim_is_unresolved() {
    let (mut run, held, write) = committing();
    let (before, _) = before_and_after(&mut run, &held, &write);
    assert_eq!(
        run.feed(refused(Some(before))),
        Action::Settled(End::Unresolved(Some(claimable_at(held.lock.lease_until))))
    );
}

#[test]
fn definite_retry_error_leaves_transaction_in_doubt() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Rejected] {
        let (mut run, _, first) = committing();
        assert_eq!(sent(run.feed(LOST())), (first, 0));
        assert_eq!(run.feed(fault(kind, false)), Action::Read, "{kind:?}");
    }
    // If the record is unreadable, the transaction isn't sent again.
    let (mut run, ..) = committing();
    assert_eq!(run.feed(fault(StoreErrorKind::Corrupt, true)), Action::Read);
}

#[test]
fn submission_number_is_fixed_while_ambiguous() {
    // The first attempt is in doubt. Then another transaction uses the items, or the first attempt is still running.
    for (first_fault, later) in
        [(LOST(), CONFLICT()), (fault(StoreErrorKind::Conflict, true), fault(StoreErrorKind::Conflict, true))]
    {
        let (mut run, held, first) = committing();
        let (before, _) = before_and_after(&mut run, &held, &first);
        match run.feed(first_fault) {
            Action::Pause(0) => assert_eq!(sent(run.feed(Event::Resumed)), (first.clone(), 0)),
            action => assert_eq!(sent(action), (first.clone(), 0)),
        }
        let mut pauses = 0;
        let last = loop {
            match run.feed(later.clone()) {
                Action::Pause(_) => pauses += 1,
                action => break action,
            }
            assert_eq!(sent(run.feed(Event::Resumed)), (first.clone(), 0));
        };
        assert!(pauses + 1 >= RETRIES, "{pauses}");
        assert_eq!(last, Action::Read, "the transaction isn't declined, since it may have been applied");
        let end = run.feed(Event::Found(Some(before)));
        assert_eq!(end, Action::Settled(End::Unresolved(Some(claimable_at(held.lock.lease_until)))));
    }
}

#[test]
fn declined_transaction_applied_late_supersedes_settlement() {
    // The first attempt was delayed, the second was declined, and then the first was applied.
    let other = || Outcome::Retained(StoredResponse::new(bytes::Bytes::from_static(b"sold out")));
    for intent in [Intent::Complete(other()), Intent::Commit(other()), Intent::Fail(other()), RELEASE] {
        for is_lost in [false, true] {
            let (mut run, held, first) = committing();
            let (_, after) = before_and_after(&mut run, &held, &first);
            run.feed(LOST());
            assert_eq!(run.feed(Event::Declined), Action::Declined(Decline::Condition));
            run.feed(Event::Settle(intent.clone()));
            let mut action = match is_lost {
                true => run.feed(LOST()),
                false => run.feed(refused(Some(after.clone()))),
            };
            while is_lost && matches!(action, Action::Commit { .. }) {
                action = run.feed(LOST());
            }
            if action == Action::Read {
                action = run.feed(Event::Found(Some(after.clone())));
            }
            assert_eq!(action, Action::Settled(End::Superseded(after)), "{intent:?}, {is_lost}");
        }
    }
}

#[test]
fn extension_changes_only_lease_and_expiry() {
    let (mut run, held) = Run::holding();
    let until = NOW.saturating_add(LEASE * 2);
    let day = Duration::from_secs(86_400);
    let expires_at = until.saturating_add(day).rounded_up_to_second();
    let lock = Lock { lease_until: until, expires_at: Some(expires_at), ..held.lock.clone() };
    let extend = Put::Replace { seen: held.lock.clone().into(), new: lock.clone().into() };
    assert_eq!(run.feed(Event::Extend(until)), Action::Put(extend));
    assert_eq!(run.state.held(), Some(&held), "unchanged until the store answers");
    let extended = Held { lock, ..held };
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Extended(extended.clone()));
    assert_eq!(run.state.held(), Some(&extended));
}

#[test]
fn lease_is_never_shortened() {
    let (mut run, held) = Run::holding();
    for until in [NOW, held.lock.lease_until] {
        assert_eq!(run.feed(Event::Extend(until)), Action::NotExtended, "nothing is sent");
    }
    assert_eq!(run.state.held(), Some(&held));
}

#[test]
fn extension_answer_decides_the_action() {
    let until = NOW.saturating_add(LEASE * 2);
    let extending = || {
        let (mut run, held) = Run::holding();
        assert!(matches!(run.feed(Event::Extend(until)), Action::Put(Put::Replace { .. })));
        (run, held)
    };
    // An earlier extension, whose answer was lost, has moved the lease. If it's long enough, nothing more is sent.
    // Otherwise, the extension is sent again, on the record that was returned.
    let (mut run, held) = extending();
    let further = until.saturating_add(LEASE);
    let own = mine(&mut run, &held, RecordState::Started { lease_until: further });
    let extended = Held { lock: own.lock_until(further), ..held.clone() };
    assert_eq!(run.feed(refused(Some(own.clone()))), Action::Extended(extended));
    let (mut run, held) = extending();
    let nearer = held.lock.lease_until.saturating_add(Duration::from_secs(1));
    let moved = mine(&mut run, &held, RecordState::Started { lease_until: nearer });
    let Action::Put(Put::Replace { seen, new }) = run.feed(refused(Some(moved.clone()))) else {
        panic!("not sent again")
    };
    assert_eq!((seen, new.lease_until()), (moved, Some(until)));
    assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Extended(_)));
    // Another claim took over, an operator settled the record, or the record is gone.
    let later = Record { generation: own.generation.next(NOW), ..own.clone() };
    let theirs = Record { owner: OTHER, ..own.clone() };
    let resolved = Record { state: RecordState::Released, ..own };
    for record in [None, Some(later), Some(theirs), Some(resolved), Some(completed())] {
        let (mut run, held) = extending();
        assert_eq!(run.feed(refused(record.clone())), Action::Lost, "{record:?}");
        // The machine still tries to settle under this claim, and the store then decides.
        assert_eq!(run.state.held(), Some(&held));
    }
    for (event, action) in [
        (LOST(), Action::NotExtended),
        (fault(StoreErrorKind::Unavailable, false), Action::NotExtended),
        (CONFLICT(), Action::NotExtended),
        (fault(StoreErrorKind::Rejected, false), Action::NotExtended),
        (fault(StoreErrorKind::Corrupt, false), Action::Lost),
    ] {
        let (mut run, held) = extending();
        assert_eq!(run.feed(event), action);
        assert_eq!(run.state.held(), Some(&held), "the claim is unchanged");
        let again = run.feed(Event::Extend(until.saturating_add(LEASE)));
        assert!(matches!(again, Action::Put(Put::Replace { .. })), "{again:?}");
    }
}

#[test]
fn settling_does_not_wait_for_an_extension() {
    for (intent, is_transaction) in [(complete(), false), (RELEASE, false), (commit(), true)] {
        let (mut run, _) = Run::holding();
        run.feed(Event::Extend(NOW.saturating_add(LEASE * 2)));
        match run.feed(Event::Settle(intent)) {
            Action::Commit { submission: 0, .. } => assert!(is_transaction),
            Action::Put(Put::Mine { .. }) => assert!(!is_transaction),
            action => panic!("{action:?}"),
        }
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

#[test]
fn extensions_do_not_reset_the_submission_number() {
    let (mut run, ..) = committing();
    run.feed(Event::Declined);
    for answer in [Event::Answered(PutOutcome::Applied), LOST()] {
        run.now = run.now.saturating_add(LEASE);
        run.feed(Event::Extend(run.now.saturating_add(LEASE * 2)));
        run.feed(answer);
    }
    assert_eq!(sent(run.feed(Event::Settle(commit()))).1, 1);
}
