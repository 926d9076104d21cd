//! Measures how long an operation's first run and its duplicate take on each store, on loopback.
//!
//! cargo run --profile verification --example store_table --features postgres,redis
//!
//! cargo run --profile verification --example store_table --features postgres,redis -- --against PROGRAM [ROUNDS]
//!
//! The second form compares this build with PROGRAM, which is this example built from an earlier commit. The two
//! programs take turns, 5 rounds each by default, so that both meet the same noise. A row has the p50 of PROGRAM
//! ("before") and of this build ("after"), their difference, and the noise. Each p50 is the median over the rounds, and
//! the noise is how much the p50 of one program differs between rounds.
//!
//! The example starts the servers: an embedded DynamoDB in this process, a PostgreSQL and a Redis. In the rows
//! `DynamoDB + 3 ms`, each request takes 3 ms longer, like a request to a real service.
//!
//! PostgreSQL has one row for each way to send statements. In these rows, `server CPU` is the processor time of the
//! store's sessions for one run, from `/proc/PID/schedstat`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement may panic")]

use std::{
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put as PutItem,
    ScalarAttributeType,
};
use lambda_idempotency::{
    Idempotency, Key, StoredKey, staging,
    store::{
        BoxFuture, CommitOutcome, OwnWrites, Put, PutOutcome, Record, ResponseChunks, Store, StoreError,
        StoreErrorKind, Transactions,
        dynamodb::{DynamoDbStore, Transaction},
        memory::MemoryStore,
        postgres::{PostgresStore, tokio_postgres},
        redis::RedisStore,
    },
    time::{Clock as _, system_clock},
};

use testkit::{emulator, postgres, redis};

const RUNS: usize = 500;
const DELAYED_RUNS: usize = 100;

/// A store that counts its requests, and delays each request.
#[derive(Debug)]
struct Measured {
    inner: Arc<dyn Store>,
    delay: Duration,
    requests: Arc<AtomicU64>,
}

impl Measured {
    async fn request<T>(&self, answer: impl Future<Output = T>) -> T {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !self.delay.is_zero() {
            system_clock().sleep(self.delay).await;
        }
        answer.await
    }
}

impl Store for Measured {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.request(self.inner.put(key, put)))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.request(self.inner.read(key)))
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.inner.chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        self.inner.transactions().is_some().then_some(self)
    }
}

impl Transactions for Measured {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        self.inner.transactions().map_or(Ok(()), |transactions| transactions.check(key, writes))
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let Some(transactions) = self.inner.transactions() else {
            return Box::pin(async { Err(StoreError::new(StoreErrorKind::Rejected, "no transactions")) });
        };
        Box::pin(self.request(transactions.commit(key, put, writes, token)))
    }
}

/// One row of the table: a store, the form in which it's used, and the measurements.
struct Row {
    name: String,
    first: Times,
    duplicate: Times,
}

struct Times {
    requests: f64,
    p50: Duration,
    p99: Duration,
    /// The server's processor time for one run, where it was measured.
    cpu: Option<Duration>,
}

/// Runs `operation` once for each of `runs` keys. Returns the quantiles of the times, and the requests per run.
async fn times(requests: &AtomicU64, runs: usize, mut operation: impl AsyncFnMut(&str)) -> Times {
    requests.store(0, Ordering::Relaxed);
    let mut times = Vec::with_capacity(runs);
    for n in 0..runs {
        let key = format!("order-{n}");
        #[expect(clippy::disallowed_methods, reason = "the example measures real time")]
        let began = Instant::now();
        operation(&key).await;
        times.push(began.elapsed());
    }
    times.sort();
    let requests = requests.load(Ordering::Relaxed) as f64 / runs as f64;
    Times { requests, p50: times[runs / 2], p99: times[runs * 99 / 100], cpu: None }
}

async fn row(name: &str, store: Arc<dyn Store>, delay: Duration, form: Form) -> Row {
    let requests = Arc::new(AtomicU64::new(0));
    let store = Measured { inner: store, delay, requests: Arc::clone(&requests) };
    let operation = format!("{}-{}", form.name(), delay.as_millis());
    let idempotency = Idempotency::builder(store).function("bench").build().unwrap();
    let idempotency = if form == Form::Optimistic { idempotency.optimistic().unwrap() } else { idempotency };
    let idempotency = idempotency.operation(operation).unwrap();
    let runs = if delay.is_zero() { RUNS } else { DELAYED_RUNS };
    let mut run = async |key: &str| {
        let effect = format!("{}-{key}-{}", form.name(), delay.as_millis());
        let work = async || {
            if form != Form::Claimed {
                let put = PutItem::builder().table_name(EFFECTS).item("id", AttributeValue::S(effect));
                let put = Transaction::new().put(put.build().unwrap());
                staging().unwrap().add(put).map_err(io::Error::other)?;
            }
            Ok::<_, io::Error>("a receipt".to_owned())
        };
        let _: String = idempotency.run(Key::new(key).unwrap(), "12.50 EUR", work).await.unwrap();
    };
    run("warm up").await;
    let first = times(&requests, runs, &mut run).await;
    let duplicate = times(&requests, runs, &mut run).await;
    Row { name: name.to_owned(), first, duplicate }
}

