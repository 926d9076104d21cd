//! Tests the functions and the wrappers under AWS's own Runtime Interface Emulator, which emulates on-demand functions
//! and Managed Instances.

use std::time::Duration;

use lambda_idempotency::{Key, Scope, StoredKey};
use lambda_idempotency_rehearsal::{answer::Answer, clock, database::Database, event::Event};
use serde_json::{Value, json};
use testkit::unpaused::unpaused;

use super::{
    any_api, any_source,
    any_work::{self, FALLBACK, GRACE, MARGIN, Work},
    cases::{Api, Found},
    clauses::CASES,
    contract::walk,
    emulator::{Emulator, Hosted, Mode, TIMEOUT},
    events, sources,
    stage::{Delivers, TABLE, database},
};

use Mode::{ManagedInstances, OnDemand};

#[tokio::test(flavor = "multi_thread")]
async fn on_demand_functions_answer_every_event() {
    functions_answer_every_event(OnDemand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_answer_every_event_on_managed_instances() {
    functions_answer_every_event(ManagedInstances).await;
}

/// Covers HTTP, typed events and batches: first runs, replays, mismatches, errors and partial failures.
async fn functions_answer_every_event(mode: Mode) {
    let database = database().await;
    for (function, story) in events::STORY {
        let Some(mut emulator) = Emulator::start(mode, &Hosted::example(function), &database).await else {
            return;
        };
        events::tell(function, story, &mut emulator).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn source_events_run_once_on_demand() {
    sources_are_handled_once(OnDemand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn source_events_run_once_on_managed_instances() {
    sources_are_handled_once(ManagedInstances).await;
}

async fn sources_are_handled_once(mode: Mode) {
    let database = database().await;
    for (source, story) in sources::STORY {
        let command = any_source::command(source);
        let hosted = Hosted { name: source, command, mark: any_source::MARK, timeout: TIMEOUT };
        let Some(mut emulator) = Emulator::start(mode, &hosted, &database).await else { return };
        sources::tell(story, &mut emulator).await;
        if *source == "async-invoke" {
            // Lambda accepts a request id that the caller chose. In this function the request id is the key, so another
            // event with the same id is a mismatch.
            let other = Event::new(json!({ "another": "request" }));
            let answer = emulator.deliver_event_as(Some(sources::REQUEST), &other).await;
            assert!(is_error(&answer, "Idempotency.Mismatch"), "{answer:?}");
        }
    }
}

fn is_error(answer: &Answer, expected: &str) -> bool {
    matches!(answer, Answer::Error { kind, .. } if kind == expected)
}

/// The API of the HTTP cases, under the emulator. On demand, a second process takes a request that arrives while the
/// first process is busy. On Managed Instances, the same process takes both requests.
struct Hosts {
    first: Emulator,
    other: Option<Emulator>,
}

impl Api for Hosts {
    async fn send(&self, event: Value, is_busy: bool) -> Found {
        let host = self.other.as_ref().filter(|_| is_busy).unwrap_or(&self.first);
        let answer = host.invoke(None, &Event::new(event)).await;
        let Answer::Http(http) = answer else { panic!("{answer:?}") };
        Found { status: http.status.try_into().unwrap(), headers: http.headers, body: http.body }
    }

    async fn runs(&self) -> usize {
        let all = std::iter::once(&self.first).chain(&self.other);
        all.map(|host| host.lines(any_api::MARK)).sum()
    }

    fn counts(&self, _: u16) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_contract_holds_on_demand() {
    the_http_contract_holds(OnDemand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_contract_holds_on_managed_instances() {
    the_http_contract_holds(ManagedInstances).await;
}

async fn the_http_contract_holds(mode: Mode) {
    let database = database().await;
    let hosted = Hosted {
        name: "any",
        command: any_api::command(),
        mark: any_api::MARK,
        timeout: Duration::from_secs(30),
    };
    let Some(first) = Emulator::start(mode, &hosted, &database).await else { return };
    let other = match mode {
        OnDemand => Some(Emulator::start(mode, &hosted, &database).await.expect("a second emulator")),
        ManagedInstances => None,
    };
    walk(CASES, &Hosts { first, other }).await;
}

/// The function's timeout, which the handlers in these tests exceed.
const SHORT: Duration = Duration::from_secs(6);
/// How long a key may still be in progress after its lease and the margin. An answer may come late, since a process may
/// have to start first, and the emulator may end a slow start at the timeout.
const SOON: Duration = Duration::from_secs(15);

async fn working(mode: Mode, database: &Database) -> Option<Emulator> {
    let hosted = Hosted { name: "work", command: any_work::command(), mark: any_work::MARK, timeout: SHORT };
    let emulator = Emulator::start(mode, &hosted, database).await?;
    // Invoke the function once in advance, since the first invocation's timeout includes the start of the process.
    let work = Work { id: "ready".into(), millis: 0, blocks: false };
    let ready = async || deliver(&emulator, &work).await;
    let ready = unpaused(ready, |answer| *answer != Answer::TimedOut(SHORT)).await;
    assert!(ready.is_success(), "{ready:?}: {}", emulator.written());
    Some(emulator)
}

async fn deliver(emulator: &Emulator, work: &Work) -> Answer {
    emulator.invoke(None, &Event::new(serde_json::to_value(work).unwrap())).await
}

/// Returns the time at which the claim on this work was made, and when its lease expires.
async fn lease(database: &Database, work: &Work) -> (u64, u64) {
    let key = StoredKey::new(&Scope::new("work", "event").unwrap(), &Key::new(&work.id).unwrap());
    let record = database.record(TABLE, key.as_str()).await.unwrap();
    let number = |name: &str| record[name]["N"].as_str().unwrap().parse().unwrap();
    (number("claimed_at"), number("lease_until"))
}

/// Delivers work that runs longer than its timeout, and redelivers it until an attempt succeeds. The key must be free
/// once the lease and the margin have passed, and not before. Returns what [`lease`] returns for the first claim.
async fn is_taken_over(emulator: &Emulator, database: &Database, work: &Work) -> (u64, u64) {
    let before = emulator.lines(any_work::MARK);
    let answer = deliver(emulator, work).await;
    assert_eq!(answer, Answer::TimedOut(SHORT), "{}", emulator.written());
    let (claimed, lease_until) = lease(database, work).await;
    let free = lease_until + clock::millis(MARGIN);
    let answer = loop {
        let answer = deliver(emulator, work).await;
        // A delivery that also starts the process can time out.
        if !(is_error(&answer, "Idempotency.InProgress") || answer == Answer::TimedOut(SHORT)) {
            break answer;
        }
        assert!(clock::now_ms() < free + clock::millis(SOON), "the key isn't free: {}", emulator.written());
        clock::pause(Duration::from_millis(50)).await;
    };
    assert!(clock::now_ms() > free, "the work was taken over within its lease: {}", emulator.written());
    let done = serde_json::to_vec(&format!("{}, attempt 2", work.id)).unwrap();
    assert_eq!(answer, Answer::Payload(done));
    assert_eq!(emulator.lines(any_work::MARK) - before, 2);
    (claimed, lease_until)
}

/// Checks that the first attempt did no more work once the second had begun.
fn attempts_do_not_overlap(emulator: &Emulator, id: &str) {
    let written = emulator.written();
    let first = written.rfind(&any_work::tick(id, 1)).expect("the first attempt worked");
    let second = written.find(&any_work::tick(id, 2)).expect("the second attempt worked");
    assert!(first < second, "{written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_killed_at_deadline_is_taken_over() {
    let database = database().await;
    let Some(emulator) = working(OnDemand, &database).await else { return };
    let work = Work { id: "blocks".into(), millis: 60_000, blocks: true };
    let (claimed, lease_until) = is_taken_over(&emulator, &database, &work).await;
    let lease = Duration::from_millis(lease_until - claimed);
    assert!(lease <= SHORT + GRACE, "the lease is longer than timeout plus grace: {lease:?}");
    attempts_do_not_overlap(&emulator, "blocks");
    assert!(!emulator.written().contains("unknown_deadline"), "{}", emulator.written());
}

#[tokio::test(flavor = "multi_thread")]
async fn late_work_finishes_and_is_replayed() {
    let database = database().await;
    let Some(emulator) = working(ManagedInstances, &database).await else { return };
    let work = Work { id: "late".into(), millis: 11_000, blocks: false };
    let began = emulator.lines(any_work::MARK);
    assert_eq!(deliver(&emulator, &work).await, Answer::TimedOut(SHORT));
    let again = deliver(&emulator, &work).await;
    assert!(is_error(&again, "Idempotency.InProgress"), "not in progress: {again:?}");
    let rejected = "response is too late for timed out invoke";
    let limit = clock::now_ms() + clock::millis(FALLBACK);
    // The emulator logs that it rejects the late response, and the runtime logs the rejection's status.
    while !(emulator.log().contains(rejected) && emulator.written().contains("410")) {
        assert!(clock::now_ms() < limit, "no late response: {}", emulator.written());
        clock::pause(Duration::from_millis(20)).await;
    }
    let replayed = deliver(&emulator, &work).await;
    assert_eq!(replayed, Answer::Payload(b"\"late, attempt 1\"".to_vec()));
    assert_eq!(emulator.lines(any_work::MARK) - began, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_cut_off_before_its_takeover() {
    let database = database().await;
    let Some(emulator) = working(ManagedInstances, &database).await else { return };
    let work = Work { id: "endless".into(), millis: 60_000, blocks: false };
    let (claimed, lease_until) = is_taken_over(&emulator, &database, &work).await;
    // The emulator's deadline is weeks away, so the library uses the fallback lease. The library reads the clock for
    // the lease before it reads the clock for the claim's time, so `lease_until - claimed` may be less than the
    // fallback.
    let lease = Duration::from_millis(lease_until - claimed);
    assert!(FALLBACK - GRACE < lease && lease <= FALLBACK, "the lease isn't the fallback: {lease:?}");
    assert_eq!(emulator.lines("unknown_deadline"), 1, "{}", emulator.written());
    clock::pause(Duration::from_millis(300)).await;
    attempts_do_not_overlap(&emulator, "endless");
}
