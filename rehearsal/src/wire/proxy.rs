//! The proxy of one run: on loopback, between the SDK and the server, with planned faults.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::Uri;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use super::{
    exchange::{Exchange, Served},
    meaning::{Meaning, owner_of_answer, owner_of_request},
    message::{Answer, Conversation, Request, Upstream, throttled},
    way::{HttpWay, When},
};
use crate::clock;

/// Reads and breaks requests by their content, beside the proxy's own plan, which counts requests.
pub(crate) trait Rules: fmt::Debug + Send + Sync {
    /// Corrects the entry of a request in the log.
    fn read(&self, exchange: &mut Exchange, body: &Value);

    /// Decides how to interfere with a request.
    fn interference(&self, exchange: &Exchange) -> Option<Interference>;
}

/// How the wire interferes with one request.
#[derive(Debug)]
pub(crate) enum Interference {
    /// Breaks the request.
    Break(HttpWay),
    /// Notifies `reached`, and forwards the request only after `released`.
    Hold {
        /// Tells the holder that the request has come.
        reached: oneshot::Sender<()>,
        /// If the sender is dropped, the server never gets the request.
        released: oneshot::Receiver<()>,
    },
}

/// The proxy. Dropping it closes its port and cuts its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    plan: Mutex<BTreeMap<usize, HttpWay>>,
    /// The meaning of the first request to break, and the number of requests to break from that one on.
    next: Mutex<Option<(Meaning, usize, HttpWay)>>,
    rules: Option<Arc<dyn Rules>>,
    /// The timeout of the client's attempts. It determines how long slow answers and late requests take.
    attempt: Duration,
    begun: Instant,
    log: Mutex<Vec<Exchange>>,
    /// The numbers of the requests that were sent to the server, in this order.
    forwarded: Mutex<Vec<usize>>,
    held: Mutex<Vec<(When, usize, Request)>>,
    is_closed: AtomicBool,
    /// How many requests are on their way to the server.
    under_way: watch::Sender<usize>,
}

impl Proxy {
    /// Starts a proxy in front of `server`, on a free loopback port. It breaks nothing until
    /// [`break_next`](Self::break_next) is called. `attempt` is the timeout of the client's attempts.
    ///
    /// # Errors
    ///
    /// If the proxy can't listen.
    pub async fn before(server: Uri, attempt: Duration) -> io::Result<Self> {
        Self::planned(Upstream::new(server), BTreeMap::new(), attempt).await
    }

    /// Starts a proxy in front of `upstream`, on a free loopback port. `plan` has the faults, by request number from 0.
    ///
    /// # Errors
    ///
    /// If the proxy can't listen.
    pub async fn planned(
        upstream: Upstream,
        plan: BTreeMap<usize, HttpWay>,
        attempt: Duration,
    ) -> io::Result<Self> {
        Self::start(upstream, plan, attempt, None).await
    }

