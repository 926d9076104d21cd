//! Attempts that get no answer or only part of one, and requests that fail on the client's side.

use std::{
    collections::HashMap,
    error::Error as _,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::client::{self, IdempotentRequests};
use reqwest::redirect::Policy;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use testkit::unpaused::unpaused;
use tokio::net::TcpSocket;

use super::{
    http_server::{Reply, Server},
    stage::{CREATED, Stage, StageClock, answer, answer_with, client},
};

const SHORT: Duration = Duration::from_millis(50);

/// Starts a server that pays once per key, and that loses the first connection before or after the payment.
async fn paying(pays_first: bool) -> (Server, Arc<Mutex<HashMap<String, usize>>>) {
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let (ledger, is_lost) = (Arc::clone(&runs), Mutex::new(true));
    let server = Server::start(move |request| {
        let is_lost = std::mem::take(&mut *is_lost.lock().unwrap());
        let mut is_replay = false;
        if !is_lost || pays_first {
            let key = request.headers["idempotency-key"].clone();
            let mut ledger = ledger.lock().unwrap();
            is_replay = ledger.contains_key(&key);
            ledger.entry(key).or_insert(1);
        }
        let marker = is_replay.then_some(("idempotent-replayed", "true"));
        let headers: Vec<_> = marker.into_iter().collect();
        let reply = if is_lost { Reply::Dropped } else { answer_with(201, &headers, CREATED) };
        async { reply }
    })
    .await;
    (server, runs)
}

#[tokio::test]
async fn lost_connections_pay_once() {
    for pays_first in [false, true] {
        let (server, runs) = paying(pays_first).await;
        let client = client(IdempotentRequests::new().backoff(SHORT, SHORT));
        let response = client.post(server.url("/payments")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(2)));
        assert_eq!(client::is_replay(&response), pays_first);
        assert_eq!(runs.lock().unwrap().values().collect::<Vec<_>>(), [&1]);
    }
}

#[tokio::test]
async fn refused_connections_are_retried() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let clock = StageClock::default();
    let watched = clock.clone();
    let server = tokio::spawn(async move {
        // The first wait shows that the client's first attempt was refused. Only then does the server listen.
        while watched.waits().is_empty() {
            tokio::task::yield_now().await;
        }
        Server::on(socket.listen(8).unwrap(), |_| async { answer_with(201, &[], CREATED) })
    });
    let rules = IdempotentRequests::new().backoff(SHORT, SHORT).max_attempts(u32::MAX);
    let client = client(rules.clock(clock));
    let response = client.post(format!("http://{address}/")).send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert!(client::attempts(&response).unwrap() > 1);
    drop(server.await.unwrap());
}

#[tokio::test]
async fn reqwest_timeouts_limit_one_attempt() {
    let measure = async || {
        let stage = Stage::new([Reply::Silence, Reply::Silence]).await;
        let response = stage.payment().timeout(40 * SHORT).send().await.unwrap();
        (response.status().as_u16(), client::attempts(&response))
    };
    // If a busy machine pauses the process, an answered attempt may time out too.
    let answered = (201, Some(3));
    assert_eq!(unpaused(measure, |found| *found == answered).await, answered);
}

#[tokio::test]
async fn truncated_heads_and_problems_are_retried() {
    let head = "HTTP/1.1 409 -\r\ncontent-type: application/problem+json\r\ncontent-length: 99\r\n";
    for cut in [head.to_owned(), format!("{head}\r\n{{\"code\":"), "no HTTP".into()] {
        let stage = Stage::new([Reply::Raw(cut.clone().into())]).await;
        let response = stage.payment().send().await.unwrap();
        assert_eq!((response.status().as_u16(), stage.received().len()), (201, 2), "{cut}");
    }
}

