//! Checks a schedule: every store transition, every effect and every answer.

mod answers;
mod ledger;
mod repeats;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lambda_idempotency::{
    ClaimHandle, StoredKey,
    store::{Generation, Outcome, Owner, Put, Record, State},
};
use lambda_idempotency_testing::Call;

use super::{
    Figures, Report,
    config::{Config, SKEW_MARGIN, Sabotage},
    reached::Item,
    table::{Effects, Table},
    trouble::Circumstance,
};

use crate::under_test::{self, Purpose};
use ledger::Ledger;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// A description of the violation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VIOLATION of the rule \"{}\": {}", self.rule, self.what)
    }
}

/// How the run of a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// The delivery was answered with a result.
    Answered,
    /// The delivery was answered with the handler's error.
    Failed,
    /// The library refused the delivery or cut it off.
    Refused,
    /// The process died.
    Crashed,
    /// The caller gave up.
    Dropped,
}

#[derive(Debug)]
struct Run {
    number: usize,
    key: u64,
    stored: StoredKey,
    generation: Generation,
    lease_until: u64,
    had_effect_at: Option<u64>,
    /// Whether the executor's function runs at most once.
    is_at_most_once: bool,
    /// Whether the handler runs without protection because the store failed.
    is_unprotected: bool,
    /// Whether the run has staged its effect for a transaction.
    has_staged: bool,
    /// The time when the handler returned a result.
    handler_ended: Option<u64>,
    /// Whether the handler returned an error.
    has_failed: bool,
    has_panicked: bool,
    was_frozen: bool,
    /// When the last trouble ended: a call to the store that failed or was slow, or a freeze of the process.
    trouble_until: u64,
    /// The time when the platform ends the run's delivery.
    deadline: Option<u64>,
    ended: Option<(u64, Ended)>,
}

/// The protection of a handler's run.
#[derive(Debug)]
pub enum Right {
    /// The run must have a claim. `None` is a violation.
    Claim(Option<ClaimHandle>),
    /// The run has no claim on this key because its operation is optimistic.
    None(StoredKey),
    /// The run has no claim on this key because the store failed.
    Unprotected(StoredKey),
}

impl Run {
    fn new(number: usize, key: u64, stored: StoredKey, generation: Generation, lease_until: u64) -> Self {
        Self {
            number,
            key,
            stored,
            generation,
            lease_until,
            had_effect_at: None,
            is_at_most_once: false,
            is_unprotected: false,
            has_staged: false,
            handler_ended: None,
            has_failed: false,
            has_panicked: false,
            was_frozen: false,
            trouble_until: 0,
            deadline: None,
            ended: None,
        }
    }
}

#[derive(Debug)]
struct Recorded {
    generation: Generation,
    expires_at: u64,
    /// The response's digest, if the response is stored.
    sha256: Option<[u8; 32]>,
}

#[derive(Debug, Default)]
struct Book {
    digest: DefaultHasher,
    trace: Vec<String>,
    violation: Option<Violation>,
    /// For each owner, the executor that drew it, and the number of that executor's delivery.
    owners: HashMap<[u8; 16], (u32, u64)>,
    /// The owners of claims whose executors have sent a release, which shows that they recognised their claims.
    releasing: BTreeSet<[u8; 16]>,
    deliveries: BTreeMap<u32, u64>,
    /// The time when the platform ends an executor's current delivery.
    deadlines: BTreeMap<u32, u64>,
    /// Executors that were frozen in their current delivery.
    frozen: BTreeSet<u32>,
    /// When each generation of a key was granted.
    grants: HashMap<(StoredKey, u64), u64>,
    recorded: HashMap<StoredKey, Vec<Recorded>>,
    released: BTreeSet<(StoredKey, u64)>,
    /// Claims that an operator settled.
    overruled: BTreeSet<(StoredKey, u64)>,
    /// Executors whose store failed in their current delivery.
    failed: BTreeSet<u32>,
    runs: Vec<Run>,
    /// The current run of each executor.
    current: BTreeMap<u32, usize>,
    keys: BTreeSet<u64>,
    /// The effects applied in transactions.
    ledger: Ledger,
    figures: Figures,
    table: Option<Arc<Table>>,
}

