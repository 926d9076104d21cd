//! An API that the table of cases is sent to: a handler behind the layer, in each configuration that a case needs. The
//! tests call it in process, and run it as a function.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_http::{
    Body, Request, Response,
    http::Method,
    lambda_runtime::tower::{ServiceBuilder, service_fn, util::BoxCloneService},
};
use lambda_idempotency::{
    BoxFuture, Builder, Clock, Execution, SystemClock, Timestamp,
    lambda::http::{HttpLayer, KeyFormat, KeySyntax},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// What clients get of a handler, and no log is to hold.
pub const CANARY: &str = "c4n4ry";

/// The page of the API's documentation, where it has one.
pub const PAGE: &str = "https://api.example/idempotency";

/// How the layer is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layered {
    /// As it comes.
    Plain,
    /// Keys are string items, as the draft writes them.
    Strict,
    /// Keys are UUIDs.
    Uuid,
    /// Each request needs a key, and the problems name a page.
    Required,
    /// Nothing runs a second time.
    AtMostOnce,
    /// As it comes, on a store that cannot be reached.
    Down,
}

impl Layered {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::Plain, Self::Strict, Self::Uuid, Self::Required, Self::AtMostOnce, Self::Down];

    /// Its name.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    fn layer(self, engine: Builder) -> HttpLayer {
        let execution = if self == Self::AtMostOnce { Execution::AtMostOnce } else { Execution::default() };
        let layer = engine.execution(execution).build().unwrap().http();
        match self {
            Self::Strict => layer.key_syntax(KeySyntax::Strict),
            Self::Uuid => layer.key_format(KeyFormat::Uuid),
            Self::Required => layer.required(true).documentation(PAGE),
            Self::Plain | Self::AtMostOnce | Self::Down => layer,
        }
    }
}

/// A handler behind the layer.
pub type Service = BoxCloneService<Request, Response<Body>, Infallible>;

/// The API, on the store of `engine`, and its layer.
pub fn api(layered: Layered, engine: Builder, runs: &Runs) -> (Service, HttpLayer) {
    let clock = Ahead::default();
    let layer = layered.layer(engine.clock(clock.clone()));
    let runs = runs.clone();
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request| {
            let ahead = asked(&request, "ahead").map_or(0, |seconds| seconds.parse().unwrap());
            clock.set(ahead);
            // The platform's clock is ahead as well: a deadline that is past leaves no time.
            if let Some(context) = request.extensions_mut().get_mut::<lambda_runtime::Context>() {
                context.deadline += ahead * 1000;
            }
            request
        })
        .layer(layer.clone())
        .service(service_fn(move |request| handle(runs.clone(), request)));
    (BoxCloneService::new(service), layer)
}

/// How often a handler ran, and what tells of it at each time.
#[derive(Clone)]
pub struct Runs {
    count: Arc<AtomicUsize>,
    tell: fn(),
}

impl Runs {
    /// None yet; `tell` is called at each.
    pub fn telling(tell: fn()) -> Self {
        Self { count: Arc::default(), tell }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn next(&self) -> usize {
        (self.tell)();
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} runs", self.count())
    }
}

/// Answers with the status that the request asks for; where it asks for none, as the function `payments` does.
async fn handle(runs: Runs, request: Request) -> Result<Response<Body>, Infallible> {
    let nth = runs.next();
    if let Some(gate) = asked(&request, "hold") {
        // The test accepts, so it knows that this runs; it hangs up, so this goes on.
        let mut gate = TcpStream::connect(gate).await.unwrap();
        gate.read_to_end(&mut Vec::new()).await.unwrap();
    }
    let is_order = request.body().windows(8).any(|name| name == b"order_id");
    let status = match (asked(&request, "status"), request.method()) {
        (Some(status), _) => status,
        (None, &Method::POST) if is_order => "201",
        (None, &Method::POST) => "400",
        (None, _) => "404",
    };
    let payment = format!("{CANARY}-payment-{nth}");
    let response = Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("location", format!("/payments/{payment}"))
        // Not to be believed: it is the layer that knows.
        .header("idempotent-replayed", "true");
    Ok(response.body(Body::Text(format!("{{\"payment\":\"{payment}\"}}"))).unwrap())
}

fn asked<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().get(name).map(|value| value.to_str().unwrap())
}

/// The system's clock, set forward by the requests.
#[derive(Clone, Debug, Default)]
pub struct Ahead(Arc<Mutex<Duration>>);

impl Ahead {
    /// Sets it so many seconds forward, and no more than that.
    pub fn set(&self, seconds: u64) {
        *self.0.lock().unwrap() = Duration::from_secs(seconds);
    }
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now().saturating_add(*self.0.lock().unwrap())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemClock.sleep(duration)
    }
}
