//! Runs the cases of the HTTP contract through every front end, with real processes under the Runtime API. The deployed
//! `payments` runs the cases of the default layer. `any_api`, a function with every configuration, runs all cases.
//!
//! The processes share one table, and use the machine's clock. Where a case needs a later time, the request's header
//! `ahead` moves the library's clock forward.

use lambda_idempotency_rehearsal::{answer::Answer, database::Database, event::Event};
use serde_json::Value;
use tokio::sync::Mutex;

use super::{
    any_api,
    cases::{Api, Case, Found},
    clauses::CASES,
    front_ends::FRONT_ENDS,
    stage::{Delivers, Running, database},
};

/// A function's processes: one, or two. The second takes requests that arrive while the first is busy.
pub(crate) struct Deployed {
    /// Counts only the runs that answer with this status. `None` counts all runs.
    counted: Option<u16>,
    first: Mutex<Running>,
    other: Option<Mutex<Running>>,
}

impl Deployed {
    /// The example function. It logs only the runs that make a payment.
    async fn payments(database: &Database) -> Self {
        Self::of_payments(Running::start("payments", database).await)
    }

    pub(crate) fn of_payments(first: Running) -> Self {
        Self { counted: Some(201), first: Mutex::new(first), other: None }
    }

    async fn any_api(database: &Database) -> Self {
        let start = async || Running::command(&any_api::command(), any_api::MARK, database).await;
        Self::of_any_api(start().await, start().await)
    }

    pub(crate) fn of_any_api(first: Running, other: Running) -> Self {
        Self { counted: None, first: Mutex::new(first), other: Some(Mutex::new(other)) }
    }
}

impl Api for Deployed {
    async fn send(&self, event: Value, is_busy: bool) -> Found {
        let process = if is_busy { self.other.as_ref().expect("a second process") } else { &self.first };
        let answer = process.lock().await.deliver_event(&Event::new(event)).await;
        let Answer::Http(http) = answer else { panic!("{answer:?}") };
        Found { status: http.status.try_into().unwrap(), headers: http.headers, body: http.body }
    }

    async fn runs(&self) -> usize {
        let other = match &self.other {
            Some(other) => other.lock().await.marks().await,
            None => 0,
        };
        self.first.lock().await.marks().await + other
    }

    fn counts(&self, status: u16) -> bool {
        self.counted.is_none_or(|counted| status == counted)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contract_holds_for_deployed_payments() {
    let database = database().await;
    let cases: Vec<_> = CASES.iter().filter(|case| case.is_for_payments()).collect();
    assert!(cases.len() >= 7, "found only {} cases of the default layer", cases.len());
    walk(cases, &Deployed::payments(&database).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contract_holds_in_every_configuration() {
    let database = database().await;
    walk(CASES, &Deployed::any_api(&database).await).await;
}

/// Runs the cases through every front end.
pub(crate) async fn walk(cases: impl IntoIterator<Item = &Case>, api: &impl Api) {
    let walks = cases.into_iter().flat_map(|case| FRONT_ENDS.map(|front_end| (case, front_end)));
    for (own, (case, front_end)) in (1..).zip(walks) {
        case.walk(front_end, own, api).await;
    }
}
