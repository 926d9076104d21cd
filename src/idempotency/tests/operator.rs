//! An operator's write fences an executor that's still running, and resolves unknown outcomes.

use super::{
    support::Script::{self, Meets},
    *,
};
use bytes::Bytes;

use crate::{
    Error, Idempotency, Resolution, StoredKey,
    future::BoxFuture,
    record::Generation,
    store::{Put, PutOutcome, Store, StoreError, memory::MemoryStore},
};

impl Bench {
    pub(super) fn stored_key(&self, key: &str) -> StoredKey {
        self.operation().stored_key(&Key::new(key).unwrap())
    }

    /// Resolves the current version of the record.
    async fn resolve(&self, key: &str, resolution: Resolution) -> Result<Option<Record>, Error> {
        let seen = self.record(key);
        self.idempotency.resolve(&self.stored_key(key), &seen, resolution).await
    }

    async fn resolved(&self, key: &str, resolution: Resolution) -> Record {
        self.resolve(key, resolution).await.unwrap().expect("the record is still the version that was seen")
    }

    async fn outcome(&self, key: &str) -> String {
        let outcome = self.idempotency.outcome_of(&self.stored_key(key), &self.record(key)).await.unwrap();
        String::from_utf8(outcome.response().to_vec()).unwrap()
    }
}

fn complete(response: &'static str) -> Resolution {
    Resolution::Complete(Bytes::from_static(response.as_bytes()))
}

fn both() -> [Bench; 2] {
    [Execution::AtLeastOnce, Execution::AtMostOnce]
        .map(|execution| Bench::with(|builder| builder.execution(execution)))
}

#[tokio::test(start_paused = true)]
async fn operators_completion_fences_the_late_executor() {
    for bench in both() {
        let operator = bench.clone();
        let result = bench
            .with_handler("k", 1, async move {
                let before = operator.record("k");
                let after = operator.resolved("k", complete("\"by hand\"")).await;
                assert_ne!(after.owner, before.owner);
                assert!(after.generation > before.generation);
                assert_eq!((after.status(), after.attempt), (Status::Completed, before.attempt));
                Ok("too late".to_owned())
            })
            .await;
        assert_eq!(result.unwrap(), "by hand");
        assert_eq!(bench.run("k", 1).await.unwrap(), "by hand");
        assert_eq!((bench.runs(), bench.outcome("k").await.as_str()), (0, "\"by hand\""));
    }
}

/// If a lease is extended between an operator's read and write, the write still fences the claim.
#[tokio::test(start_paused = true)]
async fn operator_fences_an_extended_claim() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(Duration::from_secs(30))));
    let operator = bench.clone();
    let result = bench
        .with_handler("k", 1, async move {
            let seen = operator.record("k");
            tokio::time::sleep(Duration::from_secs(25)).await;
            let extended = operator.record("k");
            assert!(extended.lease_until() > seen.lease_until());
            let key = operator.stored_key("k");
            let resolved = operator.idempotency.resolve(&key, &seen, complete("\"by hand\"")).await.unwrap();
            assert!(resolved.is_some());
            // The completion replaced the seen version, so a second `resolve` of that version isn't applied.
            let resolved = operator.idempotency.resolve(&key, &seen, Resolution::Release).await.unwrap();
            assert_eq!(resolved, None);
            Ok("too late".to_owned())
        })
        .await;
    assert_eq!(result.unwrap(), "by hand");
}

