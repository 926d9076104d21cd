//! No log, metric, error or `Debug` output contains a raw key, body or token. An audit runs all tests of this
//! test program again with a recording, and searches the recording for every secret that the tests sent.

mod rare;

use std::{collections::BTreeSet, env};

use bytes::Bytes;
use lambda_idempotency::{
    Begun, Fingerprint, Idempotency, Key, Resolution, RunError, Scope, StoredKey, current,
    lambda::http::{Caller, scope_caller},
    settings::Recording,
    store::{Owner, memory::MemoryStore},
};
use tower::Layer;

use crate::{api::CANARY, audit, recording};

/// The environment variable that makes the test `leaks_a_secret_on_demand` leak secrets.
const LEAK: &str = "IDEMPOTENCY_TEST_LEAK";

/// The folder for recordings.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The prefix of the audits, which are tests that run other tests again. An audit never runs a test with this prefix.
const AUDITS: &str = "silence::audit_";

/// Tests that start no recording, because they don't send the library any secret.
const UNRECORDED: &[&str] = &[
    "event::key_closures_may_return_options_and_results",
    "http::caller_table::the_guide_lists_every_caller",
    "http::decided::lambda_http_shows_only_the_last_key",
    "http::draft::d06_d09_d10_d22_d23_specification_exists",
    "http::draft::every_clause_and_case_is_tested",
    "http::paths::visible_differences_are_never_replayed",
];

/// Texts that the recording must contain. If one is missing, some output wasn't recorded, and so not searched.
const TOLD: &[&str] = &[
    "event: DEBUG lambda_idempotency message=claimed event=claimed id=",
    "event=replayed",
    "event=local_cache_hit",
    "event=settled",
    "event: WARN lambda_idempotency message=the store can't be used",
    "event=refused",
    "event=failure_recorded",
    "event=record_when_unused",
    "event=response_broken_off",
    "event=header_dropped",
    "kind=Mismatch",
    "kind=InProgress",
    "kind=InvalidKey",
    "kind=MissingKey",
    "kind=CallerMissing",
    "event: ERROR lambda_idempotency message=refused a keyed request",
    "kind=CallerUnknown",
    "kind=Unavailable",
    "kind=OutcomeUnknown",
    "kind=NotRetained",
    "kind=Corrupt",
    "kind=Invalid",
    "event=takeover",
    "event=fenced",
    "event=cut_off",
    "event=unrecorded",
    "event=not_retained",
    "event=unprotected",
    "event=panicked",
    "event=abandoned",
    "event=resolved",
    "metric: idempotency_executed",
    "metric: idempotency_replayed",
    "metric: idempotency_local_cache_hit",
    "metric: idempotency_claim_latency",
    "metric: idempotency_settle_latency",
    "shown: Idempotency {",
    "shown: HttpLayer {",
    "shown: Idempotent {",
    "shown: EventLayer",
    "shown: MemoryStore {",
    "shown: Claim {",
    "shown: ClaimHandle {",
    "event=misused",
    "said: ",
    "panicked at",
];

#[test]
fn audit_finds_no_secret_in_output() {
    let (mut recorded, output) = audit::recorded(SCRATCH, "silence", &["--skip", AUDITS], None);
    audit::assert_whole(&audit::tests(AUDITS), UNRECORDED, &recorded, &output);
    let lacking: Vec<_> = TOLD.iter().filter(|fact| !recorded.told.contains(**fact)).collect();
    assert!(lacking.is_empty(), "the recording lacks {lacking:?}");
    assert!(recorded.secrets.count() > 100, "the tests registered only {} secrets", recorded.secrets.count());
    recorded.secrets.add(CANARY);
    audit::assert_silent(&recorded);
}

/// The kinds of output through which a secret could leak.
const WAYS: [&str; 9] = ["field", "message", "span", "label", "error", "debug", "bytes", "text", "print"];

fn leaked(way: &str) -> String {
    format!("{CANARY}-\"leaked\"-by-{way}")
}

#[test]
fn audit_finds_every_leak() {
    let leaking = ["--exact", "silence::leaks_a_secret_on_demand"];
    let (recorded, output) = audit::recorded(SCRATCH, "leak", &leaking, Some(LEAK));
    assert!(output.status.success());
    let found: BTreeSet<_> =
        recorded.secrets.found_in(&recorded.told).into_iter().map(|(of, _)| of).collect();
    assert_eq!(found, WAYS.map(leaked).into_iter().collect());
}

