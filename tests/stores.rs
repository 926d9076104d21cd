//! Runs the conformance suite against every store, and against stores that are wrong on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

use std::{collections::HashSet, error::Error as _, sync::Arc, time::Duration};

use lambda_idempotency::{
    conformance::{self, Failure},
    store::{Store, StoreError, StoreErrorKind, memory::MemoryStore},
};
use tokio::task::JoinSet;

use testkit::{
    faulty::{
        Act::{Anew, Extend, Resolve, Settle, TakeOver},
        CachedPerHandle,
        Condition::{Absent, Mine, Replace},
        Faulty,
        Field::{
            Attempt, Execution, ExpiresAt, Fingerprint, Generation, Interrupted, LeaseUntil, LockAcquiredAt,
            Outcome, Owner as OwnerField, RequestId, Status, Trace,
        },
        LockedPerHandle, Sabotage,
    },
    random::fresh_seed,
};

/// Runs the whole suite on one store. Each of `handles` gives access to that store.
async fn prove(handles: &[Arc<dyn Store>], operations: u32) {
    conformance::check(&*handles[0]).await;
    conformance::differential(&*handles[0], fresh_seed(), operations).await;
    conformance::check_contention(handles, 32, 5).await;
}

mod memory {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn conforms() {
        let store = MemoryStore::new();
        prove(&[Arc::new(store.clone()), Arc::new(store)], 20_000).await;
    }
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use lambda_idempotency::store::{StoreBuilder, dynamodb::DynamoDbStore};

    use testkit::emulator::{Emulator, fresh_table};

    use super::*;