    /// Starts a proxy that also obeys `rules`.
    pub(crate) async fn start(
        upstream: Upstream,
        plan: BTreeMap<usize, HttpWay>,
        attempt: Duration,
        rules: Option<Arc<dyn Rules>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            plan: Mutex::new(plan),
            next: Mutex::default(),
            rules,
            attempt,
            begun: clock::start(),
            log: Mutex::default(),
            forwarded: Mutex::default(),
            held: Mutex::default(),
            is_closed: AtomicBool::new(false),
            under_way: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared), 0));
        Ok(Self { address, shared, accepting: Mutex::new(vec![accepting]) })
    }

    /// Listens on another free loopback port, and returns its endpoint. The log names the port by this number, which
    /// tells one sender from another.
    pub(crate) async fn port(&self, number: usize) -> io::Result<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        lock(&self.accepting).push(tokio::spawn(accept(listener, Arc::clone(&self.shared), number)));
        Ok(endpoint)
    }

    /// When the proxy started.
    pub(crate) fn begun(&self) -> Instant {
        self.shared.begun
    }

    /// Returns the endpoint for the client.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks the next `requests` requests.
    pub fn break_next(&self, requests: usize, fault: HttpWay) {
        let next = lock(&self.shared.log).len();
        self.shared.break_numbers(next, requests, fault);
    }

    /// Lets requests through until one has this meaning, then breaks `requests` requests, from that one on. On a slow
    /// machine, the client's own retries come between, so a request's number says little.
    pub fn break_from(&self, meaning: Meaning, requests: usize, fault: HttpWay) {
        *lock(&self.shared.next) = Some((meaning, requests, fault));
    }

    /// Whether a fault of [`break_from`](Self::break_from) still waits for its first request.
    #[must_use]
    pub fn has_unused_fault(&self) -> bool {
        lock(&self.shared.next).is_some()
    }

    /// Lets everything through again.
    pub fn heal(&self) {
        lock(&self.shared.next).take();
        lock(&self.shared.plan).clear();
    }

    /// Returns the meaning and the fault of each request that has arrived, in order.
    #[must_use]
    pub fn arrived(&self) -> Vec<(Meaning, Option<HttpWay>)> {
        lock(&self.shared.log).iter().map(|exchange| (exchange.meaning, exchange.fault)).collect()
    }

    /// Returns a handle to the proxy's log.
    #[must_use]
    pub fn log(&self) -> Log {
        Log(Arc::clone(&self.shared))
    }

    /// Lets nothing more through, and waits until the server has answered every request on its way.
    pub async fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let mut under_way = self.shared.under_way.subscribe();
        // The wait fails only if the sender is dropped, and this proxy owns the sender.
        let _ = under_way.wait_for(|count| *count == 0).await;
    }

    /// Forwards the requests that the proxy holds until `until`, in order, even if the proxy is closed.
    pub async fn deliver(&self, until: When) {
        let due: Vec<_> = {
            let mut held = lock(&self.shared.held);
            let (due, rest) = held.drain(..).partition(|(when, ..)| *when == until);
            *held = rest;
            due
        };
        for (_, nth, request) in due {
            let _ = self.shared.send_on(nth, request).await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        lock(&self.accepting).iter().for_each(JoinHandle::abort);
    }
}

/// The requests so far.
#[derive(Clone, Debug)]
pub struct Log(Arc<Shared>);

impl Log {
    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.0.log).len()
    }

    /// Whether there were no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all requests, in order.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        lock(&self.0.log).clone()
    }

    /// Returns the requests that were sent to the server, in the order in which they were sent, from number `mark` on.
    pub(crate) fn forwarded(&self, mark: usize) -> Vec<Exchange> {
        let numbers = lock(&self.0.forwarded).get(mark..).unwrap_or_default().to_vec();
        let log = lock(&self.0.log);
        numbers.into_iter().filter_map(|nth| log.get(nth).cloned()).collect()
    }

    /// Returns the number of requests that were sent to the server.
    pub(crate) fn forwarded_so_far(&self) -> usize {
        lock(&self.0.forwarded).len()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, port: usize) {
    // When this task ends, the set is dropped, which cuts its connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(stream, Arc::clone(&shared), port));
    }
}

async fn converse(stream: TcpStream, shared: Arc<Shared>, port: usize) {
    let mut conversation = Conversation::new(stream);
    // An error means that the client went away, which is expected.
    while let Ok(Some(request)) = conversation.request().await {
        let (nth, planned) = shared.note(&request, port);
        let Some(fault) = shared.interference(&mut conversation, nth, planned).await else { return };
        if !matches!(shared.answer(&mut conversation, nth, request, fault).await, Ok(Then::GoOn)) {
            return;
        }
    }
}

/// The next step for a connection after an answer.
enum Then {
    GoOn,
    Close,
}

impl Shared {
    /// Adds the request to the log. Returns its number, and its fault if the plan has one.
    ///
    /// A test may heal the proxy as soon as it sees the request in the log, so the fault is decided before.
    fn note(&self, request: &Request, port: usize) -> (usize, Option<HttpWay>) {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let id = body.pointer("/Item/id/S").or_else(|| body.pointer("/Key/id/S"));
        let mut exchange = Exchange {
            at: self.begun.elapsed(),
            port,
            operation: request.operation().to_owned(),
            to_store: true,
            meaning: Meaning::of_request(request.operation(), &body),
            first_attempt: request.is_first_attempt(),
            id: id.and_then(Value::as_str).map(str::to_owned),
            token: body.get("ClientRequestToken").and_then(Value::as_str).map(str::to_owned),
            ..Exchange::default()
        };
        if let Some(rules) = &self.rules {
            rules.read(&mut exchange, &body);
        }
        let mut log = lock(&self.log);
        let nth = log.len();
        if let Some((_, requests, fault)) = lock(&self.next).take_if(|(from, ..)| *from == exchange.meaning) {
            self.break_numbers(nth, requests, fault);
        }
        let planned = lock(&self.plan).get(&nth).copied();
        log.push(exchange);
        (nth, planned)
    }

