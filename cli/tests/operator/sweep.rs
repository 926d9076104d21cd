//! `idempotency sweep`.

use lambda_idempotency::{
    Fingerprint, Key, Scope, StoredKey,
    settings::Execution,
    store::{Generation, Lock, Mark, Owner, Put, PutOutcome, Store as _, postgres::PostgresStore},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use super::bench::run_in;
use testkit::postgres::{Server, fresh_table, patient};

async fn claim(store: &PostgresStore, name: &str, expired_for_s: Option<u64>) -> StoredKey {
    let past = |seconds: u64| Timestamp::from_millis(system_clock().now().as_millis() - seconds * 1000);
    let lock = Lock {
        owner: Owner::random().unwrap(),
        generation: Generation::new(1),
        attempt: 1,
        fingerprint: Fingerprint::of(name).unwrap(),
        lock_acquired_at: past(100_000),
        lease_until: past(90_000),
        // Only an at-most-once claim has no expiry.
        execution: if expired_for_s.is_some() { Execution::AtLeastOnce } else { Execution::AtMostOnce },
        expires_at: expired_for_s.map(|seconds| past(seconds).rounded_up_to_second()),
        mark: Mark::None,
        request_id: None,
        trace: None,
    };
    let key = StoredKey::new(&Scope::new("payments", "run:charge").unwrap(), &Key::new(name).unwrap());
    assert_eq!(store.put(&key, &Put::Create(lock.into())).await.unwrap(), PutOutcome::Applied);
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_records_are_swept_in_batches() {
    let Some(server) = Server::shared() else { return };
    let url = format!("{}?table={}", server.url(), fresh_table());
    let store = patient(PostgresStore::builder(&url)).build().unwrap();
    store.create_table().await.unwrap();
    for n in 0..25 {
        claim(&store, &n.to_string(), Some(7_200)).await;
    }
    let kept = claim(&store, "kept", Some(60)).await;
    let unresolved = claim(&store, "at most once", None).await;
    let environment = [("IDEMPOTENCY_STORE", url.as_str())];
    let one = run_in(&environment, &["sweep", "--batch", "10", "--batches", "1"]).await;
    assert!(one.code == 0 && one.out.contains("10 expired records deleted; there may be more"), "{one:?}");
    let rest = run_in(&environment, &["sweep", "--batch", "10", "--json"]).await.json();
    assert_eq!((&rest["deleted"], &rest["more"]), (&json!(15), &json!(false)));
    assert!(store.read(&kept).await.unwrap().is_some(), "a record was swept within an hour after its expiry");
    assert!(store.read(&unresolved).await.unwrap().is_some(), "a record without an expiry was swept");
    let table = run_in(&[("IDEMPOTENCY_TABLE", "records"), ("AWS_REGION", "eu-west-1")], &["sweep"]).await;
    assert!(table.code == 0 && table.out.contains("needs no sweeping"), "{table:?}");
}
