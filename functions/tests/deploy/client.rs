//! Calls `payments` with the library's client, through an HTTP front end that loses connections.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::{
    Key,
    client::{self, IdempotentRequests},
    store::BoxFuture,
    time::{Clock, Timestamp, system_clock},
};
use lambda_idempotency_rehearsal::{answer::Answer, database::Database, event::Event};
use lambda_idempotency_testing::Fault;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    http_server::{Received, Reply, Server},
    stage::{Delivers, PAYMENTS, Running, database, project},
};

/// The HTTP API in front of `payments`.
struct FrontEnd {
    server: Server,
    payments: Arc<Vec<Mutex<Running>>>,
}

impl FrontEnd {
    /// Starts this number of sandboxes, which take turns. The first request meets the first of the `faults`, the second
    /// request the second fault, and so on. Requests after the last fault meet none.
    async fn start(database: &Database, sandboxes: usize, faults: &'static [Fault]) -> Self {
        let mut running = Vec::new();
        for _ in 0..sandboxes {
            running.push(Mutex::new(Running::start("payments", database).await));
        }
        let payments = Arc::new(running);
        let (pool, arrived) = (Arc::clone(&payments), Arc::new(AtomicUsize::new(0)));
        let server = Server::start(move |request| {
            let (pool, arrived) = (Arc::clone(&pool), Arc::clone(&arrived));
            async move {
                let nth = arrived.fetch_add(1, Ordering::SeqCst);
                let fault = faults.get(nth).copied();
                // The front end drops the connection before it calls the function.
                if fault == Some(Fault::LoseRequest) {
                    return Reply::Dropped;
                }
                let mut payments = pool[nth % pool.len()].lock().await;
                let answer = payments.deliver_event(&event(&request)).await;
                if fault == Some(Fault::LoseAnswer) { Reply::Dropped } else { reply(answer) }
            }
        })
        .await;
        Self { server, payments }
    }

    async fn only(&self) -> MutexGuard<'_, Running> {
        self.payments[0].lock().await
    }

    /// How often a handler has run so far.
    async fn runs(&self) -> usize {
        let mut runs = 0;
        for payments in self.payments.iter() {
            runs += payments.lock().await.marks().await;
        }
        runs
    }

    /// Pays `order` in one operation with this key.
    async fn pay(
        &self,
        client: &ClientWithMiddleware,
        key: &Key,
        order: &str,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let body = json!({ "order_id": order, "amount_cents": 1250, "currency": "EUR" }).to_string();
        let request = client.post(self.server.url("/payments")).header("content-type", "application/json");
        request.with_extension(key.clone()).body(body).send().await
    }
}

/// The event that an HTTP API makes from this request.
fn event(request: &Received) -> Event {
    let text = fs::read_to_string(project().join("events/payments/http-api.json")).unwrap();
    let mut event: Value = serde_json::from_str(&text).unwrap();
    event["headers"] = json!(request.headers);
    event["rawPath"] = request.path.as_str().into();
    event["requestContext"]["http"]["method"] = request.method.as_str().into();
    event["requestContext"]["http"]["path"] = request.path.as_str().into();
    event["body"] = str::from_utf8(&request.body).unwrap().into();
    Event::new(event)
}

/// The response that an HTTP API makes from this answer.
fn reply(answer: Answer) -> Reply {
    match answer {
        Answer::Http(http) => {
            let headers = http.headers.into_iter().filter(|(name, _)| name != "content-length");
            Reply::Whole(u16::try_from(http.status).unwrap(), headers.collect(), http.body.into_bytes())
        }
        other => Reply::Whole(500, vec![], format!("{other:?}").into_bytes()),
    }
}

/// Creates a client that sleeps for a fortieth of each wait, so that the tests don't wait for long leases.
fn client() -> ClientWithMiddleware {
    #[derive(Debug)]
    struct Hurried;

    impl Clock for Hurried {
        fn now(&self) -> Timestamp {
            system_clock().now()
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            system_clock().sleep(duration / 40)
        }
    }

    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let rules = IdempotentRequests::new().budget(Duration::from_secs(1200)).clock(Hurried);
    ClientBuilder::new(http).with(rules).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_pay_once() {
    for (faults, is_replay) in [(&[Fault::LoseRequest][..], false), (&[Fault::LoseAnswer], true)] {
        let database = database().await;
        let front_end = FrontEnd::start(&database, 1, faults).await;
        let key = Key::draw().unwrap();

        let response = front_end.pay(&client(), &key, "order-1").await.unwrap();
        assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(2)), "{faults:?}");
        assert_eq!(client::is_replay(&response), is_replay, "{faults:?}");
        let payment = response.text().await.unwrap();
        assert_eq!(front_end.only().await.marks().await, 1, "{faults:?}");
        assert_eq!(database.payments_of(PAYMENTS, "order-1").await.unwrap(), 1, "{faults:?}");

        // A new client sends the same key, as after a restart.
        let key = Key::new(key.as_str()).unwrap();
        let again = front_end.pay(&client(), &key, "order-1").await.unwrap();
        assert!(client::is_replay(&again) && client::attempts(&again) == Some(1));
        assert_eq!(again.text().await.unwrap(), payment);
        assert_eq!(database.payments_of(PAYMENTS, "order-1").await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_never_retries_permanent_refusals() {
    let database = database().await;
    let front_end = FrontEnd::start(&database, 1, &[]).await;
    let (client, key) = (client(), Key::draw().unwrap());
    front_end.pay(&client, &key, "order-1").await.unwrap();

    let reused = front_end.pay(&client, &key, "order-2").await.unwrap();
    assert_eq!((reused.status().as_u16(), client::attempts(&reused)), (422, Some(1)));
    let problem: Value = serde_json::from_slice(&reused.bytes().await.unwrap()).unwrap();
    assert_eq!(problem["code"], "key-reused");

    let malformed = front_end.pay(&client, &Key::draw().unwrap(), "").await.unwrap();
    assert_eq!((malformed.status().as_u16(), client::attempts(&malformed)), (400, Some(1)));
    assert_eq!(front_end.runs().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_pay_once_and_agree() {
    const CALLERS: usize = 9;
    let database = database().await;
    let front_end = Arc::new(FrontEnd::start(&database, 3, &[Fault::LoseAnswer, Fault::LoseRequest]).await);
    let key = Key::draw().unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (front_end, key) = (Arc::clone(&front_end), key.clone());
            tokio::spawn(async move {
                let response = front_end.pay(&client(), &key, "order-1").await.unwrap();
                assert_eq!(response.status(), 201);
                (client::is_replay(&response), response.text().await.unwrap())
            })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    let first = answers.iter().filter(|(is_replay, _)| !is_replay).count();
    assert!(first <= 1, "more than one response isn't a replay");
    assert!(answers.iter().all(|(_, payment)| *payment == answers[0].1));
    assert_eq!(front_end.runs().await, 1);
    assert_eq!(database.payments_of(PAYMENTS, "order-1").await.unwrap(), 1);
}
