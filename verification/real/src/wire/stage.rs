//! The table that the runs use, with a direct connection and one through the proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    config::retry::{RetryConfig, RetryPartition},
    types::AttributeValue,
};
use bytes::Bytes;
use lambda_idempotency::{
    Fingerprint, RecordedFailure, StoredKey,
    settings::Execution,
    store::{
        Generation, Lock, Mark, Outcome, Owner, Place, Put, PutOutcome, Record, State, Store, StoredResponse,
        dynamodb::DynamoDbStore,
    },
    time::{Clock, Timestamp, system_clock},
};
use lambda_idempotency_rehearsal::{
    problem::{Context, Problem, Result},
    wire::{Proxy, Upstream, When},
};

use super::{
    budget::TimeOuts,
    calls::{Calls, Notes},
    case::{Case, Retries},
    sabotage::{Sabotage, sabotaged},
    scenario::{Handler, Prior, Rival, Scenario},
    way::Medium,
};
use crate::{
    servers::{Server, config_of, fresh_table},
    site::{Kind, Site},
    tcp::{Protocol, TcpProxy},
};

/// The outcome in the record before the run.
pub(super) const PRIOR: &str = "the prior outcome";
/// The rival's outcome.
pub(super) const RIVAL: &str = "the rival's outcome";
/// The inline limit of the store under test. It's low, so that a response of a few hundred bytes already goes into a
/// chunk.
const INLINE_LIMIT: usize = 256;

/// How many times to try to warm up a store.
const WARM_UPS: u32 = 10;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The name of the function in every record's key.
pub(super) const FUNCTION: &str = "wire";
/// A part of the error message of a delivery that has no time left.
pub(super) const NO_TIME: &str = "no time is left";

static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// A table on a server, and the ways to reach it. Cheap to clone.
#[derive(Clone)]
pub(super) struct Stage {
    /// The store that connects without the proxy.
    pub(super) direct: Arc<dyn Store>,
    way: Way,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) subject: Subject,
}

/// The program under test, which the operations are delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A handler that uses the library.
    Library,
    /// A function that doesn't use the library, behind the Lambda layer.
    Layer,
}

impl Subject {
    /// Whether this program can play the scenario. The layer doesn't see panics, since the function is another process.
    /// Near the deadline, the layer posts the function's answer before it records the answer. The layer's own tests
    /// cover that.
    pub(super) fn plays(self, scenario: &Scenario) -> bool {
        self == Self::Library || scenario.handler != Handler::Panics && !scenario.is_short_of_time
    }
}

/// How the store under test reaches its server.
#[derive(Clone)]
enum Way {
    DynamoDb {
        /// The connections to the server, shared by all proxies.
        upstream: Box<Upstream>,
        client: Client,
        table: Arc<str>,
    },
    Tcp {
        site: Arc<Site>,
        protocol: Protocol,
    },
    /// The caller opens the store under test.
    Elsewhere(Medium),
}

/// The proxy between the store and the server in one run.
pub(super) enum Between {
    Http(Proxy),
    Tcp(Arc<Calls>),
}

impl Between {
    pub(super) fn notes(&self) -> Notes {
        match self {
            Self::Http(proxy) => Notes::Requests(proxy.log()),
            Self::Tcp(calls) => Notes::Calls(Arc::clone(calls)),
        }
    }

    /// Closes the proxy, and then forwards the requests that are held until the first delivery has its answer.
    pub(super) async fn close(&self) {
        match self {
            Self::Http(proxy) => {
                proxy.close().await;
                proxy.deliver(When::AfterAnswer).await;
            }
            Self::Tcp(calls) => calls.close().await,
        }
    }

    /// Forwards the requests that are held until the second delivery has its answer.
    pub(super) async fn deliver_the_rest(&self) {
        if let Self::Http(proxy) = self {
            proxy.deliver(When::AfterRedelivery).await;
        }
    }
}

/// The table's record and its outcome.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// When the record was read, by the delivery's clock.
    pub(super) at: Timestamp,
    pub(super) record: Option<Record>,
    /// The record's outcome, if it's settled.
    pub(super) outcome: Option<Said>,
}

/// The content of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The response's text, or the failure's message.
    Text(String),
    /// The response wasn't kept.
    Omitted,
    /// The outcome can't be read, for this reason.
    Unreadable(String),
}

