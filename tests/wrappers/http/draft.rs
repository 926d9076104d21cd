//! Tests the clauses of draft-ietf-httpapi-idempotency-key-header-07 that can be tested with requests. Each request
//! goes through every front end. The table in `clauses.rs` has the cases.

use lambda_http::http::HeaderName;
use lambda_idempotency::lambda::http::HttpLayer;

use super::*;
use crate::{
    api::{self, Layered},
    cases::{self, Found},
    clauses::{CASES, SHOWN},
    front_ends::FRONT_ENDS,
};

/// An API in this process, which gets the events of one front end.
struct InProcess {
    service: api::Service,
    layer: HttpLayer,
    runs: api::Runs,
}

impl InProcess {
    fn new(layered: Layered) -> Self {
        let store: Arc<dyn Store> =
            if layered == Layered::Down { Arc::new(store_that_is_down()) } else { empty_store() };
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
        // Adds the answer's body to the secrets.
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

/// Runs this clause's cases through every front end.
async fn passes(clause: &str) {
    let mut cases = CASES.iter().filter(|case| case.clauses.contains(&clause)).peekable();
    assert!(cases.peek().is_some(), "no case covers {clause}");
    for case in cases {
        for front_end in FRONT_ENDS {
            case.walk(front_end, 1, &InProcess::new(case.layered)).await;
        }
    }
}

/// Defines a test for each clause, which runs the clause's cases.
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
    d01_keys_are_string_items: "D01",
    d02_d17_reused_keys_are_refused: "D17",
    d03_d25_keys_belong_to_their_caller: "D25",
    d04_uuids_are_valid_keys: "D04",
    d05_d11_expired_keys_start_over: "D05",
    d07_d13_fingerprints_ignore_formatting: "D07",
    d08_unneeded_keys_are_harmless: "D08",
    d12_to_d16_retries_get_the_result: "D16",
    d18_early_retries_conflict: "D18",
    d19_d20_missing_keys_get_400: "D19",
    d21_uncorrected_requests_keep_failing: "D21",
    d22_transient_failures_are_not_results: "D22",
    d24_keys_are_validated_before_lookup: "D24",
}

#[test]
fn every_clause_and_case_is_tested() {
    for clause in SHOWN {
        assert!(CASES.iter().any(|case| case.clauses.contains(&clause)), "no case covers {clause}");
    }
    for case in CASES {
        assert!(case.clauses.iter().all(|clause| SHOWN.contains(clause)), "unknown clause: {case:?}");
        assert!(case.clauses.iter().any(|clause| WALKED.contains(clause)), "no test: {case:?}");
    }
}

#[test]
fn d06_d09_d10_d22_d23_specification_exists() {
    let page = include_str!("../../../src/guide/idempotency_specification.md");
    for said in
        ["`Idempotency-Key`", "1 to 255", "24 hours", "POST and PATCH", "401, 403, 404, 405", "`key-reused`"]
    {
        assert!(page.contains(said), "{said}");
    }
}