    /// Breaks this many requests, from number `first` on.
    fn break_numbers(&self, first: usize, requests: usize, fault: HttpWay) {
        lock(&self.plan).extend((first..first + requests).map(|nth| (nth, fault)));
    }

    /// Returns the fault of this request, if it has one. If the request is held, waits until its release. Returns `None`
    /// if the server must never get it, because the client is gone, or nobody can release the request.
    async fn interference(
        &self,
        client: &mut Conversation,
        nth: usize,
        planned: Option<HttpWay>,
    ) -> Option<Option<HttpWay>> {
        if planned.is_some() {
            return Some(planned);
        }
        let Some(rules) = &self.rules else { return Some(None) };
        let exchange = lock(&self.log).get(nth).cloned()?;
        match rules.interference(&exchange) {
            None => Some(None),
            Some(Interference::Break(fault)) => Some(Some(fault)),
            Some(Interference::Hold { reached, released }) => {
                self.amend(nth, |exchange| exchange.is_held = true);
                // If nobody waits for the request, it still waits for its release.
                let _ = reached.send(());
                tokio::select! {
                    released = released => released.ok().map(|()| None),
                    () = client.until_gone() => None,
                }
            }
        }
    }

    fn amend(&self, nth: usize, amend: impl FnOnce(&mut Exchange)) {
        if let Some(exchange) = lock(&self.log).get_mut(nth) {
            amend(exchange);
        }
    }

    /// Forwards the request, unless the proxy is closed.
    async fn forward(&self, nth: usize, request: Request) -> io::Result<Answer> {
        // Count the request before checking whether the proxy is closed. Then either `close` waits for this request,
        // or this request finds the proxy closed.
        self.under_way.send_modify(|count| *count += 1);
        let answer = if self.is_closed.load(Ordering::SeqCst) {
            Err(io::Error::other("the proxy is closed"))
        } else {
            self.send_on(nth, request).await
        };
        self.under_way.send_modify(|count| *count -= 1);
        answer
    }

    /// Forwards the request, and waits for the server even if the client goes away.
    async fn send_on(&self, nth: usize, request: Request) -> io::Result<Answer> {
        lock(&self.forwarded).push(nth);
        let owner = owner_of_request(&request.body);
        let answer = self.upstream.send(request).await;
        let at = self.begun.elapsed();
        if let Ok(answer) = &answer {
            let error = (answer.status != 200).then(|| error_of(&answer.body));
            let is_own = owner.is_some() && owner == owner_of_answer(&answer.body);
            self.amend(nth, |exchange| {
                exchange.served = Some(Served { at, status: answer.status, error });
                exchange.is_own = is_own;
            });
        }
        answer.map_err(io::Error::other)
    }

    async fn answer(
        self: &Arc<Self>,
        client: &mut Conversation,
        nth: usize,
        request: Request,
        fault: Option<HttpWay>,
    ) -> io::Result<Then> {
        if fault != Some(HttpWay::NoOldItem) {
            self.amend(nth, |exchange| exchange.fault = fault);
        }
        match fault {
            None => {
                let answer = self.forward(nth, request).await?;
                self.write(client, nth, &answer.message()).await
            }
            Some(HttpWay::CutBefore) => Ok(Then::Close),
            Some(HttpWay::HangBefore) => self.hang(client).await,
            Some(HttpWay::ErrorBefore) => self.write(client, nth, &internal_error().message()).await,
            Some(HttpWay::Throttle) => self.write(client, nth, &throttled(nth).message()).await,
            Some(HttpWay::Conflict) => self.write(client, nth, &conflict().message()).await,
            Some(HttpWay::Late(When::Soon)) => {
                self.send_soon(nth, request);
                self.hang(client).await
            }
            Some(HttpWay::Late(when)) => {
                lock(&self.held).push((when, nth, request));
                self.hang(client).await
            }
            Some(fault) => {
                let answer = self.forward(nth, request).await?;
                self.spoil(client, nth, answer, fault).await
            }
        }
    }

