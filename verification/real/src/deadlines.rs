//! Breaks the wire to the store in every way during invocations with Lambda's default timeout of 3 s. Each
//! invocation must give a true answer before its deadline.
//!
//! An invocation is a request through the real HTTP layer. The layer uses the real store and its client, which connects
//! to the server through a proxy that breaks the wire. The wire breaks before the claim or when the handler returns. It
//! stays broken for a while or for the rest of the invocation. The handler takes no time. If the harness sees no answer
//! after 3 s, Lambda would have killed the invocation.
//!
//! The judge sees only the caller's answer, when it came, how often the handler ran, and whether its outcome is
//! recorded. The handler's response is true if the handler ran. A 503 is true if the invocation doesn't run the
//! handler, not even after the answer. If the handler ran and the wire recovers before the deadline, the outcome must
//! be recorded. After all leases have ended, the harness delivers the request once more. This delivery must replay the
//! outcome if it's recorded, and otherwise run the handler.
//!
//! The seed fixes the plans, but not the timing of threads and sockets.

mod invocation;
mod judge;
mod plan;
mod report;

use std::{sync::Arc, time::Duration};

use lambda_idempotency::store::Store;
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Problem, Result},
};
use testkit::random::Random;
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    invocation::invoke,
    judge::{Evidence, Verdict},
    plan::{Plan, Way},
};
use crate::{
    site::{Kind, Site},
    wire::budget::Lateness,
};

pub use self::report::Report;

/// How many invocations run at once, on all stores together. They mostly wait.
const CONCURRENCY: usize = 16;
/// How many invocations run at once on a busy machine.
const AT_LEAST: usize = 4;
/// If timers fire late by more than this in total during an invocation, the machine is too busy to answer in time.
const TOO_LATE: Duration = Duration::from_millis(100);
/// The maximum number of repetitions of an invocation, if the machine was too busy or no fault was injected.
const AGAIN: u32 = 5;

/// The size of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many invocations each store gets for each way in which its wire breaks.
    pub of_each: u32,
    /// The seed of the plans.
    pub seed: u64,
    /// Whether the library learns when its invocation ends. If it doesn't, this check must report invocations
    /// that Lambda would kill.
    pub knows_deadlines: bool,
}

impl Extent {
    /// The size for every CI run.
    pub const fn quick(seed: u64) -> Self {
        Self { of_each: 2, seed, knows_deadlines: true }
    }
}

/// The state that all invocations share.
#[derive(Debug)]
struct Stage {
    places: Semaphore,
    lateness: Lateness,
    extent: Extent,
}

/// Makes the invocations on all stores in `kinds` at once, and returns one report per store, in the order of `kinds`.
///
/// # Errors
///
/// If a server doesn't start, or fails without an injected fault.
pub async fn check(kinds: &[Kind], extent: Extent) -> Result<Vec<Report>> {
    let stage = Stage { places: Semaphore::new(CONCURRENCY), lateness: Lateness::watch(), extent };
    let stage = Arc::new(stage);
    let mut running = JoinSet::new();
    for (nth, kind) in kinds.iter().copied().enumerate() {
        let stage = Arc::clone(&stage);
        running.spawn(async move {
            let report = on_one(&stage, kind).await;
            (nth, report.map_err(|problem| Problem::new(format!("{}: {problem}", kind.name()))))
        });
    }
    let mut all = running.join_all().await;
    all.sort_by_key(|(nth, _)| *nth);
    all.into_iter().map(|(_, report)| report).collect()
}

async fn on_one(stage: &Arc<Stage>, kind: Kind) -> Result<Report> {
    let begun = clock::start();
    let site = Arc::new(Site::start(kind).await?);
    let direct = site.direct().await?;
    let mut random = Random::new(stage.extent.seed);
    let mut plans: Vec<_> = (0..stage.extent.of_each)
        .flat_map(|nth| Way::all(kind).into_iter().map(move |way| (nth, way)))
        .map(|(nth, way)| (random.bits(), Plan::random(way, nth, &mut random)))
        .collect();
    // Shuffle the plans, so that invocations with different faults run side by side.
    plans.sort_by_key(|(place, _)| *place);
    let mut report = Report::new(kind);
    let mut running = JoinSet::new();
    for (_, plan) in plans {
        let (stage, site, direct) = (Arc::clone(stage), Arc::clone(&site), Arc::clone(&direct));
        running.spawn(async move {
            let made = make(&stage, &site, &direct, plan).await;
            made.map(|made| (plan, made)).map_err(|problem| Problem::new(format!("{plan}: {problem}")))
        });
    }
    while let Some(made) = running.join_next().await {
        let (plan, made) = made.map_err(|error| Problem::new(error.to_string()))??;
        report.note(&plan, &made.evidence, &made.verdict);
        report.repeated += made.repeated;
    }
    report.took = begun.elapsed();
    Ok(report)
}

/// A finished invocation, its verdict, and how often it was repeated.
struct Made {
    evidence: Evidence,
    verdict: Verdict,
    repeated: u64,
}

async fn make(stage: &Stage, site: &Site, direct: &Arc<dyn Store>, plan: Plan) -> Result<Made> {
    let mut repeated = 0;
    loop {
        let place = stage.places.acquire().await;
        while stage.lateness.is_busy() && stage.places.available_permits() + AT_LEAST < CONCURRENCY {
            clock::pause(Duration::from_millis(1)).await;
        }
        let begun = clock::start();
        let made = invoke(site, direct, plan, stage.extent.knows_deadlines).await?;
        drop(place);
        let is_last = repeated == u64::from(AGAIN);
        let is_busy = stage.lateness.during(clock::start(), begun.elapsed()) > TOO_LATE;
        match made.map(|evidence| (evidence.judge(), evidence)) {
            Some((verdict, evidence)) if is_last || verdict == Verdict::True || !is_busy => {
                return Ok(Made { evidence, verdict, repeated });
            }
            None if is_last => return Err(Problem::new("no fault was injected")),
            _ => repeated += 1,
        }
    }
}
