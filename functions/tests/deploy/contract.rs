//! The table of the HTTP contract through every front end, by real processes under the Runtime API: the cases for the
//! layer as it comes by `payments` as it is deployed, and all of them by a function that has any configuration.
//!
//! The processes share one table and the clock of the machine, which the requests set forward where a case needs it.

use lambda_idempotency_cli::rehearse::{answer::Answer, database::Database, event::Event};
use serde_json::Value;
use tokio::sync::Mutex;

use super::{
    any_api,
    cases::{Api, Found},
    clauses::CASES,
    front_ends::FRONT_ENDS,
    stage::{Running, database},
};

/// A function's processes: one, and another for what comes while that is busy.
struct Deployed {
    /// What is counted of its runs: those that end with this status, or all.
    counted: Option<u16>,
    first: Mutex<Running>,
    other: Option<Mutex<Running>>,
}

impl Deployed {
    /// The example. It tells of each payment, and not of what else its handler answers.
    async fn payments(database: &Database) -> Self {
        let first = Mutex::new(Running::start("payments", database).await);
        Self { counted: Some(201), first, other: None }
    }

    async fn any_api(database: &Database) -> Self {
        let start = async || Mutex::new(Running::command(&any_api::command(), any_api::MARK, database).await);
        Self { counted: None, first: start().await, other: Some(start().await) }
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
async fn the_table_passes_through_every_front_end_of_the_deployed_payments() {
    let database = database().await;
    let payments = Deployed::payments(&database).await;
    let mut own = 0;
    for case in CASES.iter().filter(|case| case.is_for_payments()) {
        for front_end in FRONT_ENDS {
            own += 1;
            case.walk(front_end, own, &payments).await;
        }
    }
    assert!(own >= 7 * 4, "{own} walks: the cases for the layer as it comes were not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_passes_through_every_front_end_of_a_real_function() {
    let database = database().await;
    let any_api = Deployed::any_api(&database).await;
    let walks = CASES.iter().flat_map(|case| FRONT_ENDS.map(|front_end| (case, front_end)));
    for (own, (case, front_end)) in (1..).zip(walks) {
        case.walk(front_end, own, &any_api).await;
    }
}
