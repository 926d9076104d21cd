//! One invocation: the real HTTP layer in a sandbox with its own store, and with its own proxy in front of the server.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lambda_http::{
    Body, Context as LambdaContext, Request, RequestExt as _, Response,
    http::{HeaderValue, Method, StatusCode, Uri},
    service_fn,
    tower::{Layer as _, Service as _},
};
use lambda_idempotency::{
    Fingerprint, Idempotency, Key, StoredKey,
    settings::Execution,
    store::{Generation, Mark, Owner, Put, PutOutcome, Record, State, Status, Store},
    time::{Clock as _, system_clock},
};
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Problem, Result},
    wire::{Proxy, When},
};
use lambda_idempotency_testing::Fault;
use testkit::clock::SetClock;

use super::{
    judge::{Answer, Evidence},
    plan::{Lasting, Plan, Position, Way},
};
use crate::{
    site::Site,
    tcp::{Protocol, TcpProxy},
};

/// The function's timeout: Lambda's default.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
/// The clock of each key's last delivery is ahead by this much: longer than any lease with its margin, and shorter than
/// any retention.
const UNTIL_ALL_LEASES_END: Duration = Duration::from_secs(90);
/// The time limit of a delivery without faults.
const PATIENCE: Duration = Duration::from_secs(60);
/// The library's default timeout of one attempt at DynamoDB. The proxy delays late requests by a little more.
const ATTEMPT: Duration = Duration::from_secs(1);
/// More requests than any invocation makes.
const ALL_REQUESTS: usize = 1_000;
/// How many times to try to warm up a sandbox.
const WARM_UPS: u32 = 10;
const FUNCTION: &str = "deadlines";

/// The proxy between the store and its server.
enum Wire {
    DynamoDb(Proxy),
    Tcp(TcpProxy),
}

impl Wire {
    async fn before(site: &Site, way: Way) -> Result<Self> {
        let server = site.address()?;
        let tcp =
            async |protocol| TcpProxy::before(server, protocol).await.context("couldn't start the proxy");
        Ok(match way {
            Way::DynamoDb(_) => {
                let upstream = format!("http://{server}").parse().context("invalid server address")?;
                let proxy = Proxy::before(upstream, ATTEMPT).await;
                Self::DynamoDb(proxy.context("couldn't start the proxy")?)
            }
            Way::Postgres(_) => Self::Tcp(tcp(Protocol::Postgres).await?),
            Way::Redis(_) => Self::Tcp(tcp(Protocol::Redis).await?),
        })
    }

    fn address(&self) -> std::net::SocketAddr {
        match self {
            Self::DynamoDb(proxy) => proxy.address(),
            Self::Tcp(proxy) => proxy.address(),
        }
    }

    /// Starts to break requests.
    fn fail(&self, plan: &Plan) {
        match (self, plan.way) {
            (Self::DynamoDb(proxy), Way::DynamoDb(fault)) => {
                let requests = match plan.lasting {
                    Lasting::Some { requests, .. } => requests,
                    Lasting::All => ALL_REQUESTS,
                };
                proxy.break_next(requests, fault);
            }
            (Self::Tcp(proxy), Way::Postgres(fault) | Way::Redis(fault)) => {
                let time = match plan.lasting {
                    Lasting::Some { time, .. } => Some(time),
                    Lasting::All => None,
                };
                proxy.break_for(time, fault);
            }
            // `before` creates each wire for its plan's store, so the wire and the fault always match.
            _ => {}
        }
    }

    /// Whether the proxy broke anything.
    fn has_struck(&self) -> bool {
        match self {
            Self::DynamoDb(proxy) => proxy.log().exchanges().iter().any(|exchange| exchange.fault.is_some()),
            Self::Tcp(proxy) => proxy.struck() > 0,
        }
    }

    /// Ends the invocation: from now on, only requests that the proxy has held reach the server.
    async fn close(&self) {
        match self {
            Self::DynamoDb(proxy) => {
                proxy.close().await;
                proxy.deliver(When::AfterAnswer).await;
            }
            Self::Tcp(proxy) => proxy.close().await,
        }
    }

    /// Forwards the requests that are held until after the next delivery.
    async fn deliver_the_rest(&self) {
        if let Self::DynamoDb(proxy) = self {
            proxy.deliver(When::AfterRedelivery).await;
        }
    }
}

/// The handler's work, which takes no time. It returns the body of the answer.
type Work = Arc<dyn Fn() -> String + Send + Sync>;

