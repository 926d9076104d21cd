//! The function that the crash check kills: a real Lambda function behind the library's event layer, over DynamoDB,
//! PostgreSQL or Redis.
//!
//! Its effect is a line in a ledger. The line has the run's name, and the generation, attempt and lease of the run's
//! claim, if there is one. The function's response is the name of the run that had the effect. Environment variables
//! make the function pause at a point of a run, or break it on purpose.
//!
//! If this program is started with arguments, it's the Lambda layer instead. The layer starts this program again,
//! without arguments, as the function behind the layer. That function doesn't use the library.
//!
//! The harness freezes processes past their deadlines and lets them continue. Ordinary Lambda doesn't do that, but
//! Lambda Managed Instances may. So the library has to cut handlers off.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::Client;
use lambda_idempotency::{
    ClaimHandle, Failure, Found, Idempotency, Key, RunError, current, staging,
    store::{
        NamedStore, Store,
        dynamodb::{DynamoDbStore, Transaction},
        postgres::{PostgresStore, tokio_postgres},
    },
};
use lambda_idempotency_rehearsal::clock;
use lambda_idempotency_verification_real::{
    crash::{
        effects::append,
        form::Form,
        gateway::{self, Charge, Question, Receipt, Told},
        job::{
            ARRIVES, CHARGE_TIMEOUT, EFFECTS, ENDPOINT, FORM, FUNCTION, GATEWAY, GRACE, Job, LEDGER, MARGIN,
            MARKER, PROCESS, RESERVE, SABOTAGE, STAND_AT, STORE, TABLE, TOLD_TO_FAIL, UNKNOWN,
        },
        judge::Promise,
        ledger::{Ledger, Line},
        point::{Orders, Point, StandingStore},
        sabotage::{Sabotage, SabotagedStore},
    },
    servers,
};
use lambda_runtime::{Diagnostic, Error, LambdaEvent, run, service_fn, tower::ServiceBuilder};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Mutex;

/// The settings from the environment, and the number of invocations.
#[derive(Debug)]
struct World {
    process: String,
    ledger: Ledger,
    orders: Orders,
    sabotage: Option<Sabotage>,
    form: Form,
    /// The table of effects, if they're in a table.
    effects: String,
    /// How many invocations have arrived. They arrive one at a time, and this number names the run.
    invocations: AtomicU64,
}

impl World {
    fn from_env() -> Result<Self, Error> {
        let point = known(STAND_AT, Point::named)?;
        Ok(Self {
            process: variable(PROCESS)?,
            ledger: Ledger::at(variable(LEDGER)?),
            orders: Orders::new(point, std::env::var(MARKER).unwrap_or_default()),
            sabotage: known(SABOTAGE, Sabotage::named)?,
            form: known(FORM, Form::named)?.unwrap_or_default(),
            effects: std::env::var(EFFECTS).unwrap_or_default(),
            invocations: AtomicU64::new(0),
        })
    }

    fn run(&self) -> String {
        format!("{}-{}", self.process, self.invocations.load(Ordering::SeqCst))
    }
}

fn main() -> Result<ExitCode, Error> {
    let arguments = std::env::args_os().skip(1);
    if arguments.len() > 0 {
        return Ok(lambda_idempotency_layer::main(arguments));
    }
    tokio::runtime::Runtime::new()?.block_on(function())?;
    Ok(ExitCode::SUCCESS)
}

async fn function() -> Result<(), Error> {
    // The world lives as long as the process.
    let world: &'static World = Box::leak(Box::new(World::from_env()?));
    if world.form == Form::Layer {
        return run(service_fn(|event| plain(world, event))).await;
    }
    let idempotency = engine(SabotagedStore::new(store().await?, world.sabotage), world)?;
    if world.form == Form::PostgresTransaction {
        let records = Records::from_env()?;
        return run(ServiceBuilder::new()
            .map_request(|event| entered(world, event))
            .map_result(|answer| answered(world, answer))
            .service(service_fn(|event| in_transaction(world, &idempotency, &records, event))))
        .await;
    }
    if world.form.gateway().is_some() {
        let gateway = gateway::Client::at(variable(GATEWAY)?);
        return run(ServiceBuilder::new()
            .map_request(|event| entered(world, event))
            .map_result(|answer| answered(world, answer))
            .service(service_fn(|event| at_gateway(world, &idempotency, &gateway, event))))
        .await;
    }
    let idempotency = if world.form == Form::Optimistic { idempotency.optimistic()? } else { idempotency };
    run(ServiceBuilder::new()
        .map_request(|event| entered(world, event))
        .map_result(|answer| answered(world, answer))
        .layer(idempotency.events(|job: &Job| Key::new(&job.key)))
        .service(service_fn(|event| handle(world, event))))
    .await
}

