//! `watch`, and the counts of `list`.

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

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_watched_live() {
    let bench = Bench::new().await;
    bench.claim("run:before", 100).await;
    for json in [true, false] {
        let name = |name: &str| format!("run:{name}-{json}");
        let options = ["watch", "--interval", "100ms", "--for", "3s", "--function", "payments"];
        let options = if json { [&options[..], &["--json"]].concat() } else { options.to_vec() };
        let changes = async {
            tokio::time::sleep(std::time::Duration::from_millis(800)).await;
            bench.claim(&name("charge"), 100).await;
            bench.settled(&name("done"), completed(3600)).await;
            bench
                .claim_as(&name("again"), 100, |lock| lambda_idempotency::store::Lock {
                    interrupted: true,
                    attempt: 2,
                    ..lock
                })
                .await;
        };
        let (watched, ()) = tokio::join!(bench.run(&options), changes);
        assert_eq!(watched.code, 0, "{watched:?}");
        if json {
            let lines: Vec<Value> =
                watched.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let of = |operation: &str| {
                let id = format!("payments/{}#", name(operation));
                let mut of =
                    lines.iter().filter(|line| line["id"].as_str().is_some_and(|it| it.starts_with(&id)));
                of.next_back().map(|line| line["change"].as_str().unwrap().to_owned())
            };
            assert_eq!(of("charge").as_deref(), Some("claimed"));
            assert_eq!(of("done").as_deref(), Some("completed"));
            assert_eq!(of("again").as_deref(), Some("takeover"));
            assert_eq!(lines[0]["records"], 1, "{lines:?}");
        } else {
            assert!(watched.out.lines().all(|line| line.chars().count() <= 80), "{}", watched.out);
            for words in ["Replays leave no trace", "claimed", "completed", "takeover    2"] {
                assert!(watched.out.contains(words), "{words:?} isn't in\n{}", watched.out);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_records_are_not_reported_as_deleted() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim("run:charge", 100).await;
    let options = ["watch", "--interval", "100ms", "--for", "3s", "--json"];
    let corrupt = async {
        tokio::time::sleep(std::time::Duration::from_millis(800)).await;
        bench.put_unreadable(key.as_str()).await;
    };
    let (watched, ()) = tokio::join!(bench.run(&options), corrupt);
    let lines: Vec<Value> = watched.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["records"]), (2, &json!(1)), "{watched:?}");
    assert_eq!((&lines[1]["change"], &lines[1]["id"]), (&json!("unreadable"), &json!(key.as_str())));
    assert!(
        lines[1]["record"]["unreadable"].as_str().unwrap().contains("`version` is missing"),
        "{watched:?}"
    );
    let text = bench.run(&["watch", "--interval", "100ms", "--for", "100ms"]).await;
    assert!(text.code == 0 && text.out.starts_with("Watching 1 record,"), "{text:?}");
}