#[tokio::test]
async fn truncated_problems_report_their_status() {
    let cut =
        "HTTP/1.1 503 -\r\ncontent-type: application/problem+json\r\ncontent-length: 99\r\n\r\n{\"code\":";
    let stage = Stage::new([Reply::Raw(cut.into())]).await;
    let rules = IdempotentRequests::new().max_attempts(1);
    let error = stage.client_with(rules).post(stage.server.url("/")).send().await.unwrap_err();
    let unanswered = client::unanswered(&error).unwrap();
    assert_eq!((unanswered.attempts(), unanswered.last_status().unwrap().as_u16()), (1, 503));
    assert!(unanswered.last_error().is_some());
}

#[tokio::test]
async fn callers_get_errors_of_truncated_bodies() {
    let cut = "HTTP/1.1 201 -\r\ncontent-length: 99\r\n\r\n{\"payment";
    let stage = Stage::new([Reply::Raw(cut.into())]).await;
    let response = stage.payment().send().await.unwrap();
    assert!(response.text().await.is_err());
    assert_eq!(stage.received().len(), 1);
}

/// A middleware behind the client that simulates request signing. Its credentials expire after the first request.
struct Signs {
    has_expired: AtomicBool,
}

#[async_trait::async_trait]
impl Middleware for Signs {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut lambda_http::http::Extensions,
        next: Next<'_>,
    ) -> Result<reqwest::Response, reqwest_middleware::Error> {
        if self.has_expired.swap(true, Ordering::SeqCst) {
            return Err(reqwest_middleware::Error::middleware(io::Error::other("expired credentials")));
        }
        next.run(request, extensions).await
    }
}

fn signing(stage: &Stage, has_expired: bool) -> ClientWithMiddleware {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let rules = IdempotentRequests::new().clock(stage.clock.clone());
    ClientBuilder::new(http).with(rules).with(Signs { has_expired: AtomicBool::new(has_expired) }).build()
}

#[tokio::test]
async fn errors_of_later_attempts_have_the_key() {
    for first in [Reply::Dropped, answer(504)] {
        let stage = Stage::new([first]).await;
        let sent = signing(&stage, false).post(stage.server.url("/")).send().await;
        let error = sent.unwrap_err();
        let unanswered = client::unanswered(&error).expect("the error must have the key");
        assert_eq!((unanswered.attempts(), stage.received().len()), (2, 1));
        assert_eq!(stage.keys(), [Some(format!("\"{}\"", unanswered.key().as_str()))]);
        assert_eq!(unanswered.source().unwrap().to_string(), "expired credentials");
        assert!(unanswered.last_error().is_none());
    }
}

#[tokio::test]
async fn errors_of_refused_redirects_have_the_key() {
    let none = Policy::custom(|attempt| attempt.error("no redirects"));
    // `reqwest` follows redirects by default, but not to other schemes.
    for (policy, location) in [(none, "/elsewhere"), (Policy::default(), "ftp://127.0.0.1/")] {
        let stage = Stage::new([answer_with(307, &[("location", location)], "")]).await;
        let http = reqwest::Client::builder().no_proxy().redirect(policy).build().unwrap();
        let rules = IdempotentRequests::new().clock(stage.clock.clone());
        let client = ClientBuilder::new(http).with(rules).build();
        let error = client.post(stage.server.url("/")).send().await.unwrap_err();
        let unanswered = client::unanswered(&error).expect("the error must have the key");
        assert_eq!((unanswered.attempts(), stage.received().len()), (1, 1), "{location}");
        assert_eq!(stage.keys(), [Some(format!("\"{}\"", unanswered.key().as_str()))]);
        assert!(unanswered.last_error().unwrap().url().is_none(), "a URL may contain a token");
        assert!(stage.clock.waits().is_empty());
    }
}

#[tokio::test]
async fn errors_before_sending_pass_unchanged() {
    let stage = Stage::new([]).await;
    let error = stage.client().post("ftp://127.0.0.1/").send().await.unwrap_err();
    assert!(error.is_builder(), "{error:?}");
    let error = signing(&stage, true).post(stage.server.url("/")).send().await.unwrap_err();
    assert_eq!(error.to_string(), "expired credentials");
    assert!(client::unanswered(&error).is_none());
    assert!(stage.received().is_empty() && stage.clock.waits().is_empty());
}
