//! A payment gateway that charges as often as it's asked to, loses answers, and applies some charges late. It lives in
//! the harness's process, so it outlives the killed functions.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use lambda_http::http::{Request, Response, StatusCode, Uri};
use lambda_idempotency_rehearsal::{
    clock,
    http::{self, HangUp, Server},
    problem::{Context, Problem, Result},
};
use serde::{Deserialize, Serialize};
use testkit::random::{Random, fresh_seed};

use super::ledger::Line;

/// How often the harness checks whether a charge has arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How the gateway behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// The percentage of charges that the gateway applies later than it receives them.
    delayed: u64,
    /// The longest time between receipt and application, in ms.
    longest_ms: u64,
}

impl Manners {
    /// Applies every charge within half of [`ARRIVES`](super::job::ARRIVES).
    pub const IN_TIME: Self = Self { delayed: 60, longest_ms: 750 };
    /// Applies every charge within [`ARRIVES`](super::job::ARRIVES), so that a question without a wait often misses it.
    pub const JUST_IN_TIME: Self = Self { delayed: 100, longest_ms: 1400 };
    /// Applies some charges later than [`ARRIVES`](super::job::ARRIVES).
    pub const LATE: Self = Self { delayed: 60, longest_ms: 6000 };
}

/// A request for a charge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Charge {
    /// The key of the job.
    pub job: String,
    /// The remote key.
    pub key: String,
    /// The amount.
    pub cents: u64,
    /// The run and its claim. The receipt is the run's name.
    pub line: Line,
    /// When the run sent it, in ms since the epoch.
    pub sent_at: u64,
}

/// A question for a charge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The key of the job.
    pub job: String,
    /// The remote key.
    pub key: String,
    /// The generation of the claim that asks.
    pub generation: u64,
}

/// A charge, as the gateway tells it to someone who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The name of the run that charged.
    pub run: String,
    /// The amount.
    pub cents: u64,
}

/// The gateway's answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// There's a charge.
    Happened,
    /// There's no charge yet.
    Absent,
    /// The gateway doesn't know yet.
    NotKnownYet,
    /// The gateway gave no answer.
    Nothing,
}

/// A charge that was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The request.
    pub charge: Charge,
    /// How long the gateway took from the receipt to the application.
    pub delay: Duration,
    /// When the gateway applied it, in ms since the epoch.
    pub at: u64,
}

/// A question that was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The generation of the claim that asked.
    pub generation: u64,
    /// When the gateway looked, in ms since the epoch.
    pub at: u64,
    /// The answer.
    pub told: Told,
}

/// The gateway's charges and questions for one job.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The charges, in the order in which they were applied.
    pub applied: Vec<Applied>,
    /// The questions.
    pub asked: Vec<Asked>,
    /// The number of charges that were received and are to be applied later.
    on_the_way: u32,
}

