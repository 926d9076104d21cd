//! Long faults: a server restarts, or DynamoDB throttles or refuses for seconds, while operations are settled.
//!
//! Unlike the faults of a `Case`, a long fault hits all operations of a round. When all their handlers are running,
//! and each invocation has about 30 s left, the fault begins. Each handler returns at a random time, shortly before the
//! fault or during it. The library must record every outcome, so the judge of the other runs expects the usual answer
//! and no gap. The stores connect with the library's defaults, and their calls aren't watched.
//!
//! The seed fixes the rounds: what happens to the server, for how long, and when each handler returns. It doesn't fix
//! the timing of threads and sockets.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use lambda_idempotency::{StoredKey, store::Store};
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Problem, Result},
    wire::{HttpWay, Proxy},
};
use lambda_idempotency_testing::Fault;
use testkit::random::Random;
use tokio::{task::JoinSet, time::timeout};

use super::{
    budget::Lateness,
    case::{Case, Origin, Retries},
    judge::judge,
    play::play_through,
    report::Report,
    round::{Long, Round},
    scenario,
    stage::Stage,
    way::Medium,
};
use crate::{
    site::{Host, Kind, Site},
    tcp::{Protocol, TcpProxy, TcpWay},
};

/// How many operations run at once, each with its own store.
const AT_ONCE: u32 = 50;
/// The first handlers return this long before the fault, so that the fault begins while the library records outcomes.
const LEAD: Duration = Duration::from_millis(30);
/// How long the handlers may take to start on a busy machine.
const LATENESS: Duration = Duration::from_secs(10);
/// How many times to check whether a server is back, 100 ms apart.
const PATIENCE: u32 = 300;
/// The library's default timeout of one attempt at DynamoDB.
const ATTEMPT: Duration = Duration::from_secs(1);
/// More requests than a round makes.
const ALL_REQUESTS: usize = 1_000_000;

/// A long fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongFault {
    /// PostgreSQL stops or crashes, and starts again, up to three times in a round.
    PostgresRestarted,
    /// Redis stops or crashes, and starts again, up to three times in a round.
    RedisRestarted,
    /// DynamoDB throttles every request for 3 s.
    DynamoDbThrottled,
    /// DynamoDB can't be reached for 10 s.
    DynamoDbRefusing,
}

/// The size of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongExtent {
    /// How many operations go through each fault.
    pub operations: u32,
    /// The seed of the rounds.
    pub seed: u64,
    /// How long the library tries to record outcomes. `None` means its default. If this time is shorter than a
    /// fault, the check must report lost outcomes.
    pub settle_within: Option<Duration>,
}

impl LongExtent {
    /// The extent of an ordinary test run: half a round.
    pub const fn bounded(seed: u64) -> Self {
        Self { operations: AT_ONCE / 2, seed, settle_within: None }
    }
}

impl LongFault {
    /// Every long fault.
    pub const ALL: [Self; 4] =
        [Self::PostgresRestarted, Self::RedisRestarted, Self::DynamoDbThrottled, Self::DynamoDbRefusing];

    /// The kind of server that has this fault.
    pub const fn kind(self) -> Kind {
        match self {
            Self::PostgresRestarted => Kind::Postgres,
            Self::RedisRestarted => Kind::Redis,
            Self::DynamoDbThrottled | Self::DynamoDbRefusing => Kind::DynamoDb,
        }
    }

    /// The fault that its requests meet.
    pub const fn amounts_to(self) -> Fault {
        match self {
            Self::PostgresRestarted | Self::RedisRestarted | Self::DynamoDbRefusing => Fault::Outage,
            Self::DynamoDbThrottled => Fault::Throttle,
        }
    }

    /// Draws the times of one round when the server is down.
    fn round(self, random: &mut Random) -> Vec<Downtime> {
        let fixed = |secs| vec![Downtime { lasts: Duration::from_secs(secs), ..Downtime::default() }];
        match self {
            Self::DynamoDbThrottled => fixed(3),
            Self::DynamoDbRefusing => fixed(10),
            Self::PostgresRestarted | Self::RedisRestarted => (0..random.between(1, 3))
                .map(|_| Downtime {
                    crashes: random.percent(50),
                    lasts: Duration::from_millis(random.between(300, 3_000)),
                    then: Duration::from_millis(random.between(100, 800)),
                })
                .collect(),
        }
    }
}