/// Invokes the function once while the wire breaks as planned. Then invokes it once more through `direct`, without the
/// proxy, with a clock ahead of all leases. Returns `None` if no request was broken: on a busy machine, the fault can
/// be over before the first request.
///
/// # Errors
///
/// If the server fails without an injected fault.
pub(super) async fn invoke(
    site: &Site,
    direct: &Arc<dyn Store>,
    plan: Plan,
    knows_deadline: bool,
) -> Result<Option<Evidence>> {
    let wire = Arc::new(Wire::before(site, plan.way).await?);
    let engine = engine(site.store_at(wire.address()).await?, Duration::ZERO)?;
    let key = Owner::random().context("couldn't draw a key")?.to_string();
    let stored = stored(&engine, &key)?;
    let effects = Arc::new(AtomicU64::new(0));
    if plan.is_warm {
        warm_up(&engine, &key).await?;
    }
    if plan.way.amounts_to() == Fault::HideRecord {
        // This fault removes the old item from the answer to a rejected write. So the key needs a record that makes the
        // store reject the claim.
        release(&**direct, &stored).await?;
    }
    if plan.position == Position::Claim {
        wire.fail(&plan);
    }
    let (counter, breaking) = (Arc::clone(&effects), Arc::clone(&wire));
    let work: Work = Arc::new(move || {
        let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
        if plan.position == Position::Settlement {
            breaking.fail(&plan);
        }
        response(run)
    });
    let begun = clock::start();
    let deadline = if knows_deadline { deadline_after(TIMEOUT) } else { 0 };
    let answer = deliver(&engine, &key, deadline, TIMEOUT, work).await?;
    let took = begun.elapsed();
    wire.close().await;
    if !wire.has_struck() {
        return Ok(None);
    }
    let effects_then = effects.load(Ordering::SeqCst);
    let record = direct.read(&stored).await.context("couldn't read the record")?;
    let is_recorded = record.is_some_and(|record| record.status() == Status::Completed);

    let later = self::engine(Arc::clone(direct), UNTIL_ALL_LEASES_END)?;
    let counter = Arc::clone(&effects);
    let work: Work = Arc::new(move || response(counter.fetch_add(1, Ordering::SeqCst) + 1));
    let deadline = deadline_after(UNTIL_ALL_LEASES_END + PATIENCE);
    let again = deliver(&later, &key, deadline, PATIENCE, work).await?;
    wire.deliver_the_rest().await;
    Ok(Some(Evidence {
        answer,
        response: response(1),
        took,
        effects: effects_then,
        is_recorded,
        must_be_recorded: plan.heals_in_time(),
        may_be_in_progress: plan.way.amounts_to() == Fault::Conflict,
        again,
        effects_in_the_end: effects.load(Ordering::SeqCst),
    }))
}

/// Runs another operation, so that the sandbox is connected to the store.
async fn warm_up(engine: &Idempotency, key: &str) -> Result<()> {
    let mut last = None;
    // On a busy machine a connection may take longer than the library waits for one.
    for nth in 0..WARM_UPS {
        let work: Work = Arc::new(|| response(0));
        let key = format!("{key}-before-{nth}");
        last = deliver(engine, &key, deadline_after(PATIENCE), PATIENCE, work).await?;
        if last.as_ref().is_some_and(|answer| answer.status == 201) {
            return Ok(());
        }
    }
    Err(Problem::new(format!("couldn't warm up the sandbox: {last:?}")))
}

/// Returns the response of the handler's run with this number.
fn response(run: u64) -> String {
    format!("run {run}")
}

/// Returns the deadline that's `time` from now, in Lambda's format: ms since the epoch.
fn deadline_after(time: Duration) -> u64 {
    system_clock().now().saturating_add(time).as_millis()
}

fn engine(store: Arc<dyn Store>, ahead: Duration) -> Result<Idempotency> {
    let builder = Idempotency::builder(store).function(FUNCTION).clock(SetClock::system().ahead(ahead));
    builder.build().context("couldn't build the engine")
}

fn stored(engine: &Idempotency, key: &str) -> Result<StoredKey> {
    let scope = engine.scope("http").context("invalid scope")?;
    Ok(StoredKey::new(&scope, &Key::new(key).context("invalid key")?))
}

/// Sends a request through the HTTP layer, in an invocation that ends after `timeout`. The library knows only
/// `deadline`. Returns `None` if there's no answer when the invocation ends.
async fn deliver(
    engine: &Idempotency,
    key: &str,
    deadline: u64,
    timeout: Duration,
    work: Work,
) -> Result<Option<Answer>> {
    let mut context = LambdaContext::default();
    (context.deadline, context.request_id) = (deadline, "deadlines".to_owned());
    let request = Request::new(Body::from(r#"{"amount":"12.50 EUR"}"#)).with_lambda_context(context);
    let (mut parts, body) = request.into_parts();
    parts.method = Method::POST;
    parts.uri = Uri::from_static("https://example.com/payments");
    let key = HeaderValue::try_from(format!("\"{key}\"")).context("invalid key header")?;
    parts.headers.insert("idempotency-key", key);
    let handler = service_fn(move |_: Request| {
        let mut response = Response::new(Body::from(work()));
        *response.status_mut() = StatusCode::CREATED;
        async { Ok::<_, Infallible>(response) }
    });
    let answering = engine.http().layer(handler).call(Request::from_parts(parts, body));
    let Ok(answered) = tokio::time::timeout(timeout, answering).await else { return Ok(None) };
    let answer = match answered {
        Ok(answer) => answer,
        Err(never) => match never {},
    };
    let body = String::from_utf8_lossy(answer.body()).into_owned();
    Ok(Some(Answer { status: answer.status().as_u16(), body }))
}

/// Writes a released record.
async fn release(direct: &dyn Store, key: &StoredKey) -> Result<()> {
    let now = system_clock().now();
    let released = Record {
        owner: Owner::random().context("couldn't draw an owner")?,
        generation: Generation::new(1),
        attempt: 1,
        fingerprint: Fingerprint::of_bytes(b"another request"),
        lock_acquired_at: now,
        execution: Execution::AtLeastOnce,
        expires_at: Some(now.saturating_add(PATIENCE).rounded_up_to_second()),
        mark: Mark::None,
        request_id: None,
        trace: None,
        state: State::Released,
    };
    match direct.put(key, &Put::Create(released)).await.context("couldn't write the released record")? {
        PutOutcome::Applied => Ok(()),
        PutOutcome::Refused(record) => Err(Problem::new(format!("a record blocks the key: {record:?}"))),
    }
}
