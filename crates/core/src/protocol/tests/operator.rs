//! An operator's write: what the operator learns from each answer.

use super::*;

/// Returns a machine that has sent an operator's completion of `seen`, and its put.
fn resolving(seen: &Record) -> (Run, Put) {
    let mut run = Run::new();
    let event = Event::Resolve { seen: Box::new(seen.clone()), intent: complete() };
    match run.feed(event) {
        Action::Put(put) => (run, put),
        action => panic!("no put: {action:?}"),
    }
}

fn in_doubt() -> Action {
    Action::Settled(End::Unresolved(None))
}

#[test]
fn lost_operator_answer_is_read_then_sent_again_once() {
    let seen = started(-5000);
    let (mut run, put) = resolving(&seen);
    assert_eq!(run.feed(LOST()), Action::Read);
    assert_eq!(run.feed(Event::Found(Some(seen.clone()))), Action::Put(put.clone()));
    assert_eq!(run.feed(LOST()), Action::Read);
    let written = put.into_record();
    let mut applied = run.clone();
    assert_eq!(applied.feed(Event::Found(Some(written.clone()))), Action::Resolved(Some(written)));
    assert_eq!(run.feed(Event::Found(Some(seen))), in_doubt());
}

#[test]
fn ambiguous_operator_failure_never_means_unwritten() {
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Conflict, StoreErrorKind::Corrupt] {
        let (run, _) = resolving(&started(-5000));
        let mut definite = run.clone();
        let unwritten = Action::Settled(End::Unrecorded(refusal_for(kind)));
        assert_eq!(definite.feed(fault(kind, false)), unwritten);
        let mut lost = run.clone();
        assert_eq!(lost.feed(fault(kind, true)), Action::Read);
        // Another delivery's record may have replaced the operator's.
        let replaced = Record { generation: Generation::new(NOW.as_millis()), ..completed() };
        for found in [Event::Found(None), Event::Found(Some(replaced)), fault(kind, false)] {
            assert_eq!(lost.clone().feed(found), in_doubt());
        }
        assert!(matches!(lost.feed(Event::Found(Some(started(-5000)))), Action::Put(_)));
        assert_eq!(lost.feed(fault(kind, false)), in_doubt());
    }
}

#[test]
fn operator_follows_five_extensions_of_a_claim() {
    let (mut run, _) = resolving(&started(500));
    for nth in 1..=5 {
        let extended = started(nth * 1000);
        let action = run.feed(refused(Some(extended.clone())));
        let Action::Put(Put::Replace { seen, .. }) = action else { panic!("{nth}: {action:?}") };
        assert_eq!(seen, extended);
    }
    assert_eq!(run.feed(refused(Some(started(6000)))), Action::Resolved(None));
    // A claim that was stale and is live again has a handler that may run.
    let (mut run, _) = resolving(&started(-5000));
    assert_eq!(run.feed(refused(Some(started(5000)))), Action::Resolved(None));
    // A settled claim isn't the one that the operator decided on.
    let (mut run, _) = resolving(&started(-5000));
    let settled = Record { state: RecordState::Completed(outcome()), ..started(-5000) };
    assert_eq!(run.feed(refused(Some(settled))), Action::Resolved(None));
}

/// After an extension, an interruption (T9) may restore the lease that the first put replaces.
#[test]
fn doubt_outlasts_an_extension() {
    let (mut run, _) = resolving(&started(500));
    assert_eq!(run.feed(LOST()), Action::Read);
    assert!(matches!(run.feed(Event::Found(Some(started(5000)))), Action::Put(_)));
    assert_eq!(run.clone().feed(fault(StoreErrorKind::Conflict, false)), in_doubt());
    let replaced = Record { generation: Generation::new(NOW.as_millis()), ..completed() };
    assert_eq!(run.clone().feed(refused(Some(replaced))), in_doubt());
    // The executor settled its claim, so neither put can be applied.
    assert_eq!(run.feed(refused(Some(completed()))), Action::Resolved(None));
}
