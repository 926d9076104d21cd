//! The operator's commands on Redis.

use lambda_idempotency::{
    Fingerprint, Idempotency, Key, StoredKey,
    settings::Execution,
    store::{Generation, Lock, Mark, Owner, Record, Status, Store as _, redis::RedisStore},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use super::bench::{Answer, KEY, PATIENCE, RESPONSE, Settlement, completed, create, run_in, settle};
use testkit::redis::RedisServer;

const PASSWORD: &str = "secret-password";

/// A server that requires a password, and a function's records in it.
struct Bench {
    server: RedisServer,
    store: RedisStore,
}

impl Bench {
    /// `None` if Redis isn't installed.
    fn new() -> Option<Self> {
        let server = RedisServer::start(&["--requirepass", PASSWORD])?;
        // Long timeouts, so that no slow write is retried. If the first attempt was applied, its record would make the
        // retry fail.
        let store = RedisStore::builder(url(&server)).attempt_timeout(PATIENCE).operation_timeout(PATIENCE);
        let store = store.build().unwrap();
        Some(Self { server, store })
    }

    /// Runs a command with the URL in the environment, as for the function.
    async fn run(&self, arguments: &[&str]) -> Answer {
        run_in(&[("IDEMPOTENCY_STORE", &url(&self.server))], arguments).await
    }

    /// Claims `operation`. The lease ends in `lease_left` seconds. A negative number means that it has ended already.
    async fn claim(&self, operation: &str, lease_left: i64) -> (StoredKey, Record) {
        let now = system_clock().now().as_millis();
        let lock = Lock {
            owner: Owner::random().unwrap(),
            generation: Generation::new(now - 60_000),
            attempt: 1,
            fingerprint: Fingerprint::of(KEY).unwrap(),
            lock_acquired_at: Timestamp::from_millis(now - 60_000),
            lease_until: Timestamp::from_millis(now.saturating_add_signed(lease_left * 1000)),
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_millis(now + 86_400_000).rounded_up_to_second()),
            mark: Mark::None,
            request_id: None,
            trace: None,
        };
        let scope = lambda_idempotency::Scope::new("payments", operation).unwrap();
        let key = StoredKey::new(&scope, &Key::new(KEY).unwrap());
        let record = lock.into();
        create(&self.store, &key, &record).await;
        (key, record)
    }

    async fn settled(&self, operation: &str, settlement: Settlement) -> StoredKey {
        let (key, record) = self.claim(operation, 60).await;
        settle(&self.store, &key, record, settlement).await;
        key
    }

    async fn status(&self, key: &StoredKey) -> Status {
        self.store.read(key).await.unwrap().unwrap().status()
    }
}

