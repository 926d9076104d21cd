//! `release` and `complete`: the dry run, the write, and races with other writes.

use std::time::Duration;

use lambda_idempotency::{
    Idempotency, Key, StoredKey,
    lambda::http::replayed,
    settings::Execution,
    store::{Outcome, Place, Put, PutOutcome, Record, State, Status, Store as _},
    time::{Clock as _, system_clock},
};

use testkit::puts;

use super::bench::{Answer, Bench, File, KEY, RESPONSE, completed};

impl Bench {
    /// Runs the command line that the dry run prints.
    async fn confirm(&self, dry_run: &Answer) -> Answer {
        let line = dry_run.out.lines().last().unwrap().trim();
        let words = line.strip_prefix("idempotency ").unwrap_or_else(|| panic!("{dry_run:?}"));
        let words: Vec<_> = words.split(' ').map(|word| word.trim_matches('\'')).collect();
        self.run(&words).await
    }

    async fn replayed(&self, key: &StoredKey) -> String {
        let record = self.record(key).await;
        let outcome = self.function().outcome_of(key, &record).await.unwrap();
        String::from_utf8(outcome.response().to_vec()).unwrap()
    }
}

/// If the lease is extended after `inspect`, the version that `inspect` showed is still valid for `release`.
#[tokio::test(flavor = "multi_thread")]
async fn extended_claim_can_be_released() {
    let bench = Bench::new().await;
    let (key, seen) = bench.claim("run:charge", 100).await;
    let shown = bench.run(&["inspect", key.as_str(), "--json"]).await.json();
    let version = shown["record"]["version"].as_str().unwrap().to_owned();
    let lease_until = seen.lease_until().unwrap().saturating_add(Duration::from_secs(20));
    let new = Record { state: State::Started { lease_until }, ..seen.clone() };
    let extend = Put::Replace { seen, new };
    assert_eq!(bench.store.put(&key, &extend).await.unwrap(), PutOutcome::Applied);
    let release = ["release", key.as_str(), "--if-revision", &version, "--confirm"];
    assert_eq!(bench.run(&release).await.code, 0);
    assert_eq!(bench.record(&key).await.status(), Status::Released);
}

