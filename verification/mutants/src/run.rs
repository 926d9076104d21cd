//! Runs tests, each in its own process: first without a mutant, to learn which mutants each test reaches, and then with
//! one of those mutants chosen.

use std::{
    collections::HashMap,
    env,
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::Failed;

/// The variable with the number of the chosen mutant.
pub(crate) const CHOSEN: &str = "MUTANT";
/// The variable that names the file to which a process writes the mutants that it reaches.
pub(crate) const REACHED: &str = "MUTANTS_REACHED";
/// The variable with the path of a new PostgreSQL server's data, which the tests' servers copy. The testkit reads it.
const POSTGRES_DATA: &str = "IDEMPOTENCY_TEST_POSTGRES_DATA";
/// How many processes run at once.
const WORKERS: usize = 3;

/// One test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) program: PathBuf,
    pub(crate) name: String,
}

impl Test {
    /// The program's name without its hash, and the test's name.
    pub(crate) fn described(&self) -> String {
        let program = self.program.file_name().unwrap_or_default().to_string_lossy();
        format!("{}::{}", program.rsplit_once('-').map_or(&*program, |(name, _)| name), self.name)
    }
}

/// How a test's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Passed,
    Failed,
    TimedOut,
}

/// The tests of these programs.
pub(crate) fn tests(programs: &[PathBuf], folder: &Path) -> Result<Vec<Test>, Failed> {
    let mut all = Vec::new();
    for program in programs {
        let listed = Command::new(program).args(["--list", "--format=terse"]).current_dir(folder).output()?;
        let text = String::from_utf8_lossy(&listed.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        all.extend(names.map(|name| Test { program: program.clone(), name: name.to_owned() }));
    }
    Ok(all)
}

/// Runs one test in its own process group, with this environment variable. Kills the group after `limit`.
pub(crate) fn run(test: &Test, folder: &Path, variable: (&str, &str), limit: Duration) -> io::Result<Ended> {
    let mut child = Command::new(&test.program)
        .args(["--exact", &test.name, "--test-threads=1"])
        .env(variable.0, variable.1)
        .env("CI", "true")
        .env(POSTGRES_DATA, postgres_data())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Ended::Passed } else { Ended::Failed });
        }
        if began.elapsed() > limit {
            Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
            child.wait()?;
            return Ok(Ended::TimedOut);
        }
        thread::sleep(Duration::from_millis(if began.elapsed().as_millis() < 200 { 2 } else { 20 }));
    }
}

fn postgres_data() -> PathBuf {
    env::temp_dir().join(format!("idempotency-mutants-{}.postgres", process::id()))
}

/// Removes the data that the tests' PostgreSQL servers share.
pub(crate) fn clean() -> io::Result<()> {
    let data = postgres_data();
    if data.exists() { fs::remove_dir_all(data) } else { Ok(()) }
}

/// A test that passes without a mutant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Passing {
    pub(crate) test: Test,
    pub(crate) took: Duration,
}

/// The results of the tests without a mutant.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Baseline {
    /// The passing tests, fastest first.
    pub(crate) passing: Vec<Passing>,
    /// For each reached mutant, the positions in `passing` of the tests that reach it.
    pub(crate) reaching: HashMap<usize, Vec<usize>>,
    /// The tests that failed or timed out.
    pub(crate) failed: Vec<String>,
}

/// Runs every test once without a mutant.
pub(crate) fn baseline(
    tests: &[Test],
    folder: &Path,
    logs: &Path,
    limit: Duration,
) -> Result<Baseline, Failed> {
    fs::create_dir_all(logs)?;
    let mut ran: Vec<_> = in_parallel(tests.len(), |nth| {
        let log = logs.join(nth.to_string());
        File::create(&log)?;
        let began = Instant::now();
        let ended = run(&tests[nth], folder, (REACHED, &log.to_string_lossy()), limit)?;
        let reached = fs::read_to_string(&log)?;
        Ok((nth, ended, began.elapsed(), reached))
    })?;
    ran.sort_by_key(|(nth, _, took, _)| (*took, *nth));
    let mut baseline = Baseline::default();
    for (nth, ended, took, reached) in ran {
        if ended != Ended::Passed {
            baseline.failed.push(tests[nth].described());
            continue;
        }
        let at = baseline.passing.len();
        for id in reached.lines().filter_map(|line| line.parse().ok()) {
            baseline.reaching.entry(id).or_default().push(at);
        }
        baseline.passing.push(Passing { test: tests[nth].clone(), took });
    }
    Ok(baseline)
}

/// Calls `work` with each number below `count`, on [`WORKERS`] threads. Returns the results in no particular order.
pub(crate) fn in_parallel<T: Send>(
    count: usize,
    work: impl Fn(usize) -> Result<T, Failed> + Sync,
) -> Result<Vec<T>, Failed> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::new())));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= count {
                        return;
                    }
                    let done = work(nth);
                    let Ok(mut results) = results.lock() else { return };
                    match (&mut *results, done) {
                        (Ok(results), Ok(result)) => results.push(result),
                        (Ok(_), Err(error)) => *results = Err(error),
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
