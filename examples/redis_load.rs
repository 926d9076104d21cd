//! Measures how long first runs and duplicates take on Redis, at a steady rate of operations.
//!
//! ```text
//! redis_load [RATE [SECONDS]]      default: 1000 operations a second, for 10 seconds
//! ```
//!
//! `IDEMPOTENCY_STORE` names the store. Without it, the example starts a `redis-server` on loopback, and
//! stops it at the end.
//!
//! An operation is one call of `Operation::run` whose handler returns at once. Every second operation is a duplicate
//! of an earlier one. The example measures everything that a handler pays for: the library, the store, the wire and
//! Redis. Each operation begins at its planned time, even if earlier operations still run. An operation's time counts
//! from its planned start, so a stall shows in the time of every operation that it delays.
//!
//! For comparison, the example measures `PING` in the same way, on the same machine, over a separate connection. No
//! request takes less time than `PING`. Half of the PINGs run before the operations and half after them. The last line
//! of the output is the 99th percentile of all operations, minus PING's. On a quiet machine, it's at most 1 ms.

#![allow(clippy::expect_used, reason = "an example panics on a failure")]
#![expect(clippy::disallowed_methods, reason = "the example measures real time")]

use std::{
    env,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use lambda_idempotency::{
    Idempotency, Key, Operation,
    store::{Owner, redis::RedisStore},
};
use testkit::redis::RedisServer;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One row of the output: a kind of operation, and how long each operation of that kind took.
struct Series {
    name: &'static str,
    times: Vec<Duration>,
}

fn main() -> Result<(), Failure> {
    let mut arguments = env::args().skip(1);
    let mut number = |default: u32| arguments.next().map_or(Ok(default), |number| number.parse());
    let (rate, seconds) = (number(1000)?, number(10)?);
    let (url, _server) = match env::var("IDEMPOTENCY_STORE") {
        Ok(url) => (url, None),
        Err(_) => {
            let server = RedisServer::start(&[]).ok_or("redis-server is missing")?;
            (server.url(), Some(server))
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(&url, rate, seconds))
}

async fn measure(url: &str, rate: u32, seconds: u32) -> Result<(), Failure> {
    let client = redis::Client::open(url)?;
    let bare = client.get_multiplexed_async_connection().await?;
    let engine =
        Arc::new(Idempotency::builder(RedisStore::new(url)?).function("load").build()?.operation("load")?);
    let prefix = Owner::random()?.to_string();
    operation(&engine, &prefix, u32::MAX).await?;

    let count = rate * seconds;
    let ping = move |_| {
        let mut bare = bare.clone();
        async move { Ok(redis::cmd("PING").exec_async(&mut bare).await?) }
    };
    let mut pings = at_rate(rate, count / 2, ping.clone()).await?;
    let both = at_rate(rate, count, move |nth| {
        let (engine, prefix) = (Arc::clone(&engine), prefix.clone());
        // A duplicate repeats the operation 101 places before it, which has ended by then. The first 100 operations are
        // all first runs.
        let key = if nth % 2 == 0 || nth < 100 { nth } else { nth - 101 };
        async move { operation(&engine, &prefix, key).await }
    })
    .await?;
    pings.extend(at_rate(rate, count / 2, ping).await?);
    let is_first = |nth: usize| nth.is_multiple_of(2) || nth < 100;
    let of = |first: bool| both.iter().enumerate().filter(move |(nth, _)| is_first(*nth) == first);
    let series = [
        Series { name: "PING", times: pings.clone() },
        Series { name: "first run (2 requests)", times: of(true).map(|(_, time)| *time).collect() },
        Series { name: "duplicate (1 request)", times: of(false).map(|(_, time)| *time).collect() },
        Series { name: "all operations", times: both.clone() },
    ];
    let mut out = std::io::stdout().lock();
    writeln!(out, "{rate} operations a second for {seconds} s, in µs:")?;
    writeln!(out, "{:<24}{:>8}{:>8}{:>8}{:>8}{:>8}", "", "count", "p50", "p99", "p99.9", "max")?;
    let mut p99s = Vec::new();
    for Series { name, mut times } in series {
        times.sort_unstable();
        let at = |part: f64| {
            let nth = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
            times.get(nth).map_or(0, Duration::as_micros)
        };
        let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(at);
        p99s.push(p99);
        writeln!(out, "{name:<24}{:>8}{p50:>8}{p99:>8}{p999:>8}{max:>8}", times.len())?;
    }
    if let [ping, .., all] = p99s[..] {
        writeln!(out, "p99 of all operations, minus PING's p99: {} µs", all.saturating_sub(ping))?;
    }
    Ok(())
}

async fn operation(engine: &Operation, prefix: &str, key: u32) -> Result<(), Failure> {
    let key = Key::new(format!("{prefix}-{key}"))?;
    let receipt: String =
        engine.run(key, &"12.50 EUR", async || Ok::<_, std::io::Error>("receipt".into())).await?;
    if receipt == "receipt" { Ok(()) } else { Err("the receipt differs".into()) }
}

/// Begins `count` operations, `rate` per second, and returns the time that each took from its planned start.
async fn at_rate<F>(
    rate: u32,
    count: u32,
    operation: impl Fn(u32) -> F + Send + 'static,
) -> Result<Vec<Duration>, Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let runtime = tokio::runtime::Handle::current();
    // A separate thread waits for the planned starts, since tokio's timer is only accurate to a millisecond.
    let pace = move || {
        let (began, mut running) = (Instant::now(), JoinSet::new());
        for nth in 0..count {
            let due = began + Duration::from_secs(1) * nth / rate;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let operation = operation(nth);
            let timed = async move {
                operation.await?;
                Ok::<_, Failure>((nth, due.elapsed()))
            };
            running.spawn_on(timed, &runtime);
        }
        running
    };
    let mut running = tokio::task::spawn_blocking(pace).await?;
    let mut times = vec![Duration::ZERO; count as usize];
    while let Some(done) = running.join_next().await {
        let (nth, time) = done??;
        times[nth as usize] = time;
    }
    Ok(times)
}
