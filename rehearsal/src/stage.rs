//! The stage of one step: its key, its wire to DynamoDB, and its sandboxes, which are processes of the function.

use std::{
    collections::HashSet,
    sync::PoisonError,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{sync::Mutex, task::JoinSet};

use super::{
    answer::Answer,
    batch::{Batch, Orders, Shipped},
    clock,
    database::{ACCESS_KEY, Database, REGION, Tables},
    drawn,
    event::{Event, Events},
    expect::{Expect, Source},
    function::{Function, Sandbox},
    measured::Measured,
    report::Row,
    runs::{Runs, What},
    wire::{Meaning, Wire},
};
use crate::problem::{Context, Problem, Result};

/// The time limit of an ordinary invocation.
pub(crate) const ORDINARY_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of an invocation whose lease must expire before the step continues. It's short, to keep the wait
/// short.
pub(crate) const LEASE_LIMIT: Duration = Duration::from_secs(3);
/// The length of the leases in steps where the library extends them.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);
/// The library's default grace after the deadline, and its skew margin.
const GRACE_MS: u64 = 2_000;
const SKEW_MARGIN_MS: u64 = 2_000;
/// A record is stale only when its lease expired *more* than the skew margin ago, so the rehearsal waits this much
/// longer.
const CLEARLY_STALE_MS: u64 = 100;

/// The state that all steps share.
#[derive(Debug)]
pub(crate) struct World {
    /// The function under test.
    pub(crate) function: Function,
    /// Whether `function` is the example function. The rehearsal can check more of it than of a user's function.
    pub(crate) is_payments: bool,
    /// The events for the function.
    pub(crate) events: Events,
    /// The other example function, which takes batches; `None` when the function under test is a user's.
    pub(crate) orders: Option<Orders>,
    /// The example function that charges at a gateway; `None` when the function under test is a user's.
    pub(crate) charges: Option<Function>,
    /// How often the handler may run.
    pub(crate) expect: Expect,
    /// The source of the function's batches; `None` if it takes none.
    pub(crate) batch: Option<Source>,
    /// Whether the function records its outcomes by transactions.
    pub(crate) is_transactional: bool,
    /// DynamoDB.
    pub(crate) database: Database,
    /// The tables of all steps that don't have their own.
    pub(crate) tables: Tables,
    /// Every table that was created, to remove it at the end.
    pub(crate) created: Mutex<Vec<String>>,
    /// A part of each key and each table's name, so that two rehearsals never share a key or a table.
    pub(crate) run_id: String,
    /// Shows a line of progress.
    pub(crate) show: fn(&str),
}

impl World {
    /// Converts the answer to a batch's answer, if the function takes batches.
    pub(crate) fn understood(&self, answer: Answer) -> Answer {
        if self.batch.is_some() { answer.of_batch() } else { answer }
    }

    /// Creates a table of records, and notes it for removal at the end.
    pub(crate) async fn create_idempotency_table(&self, name: &str) -> Result<()> {
        self.created.lock().await.push(name.to_owned());
        self.database.create_idempotency_table(name).await
    }

    /// Creates a table of payments, and notes it for removal at the end.
    pub(crate) async fn create_payments_table(&self, name: &str) -> Result<()> {
        self.created.lock().await.push(name.to_owned());
        self.database.create_payments_table(name).await
    }

    /// Returns the tables for a step. If the events have no key header, all steps use the same key, so each step
    /// gets its own table of records.
    fn tables_for(&self, step: &str) -> Tables {
        if self.events.take_keys() {
            return self.tables.clone();
        }
        let idempotency = format!("{}-{step}", self.tables.idempotency);
        Tables { idempotency, payments: self.tables.payments.clone() }
    }
}

/// The setup of one step: its wire, its events, its tables and its sandboxes.
#[derive(Debug)]
pub(crate) struct Stage<'w> {
    /// The state that all steps share.
    pub(crate) world: &'w World,
    /// The wire from this step's sandboxes to DynamoDB.
    pub(crate) wire: Wire,
    /// The step's events, with its key.
    pub(crate) events: Events,
    function: &'w Function,
    makes_payments: bool,
    form: Form,
    more_environment: Vec<(&'static str, String)>,
    tables: Tables,
    order: String,
    runs: Runs,
    idle: Mutex<Vec<Sandbox>>,
    /// Until when the finished rows have their events.
    drawn: std::sync::Mutex<Instant>,
}

/// Where the example function makes its payment, and under which leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// It pays in its handler, between the claim and the completion.
    #[default]
    Handler,
    /// It pays in the transaction that records its outcome.
    Transaction,
    /// It pays in its handler, under short leases that the library extends.
    ShortLeases,
}

/// A snapshot of the counts. [`Stage::since`] measures the changes since then.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Requests on the wire so far.
    pub(crate) wire: usize,
    runs: usize,
    payments: usize,
}

