//! Kills a process, or freezes it beyond its lease, at each named point.

use std::{fmt, sync::Arc, time::Duration};

use lambda_idempotency_rehearsal::{
    clock,
    function::Function,
    problem::{Problem, Result},
};
use tokio::task::JoinSet;

use super::{
    backend::Backend,
    fleet::Fleet,
    form::Form,
    job::{Job, LIMIT},
    judge::{Deed, Finding, Promise, Violation},
    point::{Call, Point},
    sabotage::Sabotage,
    story::{Frozen, Story},
};

/// The maximum number of tries of a round. A try fails if its process doesn't reach the point in time, or if a gateway
/// loses its answer.
const TRIES: u32 = 40;
/// The time limit grows with the tries, up to this multiple. A sabotage has that much time at once: it does its harm
/// before a deadline.
const LONGEST: u32 = 10;
/// A round with a thawed process is played again at most this many times, if the machine was busy: a process that can't
/// read the record in time doesn't learn of its successor.
const AGAIN: u32 = 5;

/// How the harness interrupts the process that pauses at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, then SIGCONT once the lease has ended and another process has answered.
    Frozen,
}

/// The verdict on one round.
type Judged = Result<Finding, Violation>;

/// What happened to a process that should have been interrupted at a point.
#[derive(Debug)]
enum Interrupted {
    Killed,
    Frozen(Box<Frozen>),
    /// The process answered before it reached the point, or reached it too late for a freeze.
    TooSlow,
}

/// The findings at one point.
#[derive(Debug)]
pub struct Row {
    /// The server.
    pub server: String,
    /// The point.
    pub point: Point,
    /// How the harness interrupted the process there.
    pub ending: Ending,
    /// How many rounds were played.
    pub rounds: u32,
    /// How many effects there were.
    pub effects: u64,
    /// How many crashes fell between effect and completion. Each allows one more effect.
    pub crashes_in_the_gap: u64,
    /// The violations.
    pub violations: Vec<Violation>,
}

impl Row {
    /// Returns the table's header row.
    pub fn head() -> String {
        format!(
            "{:<26} {:<8} {:>6} {:>8} {:>15}  verdict",
            "point", "ending", "rounds", "effects", "in the gap"
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, ending, rounds, effects, crashes_in_the_gap, violations, .. } = self;
        let ending = match ending {
            Ending::Killed => "SIGKILL",
            Ending::Frozen => "SIGSTOP",
        };
        let verdict = match violations.len() {
            0 => "ok".into(),
            wrong => format!("{wrong} VIOLATIONS"),
        };
        write!(f, "{point:<26} {ending:<8} {rounds:>6} {effects:>8} {crashes_in_the_gap:>15}  {verdict}")
    }
}

/// At each point, on each server, plays `rounds` rounds that kill a process and `rounds` rounds that freeze one.
///
/// # Errors
///
/// If the check breaks off.
pub async fn check(
    function: &Function,
    backends: Vec<Backend>,
    points: &[Point],
    rounds: u32,
    sabotage: Option<Sabotage>,
    form: Form,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for backend in backends {
        let fleet = Fleet::new(backend, function, sabotage, form).await?;
        let mut playing = JoinSet::new();
        for &point in points {
            for ending in [Ending::Killed, Ending::Frozen] {
                let fleet = Arc::clone(&fleet);
                playing.spawn(async move { row(&fleet, point, ending, rounds).await });
            }
        }
        let of_server = playing.join_all().await.into_iter().collect::<Result<Vec<_>>>();
        fleet.disband().await?;
        let mut of_server = of_server?;
        let place = |row: &Row| points.iter().position(|point| *point == row.point);
        of_server.sort_by_key(|row| (place(row), row.ending == Ending::Frozen));
        rows.append(&mut of_server);
    }
    Ok(rows)
}

async fn row(fleet: &Arc<Fleet>, point: Point, ending: Ending, rounds: u32) -> Result<Row> {
    let mut row = Row {
        server: fleet.server().to_owned(),
        point,
        ending,
        rounds,
        effects: 0,
        crashes_in_the_gap: 0,
        violations: Vec::new(),
    };
    for round in 0..rounds {
        match play_until_reached(fleet, point, ending, round).await? {
            Ok(Finding { effects, crashes_in_the_gap, .. }) => {
                row.effects += effects;
                row.crashes_in_the_gap += crashes_in_the_gap;
            }
            Err(violation) => row.violations.push(violation),
        }
    }
    Ok(row)
}

