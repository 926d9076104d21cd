//! A scripted server, a clock that never makes a test wait, and a client.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
    time::Duration,
};

use lambda_idempotency::{
    client::IdempotentRequests,
    store::BoxFuture,
    time::{Clock, Timestamp},
};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, RequestBuilder};

use super::http_server::{Received, Reply, Server};

pub(crate) const BODY: &str = r#"{"amount_cents":1250,"currency":"EUR"}"#;

/// The body of each answer that a `Stage` gives after the end of its script.
pub(crate) const CREATED: &str = r#"{"payment_id":"p-1"}"#;

pub(crate) fn answer(status: u16) -> Reply {
    Reply::Whole(status, vec![], vec![])
}

pub(crate) fn answer_with(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
    let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Reply::Whole(status, headers, body.into())
}

/// An error response in the form in which this library's HTTP layer writes it.
pub(crate) fn problem(status: u16, code: &str, is_retryable: bool) -> Reply {
    let body = format!(r#"{{"type":"urn:x","status":{status},"code":"{code}","retryable":{is_retryable}}}"#);
    let mut headers = vec![("content-type", "application/problem+json")];
    headers.extend(is_retryable.then_some(("retry-after", "1")));
    answer_with(status, &headers, &body)
}

/// A server and its clients' clock. The server follows a script, and then answers 201.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) clock: StageClock,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Stage {
    pub(crate) async fn new(script: impl IntoIterator<Item = Reply>) -> Self {
        crate::recording::begin();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (seen, script) = (Arc::clone(&received), Mutex::new(script.into_iter().collect::<Vec<_>>()));
        let server = Server::start(move |request| {
            crate::silence::note(&request);
            seen.lock().unwrap().push(request);
            let mut script = script.lock().unwrap();
            let reply = if script.is_empty() { answer_with(201, &[], CREATED) } else { script.remove(0) };
            async { reply }
        })
        .await;
        Self { server, clock: StageClock::default(), received }
    }

    /// Returns a client with these rules on the stage's clock.
    pub(crate) fn client_with(&self, rules: IdempotentRequests) -> ClientWithMiddleware {
        client(rules.clock(self.clock.clone()))
    }

    pub(crate) fn client(&self) -> ClientWithMiddleware {
        self.client_with(IdempotentRequests::new())
    }

    /// Builds a payment without sending it.
    pub(crate) fn payment(&self) -> RequestBuilder {
        self.client().post(self.server.url("/payments")).body(BODY)
    }

    /// Returns the requests that have arrived so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Returns the key headers that have arrived so far, as sent.
    pub(crate) fn keys(&self) -> Vec<Option<String>> {
        self.received().iter().map(|request| request.headers.get("idempotency-key").cloned()).collect()
    }
}

/// Builds a client for loopback that ignores proxies from the environment.
pub(crate) fn client(rules: IdempotentRequests) -> ClientWithMiddleware {
    crate::recording::shown(&rules);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    ClientBuilder::new(http).with(rules).build()
}

/// A clock for retries. An operation's first sleep is its budget's timer, which ends when the clock reaches the
/// budget's end. All further sleeps are waits between attempts. A wait takes no real time: the clock jumps forward by
/// the wait. While an attempt is in flight, only `pass` moves the clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageClock(Arc<Mutex<Sleepers>>);

#[derive(Debug, Default)]
struct Sleepers {
    now: Duration,
    /// The waits between attempts so far. They don't include the budgets.
    waits: Vec<Duration>,
    budget: Option<(Duration, Option<Waker>)>,
}

impl StageClock {
    /// Returns the waits between attempts so far.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.0.lock().unwrap().waits.clone()
    }

    /// Moves the clock forward.
    pub(crate) fn pass(&self, time: Duration) {
        let mut sleepers = self.0.lock().unwrap();
        sleepers.now += time;
        if let Some(waker) = sleepers.budget.as_mut().and_then(|(_, waker)| waker.take()) {
            waker.wake();
        }
    }
}

impl Clock for StageClock {
    fn now(&self) -> Timestamp {
        // Fri, 20 Nov 2026 09:15:44 GMT.
        Timestamp::from_secs(1_795_166_144).saturating_add(self.0.lock().unwrap().now)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut sleepers = self.0.lock().unwrap();
        if sleepers.budget.is_some() {
            sleepers.waits.push(duration);
            sleepers.now += duration;
            return Box::pin(async {});
        }
        let until = sleepers.now + duration;
        sleepers.budget = Some((until, None));
        let budget = BudgetSleep { until, clock: self.clone() };
        Box::pin(async move { budget.slept().await })
    }
}

/// The timer of one operation's budget.
struct BudgetSleep {
    until: Duration,
    clock: StageClock,
}

impl BudgetSleep {
    async fn slept(&self) {
        poll_fn(|cx| {
            let mut sleepers = self.clock.0.lock().unwrap();
            if sleepers.now >= self.until {
                return Poll::Ready(());
            }
            sleepers.budget = Some((self.until, Some(cx.waker().clone())));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for BudgetSleep {
    fn drop(&mut self) {
        self.clock.0.lock().unwrap().budget = None;
    }
}
