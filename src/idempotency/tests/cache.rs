//! The local cache: when it answers, when it mustn't, and what it keeps.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::{support::ScriptedStore, *};
use crate::{
    Begun, Builder, Error, Idempotency, Replay, Resolution, Settled, StoredKey,
    future::BoxFuture,
    store::{Put, PutOutcome, Store, StoreError},
};

/// The smallest cache that the settings allow. An outcome may fill an eighth of it: 8 KiB.
const SMALLEST: usize = 64 * 1024;
const NOTHING: [&str; 0] = [];

fn cached() -> Bench {
    cached_with(|builder| builder)
}

fn cached_with(configure: impl FnOnce(Builder) -> Builder) -> Bench {
    Bench::with(|builder| configure(builder.settings(|s| s.local_cache = SMALLEST)))
}

impl Bench {
    /// Runs the operation, and clears the list of the store's calls.
    async fn ran(&self, key: &str) -> String {
        let ran = self.run(key, 1).await.unwrap();
        self.store.take_calls();
        ran
    }

    /// Runs a duplicate, and returns its calls to the store.
    async fn calls(&self, key: &str) -> Vec<&'static str> {
        self.run(key, 1).await.unwrap();
        self.store.take_calls()
    }

    async fn begin(&self, key: &str, request: &[u8]) -> Result<Begun, Error> {
        self.operation().begin(Key::new(key).unwrap(), Fingerprint::of_bytes(request)).await
    }

    async fn claim(&self, key: &str) -> crate::Claim {
        match self.begin(key, b"request").await.unwrap() {
            Begun::Claimed(claim) => claim,
            Begun::Replay(replay) => panic!("{replay:?}"),
        }
    }

    async fn replay(&self, key: &str) -> Replay {
        match self.begin(key, b"request").await.unwrap() {
            Begun::Replay(replay) => replay,
            Begun::Claimed(claim) => panic!("{claim:?}"),
        }
    }

    /// Moves the clock to the expiry of `key`'s record, minus `before` ms, plus `after` ms.
    fn at_expiry_of(&self, key: &str, before: u64, after: u64) {
        let until = self.now().until(self.record(key).expires_at.unwrap()).as_millis() as u64;
        self.jump.fetch_add(until + after - before, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn cache_is_off_by_default() {
    for bench in [Bench::new(), Bench::with(|builder| builder.settings(|s| s.local_cache = 0))] {
        bench.ran("k").await;
        assert_eq!(bench.calls("k").await, ["claim"]);
        assert_eq!(bench.calls("k").await, ["claim"]);
        bench.idempotency.clear_local_cache();
    }
}

#[tokio::test(start_paused = true)]
async fn cached_duplicate_costs_no_request() {
    let bench = cached();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "settle"]);
    // The cache answers even if the store is down, or if no time is left for a claim.
    bench.store.script([Meets(Fault::Throttle)]);
    let late = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(1)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    for bench in [&bench, &late, &bench.clone()] {
        assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
        assert_eq!(bench.store.take_calls(), NOTHING);
    }
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn replay_fills_the_cache() {
    let first = Bench::new();
    first.ran("k").await;
    let other = first.beside(|builder| builder.settings(|s| s.local_cache = SMALLEST));
    assert_eq!(other.calls("k").await, ["claim"]);
    assert_eq!(other.calls("k").await, NOTHING);
    assert_eq!(other.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn outcome_after_takeover_fills_the_cache() {
    let bench = cached();
    bench.abandon("k", 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(bench.ran("k").await, "run 1");
    assert_eq!(bench.calls("k").await, NOTHING);
}

#[tokio::test(start_paused = true)]
async fn cached_mismatch_costs_no_request() {
    let bench = cached();
    bench.ran("k").await;
    assert_eq!(kind(bench.run("k", 2).await), ErrorKind::Mismatch);
    assert_eq!(bench.store.take_calls(), NOTHING);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn expired_cache_entries_are_not_used() {
    let bench = cached_with(|builder| builder.retention(Duration::from_secs(10)));
    bench.ran("k").await;
    bench.at_expiry_of("k", 1, 0);
    assert_eq!(bench.calls("k").await, NOTHING);
    // In the skew margin after the expiry, the record is still replayed, but from the store instead of the cache.
    for after in [0, 1999] {
        bench.at_expiry_of("k", 0, after);
        assert_eq!(bench.calls("k").await, ["claim"]);
        assert_eq!(kind(bench.run("k", 2).await), ErrorKind::Mismatch);
        assert_eq!(bench.store.take_calls(), ["claim"]);
        bench.jump.fetch_sub(after, Ordering::SeqCst);
    }
    bench.at_expiry_of("k", 0, 2001);
    assert_eq!(bench.run("k", 2).await.unwrap(), "run 2");
    assert_eq!(bench.store.take_calls(), ["claim", "reclaim", "settle"]);
    assert_eq!(bench.run("k", 2).await.unwrap(), "run 2");
    assert_eq!(bench.store.take_calls(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn cached_bytes_are_shared_and_immutable() {
    let bench = cached();
    let whole = Bytes::from(vec![b'a'; 100_000]);
    let claim = bench.claim("k").await;
    assert!(matches!(claim.complete(whole.slice(..100)).await.unwrap(), Settled::Recorded));
    bench.store.take_calls();

    let (one, other) = (bench.replay("k").await, bench.replay("k").await);
    assert_eq!(one.response().as_ptr(), other.response().as_ptr());
    // The cached copy holds only the response, not the whole buffer that contained the response.
    assert_ne!(one.response().as_ptr(), whole.as_ptr());
    drop(other);
    match one.into_response().try_into_mut() {
        Ok(_) => panic!("a caller could change the cached bytes"),
        Err(shared) => assert_eq!(shared, [b'a'; 100][..]),
    }
    assert_eq!(bench.replay("k").await.response()[..], [b'a'; 100]);
    assert_eq!(bench.store.take_calls(), NOTHING);
}

#[tokio::test(start_paused = true)]
async fn least_recently_used_copy_is_evicted() {
    let bench = cached();
    let response = "x".repeat(4096);
    let put = async |key: &str| {
        let run = bench.with_handler(key, 1, std::future::ready(Ok(response.clone()))).await;
        assert_eq!(run.unwrap(), response);
        bench.store.take_calls();
    };
    for key in ["a", "b"] {
        put(key).await;
    }
    // About fourteen copies fit into the cache. A copy in constant use is never evicted.
    for nth in 0..1000 {
        put(&format!("c{nth}")).await;
        assert_eq!(bench.calls("a").await, NOTHING);
    }
    assert_eq!(bench.calls("c999").await, NOTHING);
    assert_eq!(bench.calls("c500").await, ["claim"]);
    assert_eq!(bench.calls("b").await, ["claim"]);
}

#[tokio::test(start_paused = true)]
async fn responses_over_an_eighth_are_not_cached() {
    let bench = cached();
    for (key, bytes, calls) in
        [("small", 7000, &[][..]), ("large", 8192, &["claim"]), ("huge", 80_000, &["claim"])]
    {
        let claim = bench.claim(key).await;
        assert!(matches!(claim.complete(vec![b'a'; bytes]).await.unwrap(), Settled::Recorded));
        bench.store.take_calls();
        for _ in 0..2 {
            assert_eq!(bench.replay(key).await.response().len(), bytes);
            assert_eq!(bench.store.take_calls(), calls, "{key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn chunked_response_is_cached_whole() {
    let bench = cached();
    bench.store.limit_inline(1);
    bench.ran("k").await;
    assert!(matches!(
        bench.record("k").state,
        State::Completed(Outcome::Retained(StoredResponse { place: Place::Chunks(1), .. }))
    ));
    assert_eq!(bench.calls("k").await, NOTHING);
}

#[tokio::test(start_paused = true)]
async fn at_most_once_failure_is_cached() {
    let bench = cached_with(|builder| builder.execution(Execution::AtMostOnce));
    assert!(bench.fail("k", 1).await.is_err());
    bench.store.take_calls();
    let Err(RunError::Recorded(failure)) = bench.run("k", 1).await else { panic!("not replayed") };
    assert_eq!(failure.error_message, "the test's own error");
    assert_eq!(bench.store.take_calls(), NOTHING);
    // An unknown outcome isn't cached, since an operator may resolve it.
    bench.abandon("m", 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    bench.store.take_calls();
    for _ in 0..2 {
        assert_eq!(kind(bench.run("m", 1).await), ErrorKind::OutcomeUnknown);
        assert_eq!(bench.store.take_calls(), ["claim"]);
    }
}

#[tokio::test(start_paused = true)]
async fn local_operator_write_drops_the_cached_copy() {
    let bench = cached();
    bench.ran("k").await;
    let (key, seen) = (bench.stored_key("k"), bench.record("k"));
    let complete = Resolution::Complete(Bytes::from_static(b"\"by hand\""));
    let _ = bench.idempotency.resolve(&key, &seen, complete).await.unwrap();
    assert_eq!(bench.run("k", 1).await.unwrap(), "by hand");
    let _ = bench.idempotency.resolve(&key, &bench.record("k"), Resolution::Release).await.unwrap();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn ambiguous_operator_write_drops_the_cached_copy() {
    let bench = cached();
    bench.ran("lost").await;
    bench.store.script([Meets(Fault::LoseAnswer), Meets(Fault::Throttle)]);
    let (key, seen) = (bench.stored_key("lost"), bench.record("lost"));
    bench.idempotency.resolve(&key, &seen, Resolution::Release).await.unwrap_err();
    assert_eq!(bench.run("lost", 1).await.unwrap(), "run 2");

    let meddling = Meddling::default();
    let bench = Idempotency::builder(meddling.clone())
        .function("tests")
        .settings(|s| s.local_cache = SMALLEST)
        .build()
        .unwrap();
    let operation = bench.operation("step").unwrap();
    let run = |value: u32| operation.run(Key::new("k").unwrap(), &1, async move || Ok::<_, TestError>(value));
    assert_eq!((run(1).await.unwrap(), run(2).await.unwrap()), (1, 1));
    let key = operation.stored_key(&Key::new("k").unwrap());
    let seen = meddling.inner.read(&key).await.unwrap().unwrap();
    *meddling.hangs.lock().unwrap() = true;
    let dropped = bench.resolve(&key, &seen, Resolution::Release);
    tokio::time::timeout(Duration::from_secs(1), dropped).await.unwrap_err();
    *meddling.hangs.lock().unwrap() = false;
    assert_eq!(run(3).await.unwrap(), 3);

    // A duplicate is answered while the operator's write is in flight.
    let seen = meddling.inner.read(&key).await.unwrap().unwrap();
    *meddling.delays.lock().unwrap() = true;
    let duplicate = async {
        assert_eq!(run(4).await.unwrap(), 3);
        *meddling.delays.lock().unwrap() = false;
    };
    let (resolved, ()) = tokio::join!(bench.resolve(&key, &seen, Resolution::Release), duplicate);
    assert!(resolved.unwrap().is_some());
    assert_eq!(run(5).await.unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn remote_operator_write_needs_cache_clearing() {
    let bench = cached();
    bench.ran("k").await;
    let other = bench.beside(|builder| builder);
    let (key, seen) = (bench.stored_key("k"), bench.record("k"));
    let _ = other.idempotency.resolve(&key, &seen, Resolution::Release).await.unwrap();
    bench.store.take_calls();
    assert_eq!(bench.calls("k").await, NOTHING);
    bench.idempotency.clear_local_cache();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn clearing_empties_cache_of_all_clones() {
    let bench = cached();
    bench.ran("k").await;
    bench.clone().idempotency.clear_local_cache();
    assert_eq!(bench.calls("k").await, ["claim"]);
    assert_eq!(bench.calls("k").await, NOTHING);
}

/// A store that can clear the cache between a write and its answer, hang after each write, or delay an
/// operator's write.
#[derive(Clone, Default)]
struct Meddling {
    inner: ScriptedStore,
    then: Arc<Mutex<Option<Idempotency>>>,
    hangs: Arc<Mutex<bool>>,
    delays: Arc<Mutex<bool>>,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddling")
    }
}

impl Store for Meddling {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            while lambda_idempotency_testing::Call::of(put).is_settlement()
                && matches!(put, Put::Replace { .. })
                && *self.delays.lock().unwrap()
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let written = self.inner.put(key, put).await;
            if *self.hangs.lock().unwrap() {
                pending::<()>().await;
            }
            if let Some(idempotency) = &*self.then.lock().unwrap() {
                idempotency.clear_local_cache();
            }
            written
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.inner.read(key)
    }
}

#[tokio::test(start_paused = true)]
async fn clearing_cache_discards_answers_in_flight() {
    let meddling = Meddling::default();
    let builder = Idempotency::builder(meddling.clone()).function("tests");
    let idempotency = builder.settings(|s| s.local_cache = SMALLEST).build().unwrap();
    let run = async || {
        let step = idempotency.operation("step").unwrap();
        let run = step.run(Key::new("k").unwrap(), &1, async || Ok::<_, TestError>(1));
        assert_eq!(run.await.unwrap(), 1);
        meddling.inner.take_calls()
    };
    *meddling.then.lock().unwrap() = Some(idempotency.clone());
    assert_eq!(run().await, ["claim", "settle"]);
    // Neither the settlement nor the replay was cached.
    assert_eq!(run().await, ["claim"]);
    *meddling.then.lock().unwrap() = None;
    assert_eq!(run().await, ["claim"]);
    assert_eq!(run().await, NOTHING);
}

#[tokio::test(start_paused = true)]
async fn operations_have_separate_cache_entries() {
    let bench = cached();
    bench.ran("k").await;
    let mut other = bench.clone();
    other.name = "other";
    assert_eq!(other.run("k", 1).await.unwrap(), "run 2");
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(other.run("k", 1).await.unwrap(), "run 2");
    assert_eq!(bench.store.take_calls(), ["claim", "settle"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_callers_get_their_own_responses() {
    // 24 responses of 4 KiB don't all fit into the cache, so some are evicted and added again all the time.
    let bench = cached_with(|builder| builder.settings(|s| s.wait_in_progress = Duration::from_secs(20)));
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let bench = bench.clone();
            tokio::spawn(async move {
                for nth in 0..100 {
                    let number = (task * 7 + nth * 5) % 24;
                    let response = format!("{number} {}", "x".repeat(4096));
                    let handler = std::future::ready(Ok(response.clone()));
                    let ran = bench.with_handler(&format!("k{number}"), number, handler).await;
                    assert_eq!(ran.unwrap(), response);
                    if nth % 40 == task {
                        bench.idempotency.clear_local_cache();
                    }
                    // Lets the tasks interleave. A task alone cycles through more keys than fit into the cache, so it
                    // would find none of them there.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let calls = bench.store.take_calls();
    assert_eq!(calls.iter().filter(|call| **call == "settle").count(), 24);
    assert!(calls.len() < 32 * 100, "{} calls: nothing came from the cache", calls.len());
}

#[tokio::test(start_paused = true)]
async fn only_confirmed_outcomes_are_cached() {
    let bench = cached();
    // Runs that release the key: an error, a panic, and two releases by hand.
    assert!(bench.fail("released", 1).await.is_err());
    bench.panic("released", 1).await;
    bench.claim("by hand").await.release().await.unwrap();
    bench.claim("by hand").await.release().await.unwrap();
    assert_eq!(bench.ran("released").await, "run 1");
    // A run whose outcome isn't recorded: the next delivery finds the claim in progress.
    let without_retries = bench.beside(|builder| {
        builder.settings(|s| {
            s.local_cache = SMALLEST;
            s.settle_within = Duration::ZERO;
        })
    });
    without_retries.store.script([Script::Pass, Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    assert_eq!(without_retries.run("unrecorded", 1).await.unwrap(), "run 2");
    bench.store.take_calls();
    assert_eq!(kind(bench.run("unrecorded", 1).await), ErrorKind::InProgress);
    assert_eq!(bench.store.take_calls(), ["claim"]);
    // The settlement was applied, but its answer was lost. The next delivery gets the outcome from the store.
    bench.store.script([Script::Pass, Meets(Fault::LoseAnswer)]);
    bench.ran("lost").await;
    assert_eq!(bench.calls("lost").await, ["claim"]);
    assert_eq!(bench.calls("lost").await, NOTHING);
}

#[tokio::test(start_paused = true)]
async fn unretained_responses_are_not_cached() {
    let bench = cached_with(|builder| builder.settings(|s| s.max_response = 1));
    bench.ran("k").await;
    // The store accepted the outcome, but not its response.
    let refused = bench.beside(|builder| builder.settings(|s| s.local_cache = SMALLEST));
    refused.store.script([Script::Pass, Meets(Fault::Unstorable)]);
    refused.ran("l").await;
    for (bench, key) in [(&bench, "k"), (&refused, "l")] {
        for _ in 0..2 {
            assert_eq!(kind(bench.run(key, 1).await), ErrorKind::NotRetained);
            assert_eq!(bench.store.take_calls(), ["claim"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fenced_run_caches_the_recorded_outcome() {
    let bench = cached();
    let successor = bench.beside(|builder| builder);
    let fenced = bench.claim("k").await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    let claim = successor.claim("k").await;
    let Settled::Recorded = claim.complete("the successor's").await.unwrap() else { panic!("fenced") };
    let Settled::Superseded(replay) = fenced.complete("the late one's").await.unwrap() else {
        panic!("recorded")
    };
    assert_eq!(replay.response()[..], *b"the successor's");
    assert_eq!(bench.replay("k").await.response()[..], *b"the successor's");
    // An operator releases the key in between, so the late executor claims it again to record its own outcome.
    let late = bench.claim("m").await;
    let seen = bench.record("m");
    let _ = successor.idempotency.resolve(&bench.stored_key("m"), &seen, Resolution::Release).await.unwrap();
    let Settled::Recorded = late.complete("late").await.unwrap() else { panic!("superseded") };
    assert_eq!(bench.replay("m").await.response()[..], *b"late");
    assert_eq!(bench.replay("m").await.generation(), bench.record("m").generation);
}

#[tokio::test(start_paused = true)]
async fn damaged_responses_are_not_cached() {
    let bench = cached();
    bench.ran("k").await;
    bench.idempotency.clear_local_cache();
    let mut record = bench.record("k");
    if let State::Completed(Outcome::Retained(response)) = &mut record.state {
        response.sha256 = [0; 32];
    }
    bench.store.set("k", record);
    for _ in 0..2 {
        assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Corrupt);
        assert_eq!(bench.store.take_calls(), ["claim"]);
    }
    // An unreadable record isn't cached either.
    bench.store.script([Meets(Fault::Unreadable)]);
    assert_eq!(kind(bench.run("l", 1).await), ErrorKind::Corrupt);
    assert_eq!(bench.ran("l").await, "run 2");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cached_before_a_snapshot() {
    let store = ScriptedStore::default();
    let builder =
        Idempotency::builder(store.clone()).function("tests").settings(|s| s.local_cache = SMALLEST);
    let idempotency = builder
        .build_in(|name| (name == "AWS_LAMBDA_INITIALIZATION_TYPE").then(|| "snap-start".to_owned()))
        .unwrap();
    let run = async |idempotency: &Idempotency| {
        let step = idempotency.operation("step").unwrap();
        let run = step.run(Key::new("k").unwrap(), &1, async || Ok::<_, TestError>(1));
        assert_eq!(run.await.unwrap(), 1);
        store.take_calls()
    };
    assert_eq!(run(&idempotency).await, ["claim", "settle"]);
    assert_eq!(run(&idempotency).await, ["claim"]);
    assert_eq!(run(&idempotency).await, ["claim"]);
    // After the restore, outcomes are cached from the first invocation on.
    let invocation = Invocation::entered(Timestamp::from_millis(1), Timestamp::from_millis(0), "request");
    let inside = idempotency.for_invocation(invocation);
    assert_eq!(run(&inside).await, ["claim"]);
    assert_eq!(run(&inside).await, NOTHING);
    assert_eq!(run(&idempotency).await, NOTHING);
}

#[cfg(feature = "events")]
#[tokio::test(start_paused = true)]
async fn snapshot_hooks_empty_the_cache() {
    use lambda_runtime::SnapStartResource as _;

    let bench = cached();
    bench.ran("k").await;
    assert_eq!(bench.calls("k").await, NOTHING);
    bench.idempotency.before_snapshot().await.unwrap();
    assert_eq!(bench.calls("k").await, ["claim"]);
    assert_eq!(bench.calls("k").await, NOTHING);
    bench.idempotency.after_restore().await.unwrap();
    assert_eq!(bench.calls("k").await, ["claim"]);
}

/// The cache keeps the payload of an operation, to compare it with the next one's.
#[tokio::test(start_paused = true)]
async fn every_changed_input_misses_the_kept_payload() {
    let bench = cached();
    let run = async |operation: &str, key: &str, payload: &str| {
        let operation = bench.idempotency.operation(operation).unwrap();
        let payload: Box<serde_json::value::RawValue> = serde_json::from_str(payload).unwrap();
        let ran = operation.run(Key::new(key).unwrap(), &payload, async || Ok::<_, TestError>(1)).await;
        (ran.map_err(|error| kind(Err::<(), _>(error))), bench.store.take_calls())
    };
    let once = vec!["claim", "settle"];
    assert_eq!(run("charge", "k", r#"{"a":1,"b":2}"#).await, (Ok(1), once.clone()));
    let mismatch = (Err(ErrorKind::Mismatch), Vec::new());
    for (operation, key, payload, expected) in [
        ("charge", "k", r#"{"a":1,"b":2}"#, (Ok(1), Vec::new())),
        ("charge", "k", r#"{"a":1,"b":3}"#, mismatch.clone()),
        ("charge", "k", r#"{"a":1,"b":2.0}"#, mismatch.clone()),
        ("charge", "k", r#"{"a":1,"b":2,"c":null}"#, mismatch),
        // The same JSON in another order has the same fingerprint.
        ("charge", "k", r#"{"b":2,"a":1}"#, (Ok(1), Vec::new())),
        ("charge", "k", r#"{"a":1,"b":2}"#, (Ok(1), Vec::new())),
        ("charge", "other", r#"{"a":1,"b":2}"#, (Ok(1), once.clone())),
        ("refund", "k", r#"{"a":1,"b":2}"#, (Ok(1), once)),
    ] {
        assert_eq!(run(operation, key, payload).await, expected, "{operation} {key} {payload}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_duplicate_uses_the_cache() {
    let bench = cached_with(|builder| builder.settings(|s| s.wait_in_progress = Duration::from_secs(10)));
    let slow = bench.with_handler("k", 1, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok("slow".to_owned())
    });
    let (first, waiting) = tokio::join!(slow, bench.run("k", 1));
    assert_eq!((first.unwrap(), waiting.unwrap()), ("slow".to_owned(), "slow".to_owned()));
    let calls = bench.store.take_calls();
    assert_eq!(calls.last(), Some(&"settle"), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn cache_hits_are_logged() {
    let bench = cached();
    bench.ran("k").await;
    let events = bench.recorded(bench.run("k", 1)).await;
    let [hit, replayed] = &events[..] else { panic!("{events:?}") };
    assert!(hit.contains("event=\"local_cache_hit\"") && hit.contains("generation="), "{hit}");
    assert!(replayed.contains("event=\"replayed\""), "{replayed}");
    let events = bench.recorded(bench.run("k", 2)).await;
    let [hit, refused] = &events[..] else { panic!("{events:?}") };
    assert!(hit.contains("event=\"local_cache_hit\""), "{hit}");
    assert!(refused.contains("event=\"refused\""), "{refused}");
}
