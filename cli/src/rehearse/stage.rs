//! Where one step plays: a key of its own, a wire of its own, and the sandboxes that take its events.

use std::{collections::HashSet, time::Duration};

use serde_json::Value;
use tokio::{sync::Mutex, task::JoinSet};

use super::{
    answer::Answer,
    batch::{Batch, Orders, Shipped},
    clock,
    database::{ACCESS_KEY, Database, REGION, Tables},
    event::{Event, Events},
    function::{Function, Sandbox},
    report::Row,
    runs::Runs,
    wire::{Exchange, Meaning, Wire},
};
use crate::problem::{Context, Problem, Result};

/// The time limit of an ordinary invocation.
pub(crate) const ORDINARY_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of an invocation whose lease is waited for: short, so that the wait is.
pub(crate) const LEASE_LIMIT: Duration = Duration::from_secs(3);
/// The library's default grace after the deadline, and its skew margin.
const GRACE_MS: u64 = 2_000;
const SKEW_MARGIN_MS: u64 = 2_000;
/// A stale record is one whose lease has passed by *more* than the margin.
const CLEARLY_STALE_MS: u64 = 100;

/// What all steps share.
#[derive(Debug)]
pub(crate) struct World {
    /// The function under test.
    pub(crate) function: Function,
    /// Whether it is the example function, of which more can be judged than of an unknown one.
    pub(crate) is_payments: bool,
    /// What is delivered to it.
    pub(crate) events: Events,
    /// The other example, which takes batches; none beside a function of the user's.
    pub(crate) orders: Option<Orders>,
    /// DynamoDB.
    pub(crate) database: Database,
    /// The tables of the steps that need none of their own.
    pub(crate) tables: Tables,
    /// Every table that was created, to be removed in the end.
    pub(crate) created: Mutex<Vec<String>>,
    /// Tells this rehearsal's keys and tables from any other's.
    pub(crate) run_id: String,
    /// Shows a line of progress.
    pub(crate) show: fn(&str),
}

impl World {
    /// Creates a store of records, to be removed in the end.
    pub(crate) async fn create_idempotency_table(&self, name: &str) -> Result<()> {
        self.created.lock().await.push(name.to_owned());
        self.database.create_idempotency_table(name).await
    }

    /// Creates a table of payments, to be removed in the end.
    pub(crate) async fn create_payments_table(&self, name: &str) -> Result<()> {
        self.created.lock().await.push(name.to_owned());
        self.database.create_payments_table(name).await
    }

    /// The table for a step: where all events carry one fixed key, each step needs a fresh one.
    fn tables_for(&self, step: &str) -> Tables {
        if self.events.take_keys() {
            return self.tables.clone();
        }
        let idempotency = format!("{}-{step}", self.tables.idempotency);
        Tables { idempotency, payments: self.tables.payments.clone() }
    }
}

/// One step's stage.
#[derive(Debug)]
pub(crate) struct Stage<'w> {
    /// What it stands in.
    pub(crate) world: &'w World,
    /// The wire to DynamoDB of every sandbox here.
    pub(crate) wire: Wire,
    /// The step's events, under its key.
    pub(crate) events: Events,
    function: &'w Function,
    makes_payments: bool,
    form: Form,
    tables: Tables,
    order: String,
    runs: Runs,
    idle: Mutex<Vec<Sandbox>>,
}

/// How the example function makes its payment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// In its handler, between claim and completion.
    #[default]
    Handler,
    /// In the transaction that records its outcome.
    Transaction,
}

/// A point to measure from.
#[derive(Debug)]
pub(crate) struct Mark {
    /// On the wire.
    pub(crate) wire: usize,
    runs: usize,
    payments: usize,
}

/// What happened since a mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Runs of the handler, where they can be counted.
    pub(crate) runs: Option<usize>,
    /// Payments made, where there are such things.
    pub(crate) payments: Option<usize>,
    /// What passed on the wire.
    pub(crate) passed: Vec<Exchange>,
}

