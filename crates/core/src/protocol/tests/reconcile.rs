//! Reconciling: an attempt that ended without an answer is asked for before the handler runs again.

use super::*;
use crate::protocol::{Reconcile, outlook};

const ARRIVES: Duration = Duration::from_secs(30);

/// Returns a machine of an operation with a reconciler.
fn asking(execution: Execution, reruns_when_absent: bool) -> Run {
    let mut run = Run::with(execution);
    let rules = Rules {
        reconcile: Some(Reconcile { arrives_within: ARRIVES, reruns_when_absent }),
        ..run.state.plan().rules
    };
    let plan = Plan { rules, ..run.state.plan().clone() };
    run.state = State::new(plan);
    run
}

/// A STARTED record of another executor, whose lease ended so long ago.
fn left(execution: Execution, ago: Duration) -> Record {
    let lease_until = NOW.saturating_sub(ago);
    let expires_at = match execution {
        Execution::AtLeastOnce => Some(NOW.saturating_add(Duration::from_secs(86_400))),
        Execution::AtMostOnce => None,
    };
    Record { execution, expires_at, ..record(RecordState::Started { lease_until }, 86_400) }
}

/// Returns a machine that holds a claim taken over from such a record, and must ask.
fn asks(execution: Execution, reruns_when_absent: bool) -> (Run, Held) {
    let mut run = asking(execution, reruns_when_absent);
    run.feed(Event::Begin);
    let action = run.feed(refused(Some(left(execution, ARRIVES + SKEW + SKEW))));
    assert!(matches!(action, Action::Put(Put::Replace { .. })), "{action:?}");
    match run.feed(Event::Answered(PutOutcome::Applied)) {
        Action::Ask(held) => (run, held),
        other => panic!("not asked: {other:?}"),
    }
}

fn written(action: Action) -> Record {
    match action {
        Action::Put(Put::Mine { new, .. }) => new,
        other => panic!("no settlement: {other:?}"),
    }
}

#[test]
fn first_runs_ask_nothing() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let mut run = asking(execution, false);
        run.feed(Event::Begin);
        assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Claimed(_)));
        assert!(!run.state.is_asking());
    }
}

/// No question is asked before the effect has had the time to arrive, on this executor's clock and with the margin.
#[test]
fn questions_wait_for_the_effect() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let mut run = asking(execution, false);
        run.feed(Event::Begin);
        let early = left(execution, ARRIVES + SKEW);
        let until = early.lease_until().unwrap().saturating_add(ARRIVES + SKEW + Duration::from_millis(1));
        let refusal = Refusal::InProgress(Some(until));
        assert_eq!(run.feed(refused(Some(early.clone()))), Action::Refused(refusal), "{execution:?}");
        // Another payload stays a mismatch.
        let other = Record { fingerprint: Fingerprint::of_bytes(b"another"), ..early };
        let mut run = asking(execution, false);
        run.feed(Event::Begin);
        assert_eq!(run.feed(refused(Some(other))), Action::Refused(Refusal::Mismatch), "{execution:?}");
    }
}

/// The executor that marks a claim as unanswered has included the time in which its effect may arrive.
#[test]
fn unanswered_claims_wait_only_for_their_lease() {
    let mut run = asking(Execution::AtLeastOnce, false);
    run.feed(Event::Begin);
    let left =
        Record { mark: Mark::Unanswered, ..left(Execution::AtLeastOnce, SKEW + Duration::from_millis(1)) };
    assert!(matches!(run.feed(refused(Some(left))), Action::Put(Put::Replace { .. })));
    assert!(matches!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Ask(_)));
}

/// A key that was released after an interruption is asked for too, and at once.
#[test]
fn interrupted_releases_are_asked_for() {
    for (mark, asks) in [(Mark::Interrupted, true), (Mark::None, false)] {
        let mut run = asking(Execution::AtLeastOnce, false);
        run.feed(Event::Begin);
        run.feed(refused(Some(Record { mark, ..record(RecordState::Released, 100) })));
        let action = run.feed(Event::Answered(PutOutcome::Applied));
        assert_eq!(matches!(action, Action::Ask(_)), asks, "{mark:?}");
    }
}