const EFFECTS: &str = "effects";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Claimed,
    Transaction,
    Optimistic,
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Transaction => "transaction",
            Self::Optimistic => "optimistic",
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure(),
        ["--against", program] => compare(program, 5).unwrap(),
        ["--against", program, rounds] => {
            compare(program, rounds.parse().expect("a number of rounds")).unwrap()
        }
        _ => panic!("usage: store_table [--against PROGRAM [ROUNDS]]"),
    }
}

/// Runs the program, and parses the table that it prints. Returns each row's name with two p50s in ms: of a first run,
/// and of a duplicate.
fn table_of(program: &str) -> Vec<(String, [f64; 2])> {
    let output = std::process::Command::new(program).output().expect("the program starts");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    let rows = text.lines().filter_map(|line| {
        // An older table has no columns for the server's processor time.
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let times: Vec<f64> =
            cells.iter().filter_map(|cell| cell.strip_suffix(" ms")?.parse().ok()).collect();
        let columns = (cells.len() - 1) / 2;
        let is_time = |cell: &&&str| cell.ends_with(" ms");
        let of_first = cells.get(1..=columns)?.iter().filter(is_time).count();
        Some(((*cells.first()?).to_owned(), [*times.first()?, *times.get(of_first)?]))
    });
    rows.collect()
}

/// Returns the median, and the distance between the quartiles.
fn spread(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |part: usize| values[(values.len() - 1) * part / 4];
    (at(2), at(3) - at(1))
}

fn compare(before: &str, rounds: usize) -> io::Result<()> {
    let after = std::env::current_exe()?;
    let programs = [before, after.to_str().expect("a path in UTF-8")];
    let mut tables = [Vec::new(), Vec::new()];
    for _ in 0..rounds.max(1) {
        for (program, tables) in programs.iter().zip(&mut tables) {
            tables.push(table_of(program));
        }
    }
    let mut out = io::stdout();
    writeln!(
        out,
        "| store | first run: p50 before | after | change | noise | duplicate: p50 before | after | change | noise |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for (name, _) in &tables[1][0] {
        let of = |tables: &[Vec<(String, [f64; 2])>], column: usize| {
            let rows = tables.iter().flatten().filter(|row| row.0 == *name);
            rows.map(|row| row.1[column]).collect::<Vec<_>>()
        };
        let cells = [0, 1].map(|column| {
            let (before, after) = (of(&tables[0], column), of(&tables[1], column));
            if before.is_empty() {
                return format!("- | {:.2} ms | - | -", spread(after).0);
            }
            let ((before, one), (after, other)) = (spread(before), spread(after));
            let (change, noise) = (after - before, one.max(other));
            format!("{before:.2} ms | {after:.2} ms | {change:+.2} ms | {noise:.2} ms")
        });
        writeln!(out, "| {name} | {} | {} |", cells[0], cells[1])?;
    }
    Ok(())
}

#[tokio::main]
async fn measure() {
    let (none, slow) = (Duration::ZERO, Duration::from_millis(3));
    let emulator = emulator::Emulator::start().await;
    let table = DynamoDbStore::builder("records").client(emulator.client()).build().await.unwrap();
    let _ = table.create_table().await.unwrap();
    effects(&emulator.client()).await;
    let dynamodb: Arc<dyn Store> = Arc::new(table);
    let mut rows = vec![row("memory", Arc::new(MemoryStore::new()), none, Form::Claimed).await];
    rows.push(row("DynamoDB (embedded)", Arc::clone(&dynamodb), none, Form::Claimed).await);
    let server = postgres::Server::shared().expect("PostgreSQL must be installed");
    let postgres = PostgresStore::builder(server.url()).build().unwrap();
    let _ = postgres.create_table().await.unwrap();
    for (name, parameters) in POSTGRES {
        rows.push(by_statements(server, name, parameters).await);
    }
    rows.push(in_postgres(server, postgres).await);
    let redis = redis::shared().expect("Redis must be installed");
    let redis = RedisStore::builder(redis.url()).build().unwrap();
    rows.push(row("Redis", Arc::new(redis), none, Form::Claimed).await);
    for (name, form) in [
        ("DynamoDB + 3 ms, claimed", Form::Claimed),
        ("DynamoDB + 3 ms, in its transaction (T8)", Form::Transaction),
        ("DynamoDB + 3 ms, optimistic", Form::Optimistic),
    ] {
        rows.push(row(name, Arc::clone(&dynamodb), slow, form).await);
    }
    print(&rows).unwrap();
}

