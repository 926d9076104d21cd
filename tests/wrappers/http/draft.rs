//! The draft, clause by clause (draft-ietf-httpapi-idempotency-key-header-07): what a server can show of each
//! clause, through every front end, from the table in `clauses.rs`.

use lambda_http::http::HeaderName;
use lambda_idempotency::lambda::http::HttpLayer;

use super::*;
use crate::{
    api::{self, Layered},
    cases::{self, Found},
    clauses::{CASES, SHOWN},
    front_ends::FRONT_ENDS,
};

/// One front end's API in this process.
struct InProcess {
    service: api::Service,
    layer: HttpLayer,
    runs: api::Runs,
}

impl InProcess {
    fn new(layered: Layered) -> Self {
        let store: Arc<dyn Store> = if layered == Layered::Down { Arc::new(Down) } else { empty_store() };
        let runs = api::Runs::telling(|| ());
        let (service, layer) = api::api(layered, Idempotency::builder(store).function("payments"), &runs);
        Self { service, layer, runs }
    }
}

impl cases::Api for InProcess {
    async fn send(&self, event: Value, _: bool) -> Found {
        recording::secrets(|secrets| secrets.add_http(&event));
        // `lambda_http` parses the front end's event.
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        let answer = self.service.clone().oneshot(request).await.unwrap();
        is_replay(&answer);
        recording::shown(&self.layer);
        let header = |name: &HeaderName| {
            let values = answer.headers().get_all(name).iter();
            values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join(", ")
        };
        Found {
            status: answer.status().as_u16(),
            headers: answer.headers().keys().map(|name| (name.as_str().to_owned(), header(name))).collect(),
            body: String::from_utf8_lossy(answer.body()).into_owned(),
        }
    }

    async fn runs(&self) -> usize {
        self.runs.count()
    }

    fn counts(&self, _: u16) -> bool {
        true
    }
}

/// Runs the cases that show `clause` through every front end.
async fn passes(clause: &str) {
    let mut cases = CASES.iter().filter(|case| case.clauses.contains(&clause)).peekable();
    assert!(cases.peek().is_some(), "no case shows {clause}");
    for case in cases {
        for front_end in FRONT_ENDS {
            case.walk(front_end, 1, &InProcess::new(case.layered)).await;
        }
    }
}

/// Defines a test of each name that runs its clause's cases.
macro_rules! clauses {
    ($($name:ident: $clause:literal,)*) => {
        $(#[tokio::test]
        async fn $name() {
            passes($clause).await;
        })*

        const WALKED: &[&str] = &[$($clause),*];
    };
}

clauses! {
    d01_the_value_is_a_string_item: "D01",
    d02_and_d17_a_key_is_not_used_again_with_another_payload: "D17",
    d03_and_d25_a_key_is_its_callers: "D25",
    d04_a_uuid_is_a_key: "D04",
    d05_and_d11_a_key_that_has_expired_begins_anew: "D05",
    d07_and_d13_the_fingerprint_is_of_what_the_request_says: "D07",
    d08_a_key_that_nobody_asked_for_does_no_harm: "D08",
    d12_to_d16_a_first_request_is_processed_and_a_retry_gets_its_result: "D16",
    d18_a_retry_before_completion_is_a_conflict_and_another_payload_is_none: "D18",
    d19_and_d20_a_missing_key_is_400_and_linked_to_the_documentation: "D19",
    d21_a_request_that_is_not_corrected_goes_on_failing_and_never_runs: "D21",
    d22_passing_failures_are_not_the_result: "D22",
    d24_a_key_is_validated_before_anything_is_looked_up: "D24",
}

#[test]
fn every_clause_has_its_cases_and_every_case_its_test() {
    for clause in SHOWN {
        assert!(CASES.iter().any(|case| case.clauses.contains(&clause)), "no case shows {clause}");
    }
    for case in CASES {
        assert!(case.clauses.iter().all(|clause| SHOWN.contains(clause)), "an unknown clause: {case:?}");
        assert!(case.clauses.iter().any(|clause| WALKED.contains(clause)), "no test: {case:?}");
    }
}

#[test]
fn d06_d09_d10_d22_and_d23_the_specification_is_there_to_be_published() {
    let page = include_str!("../../../src/guide/idempotency_specification.md");
    for said in
        ["`Idempotency-Key`", "1 to 255", "24 hours", "POST and PATCH", "401, 403, 404, 405", "`key-reused`"]
    {
        assert!(page.contains(said), "{said}");
    }
}
