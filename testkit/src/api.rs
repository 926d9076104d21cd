//! An API for the table of HTTP cases: a handler behind the layer, in each configuration that a case needs. Some tests
//! call the API in process, and others run it as a Lambda function.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lambda_http::{
    Body, Request, Response,
    http::Method,
    lambda_runtime::tower::{ServiceBuilder, service_fn, util::BoxCloneService},
};
use lambda_idempotency::{Builder, lambda::http::HttpLayer, settings::Execution};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::clock::SetClock;

/// A part of every answer of the handler. No log may contain this text.
pub const CANARY: &str = "c4n4ry";

/// The documentation page of the API in [`Layered::Required`].
pub const PAGE: &str = "https://api.example/idempotency";

/// The layer's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layered {
    /// The default.
    Plain,
    /// A key must be in quotes, as the draft of the `Idempotency-Key` header requires.
    Strict,
    /// Keys are UUIDs.
    Uuid,
    /// Each request needs a key, and problem details link to [`PAGE`].
    Required,
    /// At most once.
    AtMostOnce,
    /// The default, with a store that can't be reached.
    Down,
}

impl Layered {
    /// All configurations.
    pub const ALL: [Self; 6] =
        [Self::Plain, Self::Strict, Self::Uuid, Self::Required, Self::AtMostOnce, Self::Down];

    /// The configuration's name.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    fn layer(self, engine: Builder) -> HttpLayer {
        let execution = if self == Self::AtMostOnce { Execution::AtMostOnce } else { Execution::default() };
        let layer = engine.execution(execution).build().unwrap().http();
        match self {
            Self::Strict => layer.quoted_keys(true),
            Self::Uuid => layer.uuid_keys(true),
            Self::Required => layer.required(true).documentation(PAGE),
            Self::Plain | Self::AtMostOnce | Self::Down => layer,
        }
    }
}

/// A handler behind the layer.
pub type Service = BoxCloneService<Request, Response<Body>, Infallible>;

/// Returns the API on the store of `engine`, and the API's layer.
pub fn api(layered: Layered, engine: Builder, runs: &Runs) -> (Service, HttpLayer) {
    let clock = SetClock::system();
    let layer = layered.layer(engine.clock(clock.clone()));
    let runs = runs.clone();
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request| {
            let ahead = asked(&request, "ahead").map_or(0, |seconds| seconds.parse().unwrap());
            clock.set_ahead(ahead);
            // The deadline moves along with the clock. A deadline in the past would leave no time.
            if let Some(context) = request.extensions_mut().get_mut::<lambda_runtime::Context>() {
                context.deadline += ahead * 1000;
            }
            request
        })
        .layer(layer.clone())
        .service(service_fn(move |request| handle(runs.clone(), request)));
    (BoxCloneService::new(service), layer)
}

/// Counts a handler's runs, and calls a function at each run.
#[derive(Clone)]
pub struct Runs {
    count: Arc<AtomicUsize>,
    tell: fn(),
}

impl Runs {
    /// Starts at zero, and calls `tell` at each run.
    pub fn telling(tell: fn()) -> Self {
        Self { count: Arc::default(), tell }
    }

    /// The number of runs.
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

/// Answers with the status that the request asks for, or else as the function `payments` does.
async fn handle(runs: Runs, request: Request) -> Result<Response<Body>, Infallible> {
    let nth = runs.next();
    if let Some(gate) = asked(&request, "hold") {
        // The test accepts the connection when the handler runs, and closes it to let the handler continue.
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
        // The layer must remove this header, since the response isn't a replay.
        .header("idempotent-replayed", "true");
    Ok(response.body(Body::Text(format!("{{\"payment\":\"{payment}\"}}"))).unwrap())
}

fn asked<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().get(name).map(|value| value.to_str().unwrap())
}
