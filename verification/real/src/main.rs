//! `verification-real` runs the long forms of the checks on real servers, sockets and processes, and prints figures.

#![expect(clippy::print_stdout, reason = "a command-line tool prints its results")]

use std::{process::ExitCode, str::FromStr};

use lambda_idempotency_rehearsal::problem::{Problem, Result};
use lambda_idempotency_verification_real::{
    agreement::{self, Numbers},
    crash::{self, backend::Backend, form::Form, kills, point::of_form, scenario},
    deadlines,
    servers::VARIABLE,
    site::Kind,
    wire::{self, Extent, LongExtent, LongFault},
};
use testkit::random::fresh_seed;

const USAGE: &str = "\
usage: verification-real agreement [--long]
       verification-real wire [layer] [RUNS [SEED]] | wire [layer] --quick | wire [layer] --seed N | wire [layer] --case N
       verification-real wire long [OPERATIONS [SEED]]
       verification-real crash-points [FORM] [ROUNDS]
       verification-real kills [FORM] [COUNT [SEED]]
       verification-real deadlines [INVOCATIONS [SEED]] | deadlines --quick

  agreement     compares every store (memory, DynamoDB, PostgreSQL, Redis) with the model, and checks that every race
                has one winner
  wire          breaks the wire to DynamoDB, PostgreSQL and Redis, and between the Lambda layer and DynamoDB, and checks
                that callers get true answers and that recorded outcomes stay. Makes runs with each fault alone, then
                RUNS random runs (default 10000). --quick makes fewer of both; --seed and --case repeat one run. With
                `layer`, it breaks only the wire between the Lambda layer and DynamoDB. With `long`, it restarts,
                throttles or disconnects the servers while OPERATIONS handlers (default 1000) return, with 30 s
                left, and checks that no outcome is lost
  crash-points  kills one process and freezes another beyond its lease, at each named point, ROUNDS times (default 200).
                Checks that each operation has one effect, plus one for each crash between effect and completion
  kills         at random moments, kills COUNT processes (default 10000) and freezes others. Checks that each operation
                has only the effects that crash-points allows
  deadlines     breaks the wire in 20 ways during invocations of 3 s, INVOCATIONS (default 50) for each way and store.
                Checks that each invocation gives a true answer in time

FORM says where the effect and the record are. `ledger` (default): the effect is in a file outside any transaction, and
the record is in DynamoDB. `postgres` and `redis`: the effect is in a file, and the record is in that store.
`transaction`: the effect is in the completion's own transaction. `optimistic`: the effect is written with the finished
record, without a claim. `postgres-transaction`: one PostgreSQL transaction writes the effect and the record. With
`transaction`, `optimistic` and `postgres-transaction`, each operation has exactly one effect, despite every crash.
`layer`: as `ledger`, but a plain function behind the Lambda layer has the effect. `layer` is for `kills` only.
`reconciled`, `reconciled-postgres` and `reconciled-redis`: the effect is a charge at a gateway without deduplication,
which loses answers and applies some charges late, and a reconciler asks it. Each key has one charge. `kills reconciled`
then kills a fifth as many processes in each of two more forms: `reconciled-late`, where charges are on their way for
longer than `effects_arrive_within`, and `unreconciled`, where nobody asks.

DynamoDB servers: the embedded one, and those that are named in the environment variable";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let takes_form = matches!(arguments.first(), Some(&("crash-points" | "kills")));
    let form = arguments.get(1).filter(|_| takes_form).and_then(|name| Form::named(name));
    if form.is_some() {
        arguments.remove(1);
    }
    run(&arguments, form.unwrap_or_default()).await.unwrap_or_else(|problem| {
        eprintln!("verification-real: {problem}");
        ExitCode::from(2)
    })
}

async fn run(arguments: &[&str], form: Form) -> Result<ExitCode> {
    let fresh = fresh_seed();
    match arguments {
        ["agreement"] => agree(Numbers::BOUNDED).await,
        ["agreement", "--long"] => agree(Numbers::LONG).await,
        ["wire", "layer", extent @ ..] => match extent_of(extent, fresh) {
            Some(extent) => break_the_wire(&[], extent).await,
            None => Ok(usage(arguments)),
        },
        ["wire", "long", rest @ ..] => match numbers_of(rest, 1_000, fresh) {
            Some((operations, seed)) => {
                break_for_long(LongExtent { operations, seed, settle_within: None }).await
            }
            None => Ok(usage(arguments)),
        },
        ["wire", extent @ ..] => match extent_of(extent, fresh) {
            Some(extent) => break_the_wire(&Kind::ALL, extent).await,
            None => Ok(usage(arguments)),
        },
        ["crash-points"] => crash_points(200, form).await,
        ["crash-points", rounds] => match count(rounds) {
            Some(rounds) => crash_points(rounds, form).await,
            None => Ok(usage(arguments)),
        },
        ["deadlines", "--quick"] => keep_deadlines(deadlines::Extent::quick(fresh)).await,
        ["deadlines", rest @ ..] => match numbers_of(rest, 50, fresh) {
            Some((of_each, seed)) => {
                keep_deadlines(deadlines::Extent { of_each, seed, knows_deadlines: true }).await
            }
            None => Ok(usage(arguments)),
        },
        ["kills", rest @ ..] => match kills_of(rest, fresh) {
            Some(numbers) => kill(numbers, form).await,
            None => Ok(usage(arguments)),
        },
        _ => Ok(usage(arguments)),
    }
}