impl Measured {
    /// Requests to the store that were sent on.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Exchange> {
        self.passed.iter().filter(|exchange| exchange.to_store)
    }

    /// How many claims were won, takeovers among them.
    pub(crate) fn claims_won(&self) -> usize {
        let claims = |one: &&Exchange| matches!(one.meaning, Meaning::Claim | Meaning::Takeover);
        self.requests().filter(claims).filter(|one| one.succeeded()).count()
    }

    /// How many claims were settled.
    pub(crate) fn settled(&self) -> usize {
        let settled = self.requests().filter(|one| one.meaning == Meaning::Settle && one.succeeded());
        // A transaction whose answer was lost comes again, and is answered as the first time.
        let mut tokens = HashSet::new();
        settled.filter(|one| one.token.as_ref().is_none_or(|token| tokens.insert(token))).count()
    }
}

impl<'w> Stage<'w> {
    /// Sets up a stage for the step of this name.
    pub(crate) async fn open(world: &'w World, step: &str) -> Result<Self> {
        Self::open_for(world, &world.function, world.is_payments, step).await
    }

    /// The same, where the payment is made in this form.
    pub(crate) async fn open_in(world: &'w World, form: Form, step: &str) -> Result<Self> {
        Ok(Self { form, ..Self::open(world, step).await? })
    }

    /// Sets up a stage for a step of the function that takes batches, and its batch.
    pub(crate) async fn open_for_orders(
        world: &'w World,
        orders: &'w Orders,
        step: &str,
    ) -> Result<(Self, Batch)> {
        let stage = Self::open_for(world, &orders.function, false, step).await?;
        let batch = Batch::new(orders, &stage.order);
        Ok((stage, batch))
    }

    async fn open_for(
        world: &'w World,
        function: &'w Function,
        makes_payments: bool,
        step: &str,
    ) -> Result<Self> {
        let tables = world.tables_for(step);
        if tables.idempotency != world.tables.idempotency {
            world.create_idempotency_table(&tables.idempotency).await?;
        }
        let upstream = world.database.endpoint().clone();
        let wire =
            Wire::start(upstream, tables.clone()).await.context("no free port on loopback for the wire")?;
        let order = format!("rehearsal-{}-{step}", world.run_id);
        Ok(Self {
            world,
            wire,
            events: world.events.for_step(&order),
            function,
            makes_payments,
            form: Form::default(),
            tables,
            order,
            runs: Runs::default(),
            idle: Mutex::default(),
        })
    }

    /// An idle sandbox, or a new one.
    pub(crate) async fn sandbox(&self) -> Result<Sandbox> {
        if let Some(sandbox) = self.idle.lock().await.pop() {
            return Ok(sandbox);
        }
        Sandbox::start(self.function, &self.environment(), self.runs.clone()).await
    }

    /// Gives a sandbox back for the next event, if it still lives.
    pub(crate) async fn give_back(&self, mut sandbox: Sandbox) {
        if sandbox.is_alive() {
            self.idle.lock().await.push(sandbox);
        }
    }

    /// Delivers an event to an idle sandbox, and waits for the answer.
    pub(crate) async fn deliver(&self, event: &Event) -> Result<Answer> {
        let mut sandbox = self.sandbox().await?;
        let delivery = sandbox.deliver(event, ORDINARY_LIMIT);
        let answer = sandbox.answer(delivery).await;
        self.give_back(sandbox).await;
        Ok(answer)
    }

    /// Delivers an event many times at once, each to a sandbox of its own. All are started before any is invoked, so
    /// that they really meet.
    pub(crate) async fn deliver_at_once(&self, event: &Event, times: usize) -> Result<Vec<Answer>> {
        let mut starting = JoinSet::new();
        for _ in 0..times {
            let (function, environment) = (self.function.clone(), self.environment());
            let runs = self.runs.clone();
            starting.spawn(async move { Sandbox::start(&function, &environment, runs).await });
        }
        let sandboxes = starting.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;

        let mut answering = JoinSet::new();
        for mut sandbox in sandboxes {
            let delivery = sandbox.deliver(event, ORDINARY_LIMIT);
            answering.spawn(async move { (sandbox.answer(delivery).await, sandbox) });
        }
        let mut answers = Vec::with_capacity(times);
        for (answer, sandbox) in answering.join_all().await {
            answers.push(answer);
            self.give_back(sandbox).await;
        }
        Ok(answers)
    }

    /// Marks the present, to measure from.
    pub(crate) async fn mark(&self) -> Result<Mark> {
        let payments = self.payments().await?;
        Ok(Mark { wire: self.wire.mark(), runs: self.runs.count(), payments })
    }

