//! Deterministic simulation: the real library, many executors, virtual time, one seed per schedule.
//!
//! A schedule runs without threads and without real sleeps. One scheduler polls the executors' futures in an
//! order that the seed decides, and advances the clock when none of them can continue. The store is the
//! library's own contract ([`Put::apply_to`](lambda_idempotency::store::Put::apply_to)) behind a network that
//! loses and delays messages and makes results ambiguous. [`audit`] checks every store transition, every effect
//! and every answer as it happens.

pub mod audit;
mod by_hand;
pub mod clock;
pub mod config;
pub mod deliveries;
pub mod network;
pub mod outages;
pub mod reached;
pub mod scheduler;
pub mod table;
pub mod trouble;
pub mod undone;
pub mod world;

use std::{fmt, sync::Arc};

use audit::Violation;
use config::Config;
use reached::Reached;
use trouble::Trouble;

/// The result of one schedule.
#[derive(Debug)]
pub struct Report {
    /// The simulated schedule.
    pub config: Config,
    /// One digest of all events, in order. Playing a schedule again gives the same digest.
    pub digest: u64,
    /// The counts.
    pub figures: Figures,
    /// The first violation, if any.
    pub violation: Option<Violation>,
    /// The events in words, if a trace was requested.
    pub trace: Vec<String>,
}

/// The counts of one schedule or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Schedules played.
    pub schedules: u64,
    /// Times that a future was polled.
    pub polls: u64,
    /// Calls to the store.
    pub calls: u64,
    /// Handler runs that had an effect outside a transaction.
    pub effects: u64,
    /// Handlers that started.
    pub operations: u64,
    /// Deliveries that were answered with their own handler's result.
    pub completed: u64,
    /// Effects that repeat the effect of an earlier run of the same operation, each with a known reason.
    pub repeated: u64,
    /// Effects of new operations: the key had an earlier effect, but the retention of that effect's outcome is over.
    pub expired: u64,
    /// Takeovers.
    pub takeovers: u64,
    /// Expired or released records that were replaced.
    pub reclaims: u64,
    /// Completions that were fenced.
    pub fenced: u64,
    /// Transactions that were applied, each with its effect.
    pub committed: u64,
    /// Transactions that weren't applied because a condition on the handler's own writes failed.
    pub declined: u64,
    /// Conclusions: outcomes that were stored without a claim.
    pub concluded: u64,
    /// Transactions that arrived again after they were applied: the store repeats its answer.
    pub repeats_known: u64,
    /// Leases that were extended.
    pub extended: u64,
    /// How often the schedules reached each item.
    pub reached: Reached,
    /// Executors that died.
    pub crashes: u64,
    /// How often each trouble struck, in the order of [`Trouble::ALL`].
    pub struck: [u64; Trouble::ALL.len()],
    /// Outages by length, in tenths of the time that the delivery had left.
    pub outages: [u64; 10],
}

impl Figures {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.polls += other.polls;
        self.calls += other.calls;
        self.effects += other.effects;
        self.operations += other.operations;
        self.completed += other.completed;
        self.repeated += other.repeated;
        self.expired += other.expired;
        self.takeovers += other.takeovers;
        self.reclaims += other.reclaims;
        self.fenced += other.fenced;
        self.committed += other.committed;
        self.declined += other.declined;
        self.concluded += other.concluded;
        self.repeats_known += other.repeats_known;
        self.extended += other.extended;
        self.reached.add(&other.reached);
        self.crashes += other.crashes;
        self.struck.iter_mut().zip(other.struck).for_each(|(all, one)| *all += one);
        self.outages.iter_mut().zip(other.outages).for_each(|(all, one)| *all += one);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, polls, calls, effects, repeated, takeovers, reclaims, fenced, crashes, .. } =
            self;
        let Self { committed, declined, concluded, repeats_known, extended, expired, .. } = self;
        write!(
            f,
            "{schedules} schedules, {polls} polls, {calls} store calls, {effects} effects ({repeated} repeated, each \
             explained; {expired} after the record's expiry), {committed} effects in transactions, {concluded} \
             conclusions without a claim, {declined} declined transactions, {repeats_known} applied transactions sent \
             again, {takeovers} takeovers, {reclaims} reclaims, {extended} extensions, {fenced} fenced, {crashes} \
             crashes"
        )
    }
}

/// Plays one schedule.
pub fn simulate(config: Config, keep_trace: bool) -> Report {
    let audit = Arc::new(audit::Audit::new(config, keep_trace));
    let figures = scheduler::play(config, &audit);
    audit.report(config, figures)
}

/// How many other seeds to try if a smaller schedule with the original seed doesn't break the same rule.
const OTHER_SEEDS: u64 = 30;

/// Makes `config` smaller step by step, for example with fewer executors, keys, deliveries or faults, as long as the
/// schedule still breaks the same rule. Returns the smallest schedule found. With the same seed, a smaller schedule
/// may take another course, so other seeds are tried too.
pub fn shrink(config: Config) -> Config {
    let rule = |config: Config| simulate(config, false).violation.map(|violation| violation.rule);
    let broken = rule(config);
    let fails = |candidate: Config| {
        let other = |nth| Config { seed: candidate.seed.wrapping_add(nth), ..candidate };
        (0..=OTHER_SEEDS).map(other).find(|candidate| rule(*candidate) == broken)
    };
    let mut smallest = config;
    while let Some(smaller) = smallest.smaller().into_iter().find_map(fails) {
        smallest = smaller;
    }
    smallest
}

/// Plays `count` schedules, with consecutive seeds from `first` on, until one has a violation. `adjust` may change
/// each schedule before it's played.
///
/// # Errors
///
/// The report of the first schedule with a violation, shrunk, with its trace.
pub fn campaign(first: u64, count: u64, adjust: impl Fn(Config) -> Config) -> Result<Figures, Box<Report>> {
    let mut figures = Figures::default();
    for seed in first..first.saturating_add(count) {
        let report = simulate(adjust(Config::from_seed(seed)), false);
        if report.violation.is_some() {
            return Err(Box::new(simulate(shrink(report.config), true)));
        }
        figures.add(&report.figures);
    }
    Ok(figures)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.violation {
            None => write!(f, "{}: no violation ({})", self.config, self.figures),
            Some(violation) => {
                writeln!(f, "{violation}")?;
                for line in &self.trace {
                    writeln!(f, "    {line}")?;
                }
                write!(f, "replay: verification replay '{}'", self.config)
            }
        }
    }
}