#[test]
fn found_outcomes_are_marked() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        for (intent, state) in [
            (Intent::Complete(outcome()), RecordState::Completed(outcome())),
            (Intent::Fail(outcome()), RecordState::Failed(outcome())),
        ] {
            let (mut run, _) = asks(execution, false);
            let new = written(run.feed(Event::Settle(intent)));
            assert_eq!((new.state, new.mark), (state, Mark::Reconciled));
            assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
        }
    }
}

/// The mark stays even if the claim was lost, and the outcome is recorded under another one.
#[test]
fn found_outcomes_are_marked_after_a_loss() {
    let (mut run, _) = asks(Execution::AtLeastOnce, false);
    run.feed(Event::Settle(Intent::Complete(outcome())));
    assert!(matches!(run.feed(refused(None)), Action::Put(Put::Create(_))));
    let new = written(run.feed(Event::Answered(PutOutcome::Applied)));
    assert_eq!((new.status(), new.mark), (Status::Completed, Mark::Reconciled));
}

/// The handler then runs as in any takeover, and its outcome isn't the question's.
#[test]
fn absent_effects_let_the_handler_run() {
    for (execution, reruns) in
        [(Execution::AtLeastOnce, false), (Execution::AtLeastOnce, true), (Execution::AtMostOnce, true)]
    {
        let (mut run, held) = asks(execution, reruns);
        assert_eq!(run.feed(Event::DidNotHappen), Action::Claimed(held));
        assert!(!run.state.is_asking());
        let new = written(run.feed(Event::Settle(Intent::Complete(outcome()))));
        assert_eq!((new.status(), new.mark), (Status::Completed, Mark::Interrupted));
    }
}

/// The record stays STARTED for the next question, and never runs again without a person's word.
#[test]
fn at_most_once_stays_unknown_when_absent() {
    let (mut run, _) = asks(Execution::AtMostOnce, false);
    let new = written(run.feed(Event::DidNotHappen));
    assert_eq!((new.status(), new.mark, new.expires_at), (Status::Started, Mark::Unanswered, None));
    let action = run.feed(Event::Answered(PutOutcome::Applied));
    assert_eq!(action, Action::Refused(Refusal::OutcomeUnknown));
}

#[test]
fn time_is_judged_again_after_the_question() {
    let (mut run, held) = asks(Execution::AtLeastOnce, false);
    run.now = run.state.plan().limits.start_by(held.lock.lease_until);
    let new = written(run.feed(Event::DidNotHappen));
    assert_eq!(
        (new.status(), new.mark, new.lease_until()),
        (Status::Started, Mark::Unanswered, Some(run.now))
    );
    assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Refused(Refusal::NoTimeLeft));
}

/// Neither too little time nor a lost answer frees the key for another request.
#[test]
fn claims_that_must_ask_are_never_released() {
    let mut run = asking(Execution::AtLeastOnce, false);
    run.feed(Event::Begin);
    run.feed(refused(Some(left(Execution::AtLeastOnce, ARRIVES * 2))));
    run.now = run.state.plan().start_by();
    let new = written(run.feed(Event::Answered(PutOutcome::Applied)));
    assert_eq!((new.status(), new.mark), (Status::Started, Mark::Unanswered));
}