impl Display for LongFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PostgresRestarted => "PostgreSQL, restarted",
            Self::RedisRestarted => "Redis, restarted",
            Self::DynamoDbThrottled => "DynamoDB, throttled for 3 s",
            Self::DynamoDbRefusing => "DynamoDB, refusing for 10 s",
        })
    }
}

/// A time when the server is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Downtime {
    /// Whether the server crashes. Otherwise it's stopped normally.
    crashes: bool,
    /// How long the server is down, without the time that it takes to start.
    lasts: Duration,
    /// How long the server is up before it's down again.
    then: Duration,
}

/// Returns the time from the beginning of the first downtime to the end of the last one.
fn length(downtimes: &[Downtime]) -> Duration {
    let gaps: Duration = downtimes.iter().rev().skip(1).map(|downtime| downtime.then).sum();
    gaps + downtimes.iter().map(|downtime| downtime.lasts).sum::<Duration>()
}

/// Plays operations through each of these faults, on different servers at the same time. Returns the reports in the
/// order of `faults`.
///
/// # Errors
///
/// If a server doesn't start, doesn't come back, or fails without its fault.
pub async fn check_long(faults: &[LongFault], extent: LongExtent) -> Result<Vec<Report>> {
    let mut running = JoinSet::new();
    for (nth, fault) in faults.iter().copied().enumerate() {
        running.spawn(async move {
            let report = on_one(fault, extent).await;
            (nth, report.map_err(|problem| Problem::new(format!("{fault}: {problem}"))))
        });
    }
    let mut all = running.join_all().await;
    all.sort_by_key(|(nth, _)| *nth);
    all.into_iter().map(|(_, report)| report).collect()
}

async fn on_one(fault: LongFault, extent: LongExtent) -> Result<Report> {
    let begun = clock::start();
    let medium = if fault.kind() == Kind::DynamoDb { Medium::Http } else { Medium::Tcp };
    let mut victim = Victim::start(fault).await?;
    let stage = Stage::beside(victim.site.direct().await?, medium);
    let (mut random, lateness) = (Random::new(extent.seed), Arc::new(Lateness::watch()));
    let mut report = Report::new(fault.to_string(), medium);
    let mut left = extent.operations;
    while left > 0 {
        let operations = left.min(AT_ONCE);
        let downtimes = fault.round(&mut random);
        let round = Arc::new(Round::new(operations));
        // Each store connects before its operation has to start in time.
        let mut stores = Vec::new();
        for _ in 0..operations {
            let store = victim.site.store_at(victim.address()?).await?;
            answers(&*store).await?;
            stores.push(store);
        }
        let mut running = JoinSet::new();
        for store in stores {
            let latest = u64::try_from((LEAD + length(&downtimes)).as_millis()).unwrap_or(u64::MAX);
            let long = Long {
                round: Arc::clone(&round),
                returns_after: Duration::from_millis(random.between(0, latest)),
                settle_within: extent.settle_within,
            };
            let case = Case {
                origin: Origin::Long(extent.seed),
                medium,
                scenario: &scenario::LONG,
                retries: Retries::Default,
                faults: BTreeMap::new(),
                long: Some(long.clone()),
            };
            let (stage, lateness) = (stage.clone(), Arc::clone(&lateness));
            running.spawn(async move {
                let facts = play_through(&stage, &case, store, &long, &lateness).await?;
                let verdict = judge(&facts);
                Ok((facts, verdict))
            });
        }
        let too_busy = |_| Problem::new("the machine is too busy: the handlers didn't start");
        timeout(LATENESS, round.all_have_started()).await.map_err(too_busy)?;
        clock::pause(LEAD).await;
        victim.suffer(&downtimes).await?;
        answers(&*stage.direct).await?;
        round.end();
        while let Some(done) = running.join_next().await {
            report.note(done)?;
        }
        left -= operations;
    }
    report.took = begun.elapsed();
    Ok(report)
}