#[test]
fn leaks_a_secret_on_demand() {
    recording::begin();
    if env::var_os(LEAK).is_none() {
        return;
    }
    for way in WAYS {
        let leak = leaked(way);
        recording::secrets(|secrets| secrets.add(&leak));
        match way {
            "field" => tracing::trace!(target: "anybody", key = leak, "told"),
            "message" => tracing::error!("of {}", serde_json::json!({ "key": leak })),
            "span" => drop(tracing::debug_span!("request", key = %leak)),
            "label" => metrics::counter!("requests", "key" => leak).increment(1),
            "error" => recording::error(&std::io::Error::other(leak)),
            "debug" => recording::shown(&Some(leak)),
            "bytes" => recording::shown(&leak.into_bytes()),
            "text" => recording::shown(&Bytes::from(leak)),
            _ => eprintln!("{leak}"),
        }
    }
}

/// Returns a text that no output may contain.
fn secret(of: &str) -> String {
    let secret = format!("{CANARY}-{of}");
    recording::secrets(|secrets| secrets.add(&secret));
    secret
}

/// Records the `Debug` text of library values that contain secrets.
#[tokio::test]
async fn debug_of_library_values_leaks_nothing() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone()).function("values").build().unwrap();
    let (key, payload) = (Key::new(secret("key")).unwrap(), secret("payload"));
    let fingerprint = Fingerprint::of(&payload).unwrap();
    let operation = idempotency.operation("charge").unwrap();
    recording::shown(&operation.for_caller(secret("caller")).unwrap());
    let begun = operation.begin(&key, fingerprint).await.unwrap();
    recording::shown(&begun);
    let Begun::Claimed(claim) = begun else { panic!("not claimed") };
    recording::shown(&claim);
    recording::error(&operation.begin(&key, fingerprint).await.unwrap_err());
    recording::shown(&claim.complete(secret("response")).await.unwrap());
    recording::shown(&operation.begin(&key, fingerprint).await.unwrap());
    let other = Fingerprint::of(&secret("other")).unwrap();
    recording::error(&operation.begin(&key, other).await.unwrap_err());
    drop(operation.begin(Key::new(secret("dropped")).unwrap(), fingerprint).await.unwrap());

    let caller = secret("caller");
    let api = secret("api");
    for caller in [
        Caller::Iam(caller.clone()),
        Caller::Jwt { issuer: caller.clone(), subject: caller.clone() },
        Caller::Principal { api: api.clone(), name: caller.clone() },
        Caller::ApiKey { api: api.clone(), id: caller.clone() },
        Caller::Certificate { api, issuer: caller.clone(), subject: caller },
    ] {
        let scope = Scope::new("values", "http").unwrap();
        let scope = scope.with_caller(scope_caller(Some(&caller), Some(&secret("tenant"))).unwrap()).unwrap();
        recording::shown(&(caller, &scope, StoredKey::new(&scope, &key)));
    }
    recording::shown(&(&key, fingerprint));
    recording::error(&Key::new(secret(&"long".repeat(100))).unwrap_err());
    for (stored, record) in store.all() {
        recording::shown(&(stored, record));
    }
    recording::shown(&store);
    layers_show_themselves(&idempotency);
}

fn layers_show_themselves(idempotency: &Idempotency) {
    recording::shown(&idempotency.events(|_: &String| Key::new("key")));
    recording::shown(&idempotency.http().layer(()));
    recording::shown(&Idempotency::builder(MemoryStore::new()));
}

/// Records the errors of failed handlers, and the values that an operator's tool shows.
#[tokio::test]
async fn operator_and_handler_errors_leak_nothing() {
    let store = MemoryStore::new();
    let builder = Idempotency::builder(store.clone()).function("values");
    let idempotency = builder.settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
    let (key, payload) = (Key::new(secret("run")).unwrap(), secret("sum"));
    let run = async |payload: &str| {
        let handler = || async {
            recording::shown(&current().unwrap());
            Err::<(), _>("out of stock")
        };
        idempotency.operation("charge").unwrap().run(&key, payload, handler).await.unwrap_err()
    };
    for payload in [&*payload, &*payload, "another"] {
        match run(payload).await {
            RunError::Idempotency(error) => recording::error(&error),
            failed => recording::shown(&failed),
        }
    }
    let (stored, seen) = store.all().remove(0);
    let resolution = Resolution::Complete(secret("by-hand").into());
    recording::shown(&resolution);
    recording::shown(&idempotency.resolve(&stored, &seen, resolution).await.unwrap());
    let seen = store.get(&stored).unwrap();
    recording::shown(&idempotency.outcome_of(&stored, &seen).await.unwrap());
    let owner = Owner::random().unwrap();
    recording::secrets(|secrets| secrets.add(owner.to_string()));
    recording::shown(&owner);
}
