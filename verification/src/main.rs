//! The command `verification`: runs the exploration, the mutants, the comparison with Powertools and the simulation,
//! and prints their figures.

#![expect(clippy::print_stdout, reason = "this command prints its results")]

use std::{
    path::Path,
    process::{Command, ExitCode},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lambda_idempotency_verification::{
    configuration::Configuration,
    coverage::Coverage,
    explore::{Limits, Report, explore, explore_all},
    mutants::{self, Mutant},
    powertools::{self, Powertools},
    recorded::Recorded,
    report,
    simulation::{
        self,
        config::Config,
        outages,
        trouble::{OUTAGES, Outage, outage_named},
    },
    spaces, stamp,
    under_test::Shipping,
};

const USAGE: &str = "\
usage: verification explore [--long] [--record FILE] [--space NAME] [--jobs N]
       verification stamp
       verification mutants [NAME]
       verification powertools [--traces]
       verification simulate [COUNT [FIRST-SEED]]
       verification campaign [FAULT] [COUNT [FIRST-SEED]]
       verification replay 'seed=NUMBER …'

  explore   explores every state of the bounded spaces. --long adds the large spaces, which need up to 6 GB
            each. --jobs sets how many spaces are explored at a time (default 2). --space selects the spaces
            whose names contain NAME. --record skips the spaces that FILE lists as explored under the same
            rules, and adds to FILE each space that is explored completely and without a violation
  stamp     prints the SHA-256 of the code of the rules and of the model checker
  mutants   explores every mutant, and shows the invariant that catches it. With NAME, it explores only the
            mutants whose names contain NAME, and also shows their traces
  powertools
            compares Powertools' protocol with this library's; --traces shows how each invariant breaks
  simulate  plays COUNT schedules (default 100,000) with the shipped library in virtual time, one for each
            seed from FIRST-SEED (default 0) on. It shrinks the first schedule with a violation, and prints a
            line that replays the shrunk schedule
  campaign  plays COUNT schedules (default 1,000,000) with outages of one FAULT and no other faults. Each outage
            is shorter than the time that its delivery has left. Without FAULT, it plays COUNT schedules for
            each fault: lost-requests, lost-answers, throttles, conflicts, errors-500, refusals, silence. No
            effect may repeat, and every operation must complete
  replay    plays one schedule, and prints its trace

Exit code 1 means a violation, an exploration that was cut off, a file that couldn't be read or written, or an
expected result that's missing. Exit code 2 means wrong arguments.";

/// The memory limit of each space, in bytes. The exploration of a space that needs more is cut off. By default, two
/// spaces are explored at a time. Each can exceed the limit for a short time: while a table of visited states grows,
/// the old and the new table are both in memory.
const MOST_MEMORY: usize = 6_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_good = match arguments.as_slice() {
        ["explore", options @ ..] => match Options::from(options) {
            Some(options) => exploration(&options),
            None => return usage(),
        },
        ["stamp"] => show_stamp(),
        ["mutants"] => every_mutant(None),
        ["mutants", name] => every_mutant(Some(name)),
        ["powertools"] => comparison(false),
        ["powertools", "--traces"] => comparison(true),
        ["simulate"] => simulation(100_000, 0),
        ["simulate", count] => match counted(count) {
            Some(count) => simulation(count, 0),
            None => return usage(),
        },
        ["simulate", count, first] => match (counted(count), first.parse()) {
            (Some(count), Ok(first)) => simulation(count, first),
            _ => return usage(),
        },
        ["campaign", rest @ ..] => match Campaign::from(rest) {
            Some(campaign) => campaign.play(),
            None => return usage(),
        },
        ["replay", line] => match line.parse() {
            Ok(config) => replay(config),
            Err(why) => {
                println!("{why}");
                return ExitCode::from(2);
            }
        },
        _ => return usage(),
    };
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Parses a count of schedules. Rejects zero, which would check nothing.
fn counted(count: &str) -> Option<u64> {
    count.parse().ok().filter(|count| *count > 0)
}

fn usage() -> ExitCode {
    println!("{USAGE}");
    ExitCode::from(2)
}

struct Options<'a> {
    is_long: bool,
    space: Option<&'a str>,
    record: Option<&'a str>,
    jobs: usize,
}