#[test]
fn unknown_answers_leave_the_claim_until_the_next_question() {
    let ten = Duration::from_secs(10);
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        for (again, wait) in [
            (Some(Duration::from_secs(90)), Duration::from_secs(90)),
            (None, ten),
            (Some(Duration::from_secs(86_400 * 7)), Duration::from_secs(12 * 60 * 60)),
        ] {
            let (mut run, held) = asks(execution, false);
            let intent = run.state.unanswered(run.now, again);
            let new = written(run.feed(Event::Settle(intent)));
            let until = run.now.saturating_add(wait);
            assert_eq!((new.lease_until(), new.mark), (Some(until), Mark::Unanswered));
            assert_eq!(new.expires_at.is_none(), execution == Execution::AtMostOnce);
            // No sweeper removes the record before it's asked for again.
            let a_day_later = until.saturating_add(Duration::from_secs(86_400));
            assert!(new.expires_at.is_none_or(|expires_at| expires_at >= a_day_later));
            assert_eq!(new.generation, held.lock.generation);
            // The answer was lost: the record shows that the write was applied.
            let mut lost = run.clone();
            lost.feed(LOST());
            assert_eq!(lost.feed(Event::Found(Some(new))), Action::Settled(End::Recorded));
            assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
        }
    }
}

/// A handler that doesn't know leaves its claim until its effect has arrived, if ever. An executor without a reconciler
/// doesn't know how long that takes. So it sets no mark, and an executor with one waits for the effect too.
#[test]
fn unknown_failures_wait_for_their_effect() {
    for (reconciles, wait, mark) in
        [(true, ARRIVES, Mark::Unanswered), (false, Duration::from_secs(10), Mark::None)]
    {
        let mut run = if reconciles {
            asking(Execution::AtLeastOnce, false)
        } else {
            Run::with(Execution::AtLeastOnce)
        };
        run.feed(Event::Begin);
        run.feed(Event::Answered(PutOutcome::Applied));
        run.now = NOW.saturating_add(Duration::from_secs(5));
        let intent = run.state.unanswered(run.now, None);
        let new = written(run.feed(Event::Settle(intent)));
        assert_eq!((new.lease_until(), new.mark), (Some(run.now.saturating_add(wait)), mark));
        // The answer was lost: only the marked record shows that the write was applied.
        run.feed(LOST());
        let other = Record { mark: Mark::Interrupted, ..new.clone() };
        assert!(matches!(run.clone().feed(Event::Found(Some(other))), Action::Put(_)));
        assert_eq!(run.feed(Event::Found(Some(new))), Action::Settled(End::Recorded));
    }
}

/// If the lease stayed the same, an extension that's still on its way would replace the mark.
#[test]
fn marked_claims_have_another_lease() {
    let (mut run, held) = asks(Execution::AtLeastOnce, false);
    let lease_until = held.lock.lease_until;
    let intent = run.state.unanswered(run.now, Some(run.now.until(lease_until)));
    let until = lease_until.saturating_add(Duration::from_millis(1));
    assert_eq!(intent, Intent::Unanswered { until });
    run.now = lease_until;
    let new = written(run.feed(Event::DidNotHappen));
    assert_eq!(new.lease_until(), Some(lease_until.saturating_sub(Duration::from_millis(1))));
}

/// An executor without a reconciler, or one that runs at least once, never takes an at-most-once claim over.
#[test]
fn only_at_most_once_reconcilers_ask_for_its_claims() {
    let left = left(Execution::AtMostOnce, ARRIVES * 10);
    let next = |execution, reconcile| {
        let rules = Rules { skew_margin: SKEW, retention: RETENTION, execution, reconcile };
        outlook(&rules, &left, NOW).next
    };
    let reconcile = Some(Reconcile { arrives_within: ARRIVES, reruns_when_absent: false });
    use crate::protocol::NextDelivery::{OutcomeUnknown, TakesOver};
    assert_eq!(next(Execution::AtMostOnce, reconcile), TakesOver);
    for (execution, reconcile) in
        [(Execution::AtLeastOnce, reconcile), (Execution::AtLeastOnce, None), (Execution::AtMostOnce, None)]
    {
        assert_eq!(next(execution, reconcile), OutcomeUnknown, "{execution:?} {reconcile:?}");
    }
}