fn engine(store: impl Store, world: &'static World) -> Result<Idempotency, Error> {
    Ok(Idempotency::builder(StandingStore::new(store, &world.orders))
        .function(FUNCTION)
        .settings(|s| {
            s.lease_grace = GRACE;
            s.answer_reserve = RESERVE;
            s.skew_margin = MARGIN;
            s.effects_arrive_within = match world.sabotage {
                Some(Sabotage::AsksTooSoon) => Duration::ZERO,
                _ => ARRIVES,
            };
        })
        .build()?)
}

/// Creates the store that the environment names.
async fn store() -> Result<Arc<dyn Store>, Error> {
    if let Ok(url) = std::env::var(STORE) {
        return Ok(NamedStore::from_url(&url)?.open().await?);
    }
    let client = Client::from_conf(servers::config_of(&variable(ENDPOINT)?).build());
    Ok(Arc::new(DynamoDbStore::new(client, variable(TABLE)?)?))
}

/// The store, and the connection for the transactions that write the effect and the record.
struct Records {
    store: PostgresStore,
    url: String,
    client: Mutex<Option<tokio_postgres::Client>>,
}

impl Records {
    fn from_env() -> Result<Self, Error> {
        let named = variable(STORE)?;
        let url = named.split_once('?').map_or(named.as_str(), |(url, _)| url).to_owned();
        Ok(Self { store: PostgresStore::builder(named).build()?, url, client: Mutex::default() })
    }

    async fn connected(&self) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        // A process frozen in its transaction holds the key's lock, so the server must end its session.
        client.batch_execute("SET idle_in_transaction_session_timeout = 400").await?;
        Ok(client)
    }
}

/// Runs the operation in one transaction with its record.
async fn in_transaction(
    world: &World,
    idempotency: &Idempotency,
    records: &Records,
    event: LambdaEvent<Box<RawValue>>,
) -> Result<String, Diagnostic> {
    let not_now = |error: &dyn std::error::Error| failure("Idempotency.Unavailable", &error.to_string());
    let job: Job = serde_json::from_str(event.payload.get()).map_err(|error| not_now(&error))?;
    let key = Key::new(&job.key).map_err(|error| not_now(&error))?;
    let kept = records.client.lock().await.take().filter(|client| !client.is_closed());
    let mut client = match kept {
        Some(client) => client,
        None => records.connected().await.map_err(|error| not_now(&error))?,
    };
    let work = async |transaction: &tokio_postgres::Transaction<'_>| {
        world.orders.reached(Point::BeforeEffect);
        clock::pause(Duration::from_millis(job.before_ms)).await;
        let line = Line { run: world.run(), generation: 0, attempt: 0, lease_until: 0 };
        let line = serde_json::to_string(&line).map_err(|error| not_now(&error))?;
        let insert = format!("INSERT INTO {} (key, line) VALUES ($1, $2)", world.effects);
        transaction.execute(&insert, &[&job.key, &line]).await.map_err(|error| not_now(&error))?;
        world.orders.reached(Point::AfterEffect);
        clock::pause(Duration::from_millis(job.after_ms)).await;
        Ok::<_, Diagnostic>(world.run())
    };
    let answer = idempotency.operation("job")?.run_in(&records.store, &mut client, &key, &job, work).await;
    *records.client.lock().await = Some(client);
    answer.map_err(Into::into)
}

