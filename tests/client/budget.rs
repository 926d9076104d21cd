//! The limits of retries: the budget, the number of attempts, the retry quota, and a body that can be sent only once.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lambda_idempotency::{
    client::{self, IdempotentRequests},
    store::BoxFuture,
    time::{Clock, Timestamp},
};
use reqwest::Body;
use tokio::time::timeout;

use super::{
    http_server::{Reply, Server},
    stage::{Stage, answer, answer_with, client, problem},
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn waits_beyond_the_budget_are_skipped() {
    let told = |seconds| answer_with(429, &[("retry-after", seconds)], "slow down");
    let stage = Stage::new([told("20"), told("10")]).await;
    let response = stage.payment().send().await.unwrap();
    assert_eq!((response.status().as_u16(), client::attempts(&response)), (429, Some(2)));
    assert_eq!(response.headers()["retry-after"], "10");
    assert_eq!(response.text().await.unwrap(), "slow down");
    let waits = stage.clock.waits();
    assert!(
        waits.len() == 1 && waits[0] >= 20 * SECOND && waits[0] < 21 * SECOND,
        "a second wait would exceed the default budget of 30 s"
    );
}

#[tokio::test]
async fn error_of_lost_attempts_has_the_key() {
    let stage = Stage::new((0..9).map(|nth| if nth == 1 { answer(503) } else { Reply::Dropped })).await;
    let rules = IdempotentRequests::new().max_attempts(3);
    let error = stage.client_with(rules).post(stage.server.url("/")).send().await.unwrap_err();
    let unanswered = client::unanswered(&error).unwrap();
    assert_eq!((unanswered.attempts(), stage.received().len()), (3, 3));
    assert_eq!(unanswered.last_status().unwrap(), 503);
    assert!(unanswered.last_error().unwrap().is_request());
    let key = unanswered.key().as_str();
    assert_eq!(stage.keys()[2], Some(format!("\"{key}\"")));
    assert!(!format!("{error} {error:?}").contains(key));
}

#[tokio::test]
async fn exhausted_budgets_cancel_the_attempt() {
    let stage = Stage::new([answer(503), Reply::Silence]).await;
    let request = tokio::spawn(stage.payment().send());
    while stage.received().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!request.is_finished());
    stage.clock.pass(30 * SECOND);
    let error = timeout(20 * SECOND, request).await.expect("the client never stopped").unwrap().unwrap_err();
    let unanswered = client::unanswered(&error).unwrap();
    assert_eq!(unanswered.attempts(), 2);
    assert_eq!(unanswered.last_status().unwrap(), 503);
    assert!(unanswered.last_error().is_none());
    assert!(error.to_string().contains("retry it with the same key"), "{error}");
}

#[tokio::test]
async fn unsent_attempts_are_not_counted() {
    let stage = Stage::new([]).await;
    let rules = IdempotentRequests::new().budget(Duration::ZERO);
    let error = stage.client_with(rules).post(stage.server.url("/")).send().await.unwrap_err();
    assert_eq!(client::unanswered(&error).unwrap().attempts(), 0);
    assert!(stage.received().is_empty());
}

#[tokio::test]
async fn the_real_clock_enforces_the_budget() {
    let server = Server::start(|_| async { Reply::Silence }).await;
    let client = client(IdempotentRequests::new().budget(Duration::from_millis(100)));
    let sent =
        timeout(20 * SECOND, client.post(server.url("/")).send()).await.expect("the client never stopped");
    assert_eq!(client::unanswered(&sent.unwrap_err()).unwrap().attempts(), 1);
}

/// A clock that is set back by an hour once the budget has started. A wait between attempts never ends, but the
/// budget's timer ends once the client waits.
#[derive(Clone, Debug, Default)]
struct SetBack {
    has_started: Arc<AtomicBool>,
    is_waiting: Arc<AtomicBool>,
}

impl Clock for SetBack {
    fn now(&self) -> Timestamp {
        let hour = 3600 * u64::from(!self.has_started.load(Ordering::SeqCst));
        Timestamp::from_secs(1_795_166_144 + hour)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        if self.has_started.swap(true, Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            return Box::pin(pending());
        }
        let is_waiting = Arc::clone(&self.is_waiting);
        Box::pin(poll_fn(
            move |_| {
                if is_waiting.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            },
        ))
    }
}

