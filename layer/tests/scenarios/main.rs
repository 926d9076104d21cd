//! Tests the layer in front of functions that don't know of it. The functions use the official runtime clients of five
//! languages, under AWS's Runtime Interface Emulator. The store is a DynamoDB behind a proxy that breaks requests.
//!
//! `layer/tests/install` installs the clients, and `scripts/tools` the emulator. If one of them is missing, the tests
//! that need it say so and are skipped. In CI, they fail instead. Environment variables select runtimes, scenarios and
//! modes by a part of their names: `RUNTIME=python`, `SCENARIO=kill`, `MODE=managed`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![allow(clippy::print_stdout, reason = "the table is the output")]

mod browser;
mod chained;
mod example;
mod ledger;
mod play;
mod rehearsed;
mod report;
mod runtime;
mod rust;
mod sandbox;
mod scenario;
mod speed;
mod table;
mod unpacked;

use std::{collections::BTreeMap, process::ExitStatus, sync::Arc, time::Duration};

use lambda_idempotency_rehearsal::database::Database;
use lambda_idempotency_verification_real::wire::Lateness;
use tokio::{sync::Semaphore, task::JoinSet};

use testkit::tools::tool;

use crate::{
    play::{Stage, TABLE, can_be_lateness},
    report::Report,
    runtime::Runtime,
    sandbox::Mode,
    scenario::{Scenario, Step},
};

/// How many groups of scenarios run at a time. The machine may have fewer cores, since a slow scenario mostly waits.
const AT_ONCE: usize = 8;

/// Whether the environment variable selects `name`: it's unset, or its value is a part of `name`.
fn is_asked(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |part| name.contains(&part))
}

/// Plays these scenarios with these runtimes in both modes, and returns a report. If `layer` is `None`, the functions
/// run without the layer. Returns `None` if the emulator is missing.
async fn play(scenarios: Vec<Scenario>, runtimes: &[Runtime], layer: Option<&str>) -> Option<Report> {
    tool("aws-lambda-rie")?;
    let database = Arc::new(Database::embedded().await.unwrap());
    database.create_idempotency_table(TABLE).await.unwrap();
    let (turns, mut playing) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    let modes: Vec<_> =
        Mode::ALL.into_iter().filter(|mode| is_asked("MODE", mode.name()) && mode.is_possible()).collect();
    for runtime in runtimes
        .iter()
        .copied()
        .filter(|runtime| is_asked("RUNTIME", runtime.name()) && runtime.is_installed())
    {
        for mode in modes.iter().copied() {
            for group in groups(&scenarios, runtime, mode) {
                let (turns, database, layer) =
                    (Arc::clone(&turns), Arc::clone(&database), layer.map(str::to_owned));
                playing.spawn(async move {
                    let _turn = turns.acquire().await.unwrap();
                    let results = play_group(&group, runtime, mode, layer.as_deref(), &database).await;
                    results
                        .into_iter()
                        .map(move |(at, name, result)| (at, name, (runtime, mode), result))
                        .collect::<Vec<_>>()
                });
            }
        }
    }
    let mut report = Report::default();
    while let Some(played) = playing.join_next().await {
        for (at, name, column, result) in played.unwrap() {
            report.add(at, &name, column, result);
        }
    }
    Some(report)
}

/// Groups the scenarios that can share a sandbox: those that have the same configuration and break nothing. Each
/// scenario comes with its position in the table.
fn groups(scenarios: &[Scenario], runtime: Runtime, mode: Mode) -> Vec<Vec<(usize, Scenario)>> {
    let mut groups: BTreeMap<String, Vec<(usize, Scenario)>> = BTreeMap::new();
    let asked = scenarios
        .iter()
        .enumerate()
        .filter(|(_, scenario)| scenario.only.allows(runtime, mode) && is_asked("SCENARIO", &scenario.name));
    for (at, scenario) in asked {
        let is_concurrent =
            scenario.steps.iter().any(|step| matches!(step, Step::AtOnce(..) | Step::Start(..)));
        let is_alone = scenario.writes.is_some()
            || scenario.steps.iter().any(|step| {
                matches!(step, Step::Break(..) | Step::KillLayer | Step::KillFunction | Step::Restart)
            });
        let shared = (scenario.settings, scenario.handler, scenario.timeout, is_concurrent);
        let name = format!("{shared:?} {}", if is_alone { at } else { usize::MAX });
        groups.entry(name).or_default().push((at, scenario.clone()));
    }
    groups.into_values().collect()
}

/// A scenario's position in the table, its name, and its result.
type Played = (usize, String, Result<(), String>);

/// A timer that's this late shows that the machine paused. The emulator counts such a pause toward its timeouts.
const LATE: Duration = Duration::from_millis(50);