    /// Breaks or loses the server's answer to a forwarded request.
    async fn spoil(
        &self,
        client: &mut Conversation,
        nth: usize,
        mut answer: Answer,
        fault: HttpWay,
    ) -> io::Result<Then> {
        let half = answer.body.len() / 2;
        match fault {
            HttpWay::ErrorAfter => answer = internal_error(),
            HttpWay::NotJson => answer = Answer::new(200, "<html><body>One moment, please.</body></html>"),
            HttpWay::WrongShape => {
                answer = Answer::new(200, r#"{"Item":[7],"Attributes":[7],"ConsumedCapacity":[7]}"#);
            }
            HttpWay::HalfJson => answer.body.truncate(half),
            HttpWay::NoOldItem => {
                if let Some(body) = without_old_item(&answer.body) {
                    answer.body = body.into();
                    self.amend(nth, |exchange| exchange.fault = Some(fault));
                }
            }
            HttpWay::NotHttp => {
                client.write(b"\x16\x03\x01\x02\x00 this isn't HTTP\r\n\r\n").await?;
                return Ok(Then::Close);
            }
            HttpWay::Stalled | HttpWay::Truncated => {
                client.write(&answer.head(answer.body.len())).await?;
                client.write(&answer.body[..half]).await?;
                return if fault == HttpWay::Stalled { self.hang(client).await } else { Ok(Then::Close) };
            }
            HttpWay::FastDrip => return self.drip(client, nth, &answer.message(), self.attempt / 4).await,
            HttpWay::SlowDrip => return self.drip(client, nth, &answer.message(), self.attempt * 3).await,
            HttpWay::CutAfter => return Ok(Then::Close),
            // Only `HangAfter` is left. `answer` has already handled every fault that occurs before the request reaches
            // the server.
            _ => return self.hang(client).await,
        }
        self.write(client, nth, &answer.message()).await
    }

    async fn write(&self, client: &mut Conversation, nth: usize, message: &[u8]) -> io::Result<Then> {
        client.write(message).await?;
        let at = self.begun.elapsed();
        self.amend(nth, |exchange| exchange.answered = Some(at));
        Ok(Then::GoOn)
    }

    async fn hang(&self, client: &mut Conversation) -> io::Result<Then> {
        client.until_gone().await;
        Ok(Then::Close)
    }

    /// Sends the message byte by byte, evenly over this time.
    async fn drip(
        &self,
        client: &mut Conversation,
        nth: usize,
        message: &[u8],
        over: Duration,
    ) -> io::Result<Then> {
        let (start, count) = (clock::start(), u32::try_from(message.len()).unwrap_or(u32::MAX));
        for (index, byte) in (0..count).zip(message) {
            let ahead = (over * index / count).saturating_sub(start.elapsed());
            // Timers count whole milliseconds, so bytes that are due within one millisecond go out together.
            if ahead >= Duration::from_millis(1) {
                clock::pause(ahead).await;
            }
            client.write(std::slice::from_ref(byte)).await?;
        }
        let at = self.begun.elapsed();
        self.amend(nth, |exchange| exchange.answered = Some(at));
        Ok(Then::GoOn)
    }

    fn send_soon(self: &Arc<Self>, nth: usize, request: Request) {
        let shared = Arc::clone(self);
        // Count the request as on its way from now on, so that the check reads the record only after the request
        // has arrived.
        shared.under_way.send_modify(|count| *count += 1);
        tokio::spawn(async move {
            clock::pause(shared.attempt + shared.attempt / 8).await;
            let _ = shared.send_on(nth, request).await;
            shared.under_way.send_modify(|count| *count -= 1);
        });
    }
}

fn internal_error() -> Answer {
    Answer::error(
        500,
        "InternalServerError",
        "The request processing has failed because of an unknown error.",
    )
}

fn conflict() -> Answer {
    Answer::error(400, "TransactionConflictException", "Transaction is ongoing for the item")
}

/// Returns the name of the error, without the item that the error may carry.
fn error_of(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let kind = body.get("__type").and_then(Value::as_str).unwrap_or("an error without a name");
    kind.rsplit('#').next().unwrap_or_default().to_owned()
}

/// Removes the item from the answer to a failed condition. Returns `None` for any other answer, and if there's no item.
fn without_old_item(body: &[u8]) -> Option<String> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    let is_refusal = body.get("__type")?.as_str()?.ends_with("ConditionalCheckFailedException");
    if !is_refusal {
        return None;
    }
    body.as_object_mut()?.remove("Item").map(|_| body.to_string())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
