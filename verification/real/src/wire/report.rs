//! The results of the runs on one server.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    time::Duration,
};

use lambda_idempotency_rehearsal::problem::{Context as _, Result};
use tokio::task::JoinError;

use super::{
    coverage::Coverage,
    judge::{Gap, Verdict, describe},
    play::Facts,
    way::Medium,
};

/// The check stops after this many violations.
const ENOUGH: usize = 300;
/// How many violations the report describes in each scenario.
const TOLD: usize = 2;

/// The results of the runs on one server.
#[derive(Clone, Debug)]
pub struct Report {
    server: String,
    runs: usize,
    requests: usize,
    coverage: Coverage,
    gaps: BTreeMap<Gap, usize>,
    unplanned: usize,
    slowest_call: Slowest,
    slowest_delivery: Slowest,
    pub(super) took: Duration,
    violations: Vec<String>,
    violated: BTreeMap<&'static str, usize>,
}

/// The call or delivery that took the largest share of its time limit.
#[derive(Clone, Copy, Debug, Default)]
struct Slowest {
    took: Duration,
    budget: Duration,
}

impl Slowest {
    fn note(&mut self, took: Duration, budget: Duration) {
        let share = Duration::div_duration_f64;
        if self.budget.is_zero() || share(took, budget) > share(self.took, self.budget) {
            *self = Self { took, budget };
        }
    }
}

impl Report {
    pub(super) fn new(server: String, medium: Medium) -> Self {
        Self {
            server,
            runs: 0,
            requests: 0,
            coverage: Coverage::over(medium),
            gaps: BTreeMap::new(),
            unplanned: 0,
            slowest_call: Slowest::default(),
            slowest_delivery: Slowest::default(),
            took: Duration::ZERO,
            violations: Vec::new(),
            violated: BTreeMap::new(),
        }
    }

    pub(super) fn note(&mut self, done: Result<Result<(Facts, Verdict)>, JoinError>) -> Result<()> {
        let (facts, verdict) = done.context("a run's task failed")??;
        self.runs += 1;
        if self.runs.is_multiple_of(1_000) {
            let violations: usize = self.violated.values().sum();
            eprintln!("{}: {} runs, {violations} violations", self.server, self.runs);
        }
        self.requests += facts.exchanges.len();
        for exchange in &facts.exchanges {
            if let Some(fault) = exchange.fault {
                self.coverage.count(exchange.meaning, fault);
            }
        }
        for call in &facts.calls {
            self.slowest_call.note(call.took, facts.budget_of(call) + call.late);
        }
        let first = facts.first()?;
        self.slowest_delivery.note(first.took, facts.budget_of_first() + first.late);
        for gap in &verdict.gaps {
            *self.gaps.entry(*gap).or_default() += 1;
        }
        self.unplanned += verdict.unplanned;
        if !verdict.violations.is_empty() {
            let count = self.violated.entry(facts.case.scenario.name).or_default();
            *count += 1;
            if *count <= TOLD {
                self.violations.push(describe(&facts, &verdict));
            }
        }
        Ok(())
    }

    /// Whether there are enough violations to stop.
    pub(super) fn has_enough(&self) -> bool {
        self.violated.values().sum::<usize>() >= ENOUGH
    }

    /// Returns descriptions of runs that broke a rule, the first few of each scenario.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Returns how often each fault hit each kind of call.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, runs, requests, coverage, slowest_call, slowest_delivery, .. } = self;
        let ms = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        for (scenario, count) in &self.violated {
            writeln!(f, "{count:6} violations: {scenario}")?;
        }
        // A long fault hits connections, and not single calls.
        if coverage.faults() > 0 {
            writeln!(f, "{coverage}")?;
        }
        writeln!(
            f,
            "{server}: {runs} runs, {} faults, {requests} requests, {} violations; {:.1} s",
            coverage.faults(),
            self.violated.values().sum::<usize>(),
            self.took.as_secs_f64()
        )?;
        writeln!(
            f,
            "slowest store call: {} of {} allowed; slowest delivery: {} of {} allowed; {} calls failed without a fault",
            ms(slowest_call.took),
            ms(slowest_call.budget),
            ms(slowest_delivery.took),
            ms(slowest_delivery.budget),
            self.unplanned
        )?;
        f.write_str("gaps (bad results that the protocol doesn't promise to prevent):")?;
        if self.gaps.is_empty() {
            f.write_str(" none")?;
        }
        for (gap, count) in &self.gaps {
            write!(f, "\n  {count:6} {gap}")?;
        }
        Ok(())
    }
}
