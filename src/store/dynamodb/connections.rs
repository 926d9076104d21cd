//! The client's connections. None that died in a freeze costs a call more than one attempt.
//!
//! Lambda freezes the sandbox between two invocations, and DynamoDB's front ends and the network close or forget its
//! connections meanwhile. The SDK's default client keeps any number of idle connections for 90 s of the monotonic
//! clock, and each attempt would take the next dead one. After a freeze with more dead connections than a call has
//! attempts, the call would fail, although DynamoDB is up. So this client uses another pool as soon as
//!
//! - the pool hasn't answered for [`TOO_IDLE`], by either clock,
//! - the clocks have drifted apart since the pool was made: a freeze that only the wall clock shows, or
//! - an attempt in the pool failed without an answer. The other idle connections are probably dead too. The SDK's next
//!   attempt follows within milliseconds, and opens a connection, or
//! - the process was restored from a snapshot, which neither clock needs to show.
//!
//! Calls that still run in the earlier pool end there. Their answers don't return it to use.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{config::ConfigBag, error::BoxError};
use aws_smithy_http_client::{Connector, proxy::ProxyConfig, tls};
use aws_smithy_runtime_api::client::{
    connector_metadata::ConnectorMetadata,
    http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    orchestrator::HttpRequest,
    runtime_components::{RuntimeComponents, RuntimeComponentsBuilder},
};

use super::attempts::was_refused;
use crate::time::{LastAnswer, TOO_IDLE};

/// If the clocks drift apart by more than this, the pool is replaced. The pool itself closes a connection that was idle
/// for [`TOO_IDLE`] less this time, by the monotonic clock. So no connection is idle for more than [`TOO_IDLE`] by the
/// wall clock.
const DRIFT: Duration = Duration::from_secs(5);

/// The HTTP client of a store whose SDK client has none of its own. It's the SDK's default client, except for the
/// replacement of its pool.
///
/// Clones share the pools.
#[derive(Clone, Default)]
pub(super) struct Connections {
    /// One pool per setting of the timeouts. A store has one or two.
    pools: Arc<Mutex<Vec<Pool>>>,
}

impl Connections {
    /// Lets the next calls use new pools.
    pub(super) fn close(&self) {
        locked(&self.pools).clear();
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

struct Pool {
    timeouts: [Option<Duration>; 2],
    connector: SharedHttpConnector,
    made: LastAnswer,
    health: Arc<Health>,
}

/// What the calls in a pool found out.
#[derive(Debug)]
struct Health {
    /// When the last call was answered, or when the pool was made.
    answered: Mutex<LastAnswer>,
    /// Whether a call got no answer.
    is_suspect: AtomicBool,
}

/// Makes a connector as the SDK's default client does, except for the idle timeout.
fn connector(settings: Option<&HttpConnectorSettings>, components: Option<&RuntimeComponents>) -> Connector {
    let mut builder = Connector::builder()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
        .proxy_config(ProxyConfig::from_env())
        .pool_idle_timeout(TOO_IDLE - DRIFT);
    builder.set_connector_settings(settings.cloned());
    builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
    builder.build()
}

impl Pool {
    fn new(settings: &HttpConnectorSettings, components: &RuntimeComponents) -> Self {
        let made = LastAnswer::now();
        Self {
            timeouts: timeouts(settings),
            connector: SharedHttpConnector::new(connector(Some(settings), Some(components))),
            made,
            health: Arc::new(Health { answered: Mutex::new(made), is_suspect: AtomicBool::new(false) }),
        }
    }

    fn is_usable(&self) -> bool {
        !self.health.is_suspect.load(Ordering::Relaxed)
            && locked(&self.health.answered).idle_for() <= TOO_IDLE
            && self.made.clocks_differ_by() <= DRIFT
    }
}

fn timeouts(settings: &HttpConnectorSettings) -> [Option<Duration>; 2] {
    [settings.connect_timeout(), settings.read_timeout()]
}

impl HttpClient for Connections {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let mut pools = locked(&self.pools);
        let of = timeouts(settings);
        pools.retain(|pool| pool.timeouts != of || pool.is_usable());
        let found = pools.iter().position(|pool| pool.timeouts == of);
        let at = found.unwrap_or_else(|| {
            pools.push(Pool::new(settings, components));
            pools.len() - 1
        });
        let Pool { connector, health, .. } = &pools[at];
        SharedHttpConnector::new(Watched { connector: connector.clone(), health: Arc::clone(health) })
    }

    /// Makes a connector, which loads the machine's certificates. In Lambda, the store is built during the
    /// initialization, which gets more CPU time than the first request.
    fn validate_base_client_config(
        &self,
        _: &RuntimeComponentsBuilder,
        _: &ConfigBag,
    ) -> Result<(), BoxError> {
        drop(connector(None, None));
        Ok(())
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        Some(ConnectorMetadata::new("hyper", Some(Cow::Borrowed("1.x"))))
    }
}

/// A pool's connector, which notes whether its calls get answers.
#[derive(Debug)]
struct Watched {
    connector: SharedHttpConnector,
    health: Arc<Health>,
}

/// A call that waits for its answer. The SDK drops the call if the attempt times out.
struct Unanswered(Option<Arc<Health>>);

impl Unanswered {
    /// Ends the wait without a finding.
    fn forget(&mut self) {
        self.0 = None;
    }

    fn answered(&mut self) {
        if let Some(health) = self.0.take() {
            *locked(&health.answered) = LastAnswer::now();
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(health) = self.0.take() {
            health.is_suspect.store(true, Ordering::Relaxed);
        }
    }
}

impl HttpConnector for Watched {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let mut waiting = Unanswered(Some(Arc::clone(&self.health)));
        let answer = self.connector.call(request);
        HttpConnectorFuture::new(async move {
            let answer = answer.await;
            match &answer {
                Ok(_) => waiting.answered(),
                // The server refused a new connection, so the pool had no idle one.
                Err(error) if was_refused(error) => waiting.forget(),
                Err(_) => {}
            }
            answer
        })
    }
}

/// Takes the lock. No code panics while it changes the data, so the data is intact even if the lock is poisoned.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