/// Runs the operation, which charges at the gateway. Its reconciler asks the gateway.
async fn at_gateway(
    world: &World,
    idempotency: &Idempotency,
    gateway: &gateway::Client,
    event: LambdaEvent<Box<RawValue>>,
) -> Result<String, Diagnostic> {
    let not_now = |error: &dyn std::error::Error| failure("Idempotency.Unavailable", &error.to_string());
    let job: Job = serde_json::from_str(event.payload.get()).map_err(|error| not_now(&error))?;
    let key = Key::new(&job.key).map_err(|error| not_now(&error))?;
    let operation = idempotency.for_context(&event.context).operation("job")?;
    let charge = || charge(world, gateway, &job);
    let answer = if world.form.promise() == Promise::Reconciled {
        let question = async |claim: ClaimHandle| ask(world, gateway, &claim, &job).await;
        operation.reconcile(question)?.run(&key, &job, charge).await
    } else {
        operation.run(&key, &job, charge).await
    };
    answer.map_err(|error| match error {
        RunError::Handler(own) if own.to_string() == TOLD_TO_FAIL => failure(TOLD_TO_FAIL, &own.to_string()),
        RunError::Handler(own) => failure(UNKNOWN, &own.to_string()),
        other => other.into(),
    })
}

/// Charges, and returns the receipt: the run's name.
async fn charge(world: &World, gateway: &gateway::Client, job: &Job) -> Result<String, Failure> {
    let claim = current().ok_or("the handler runs without a claim")?;
    if job.first_fails && claim.attempt() == 1 {
        return Err(TOLD_TO_FAIL.into());
    }
    world.orders.reached(Point::BeforeEffect);
    clock::pause(Duration::from_millis(job.before_ms)).await;
    let request = Charge {
        job: job.key.clone(),
        key: claim.derive_key("charge"),
        cents: cents(job),
        line: Line {
            run: world.run(),
            generation: claim.generation().get(),
            attempt: claim.attempt(),
            lease_until: claim.lease_until().as_millis(),
        },
        sent_at: clock::now_ms(),
    };
    let charged = tokio::time::timeout(CHARGE_TIMEOUT, gateway.charge(&request)).await;
    world.orders.reached(Point::AfterEffect);
    let receipt = match charged {
        Ok(Ok(receipt)) => receipt,
        Ok(Err(problem)) => return Err(Failure::unknown(problem.to_string())),
        Err(_) => return Err(Failure::unknown("the gateway gave no answer in time")),
    };
    clock::pause(Duration::from_millis(job.after_ms)).await;
    Ok(receipt.run)
}

/// Asks the gateway for the charge.
async fn ask(
    world: &World,
    gateway: &gateway::Client,
    claim: &ClaimHandle,
    job: &Job,
) -> Result<Found<String>, Error> {
    let step = if world.sabotage == Some(Sabotage::AsksOtherKey) { "refund" } else { "charge" };
    let key = claim.derive_key(step);
    let question = Question { job: job.key.clone(), key, generation: claim.generation().get() };
    match gateway.find(&question).await {
        Ok((Told::Absent, _)) => Ok(Found::DidNotHappen),
        Ok((_, Some(Receipt { run, cents: charged }))) if charged == cents(job) => Ok(Found::Happened(run)),
        Ok((_, Some(_))) => Err("the gateway has another charge under this key".into()),
        _ if world.sabotage == Some(Sabotage::TakesUnknownForAbsent) => Ok(Found::DidNotHappen),
        Ok((_, None)) => Ok(Found::NotKnownYet { ask_again_after: Duration::from_millis(300) }),
        Err(problem) => Err(problem.to_string().into()),
    }
}

const fn cents(job: &Job) -> u64 {
    100 + job.after_ms
}

fn answered<T>(world: &World, answer: T) -> T {
    world.orders.reached(Point::Answered);
    answer
}

/// Counts the invocation, before the library has seen the event.
fn entered(world: &World, event: LambdaEvent<Box<RawValue>>) -> LambdaEvent<Box<RawValue>> {
    world.invocations.fetch_add(1, Ordering::SeqCst);
    world.orders.reached(Point::Entered);
    if world.sabotage == Some(Sabotage::EffectFirst)
        && let Ok(job) = serde_json::from_str::<Job>(event.payload.get())
    {
        // If this write fails, the sabotage does nothing, and the test that expects violations fails.
        let _ = world
            .ledger
            .append(&job.key, &Line { run: world.run(), generation: 0, attempt: 0, lease_until: 0 });
    }
    event
}

