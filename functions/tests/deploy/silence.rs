//! Tests that a real function writes no raw key, body or token into logs or metrics, even if it logs the library's own
//! events of every level. The tests deliver the events of the examples and of every source, and the cases of the HTTP
//! contract.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use lambda_idempotency_rehearsal::{answer::Answer, event::Event};
use serde_json::Value;

use super::{
    any_api, any_source,
    api::CANARY,
    cases::{Api, Found},
    clauses::CASES,
    contract::{Deployed, walk},
    events::STORY,
    front_ends::{AUTHORIZATION, COOKIE, set_header},
    secrets::Secrets,
    sources,
    stage::{Delivers, Running, database, program_and_mark, project},
};

/// A folder for the output of one test's processes.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        // A failed run with the same process id may have left output, which this run would also search.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns all output, and checks that it contains these words.
    fn told(&self, words: &[&str]) -> String {
        let files = fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().path());
        let told: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
        fs::remove_dir_all(&self.0).unwrap();
        for word in words {
            assert!(told.contains(word), "the recorded output lacks {word}");
        }
        told
    }
}

fn holds_none(told: &str, secrets: &Secrets, at_least: usize) {
    assert!(secrets.count() >= at_least, "only {} secrets were collected", secrets.count());
    let found = secrets.found_in(told);
    let in_line = |line: &&str| found.iter().any(|(secret, _)| line.contains(secret));
    let lines: Vec<_> = told.lines().filter(in_line).take(10).collect();
    let first: Vec<_> = found.iter().take(10).collect();
    assert!(
        found.is_empty(),
        "{} secrets were written: {first:#?}\nin lines such as {lines:#?}",
        found.len()
    );
}

/// Adds the contents of the function's event and of its answer to the secrets.
fn note(secrets: &mut Secrets, function: &str, event: &Value, answer: &Answer) {
    match function {
        "payments" => secrets.add_http(event),
        "orders" => {
            let messages = event["Records"].as_array().unwrap();
            messages.iter().for_each(|message| secrets.add_body(message["body"].as_str().unwrap()));
        }
        "receipts" => {
            secrets.add_texts(&event["id"]);
            secrets.add_texts(&event["detail"]);
        }
        _ => secrets.add_texts(event),
    }
    match answer {
        Answer::Http(http) if http.problem_code().is_none() => secrets.add_body(&http.body),
        // The answer is a secret only as a whole, since the handler logs an id that the answer contains. A batch's
        // answer contains only message ids, which logs may contain.
        Answer::Payload(payload) if function != "orders" => secrets.add(payload),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_in_example_events_are_never_logged() {
    let (database, folder) = (database().await, Folder::new("events"));
    let mut secrets = Secrets::default();
    for (function, story) in STORY {
        let (program, mark) = program_and_mark(function);
        let mut running = Running::recorded(program, mark, &database, folder.file(function)).await;
        for (name, _) in *story {
            let path = project().join(format!("events/{function}/{name}.json"));
            let mut event: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            if *function == "payments" {
                set_header(&mut event, "authorization", Some(AUTHORIZATION));
                set_header(&mut event, "cookie", Some(COOKIE));
            }
            let answer = running.deliver_event(&Event::new(event.clone())).await;
            note(&mut secrets, function, &event, &answer);
        }
        assert!(running.marks().await > 0, "the output of {function} wasn't recorded");
    }
    secrets.add(CANARY);
    let told = folder.told(&["claimed", "replayed", "idempotency_executed", "idempotency_mismatch"]);
    holds_none(&told, &secrets, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_in_source_events_are_never_logged() {
    let (database, folder) = (database().await, Folder::new("sources"));
    let mut secrets = Secrets::default();
    for (source, story) in sources::STORY {
        let (command, mark) = (any_source::command(source), any_source::MARK);
        let mut running = Running::recorded(&command, mark, &database, folder.file(source)).await;
        for (name, _) in *story {
            let event = sources::read(name);
            sources::note(&mut secrets, source, &event);
            sources::deliver(&mut running, name, event).await;
        }
        assert!(running.marks().await > 0, "the output of {source} wasn't recorded");
    }
    let told = folder.told(&["claimed", "replayed", "returned", "idempotency_executed"]);
    holds_none(&told, &secrets, 60);
}

/// An API that adds the requests and the answers to the secrets.
struct Noting {
    api: Deployed,
    secrets: Mutex<Secrets>,
}

impl Api for Noting {
    async fn send(&self, event: Value, is_busy: bool) -> Found {
        let found = self.api.send(event.clone(), is_busy).await;
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.add_http(&event);
        if found.headers.get("content-type").is_none_or(|of| of != "application/problem+json") {
            secrets.add_body(&found.body);
        }
        found
    }

    async fn runs(&self) -> usize {
        self.api.runs().await
    }

    fn counts(&self, status: u16) -> bool {
        self.api.counts(status)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_contract_cases_never_log_secrets() {
    let (database, folder) = (database().await, Folder::new("table"));
    let start = async |file| {
        Running::recorded(&any_api::command(), any_api::MARK, &database, folder.file(file)).await
    };
    let api = Deployed::of_any_api(start("first").await, start("other").await);
    let noting = Noting { api, secrets: Mutex::default() };
    walk(CASES, &noting).await;
    let mut secrets = noting.secrets.into_inner().unwrap();
    secrets.add(CANARY);
    let told =
        folder.told(&["claimed", "replayed", "refused", "idempotency_executed", "idempotency_invalid_key"]);
    holds_none(&told, &secrets, 100);
}