/// The audit of one schedule; see the [module](self).
pub struct Audit {
    config: Config,
    keeps_trace: bool,
    book: Mutex<Book>,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Audit {
    /// Starts the audit.
    pub fn new(config: Config, keeps_trace: bool) -> Self {
        Self { config, keeps_trace, book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, book: &mut Book, digest: impl Hash, words: impl FnOnce() -> String) {
        digest.hash(&mut book.digest);
        if self.keeps_trace {
            book.trace.push(words());
        }
    }

    /// Ends the audit and returns the report.
    pub fn report(&self, config: Config, mut figures: Figures) -> Report {
        let mut book = self.book();
        figures.repeated = book.figures.repeated;
        figures.expired = book.figures.expired;
        figures.completed = book.figures.completed;
        figures.operations = book.runs.len() as u64;
        figures.takeovers = book.figures.takeovers;
        figures.fenced = book.figures.fenced;
        figures.reclaims = book.figures.reclaims;
        figures.committed = book.figures.committed;
        figures.declined = book.figures.declined;
        figures.concluded = book.figures.concluded;
        figures.repeats_known = book.figures.repeats_known;
        figures.extended = book.figures.extended;
        figures.reached = book.figures.reached;
        figures.reached.count_settings(&config);
        Report {
            config,
            digest: book.digest.finish(),
            figures,
            violation: book.violation.take(),
            trace: std::mem::take(&mut book.trace),
        }
    }

    /// Whether a rule was broken.
    pub fn has_violation(&self) -> bool {
        self.book().violation.is_some()
    }

    /// Records a violation.
    pub fn violate(&self, rule: &'static str, what: String) {
        violate(&mut self.book(), rule, what);
    }

    /// Keeps the table, which later checks read.
    pub fn watch(&self, table: &Arc<Table>) {
        self.book().table = Some(Arc::clone(table));
    }

    /// The table.
    pub fn table(&self) -> Arc<Table> {
        self.book().table.clone().unwrap_or_default()
    }

    /// Counts an item that was reached.
    pub fn reached(&self, item: Item) {
        self.book().figures.reached.count(item);
    }

    /// Whether a handler runs under this claim.
    pub fn is_at_work(&self, key: &StoredKey, generation: Generation) -> bool {
        let book = self.book();
        book.current
            .values()
            .filter_map(|&run| book.runs.get(run))
            .any(|run| run.stored == *key && run.generation == generation && run.handler_ended.is_none())
    }

    /// Every key for which a handler ran.
    pub fn keys_used(&self) -> Vec<u64> {
        self.book().keys.iter().copied().collect()
    }

    /// How the store is deliberately broken, if it is.
    pub fn sabotage(&self) -> Sabotage {
        self.config.sabotage
    }

    /// Whether the clocks differ by no more than the skew margin.
    fn clocks_agree(&self) -> bool {
        !self.config.has(Circumstance::SkewBeyond)
    }

    /// Notes that an executor drew an owner.
    pub fn drew(&self, executor: u32, owner: Owner) {
        let mut book = self.book();
        let delivery = book.deliveries.get(&executor).copied().unwrap_or_default();
        book.owners.insert(*owner.as_bytes(), (executor, delivery));
    }

    /// Notes that a release is sent, whether or not it arrives. A release shows that its sender recognises its own
    /// claim.
    pub fn releases(&self, owner: Owner) {
        self.book().releasing.insert(*owner.as_bytes());
    }

    /// Notes that an executor begins a delivery, which the platform ends at `deadline`.
    pub fn delivery_began(&self, executor: u32, deadline: Option<u64>) {
        let mut book = self.book();
        *book.deliveries.entry(executor).or_default() += 1;
        book.frozen.remove(&executor);
        book.failed.remove(&executor);
        match deadline {
            Some(deadline) => book.deadlines.insert(executor, deadline),
            None => book.deadlines.remove(&executor),
        };
    }

    /// Checks a put that was applied. If the put was part of a transaction, `effects` are that transaction's effects.
    pub fn wrote(
        &self,
        at: u64,
        key: &StoredKey,
        before: Option<&Record>,
        put: &Put,
        after: &Record,
        effects: Option<&Effects>,
    ) {
        let mut book = self.book();
        let book = &mut *book;
        book.figures.reached.count_put(put);
        let told = if effects.is_some() { ", in a transaction" } else { "" };
        self.note(book, (at, key, put), || format!("{at} {key}: {}{told}", shown(put)));
        if let Some(before) = before {
            self.check_replaced(book, at, key, before, put, after);
        }
        match effects {
            Some(effects) => self.check_effects(book, at, key, effects, Some(after)),
            None => self.check_no_effect(book, key, after),
        }
        match Purpose::of(put) {
            Purpose::Settle | Purpose::Resolve => record_settlement(book, key, put.record()),
            Purpose::Extend => {
                book.figures.extended += 1;
                let new = put.record();
                let is_it = |run: &&mut Run| run.stored == *key && run.generation == new.generation;
                if let (Some(run), Some(lease)) = (book.runs.iter_mut().find(is_it), new.lease_until()) {
                    run.lease_until = lease.as_millis();
                }
            }
            // No executor of the simulation outlives its handler.
            Purpose::Interrupt => {}
            Purpose::Conclude => {
                book.figures.concluded += 1;
                record_settlement(book, key, put.record());
            }
            Purpose::Claim => {
                book.figures.reclaims += u64::from(Call::of(put) == Call::Reclaim);
                book.figures.takeovers += u64::from(Call::of(put) == Call::TakeOver);
                book.grants.insert((key.clone(), after.generation.get()), at);
            }
        }
    }

    fn check_replaced(
        &self,
        book: &mut Book,
        at: u64,
        key: &StoredKey,
        before: &Record,
        put: &Put,
        after: &Record,
    ) {
        let purpose = Purpose::of(put);
        let is_held = before.is_claim_of(put.record()) && before.lease_until().is_some();
        match purpose {
            Purpose::Settle | Purpose::Interrupt => {
                if !is_held {
                    let what = format!("{key}: settled at {at} by a sender that doesn't hold the claim");
                    violate(book, "fencing", what);
                }
                return;
            }
            Purpose::Extend => {
                if !is_held || after.lease_until() <= before.lease_until() {
                    let what = format!("{key}: extended at {at} without the claim, or the lease didn't grow");
                    violate(book, "fencing", what);
                }
                return;
            }
            Purpose::Resolve => {
                book.overruled.insert((key.clone(), before.generation.get()));
            }
            Purpose::Claim | Purpose::Conclude => {}
        }
        if after.generation <= before.generation {
            violate(
                book,
                "generations grow",
                format!("{key}: generation {} after {}", after.generation, before.generation),
            );
        }
        // An operator may settle a record at any time after reading it, if the version is still the same.
        if !self.clocks_agree() || purpose == Purpose::Resolve {
            return;
        }
        match &before.state {
            State::Started { lease_until } if at <= lease_until.as_millis() => {
                violate(
                    book,
                    "one claim at a time",
                    format!("{key}: claimed at {at}, but the lease lasts until {lease_until:?}"),
                );
            }
            State::Completed(_) | State::Failed(_)
                if before.expires_at.is_none_or(|expires_at| at <= expires_at.as_millis()) =>
            {
                violate(book, "a live outcome isn't replaced", format!("{key}: replaced at {at}"));
            }
            _ => {}
        }
    }

    /// Notes that the sweeper removed a record.
    pub fn swept(&self, at: u64, key: &StoredKey) {
        let mut book = self.book();
        self.note(&mut book, (at, key, 1), || format!("{at} {key}: swept"));
    }

    /// Checks that a handler may begin, and returns the run's number.
    pub fn run_began(&self, at: u64, executor: u32, key: u64, payload: u64, right: Right) -> usize {
        let mut book = self.book();
        let book = &mut *book;
        let number = book.runs.len();
        book.keys.insert(key);
        let claim = match right {
            Right::Claim(claim) => claim,
            Right::None(stored) => {
                self.note(book, (at, executor, key, payload), || {
                    format!("{at} executor {executor} runs key {key} payload {payload} without a claim (run {number})")
                });
                book.current.insert(executor, number);
                book.runs.push(Run::new(number, key, stored, Generation::new(0), 0));
                return number;
            }
            Right::Unprotected(stored) => {
                self.note(book, (at, executor, key, payload, 1), || {
                    format!(
                        "{at} executor {executor} runs key {key} payload {payload} unprotected (run {number})"
                    )
                });
                // A clock that jumps can use up the time for the store call. Then the handler runs
                // unprotected although the store hasn't failed.
                if !book.failed.contains(&executor) && !self.has_wrong_clocks() {
                    let what =
                        format!("key {key} runs without protection at {at}, but the store hadn't failed");
                    violate(book, "handlers run only under a claim", what);
                }
                let deadline = book.deadlines.get(&executor).filter(|_| !self.has_wrong_clocks());
                if deadline.is_some_and(|deadline| at > deadline + SKEW_MARGIN as u64 / 2) {
                    let what = format!("key {key} runs without protection at {at}, after its deadline");
                    violate(book, "no handler starts after its deadline", what);
                }
                book.figures.reached.count(Item::RunsUnprotected);
                book.current.insert(executor, number);
                let run = Run::new(number, key, stored, Generation::new(0), 0);
                book.runs.push(Run { is_unprotected: true, ..run });
                return number;
            }
        };
        let Some(claim) = claim else {
            violate(
                book,
                "handlers run only under a claim",
                format!("key {key} runs without a claim at {at}"),
            );
            return number;
        };
        let (stored, generation) = (claim.key().clone(), claim.generation());
        self.note(book, (at, executor, key, payload, generation), || {
            format!("{at} executor {executor} runs key {key} payload {payload} under generation {generation} (run {number})")
        });
        if !book.grants.contains_key(&(stored.clone(), generation.get())) {
            violate(
                book,
                "handlers run only under a claim",
                format!("{stored}: generation {generation} was never granted"),
            );
        }
        book.current.insert(executor, number);
        let deadline = book.deadlines.get(&executor).copied();
        let lease_until = claim.lease_until().as_millis();
        let is_at_most_once = self.config.is_at_most_once(executor);
        let run = Run::new(number, key, stored, generation, lease_until);
        book.runs.push(Run { deadline, is_at_most_once, ..run });
        self.check_began(book, number, claim.is_takeover());
        number
    }

    /// Notes that a run's handler returned a result.
    pub fn handler_ended(&self, at: u64, run: usize) {
        if let Some(run) = self.book().runs.get_mut(run) {
            run.handler_ended = Some(at);
        }
    }

    /// Notes that a run's handler returned an error.
    pub fn handler_failed(&self, run: usize) {
        if let Some(run) = self.book().runs.get_mut(run) {
            run.has_failed = true;
        }
    }

    /// Notes that a run's handler panics.
    pub fn handler_panicked(&self, run: usize) {
        if let Some(run) = self.book().runs.get_mut(run) {
            run.has_panicked = true;
        }
    }

    /// Notes that an executor was frozen at `at`.
    pub fn froze(&self, at: u64, executor: u32, ms: u64) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (executor, ms), || format!("executor {executor} is frozen for {ms} ms"));
        if let Some(run) = book.current.get(&executor).copied().and_then(|run| book.runs.get_mut(run)) {
            run.was_frozen = true;
            run.trouble_until = run.trouble_until.max(at + ms);
        }
        book.frozen.insert(executor);
    }