/// Runs `charge` with [`KEY`] as its key and its payload.
async fn run(function: &Idempotency) -> Result<serde_json::Value, String> {
    let key = Key::new(KEY).unwrap();
    let handler = || async { Ok::<_, std::io::Error>("ran".into()) };
    function.operation("charge").unwrap().run(key, KEY, handler).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn release_is_previewed_then_applied() {
    let bench = Bench::new().await;
    let (key, before) = bench.claim("run:charge", -60).await;
    let dry = bench.run(&["release", key.as_str()]).await;
    assert_eq!(dry.code, 0);
    for words in [
        "DRY RUN: nothing was written",
        "RELEASED",
        "Its effect may have happened",
        "a claim that still runs is fenced",
        "--if-revision STARTED-",
        "--confirm\n",
    ] {
        assert!(dry.out.contains(words), "{words:?} isn't in\n{}", dry.out);
    }
    assert_eq!(bench.record(&key).await, before);

    let made = bench.confirm(&dry).await;
    assert!(made.code == 0 && made.out.contains("Written."), "{made:?}");
    let after = bench.record(&key).await;
    assert_eq!((after.status(), after.expires_at), (Status::Released, before.expires_at));
    assert_ne!(after.owner, before.owner);
    assert!(after.generation > before.generation);
    assert_eq!(run(&bench.function()).await, Ok("ran".into()));

    // The same command fails now, since the record has another version.
    let again = bench.confirm(&dry).await;
    assert_eq!(again.code, 1);
    assert!(again.err.contains("the record changed") && again.out.contains("COMPLETED"), "{again:?}");
    assert_eq!(bench.record(&key).await.status(), Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_warns_according_to_the_state() {
    let bench = Bench::new().await;
    let (live, _) = bench.claim("run:charge", 100).await;
    let (done, record) = bench.settled("run:done", completed(3600)).await;
    for (key, words) in
        [(&live, "ITS HANDLER MAY BE RUNNING NOW"), (&done, "THE OPERATION IS DONE: ITS EFFECT HAPPENED")]
    {
        let dry = bench.run(&["release", key.as_str()]).await;
        assert!(dry.out.contains(words), "{dry:?}");
    }
    assert_eq!(bench.record(&done).await, record);
    let past = system_clock().now().saturating_sub(Duration::from_secs(60)).rounded_up_to_second();
    for (operation, settlement) in [
        ("run:old", (State::Completed(Outcome::Omitted), past)),
        ("run:old-failure", (State::Failed(Outcome::Omitted), past)),
    ] {
        let (over, _) = bench.settled(operation, settlement).await;
        let dry = bench.run(&["release", over.as_str()]).await;
        assert!(dry.out.contains("has expired, so it blocks nothing"), "{dry:?}");
        assert!(!dry.out.contains("A release lets it happen again"), "{dry:?}");
        assert!(!dry.out.contains("duplicates get that failure"), "{dry:?}");
    }
    let json = bench.run(&["release", done.as_str(), "--json"]).await.json();
    assert_eq!((&json["is_dry_run"], &json["is_written"]), (&true.into(), &false.into()));
    assert!(json["means"][0].as_str().unwrap().contains("EFFECT HAPPENED"), "{json}");
    let json = bench.run(&["release", done.as_str(), "--json", "--confirm"]).await.json();
    assert_eq!((&json["is_written"], &json["record"]["status"]), (&true.into(), &"RELEASED".into()));

    let free = bench.run(&["release", done.as_str(), "--confirm"]).await;
    assert!(free.code == 0 && free.out.contains("nothing to do"), "{free:?}");
    let absent = bench.run(&["release", &format!("payments/run#{:064}", 0), "--confirm"]).await;
    assert!(absent.code == 1 && absent.out.contains("There's no record"), "{absent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_resolves_an_unknown_outcome() {
    let bench = Bench::new().await;
    let function = Idempotency::builder(bench.store.clone()).function("payments");
    let function = function.execution(Execution::AtMostOnce).build().unwrap();
    let (key, _) = bench.claim("run:charge", -60).await;
    assert!(run(&function).await.unwrap_err().contains("settle the record by hand"));

    let file = File::with("response.json", RESPONSE);
    let complete = ["complete", key.as_str(), "--response", file.path(), "--retention", "90m"];
    let dry = bench.run(&complete).await;
    assert!(dry.code == 0 && dry.out.contains("Be sure that the effect happened"), "{dry:?}");
    let made = bench.confirm(&dry).await;
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(run(&function).await, Ok(serde_json::from_str(RESPONSE).unwrap()));
    assert_eq!(bench.replayed(&key).await, RESPONSE);
    let json = bench.run(&["inspect", key.as_str(), "--json"]).await.json();
    let left = json["record"]["expires_at_ms"].as_u64().unwrap() - json["record"]["now_ms"].as_u64().unwrap();
    assert!((5_300_000..=5_401_000).contains(&left), "{left} ms isn't 90 minutes");

    let (key, _) = bench.claim("run:unknown", -60).await;
    let made = bench.run(&["complete", key.as_str(), "--no-response", "--confirm"]).await;
    assert!(made.code == 0 && made.out.contains("NotRetained"), "{made:?}");
    assert_eq!(bench.record(&key).await.state, State::Completed(Outcome::Omitted));
}

/// The warning about a retention that ends before the record would have expired.
const WARNING: &str = "THIS --retention ENDS BEFORE";

#[tokio::test(flavor = "multi_thread")]
async fn completion_keeps_the_later_expiry() {
    let bench = Bench::new().await;
    let (key, before) = bench.settled("run:charge", completed(6 * 86_400)).await;
    let complete = ["complete", key.as_str(), "--no-response"];
    let shorter = bench.run(&[&complete[..], &["--retention", "24h"]].concat()).await;
    assert!(shorter.code == 0 && shorter.out.contains(WARNING), "{shorter:?}");
    let dry = bench.run(&complete).await;
    assert!(dry.code == 0 && !dry.out.contains(WARNING), "{dry:?}");
    assert_eq!(bench.confirm(&dry).await.code, 0);
    let after = bench.record(&key).await;
    assert_eq!(after.state, State::Completed(Outcome::Omitted));
    assert!(after.expires_at >= before.expires_at, "{after:?}");

    let (key, before) = bench.settled("run:soon", completed(60)).await;
    let complete = ["complete", key.as_str(), "--no-response", "--confirm"];
    assert_eq!(bench.run(&complete).await.code, 0);
    let gained = before.expires_at.unwrap().until(bench.record(&key).await.expires_at.unwrap());
    assert!(gained > Duration::from_secs(23 * 3600), "{gained:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_without_expiry_need_a_retention() {
    let bench = Bench::new().await;
    let (key, before) = bench.claim_as("run:charge", -60, puts::lasting).await;
    let complete = ["complete", key.as_str(), "--no-response", "--confirm"];
    bench.run(&complete).await.is_bad_input(&["never expires", "--retention TIME"]);
    assert_eq!(bench.record(&key).await, before);
    let shown = bench.run(&["inspect", key.as_str()]).await;
    assert!(shown.out.contains("--response FILE --retention TIME"), "{shown:?}");
    let dry = bench.run(&["complete", key.as_str(), "--no-response", "--retention", "7d"]).await;
    let expiry = "The outcome does, after --retention";
    assert!(dry.code == 0 && dry.out.contains(expiry) && !dry.out.contains(WARNING), "{dry:?}");
    assert_eq!(bench.run(&[&complete[..], &["--retention", "7d"]].concat()).await.code, 0);
    assert!(bench.record(&key).await.expires_at.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn late_executor_returns_the_operators_outcome() {
    let bench = Bench::new().await;
    let file = File::with("late.json", "\"by hand\"");
    let function = bench.function();
    let charge = function.operation("charge").unwrap();
    let key = charge.stored_key(&Key::new(KEY).unwrap());
    let handler = || async {
        let complete = ["complete", key.as_str(), "--response", file.path(), "--confirm"];
        assert_eq!(bench.run(&complete).await.code, 0);
        Ok::<_, std::io::Error>("too late".to_owned())
    };
    let answer = charge.run(Key::new(KEY).unwrap(), KEY, handler).await.unwrap();
    assert_eq!(answer, "by hand");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_response_is_stored_in_chunks() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim("run:charge", -60).await;
    let noise: String = (0..60_000u64)
        .map(|n| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 29)))
        .collect();
    let json = format!("\"{noise}\"");
    let file = File::with("large.json", &json);
    let made = bench.run(&["complete", key.as_str(), "--response", file.path(), "--confirm"]).await;
    assert_eq!(made.code, 0, "{made:?}");
    let State::Completed(Outcome::Retained(response)) = bench.record(&key).await.state else { panic!() };
    assert!(matches!(response.place, Place::Chunks(2..)), "{response:?}");
    assert_eq!(bench.replayed(&key).await, json);
    assert!(made.out.contains("chunks beside the record"), "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_response_matches_the_layers_encoding() {
    let bench = Bench::new().await;
    let (key, _) = bench.claim("http:pay", -60).await;
    let file = File::with("http.json", RESPONSE);
    let complete = ["complete", key.as_str(), "--response", file.path()];
    bench.run(&complete).await.is_bad_input(&["--status"]);
    bench.run(&[&complete[..], &["--status", "99"]].concat()).await.is_bad_input(&["--status"]);
    bench.run(&[&complete[..], &["--status", "101"]].concat()).await.is_bad_input(&["isn't a final status"]);
    let header = ["--status", "201", "--header", "no colon"];
    bench.run(&[&complete[..], &header].concat()).await.is_bad_input(&["has no colon"]);
    bench.run(&[&complete[..], &["--raw"]].concat()).await.is_bad_input(&["isn't a recorded HTTP response"]);

    let header = ["--status", "201", "--header", "Location: /payments/1", "--confirm"];
    assert_eq!(bench.run(&[&complete[..], &header].concat()).await.code, 0);
    let recorded = bench.replayed(&key).await;
    let response = replayed(recorded.as_bytes()).unwrap();
    assert_eq!((response.status().as_u16(), response.body().as_ref()), (201, RESPONSE.as_bytes()));
    assert_eq!(response.headers()["location"], "/payments/1");
    assert_eq!(response.headers()["content-type"], "application/json");

    // `complete --raw` accepts a response in its recorded form, which `inspect --reveal` shows.
    let raw = File::with("raw", &recorded);
    let again = bench.run(&["complete", key.as_str(), "--response", raw.path(), "--raw", "--confirm"]).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(bench.replayed(&key).await, recorded);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreplayable_responses_are_refused() {
    let bench = Bench::new().await;
    let file = File::with("not.json", "secret, and not JSON");
    let path = file.path();
    for (operation, options, words) in [
        ("event", &[][..], "isn't JSON"),
        ("event:x", &["--raw"], "isn't JSON"),
        ("run", &[], "add --raw"),
        ("run:x", &["--status", "201"], "only for HTTP operations"),
    ] {
        let (key, before) = bench.claim(operation, -60).await;
        let complete = ["complete", key.as_str(), "--response", path, "--confirm"];
        bench.run(&[&complete[..], options].concat()).await.is_bad_input(&[words]);
        assert_eq!(bench.record(&key).await, before);
    }
    let (key, _) = bench.claim("run:begin", -60).await;
    let raw = ["complete", key.as_str(), "--response", path, "--raw", "--confirm"];
    assert_eq!(bench.run(&raw).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_operators_have_one_winner() {
    let bench = Bench::new().await;
    let (key, before) = bench.claim("run:charge", -60).await;
    let version = bench.run(&["inspect", key.as_str(), "--json"]).await.json();
    let version = version["record"]["version"].as_str().unwrap().to_owned();
    let release = ["release", key.as_str(), "--if-revision", &version, "--confirm"];
    let (a, b, c, d) =
        tokio::join!(bench.run(&release), bench.run(&release), bench.run(&release), bench.run(&release));
    let codes = [a, b, c, d].map(|answer| answer.code);
    let made = codes.iter().filter(|code| **code == 0).count();
    assert_eq!((made, codes.iter().filter(|code| **code == 1).count()), (1, 3), "{codes:?}");
    let Record { owner, .. } = bench.record(&key).await;
    assert_ne!(owner, before.owner);
}

/// A function changes from at-most-once to at-least-once.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_claims_run_again_in_bulk() {
    let bench = Bench::new().await;
    let (stale, _) = bench.claim_as("run:charge", -60, puts::lasting).await;
    let (other, _) = bench.claim_as("run:refund", -60, puts::lasting).await;
    let (running, before_running) = bench.claim_as("run:mail", 60, puts::lasting).await;
    let (taken_over, before_taken_over) = bench.claim("run:parcel", -60).await;
    let function = stale.as_str().split_once('/').unwrap().0;
    let command = ["run-again", "--function", function];
    let dry_run = bench.run(&command).await;
    assert!(dry_run.code == 0 && dry_run.out.contains("2 claims would be released"), "{dry_run:?}");
    let none = bench.run(&["run-again", "--function", "another", "--json"]).await.json();
    assert_eq!(none["records"].as_array().map(Vec::len), Some(0));
    let confirmed = bench.confirm(&dry_run).await;
    assert_eq!((confirmed.code, confirmed.out.as_str()), (0, "2 claims released\n"), "{confirmed:?}");
    for key in [&stale, &other] {
        let record = bench.record(key).await;
        assert_eq!((record.status(), record.mark.is_interrupted()), (Status::Released, true));
    }
    assert_eq!(bench.record(&running).await, before_running);
    assert_eq!(bench.record(&taken_over).await, before_taken_over);
    let again = bench.run(&command).await;
    assert_eq!(
        (again.code, again.out.as_str()),
        (0, "no matching claims: nothing to release\n"),
        "{again:?}"
    );
}