async fn effects(client: &aws_sdk_dynamodb::Client) {
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build().unwrap();
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let create = client.create_table().table_name(EFFECTS).key_schema(key);
    let create = create.attribute_definitions(id.build().unwrap()).billing_mode(BillingMode::PayPerRequest);
    create.send().await.unwrap();
}

/// The ways to send statements to PostgreSQL, each with the URL parameters that select it. The first two are for direct
/// connections, with unnamed and with prepared statements. The third is for connections behind a pooler.
const POSTGRES: [(&str, &str); 3] = [
    ("PostgreSQL", ""),
    ("PostgreSQL, `?prepared=true`", "&prepared=true"),
    ("PostgreSQL, `?timeouts=transaction`", "&timeouts=transaction"),
];

/// Measures one way to send statements, on its own table and its own single connection.
async fn by_statements(server: &postgres::Server, name: &str, parameters: &str) -> Row {
    let url = format!("{}?table={}{parameters}", server.url(), postgres::fresh_table());
    let store = PostgresStore::builder(url).connections(1).build().unwrap();
    let _ = store.create_table().await.unwrap();
    let requests = Arc::new(AtomicU64::new(0));
    let store = Measured { inner: Arc::new(store), delay: Duration::ZERO, requests: Arc::clone(&requests) };
    let idempotency =
        Idempotency::builder(store).function("bench").build().unwrap().operation("once").unwrap();
    let mut run = async |key: &str| {
        let work = async || Ok::<_, io::Error>("a receipt".to_owned());
        let _: String = idempotency.run(Key::new(key).unwrap(), "12.50 EUR", work).await.unwrap();
    };
    run("warm up").await;
    run("warm up").await;
    let client = server.client().await;
    let (mut rows, runs) = (Vec::new(), RUNS as u32);
    for _ in ["first", "duplicate"] {
        let before = server_cpu(&client).await;
        let measured = times(&requests, RUNS, &mut run).await;
        let cpu = server_cpu(&client).await.saturating_sub(before) / runs;
        rows.push(Times { cpu: Some(cpu), ..measured });
    }
    let (duplicate, first) = (rows.pop().unwrap(), rows.pop().unwrap());
    Row { name: name.to_owned(), first, duplicate }
}

/// The processor time that all of the store's sessions have used so far.
async fn server_cpu(client: &tokio_postgres::Client) -> Duration {
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'lambda-idempotency'";
    let sessions = client.query(sessions, &[]).await.unwrap();
    let nanos = sessions.iter().map(|session| {
        let path = format!("/proc/{}/schedstat", session.get::<_, i32>(0));
        let times = std::fs::read_to_string(path).unwrap_or_default();
        times.split(' ').next().and_then(|on_cpu| on_cpu.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// Measures an operation whose record is written in the user's own transaction.
async fn in_postgres(server: &postgres::Server, store: PostgresStore) -> Row {
    let (mut client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE effects (id text)").await.unwrap();
    let idempotency =
        Idempotency::builder(store.clone()).function("bench").build().unwrap().operation("in").unwrap();
    let uncounted = AtomicU64::new(0);
    let mut run = async |key: &str| {
        let work = async |transaction: &tokio_postgres::Transaction<'_>| {
            transaction.execute("INSERT INTO effects VALUES ($1)", &[&key]).await?;
            Ok::<_, tokio_postgres::Error>("a receipt".to_owned())
        };
        let key = Key::new(key).unwrap();
        let _: String = idempotency.run_in(&store, &mut client, &key, "12.50 EUR", work).await.unwrap();
    };
    run("warm up").await;
    let first = times(&uncounted, RUNS, &mut run).await;
    let duplicate = times(&uncounted, RUNS, &mut run).await;
    Row { name: "PostgreSQL, in one transaction with an INSERT".to_owned(), first, duplicate }
}

fn print(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout();
    let micros = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
    writeln!(
        out,
        "| store | first run: requests | p50 | p99 | server CPU | duplicate: requests | p50 | p99 | server CPU |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for Row { name, first, duplicate } in rows {
        let cells = |times: &Times| {
            let requests =
                if times.requests == 0.0 { "-".to_owned() } else { format!("{:.1}", times.requests) };
            let cpu = times.cpu.map_or_else(|| "-".to_owned(), micros);
            format!("{requests} | {} | {} | {cpu}", micros(times.p50), micros(times.p99))
        };
        writeln!(out, "| {name} | {} | {} |", cells(first), cells(duplicate))?;
    }
    Ok(())
}
