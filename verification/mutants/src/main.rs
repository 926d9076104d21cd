//! Runs cargo-mutants' mutants of the library with one build. `scripts/mutants` calls it.
//!
//! cargo-mutants builds the library once for each mutant, which takes a day for all mutants on two cores. This program
//! takes cargo-mutants' list, compiles every mutant behind a switch, and learns which tests reach which mutant. For
//! each mutant, it runs only the tests that reach it, fastest first, until one fails. cargo-mutants itself has to try
//! the mutants that can't have a switch, such as those in a `const` item.

#![allow(clippy::print_stdout, reason = "a command reports on its standard output")]
#![allow(clippy::disallowed_methods, reason = "this tool measures how long tests take")]

mod build;
mod list;
mod run;
mod switch;

use std::{
    collections::HashMap,
    env,
    fmt::{self, Display},
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::run::{Baseline, CHOSEN, Ended, Test};

/// The time limit for a test without a mutant. Tests that take longer aren't used.
const LONGEST: Duration = Duration::from_secs(60);
/// The time limit for all tests of one mutant together. Each test counts with the time that it takes without a mutant.
/// The first test always runs.
const BUDGET: Duration = Duration::from_secs(60);

/// The reason why the program stops with an error.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl Failed {
    pub(crate) fn new(reason: String) -> Self {
        Self(reason)
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<serde_json::Error> for Failed {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("couldn't parse a file of an earlier run: {error}. Remove OUT/learned and OUT/baseline"))
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [list, source, tree, out, selected @ ..] = &arguments[..] else {
        eprintln!(
            "usage: lambda-idempotency-mutants LIST.json SOURCE TREE OUT [FILE …]\nsee scripts/mutants"
        );
        return ExitCode::from(2);
    };
    let worked = work(list, source, tree, out, selected);
    let cleaned = run::clean();
    match worked.and(cleaned.map_err(Failed::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lambda-idempotency-mutants: {error}");
            ExitCode::from(2)
        }
    }
}

/// Tries the mutants of the `selected` files, or of all files if none is selected. Builds them in `folder`, which is a
/// copy of `source`.
///
/// Writes one line per mutant to `out`/outcomes: its outcome, the test that decided it, and its name. If `out`/known
/// has a mutant's line from an earlier run, copies the line instead of trying the mutant.
///
/// Two files are kept for a later run with the same sources and the same list: `out`/learned has the compiler's
/// findings, and `out`/baseline has the results of the tests without a mutant.
fn work(list: &Path, source: &Path, folder: &Path, out: &Path, selected: &[PathBuf]) -> Result<(), Failed> {
    let began = Instant::now();
    let mutants = list::read(list)?;
    fs::create_dir_all(out)?;
    let mut tree = build::Tree::new(source, folder, &mutants)?;
    tree.compile(&out.join("learned"))?;
    let switched = tree.switched();
    let programs = tree.tests()?;
    let tests = run::tests(&programs, folder)?;
    println!(
        "{} tests in {} programs, built after {} s",
        tests.len(),
        programs.len(),
        began.elapsed().as_secs()
    );
    let baseline = baseline(&programs, &tests, folder, out)?;
    println!("{} tests pass without a mutant, after {} s", baseline.passing.len(), began.elapsed().as_secs());
    for test in &baseline.failed {
        println!("test not used, since it fails without a mutant or takes too long: {test}");
    }
    let chosen: Vec<_> = (0..mutants.len())
        .filter(|&id| selected.is_empty() || selected.iter().any(|file| Path::new(&mutants[id].file) == file))
        .collect();
    let known = fs::read_to_string(out.join("known")).unwrap_or_default();
    let known: HashMap<_, _> =
        known.lines().filter_map(|line| Some((line.rsplit_once('\t')?.1, line))).collect();
    let outcomes = Mutex::new(BufWriter::new(File::create(out.join("outcomes"))?));
    run::in_parallel(chosen.len(), |nth| {
        let id = chosen[nth];
        let name = &mutants[id].name;
        let line = match (tree.uncompiled(id), known.get(&**name)) {
            (Some(reason), _) => format!("uncompiled\t{}\t{name}", reason.replace(['\n', '\t'], " ")),
            (None, _) if !switched.contains(&id) => format!("unswitched\t-\t{name}"),
            (None, Some(known)) => (*known).to_owned(),
            (None, None) => format!("{}\t{name}", tried(id, &baseline, folder)?),
        };
        if let Ok(mut outcomes) = outcomes.lock() {
            writeln!(outcomes, "{line}")?;
            outcomes.flush()?;
        }
        Ok(())
    })?;
    println!("done after {} s", began.elapsed().as_secs());
    Ok(())
}

/// The results of the tests without a mutant. Reuses an earlier run's results, unless one of the programs is newer.
fn baseline(programs: &[PathBuf], tests: &[Test], folder: &Path, out: &Path) -> Result<Baseline, Failed> {
    let saved = out.join("baseline");
    if let Ok(text) = fs::read_to_string(&saved) {
        let at = fs::metadata(&saved)?.modified()?;
        let is_older = |program: &PathBuf| Ok(fs::metadata(program)?.modified()? < at);
        if programs.iter().map(is_older).collect::<io::Result<Vec<_>>>()?.into_iter().all(|is_older| is_older)
        {
            return Ok(serde_json::from_str(&text)?);
        }
    }
    let baseline = run::baseline(tests, folder, &out.join("reached"), LONGEST)?;
    fs::write(saved, serde_json::to_string(&baseline)?)?;
    Ok(baseline)
}

/// Runs the tests that reach this mutant until one doesn't pass, or the budget is spent.
fn tried(id: usize, baseline: &Baseline, folder: &Path) -> Result<String, Failed> {
    let Some(reaching) = baseline.reaching.get(&id) else { return Ok("unreached\t-".to_owned()) };
    let mut spent = Duration::ZERO;
    for (nth, passing) in reaching.iter().map(|&at| &baseline.passing[at]).enumerate() {
        spent += passing.took;
        if nth > 0 && spent > BUDGET {
            return Ok(format!("missed\tby {nth} of {} tests", reaching.len()));
        }
        let limit = passing.took * 5 + Duration::from_secs(10);
        let chosen = id.to_string();
        let once = || run::run(&passing.test, folder, (CHOSEN, &chosen), limit);
        // A test that failed only because the machine was busy passes the second time.
        let ended = match once()? {
            Ended::Failed => once()?,
            ended => ended,
        };
        let outcome = match ended {
            Ended::Passed => continue,
            Ended::Failed => "caught",
            Ended::TimedOut => "timeout",
        };
        return Ok(format!("{outcome}\t{}", passing.test.described()));
    }
    Ok(format!("missed\tby {} tests", reaching.len()))
}