#[tokio::test(start_paused = true)]
async fn late_executor_records_after_operators_release() {
    for bench in both() {
        let operator = bench.clone();
        let result = bench
            .with_handler("k", 1, async move {
                let after = operator.resolved("k", Resolution::Release).await;
                assert_eq!(after.status(), Status::Released);
                operator.store.take_calls();
                Ok("in hand".to_owned())
            })
            .await;
        assert_eq!(result.unwrap(), "in hand");
        assert_eq!(bench.store.take_calls(), ["settle", "reclaim", "settle"]);
        assert_eq!(bench.run("k", 1).await.unwrap(), "in hand");
        assert_eq!(bench.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn operator_resolves_unknown_outcomes() {
    let unknown = async || {
        let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
        bench.abandon("k", 1).await;
        tokio::time::sleep(Duration::from_secs(63)).await;
        assert_eq!(kind(bench.run("k", 1).await), ErrorKind::OutcomeUnknown);
        bench
    };
    let bench = unknown().await;
    let record = bench.resolved("k", complete("\"it was charged\"")).await;
    let retention = bench.idempotency.settings().retention;
    let expires_at = bench.now().saturating_add(retention).rounded_up_to_second();
    assert_eq!(record.expires_at, Some(expires_at));
    assert_eq!(bench.run("k", 1).await.unwrap(), "it was charged");
    assert_eq!(kind(bench.run("k", 2).await), ErrorKind::Mismatch);

    let bench = unknown().await;
    bench.resolved("k", Resolution::Release).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.record("k").attempt, 2, "the next attempt of the same operation");

    let bench = unknown().await;
    bench.resolved("k", Resolution::CompleteWithoutResponse).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::NotRetained);

    let bench = unknown().await;
    let failure = serde_json::to_vec(&crate::RecordedFailure::new("Declined", "no cover")).unwrap();
    bench.resolved("k", Resolution::Fail(failure.into())).await;
    let Err(RunError::Recorded(failure)) = bench.run("k", 1).await else { panic!("no failure") };
    assert_eq!((failure.error_type.as_str(), failure.error_message.as_str()), ("Declined", "no cover"));
}

#[tokio::test(start_paused = true)]
async fn operator_can_replace_and_release_outcomes() {
    let bench = Bench::new();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    bench.resolved("k", complete("\"corrected\"")).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "corrected");
    bench.resolved("k", Resolution::Release).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 2");
}

#[tokio::test(start_paused = true)]
async fn outdated_revision_is_not_resolved() {
    let bench = Bench::new();
    let key = bench.stored_key("k");
    bench.abandon("k", 1).await;
    let seen = bench.record("k");
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    let there = bench.record("k");
    let lost = bench.idempotency.resolve(&key, &seen, Resolution::Release).await.unwrap();
    assert_eq!(lost, None);
    assert_eq!(bench.record("k"), there);
    bench.store.remove_all();
    let lost = bench.idempotency.resolve(&key, &seen, Resolution::Release).await.unwrap();
    assert_eq!(lost, None);
}