/// Plays the group in one sandbox. If the emulator itself ended, plays the group once more, since the emulator isn't
/// under test. If the machine paused, plays some of the failed scenarios once more: those in which a delivery timed
/// out or was refused.
async fn play_group(
    group: &[(usize, Scenario)],
    runtime: Runtime,
    mode: Mode,
    layer: Option<&str>,
    database: &Database,
) -> Vec<Played> {
    let (mut results, end, late) = play_once(group, (runtime, mode), layer, database, "").await;
    let is_again = |result: &Result<(), String>| match result {
        Err(problem) => late > LATE && can_be_lateness(problem),
        Ok(()) => false,
    };
    let again: Vec<_> = match end {
        Some(_) => group.to_vec(),
        None => std::iter::zip(group, &results)
            .filter(|(_, (.., result))| is_again(result))
            .map(|(scenario, _)| scenario.clone())
            .collect(),
    };
    if again.is_empty() {
        return results;
    }
    let column = (runtime.name(), mode.name());
    println!("playing {column:?} again; emulator's end: {end:?}; timer delay: {late:?}; before: {results:?}");
    for played in play_once(&again, (runtime, mode), layer, database, "-again").await.0 {
        if let Some(first) = results.iter_mut().find(|first| first.0 == played.0) {
            *first = played;
        }
    }
    results
}

/// Plays the group. Also returns how the emulator ended, if it did, and the longest delay of a timer.
async fn play_once(
    group: &[(usize, Scenario)],
    (runtime, mode): (Runtime, Mode),
    layer: Option<&str>,
    database: &Database,
    suffix: &str,
) -> (Vec<Played>, Option<ExitStatus>, Duration) {
    let lateness = Lateness::watch();
    let stage = Stage::start(&group[0].1, runtime, mode, layer, database).await;
    let mut results = Vec::new();
    for (at, scenario) in group {
        let short = if mode == Mode::OnDemand { "d" } else { "m" };
        let key = format!("{}-{at}{short}{suffix}", runtime.name());
        let result = stage.play(scenario, &key).await;
        if result.is_err() && std::env::var_os("TELL").is_some() {
            eprintln!(
                "--- {}, {} {}: {result:?}\n{}",
                scenario.name,
                runtime.name(),
                mode.name(),
                stage.told()
            );
        }
        results.push((*at, scenario.name.clone(), result));
    }
    (results, stage.emulators_end(), lateness.longest())
}

fn expect_all_ok(report: Option<Report>) {
    let Some(report) = report else { return };
    println!("\n{}", report.table());
    assert!(report.plays() > 0, "no scenario was played");
    assert_eq!(report.failures(), 0, "FAILED plays");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_without_the_layer_repeat_effects() {
    expect_all_ok(play(table::baseline(), &[Runtime::Python, Runtime::Go], None).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "all runtimes; see layer/tests/install"]
async fn every_runtime_runs_without_the_layer() {
    expect_all_ok(play(table::baseline(), &Runtime::ALL, None).await);
}

/// Shows that the scenarios can fail: without the layer, these scenarios fail.
#[tokio::test(flavor = "multi_thread")]
async fn scenarios_fail_without_the_layer() {
    let names = [
        "duplicate",
        "20 at once",
        "mismatch",
        "error, recorded",
        "no key, refused",
        "SQS duplicates in a batch",
        "http-api: replay",
        "http-api: malformed key, 400",
        "claim in the event",
        "store down: 500",
        "function killed after its answer",
    ];
    let scenarios: Vec<_> =
        table::scenarios().into_iter().filter(|scenario| names.contains(&scenario.name.as_str())).collect();
    assert_eq!(scenarios.len(), names.len(), "a name isn't in the table");
    if let Some(report) = play(scenarios, &[Runtime::Go], None).await {
        println!("\n{}", report.table());
        assert_eq!(report.failures(), report.plays(), "some plays passed without the layer");
    }
}

/// The layer's program, in front of the function's command.
fn layer() -> String {
    format!("{} --", env!("CARGO_BIN_EXE_idempotency-extension"))
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_behind_the_layer_have_one_effect() {
    let short = table::scenarios().into_iter().filter(|scenario| scenario.is_short).collect();
    expect_all_ok(play(short, &[Runtime::Python, Runtime::Go], Some(&layer())).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "all runtimes and all scenarios; see layer/tests/install"]
async fn every_scenario_passes_in_every_runtime() {
    expect_all_ok(play(table::scenarios(), &Runtime::ALL, Some(&layer())).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for a release build of the layer; see layer/scenarios"]
async fn measures_the_cost_of_the_layer() {
    let program =
        std::env::var("LAYER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_idempotency-extension").into());
    if tool("aws-lambda-rie").is_some() && Runtime::Go.is_installed() {
        println!("\n{}", speed::measure(&program).await);
    }
}
