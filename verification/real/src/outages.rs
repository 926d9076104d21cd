//! Takes servers down while handlers return. Every outcome must be recorded, and nothing may run twice.
//!
//! Sandboxes, each with its own store, run operations with the real library. When all handlers of a round are
//! running, and each invocation has 30 s left, the server fails. Each handler returns at a random time, shortly
//! before the outage or during it. The round ends when every caller has its answer. The check then reads each
//! record, and delivers each key once more with a clock that is ahead of all leases. If an outcome was lost, that
//! delivery runs the handler again.
//!
//! The check counts the effects outside of the library. The seed fixes the rounds: what happens to the server,
//! for how long, and when each handler returns. The seed doesn't fix the timing of threads and sockets.

mod gate;
mod report;
mod sandbox;
mod trouble;

use std::{sync::Arc, time::Duration};

use lambda_idempotency::{
    store::Store,
    time::{Clock as _, Timestamp, system_clock},
};
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Problem, Result},
};
use testkit::random::Random;
use tokio::task::JoinSet;

use self::{
    report::Evidence,
    sandbox::{Bell, Ledger, Operation, Run, Sandbox, TIME_LEFT},
    trouble::{Outage, Victim, length},
};

pub use self::{report::Figures, trouble::Trouble};

/// How many operations run at once, each in its own sandbox.
const SANDBOXES: u32 = 50;
/// The clock of each key's last delivery is ahead by this much: longer than any lease with its margin, and shorter than
/// any retention.
const UNTIL_ALL_LEASES_END: Duration = Duration::from_secs(90);
/// How long a round waits between starting its handlers and ringing the [`Bell`].
const ARRIVAL: Duration = Duration::from_secs(1);
/// How much longer the handlers may take to start on a busy machine.
const LATENESS: Duration = Duration::from_secs(5);
/// How many times to check whether a server is back, 100 ms apart.
const PATIENCE: u32 = 300;
/// The first handlers return this long before the outage, so that the outage begins while the library records outcomes.
const LEAD: Duration = Duration::from_millis(30);

/// The size of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many operations each store gets.
    pub operations: u32,
    /// The seed of the rounds.
    pub seed: u64,
    /// How long the library tries to record outcomes. `None` means its default. If this time is shorter than an
    /// outage, the check must report lost outcomes.
    pub settle_within: Option<Duration>,
}

impl Extent {
    /// The size for every CI run: one round.
    pub const fn quick(seed: u64) -> Self {
        Self { operations: SANDBOXES / 2, seed, settle_within: None }
    }
}

/// Takes the servers of all `troubles` down at the same time, and returns the figures in the order of `troubles`.
///
/// # Errors
///
/// If a server doesn't start, doesn't come back, or fails outside of its outages.
pub async fn check(troubles: &[Trouble], extent: Extent) -> Result<Vec<Figures>> {
    let mut running = JoinSet::new();
    for (nth, trouble) in troubles.iter().copied().enumerate() {
        running.spawn(async move {
            let figures = on_one(trouble, extent).await;
            (nth, figures.map_err(|problem| Problem::new(format!("{trouble}: {problem}"))))
        });
    }
    let mut all = running.join_all().await;
    all.sort_by_key(|(nth, _)| *nth);
    all.into_iter().map(|(_, figures)| figures).collect()
}