#[tokio::test]
async fn budgets_end_waits_if_clock_goes_back() {
    let stage = Stage::new([answer_with(503, &[("retry-after", "1000")], "")]).await;
    let client = client(IdempotentRequests::new().clock(SetBack::default()));
    let sent = timeout(20 * SECOND, client.post(stage.server.url("/")).send());
    let error = sent.await.expect("the client never stopped").unwrap_err();
    let unanswered = client::unanswered(&error).unwrap();
    assert_eq!((unanswered.attempts(), stage.received().len()), (1, 1));
    assert_eq!(unanswered.last_status().unwrap(), 503);
}

#[tokio::test]
async fn max_attempts_limits_the_requests() {
    for (limit, expected) in [(0, 1), (1, 1), (4, 4)] {
        let stage = Stage::new((0..9).map(|_| answer(500))).await;
        let client = stage.client_with(IdempotentRequests::new().max_attempts(limit));
        let response = client.post(stage.server.url("/")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), stage.received().len()), (500, expected));
    }
}

#[tokio::test]
async fn uncloneable_bodies_are_sent_once() {
    for reply in [answer(503), Reply::Dropped] {
        let stage = Stage::new([reply]).await;
        let body = Body::wrap(Body::from("once"));
        let sent = stage.client().post(stage.server.url("/")).body(body).send().await;
        let (key, attempts) = match &sent {
            Ok(response) => (client::operation_key(response), client::attempts(response)),
            Err(error) => {
                let unanswered = client::unanswered(error).unwrap();
                (Some(unanswered.key()), Some(unanswered.attempts()))
            }
        };
        assert_eq!((stage.received().len(), attempts), (1, Some(1)));
        assert_eq!(stage.received()[0].body, b"once");
        assert_eq!(stage.keys(), [Some(format!("\"{}\"", key.unwrap().as_str()))]);
    }
}

/// Without a shared quota, 20 operations with 20 attempts each would send 400 requests to a server that is down.
#[tokio::test]
async fn retries_are_limited_during_outages() {
    let stage = Stage::new((0..500).map(|_| answer(503))).await;
    let client = stage.client_with(IdempotentRequests::new().max_attempts(20).budget(3600 * SECOND));
    for _ in 0..20 {
        let response = client.post(stage.server.url("/payments")).send().await.unwrap();
        assert_eq!(response.status(), 503, "the last response, unchanged");
    }
    assert_eq!(stage.received().len(), 20 + 100, "a hundred retries across all operations");
}

#[tokio::test]
async fn successes_refill_the_retry_quota() {
    let replies = [503, 201, 503, 503, 201, 201, 201, 201, 201, 503, 201];
    let stage = Stage::new(replies.map(answer)).await;
    let client = stage.client_with(IdempotentRequests::new().retry_quota(5));
    let mut sent = Vec::new();
    for _ in 0..8 {
        let response = client.post(stage.server.url("/payments")).send().await.unwrap();
        sent.push((response.status().as_u16(), client::attempts(&response).unwrap()));
    }
    // The first retry succeeds, which returns its tokens to the quota. The second fails, so its tokens are spent.
    // Five operations that succeed on the first attempt then refill the quota for one more retry.
    let first = [(201, 2), (503, 2)];
    assert_eq!(sent, [&first[..], &[(201, 1); 5], &[(201, 2)]].concat());
}

#[tokio::test]
async fn success_after_in_progress_returns_retry_tokens() {
    let replies = || [answer(503), problem(409, "in-progress", true), answer(201)];
    let stage = Stage::new(replies().into_iter().chain(replies())).await;
    let client = stage.client_with(IdempotentRequests::new().retry_quota(5));
    for nth in 0..2 {
        let response = client.post(stage.server.url("/payments")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(3)), "{nth}");
    }
}

/// A server that answers `in-progress` is up, so a retry that waits for the outcome takes no tokens.
#[tokio::test]
async fn waiting_for_an_outcome_uses_no_quota() {
    let stage = Stage::new((0..9).map(|_| problem(409, "in-progress", true))).await;
    let client = stage.client_with(IdempotentRequests::new().retry_quota(0).budget(60 * SECOND));
    let response = client.post(stage.server.url("/payments")).send().await.unwrap();
    assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(10)));
}