#[tokio::test(start_paused = true)]
async fn record_owner_shows_whether_resolve_was_applied() {
    let [no_answer, no_request, down] = [Fault::LoseAnswer, Fault::LoseRequest, Fault::Throttle].map(Meets);
    for (script, calls) in [
        (vec![no_answer], vec!["resolve", "read"]),
        (vec![no_request], vec!["resolve", "read", "resolve"]),
        (vec![no_request, Script::Pass, no_answer], vec!["resolve", "read", "resolve", "read"]),
    ] {
        let bench = Bench::new();
        bench.abandon("k", 1).await;
        bench.store.take_calls();
        bench.store.script(script);
        let record = bench.resolved("k", complete("1")).await;
        assert_eq!((&record, bench.store.take_calls()), (&bench.record("k"), calls));
    }
    for (script, expected) in [
        (vec![no_request, Script::Pass, no_request], "it's unknown"),
        (vec![no_request, Script::Pass, down], "it's unknown"),
        (vec![no_answer, down], "it's unknown"),
        (vec![down], "nothing was written"),
    ] {
        let bench = Bench::new();
        bench.abandon("k", 1).await;
        bench.store.script(script);
        let error = bench.resolve("k", complete("1")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let bench = Bench::new();
    bench.abandon("k", 1).await;
    bench.store.script([Meets(Fault::Refuse)]);
    assert_eq!(bench.resolve("k", complete("1")).await.unwrap_err().kind(), ErrorKind::Invalid);
    bench.store.script([Meets(Fault::Unreadable)]);
    assert_eq!(bench.resolve("k", complete("1")).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

/// A store that loses the answer to an operator's write. Before the operator reads the record, another writer changes
/// it.
#[derive(Debug)]
struct Overtaken {
    records: MemoryStore,
    /// Whether the operator's write is applied.
    is_applied: bool,
    change: fn(&mut Record),
}

impl Store for Overtaken {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            if self.is_applied {
                assert_eq!(self.records.put(key, put).await?, PutOutcome::Applied);
            }
            let mut record = self.records.read(key).await?.unwrap();
            (self.change)(&mut record);
            self.records.set(key, Some(record));
            Err(Fault::LoseAnswer.error().unwrap())
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.records.read(key)
    }
}

#[tokio::test(start_paused = true)]
async fn replaced_record_leaves_resolve_in_doubt() {
    let resolved = async |is_applied: bool, change: fn(&mut Record)| {
        let bench = Bench::new();
        bench.abandon("k", 1).await;
        let seen = bench.record("k");
        let store = Overtaken { records: bench.store.inner.clone(), is_applied, change };
        let operator = Idempotency::builder(store).function("tests").build().unwrap();
        operator.resolve(&bench.stored_key("k"), &seen, Resolution::Release).await
    };
    // Another delivery claims the key.
    let claimed: fn(&mut Record) = |record| {
        record.owner = Owner::from_bytes([5; 16]);
        record.generation = Generation::new(record.generation.get() + 1);
    };
    for is_applied in [true, false] {
        let error = resolved(is_applied, claimed).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("it's unknown"), "{error}");
    }
    // The executor settles its claim. It couldn't do so after the operator's write, so that write wasn't applied.
    let settled: fn(&mut Record) = |record| record.state = State::Completed(Outcome::Omitted);
    assert_eq!(resolved(false, settled).await.unwrap(), None);
}

/// An interruption (T9) may restore the lease that an unanswered write expects. So that write may still be applied.
#[tokio::test(start_paused = true)]
async fn doubt_outlasts_extensions() {
    let bench = Bench::new();
    bench.abandon("k", 1).await;
    let seen = bench.record("k");
    let change: fn(&mut Record) = |record| {
        let lease_until = record.lease_until().unwrap().saturating_add(Duration::from_secs(1));
        record.state = State::Started { lease_until };
    };
    let store = Overtaken { records: bench.store.inner.clone(), is_applied: false, change };
    let operator = Idempotency::builder(store).function("tests").build().unwrap();
    let error = operator.resolve(&bench.stored_key("k"), &seen, Resolution::Release).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("it's unknown"), "{error}");
}

/// The claim's owner was frozen, and extends its lease after the operator has seen a stale claim. Its handler runs.
#[tokio::test(start_paused = true)]
async fn decisions_on_stale_claims_spare_live_ones() {
    let bench = Bench::new();
    bench.abandon("k", 1).await;
    let live = bench.record("k");
    let past = bench.idempotency.driver().now().saturating_sub(Duration::from_secs(60));
    let stale = Record { state: State::Started { lease_until: past }, ..live.clone() };
    for resolution in [Resolution::Release, Resolution::RunAgain, complete("1")] {
        let resolved = bench.idempotency.resolve(&bench.stored_key("k"), &stale, resolution).await.unwrap();
        assert_eq!((resolved, bench.record("k")), (None, live.clone()));
    }
}

#[tokio::test(start_paused = true)]
async fn unstorable_operator_response_is_an_error() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.max_response = 10;
            s.settle_within = Duration::ZERO;
        })
    });
    bench.abandon("k", 1).await;
    let before = bench.record("k");
    bench.store.take_calls();
    let error = bench.resolve("k", complete("\"12345678901\"")).await.unwrap_err();
    assert_eq!((error.kind(), bench.store.take_calls()), (ErrorKind::Invalid, vec![]));
    bench.store.limit_inline(3);
    bench.store.script([Meets(Fault::Throttle)]);
    let error = bench.resolve("k", complete("\"1234\"")).await.unwrap_err();
    assert_eq!((error.kind(), bench.store.take_calls()), (ErrorKind::Unavailable, vec!["write chunks"]));
    assert_eq!(bench.record("k"), before);
    let record = bench.resolved("k", complete("\"1234\"")).await;
    let State::Completed(Outcome::Retained(response)) = record.state else { panic!("{record:?}") };
    assert_eq!(response.place, Place::Chunks(1));
}

/// A deployment that made the function run at most once is rolled back.
#[tokio::test(start_paused = true)]
async fn only_operators_free_at_most_once_claims() {
    let once = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let more = once.beside(|builder| builder);
    for (key, resolution) in [("release", Resolution::Release), ("again", Resolution::RunAgain)] {
        once.abandon(key, 1).await;
        for days in [1, 400] {
            tokio::time::sleep(Duration::from_secs(days * 86_400)).await;
            assert_eq!(kind(more.run(key, 1).await), ErrorKind::OutcomeUnknown);
            assert_eq!(kind(more.run(key, 2).await), ErrorKind::Mismatch);
        }
        let learns = resolution == Resolution::RunAgain;
        assert_eq!(once.resolved(key, resolution).await.status(), Status::Released);
        let handler = async move { Ok(current().is_some_and(|claim| claim.is_takeover()).to_string()) };
        assert_eq!(more.with_handler(key, 1, handler).await.unwrap(), learns.to_string());
    }
}