fn url(server: &RedisServer) -> String {
    format!("redis://:{PASSWORD}@{}", server.address())
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} isn't in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_inspected() {
    let Some(bench) = Bench::new() else { return };
    let (key, _) = bench.claim("run:charge", 100).await;
    let shown = bench.run(&["inspect", key.as_str()]).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    has(&shown.out, &[key.as_str(), "STARTED, live", ": InProgress (HTTP 409)"]);
    let done = bench.settled("run:done", completed(3600)).await;
    let shown = bench.run(&["inspect", done.as_str(), "--reveal"]).await;
    has(&shown.out, &["COMPLETED, live", RESPONSE]);
    let absent = bench.run(&["inspect", &format!("payments/run#{:064}", 0)]).await;
    assert!(absent.code == 1 && absent.out.contains("There's no record"), "{absent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_page_by_page() {
    let Some(bench) = Bench::new() else { return };
    assert_eq!(bench.run(&["list"]).await.out, "no matching records\n");
    let (stale, _) = bench.claim("run:stale", -180).await;
    let done = bench.settled("run:done", completed(3600)).await;
    for n in 0..500 {
        bench.claim(&format!("run:{n}"), 100).await;
    }
    bench.server.run_as(&[PASSWORD], &["SET", "another", "x"]);
    let listed = bench.run(&["list", "--unresolved"]).await;
    assert_eq!((listed.code, listed.out.lines().count()), (0, 3), "{listed:?}");
    has(&listed.out, &[stale.as_str(), "lease ended 3 min ago, stale", "1 operation unresolved"]);
    let old = bench.run(&["list", "--unresolved", "--older-than", "1h"]).await;
    assert_eq!((old.code, old.out.as_str()), (0, "0 operations unresolved\n"));
    let listed = bench.run(&["list", "--status", "completed", "--json"]).await.json();
    assert_eq!((&listed["records"][0]["id"], &listed["has_more"]), (&json!(done.as_str()), &json!(false)));
    let all = bench.run(&["list", "--limit", "1000", "--json"]).await.json();
    let mut ids: Vec<_> =
        all["records"].as_array().unwrap().iter().map(|record| record["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 502);
    let cut = bench.run(&["list", "--limit", "3"]).await;
    assert_eq!(cut.err, "More records match: use a larger --limit than 3.\n");

    let id = format!("payments/run#{:064}", 7);
    bench
        .server
        .run_as(&[PASSWORD], &["HSET", &format!("idempotency:{id}"), "version", "1", "response", KEY]);
    let listed = bench.run(&["list", "--unresolved"]).await;
    has(&listed.out, &["UNREADABLE", &id, "`version` is 1, but this library reads only version 3"]);
    bench.run(&["release", &id, "--confirm"]).await.is_bad_input(&["can't be read", "`version`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_and_complete_work_on_redis() {
    let Some(bench) = Bench::new() else { return };
    let (key, _) = bench.claim("run:charge", -60).await;
    let dry = bench.run(&["release", key.as_str()]).await;
    has(&dry.out, &["DRY RUN: nothing was written", "--if-revision STARTED-"]);
    assert_eq!(bench.status(&key).await, Status::Started);
    let made = bench.run(&["release", key.as_str(), "--confirm"]).await;
    assert!(made.code == 0 && made.out.contains("Written."), "{made:?}");
    assert_eq!(bench.status(&key).await, Status::Released);
    let again = bench.run(&["release", key.as_str(), "--confirm"]).await;
    assert!(again.code == 0 && again.out.contains("nothing to do"), "{again:?}");

    let file = bench.server.folder().join("response.json");
    std::fs::write(&file, RESPONSE).unwrap();
    let (key, _) = bench.claim("run:pay", -60).await;
    let complete = ["complete", key.as_str(), "--response", file.to_str().unwrap()];
    let dry = bench.run(&complete).await;
    assert!(dry.code == 0 && dry.out.contains("DRY RUN"), "{dry:?}");
    let made = bench.run(&[&complete[..], &["--confirm"]].concat()).await;
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(bench.status(&key).await, Status::Completed);
    let function = Idempotency::builder(bench.store.clone()).function("payments").build().unwrap();
    let record = bench.store.read(&key).await.unwrap().unwrap();
    assert_eq!(function.outcome_of(&key, &record).await.unwrap().response(), RESPONSE.as_bytes());
    let late = bench.run(&["release", key.as_str(), "--if-revision", "STARTED-1-1", "--confirm"]).await;
    assert!(late.code == 1 && late.err.contains("the record changed"), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn url_password_is_never_shown() {
    let Some(bench) = Bench::new() else { return };
    let (key, _) = bench.claim("run:charge", -60).await;
    let dry = run_in(&[], &["release", key.as_str(), "--store", &url(&bench.server)]).await;
    has(&dry.out, &["DRY RUN", &format!("--store 'redis://…@{}'", bench.server.address())]);
    // --store overrides the environment, and conflicts with --table.
    let both = [("IDEMPOTENCY_STORE", "memory:")];
    assert_eq!(run_in(&both, &["list", "--store", &url(&bench.server)]).await.code, 0);
    let both = run_in(&[], &["list", "--store", "redis://h", "--table", "t"]).await;
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_needs_no_table() {
    let Some(bench) = Bench::new() else { return };
    let location = format!("redis://{}/0", bench.server.address());
    let answer = bench.run(&["table", "create"]).await;
    let says = format!("{location} needs no table: Redis stores each record under its own key\n");
    assert_eq!((answer.code, answer.out), (0, says));
    let answer = bench.run(&["table", "create", "--json"]).await;
    assert_eq!(answer.json(), json!({ "store": location, "needs_table": false }));
}

#[tokio::test(flavor = "multi_thread")]
async fn table_check_finds_evicting_servers() {
    let Some(bench) = Bench::new() else { return };
    let location = format!("redis://{}/0", bench.server.address());
    let answer = bench.run(&["table", "check"]).await;
    assert_eq!(answer.code, 0);
    has(&answer.out, &[&format!("store `{location}` is ok: the user may run every command")]);
    let set = |policy| {
        bench.server.run_as(&[PASSWORD], &["CONFIG", "SET", "maxmemory-policy", policy]);
    };
    set("allkeys-lru");
    let answer = bench.run(&["table", "check"]).await;
    assert_eq!(answer.code, 2);
    has(
        &answer.out,
        &["error: ", "has the eviction policy allkeys-lru", "fix: `CONFIG SET maxmemory-policy noeviction`"],
    );
    let answer = bench.run(&["table", "check", "--json"]).await;
    assert_eq!(answer.json()["ok"], json!(false));
    let accepted = format!("{}?eviction=accepted", url(&bench.server));
    assert_eq!(run_in(&[], &["table", "check", "--store", &accepted]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_one_line() {
    let Some(bench) = Bench::new() else { return };
    let address = bench.server.address();
    let id = format!("payments/run#{:064}", 0);
    for command in [&["list"][..], &["inspect", &id], &["release", &id, "--confirm"]] {
        let bad = async |url: &str, words: &[&str]| {
            run_in(&[], &[command, &["--store", url]].concat()).await.is_bad_input(words);
        };
        bad(&format!("redis://:secret@{address}"), &["rejected the user name or password", "WRONGPASS"])
            .await;
        bad(&format!("redis://{address}"), &["rejected the user name or password"]).await;
        bad("redis://:secret@127.0.0.1:1", &["127.0.0.1:1 couldn't be reached", "Connection refused"]).await;
        bad("redis://:secret@h:99999", &["isn't a valid URL", "port"]).await;
        bad("mysql://:secret@h", &["unknown scheme \"mysql\""]).await;
        bad("memory:", &["another process can't read"]).await;
    }
    let options = ["list", "--store", "redis://h", "--region", "eu-west-1"];
    run_in(&[], &options).await.is_bad_input(&["--region is for a DynamoDB table"]);
}