/// Repeats a round until the process reaches its point. On a slow machine, the deadline may come before that, so each
/// try gives the process more time. A violation of a thawed process on a busy machine is printed, and the round is
/// played again.
async fn play_until_reached(fleet: &Arc<Fleet>, point: Point, ending: Ending, round: u32) -> Result<Judged> {
    let mut again = 0;
    for tries in 1..=TRIES {
        let begun = clock::start();
        match play(fleet, point, ending, (round, tries)).await? {
            Some(Err(violation)) if ending == Ending::Frozen && again < AGAIN && fleet.was_late(begun) => {
                eprintln!("the machine was busy, so the round is played again: {violation}");
                again += 1;
            }
            Some(judged) => return Ok(judged),
            None => {}
        }
    }
    Err(Problem::new(format!("no process reached {point} early enough in {TRIES} tries")))
}

/// Plays one round: pauses a process at the point, kills or freezes it there, and makes the next deliveries.
/// Returns `None` if the process was too slow to reach the point.
async fn play(
    fleet: &Arc<Fleet>,
    point: Point,
    ending: Ending,
    (round, tries): (u32, u32),
) -> Result<Option<Judged>> {
    let limit = LIMIT * if fleet.is_sabotaged() { LONGEST } else { tries.min(LONGEST) };
    let calls = [Call::Reclaim, Call::Release];
    let first_fails =
        calls.into_iter().any(|call| [Point::Before(call), Point::After(call)].contains(&point));
    let ending_name = if ending == Ending::Killed { "killed" } else { "frozen" };
    let key = format!("{point}-{ending_name}-{round}-{tries}");
    let job = Job { key, before_ms: 2 + u64::from(round % 5), after_ms: 2, first_fails };
    let story = Story::new(Arc::clone(fleet), job);

    match point {
        Point::Before(Call::Reclaim) | Point::After(Call::Reclaim) => drop(story.deliver(limit).await?),
        Point::Before(Call::TakeOver) | Point::After(Call::TakeOver) => {
            let first = Point::After(Call::Claim);
            let interrupted = interrupt(fleet, &story, first, Ending::Killed, limit).await?;
            if matches!(interrupted, Interrupted::TooSlow) {
                return Ok(None);
            }
            story.wait_for_lease().await?;
        }
        _ => {}
    }
    let interrupted = interrupt(fleet, &story, point, ending, limit).await?;
    if matches!(interrupted, Interrupted::TooSlow) {
        return Ok(None);
    }
    story.deliver(limit).await?; // Usually, the interrupted run's lease hasn't ended yet.
    story.deliver_until_answered().await?;
    if let Interrupted::Frozen(frozen) = interrupted {
        clock::pause_until(frozen.stale_at).await;
        story.thaw(*frozen).await?;
    }
    story.deliver(limit).await?;
    judged(fleet, &story, point).await.map(Some)
}

/// Judges a round.
async fn judged(fleet: &Fleet, story: &Story, point: Point) -> Result<Judged> {
    let case = story.case(fleet.form().promise()).await?;
    let judged = case.judge().and_then(|finding| {
        let has_gap = fleet.form().promise() == Promise::AtLeastOnce;
        let expected = 1 + u64::from(has_gap && point.is_in_the_gap());
        match finding.effects == expected + finding.slow {
            true => Ok(finding),
            false => Err(case.violation(&format!("{} effects, expected {expected}", finding.effects))),
        }
    });
    if judged.is_ok() {
        fleet.effects.forget(&case.key).await?;
    }
    Ok(judged)
}

/// Starts a process, waits until it pauses at the point, and kills or freezes it there.
async fn interrupt(
    fleet: &Fleet,
    story: &Story,
    point: Point,
    ending: Ending,
    limit: Duration,
) -> Result<Interrupted> {
    let _slot = fleet.slot().await?;
    let mut process = fleet.start(Some(point)).await?;
    let delivered_at = clock::now_ms();
    let mut handed = story.hand_to(&mut process, limit);
    if let Some(said) = process.stands(&mut handed).await? {
        story.note(&handed, Deed::Spared, said);
        return Ok(Interrupted::TooSlow);
    }
    // Freeze only a process that reached the point in the first half of its time. A later one could run out of time
    // before the freeze stops it, so kill it, and let the caller try again.
    if ending == Ending::Frozen && clock::now_ms() > delivered_at + clock::millis(limit / 2) {
        story.kill(process, handed).await?;
        return Ok(Interrupted::TooSlow);
    }
    match ending {
        Ending::Killed => story.kill(process, handed).await.map(|_| Interrupted::Killed),
        Ending::Frozen => {
            let frozen = story.freeze(process, handed, delivered_at, limit).await?;
            Ok(Interrupted::Frozen(Box::new(frozen)))
        }
    }
}
