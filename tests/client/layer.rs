//! The client against the library's own HTTP layer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lambda_http::{Body, Request, Response, service_fn, tower::ServiceBuilder};
use lambda_idempotency::{
    Idempotency, Key,
    client::{self, IdempotentRequests},
    store::memory::MemoryStore,
};
use tokio::sync::Notify;
use tower::ServiceExt;

use super::{
    http_server::{Received, Reply, Server},
    stage::{BODY, CREATED, StageClock, client},
};

/// An API with the layer. Its handler runs until the test notifies `may_end`.
#[derive(Debug)]
struct Api {
    idempotency: Idempotency,
    runs: AtomicUsize,
    may_end: Notify,
}

impl Api {
    fn new() -> Arc<Self> {
        let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build().unwrap();
        Arc::new(Self { idempotency, runs: AtomicUsize::new(0), may_end: Notify::new() })
    }

    async fn answer(self: Arc<Self>, received: Received) -> Reply {
        let api = Arc::clone(&self);
        let handler = service_fn(move |_: Request| {
            let api = Arc::clone(&api);
            async move {
                api.runs.fetch_add(1, Ordering::SeqCst);
                api.may_end.notified().await;
                Response::builder().status(201).body(Body::from(CREATED))
            }
        });
        let mut request = Request::new(Body::from(received.body));
        *request.method_mut() = received.method.parse().unwrap();
        *request.uri_mut() = received.path.parse().unwrap();
        request.headers_mut().insert("idempotency-key", received.headers["idempotency-key"].parse().unwrap());
        let service = ServiceBuilder::new().layer(self.idempotency.http()).service(handler);
        let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
        let text = |(name, value): (&lambda_http::http::HeaderName, &lambda_http::http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        Reply::Whole(parts.status.as_u16(), parts.headers.iter().map(text).collect(), body.to_vec())
    }
}

#[tokio::test]
async fn running_operations_are_awaited_and_replayed() {
    let (api, arrived) = (Api::new(), Arc::new(AtomicUsize::new(0)));
    let behind = Arc::clone(&api);
    let first = Arc::new(tokio::sync::Mutex::new(None));
    let server = Server::start(move |received| {
        let (api, arrived, first) = (Arc::clone(&behind), Arc::clone(&arrived), Arc::clone(&first));
        async move {
            let nth = arrived.fetch_add(1, Ordering::SeqCst);
            if nth == 0 {
                // The server drops the connection while the handler continues.
                let running = tokio::spawn(Arc::clone(&api).answer(received));
                *first.lock().await = Some(running);
                while api.runs.load(Ordering::SeqCst) == 0 {
                    tokio::task::yield_now().await;
                }
                return Reply::Dropped;
            }
            let reply = Arc::clone(&api).answer(received).await;
            let Reply::Whole(status, ..) = &reply else { panic!("{reply:?}") };
            assert_eq!(*status, if nth == 1 { 409 } else { 201 });
            if let Some(running) = first.lock().await.take() {
                api.may_end.notify_one();
                running.await.unwrap();
            }
            reply
        }
    })
    .await;

    let clock = StageClock::default();
    let rules = IdempotentRequests::new().clock(clock.clone());
    let key = Key::new("order 17").unwrap();
    let request = client(rules).post(server.url("/payments")).with_extension(key).body(BODY);
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(3)));
    assert!(client::is_replay(&response));
    assert_eq!(response.text().await.unwrap(), CREATED);
    assert_eq!(api.runs.load(Ordering::SeqCst), 1);
    let waited = clock.waits()[1].as_secs();
    assert!(
        (5..=10).contains(&waited),
        "expected a wait of 5 s to 10 s, not the minute that the lease still lasts: {waited} s"
    );
}
