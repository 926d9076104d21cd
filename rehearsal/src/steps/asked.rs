//! Step 20: a process is killed while it charges at a gateway. The next delivery asks the gateway for the charge.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::crash::take_over_by;
use crate::{
    clock,
    event::Event,
    function::Function,
    http::{self, HangUp, Server},
    judge::Verdict,
    problem::{Context, Result},
    report::Row,
    runs::{Runs, What},
    stage::{LEASE_LIMIT, Stage, World},
};

/// How long the example function waits for charges to arrive.
const APPLIES_WITHIN: Duration = Duration::from_millis(200);
/// The time until the function asks again, the skew margin, and some more.
const ASKS_AGAIN: Duration = Duration::from_millis(1_000 + 2_000 + 200);
/// How often the rehearsal looks whether the charge has reached the gateway.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The fate of the charge, and the gateway's answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Happened,
    DidNotHappen,
    NotKnownYet,
    Unreachable,
}

impl Case {
    const ALL: [Self; 4] = [Self::Happened, Self::DidNotHappen, Self::NotKnownYet, Self::Unreachable];

    const fn name(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Happened => ("20a", "asked, and it happened", "asked-happened"),
            Self::DidNotHappen => ("20b", "asked, and it didn't happen", "asked-absent"),
            Self::NotKnownYet => ("20c", "asked, and not known yet", "asked-pending"),
            Self::Unreachable => ("20d", "asked, but no answer", "asked-unreachable"),
        }
    }
}

/// A gateway that charges as often as it's asked to.
#[derive(Debug)]
struct Gateway {
    case: Case,
    books: Mutex<Books>,
    runs: OnceLock<Runs>,
}

#[derive(Debug, Default)]
struct Books {
    /// The charges by their key, each with its amount.
    charges: BTreeMap<String, Vec<String>>,
    requests: usize,
    questions: usize,
}

impl Gateway {
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str, is_effect: bool) {
        if let Some(runs) = self.runs.get() {
            runs.note(What::AtGateway(what.to_owned(), is_effect));
        }
    }

    fn charged(&self) -> usize {
        self.books().charges.values().map(Vec::len).sum()
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HangUp> {
        let key = request.uri().path().to_owned();
        let charge = |cents: &String| json!({ "receipt": format!("receipt of {key}"), "amount_cents": cents.parse::<u64>().ok() });
        if request.method() == Method::POST {
            let cents = String::from_utf8_lossy(request.body()).into_owned();
            let is_first = {
                let mut books = self.books();
                books.requests += 1;
                let is_first = books.requests == 1;
                let charges = !is_first || self.case != Case::DidNotHappen;
                self.note(
                    if charges { "asked to charge: it charges" } else { "asked to charge: it doesn't" },
                    charges,
                );
                if charges {
                    books.charges.entry(key.clone()).or_default().push(cents.clone());
                }
                is_first
            };
            if is_first {
                // The process is killed while it waits for this answer.
                std::future::pending::<()>().await;
            }
            return Ok(http::json(StatusCode::CREATED, &charge(&cents)));
        }
        let mut books = self.books();
        books.questions += 1;
        let found = books.charges.get(&key).and_then(|charges| charges.first());
        let said = match (self.case, found) {
            (Case::Unreachable, _) => "no answer",
            (Case::NotKnownYet, _) if books.questions == 1 => "not known yet",
            (_, Some(_)) => "it happened",
            (_, None) => "it didn't happen",
        };
        self.note(&format!("asked about the charge: {said}"), false);
        match (self.case, found) {
            (Case::Unreachable, _) => Err(HangUp),
            (Case::NotKnownYet, _) if books.questions == 1 => {
                Ok(http::json(StatusCode::ACCEPTED, &json!({})))
            }
            (_, Some(cents)) => Ok(http::json(StatusCode::OK, &charge(cents))),
            (_, None) => Ok(http::json(StatusCode::NOT_FOUND, &json!({}))),
        }
    }
}

