//! Writes without a record: every sequence of answers, in every world that fits the answers.

use super::*;

/// Enough answers to end each sequence.
const MOST_ANSWERS: u8 = 6;

/// What the store really did.
#[derive(Clone, Copy, Default)]
struct World {
    is_applied: bool,
    /// Whether an attempt whose answer was lost may still be applied.
    is_on_its_way: bool,
}

/// Returns every answer that the next attempt may get, with the world after it. The store recognises the transaction by its
/// token, so it declines no attempt after it has applied one.
fn answers(world: World) -> Vec<(Event, World)> {
    let applied = World { is_applied: true, ..world };
    let mut all = vec![(Event::Answered(PutOutcome::Applied), applied)];
    if !world.is_applied {
        all.extend([(Event::Declined, world), (refused(None), world)]);
    }
    for kind in [
        StoreErrorKind::Unavailable,
        StoreErrorKind::Conflict,
        StoreErrorKind::Rejected,
        StoreErrorKind::Unstorable,
        StoreErrorKind::Corrupt,
    ] {
        let late = World { is_on_its_way: true, ..world };
        all.push((fault(kind, false), world));
        all.extend([world, applied, late].map(|world| (fault(kind, true), world)));
    }
    all
}

/// Feeds every answer to the attempt that was just sent. Returns how many sequences ended.
fn play(run: &Run, world: World, is_in_doubt: bool, attempts: u8) -> u32 {
    let mut ended = 0;
    for (event, world) in answers(world) {
        let mut run = run.clone();
        let is_in_doubt = is_in_doubt || matches!(event, Event::Failed(Fault { maybe_applied: true, .. }));
        let why = match event {
            Event::Failed(Fault { kind, .. }) => Decline::Store(kind),
            _ => Decline::Condition,
        };
        match run.feed(event) {
            Action::Pause(nth) => {
                let is_transient =
                    matches!(why, Decline::Store(StoreErrorKind::Unavailable | StoreErrorKind::Conflict));
                assert!(is_transient && attempts < MOST_ANSWERS, "{why:?} after {attempts} attempts");
                assert_eq!(nth, attempts - 1);
                assert_eq!(run.feed(Event::Resumed), Action::CommitAlone);
                ended += play(&run, world, is_in_doubt, attempts + 1);
                continue;
            }
            Action::Settled(End::Recorded) => assert!(world.is_applied),
            // The reason stays untold, since the writes may be there.
            Action::Settled(End::Unresolved(None)) => assert!(is_in_doubt),
            Action::Declined(told) => {
                assert_eq!(told, why);
                assert!(!is_in_doubt && !world.is_applied && !world.is_on_its_way);
            }
            action => panic!("unexpected {action:?}"),
        }
        assert_eq!(run.feed(Event::Resumed), Action::Nothing);
        ended += 1;
    }
    ended
}

#[test]
fn writes_without_record_are_reported_truly() {
    let mut run = Run::new();
    run.state.plan.limits.max_retries = Some(MOST_ANSWERS - 1);
    assert_eq!(run.feed(Event::CommitAlone), Action::CommitAlone);
    let ended = play(&run, World::default(), false, 1);
    assert!(ended > 100_000, "only {ended} sequences");
}

#[test]
fn writes_without_record_are_retried_until_time_is_up() {
    let mut run = Run::new();
    run.state.plan.limits.max_retries = None;
    assert_eq!(run.feed(Event::CommitAlone), Action::CommitAlone);
    run.now = NOW.saturating_add(SETTLE_WITHIN - SHORTEST_ANSWER);
    assert_eq!(run.feed(fault(StoreErrorKind::Unavailable, false)), Action::Pause(0));
    assert_eq!(run.feed(Event::Resumed), Action::CommitAlone);
    run.now = run.now.saturating_add(Duration::from_millis(1));
    let declined = Action::Declined(Decline::Store(StoreErrorKind::Unavailable));
    assert_eq!(run.feed(fault(StoreErrorKind::Unavailable, false)), declined);
}
