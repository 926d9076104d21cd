//! Injects faults on the wire between the stores and their servers: in a proxy between the SDK and DynamoDB,
//! and in front of PostgreSQL and Redis. Under every fault, callers must get true answers, recorded outcomes must
//! stay, and every call must end within its time limit.
//!
//! A run delivers one operation to the real library, or to a function behind the Lambda layer. The library and the
//! layer use the real store, whose requests go through a proxy that breaks some of them. The run then delivers the
//! operation again without faults, and once more when all leases have ended. A judge compares the table's records, the
//! server's answers and the callers' answers.
//!
//! The check first puts every fault on every request of every scenario, one fault at a time. Random runs with up to
//! three faults follow. `long` has the faults that last for seconds. A run's number or seed fixes its plan, but not the timing of threads and sockets. So it may
//! take a few repetitions to see a rare finding again.

mod answer;
mod behind;
pub(crate) mod budget;
mod calls;
mod case;
mod coverage;
mod judge;
mod long;
mod play;
mod report;
mod round;
mod sabotage;
mod scenario;
mod stage;
mod told;
mod watched;
mod way;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lambda_idempotency_rehearsal::{
    clock,
    problem::{Problem, Result},
};
use testkit::random::Random;
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    case::{Case, Retries},
    judge::judge,
    play::play,
    stage::Stage,
};
use crate::{servers::Server, site::Kind};

pub use self::{
    budget::Lateness, coverage::Coverage, long::LongExtent, long::LongFault, long::check_long,
    report::Report, sabotage::Sabotage, way::Medium,
};
pub use lambda_idempotency_rehearsal::wire::{HttpWay, Meaning, Proxy, When};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runs to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every listed case (each fault on each request of each scenario), with the SDK's default retries and without
    /// retries. Then the random runs. Over TCP, there are only the cases without retries.
    Long {
        /// How many random runs.
        runs: usize,
        /// The seed of all random runs.
        seed: u64,
    },
    /// Each kind of fault on each kind of call, without SDK retries, then the random runs.
    Bounded {
        /// How many cases hit each kind of call with each fault, if there are that many.
        of_each: usize,
        /// How many random runs.
        runs: usize,
        /// The seed of all random runs.
        seed: u64,
    },
    /// The random run of this seed.
    Seed(u64),
    /// The listed case with this number.
    Listed(usize),
}

impl Extent {
    /// The extent of an ordinary test run.
    pub const fn bounded(seed: u64) -> Self {
        Self::Bounded { of_each: 1, runs: 200, seed }
    }

    /// Whether every fault must hit every kind of call in these runs.
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Long { .. } | Self::Bounded { .. })
    }

    fn cases(self, medium: Medium) -> Result<Vec<Case>> {
        let random = |runs: usize, seed: u64| {
            let mut random = Random::new(seed);
            std::iter::repeat_with(move || Case::random(random.bits(), medium)).take(runs)
        };
        // The runs without retries come first, so that a number means the same case in `Long` and in `Bounded`.
        let all: &[_] = match medium {
            Medium::Http => &[Retries::None, Retries::Default],
            // The PostgreSQL and Redis stores have no retry setting.
            Medium::Tcp => &[Retries::None],
        };
        Ok(match self {
            Self::Long { runs, seed } => {
                Case::listed(all, medium).into_iter().chain(random(runs, seed)).collect()
            }
            Self::Bounded { of_each, runs, seed } => {
                let some = Case::some_of_each(Case::listed(&all[..1], medium), of_each, seed);
                some.into_iter().chain(random(runs, seed)).collect()
            }
            Self::Seed(seed) => vec![Case::random(seed, medium)],
            Self::Listed(number) => {
                let case = Case::listed(all, medium).into_iter().nth(number);
                // The list for TCP is different and shorter, so it may not have this number.
                let is_needed = medium == Medium::Http;
                if is_needed && case.is_none() {
                    return Err(Problem::new(format!("there's no case {number}")));
                }
                case.into_iter().collect()
            }
        })
    }
}

/// How many runs are under way at once. They mostly wait.
const CONCURRENCY: u32 = 16;
/// How many runs are under way at once on a busy machine.
const AT_LEAST: usize = 2;
/// The maximum number of extra rounds for faults that didn't hit their call. On a busy machine, an unplanned request
/// may take the place of the planned one.
const FILLINGS: u64 = 8;

