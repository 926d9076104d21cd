//! The same commands on PostgreSQL.

use lambda_idempotency::{
    Clock as _, Fingerprint, Generation, Key, Lock, Owner, Record, Scope, Status, Store as _, StoredKey,
    SystemClock, Timestamp,
    store::{Write, Written, postgres::PostgresStore},
};
use serde_json::json;

use super::bench::{Answer, KEY, RESPONSE, run_in};
use crate::postgres_server::{Server, fresh_table};

struct Bench {
    url: String,
    table: String,
    store: PostgresStore,
}

impl Bench {
    /// `None` if there is no server to run.
    fn new() -> Option<Self> {
        let (server, table) = (Server::shared()?, fresh_table());
        let url = format!("{}?table={table}", server.url());
        let store = PostgresStore::builder(&url).build().unwrap();
        Some(Self { url, table, store })
    }

    /// With the URL in the environment, as the function has it.
    async fn run(&self, arguments: &[&str]) -> Answer {
        run_in(&[("IDEMPOTENCY_STORE", &self.url)], arguments).await
    }

    async fn said(&self, arguments: &[&str], code: i32, out: &str) {
        let answer = self.run(arguments).await;
        assert!(answer.code == code && answer.out.contains(out), "{answer:?}");
    }

    /// A claim of `operation` whose lease ends, and which expires, so many seconds from now on, or has before.
    async fn claim(&self, operation: &str, lease_left: i64, expires: i64) -> StoredKey {
        let now = SystemClock.now().as_millis();
        let lock = Lock {
            owner: Owner::random().unwrap(),
            generation: Generation::new(now - 60_000),
            attempt: 1,
            fingerprint: Fingerprint::of(KEY).unwrap(),
            lock_acquired_at: Timestamp::from_millis(now - 60_000),
            lease_until: Timestamp::from_millis(now.saturating_add_signed(lease_left * 1000)),
            expires_at: Timestamp::from_millis(now.saturating_add_signed(expires * 1000))
                .rounded_up_to_second(),
            request_id: None,
        };
        let key = StoredKey::new(&Scope::new("payments", operation).unwrap(), &Key::new(KEY).unwrap());
        assert_eq!(self.store.apply(&key, &Write::Claim(lock)).await.unwrap(), Written::Applied);
        key
    }

    async fn record(&self, key: &StoredKey) -> Option<Record> {
        self.store.read(key).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_made_and_checked() {
    let Some(bench) = Bench::new() else { return };
    let table = &bench.table;
    bench.run(&["list"]).await.is_bad_input(&[table, "create"]);
    bench.said(&["table", "check"], 2, "wrong: there is no such table").await;
    bench.said(&["table", "create"], 0, &format!("table `{table}` was created")).await;
    bench.said(&["table", "create"], 0, "was there already").await;
    bench.said(&["table", "check"], 0, &format!("table `{table}` is fit")).await;
    let answer = bench.run(&["table", "check", "--json"]).await;
    assert_eq!(answer.json()["is_fit"], json!(true));
    let dynamodb = ["table", "check", "--region", "eu-west-1"];
    bench.run(&dynamodb).await.is_bad_input(&["--region is for a DynamoDB table"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_inspected_and_settled() {
    let Some(bench) = Bench::new() else { return };
    bench.store.create_table().await.unwrap();
    bench.said(&["list"], 0, "no such record\n").await;
    let stale = bench.claim("run:stale", -180, 86_400).await;
    for n in 0..600 {
        bench.claim(&format!("run:{n}"), 100, 86_400).await;
    }
    let listed = bench.run(&["list", "--stale"]).await;
    assert!(listed.out.lines().count() == 2 && listed.out.contains(stale.as_str()), "{listed:?}");
    let all = bench.run(&["list", "--limit", "1000", "--json"]).await.json();
    assert_eq!(all["records"].as_array().unwrap().len(), 601);

    bench.said(&["inspect", stale.as_str()], 0, "STARTED, stale").await;
    bench.said(&["release", stale.as_str()], 0, "DRY RUN").await;
    bench.said(&["release", stale.as_str(), "--confirm"], 0, "Written.").await;
    assert_eq!(bench.record(&stale).await.unwrap().status(), Status::Released);

    let file = std::env::temp_dir().join(format!("{}.json", bench.table));
    std::fs::write(&file, RESPONSE).unwrap();
    let unknown = bench.claim("run:charge", -60, 86_400).await;
    let complete = ["complete", unknown.as_str(), "--response", file.to_str().unwrap(), "--confirm"];
    bench.said(&complete, 0, "Written.").await;
    std::fs::remove_file(file).unwrap();
    assert_eq!(bench.record(&unknown).await.unwrap().status(), Status::Completed);
    bench.said(&["inspect", unknown.as_str(), "--reveal"], 0, RESPONSE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_swept_in_batches() {
    let Some(bench) = Bench::new() else { return };
    bench.store.create_table().await.unwrap();
    for n in 0..25 {
        bench.claim(&format!("run:{n}"), -90_000, -7_200).await;
    }
    let kept = bench.claim("run:kept", -90_000, -60).await;
    bench
        .said(
            &["sweep", "--batch", "10", "--batches", "1"],
            0,
            "10 expired records deleted; there may be more",
        )
        .await;
    let swept = bench.run(&["sweep", "--batch", "10", "--json"]).await.json();
    assert_eq!((&swept["deleted"], &swept["more"]), (&json!(15), &json!(false)));
    assert!(bench.record(&kept).await.is_some(), "within the hour, clocks may differ");
    let table = run_in(&[("IDEMPOTENCY_TABLE", "t"), ("AWS_REGION", "eu-west-1")], &["sweep"]).await;
    assert!(table.out.contains("needs no sweeping"), "{table:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_one_line_without_the_password() {
    let Some(bench) = Bench::new() else { return };
    let wrong = bench.url.replace("correct-horse", "secret-donkey");
    let answer = run_in(&[], &["list", "--store", &wrong]).await;
    answer.is_bad_input(&["password"]);
    let nobody =
        run_in(&[], &["list", "--store", "postgres://u:secret-donkey@127.0.0.1:1/db?sslmode=disable"]).await;
    nobody.is_bad_input(&["127.0.0.1"]);
    for answer in [answer, nobody] {
        assert!(!format!("{answer:?}").contains("secret-donkey"), "{answer:?}");
    }
}
