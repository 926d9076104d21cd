//! Hands events to the function: keeps its waiting polls, the queued events, and the events that it runs.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use hyper::body::Incoming;
use lambda_idempotency::{Failure, settings::Execution};
use tokio::sync::oneshot;

use crate::{
    event::Event,
    upstream::{AnyBody, INVOCATION_ID, REQUEST_ID, full},
};

/// The limit for concurrent events of one request id, such as the records of a batch.
const MOST_OF_ONE_ID: usize = 100_000;

/// An event for the function, and where its answer goes.
#[derive(Debug)]
struct Delivery {
    /// The invocation that the event belongs to.
    invocation: Arc<Event>,
    headers: HeaderMap,
    body: Bytes,
    limit: usize,
    posted: oneshot::Sender<Result<Posted, NoAnswer>>,
}

/// An event that the function is running.
#[derive(Debug)]
struct Running {
    invocation: Arc<Event>,
    /// How many bytes of a streamed answer to read before the rest is passed through.
    limit: usize,
    posted: oneshot::Sender<Result<Posted, NoAnswer>>,
}

/// Why the function gave no answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// It never got the event.
    NeverBegun,
    /// Its process ended while it ran the event.
    Died,
}

impl From<NoAnswer> for Failure {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::NeverBegun => Self::not_begun("the function never got the event"),
            NoAnswer::Died => Self::interrupted("the function's process ended without an answer"),
        }
    }
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
    /// Whether the body has more than `most` bytes. A body that wasn't read to its end counts as larger.
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
    /// The invocations that the real Runtime API handed out and that aren't answered yet.
    open: Vec<Arc<Event>>,
    /// Whether the function's process has ended.
    has_ended: bool,
}

/// The function's side of the proxy.
#[derive(Debug)]
pub(crate) struct Function {
    state: Mutex<State>,
    /// Whether the function may get an event after the deadline. Under at-most-once it may, since no other delivery
    /// runs the event.
    may_run_late: bool,
}