impl Stage {
    /// Creates a stage with its own table on `server`. No sweeper removes expired records there, since a sweeper would
    /// act like another rival.
    pub(super) async fn set(server: &Server, sabotage: Option<Sabotage>) -> Result<Self> {
        let (table, client) = (fresh_table()?, server.client());
        server.database().create_table(&table, "id").await?;
        let direct = DynamoDbStore::builder(&table)
            .client(client.clone())
            .attempt_timeout(Duration::from_secs(10))
            .operation_timeout(Duration::from_secs(30))
            .build()
            .await
            .context(format!("{}: couldn't open the store in table {table}", server.name))?;
        let upstream = Box::new(Upstream::new(server.database().endpoint().clone()));
        let way = Way::DynamoDb { upstream, client, table: table.into() };
        Ok(Self { direct: Arc::new(direct), way, sabotage, subject: Subject::Library })
    }

    /// Starts a server of this kind, and creates a stage with its own table on it.
    pub(super) async fn start(kind: Kind) -> Result<Self> {
        let protocol = match kind {
            Kind::DynamoDb => return Self::set(&Server::embedded().await?, None).await,
            Kind::Postgres => Protocol::Postgres,
            Kind::Redis => Protocol::Redis,
        };
        let site = Arc::new(Site::start(kind).await?);
        let direct = site.direct().await?;
        Ok(Self { direct, way: Way::Tcp { site, protocol }, sabotage: None, subject: Subject::Library })
    }

    /// Creates a stage whose caller opens the stores under test.
    pub(super) fn beside(direct: Arc<dyn Store>, medium: Medium) -> Self {
        Self { direct, way: Way::Elsewhere(medium), sabotage: None, subject: Subject::Library }
    }

    /// Returns the same stage, with the Lambda layer as the program under test.
    pub(super) fn behind_the_layer(self) -> Self {
        Self { subject: Subject::Layer, ..self }
    }

    /// Returns the kind of connection to the server.
    pub(super) fn medium(&self) -> Medium {
        match self.way {
            Way::DynamoDb { .. } => Medium::Http,
            Way::Tcp { .. } => Medium::Tcp,
            Way::Elsewhere(medium) => medium,
        }
    }

    /// Sets up one run: a proxy with the case's faults, and the store under test, which connects through the proxy.
    pub(super) async fn wire(
        &self,
        key: &StoredKey,
        case: &Case,
        time_outs: TimeOuts,
    ) -> Result<(Between, Arc<dyn Store>)> {
        match &self.way {
            Way::DynamoDb { upstream, table, .. } => {
                let proxy = Proxy::planned(Upstream::clone(upstream), case.plan(), time_outs.attempt).await;
                let proxy = proxy.context("couldn't start the proxy")?;
                let store = self.dynamodb(table, &proxy.endpoint(), case.retries, time_outs).await?;
                Ok((Between::Http(proxy), store))
            }
            Way::Tcp { site, protocol } => {
                let proxy =
                    TcpProxy::before(site.address()?, *protocol).await.context("couldn't start the proxy")?;
                let TimeOuts { attempt, operation } = time_outs;
                let store = site.limited_store_at(proxy.address(), attempt, operation)?;
                // Connect first, so that each call of the library is one request.
                warm_up(&*store, key).await?;
                let calls = Calls::new(proxy, case, Arc::clone(&self.direct), key.clone());
                Ok((Between::Tcp(Arc::new(calls)), store))
            }
            Way::Elsewhere(_) => Err(Problem::new("this stage opens no store")),
        }
    }

    /// Creates the store under test, whose SDK talks to `endpoint`.
    async fn dynamodb(
        &self,
        table: &str,
        endpoint: &str,
        retries: Retries,
        time_outs: TimeOuts,
    ) -> Result<Arc<dyn Store>> {
        let retry = match retries {
            Retries::Default => RetryConfig::standard(),
            Retries::Quick => RetryConfig::standard().with_initial_backoff(Duration::from_millis(1)),
            Retries::None => RetryConfig::disabled(),
        };
        let config = config_of(endpoint)
            .retry_config(retry)
            // By default, all clients for one Region in a process share a retry quota. This partition gives each
            // client its own quota.
            .retry_partition(RetryPartition::new(format!("wire {}", CLIENTS.fetch_add(1, Ordering::Relaxed))))
            .build();
        let time_outs = match self.sabotage {
            Some(Sabotage::NeverTimesOut) => TimeOuts::NONE,
            _ => time_outs,
        };
        let store = DynamoDbStore::builder(table)
            .client(Client::from_conf(config))
            .attempt_timeout(time_outs.attempt)
            .operation_timeout(time_outs.operation)
            .inline_limit(INLINE_LIMIT)
            .build()
            .await
            .context("couldn't open the store behind the proxy")?;
        Ok(sabotaged(store, self.sabotage))
    }