impl Log {
    /// Returns the charges as effects.
    pub fn lines(&self) -> Vec<Line> {
        self.applied.iter().map(|applied| applied.charge.line.clone()).collect()
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Applied { charge, delay, at } in &self.applied {
            let Charge { line, sent_at, .. } = charge;
            let delay = delay.as_millis();
            write!(
                f,
                "\n  charge of run {}: sent at {sent_at}, delayed by {delay} ms, applied at {at}",
                line.run
            )?;
        }
        for Asked { generation, at, told } in &self.asked {
            write!(f, "\n  question of generation {generation} at {at}: {told:?}")?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Books {
    manners: Manners,
    random: Mutex<Random>,
    logs: Mutex<BTreeMap<String, Log>>,
}

/// The gateway. Dropping the last clone closes its port.
#[derive(Clone, Debug)]
pub struct Gateway {
    books: Arc<Books>,
    server: Arc<Server>,
}

impl Gateway {
    /// Starts the gateway on a free port.
    ///
    /// # Errors
    ///
    /// If no port is free.
    pub async fn start(manners: Manners) -> Result<Self> {
        let random = Mutex::new(Random::new(fresh_seed()));
        let books = Arc::new(Books { manners, random, logs: Mutex::default() });
        let serving = Arc::clone(&books);
        let server = Server::start(move |request| Arc::clone(&serving).answer(request)).await;
        Ok(Self { books, server: Arc::new(server.context("couldn't start the gateway")?) })
    }

    /// Returns the gateway's address.
    pub fn address(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Waits until no charge for the job is on its way, and returns what the gateway knows of the job.
    pub async fn settled(&self, job: &str) -> Log {
        loop {
            let log = self.books.logs().get(job).cloned().unwrap_or_default();
            if log.on_the_way == 0 {
                return log;
            }
            clock::pause(LOOK_AGAIN).await;
        }
    }

    /// Lists the jobs with charges.
    pub fn jobs(&self) -> Vec<String> {
        let logs = self.books.logs();
        let is_charged = |log: &Log| !log.applied.is_empty() || log.on_the_way > 0;
        logs.iter().filter(|(_, log)| is_charged(log)).map(|(job, _)| job.clone()).collect()
    }

    /// Forgets a job.
    pub fn forget(&self, job: &str) {
        self.books.logs().remove(job);
    }
}

impl Books {
    fn logs(&self) -> MutexGuard<'_, BTreeMap<String, Log>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn percent(&self, percent: u64) -> bool {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).percent(percent)
    }

    fn below(&self, end: u64) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).below(end)
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HangUp> {
        match request.uri().path() {
            "/charge" => match serde_json::from_slice(request.body()) {
                Ok(charge) => self.charge(charge).await,
                Err(_) => Ok(status(StatusCode::BAD_REQUEST)),
            },
            "/find" => match serde_json::from_slice(request.body()) {
                Ok(question) => self.find(&question),
                Err(_) => Ok(status(StatusCode::BAD_REQUEST)),
            },
            _ => Ok(status(StatusCode::NOT_FOUND)),
        }
    }

    async fn charge(self: Arc<Self>, charge: Charge) -> std::result::Result<Response<Bytes>, HangUp> {
        if self.percent(5) {
            return Err(HangUp); // The charge is lost on its way.
        }
        let is_delayed = self.percent(self.manners.delayed);
        let delay = Duration::from_millis(if is_delayed { self.below(self.manners.longest_ms) } else { 0 });
        let receipt = serde_json::json!(Receipt { run: charge.line.run.clone(), cents: charge.cents });
        self.logs().entry(charge.job.clone()).or_default().on_the_way += 1;
        // If the client disconnects, the charge is still applied.
        let books = Arc::clone(&self);
        let applying = tokio::spawn(async move {
            clock::pause(delay).await;
            let mut logs = books.logs();
            let log = logs.entry(charge.job.clone()).or_default();
            log.on_the_way -= 1;
            log.applied.push(Applied { charge, delay, at: clock::now_ms() });
        });
        if self.percent(10) {
            return Err(HangUp);
        }
        let _ = applying.await;
        if self.percent(10) { Err(HangUp) } else { Ok(http::json(StatusCode::OK, &receipt)) }
    }

    fn find(&self, question: &Question) -> std::result::Result<Response<Bytes>, HangUp> {
        let mut logs = self.logs();
        let log = logs.entry(question.job.clone()).or_default();
        let found = log.applied.iter().find(|applied| applied.charge.key == question.key);
        let found =
            found.map(|Applied { charge, .. }| Receipt { run: charge.line.run.clone(), cents: charge.cents });
        let told = match &found {
            _ if self.percent(10) => Told::NotKnownYet,
            _ if self.percent(2) => Told::Nothing,
            Some(_) => Told::Happened,
            None => Told::Absent,
        };
        log.asked.push(Asked { generation: question.generation, at: clock::now_ms(), told });
        match told {
            Told::Happened | Told::Absent => Ok(http::json(StatusCode::OK, &serde_json::json!(found))),
            Told::NotKnownYet => Ok(status(StatusCode::ACCEPTED)),
            Told::Nothing => Err(HangUp),
        }
    }
}

fn status(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// The function's client of the gateway.
#[derive(Clone, Debug)]
pub struct Client(String);

impl Client {
    /// Returns the client of the gateway at this address.
    pub fn at(address: impl Into<String>) -> Self {
        Self(address.into())
    }

    /// Charges, and returns the receipt.
    ///
    /// # Errors
    ///
    /// If there's no answer. Then the charge may have happened.
    pub async fn charge(&self, charge: &Charge) -> Result<Receipt> {
        let response = self.send("/charge", charge).await?;
        serde_json::from_slice(response.body()).context("the gateway gave no receipt")
    }

    /// Asks for a charge.
    ///
    /// # Errors
    ///
    /// If there's no answer.
    pub async fn find(&self, question: &Question) -> Result<(Told, Option<Receipt>)> {
        let response = self.send("/find", question).await?;
        if response.status() == StatusCode::ACCEPTED {
            return Ok((Told::NotKnownYet, None));
        }
        let found: Option<Receipt> =
            serde_json::from_slice(response.body()).context("the gateway gave no answer")?;
        Ok((if found.is_some() { Told::Happened } else { Told::Absent }, found))
    }

    async fn send(&self, path: &str, body: &impl Serialize) -> Result<Response<Bytes>> {
        let uri: Uri = format!("{}{path}", self.0).parse().context("invalid address of the gateway")?;
        let body = serde_json::to_vec(body).context("invalid request")?;
        let request = Request::post(path).body(Bytes::from(body)).context("invalid request")?;
        let response = http::send(&uri, request).await.map_err(Problem::new)?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(Problem::new(format!("the gateway answered {}", response.status()))),
        }
    }
}
