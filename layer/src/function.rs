//! Hands events to the function: keeps its waiting polls, the queued events, and the events that it runs.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use crate::upstream::{AnyBody, INVOCATION_ID, REQUEST_ID, full};

/// The limit for concurrent events of one request id, such as the records of a batch.
const MOST_OF_ONE_ID: usize = 100_000;

/// An event for the function, and where its answer goes.
#[derive(Debug)]
struct Delivery {
    request_id: String,
    headers: HeaderMap,
    body: Bytes,
    limit: usize,
    posted: oneshot::Sender<Posted>,
}

/// An event that the function is running.
#[derive(Debug)]
struct Running {
    invocation_id: Option<HeaderValue>,
    /// How many bytes of a streamed answer to read before the rest is passed through.
    limit: usize,
    posted: oneshot::Sender<Posted>,
}

/// The function's answer to one event, as posted.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Whether the function reported an error.
    pub(crate) is_error: bool,
    /// The request's headers.
    pub(crate) headers: HeaderMap,
    /// The request's body.
    pub(crate) body: Payload,
    /// Sends the Runtime API's answer back to the function.
    pub(crate) reply: oneshot::Sender<Response<AnyBody>>,
}

/// The body that the function posted.
#[derive(Debug)]
pub(crate) enum Payload {
    /// The complete body.
    Whole(Bytes),
    /// A stream that ended with an error. Its trailers describe the error.
    Broken(Bytes, HeaderMap),
    /// A stream that's too large to record, or an answer that's too large for Lambda: the parts read so far, and the
    /// rest.
    Endless(Vec<Bytes>, Incoming),
}

impl Posted {
    /// Whether the body has more than `most` bytes, so that it isn't recorded.
    pub(crate) fn is_larger_than(&self, most: usize) -> bool {
        match &self.body {
            Payload::Whole(bytes) | Payload::Broken(bytes, _) => bytes.len() > most,
            Payload::Endless(..) => true,
        }
    }
}

/// The polls and events in progress. They decide whether to poll for another invocation.
#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<oneshot::Sender<Response<AnyBody>>>,
    queued: VecDeque<Delivery>,
    running: HashMap<String, Running>,
    /// The number of open polls of the real Runtime API.
    polls: usize,
    /// The number of invocations that the real Runtime API handed out and that aren't answered yet.
    open: usize,
}

/// The function's side of the proxy.
#[derive(Debug, Default)]
pub(crate) struct Function {
    state: Mutex<State>,
}

impl Function {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code between two related changes can panic, so a poisoned lock's state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the function's poll: returns a queued event, or a receiver for the next event.
    pub(crate) fn next(&self) -> Result<Response<AnyBody>, oneshot::Receiver<Response<AnyBody>>> {
        let mut state = self.state();
        while let Some(delivery) = state.queued.pop_front() {
            if !delivery.posted.is_closed() {
                return Ok(state.begin(delivery).1);
            }
        }
        let (waiter, event) = oneshot::channel();
        state.waiting.push_back(waiter);
        Err(event)
    }

    /// Hands an event to the function as soon as the function polls, and waits for its answer. Reads at most `limit`
    /// bytes of a streamed answer. `None` if the connection broke before the function had the event.
    pub(crate) async fn run(
        &self,
        request_id: &str,
        headers: HeaderMap,
        body: Bytes,
        limit: usize,
    ) -> Option<Posted> {
        let (posted, answer) = oneshot::channel();
        self.hand_over(Delivery { request_id: request_id.to_owned(), headers, body, limit, posted });
        answer.await.ok()
    }

    fn hand_over(&self, delivery: Delivery) {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.is_closed());
        match state.waiting.pop_front() {
            Some(waiter) => {
                let (id, event) = state.begin(delivery);
                if waiter.send(event).is_err() {
                    // The function hung up just now, so it didn't get the event.
                    state.running.remove(&id);
                }
            }
            None => state.queued.push_back(delivery),
        }
    }

    /// Answers one of the function's polls with `response`, such as an error of the real Runtime API.
    pub(crate) fn pass(&self, response: Response<AnyBody>) {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.is_closed());
        if let Some(waiter) = state.waiting.pop_front() {
            let _ = waiter.send(response);
        }
    }

    /// How many bytes of a streamed answer to this event to read. `None` if the function doesn't run the event.
    pub(crate) fn limit_of(&self, request_id: &str, invocation_id: Option<&HeaderValue>) -> Option<usize> {
        self.state().runs(request_id, invocation_id).map(|running| running.limit)
    }

    /// Takes the sender for the function's answer to this event. `None` if the function doesn't run the event, or runs
    /// another event of the same request id.
    pub(crate) fn answered(
        &self,
        request_id: &str,
        invocation_id: Option<&HeaderValue>,
    ) -> Option<oneshot::Sender<Posted>> {
        let mut state = self.state();
        state.runs(request_id, invocation_id)?;
        state.running.remove(request_id).map(|running| running.posted)
    }

    /// Returns how many polls of the real Runtime API to begin, one for each idle poller, and counts them as open.
    pub(crate) fn polls_to_begin(&self) -> usize {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.is_closed());
        let pollers = state.waiting.len() + state.running.len();
        let missing = pollers.saturating_sub(state.polls + state.open);
        state.polls += missing;
        missing
    }

    /// Whether the function has answered all its events, but Lambda doesn't have every answer yet.
    pub(crate) fn is_settling(&self) -> bool {
        let state = self.state();
        state.open > 0 && state.running.is_empty()
    }

    /// Notes that a poll has ended, with or without an invocation.
    pub(crate) fn polled(&self, is_invocation: bool) {
        let mut state = self.state();
        state.polls = state.polls.saturating_sub(1);
        state.open += usize::from(is_invocation);
    }

    /// Notes that an invocation is answered.
    pub(crate) fn closed(&self) {
        let mut state = self.state();
        state.open = state.open.saturating_sub(1);
    }
}

impl State {
    fn runs(&self, request_id: &str, invocation_id: Option<&HeaderValue>) -> Option<&Running> {
        self.running.get(request_id).filter(|running| match (&running.invocation_id, invocation_id) {
            (Some(sent), Some(echoed)) => sent == echoed,
            // Older runtimes don't send the invocation id back.
            _ => true,
        })
    }

    /// Notes that the function runs this event. Returns its id, and the response that carries the event. If the
    /// function already runs an event of this request id, a number is appended to the id.
    fn begin(&mut self, delivery: Delivery) -> (String, Response<AnyBody>) {
        let Delivery { request_id, mut headers, body, limit, posted } = delivery;
        let id = match self.running.contains_key(&request_id) {
            false => request_id,
            true => (2..MOST_OF_ONE_ID)
                .map(|number| format!("{request_id}-{number}"))
                .find(|id| !self.running.contains_key(id))
                .unwrap_or(request_id),
        };
        if let Ok(value) = HeaderValue::from_str(&id) {
            headers.insert(REQUEST_ID, value);
        }
        let invocation_id = headers.get(INVOCATION_ID).cloned();
        self.running.insert(id.clone(), Running { invocation_id, limit, posted });
        let mut response = Response::new(full(body));
        *response.headers_mut() = headers;
        (id, response)
    }
}