    /// Notes that an executor died: the platform ended it at its delivery's deadline, or it crashed.
    pub fn crashed(&self, executor: u32, at: u64, is_deadline: bool) {
        if is_deadline {
            self.check_killed(executor, at);
        }
        self.ended(executor, at, Ended::Crashed);
    }

    /// Notes that an executor's delivery ended.
    pub fn ended(&self, executor: u32, at: u64, how: Ended) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (executor, at, how), || format!("{at} executor {executor}: {how:?}"));
        if let Some(run) = book.current.remove(&executor).and_then(|run| book.runs.get_mut(run)) {
            run.ended = Some((at, how));
        }
    }
}

fn record_settlement(book: &mut Book, key: &StoredKey, new: &Record) {
    let generation = new.generation;
    let Some(outcome) = under_test::outcome(new) else {
        book.released.insert((key.clone(), generation.get()));
        return;
    };
    let sha256 = match outcome {
        Outcome::Retained(response) => Some(response.sha256),
        Outcome::Omitted => None,
    };
    let expires_at = new.expires_at.unwrap_or_default().as_millis();
    book.recorded.entry(key.clone()).or_default().push(Recorded { generation, expires_at, sha256 });
}

fn violate(book: &mut Book, rule: &'static str, what: String) {
    if book.violation.is_none() {
        book.violation = Some(Violation { rule, what });
    }
}

fn shown(put: &Put) -> String {
    let new = put.record();
    let what = match (Purpose::of(put), Call::of(put)) {
        (Purpose::Claim, Call::Claim) => "T1",
        (Purpose::Claim, Call::TakeOver) => "T3",
        (Purpose::Claim, _) => "T2",
        (Purpose::Extend, _) => "T7",
        (Purpose::Settle, _) => new.status().as_str(),
        (Purpose::Interrupt, _) => "T9",
        (Purpose::Conclude, _) => "conclusion",
        (Purpose::Resolve, _) => "operator's decision",
    };
    let (owner, generation) = (new.owner, new.generation);
    match new.lease_until() {
        Some(lease) => format!("{what} by {owner:?}, generation {generation}, lease {lease:?}"),
        None => format!("{what} to {} by {owner:?}, generation {generation}", new.status().as_str()),
    }
}