    /// Reads the record of `key`, with the time by `clock`.
    pub(super) async fn snapshot(&self, key: &StoredKey, clock: &dyn Clock) -> Result<Snapshot> {
        let record = self.direct.read(key).await.context("couldn't read the record directly")?;
        let outcome = match &record {
            Some(record) => self.said(key, record).await,
            None => None,
        };
        Ok(Snapshot { at: clock.now(), record, outcome })
    }

    async fn said(&self, key: &StoredKey, record: &Record) -> Option<Said> {
        let (outcome, is_failure) = match &record.state {
            State::Completed(outcome) => (outcome, false),
            State::Failed(outcome) => (outcome, true),
            State::Started { .. } | State::Released => return None,
        };
        let response = match outcome {
            Outcome::Omitted => return Some(Said::Omitted),
            Outcome::Retained(response) => response,
        };
        let said = self.decoded(key, record.owner, response).await;
        let said = said.and_then(|json| if is_failure { text_of_failure(&json) } else { text_of(&json) });
        Some(said.map_or_else(Said::Unreadable, Said::Text))
    }

    async fn decoded(
        &self,
        key: &StoredKey,
        owner: Owner,
        response: &StoredResponse,
    ) -> Result<Bytes, String> {
        let kept = match (&response.place, self.direct.chunks()) {
            (Place::Inline(kept), _) => kept.clone(),
            (Place::Chunks(count), Some(parts)) => parts
                .read_chunks(key, owner, *count, response.length)
                .await
                .map_err(|error| error.to_string())?,
            (Place::Chunks(_), None) => return Err("the store can't read chunks".into()),
        };
        response.decode(&kept).map_err(|damage| damage.to_string())
    }

    /// Writes the `prior` record, as if the request with this fingerprint had created it.
    pub(super) async fn prepare(
        &self,
        key: &StoredKey,
        prior: Prior,
        fingerprint: Fingerprint,
    ) -> Result<()> {
        if prior == Prior::Absent {
            return Ok(());
        }
        let now = system_clock().now();
        // Redis removes each record one day after the record's expiry. If the expiry were a day ago, the record would
        // vanish during the run.
        let an_hour_ago = now.saturating_sub(Duration::from_secs(60 * 60));
        let (lease_until, lock_expires_at) = match prior {
            Prior::Stale => (now.saturating_sub(Duration::from_secs(10)), now.saturating_add(DAY)),
            Prior::StaleAndExpired => (an_hour_ago, an_hour_ago),
            _ => (now.saturating_add(Duration::from_secs(60)), now.saturating_add(2 * DAY)),
        };
        let acquired = lease_until.saturating_sub(Duration::from_secs(60));
        let lock = Lock {
            owner: Owner::random().context("couldn't draw an owner")?,
            generation: Generation::new(acquired.as_millis()),
            attempt: 1,
            fingerprint,
            lock_acquired_at: acquired,
            lease_until,
            execution: Execution::AtLeastOnce,
            expires_at: Some(lock_expires_at.rounded_up_to_second()),
            mark: Mark::None,
            request_id: Some("the prior invocation".into()),
            trace: None,
        };
        let expires_at = match prior {
            Prior::Expired => an_hour_ago,
            _ => now.saturating_add(DAY),
        }
        .rounded_up_to_second();
        let state = match prior {
            Prior::Completed | Prior::Expired => State::Completed(inline(&json(PRIOR))),
            Prior::CompletedInParts => {
                State::Completed(self.in_parts(key, lock.owner, PRIOR, expires_at).await?)
            }
            Prior::NotRetained => State::Completed(Outcome::Omitted),
            Prior::Failed => State::Failed(inline(&failure(PRIOR))),
            Prior::Released => State::Released,
            _ => return self.make(key, &Put::Create(lock.into())).await,
        };
        let settled = Record { state, expires_at: Some(expires_at), ..lock.into() };
        self.make(key, &Put::Create(settled)).await
    }