/// Makes the runs on one server of each kind, and for DynamoDB on every available server. After each server, calls
/// `show` with the server's report.
///
/// # Errors
///
/// If a server doesn't start, or fails without an injected fault.
pub async fn check(kinds: &[Kind], extent: Extent, mut show: impl FnMut(&Report)) -> Result<()> {
    for kind in kinds {
        if *kind == Kind::DynamoDb {
            for server in Server::all().await? {
                let stage = Stage::set(&server, None).await?;
                show(&check_on(&stage, server.name.clone(), extent).await?);
            }
        } else {
            let stage = Stage::start(*kind).await?;
            show(&check_on(&stage, kind.name().to_owned(), extent).await?);
        }
    }
    Ok(())
}

/// Makes the runs with a function that doesn't use the library, behind the Lambda layer, on the embedded DynamoDB.
///
/// # Errors
///
/// As [`check`].
pub async fn check_layer(extent: Extent) -> Result<Report> {
    let server = Server::embedded().await?;
    let stage = Stage::set(&server, None).await?.behind_the_layer();
    check_on(&stage, format!("the layer on {}", server.name), extent).await
}

async fn check_on(stage: &Stage, name: String, extent: Extent) -> Result<Report> {
    let medium = stage.medium();
    let (start, mut report) = (clock::start(), Report::new(name, medium));
    let cases = extent.cases(medium)?;
    let cases = cases.into_iter().filter(|case| stage.subject.plays(case.scenario)).collect();
    make(&mut report, stage, cases).await?;
    for nth in 0..FILLINGS {
        let missing = report.coverage().missing();
        if missing.is_empty() || !extent.is_whole() || report.has_enough() {
            break;
        }
        let listed = Case::listed(&[Retries::None], medium).into_iter();
        let listed =
            listed.filter(|case| stage.subject.plays(case.scenario) && case.reaches_any(&missing)).collect();
        make(&mut report, stage, Case::some_of_each(listed, 2, nth)).await?;
    }
    report.took = start.elapsed();
    Ok(report)
}

/// Makes the runs that must find this sabotage, on the embedded server: with the library, then behind the layer.
///
/// # Errors
///
/// If the server doesn't start, or fails without an injected fault.
pub async fn check_sabotaged(sabotage: Sabotage) -> Result<[Report; 2]> {
    let server = Server::embedded().await?;
    let stage = Stage::set(&server, Some(sabotage)).await?;
    let by_library = find(&stage, sabotage, server.name.clone()).await?;
    let by_layer = find(&stage.behind_the_layer(), sabotage, format!("the layer on {}", server.name)).await?;
    Ok([by_library, by_layer])
}

async fn find(stage: &Stage, sabotage: Sabotage, name: String) -> Result<Report> {
    let mut report = Report::new(name, Medium::Http);
    let cases = Case::listed(&[Retries::None], Medium::Http).into_iter();
    let cases = cases.filter(|case| sabotage.shows_in(case) && stage.subject.plays(case.scenario));
    let cases: Vec<_> = cases.collect();
    // On a busy machine, an unplanned timeout can take the place of the fault that would reveal the sabotage.
    for _ in 0..FILLINGS {
        make(&mut report, stage, cases.clone()).await?;
        if !report.violations().is_empty() {
            break;
        }
    }
    Ok(report)
}

/// Makes these runs.
async fn make(report: &mut Report, stage: &Stage, cases: Vec<Case>) -> Result<()> {
    let lateness = Arc::new(Lateness::watch());
    let places = Arc::new(Semaphore::new(CONCURRENCY as usize));
    let mut running = JoinSet::new();
    for case in cases {
        // A heavy run takes all places, because it keeps a processor busy and would cause timeouts in other runs.
        let wanted = if case.scenario.is_heavy() { CONCURRENCY } else { 1 };
        let place = Arc::clone(&places).acquire_many_owned(wanted).await;
        // Start no run while the machine is too busy: the run would get timeouts that aren't planned.
        while lateness.is_busy() && places.available_permits() + AT_LEAST < CONCURRENCY as usize {
            clock::pause(Duration::from_millis(1)).await;
        }
        let (stage, lateness) = (stage.clone(), Arc::clone(&lateness));
        running.spawn(async move {
            let _place = place;
            let facts = play(&stage, &case, &lateness).await;
            facts.map_err(|problem| Problem::new(format!("{case}: {problem}"))).map(|facts| {
                let verdict = judge(&facts);
                (facts, verdict)
            })
        });
        while let Some(done) = running.try_join_next() {
            report.note(done)?;
        }
        if report.has_enough() {
            break;
        }
    }
    while let Some(done) = running.join_next().await {
        report.note(done)?;
    }
    Ok(())
}