    async fn prove_as(configure: impl Fn(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>) {
        let emulator = Emulator::start().await;
        // Long timeouts: the suite writes a response of 6 MB, which may take the emulator long on a busy machine.
        let (attempt, operation) = (Duration::from_secs(30), Duration::from_secs(60));
        let table = fresh_table();
        let open = async || {
            let builder = DynamoDbStore::builder(table.as_str())
                .client(emulator.client())
                .attempt_timeout(attempt)
                .operation_timeout(operation);
            configure(builder).build().await.unwrap()
        };
        let (store, other) = (open().await, open().await);
        store.create_table().await.unwrap();
        prove(&[Arc::new(store), Arc::new(other)], 300).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms() {
        prove_as(|builder| builder).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_a_sort_key() {
        prove_as(|builder| builder.sort_key("sk")).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_in_a_shared_partition() {
        prove_as(|builder| builder.sort_key("sk").partition("idempotency")).await;
    }

    /// The attributes have names that a user may choose: reserved words, names with characters that DynamoDB's
    /// expressions don't allow, and a long name.
    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_other_attribute_names() {
        let names = format!(
            "id:PK,status:state,owner:a.b,generation:value,claimed_at:lock-acquired,lease_until:{},\
             expires_at:ttl,fingerprint:hash,attempt:count,response:data,encoding:#encoding,\
             length::length,sha256:größe,request_id:key,mark:boolean,execution:list,trace:map,version:0",
            "x".repeat(255)
        );
        prove_as(|builder| builder.attributes(&names).unwrap().sort_key("SK").inline_limit(1024)).await;
    }
}

mod postgres {
    use lambda_idempotency::{
        StoredKey,
        store::{
            BoxFuture, CallerTransactions as _, Put, PutOutcome, Record, StoreBuilder,
            postgres::{PostgresStore, deadpool_postgres, tokio_postgres},
        },
    };

    use testkit::{
        pgbouncer::PgBouncer,
        postgres::{Server, fresh_table},
    };

    use super::*;

    async fn prove_as(configure: impl Fn(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>) {
        let Some(server) = Server::shared() else { return };
        // Long timeouts, because many concurrent writes may be slow on a busy machine.
        let patience = Duration::from_secs(30);
        let table = fresh_table();
        let open = async || {
            let configure = |builder| {
                configure(builder)
                    .table(table.as_str())
                    .connect_timeout(2 * patience)
                    .statement_timeout(2 * patience)
                    .lock_timeout(patience)
            };
            server.store(configure).await
        };
        let handles: [Arc<dyn Store>; 2] = [Arc::new(open().await), Arc::new(open().await)];
        conformance::check_contention(&handles, 64, 10).await;
        prove(&handles, 2000).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms() {
        prove_as(|builder| builder).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_prepared_statements() {
        prove_as(|builder| builder.connections(16).prepared_statements(true)).await;
    }

    /// The pooler runs each statement in either of two server sessions.
    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_behind_a_pooler() {
        let Some(server) = Server::shared() else { return };
        let Some(pooler) = PgBouncer::before(server, 2, "") else { return };
        let patience = Duration::from_secs(30);
        let store = PostgresStore::builder(server.url_at(pooler.port()))
            .table(fresh_table())
            .connections(8)
            .timeouts_per_transaction()
            .connect_timeout(2 * patience)
            .statement_timeout(2 * patience)
            .lock_timeout(patience);
        let store = store.build().unwrap();
        store.create_table().await.unwrap();
        prove(&[Arc::new(store)], 500).await;
    }

    /// Runs each write and each read in its own transaction, opened outside the store.
    #[derive(Debug)]
    struct InTransactions {
        store: PostgresStore,
        pool: deadpool_postgres::Pool,
    }

    impl Store for InTransactions {
        fn put<'a>(
            &'a self,
            key: &'a StoredKey,
            put: &'a Put,
        ) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
            Box::pin(async move {
                let mut client = self.pool.get().await.unwrap();
                let transaction = client.transaction().await.unwrap();
                let written = self.store.put_in(&transaction, key, put, None).await?;
                transaction.commit().await.unwrap();
                Ok(written.unwrap())
            })
        }

        fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
            Box::pin(async move {
                let mut client = self.pool.get().await.unwrap();
                let transaction = client.transaction().await.unwrap();
                let (record, _) = self.store.lock_and_read_in(&transaction, key).await?;
                // Waits for the rollback. Otherwise the next read could find the key still locked.
                transaction.rollback().await.unwrap();
                Ok(record)
            })
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_inside_callers_transactions() {
        let Some(server) = Server::shared() else { return };
        let patience = Duration::from_secs(30);
        let store =
            server.store(|builder| builder.statement_timeout(2 * patience).lock_timeout(patience)).await;
        let config = server.url().parse().unwrap();
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager).max_size(8).build().unwrap();
        prove(&[Arc::new(InTransactions { store, pool })], 1000).await;
    }
}

mod redis {
    use lambda_idempotency::store::redis::RedisStore;

    use testkit::redis::shared;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms() {
        let Some(server) = shared() else { return };
        let open = || -> Arc<dyn Store> { Arc::new(patient(&server.url())) };
        let handles = [open(), open()];
        prove(&handles, 5000).await;
        conformance::check_contention(&handles, 64, 20).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_another_prefix_and_database() {
        let Some(server) = shared() else { return };
        prove(&[Arc::new(patient(&format!("{}/3?prefix={{t}}*", server.url())))], 1000).await;
    }

    /// Builds a store with long timeouts, because a server may be slow on a busy machine.
    fn patient(url: &str) -> RedisStore {
        let (attempt, operation) = (Duration::from_secs(30), Duration::from_secs(60));
        RedisStore::builder(url).attempt_timeout(attempt).operation_timeout(operation).build().unwrap()
    }
}

#[test]
fn arcs_keep_a_stores_capabilities() {
    assert!(Store::chunks(&Arc::new(Faulty::new(Sabotage::None))).is_some());
    assert!(Store::chunks(&Arc::new(MemoryStore::new())).is_none());
}

#[test]
fn store_errors_keep_message_and_cause() {
    let cause = std::io::Error::other("the cable");
    let error = StoreError::new(StoreErrorKind::Unavailable, "the store").with_source(cause);
    assert_eq!(error.to_string(), "the store");
    assert_eq!(error.source().unwrap().to_string(), "the cable");
    assert!(StoreError::new(StoreErrorKind::Unavailable, "the store").source().is_none());
}

// Tests of the suite itself.

/// Every sabotage of the faulty store.
const FAULTS: &[Sabotage] = &[
    Sabotage::Untested(Absent),
    Sabotage::Untested(Replace(Status)),
    Sabotage::Untested(Replace(OwnerField)),
    Sabotage::Untested(Replace(Generation)),
    Sabotage::Untested(Replace(ExpiresAt)),
    Sabotage::Untested(Replace(LeaseUntil)),
    Sabotage::Untested(Mine(Status)),
    Sabotage::Untested(Mine(OwnerField)),
    Sabotage::Untested(Mine(Generation)),
    Sabotage::NotOlder(Replace(Generation)),
    Sabotage::NotOlder(Replace(ExpiresAt)),
    Sabotage::NotOlder(Replace(LeaseUntil)),
    Sabotage::NotOlder(Mine(Generation)),
    Sabotage::Overtested(Mine(ExpiresAt)),
    Sabotage::Overtested(Mine(LeaseUntil)),
    Sabotage::Keeps(Anew, OwnerField),
    Sabotage::Keeps(Anew, Generation),
    Sabotage::Keeps(Anew, Attempt),
    Sabotage::Keeps(Anew, Fingerprint),
    Sabotage::Keeps(Anew, LockAcquiredAt),
    Sabotage::Keeps(Anew, RequestId),
    Sabotage::Keeps(Anew, Trace),
    Sabotage::Keeps(Anew, Execution),
    Sabotage::Keeps(Anew, ExpiresAt),
    Sabotage::Keeps(Anew, Interrupted),
    Sabotage::Keeps(Anew, LeaseUntil),
    Sabotage::Keeps(Anew, Outcome),
    Sabotage::KeepsIfUnset(Anew, RequestId),
    Sabotage::KeepsIfUnset(Anew, Trace),
    Sabotage::KeepsIfUnset(Anew, Execution),
    Sabotage::KeepsIfUnset(Anew, ExpiresAt),
    Sabotage::KeepsIfUnset(Anew, Interrupted),
    Sabotage::KeepsIfUnset(Anew, Outcome),
    Sabotage::Keeps(TakeOver, OwnerField),
    Sabotage::Keeps(TakeOver, Generation),
    Sabotage::Keeps(TakeOver, Attempt),
    Sabotage::Keeps(TakeOver, LockAcquiredAt),
    Sabotage::Keeps(TakeOver, RequestId),
    Sabotage::Keeps(TakeOver, Trace),
    Sabotage::Keeps(TakeOver, Execution),
    Sabotage::Keeps(TakeOver, ExpiresAt),
    Sabotage::Keeps(TakeOver, Interrupted),
    Sabotage::Keeps(TakeOver, LeaseUntil),
    Sabotage::KeepsIfUnset(TakeOver, RequestId),
    Sabotage::KeepsIfUnset(TakeOver, Trace),
    Sabotage::KeepsIfUnset(TakeOver, Execution),
    Sabotage::KeepsIfUnset(TakeOver, ExpiresAt),
    Sabotage::KeepsIfUnset(TakeOver, Interrupted),
    Sabotage::Keeps(Extend, ExpiresAt),
    Sabotage::Keeps(Extend, LeaseUntil),
    Sabotage::KeepsIfUnset(Extend, ExpiresAt),
    Sabotage::Keeps(Settle, ExpiresAt),
    Sabotage::Keeps(Settle, Interrupted),
    Sabotage::Keeps(Settle, LeaseUntil),
    Sabotage::KeepsIfUnset(Settle, Interrupted),
    Sabotage::KeepsIfUnset(Settle, LeaseUntil),
    Sabotage::Keeps(Resolve, OwnerField),
    Sabotage::Keeps(Resolve, Generation),
    Sabotage::Keeps(Resolve, ExpiresAt),
    Sabotage::Keeps(Resolve, Interrupted),
    Sabotage::Keeps(Resolve, Outcome),
    Sabotage::Keeps(Resolve, LeaseUntil),
    Sabotage::KeepsIfUnset(Resolve, Interrupted),
    Sabotage::KeepsIfUnset(Resolve, Outcome),
    Sabotage::KeepsIfUnset(Resolve, LeaseUntil),
    Sabotage::OmittedIsUnfenced,
    Sabotage::PartsAreUnfenced,
    Sabotage::NamelessIsUnfenced,
    Sabotage::LateExtensionRefused,
    Sabotage::ExpiryOnlyGrows,
    Sabotage::ExtensionCounts,
    Sabotage::ExtensionLosesRequestId,
    Sabotage::VersionsAreFloats,
    Sabotage::AbsentIsReplaced,
    Sabotage::NotAtomic,
    Sabotage::RefusedIsMade,
    Sabotage::RefusedTouches,
    Sabotage::RefusedShowsOld,
    Sabotage::RefusedShowsNothing,
    Sabotage::AppliedIsRefused,
    Sabotage::RefusedIsError,
    Sabotage::ReadsLag,
    Sabotage::ExpiredReadsAbsent,
    Sabotage::ExpiredIsAbsent,
    Sabotage::StaleIsAbsent,
    Sabotage::LateSettlementRefused,
    Sabotage::Lost(Attempt),
    Sabotage::Lost(Fingerprint),
    Sabotage::Lost(LockAcquiredAt),
    Sabotage::Lost(RequestId),
    Sabotage::Lost(Trace),
    Sabotage::Lost(Execution),
    Sabotage::Lost(ExpiresAt),
    Sabotage::Lost(Interrupted),
    Sabotage::EmptyRequestIdLost,
    Sabotage::Floats,
    Sabotage::Signed,
    Sabotage::LeaseInSeconds,
    Sabotage::OutcomeCut,
    Sabotage::LargeOutcomeCut,
    Sabotage::LargeOutcomeRejected,
    Sabotage::EmptyIsOmitted,
    Sabotage::FailureIsCompletion,
    Sabotage::OldOutcomeShows,
    Sabotage::NoExpiryMatchesAny,
    Sabotage::AnyExpiryMatchesNone,
    Sabotage::NoExpiryMatchesNothing,
    Sabotage::NoExpiryIsZero,
    Sabotage::NoExpiryIsTheLast,
    Sabotage::NoExpiryReadsAbsent,
    Sabotage::ExtensionForgetsInterrupted,
    Sabotage::SettlementForgetsInterrupted,
    Sabotage::DroppedAnswersStay,
    Sabotage::KeysCut,
    Sabotage::KeysFolded,
    Sabotage::KeysTrimmed,
    Sabotage::PartsOfOwnersMixed,
    Sabotage::PartsOfKeysMixed,
    Sabotage::PartsMissingLeftOut,
    Sabotage::PartsUnlimited,
    Sabotage::PartsCut,
    Sabotage::PartsSmall,
    Sabotage::PartsAreRecords,
    Sabotage::PartsGoWithCompletion,
];

async fn failed_cases(sabotage: Sabotage) -> Vec<Failure> {
    conformance::failures(&Faulty::new(sabotage)).await
}

#[tokio::test]
async fn correct_stores_pass() {
    assert_eq!(failed_cases(Sabotage::None).await, []);
    prove(&[Arc::new(Faulty::new(Sabotage::None))], 2000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_and_faults_cover_each_other() {
    let mut runs = JoinSet::new();
    for sabotage in FAULTS {
        runs.spawn(async move { (sabotage, failed_cases(*sabotage).await) });
    }
    let (mut useful, mut unfound) = (HashSet::new(), Vec::new());
    while let Some(run) = runs.join_next().await {
        let (sabotage, failures) = run.unwrap();
        for prefix in own_cases(*sabotage).iter().chain(&[""]) {
            if !failures.iter().any(|failure| failure.case.starts_with(prefix)) {
                unfound.push(format!("no case `{prefix}…` found the sabotage {sabotage:?}"));
            }
        }
        useful.extend(failures.into_iter().map(|failure| failure.case));
    }
    assert_eq!(unfound, [""; 0]);
    let idle: Vec<_> = conformance::cases().filter(|case| !useful.contains(case)).collect();
    assert_eq!(idle, [""; 0], "these cases find no sabotage");
}

const CREATE: &str = "a put where there's no record";
const REPLACE: &str = "a put in place of the version";
const MINE: &str = "a put under a claim";

/// Returns prefixes of case names. For each prefix, a case whose name begins with it must find this sabotage.
fn own_cases(sabotage: Sabotage) -> &'static [&'static str] {
    match sabotage {
        Sabotage::Untested(condition) | Sabotage::NotOlder(condition) | Sabotage::Overtested(condition) => {
            match condition {
                Absent => &[CREATE],
                Replace(_) => &[REPLACE],
                Mine(_) => &[MINE],
            }
        }
        Sabotage::Keeps(Settle, _) | Sabotage::KeepsIfUnset(Settle, _) => &[MINE],
        Sabotage::Keeps(..) | Sabotage::KeepsIfUnset(..) => &[REPLACE],
        Sabotage::ExtensionCounts | Sabotage::ExtensionLosesRequestId | Sabotage::AbsentIsReplaced => {
            &[REPLACE]
        }
        Sabotage::ExpiryOnlyGrows => &[REPLACE, MINE],
        Sabotage::VersionsAreFloats => &["versions are compared"],
        Sabotage::LargeOutcomeCut | Sabotage::LargeOutcomeRejected => &["a large response"],
        Sabotage::DroppedAnswersStay => &["dropped calls"],
        Sabotage::OmittedIsUnfenced => &[REPLACE, MINE],
        Sabotage::PartsAreUnfenced => &[MINE],
        Sabotage::NamelessIsUnfenced => &[REPLACE],
        Sabotage::NoExpiryMatchesAny | Sabotage::AnyExpiryMatchesNone | Sabotage::NoExpiryMatchesNothing => {
            &[REPLACE]
        }
        Sabotage::NoExpiryIsZero => &["versions are compared"],
        Sabotage::NoExpiryIsTheLast | Sabotage::NoExpiryReadsAbsent => &[CREATE, "a lock round-trips"],
        Sabotage::ExtensionForgetsInterrupted => &[REPLACE, "an interrupted attempt"],
        Sabotage::SettlementForgetsInterrupted => &[MINE, "an interrupted attempt"],
        _ => &[],
    }
}

#[tokio::test]
async fn some_sabotages_fail_only_one_case() {
    for sabotage in [Sabotage::LargeOutcomeCut, Sabotage::LargeOutcomeRejected, Sabotage::DroppedAnswersStay]
    {
        let cases: Vec<_> = failed_cases(sabotage).await.iter().map(|failure| failure.case).collect();
        assert!(matches!(cases[..], [case] if case.starts_with(own_cases(sabotage)[0])), "{cases:?}");
    }
}

#[tokio::test]
async fn findings_name_write_field_and_expectation() {
    let failures = failed_cases(Sabotage::Untested(Mine(Generation))).await;
    let found = failures.iter().find(|failure| failure.case.starts_with(MINE)).unwrap().to_string();
    assert!(
        found.starts_with("a put under a claim, whatever its lease is: Mine settlement Complete("),
        "{found}"
    );
    assert!(found.contains(") on Started, different in Generation(1): a put of COMPLETED"), "{found}");
    assert!(found.contains("should have been refused because of Record {"), "{found}");

    let failures = failed_cases(Sabotage::Lost(RequestId)).await;
    let expected = "should have request_id = Some(\"second-invocation\"), but has None";
    assert!(failures.iter().any(|failure| failure.finding.contains(expected)), "{failures:#?}");
}

#[tokio::test]
async fn check_lists_every_failed_case() {
    let store = Faulty::new(Sabotage::PartsUnlimited);
    let panic = tokio::spawn(async move { conformance::check(&store).await }).await.unwrap_err();
    let message = panic.into_panic().downcast::<String>().unwrap();
    assert!(message.starts_with("1 of "), "{message}");
    assert!(message.contains("chunks over the limit are an error: reading 700,000 bytes"), "{message}");
}

#[tokio::test]
async fn differential_findings_are_reproducible() {
    let mut messages = Vec::new();
    for _ in 0..2 {
        let store = Faulty::new(Sabotage::Untested(Replace(ExpiresAt)));
        let run = tokio::spawn(async move { conformance::differential(&store, 7, 5000).await });
        messages.push(*run.await.unwrap_err().into_panic().downcast::<String>().unwrap());
    }
    let [one, other] = messages.as_slice() else { panic!() };
    assert!(one.starts_with("seed 7, after "), "{one}");
    assert!(one.contains("operations on this key:\n  "), "{one}");
    // Both runs execute the same operations, but at different times. So this compares only the text before the first
    // colon, and the number of lines.
    let shape =
        |message: &str| message.split(':').next().map(str::to_owned).zip(Some(message.lines().count()));
    assert_eq!(shape(one), shape(other), "{one}\n{other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contention_finds_non_atomic_writes() {
    let store: Arc<dyn Store> = Arc::new(Faulty::new(Sabotage::NotAtomic));
    let message = contention_finding(vec![store]).await;
    assert!(message.starts_with("contention, 32 tasks, round "), "{message}");
    assert!(message.contains("were applied instead of one"), "{message}");
}

/// Runs races through these handles, and returns the failure that the suite reports.
async fn contention_finding(handles: Vec<Arc<dyn Store>>) -> String {
    let run = tokio::spawn(async move { conformance::check_contention(&handles, 32, 20).await });
    *run.await.unwrap_err().into_panic().downcast::<String>().unwrap()
}

// On one thread, the tasks take turns at each `await`, so the operations of the two handles always overlap.
#[tokio::test]
async fn contention_finds_separate_locks_per_handle() {
    let shared = MemoryStore::new();
    let open = || -> Arc<dyn Store> { Arc::new(LockedPerHandle::new(&shared)) };
    // The suite finds nothing through a single handle.
    prove(&[open()], 500).await;
    let message = contention_finding(vec![open(), open()]).await;
    assert!(message.contains("2 of 32 concurrent claims were applied instead of one"), "{message}");
}

#[tokio::test]
async fn contention_finds_separate_caches_per_handle() {
    let shared = MemoryStore::new();
    let open = || -> Arc<dyn Store> { Arc::new(CachedPerHandle::new(&shared)) };
    prove(&[open()], 500).await;
    let message = contention_finding(vec![open(), open()]).await;
    assert!(message.contains("(through handle"), "{message}");
}

/// A `Create` has one condition, a `Replace` five, and a `Mine` three.
#[test]
fn every_condition_has_its_sabotage() {
    let untested = FAULTS.iter().filter(|sabotage| matches!(sabotage, Sabotage::Untested(_)));
    assert_eq!(untested.count(), 1 + 5 + 3);
}