/// Reports that the arguments aren't valid, and prints the usage.
fn usage(arguments: &[&str]) -> ExitCode {
    if !arguments.is_empty() {
        let given = arguments.join(" ");
        eprintln!("verification-real: can't run `{given}`: use a command below, with counts of at least 1");
    }
    println!("{USAGE} {VARIABLE} (name=http://host:port …).");
    ExitCode::from(2)
}

/// Parses a count. Zero isn't allowed, since nothing would be tested.
fn count<N: FromStr + Default + PartialEq>(text: &str) -> Option<N> {
    text.parse::<N>().ok().filter(|count| *count != N::default())
}

async fn agree(numbers: Numbers) -> Result<ExitCode> {
    agreement::check(&Kind::ALL, numbers, |agreement| println!("{agreement}")).await?;
    Ok(ExitCode::SUCCESS)
}

fn extent_of(arguments: &[&str], fresh: u64) -> Option<Extent> {
    match arguments {
        [] => Some(Extent::Long { runs: 10_000, seed: fresh }),
        ["--quick"] => Some(Extent::bounded(fresh)),
        ["--seed", seed] => Some(Extent::Seed(seed.parse().ok()?)),
        ["--case", number] => Some(Extent::Listed(number.parse().ok()?)),
        [runs] => Some(Extent::Long { runs: runs.parse().ok()?, seed: fresh }),
        [runs, seed] => Some(Extent::Long { runs: runs.parse().ok()?, seed: seed.parse().ok()? }),
        _ => None,
    }
}

/// Breaks the wire to these kinds of stores, and between the Lambda layer and DynamoDB.
async fn break_the_wire(kinds: &[Kind], extent: Extent) -> Result<ExitCode> {
    println!("{extent:?}");
    let mut is_sound = true;
    let mut show = |report: &wire::Report| {
        println!("{report}");
        is_sound &= report.violations().is_empty();
        is_sound &= !extent.is_whole() || report.coverage().missing().is_empty();
    };
    wire::check(kinds, extent, &mut show).await?;
    show(&wire::check_layer(extent).await?);
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn crash_points(rounds: u32, form: Form) -> Result<ExitCode> {
    let points = of_form(form);
    if points.is_empty() {
        return Err(Problem::new(format!(
            "the form `{0}` has no named points, so `crash-points` would test nothing: use `kills {0}`",
            form.name()
        )));
    }
    let function = crash::build_function().await?;
    let rows = scenario::check(&function, Backend::all(form).await?, points, rounds, None, form).await?;
    let mut server = None;
    for row in &rows {
        if server != Some(&row.server) {
            server = Some(&row.server);
            println!("{}\n{}", row.server, scenario::Row::head());
        }
        println!("{row}");
    }
    Ok(told(rows.iter().flat_map(|row| &row.violations)))
}

fn kills_of(arguments: &[&str], fresh: u64) -> Option<kills::Numbers> {
    match arguments {
        [] => Some(kills::Numbers { kills: 10_000, seed: fresh }),
        [kills] => Some(kills::Numbers { kills: count(kills)?, seed: fresh }),
        [kills, seed] => Some(kills::Numbers { kills: count(kills)?, seed: seed.parse().ok()? }),
        _ => None,
    }
}

async fn kill(numbers: kills::Numbers, form: Form) -> Result<ExitCode> {
    let function = crash::build_function().await?;
    let mut all = Vec::new();
    for &(form, share) in [(form, 1)].iter().chain(form.compared()) {
        let numbers = kills::Numbers { kills: numbers.kills.div_ceil(share), ..numbers };
        for figures in kills::check(&function, Backend::all(form).await?, numbers, None, form).await? {
            println!("{figures}");
            all.push(figures);
        }
    }
    Ok(told(all.iter().flat_map(|figures| &figures.violations)))
}

/// Parses the count and the seed.
fn numbers_of(arguments: &[&str], default: u32, fresh: u64) -> Option<(u32, u64)> {
    match arguments {
        [] => Some((default, fresh)),
        [number] => Some((count(number)?, fresh)),
        [number, seed] => Some((count(number)?, seed.parse().ok()?)),
        _ => None,
    }
}

async fn break_for_long(extent: LongExtent) -> Result<ExitCode> {
    println!("{extent:?}");
    let reports = wire::check_long(&LongFault::ALL, extent).await?;
    reports.iter().for_each(|report| println!("{report}"));
    Ok(code(reports.iter().all(|report| report.violations().is_empty())))
}

async fn keep_deadlines(extent: deadlines::Extent) -> Result<ExitCode> {
    println!("{extent:?}");
    let reports = deadlines::check(&Kind::ALL, extent).await?;
    reports.iter().for_each(|report| println!("{report}"));
    let sum = |of: fn(&deadlines::Report) -> u64| reports.iter().map(of).sum::<u64>();
    println!(
        "{} invocations, {} killed, {} true answers",
        sum(deadlines::Report::invocations),
        sum(deadlines::Report::killed),
        sum(deadlines::Report::honest)
    );
    Ok(code(reports.iter().all(deadlines::Report::is_sound)))
}

const fn code(is_sound: bool) -> ExitCode {
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the violations. Returns failure if there are any.
fn told<'v>(violations: impl Iterator<Item = &'v crash::judge::Violation>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for violation in violations {
        println!("VIOLATION: {violation}");
        code = ExitCode::FAILURE;
    }
    code
}