async fn on_one(trouble: Trouble, extent: Extent) -> Result<Figures> {
    let begun = clock::start();
    let mut victim = Victim::start(trouble).await?;
    let mut sandboxes = Vec::new();
    for _ in 0..SANDBOXES.min(extent.operations) {
        let store = victim.site.store_at(victim.address()?).await?;
        sandboxes.push(Sandbox::new(store, Duration::ZERO, extent.settle_within)?);
    }
    let mut warming = JoinSet::new();
    for (nth, sandbox) in sandboxes.iter().cloned().enumerate() {
        warming.spawn(async move { sandbox.warm_up(nth).await });
    }
    warming.join_all().await.into_iter().collect::<Result<()>>()?;
    let direct = victim.site.direct().await?;
    let later = Sandbox::new(Arc::clone(&direct), UNTIL_ALL_LEASES_END, None)?;
    let (ledger, mut random) = (Ledger::default(), Random::new(extent.seed));
    let mut figures = Figures::new(trouble, extent.seed);
    let mut next = 0;
    while next < extent.operations {
        let last = extent.operations.min(next + SANDBOXES);
        let outages = trouble.round(&mut random);
        figures.outages += outages.len() as u64;
        let begins = system_clock().now().saturating_add(ARRIVAL);
        let deadline = begins.saturating_add(TIME_LEFT);
        let operation = |nth| Operation {
            key: format!("operation-{nth}"),
            returns_after: random_part(LEAD + length(&outages), &mut random),
            deadline,
        };
        let operations: Vec<_> = (next..last).map(operation).collect();
        let runs = round(&mut victim, &sandboxes, &ledger, &outages, begins, operations).await?;
        is_back(&*direct, &later).await?;
        for (operation, run) in runs {
            figures.note(&evidence(&*direct, &later, &ledger, operation, run).await?);
        }
        next = last;
    }
    figures.took = begun.elapsed();
    Ok(figures)
}

/// Draws a random duration from zero to `of`.
fn random_part(of: Duration, random: &mut Random) -> Duration {
    Duration::from_millis(random.between(0, u64::try_from(of.as_millis()).unwrap_or(u64::MAX)))
}

/// Runs these operations, one per sandbox. Rings the bell at `begins`, and starts these outages [`LEAD`] later.
async fn round(
    victim: &mut Victim,
    sandboxes: &[Sandbox],
    ledger: &Ledger,
    outages: &[Outage],
    begins: Timestamp,
    operations: Vec<Operation>,
) -> Result<Vec<(Operation, Run)>> {
    let (bell, ringer) = Bell::new();
    let count = u32::try_from(operations.len()).context("too many operations in a round")?;
    let mut running = JoinSet::new();
    for (operation, sandbox) in operations.into_iter().zip(sandboxes) {
        let (sandbox, bell, ledger) = (sandbox.clone(), bell.clone(), ledger.clone());
        running.spawn(async move {
            let run = sandbox.deliver(&operation, &bell, &ledger).await;
            run.map(|run| (operation, run))
        });
    }
    let arrived = tokio::time::timeout(ARRIVAL + LATENESS, bell.all_are_there(count)).await;
    arrived.map_err(|_| Problem::new("the machine is too busy: the handlers didn't start"))??;
    clock::pause(system_clock().now().until(begins)).await;
    ringer.send_replace(Some(clock::start()));
    clock::pause(LEAD).await;
    victim.suffer(outages).await?;
    running.join_all().await.into_iter().collect()
}

/// Waits until the server answers.
async fn is_back(direct: &dyn Store, sandbox: &Sandbox) -> Result<()> {
    let key = sandbox.stored("nobody's")?;
    let mut last = None;
    for _ in 0..PATIENCE {
        match direct.read(&key).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        clock::pause(Duration::from_millis(100)).await;
    }
    Err(Problem::new(format!("the server doesn't answer after its outage: {last:?}")))
}

/// Reads an operation's record, delivers its key once more, and collects the results.
async fn evidence(
    direct: &dyn Store,
    later: &Sandbox,
    ledger: &Ledger,
    Operation { key, .. }: Operation,
    run: Run,
) -> Result<Evidence> {
    let record = direct.read(&later.stored(&key)?).await.context("couldn't read the record")?;
    let effects = ledger.effects_of(&key);
    let again = later.deliver_now(&key, ledger).await?;
    Ok(Evidence {
        status: record.map(|record| record.status().as_str().to_owned()),
        effects,
        again,
        effects_in_the_end: ledger.effects_of(&key),
        run,
        key,
    })
}