/// A step whose process was killed.
#[derive(Debug)]
pub(super) struct Killed<'w> {
    case: Case,
    stage: Stage<'w>,
    event: Event,
    gateway: Arc<Gateway>,
    _server: Server,
    delivered_at_ms: u64,
    rows: Vec<Row>,
}

/// Kills a process in each case.
pub(super) async fn kill<'w>(world: &'w World, charges: &'w Function) -> Result<Vec<Killed<'w>>> {
    let mut killed = Vec::new();
    for case in Case::ALL {
        killed.push(kill_in(world, charges, case).await?);
    }
    Ok(killed)
}

async fn kill_in<'w>(world: &'w World, charges: &'w Function, case: Case) -> Result<Killed<'w>> {
    let (step, name, stage) = case.name();
    let gateway = Arc::new(Gateway { case, books: Mutex::default(), runs: OnceLock::new() });
    let serving = Arc::clone(&gateway);
    let server = Server::start(move |request| Arc::clone(&serving).answer(request)).await;
    let server = server.context("no free port on loopback for the gateway")?;
    let environment = vec![
        ("GATEWAY_URL", format!("http://{}", server.address())),
        ("GATEWAY_APPLIES_WITHIN_MS", clock::millis(APPLIES_WITHIN).to_string()),
    ];
    let (stage, order_id) = Stage::open_for_charges(world, charges, environment, stage).await?;
    let _ = gateway.runs.set(stage.runs().clone());
    let event = Event::new(json!({ "order_id": order_id, "amount_cents": 1250 }));

    let mut sandbox = stage.sandbox().await?;
    let mark = stage.mark().await?;
    let delivered_at_ms = clock::now_ms();
    let _unanswered = sandbox.deliver(&event, LEASE_LIMIT);
    let started = clock::start();
    while gateway.books().requests == 0 && started.elapsed() < LEASE_LIMIT {
        clock::pause(LOOK_AGAIN).await;
    }
    let has_reached = gateway.books().requests == 1;
    sandbox.kill().await?;
    sandbox.catch_up().await;
    let measured = stage.since(&mark).await?;
    let mut verdict = Verdict::default();
    verdict.must(has_reached, || "the charge didn't reach the gateway in time".into());
    verdict.runs(&measured, 1).claims(&measured, 1).settled(&measured, 0);
    let row = Row::new((step, name), "an order", "none: SIGKILL at its charge", &measured, verdict);
    let rows = vec![stage.done(row)];
    Ok(Killed { case, stage, event, gateway, _server: server, delivered_at_ms, rows })
}

impl Killed<'_> {
    /// Redelivers after the lease has expired and the charge has had the time to arrive.
    pub(super) async fn after_the_lease(mut self) -> Result<Vec<Row>> {
        self.stage.lease_passed(self.delivered_at_ms).await?;
        clock::pause(APPLIES_WITHIN).await;
        let is_known = matches!(self.case, Case::Happened | Case::DidNotHappen);
        self.ask("again, after the lease", is_known).await?;
        if self.case == Case::NotKnownYet {
            clock::pause(ASKS_AGAIN).await;
            self.ask("again, a second later", true).await?;
        }
        Ok(self.rows)
    }

    async fn ask(&mut self, delivered: &'static str, is_known: bool) -> Result<()> {
        let (step, name, _) = self.case.name();
        let (answer, measured) = take_over_by(&self.stage, &self.event).await?;
        let mut verdict = Verdict::default();
        match is_known {
            true => verdict.fresh(&answer, None).settled(&measured, 1),
            false => verdict.in_progress(&answer).settled(&measured, 0),
        };
        verdict.runs(&measured, usize::from(self.case == Case::DidNotHappen)).claims(&measured, 1);
        let charged = self.gateway.charged();
        verdict
            .requires("all deliveries together make 1 charge")
            .must(charged == 1, || format!("{charged} charges in all (expected 1)"));
        let row = Row::new((step, name), delivered, &answer, &measured, verdict);
        self.rows.push(self.stage.done(row));
        Ok(())
    }
}
