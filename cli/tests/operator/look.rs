//! `inspect` and `list`.

use std::time::Duration;

use lambda_idempotency::{
    StoredKey,
    store::{Lock, Mark, Outcome, State, StoredResponse, dynamodb::DynamoDbStore},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use testkit::puts;

use super::bench::{Bench, PATIENCE, RESPONSE, TABLE, completed, released};

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} isn't in\n{text}");
    }
}

/// `inspect` prints this if the record blocks requests with another payload.
const MISMATCH: &str = "A different request with this key is refused: Mismatch (HTTP 422).";

#[tokio::test(flavor = "multi_thread")]
async fn missing_record_is_reported() {
    let bench = Bench::new().await;
    let id = format!("payments/run#{:064}", 0);
    let absent = bench.run(&["inspect", &id]).await;
    assert_eq!(absent.code, 1);
    has(&absent.out, &[&id, "There's no record", &format!("The store: {}\n", bench.location())]);
    assert_eq!(bench.run(&["inspect", &id, "--json"]).await.json(), json!({ "id": id, "record": null }));
}

/// The commands read a table with custom attribute names, if `--attributes` or the store's URL gives these names.
#[tokio::test(flavor = "multi_thread")]
async fn configured_attribute_names_are_read() {
    const NAMES: &str = "id:pk,status:state,expires_at:ttl";
    let mut bench = Bench::empty().await;
    let options = ["--attributes", NAMES];
    assert_eq!(bench.run(&[&["table", "create"], &options[..]].concat()).await.code, 0);
    assert_eq!(bench.run(&[&["table", "check"], &options[..]].concat()).await.code, 0);
    let builder = DynamoDbStore::builder(TABLE).client(bench.client.clone());
    let builder = builder.attributes(NAMES).unwrap().attempt_timeout(PATIENCE).operation_timeout(PATIENCE);
    bench.store = builder.build().await.unwrap();
    let (key, _) = bench.claim("run:charge", 100).await;
    let url = format!("dynamodb://{TABLE}?attributes={NAMES}");
    for options in [options, ["--store", &url]] {
        let listed = bench.run(&[&["list"], &options[..]].concat()).await;
        has(&listed.out, &["STARTED", key.as_str()]);
        assert!(listed.code == 0 && !listed.out.contains("UNREADABLE"), "{listed:?}");
        let record = bench.run(&[&["inspect", key.as_str()], &options[..]].concat()).await;
        has(&record.out, &["STARTED, live"]);
    }
    let unnamed = bench.run(&["list"]).await;
    assert!(!unnamed.out.contains("STARTED"), "{unnamed:?}");
    let wrong = bench.run(&["list", "--attributes", "colour:c"]).await;
    wrong.is_bad_input(&["there is no attribute \"colour\"; the attributes are id, version, status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_state_shows_its_next_steps() {
    let bench = Bench::new().await;
    let (live, record) = bench.claim("run:charge", 100).await;
    let (stale, _) = bench.claim("run:stale", -180).await;
    let past = system_clock().now().saturating_sub(Duration::from_secs(60)).rounded_up_to_second();
    let (expired, _) =
        bench.claim_as("run:expired", -180, |lock| Lock { expires_at: Some(past), ..lock }).await;
    let (done, _) = bench.settled("run:done", completed(3600)).await;
    let (over, _) = bench.settled("run:over", completed(0)).await;
    let expires_at = record.expires_at.unwrap();
    let (omitted, _) = bench.settled("run:omitted", (State::Completed(Outcome::Omitted), expires_at)).await;
    let (failed, _) = bench.settled("run:failed", (State::Failed(Outcome::Omitted), expires_at)).await;
    let (free, _) = bench.settled("run:free", released()).await;
    let cases: [(&StoredKey, &[&str], [&str; 2]); 7] = [
        (
            &live,
            &[
                "STARTED, live: its lease ends in ",
                "attempt 1",
                " s ago), attempt 1",
                ": InProgress (HTTP 409)",
                "Wait, then inspect the record again",
            ],
            ["in_progress", "in_progress"],
        ),
        (
            &stale,
            &[
                "STARTED, stale: its lease ended 3 min ago",
                "takes over the claim",
                "OutcomeUnknown (HTTP 409)",
                "idempotency complete 'payments/run:stale#",
                "idempotency release 'payments/run:stale#",
            ],
            ["takes_over", "outcome_unknown"],
        ),
        (&expired, &["STARTED, stale and expired"], ["claims_anew", "outcome_unknown"]),
        (
            &done,
            &["COMPLETED, live: replayed until it expires in ", "the recorded response", "See the response:"],
            ["replayed", "replayed"],
        ),
        (&omitted, &["not retained", "NotRetained (HTTP 409)"], ["replayed", "replayed"]),
        (&failed, &["FAILED, live", "the recorded failure"], ["replayed", "replayed"]),
        (
            &free,
            &["RELEASED: the key is free", "The next delivery claims the key"],
            ["claims_anew", "claims_anew"],
        ),
    ];
    for (key, words, next) in cases {
        let answer = bench.run(&["inspect", key.as_str()]).await;
        assert_eq!(answer.code, 0, "{answer:?}");
        has(&answer.out, words);
        has(&answer.out, &[key.as_str(), "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10"]);
        assert_eq!(answer.out.contains(MISMATCH), next[0] != "claims_anew", "{answer:?}");
        let record = &bench.run(&["inspect", key.as_str(), "--json"]).await.json()["record"];
        assert_eq!(record["next_delivery"], json!({ "at_least_once": next[0], "at_most_once": next[1] }));
    }
    let json = &bench.run(&["inspect", live.as_str(), "--json"]).await.json()["record"];
    assert_eq!(json["owner"], record.owner.to_string());
    assert_eq!(json["generation"], record.generation.get());
    assert_eq!(json["lease_until_ms"], record.lease_until().unwrap().as_millis());
    assert!(json["lease_until"].as_str().unwrap().ends_with('Z'), "{json}");
    // This record expires about now, so it may be live or expired. Only its status is certain.
    let over = bench.run(&["inspect", over.as_str()]).await;
    has(&over.out, &["COMPLETED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn response_is_shown_on_request() {
    let bench = Bench::new().await;
    let (key, _) = bench.settled("run:charge", completed(3600)).await;
    for options in [&[][..], &["--json"]] {
        let hidden = bench.run(&[&["inspect", key.as_str()], options].concat()).await;
        assert!(!hidden.out.contains("receipt"), "{hidden:?}");
    }
    let shown = bench.run(&["inspect", key.as_str(), "--reveal"]).await;
    has(&shown.out, &["The recorded response:", RESPONSE]);
    let shown = bench.run(&["inspect", key.as_str(), "--reveal", "--json"]).await.json();
    assert_eq!(shown["record"]["response"]["recorded"], json!({ "text": RESPONSE }));
    let (started, _) = bench.claim("run:started", 10).await;
    assert_eq!(bench.run(&["inspect", started.as_str(), "--reveal"]).await.code, 0);

    let response = StoredResponse::new("\u{1b}[2Jdone\n".into());
    let (key, _) =
        bench.settled("run:escape", (State::Completed(Outcome::Retained(response)), later())).await;
    let shown = bench.run(&["inspect", key.as_str(), "--reveal"]).await;
    has(&shown.out, &["\\u{1b}[2Jdone\n"]);
}

fn later() -> Timestamp {
    system_clock().now().saturating_add(Duration::from_secs(3600)).rounded_up_to_second()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_by_filter() {
    let bench = Bench::new().await;
    let none = bench.run(&["list"]).await;
    assert_eq!(none.out, "no matching records\n");
    assert_eq!(none.err, format!("The store: {}\n", bench.location()));
    let (live, _) = bench.claim("run:charge", 100).await;
    let (stale, _) = bench.claim("run:stale", -180).await;
    let (done, _) = bench.settled("run:done", completed(3600)).await;
    let all = bench.run(&["list"]).await;
    assert_eq!((all.code, all.out.lines().count()), (0, 4), "{all:?}");
    has(
        &all.out,
        &[live.as_str(), stale.as_str(), done.as_str(), "lease ended 3 min ago, stale", "expires in "],
    );
    let columns: Vec<_> =
        all.out.lines().map(|line| line.find("payments/run").or(line.find("id "))).collect();
    assert!(columns.iter().all(|at| *at == columns[0]), "the columns aren't aligned\n{}", all.out);

    let ids = async |options: &[&str]| {
        let answer = bench.run(&[&["list", "--json"], options].concat()).await.json();
        let records = answer["records"].as_array().unwrap().clone();
        let mut ids: Vec<_> =
            records.iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        (ids, answer["has_more"].as_bool().unwrap())
    };
    assert_eq!(ids(&["--unresolved"]).await, (vec![stale.to_string()], false));
    assert_eq!(ids(&["--status", "completed"]).await, (vec![done.to_string()], false));
    // `list` shows the response's length. It drops the stored bytes, so it doesn't know how many of them are inline.
    let completed = bench.run(&["list", "--status", "completed", "--json"]).await.json();
    let response = &completed["records"][0]["response"];
    assert_eq!((&response["bytes"], &response["inline_bytes"]), (&json!(RESPONSE.len()), &json!(null)));
    assert_eq!(ids(&["--status", "started"]).await.0.len(), 2);
    assert_eq!(ids(&["--status", "released"]).await.0.len(), 0);
    let (some, has_more) = ids(&["--limit", "2"]).await;
    assert_eq!((some.len(), has_more), (2, true));
    assert!(!ids(&["--limit", "3"]).await.1);
    let cut = bench.run(&["list", "--limit", "1"]).await;
    assert_eq!(cut.err, "More records match: use a larger --limit than 1.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn unresolved_operations_are_counted_by_age() {
    let bench = Bench::new().await;
    let none = bench.run(&["list", "--unresolved"]).await;
    assert_eq!((none.code, none.out.as_str()), (0, "0 operations unresolved\n"));
    let aged = |secs: u64| {
        move |lock: Lock| {
            let lock_acquired_at = lock.lock_acquired_at.saturating_sub(Duration::from_secs(secs));
            Lock { lock_acquired_at, ..lock }
        }
    };
    let (young, _) = bench.claim_as("run:young", -30, aged(0)).await;
    let (old, _) = bench.claim_as("run:old", -30, aged(7_200)).await;
    let (oldest, _) = bench.claim_as("run:oldest", -30, aged(90_000)).await;
    // An old claim with an active lease doesn't count as unresolved, and neither do settled records.
    bench.claim_as("run:active", 600, aged(90_000)).await;
    bench.settled("run:done", completed(3600)).await;
    bench.settled("run:free", released()).await;

    let all = bench.run(&["list", "--unresolved"]).await;
    assert_eq!((all.code, all.out.lines().last()), (0, Some("3 operations unresolved")), "{all:?}");
    let places = [&oldest, &old, &young].map(|key| all.out.find(key.as_str()).unwrap());
    assert!(places.is_sorted(), "the oldest isn't first\n{}", all.out);
    let aged = bench.run(&["list", "--unresolved", "--older-than", "1h30m"]).await;
    assert!(aged.code == 0 && !aged.out.contains(young.as_str()), "{aged:?}");
    has(&aged.out, &[oldest.as_str(), old.as_str(), "2 operations unresolved"]);
    let one = bench.run(&["list", "--unresolved", "--older-than", "1d"]).await;
    has(&one.out, &[oldest.as_str(), "1 operation unresolved"]);

    // The count includes records that aren't listed.
    let cut = bench.run(&["list", "--unresolved", "--limit", "1"]).await;
    has(&cut.out, &[oldest.as_str(), "3 operations unresolved"]);
    assert!(cut.err.contains("use a larger --limit") && !cut.out.contains(young.as_str()), "{cut:?}");
    let json = bench.run(&["list", "--unresolved", "--limit", "1", "--json"]).await.json();
    assert_eq!((&json["unresolved"], &json["has_more"]), (&json!(3), &json!(true)));
    assert_eq!((json["records"].as_array().unwrap().len(), &json["unreadable"]), (1, &json!(0)));
    assert_eq!(bench.run(&["list", "--json"]).await.json()["unresolved"], json!(null));

    for (options, words) in [
        (&["--older-than", "1h"][..], "--unresolved"),
        (&["--unresolved", "--status", "completed"], "cannot be used with"),
        (&["--unresolved", "--older-than", "soon"], "isn't a duration above zero"),
    ] {
        let bad = bench.run(&[&["list"], options].concat()).await;
        assert!(bad.code == 2 && bad.err.contains(words), "{bad:?}");
    }
    let help = bench.run(&["list", "--help"]).await;
    has(&help.out, &["inspect KEY", "complete KEY", "release KEY", "list --unresolved --older-than 1h"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_attempt_is_shown() {
    let bench = Bench::new().await;
    let (key, _) =
        bench.claim_as("run:charge", 60, |lock| Lock { attempt: 2, mark: Mark::Interrupted, ..lock }).await;
    let shown = bench.run(&["inspect", key.as_str()]).await;
    has(&shown.out, &["interrupted  an earlier attempt ended without an answer"]);
    assert_eq!(bench.run(&["inspect", key.as_str(), "--json"]).await.json()["record"]["interrupted"], true);
    has(&bench.run(&["list"]).await.out, &["2, interrupted"]);
    let release = bench.run(&["release", key.as_str()]).await;
    has(&release.out, &["A release says that nothing happened"]);
    let (other, _) = bench.claim("run:other", 60).await;
    let shown = bench.run(&["inspect", other.as_str()]).await;
    assert!(!shown.out.contains("interrupted"), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_at_most_once_claim_never_expires() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim_as("run:charge", -180, puts::lasting).await;
    let shown = bench.run(&["inspect", key.as_str()]).await;
    let words = [
        "execution    at most once",
        "expires      never, until it's settled",
        "OutcomeUnknown (HTTP 409)",
        "The function runs at most once",
    ];
    has(&shown.out, &words);
    assert!(!shown.out.contains("takes over the claim"), "{shown:?}");
    let json = &bench.run(&["inspect", key.as_str(), "--json"]).await.json()["record"];
    assert_eq!((&json["expires_at"], &json["expires_at_ms"]), (&json!(null), &json!(null)));
    assert_eq!(json["execution"], "at_most_once");
    assert_eq!((&json["is_stale"], &json["is_expired"]), (&json!(true), &json!(false)));
    has(&bench.run(&["list", "--unresolved"]).await.out, &[key.as_str(), "1 operation unresolved"]);

    // Settling sets an expiry, and the dry run shows it.
    let dry = bench.run(&["release", key.as_str()]).await;
    has(&dry.out, &["(in 24 h)"]);
    assert_eq!(bench.run(&["release", key.as_str(), "--confirm"]).await.code, 0);
    let left = bench.record(&key).await.expires_at.unwrap().as_millis() - system_clock().now().as_millis();
    assert!((86_300_000..=86_401_000).contains(&left), "{left} ms isn't a day");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_records_are_listed() {
    let bench = Bench::new().await;
    bench.claim("run:charge", 100).await;
    let id = format!("payments/run#{:064}", 7);
    bench.put_unreadable(&id).await;
    for options in [&[][..], &["--status", "completed"]] {
        let listed = bench.run(&[&["list"], options].concat()).await;
        assert_eq!(listed.code, 0);
        has(&listed.out, &["UNREADABLE", &id, "`version` is missing"]);
    }
    has(&bench.run(&["list", "--unresolved"]).await.out, &["0 operations unresolved\n1 record unreadable\n"]);
    let json = bench.run(&["list", "--json"]).await.json();
    assert!(json["records"][0]["unreadable"].as_str().unwrap().contains("`version` is missing"), "{json}");
    bench.run(&["inspect", &id]).await.is_bad_input(&["can't be read", "`version` is missing"]);
    bench.run(&["release", &id, "--confirm"]).await.is_bad_input(&["can't be read"]);
}

/// The function's skew margin decides whether a claim is already stale when its lease has just expired.
#[tokio::test(flavor = "multi_thread")]
async fn skew_margin_option_decides_staleness() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim("run:charge", -5).await;
    let inspect = async |margin: &[&str]| bench.run(&[&["inspect", key.as_str()], margin].concat()).await.out;
    assert!(inspect(&[]).await.contains("stale"));
    let within = inspect(&["--skew-margin", "10m"]).await;
    has(&within, &["within the skew margin", " --skew-margin 10m\n"]);
    let dry = bench.run(&["release", key.as_str(), "--skew-margin", "10m"]).await;
    has(&dry.out, &[" --skew-margin 10m --if-revision", &format!("To write it to {}:", bench.location())]);
    let list = async |margin: &[&str]| bench.run(&[&["list", "--unresolved"], margin].concat()).await.out;
    assert!(list(&[]).await.contains("1 operation unresolved"));
    assert!(list(&["--skew-margin", "10m"]).await.contains("0 operations unresolved"));
}