impl<'a> Options<'a> {
    fn from(arguments: &[&'a str]) -> Option<Self> {
        let mut options = Self { is_long: false, space: None, record: None, jobs: 2 };
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            match argument {
                "--long" => options.is_long = true,
                "--space" => options.space = Some(rest.next()?),
                "--record" => options.record = Some(rest.next()?),
                "--jobs" => options.jobs = rest.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn exploration(options: &Options<'_>) -> bool {
    let all = if options.is_long { spaces::long() } else { spaces::bounded() };
    let mut spaces = all.clone();
    spaces.retain(|space| options.space.is_none_or(|name| space.name.contains(name)));
    if spaces.is_empty() {
        println!("no space's name contains the given NAME");
        return false;
    }
    let recorded = match options.record.map(|file| recorded(file, &all)).transpose() {
        Ok(recorded) => recorded,
        Err(error) => {
            println!("couldn't read the source files of the rules and the model checker: {error}");
            return false;
        }
    };
    let mut reached = recorded.as_ref().map_or(Coverage::NONE, Recorded::reached);
    if let Some(recorded) = &recorded {
        let before = spaces.len();
        spaces.retain(|space| !recorded.has(space));
        println!("{} of {before} spaces were already explored under these rules\n", before - spaces.len());
    }
    println!("{}", report::EXPLORED);
    let limits = Limits { memory: MOST_MEMORY, go_on: true, ..Limits::default() };
    let (clock, recorded, is_written) = (clock(), Mutex::new(recorded), AtomicBool::new(true));
    let reports = explore_all(&Shipping, &spaces, limits, options.jobs, &clock, &|report| {
        println!("{}", report::explored(report));
        is_written.fetch_and(write_down(&recorded, &spaces, report), Ordering::Relaxed);
    });
    println!("{}\n\nwall clock: {:.1} s\n", report::total(&reports), clock().as_secs_f64());
    for report in &reports {
        reached.add(report.coverage);
        show(report);
    }
    println!("{}", report::coverage(reached));
    let is_whole = options.space.is_some() || reached.missing().next().is_none();
    for report in reports.iter().filter(|report| !report.is_complete) {
        println!("{}: the exploration was cut off, so it proves nothing", report.name);
    }
    is_whole
        && is_written.into_inner()
        && reports.iter().all(|report| report.violations.is_empty() && report.is_complete)
}

fn recorded(file: &str, spaces: &[Configuration]) -> std::io::Result<Recorded> {
    let commit =
        Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(stamp::root()).output();
    let commit = commit.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.as_deref().map(str::trim).filter(|commit| !commit.is_empty()).unwrap_or("unknown");
    let mut recorded = Recorded::open(Path::new(file), commit.to_owned())?;
    recorded.keep(spaces);
    Ok(recorded)
}

/// Adds the report to the file of explored spaces, if `--record` names one. Returns false if the file couldn't be
/// written.
fn write_down(recorded: &Mutex<Option<Recorded>>, spaces: &[Configuration], report: &Report) -> bool {
    let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
    let space = spaces.iter().find(|space| space.name == report.name);
    if let (Some(recorded), Some(space)) = (recorded.as_mut(), space)
        && let Err(error) = recorded.add(space, report)
    {
        println!("{}: explored, but not added to the file: {error}", report.name);
        return false;
    }
    true
}

fn show_stamp() -> bool {
    match stamp::stamp(&stamp::root()) {
        Ok(stamp) => println!("{stamp}"),
        Err(error) => {
            println!("couldn't read the source files of the rules and the model checker: {error}");
            return false;
        }
    }
    true
}

fn every_mutant(name: Option<&str>) -> bool {
    println!(
        "| mutant | caught by | other broken invariants | explored states | time |\n|---|---|---|---:|---:|"
    );
    let wanted = |mutant: &Mutant| name.is_none_or(|name| mutant.name.contains(name));
    let mut is_good = mutants::all().iter().chain(&mutants::implied()).any(wanted);
    if !is_good {
        println!("no mutant's name contains the given NAME");
    }
    for mutant in mutants::all().into_iter().filter(wanted) {
        let report = timed(&mutant);
        let caught = report.violations.iter().any(|violation| violation.invariant == mutant.caught_by);
        is_good &= caught;
        let also = report.violations.iter().map(|violation| violation.invariant);
        let also: Vec<_> =
            also.filter(|&other| other != mutant.caught_by).map(|other| other.name()).collect();
        let by = if caught { mutant.caught_by.name() } else { "**not by the expected invariant**" };
        println!(
            "| {} | {by} | {} | {} | {:.3} s |",
            mutant.name,
            also.join(", "),
            report::grouped(report.states),
            report.took.as_secs_f64()
        );
        if name.is_some() {
            show(&report);
        }
    }
    println!("\nRedundant conditions (removing any one of them breaks nothing):\n");
    for mutant in mutants::implied().into_iter().filter(wanted) {
        let spaces = mutants::spaces_of_implied();
        let reports: Vec<_> = spaces.iter().map(|space| explore(&mutant, space, Limits::default())).collect();
        let is_implied = reports.iter().all(|report| report.violations.is_empty());
        is_good &= is_implied;
        let found = if is_implied { "no violation" } else { "**a violation**: no longer redundant" };
        let states: usize = reports.iter().map(|report| report.states).sum();
        println!("- {}: {} explored states, {found}", mutant.name, report::grouped(states));
        reports.iter().for_each(show);
    }
    is_good
}

fn timed(mutant: &Mutant) -> Report {
    let clock = clock();
    let report = explore(mutant, &(mutant.space)(), Limits::default());
    Report { took: clock(), ..report }
}

/// The two platforms of the comparison. The name of each compared space begins with its platform's name.
const PLATFORMS: [&str; 2] = ["ordinary Lambda", "Managed Instances"];

fn comparison(with_traces: bool) -> bool {
    let (clock, limits) = (clock(), Limits { go_on: true, ..Limits::default() });
    let spaces: &[Configuration] = &powertools::spaces();
    let ours = explore_all(&Shipping, spaces, limits, 2, &clock, &|_| {});
    let theirs = explore_all(&Powertools, spaces, limits, 2, &clock, &|_| {});
    println!("{}", report::EXPLORED);
    for report in ours.iter().chain(&theirs) {
        println!("{}", report::explored(report));
    }
    let names = ["lambda-idempotency", "Powertools for AWS Lambda"];
    for platform in PLATFORMS {
        let on_it = |reports: &[Report]| {
            reports.iter().filter(|report| report.name.starts_with(platform)).cloned().collect::<Vec<_>>()
        };
        let both: [Vec<Report>; 2] = [on_it(&ours), on_it(&theirs)];
        let exempt = [&[], powertools::NOT_APPLICABLE];
        let table = report::compared(names, exempt, powertools::UNTRIED, [&both[0], &both[1]]);
        println!("\n{platform}:\n\n{table}\n");
    }
    if with_traces {
        theirs.iter().for_each(show);
    }
    ours.iter().for_each(show);
    ours.iter().all(|report| report.violations.is_empty())
        && theirs.iter().all(|report| !report.violations.is_empty())
}

/// A run of at least this many schedules must reach every [`Item`](simulation::reached::Item).
const ENOUGH_TO_REACH_ALL: u64 = 20_000;

/// Plays the schedules in two threads, half of them in each.
fn simulation(count: u64, first: u64) -> bool {
    let clock = clock();
    let half = count / 2;
    let halves = std::thread::scope(|scope| {
        let other = scope.spawn(|| simulation::campaign(first + half, count - half, |config| config));
        let one = simulation::campaign(first, half, |config| config);
        [Some(one), other.join().ok()]
    });
    let mut figures = simulation::Figures::default();
    for half in halves {
        match half {
            Some(Ok(half)) => figures.add(&half),
            Some(Err(report)) => {
                println!("{report}");
                return false;
            }
            None => {
                println!("the simulation panicked");
                return false;
            }
        }
    }
    println!("{figures}; no violations, {:.1} s\n", clock().as_secs_f64());
    println!("{}", figures.reached);
    let missing: Vec<_> = figures.reached.missing().collect();
    if count >= ENOUGH_TO_REACH_ALL && !missing.is_empty() {
        println!("\nnever reached: {}", missing.join(", "));
        return false;
    }
    true
}

/// The options of `campaign`.
struct Campaign {
    outages: Vec<Outage>,
    count: u64,
    first: u64,
}

impl Campaign {
    fn from(arguments: &[&str]) -> Option<Self> {
        let (outages, numbers) = match arguments {
            [name, numbers @ ..] if name.parse::<u64>().is_err() => (vec![outage_named(name)?], numbers),
            numbers => (OUTAGES.to_vec(), numbers),
        };
        let numbers: Option<Vec<u64>> = numbers.iter().map(|number| number.parse().ok()).collect();
        let (count, first) = match *numbers? {
            [] => (1_000_000, 0),
            [count] => (count, 0),
            [count, first] => (count, first),
            _ => return None,
        };
        (count > 0).then_some(Self { outages, count, first })
    }

    fn play(&self) -> bool {
        let clock = clock();
        for &outage in &self.outages {
            match outages::play(outage, self.first, self.count) {
                Ok(figures) => println!("{}", outages::told(outage, &figures)),
                Err(Some(report)) => {
                    println!("{report}");
                    return false;
                }
                Err(None) => {
                    println!("the simulation panicked");
                    return false;
                }
            }
        }
        println!("no violations, {:.1} s", clock().as_secs_f64());
        true
    }
}

fn replay(config: Config) -> bool {
    let report = simulation::simulate(config, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    println!("digest {:016x}", report.digest);
    let is_good = report.violation.is_none();
    println!("{}", simulation::Report { trace: Vec::new(), ..report });
    is_good
}

fn show(report: &Report) {
    for violation in &report.violations {
        println!("{}: {}\n{}", report.name, violation.invariant.promise(), violation.trace);
    }
}

/// Starts a clock. The returned function returns the time that has passed since the start.
#[expect(clippy::disallowed_methods, reason = "it measures the model checker, not the library")]
fn clock() -> impl Fn() -> Duration + Sync {
    let start = Instant::now();
    move || start.elapsed()
}