async fn handle(world: &World, event: LambdaEvent<Job>) -> Result<String, Diagnostic> {
    let job = event.payload;
    let claim = current();
    if claim.is_none() && world.form != Form::Optimistic {
        return Err(failure("Test.NoClaim", "the handler runs without a claim"));
    }
    if job.first_fails && claim.as_ref().is_some_and(|claim| claim.attempt() == 1) {
        return Err(failure(TOLD_TO_FAIL, "the event tells the first attempt to fail"));
    }
    // Each pause ends a poll. If the run was frozen past its deadline, the library cuts it off before the next poll.
    world.orders.reached(Point::BeforeEffect);
    clock::pause(Duration::from_millis(job.before_ms)).await;
    if world.sabotage != Some(Sabotage::EffectFirst) {
        let line = Line {
            run: world.run(),
            generation: claim.as_ref().map_or(0, |claim| claim.generation().get()),
            attempt: claim.as_ref().map_or(0, |claim| claim.attempt()),
            lease_until: claim.as_ref().map_or(0, |claim| claim.lease_until().as_millis()),
        };
        have_effect(world, &job, &line).map_err(|error| failure("Test.NoLedger", &error.to_string()))?;
    }
    world.orders.reached(Point::AfterEffect);
    clock::pause(Duration::from_millis(job.after_ms)).await;
    Ok(world.run())
}

/// An event from the layer.
#[derive(Debug, Deserialize)]
struct Protected {
    #[serde(flatten)]
    job: Job,
    claim: Claimed,
}

/// The layer's claim, in the field that [`CLAIM_FIELD`](lambda_idempotency_verification_real::crash::job::CLAIM_FIELD) names.
#[derive(Debug, Deserialize)]
struct Claimed {
    attempt: u32,
    generation: u64,
}

/// Handles events behind the layer. The request id is the run's name.
async fn plain(world: &World, event: LambdaEvent<Protected>) -> Result<String, Diagnostic> {
    let LambdaEvent { payload: Protected { job, claim: Claimed { attempt, generation } }, context } = event;
    if job.first_fails && attempt == 1 {
        return Err(failure(TOLD_TO_FAIL, "the event tells the first attempt to fail"));
    }
    clock::pause(Duration::from_millis(job.before_ms)).await;
    // The function knows its deadline, but not its lease. The lease ends later by the grace, which the judge subtracts
    // again.
    let lease_until = context.deadline + clock::millis(GRACE);
    let line = Line { run: context.request_id.clone(), generation, attempt, lease_until };
    world.ledger.append(&job.key, &line).map_err(|error| failure("Test.NoLedger", &error.to_string()))?;
    clock::pause(Duration::from_millis(job.after_ms)).await;
    Ok(context.request_id)
}

/// Writes the effect to the ledger at once, or stages it for the outcome's transaction.
fn have_effect(world: &World, job: &Job, line: &Line) -> Result<(), Error> {
    if world.form.promise() == Promise::AtLeastOnce {
        return Ok(world.ledger.append(&job.key, line)?);
    }
    let write = append(&world.effects, &job.key, line).map_err(|problem| problem.to_string())?;
    let staging = staging().ok_or("the handler can't stage writes")?;
    Ok(staging.add(Transaction::new().update(write))?)
}

fn failure(kind: &str, message: &str) -> Diagnostic {
    Diagnostic { error_type: kind.into(), error_message: message.into() }
}

fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("{name} isn't set; the harness should set it").into())
}

/// Reads the value that an environment variable names, if the variable is set.
fn known<T>(variable: &str, named: fn(&str) -> Option<T>) -> Result<Option<T>, Error> {
    match std::env::var(variable) {
        Ok(name) => Ok(Some(named(&name).ok_or_else(|| format!("{variable}={name} isn't a known value"))?)),
        Err(_) => Ok(None),
    }
}