/// Waits until the server answers the store.
async fn answers(store: &dyn Store) -> Result<()> {
    let key = StoredKey::from_stored("nobody's");
    let mut last = None;
    for _ in 0..PATIENCE {
        match store.read(&key).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        clock::pause(Duration::from_millis(100)).await;
    }
    Err(Problem::new(format!("the server doesn't answer: {last:?}")))
}

/// A server that can be taken down, and the proxy before it, if it has one.
#[derive(Debug)]
struct Victim {
    site: Site,
    door: Door,
}

#[derive(Debug)]
enum Door {
    /// Nothing: the server itself stops and starts.
    Open,
    Throttling(Proxy),
    Refusing(TcpProxy),
}

impl Victim {
    async fn start(fault: LongFault) -> Result<Self> {
        let site = Site::start(fault.kind()).await?;
        let server = site.address()?;
        let door = match fault {
            LongFault::PostgresRestarted | LongFault::RedisRestarted => Door::Open,
            LongFault::DynamoDbThrottled => {
                let upstream = format!("http://{server}").parse().context("invalid server address")?;
                let proxy = Proxy::before(upstream, ATTEMPT).await;
                Door::Throttling(proxy.context("couldn't start the proxy")?)
            }
            LongFault::DynamoDbRefusing => {
                let proxy = TcpProxy::before(server, Protocol::Http).await;
                Door::Refusing(proxy.context("couldn't start the proxy")?)
            }
        };
        Ok(Self { site, door })
    }

    /// The address to which the stores under test connect.
    fn address(&self) -> Result<SocketAddr> {
        match &self.door {
            Door::Open => self.site.address(),
            Door::Throttling(proxy) => Ok(proxy.address()),
            Door::Refusing(proxy) => Ok(proxy.address()),
        }
    }

    /// Takes the server down each of these times, and brings it back after each.
    async fn suffer(&mut self, downtimes: &[Downtime]) -> Result<()> {
        for (nth, downtime) in downtimes.iter().enumerate() {
            if nth > 0 {
                clock::pause(downtimes.get(nth - 1).map_or(Duration::ZERO, |last| last.then)).await;
            }
            self.take_down(*downtime)?;
            clock::pause(downtime.lasts).await;
            self.bring_back()?;
        }
        Ok(())
    }

    fn take_down(&mut self, downtime: Downtime) -> Result<()> {
        match (&self.door, &mut self.site.host) {
            (Door::Throttling(proxy), _) => proxy.break_next(ALL_REQUESTS, HttpWay::Throttle),
            (Door::Refusing(proxy), _) => proxy.break_for(None, TcpWay::Refuse),
            (Door::Open, Host::Postgres(server)) if downtime.crashes => server.crash(),
            (Door::Open, Host::Postgres(server)) => server.stop(),
            (Door::Open, Host::Redis(server)) if downtime.crashes => server.crash(),
            (Door::Open, Host::Redis(server)) => server.stop(),
            (Door::Open, Host::DynamoDb(_)) => return Err(Problem::new("the embedded DynamoDB can't stop")),
        }
        Ok(())
    }

    fn bring_back(&mut self) -> Result<()> {
        match (&self.door, &mut self.site.host) {
            (Door::Throttling(proxy), _) => proxy.heal(),
            (Door::Refusing(proxy), _) => proxy.heal(),
            (Door::Open, Host::Postgres(server)) => server.start_again(),
            (Door::Open, Host::Redis(server)) => server.start_again(),
            (Door::Open, Host::DynamoDb(_)) => return Err(Problem::new("the embedded DynamoDB can't start")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_round() {
        for fault in LongFault::ALL {
            let rounds = |seed| {
                let mut random = Random::new(seed);
                (0..10).map(|_| fault.round(&mut random)).collect::<Vec<_>>()
            };
            assert_eq!(rounds(17), rounds(17));
            assert!(rounds(17).iter().all(|round| length(round) <= Duration::from_secs(11)));
        }
    }

    #[test]
    fn a_round_ends_with_its_last_downtime() {
        let downtime = |lasts, then| Downtime {
            crashes: false,
            lasts: Duration::from_secs(lasts),
            then: Duration::from_secs(then),
        };
        assert_eq!(length(&[downtime(3, 100)]), Duration::from_secs(3));
        assert_eq!(length(&[downtime(3, 1), downtime(2, 100)]), Duration::from_secs(6));
    }
}