    /// Writes the rival's record. Unlike a real delivery, the rival doesn't wait for the lease to end.
    pub(super) async fn rival(&self, key: &StoredKey, rival: Rival, fingerprint: Fingerprint) -> Result<()> {
        if rival == Rival::Gone {
            return self.remove(key).await;
        }
        let Some(record) = self.direct.read(key).await.context("couldn't read the current record")? else {
            return Ok(());
        };
        let now = system_clock().now();
        let lock = Lock {
            owner: Owner::random().context("couldn't draw the rival's owner")?,
            generation: Generation::new(record.generation.get().saturating_add(1).max(now.as_millis())),
            attempt: record.attempt + 1,
            fingerprint,
            lock_acquired_at: now,
            lease_until: now.saturating_add(Duration::from_secs(60)),
            execution: Execution::AtLeastOnce,
            expires_at: Some(now.saturating_add(2 * DAY).rounded_up_to_second()),
            mark: record.mark,
            request_id: Some("the rival's invocation".into()),
            trace: None,
        };
        let expires_at = now.saturating_add(DAY).rounded_up_to_second();
        let state = match rival {
            Rival::AtWork | Rival::Gone => {
                return self.make(key, &Put::Replace { seen: record, new: lock.into() }).await;
            }
            Rival::Completes => State::Completed(inline(&json(RIVAL))),
            Rival::CompletesInParts => {
                State::Completed(self.in_parts(key, lock.owner, RIVAL, expires_at).await?)
            }
            Rival::Fails => State::Failed(inline(&failure(RIVAL))),
            Rival::Releases => State::Released,
        };
        let new = Record { state, expires_at: Some(expires_at), ..lock.into() };
        self.make(key, &Put::Replace { seen: record, new }).await
    }

    /// Removes the record, as the sweeper does.
    async fn remove(&self, key: &StoredKey) -> Result<()> {
        match &self.way {
            Way::DynamoDb { client, table, .. } => {
                let gone = client.delete_item().table_name(&**table);
                let gone = gone.key("id", AttributeValue::S(key.as_str().to_owned())).send().await;
                gone.map(drop).map_err(|error| Problem::new(format!("couldn't delete the record: {error:?}")))
            }
            Way::Tcp { site, .. } => site.remove(key).await,
            Way::Elsewhere(_) => Err(Problem::new("this stage has no rivals")),
        }
    }

    async fn make(&self, key: &StoredKey, put: &Put) -> Result<()> {
        match self.direct.put(key, put).await.context("couldn't write the record directly")? {
            PutOutcome::Applied => Ok(()),
            PutOutcome::Refused(record) => {
                Err(Problem::new(format!("the direct put {put:?} was rejected because of {record:?}")))
            }
        }
    }

    async fn in_parts(
        &self,
        key: &StoredKey,
        owner: Owner,
        text: &str,
        expires_at: Timestamp,
    ) -> Result<Outcome> {
        let stored = StoredResponse::new(json(text));
        let (Place::Inline(kept), Some(parts)) = (&stored.place, self.direct.chunks()) else {
            return Err(Problem::new("the store can't write chunks"));
        };
        let count =
            parts.write_chunks(key, owner, kept, expires_at).await.context("couldn't write the chunks")?;
        Ok(Outcome::Retained(stored.into_chunks(count)))
    }
}

/// Reads until the store has a working connection.
async fn warm_up(store: &dyn Store, key: &StoredKey) -> Result<()> {
    let mut tries = 1;
    loop {
        match store.read(key).await {
            Ok(_) => return Ok(()),
            Err(error) if tries == WARM_UPS => return Err(Problem::new(format!("can't connect: {error}"))),
            Err(_) => tries += 1,
        }
    }
}

fn inline(json: &Bytes) -> Outcome {
    Outcome::Retained(StoredResponse::new(json.clone()))
}

/// Returns a response in the form that `Operation::run` records.
fn json(text: &str) -> Bytes {
    serde_json::Value::from(text).to_string().into()
}

/// Returns a failure in the form that `Operation::run` records.
fn failure(text: &str) -> Bytes {
    serde_json::to_vec(&RecordedFailure::new("Wire", text)).unwrap_or_default().into()
}

fn text_of(json: &Bytes) -> Result<String, String> {
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

fn text_of_failure(json: &Bytes) -> Result<String, String> {
    serde_json::from_slice(json)
        .map(|failure: RecordedFailure| failure.error_message)
        .map_err(|error| error.to_string())
}