impl<'w> Stage<'w> {
    /// Sets up the step with this name.
    pub(crate) async fn open(world: &'w World, step: &str) -> Result<Self> {
        Self::open_for(world, &world.function, world.is_payments, step).await
    }

    /// Sets up the step. The example function makes its payments as `form` says.
    pub(crate) async fn open_in(world: &'w World, form: Form, step: &str) -> Result<Self> {
        Ok(Self { form, ..Self::open(world, step).await? })
    }

    /// Sets up a step of the example function `orders`, and builds the step's batch.
    pub(crate) async fn open_for_orders(
        world: &'w World,
        orders: &'w Orders,
        step: &str,
    ) -> Result<(Self, Batch)> {
        let stage = Self::open_for(world, &orders.function, false, step).await?;
        let batch = Batch::new(orders, &stage.order);
        Ok((stage, batch))
    }

    /// Sets up a step of the example function `orders` for a mapping of Kafka, which `mode` names, and builds the step's
    /// batch.
    pub(crate) async fn open_for_kafka(
        world: &'w World,
        orders: &'w Orders,
        mode: &str,
    ) -> Result<(Self, Batch)> {
        let function = if mode == "kafka" { &orders.of_stream } else { &orders.of_share_group };
        let stage = Self::open_for(world, function, false, mode).await?;
        let batch = Batch::of_kafka(&stage.order);
        Ok((stage, batch))
    }