impl Function {
    pub(crate) fn new(execution: Execution) -> Self {
        Self { state: Mutex::default(), may_run_late: execution == Execution::AtMostOnce }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code between two related changes can panic, so a poisoned lock's state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the function's poll: returns a queued event, or a receiver for the next event. Drops queued events that
    /// nothing waits for, and those whose invocation is over.
    pub(crate) fn next(&self) -> Result<Response<AnyBody>, oneshot::Receiver<Response<AnyBody>>> {
        let mut state = self.state();
        while let Some(delivery) = state.queued.pop_front() {
            if self.may_begin(&delivery) {
                return Ok(state.begin(delivery).1);
            }
        }
        let (waiter, event) = oneshot::channel();
        state.waiting.push_back(waiter);
        Err(event)
    }

    /// Notes that the function's process has ended. No event begins any more, and the running ones get no answer.
    pub(crate) fn ended(&self) {
        let mut state = self.state();
        state.has_ended = true;
        state.queued.clear();
        for (_, running) in state.running.drain() {
            // Lambda knows that the function failed, and needs no answer to this event.
            running.invocation.answers_now();
            running.invocation.posted();
            // The invocation may be over.
            let _ = running.posted.send(Err(NoAnswer::Died));
        }
    }

    /// Whether the event may still run.
    fn may_begin(&self, delivery: &Delivery) -> bool {
        !delivery.posted.is_closed() && (self.may_run_late || !delivery.invocation.is_over())
    }

    /// Hands an event to the function as soon as the function polls, and waits for its answer. Reads at most `limit`
    /// bytes of a streamed answer.
    ///
    /// # Errors
    ///
    /// [`NoAnswer::NeverBegun`] if the connection broke, the invocation was over, or the function's process ended
    /// before the function got the event; [`NoAnswer::Died`] if the process ended later.
    pub(crate) async fn run(
        &self,
        invocation: &Arc<Event>,
        headers: HeaderMap,
        body: Bytes,
        limit: usize,
    ) -> Result<Posted, NoAnswer> {
        let (posted, answer) = oneshot::channel();
        self.hand_over(Delivery { invocation: Arc::clone(invocation), headers, body, limit, posted });
        answer.await.unwrap_or(Err(NoAnswer::NeverBegun))
    }

    fn hand_over(&self, delivery: Delivery) {
        if !self.may_begin(&delivery) {
            return;
        }
        let mut state = self.state();
        if state.has_ended {
            return;
        }
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

    /// The limit for reading a streamed answer to this event, in bytes. `None` if the function doesn't run the event.
    pub(crate) fn limit_of(&self, request_id: &str, invocation_id: Option<&HeaderValue>) -> Option<usize> {
        self.state().runs(request_id, invocation_id).map(|running| running.limit)
    }

    /// Takes the sender for the function's answer to this event. `None` if the function doesn't run the event, or runs
    /// another event of the same request id.
    pub(crate) fn answered(
        &self,
        request_id: &str,
        invocation_id: Option<&HeaderValue>,
    ) -> Option<oneshot::Sender<Result<Posted, NoAnswer>>> {
        let mut state = self.state();
        state.runs(request_id, invocation_id)?;
        state.running.remove(request_id).map(|running| running.posted)
    }

    /// Returns how many polls of the real Runtime API to begin, and counts them as open: one for each spare waiting
    /// poll of the function. A waiting poll isn't spare if it may be needed for the event of an open poll of the
    /// Runtime API, or for an event of an open invocation that the function isn't running yet.
    ///
    /// An event that the function still runs after the end of its invocation needs no waiting poll, since the function
    /// got it as the answer to an earlier one.
    pub(crate) fn polls_to_begin(&self) -> usize {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.is_closed());
        let running = |open: &Arc<Event>| {
            let is_it = |running: &&Running| Arc::ptr_eq(&running.invocation, open);
            state.running.values().filter(is_it).filter(|running| !running.posted.is_closed()).count()
        };
        let to_run: usize = state.open.iter().map(|open| open.width().saturating_sub(running(open))).sum();
        let missing = state.waiting.len().saturating_sub(state.polls + to_run);
        state.polls += missing;
        missing
    }

    /// The invocations that Lambda has no answer to yet, and that the function isn't running: it hasn't got them yet,
    /// or has finished them.
    pub(crate) fn settling(&self) -> Vec<Arc<Event>> {
        let state = self.state();
        let runs =
            |open: &Arc<Event>| state.running.values().any(|running| Arc::ptr_eq(&running.invocation, open));
        state.open.iter().filter(|open| !runs(open)).cloned().collect()
    }

    /// The invocations whose event the function got, and whose answers the layer hasn't sent: their outcomes may not be
    /// recorded.
    pub(crate) fn unsettled(&self) -> Vec<Arc<Event>> {
        let mut settling = self.settling();
        let state = self.state();
        let is_queued =
            |open: &Arc<Event>| state.queued.iter().any(|delivery| Arc::ptr_eq(&delivery.invocation, open));
        settling.retain(|open| open.has_begun() && !open.is_posted() && !is_queued(open));
        settling
    }

    /// Notes that a poll has ended, with or without an invocation.
    pub(crate) fn polled(&self, invocation: Option<&Arc<Event>>) {
        let mut state = self.state();
        state.polls = state.polls.saturating_sub(1);
        state.open.extend(invocation.cloned());
    }

    /// Notes that an invocation is answered.
    pub(crate) fn closed(&self, invocation: &Arc<Event>) {
        self.state().open.retain(|open| !Arc::ptr_eq(open, invocation));
    }

    /// Whether the layer still has to answer this invocation. If so, the function mustn't answer it. `request_id` may
    /// be the invocation's request id with a number appended.
    pub(crate) fn will_be_answered(&self, request_id: &str, invocation_id: Option<&HeaderValue>) -> bool {
        let is_it = |open: &Arc<Event>| {
            let is_numbered = |rest: &str| rest.is_empty() || rest.starts_with('-');
            request_id.strip_prefix(open.request_id()).is_some_and(is_numbered)
                && is_same(open.headers.get(INVOCATION_ID), invocation_id)
        };
        self.state().open.iter().any(|open| is_it(open) && !open.is_posted())
    }
}

impl State {
    fn runs(&self, request_id: &str, invocation_id: Option<&HeaderValue>) -> Option<&Running> {
        let running = self.running.get(request_id)?;
        is_same(running.invocation.headers.get(INVOCATION_ID), invocation_id).then_some(running)
    }

    /// Notes that the function runs this event. Returns its id, and the response that carries the event. If the
    /// function already runs an event of this request id, a number is appended to the id.
    fn begin(&mut self, delivery: Delivery) -> (String, Response<AnyBody>) {
        let Delivery { invocation, mut headers, body, limit, posted } = delivery;
        let request_id = invocation.request_id().to_owned();
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
        self.running.insert(id.clone(), Running { invocation, limit, posted });
        let mut response = Response::new(full(body));
        *response.headers_mut() = headers;
        (id, response)
    }
}

/// Whether an answer with the invocation id `echoed` belongs to the invocation with the id `sent`. An answer without an
/// id does, since older runtimes don't send the id back.
fn is_same(sent: Option<&HeaderValue>, echoed: Option<&HeaderValue>) -> bool {
    sent.zip(echoed).is_none_or(|(sent, echoed)| sent == echoed)
}