    /// What happened since.
    pub(crate) async fn since(&self, mark: &Mark) -> Result<Measured> {
        let payments = self.payments().await?;
        let runs = self.runs.count().saturating_sub(mark.runs);
        Ok(Measured {
            runs: self.function.counts_runs().then_some(runs),
            payments: self.makes_payments.then(|| payments.saturating_sub(mark.payments)),
            passed: self.wire.since(mark.wire),
        })
    }

    /// The orders that have been shipped since.
    pub(crate) fn shipped_since(&self, mark: &Mark) -> Result<Vec<Shipped>> {
        self.runs.since(mark.runs).iter().map(|line| Shipped::read(line)).collect()
    }

    /// How many payments this step has made altogether; none where there are no such things.
    pub(crate) async fn payments(&self) -> Result<usize> {
        if !self.makes_payments {
            return Ok(0);
        }
        self.world.database.payments_of(&self.tables.payments, &self.order).await
    }

    /// The record that the first claim on this stage made.
    pub(crate) async fn record(&self) -> Result<Value> {
        let passed = self.wire.since(0);
        let id = passed.iter().find(|one| one.meaning == Meaning::Claim).and_then(|one| one.id.as_deref());
        match id {
            Some(id) => self.world.database.record(&self.tables.idempotency, id).await,
            None => Ok(Value::Null),
        }
    }

    /// Waits until the claim that stands is stale: its lease has passed by more than the skew margin.
    pub(crate) async fn lease_passed(&self, delivered_at_ms: u64) -> Result<()> {
        self.passed(lease_of(&self.record().await?), delivered_at_ms, LEASE_LIMIT).await
    }

    /// Waits until those claims are stale that an invocation with this time limit has won on this stage, and not settled:
    /// they all end at once.
    pub(crate) async fn leases_passed(&self, delivered_at_ms: u64, limit: Duration) -> Result<()> {
        let passed = self.wire.since(0);
        let ids = |meaning: Meaning| {
            let such = passed.iter().filter(move |one| one.meaning == meaning && one.succeeded());
            such.filter_map(|one| one.id.as_deref())
        };
        let settled: HashSet<_> = ids(Meaning::Settle).collect();
        let mut lease = None;
        for id in ids(Meaning::Claim).filter(|id| !settled.contains(id)) {
            // One may have been settled all the same, by a request whose sender did not live to see its answer.
            lease = lease_of(&self.world.database.record(&self.tables.idempotency, id).await?);
            if lease.is_some() {
                break;
            }
        }
        self.passed(lease, delivered_at_ms, limit).await
    }

    async fn passed(&self, lease: Option<u64>, delivered_at_ms: u64, limit: Duration) -> Result<()> {
        // Without the attribute (another name is configured, say) the library's defaults tell when.
        let limit = clock::millis(limit);
        let lease: u64 = lease.unwrap_or(delivered_at_ms + limit + GRACE_MS);
        let wait = lease.saturating_sub(clock::now_ms());
        if wait > 2 * (limit + GRACE_MS) {
            return Err(Problem::new(format!(
                "a lease of {} s for an invocation that may take {} s: the rehearsal does not wait for it",
                wait / 1_000,
                limit / 1_000
            )));
        }
        clock::pause_until(lease + SKEW_MARGIN_MS + CLEARLY_STALE_MS).await;
        Ok(())
    }

    /// Shows a row that is done, and passes it on.
    pub(crate) fn done(&self, row: Row) -> Row {
        (self.world.show)(&row.line());
        row
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128".into()),
            ("AWS_LAMBDA_LOG_LEVEL", "INFO".into()),
            ("AWS_REGION", REGION.into()),
            ("AWS_DEFAULT_REGION", REGION.into()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
            ("AWS_CONFIG_FILE", "/dev/null".into()),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null".into()),
            ("AWS_EC2_METADATA_DISABLED", "true".into()),
            ("AWS_ENDPOINT_URL_DYNAMODB", self.wire.endpoint()),
            ("IDEMPOTENCY_TABLE", self.tables.idempotency.clone()),
        ];
        if self.makes_payments {
            environment.push(("PAYMENTS_TABLE", self.tables.payments.clone()));
        }
        if self.form == Form::Transaction {
            environment.push(("PAYMENTS_FORM", "transaction".into()));
        }
        environment
    }
}

/// Until when a record says that its claim stands.
fn lease_of(record: &Value) -> Option<u64> {
    record.pointer("/lease_until/N").and_then(Value::as_str).and_then(|text| text.parse().ok())
}
