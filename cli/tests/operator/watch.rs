//! `watch`, and `list --counts`.

use serde_json::{Value, json};

use super::bench::{Bench, completed, released};

#[tokio::test(flavor = "multi_thread")]
async fn records_are_counted_by_function_and_state() {
    let bench = Bench::new().await;
    bench.claim("run:charge", 100).await;
    bench.claim("run:stale", -180).await;
    bench.settled("run:done", completed(3600)).await;
    bench.settled("run:free", released()).await;
    let counts = bench.run(&["list", "--counts", "--json"]).await.json();
    let states = json!({
        "running": 1, "stale": 1, "completed": 1, "failed": 0, "released": 1, "expired": 0, "unreadable": 0,
    });
    assert_eq!(counts["functions"], json!([{ "function": "payments", "states": states, "records": 4 }]));
    let text = bench.run(&["list", "--counts"]).await.out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.starts_with("function") && text.contains("payments"), "{text}");
    for (state, count) in [("stale", 1), ("running", 1), ("started", 2), ("released", 1), ("failed", 0)] {
        let listed = bench.run(&["list", "--status", state, "--function", "payments", "--json"]).await.json();
        assert_eq!(listed["records"].as_array().unwrap().len(), count, "{state}");
    }
    assert_eq!(bench.run(&["list", "--function", "orders"]).await.out, "no matching records\n");
}

/// The options of a watch that runs until the test ends it.
const WATCH: [&str; 5] = ["watch", "--interval", "100ms", "--for", "10m"];

fn parsed(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_watched_live() {
    let bench = Bench::new().await;
    bench.claim("run:before", 100).await;
    for json in [true, false] {
        let name = |name: &str| format!("run:{name}-{json}");
        let options =
            [&WATCH[..], &["--function", "payments"], if json { &["--json"] } else { &[] }].concat();
        let mut watch = bench.start(&options);
        // The command prints its first line once it has read the existing records.
        let first = watch.lines_until(if json { "records" } else { "Watching 4 records" }).await;
        bench.claim(&name("charge"), 100).await;
        bench.settled(&name("done"), completed(3600)).await;
        bench
            .claim_as(&name("again"), 100, |lock| lambda_idempotency::store::Lock {
                mark: true.into(),
                attempt: 2,
                ..lock
            })
            .await;
        if json {
            assert_eq!(parsed(&first)[0]["records"], 1, "{first:?}");
            let mut lines = Vec::new();
            let last = |lines: &[String], operation: &str| {
                let id = format!("payments/{}#", name(operation));
                let is_of = |line: &&Value| line["id"].as_str().is_some_and(|it| it.starts_with(&id));
                parsed(lines).iter().rfind(is_of).map(|line| line["change"].as_str().unwrap().to_owned())
            };
            let expected = [("charge", "claimed"), ("done", "completed"), ("again", "takeover")];
            while !expected
                .iter()
                .all(|(operation, change)| last(&lines, operation).as_deref() == Some(*change))
            {
                lines.extend(watch.lines_until("").await);
            }
        } else {
            let mut shown = first;
            // One read of the store may show all changes, in any order.
            for words in ["Replays leave no trace", "claimed", "completed", "takeover    2"] {
                if !shown.iter().any(|line| line.contains(words)) {
                    shown.extend(watch.lines_until(words).await);
                }
            }
            assert!(shown.iter().all(|line| line.chars().count() <= 80), "{shown:?}");
        }
    }
}

/// The command ends when the reader of its output closes the pipe, even if there's no change to print: DynamoDB would
/// bill each further read.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "the system may not report a closed pipe before the next write"
)]
async fn watch_ends_when_the_pipe_closes() {
    let bench = Bench::new().await;
    let mut watch = bench.start(&[&WATCH[..], &["--json"]].concat());
    watch.lines_until("records").await;
    assert_eq!(watch.close().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_records_are_not_reported_as_deleted() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim("run:charge", 100).await;
    let mut watch = bench.start(&[&WATCH[..], &["--json"]].concat());
    let first = parsed(&watch.lines_until("records").await);
    assert_eq!(first[0]["records"], 1);
    bench.put_unreadable(key.as_str()).await;
    let seen = parsed(&watch.lines_until("").await);
    assert_eq!((&seen[0]["change"], &seen[0]["id"]), (&json!("unreadable"), &json!(key.as_str())));
    let reason = seen[0]["record"]["unreadable"].as_str().unwrap();
    assert!(reason.contains("`version` is missing"), "{reason}");
    // The unreadable record is reported only once: the next line is about another record.
    let (next, _) = bench.claim("run:next", 100).await;
    let seen = parsed(&watch.lines_until("").await);
    assert_eq!(seen[0]["id"], next.as_str(), "{seen:?}");

    let text = bench.run(&["watch", "--interval", "100ms", "--for", "100ms"]).await;
    assert!(text.code == 0 && text.out.starts_with("Watching 2 records,"), "{text:?}");
}