    /// Sets up a step of the example function `charges`, with these further environment variables. Returns the id of its
    /// order.
    pub(crate) async fn open_for_charges(
        world: &'w World,
        charges: &'w Function,
        environment: Vec<(&'static str, String)>,
        step: &str,
    ) -> Result<(Self, String)> {
        let stage = Self::open_for(world, charges, false, step).await?;
        let order = stage.order.clone();
        Ok((Self { more_environment: environment, ..stage }, order))
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
            more_environment: Vec::new(),
            tables,
            order,
            runs: Runs::default(),
            idle: Mutex::default(),
            drawn: std::sync::Mutex::new(clock::start()),
        })
    }

    /// Takes an idle sandbox, or starts a new one.
    pub(crate) async fn sandbox(&self) -> Result<Sandbox> {
        if let Some(sandbox) = self.idle.lock().await.pop() {
            return Ok(sandbox);
        }
        let (environment, runs) = self.next_process().await?;
        Sandbox::start(self.function, &environment, runs).await
    }

    /// The environment of the next process, and where its events are noted.
    async fn next_process(&self) -> Result<(Vec<(&'static str, String)>, Runs)> {
        let (runs, process) = self.runs.of_next_process();
        let endpoint = self.wire.port(process).await.context("no free port on loopback for the wire")?;
        Ok((self.environment(endpoint), runs))
    }

    /// The events of the step's processes.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Starts a sandbox whose handler blocks its thread for `length`.
    pub(crate) async fn sandbox_that_blocks(&self, length: Duration) -> Result<Sandbox> {
        let (mut environment, runs) = self.next_process().await?;
        environment.push(("PAYMENTS_BLOCK_MS", clock::millis(length).to_string()));
        Sandbox::start(self.function, &environment, runs).await
    }

    /// Keeps a sandbox for the next event, if it's still alive.
    pub(crate) async fn give_back(&self, mut sandbox: Sandbox) {
        if sandbox.is_alive() {
            self.idle.lock().await.push(sandbox);
        }
    }

    /// Delivers an event to an idle or new sandbox, and waits for the response.
    pub(crate) async fn deliver(&self, event: &Event) -> Result<Answer> {
        let mut sandbox = self.sandbox().await?;
        let delivery = sandbox.deliver(event, ORDINARY_LIMIT);
        let answer = sandbox.answer(delivery).await;
        self.give_back(sandbox).await;
        Ok(self.world.understood(answer))
    }

    /// Delivers an event many times concurrently, each to its own sandbox. It starts all sandboxes before it
    /// delivers, so that the deliveries really overlap.
    pub(crate) async fn deliver_at_once(&self, event: &Event, times: usize) -> Result<Vec<Answer>> {
        let mut starting = JoinSet::new();
        for _ in 0..times {
            let function = self.function.clone();
            let (environment, runs) = self.next_process().await?;
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
            answers.push(self.world.understood(answer));
            self.give_back(sandbox).await;
        }
        Ok(answers)
    }

    /// Takes a snapshot of the counts, for [`Self::since`].
    pub(crate) async fn mark(&self) -> Result<Mark> {
        let payments = self.payments().await?;
        Ok(Mark { wire: self.wire.mark(), runs: self.runs.count(), payments })
    }

    /// Measures what happened since the mark.
    pub(crate) async fn since(&self, mark: &Mark) -> Result<Measured> {
        let payments = self.payments().await?;
        let runs = self.runs.count().saturating_sub(mark.runs);
        Ok(Measured {
            runs: self.function.counts_runs().then_some(runs),
            payments: self.makes_payments.then(|| payments.saturating_sub(mark.payments)),
            passed: self.wire.since(mark.wire),
        })
    }

    /// The orders shipped since the mark.
    pub(crate) fn shipped_since(&self, mark: &Mark) -> Result<Vec<Shipped>> {
        self.runs.since(mark.runs).iter().map(|line| Shipped::read(line)).collect()
    }

    /// How many payments this step has made in all; 0 if the function makes none.
    pub(crate) async fn payments(&self) -> Result<usize> {
        if !self.makes_payments {
            return Ok(0);
        }
        self.world.database.payments_of(&self.tables.payments, &self.order).await
    }

    /// Reads the record of this step's first claim.
    pub(crate) async fn record(&self) -> Result<Value> {
        let passed = self.wire.since(0);
        let id = passed
            .iter()
            .find(|one| matches!(one.meaning, Meaning::Claim | Meaning::Reclaim))
            .and_then(|one| one.id.as_deref());
        match id {
            Some(id) => self.world.database.record(&self.tables.idempotency, id).await,
            None => Ok(Value::Null),
        }
    }

    /// Waits until the current claim is stale: its lease expired more than the skew margin ago.
    pub(crate) async fn lease_passed(&self, delivered_at_ms: u64) -> Result<()> {
        self.passed(lease_of(&self.record().await?), delivered_at_ms, LEASE_LIMIT).await
    }

    /// Waits until an invocation's unsettled claims are stale. `limit` is the invocation's time limit. All its claims'
    /// leases expire at the same time, so this waits for the first one that it finds.
    pub(crate) async fn leases_passed(&self, delivered_at_ms: u64, limit: Duration) -> Result<()> {
        let passed = self.wire.since(0);
        let ids = |is_such: fn(Meaning) -> bool| {
            let such = passed.iter().filter(move |one| is_such(one.meaning) && one.applied());
            such.filter_map(|one| one.id.as_deref())
        };
        let settled: HashSet<_> = ids(Meaning::settles).collect();
        let mut lease = None;
        for id in ids(Meaning::claims).filter(|id| !settled.contains(id)) {
            // DynamoDB may have applied this claim's completion although the wire logged no response, since the process
            // was killed before the response came. The record then has no lease.
            lease = lease_of(&self.world.database.record(&self.tables.idempotency, id).await?);
            if lease.is_some() {
                break;
            }
        }
        self.passed(lease, delivered_at_ms, limit).await
    }

    async fn passed(&self, lease: Option<u64>, delivered_at_ms: u64, limit: Duration) -> Result<()> {
        // If the record has no `lease_until` (the attribute may have another name), compute it from the defaults.
        let limit = clock::millis(limit);
        let lease: u64 = lease.unwrap_or(delivered_at_ms + limit + GRACE_MS);
        let wait = lease.saturating_sub(clock::now_ms());
        if wait > 2 * (limit + GRACE_MS) {
            return Err(Problem::new(format!(
                "the record's lease expires in {} s, but the invocation's time limit is {} s: the rehearsal doesn't \
                 wait that long, so rehearse the function with a shorter lease",
                wait / 1_000,
                limit / 1_000
            )));
        }
        clock::pause_until(lease + SKEW_MARGIN_MS + CLEARLY_STALE_MS).await;
        self.runs.note(What::LeaseExpired);
        Ok(())
    }

    /// Shows a finished row, and returns it with its events.
    pub(crate) fn done(&self, mut row: Row) -> Row {
        (self.world.show)(&row.line());
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::start();
        row.events = drawn::events(&self.runs, &self.wire, *drawn..now);
        *drawn = now;
        row
    }

    fn environment(&self, endpoint: String) -> Vec<(&'static str, String)> {
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
            ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
            ("IDEMPOTENCY_TABLE", self.tables.idempotency.clone()),
        ];
        environment.extend(self.more_environment.iter().cloned());
        if self.makes_payments {
            environment.push(("PAYMENTS_TABLE", self.tables.payments.clone()));
        }
        match self.form {
            Form::Handler => {}
            Form::Transaction => environment.push(("PAYMENTS_FORM", "transaction".into())),
            Form::ShortLeases => {
                environment.push(("PAYMENTS_LEASE_MS", clock::millis(SHORT_LEASE).to_string()));
            }
        }
        environment
    }
}

/// Reads when a record's lease expires, in milliseconds since the epoch.
fn lease_of(record: &Value) -> Option<u64> {
    record.pointer("/lease_until/N").and_then(Value::as_str).and_then(|text| text.parse().ok())
}
