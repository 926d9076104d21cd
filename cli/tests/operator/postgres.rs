//! The operator's commands on PostgreSQL.

use lambda_idempotency::{
    Fingerprint, Key, Scope, StoredKey,
    settings::Execution,
    store::{Generation, Lock, Mark, Owner, Put, PutOutcome, Status, Store as _, postgres::PostgresStore},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use super::bench::{KEY, RESPONSE, run_in};
use testkit::postgres::{Server, fresh_table, patient};

#[tokio::test(flavor = "multi_thread")]
async fn operator_commands_work_on_postgres() {
    let Some(server) = Server::shared() else { return };
    let table = fresh_table();
    let url = format!("{}?table={table}", server.url());
    let environment = [("IDEMPOTENCY_STORE", url.as_str())];
    let run = async |arguments: &[&str]| run_in(&environment, arguments).await;

    let missing = run(&["table", "check"]).await;
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.out.starts_with("error: the table doesn't exist"), "{missing:?}");
    assert!(missing.out.ends_with("fix: `idempotency table create`\n"), "{missing:?}");
    let made = run(&["table", "create"]).await;
    assert_eq!(
        (made.code, made.out),
        (0, format!("table `{table}` was created: with an index for `idempotency sweep`\n"))
    );
    assert_eq!(
        run(&["table", "create", "--json"]).await.json(),
        json!({ "table": table, "created": false, "changed": [] })
    );
    let fit = run(&["table", "check"]).await;
    assert!(
        fit.code == 0 && fit.out.contains("is ok: its schema fits this version of the library"),
        "{fit:?}"
    );
    server.client().await.batch_execute(&format!("DROP INDEX {table}_sweep_hour")).await.unwrap();
    let noted = run(&["table", "check"]).await;
    let fix = format!("`CREATE INDEX CONCURRENTLY ON {table} (sweep_hour)`\n");
    assert!(noted.code == 0 && noted.out.starts_with("note: ") && noted.out.contains(&fix), "{noted:?}");

    let (_, fix) = noted.out.lines().next().unwrap().split_once("fix: ").unwrap();
    for sql in fix.split('`').skip(1).step_by(2) {
        server.client().await.batch_execute(sql).await.unwrap();
    }
    let fit = run(&["table", "check"]).await;
    assert!(fit.code == 0 && fit.out.starts_with(&format!("table `{table}` is ok")), "{fit:?}");

    assert_eq!(run(&["list"]).await.out, "no matching records\n");
    let store = patient(PostgresStore::builder(&url)).build().unwrap();
    let now = system_clock().now().as_millis();
    let lock = Lock {
        owner: Owner::random().unwrap(),
        generation: Generation::new(now - 60_000),
        attempt: 1,
        fingerprint: Fingerprint::of(KEY).unwrap(),
        lock_acquired_at: Timestamp::from_millis(now - 60_000),
        lease_until: Timestamp::from_millis(now - 30_000),
        execution: Execution::AtLeastOnce,
        expires_at: Some(Timestamp::from_millis(now + 86_400_000).rounded_up_to_second()),
        mark: Mark::None,
        request_id: None,
        trace: None,
    };
    let key = StoredKey::new(&Scope::new("payments", "run:charge").unwrap(), &Key::new(KEY).unwrap());
    assert_eq!(store.put(&key, &Put::Create(lock.into())).await.unwrap(), PutOutcome::Applied);

    let listed = run(&["list", "--unresolved", "--json"]).await.json();
    assert_eq!((&listed["records"][0]["id"], &listed["has_more"]), (&json!(key.as_str()), &json!(false)));
    assert_eq!(listed["unresolved"], json!(1));
    let old = run(&["list", "--unresolved", "--older-than", "1h"]).await;
    assert_eq!((old.code, old.out.as_str()), (0, "0 operations unresolved\n"));
    let shown = run(&["inspect", key.as_str()]).await;
    assert!(shown.code == 0 && shown.out.contains("STARTED, stale"), "{shown:?}");
    let made = run(&["release", key.as_str(), "--confirm"]).await;
    assert!(made.code == 0 && made.out.contains("Written."), "{made:?}");
    assert_eq!(store.read(&key).await.unwrap().unwrap().status(), Status::Released);
    let file = std::env::temp_dir().join(format!("{table}.json"));
    std::fs::write(&file, RESPONSE).unwrap();
    let made = run(&["complete", key.as_str(), "--response", file.to_str().unwrap(), "--confirm"]).await;
    std::fs::remove_file(file).unwrap();
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(store.read(&key).await.unwrap().unwrap().status(), Status::Completed);
    let shown = run(&["inspect", key.as_str(), "--reveal"]).await;
    assert!(shown.out.contains(RESPONSE), "{shown:?}");
}

/// The URL chooses how statements are sent, as in a function's environment.
#[tokio::test(flavor = "multi_thread")]
async fn url_parameters_choose_the_statement_mode() {
    let Some(server) = Server::shared() else { return };
    let table = fresh_table();
    let run = async |parameters: &str| {
        let url = format!("{}?table={table}&{parameters}", server.url());
        run_in(&[("IDEMPOTENCY_STORE", url.as_str())], &["list"]).await
    };
    let builder = patient(PostgresStore::builder(format!("{}?table={table}", server.url())));
    builder.build().unwrap().create_table().await.unwrap();
    for parameters in ["prepared=true", "timeouts=startup", "timeouts=transaction&prepared=true"] {
        let listed = run(parameters).await;
        assert_eq!((listed.code, listed.out.as_str()), (0, "no matching records\n"), "{parameters}");
    }
    // The tests' role has no timeouts, so the store refuses `timeouts=role`.
    let refused = run("timeouts=role").await;
    assert!(refused.code != 0 && refused.err.contains("timeouts=transaction"), "{refused:?}");
    run("timeouts=session").await.is_bad_input(&["startup, transaction or role"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_one_line() {
    for command in [&["list"][..], &["table", "create"], &["table", "check"]] {
        let bad = async |url: &str, words: &[&str]| {
            run_in(&[], &[command, &["--store", url]].concat()).await.is_bad_input(words);
        };
        bad("postgres://app:secret@127.0.0.1:1/shop", &["127.0.0.1:1"]).await;
        bad("postgres://app:secret@h:99999/shop", &["URL"]).await;
    }
    let options = ["list", "--store", "postgres://app@h/shop", "--sort-key", "sk"];
    run_in(&[], &options).await.is_bad_input(&["--sort-key is for a DynamoDB table"]);
}
