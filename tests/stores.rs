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
        Condition::{
            self, ClaimAbsent, Conclude, ConcludeAbsent, Extend, Reclaim, Resolve, Settle, TakeOver,
        },
        Fault, Faulty,
        Field::{
            Attempt, ExpiresAt, Fingerprint, Generation, Interrupted, LeaseUntil, LockAcquiredAt,
            Owner as OwnerField, RequestId, Status,
        },
    },
    random::fresh_seed,
};

/// Runs the whole suite on a store.
async fn prove(store: Arc<dyn Store>, operations: u32) {
    conformance::check(&*store).await;
    conformance::differential(&*store, fresh_seed(), operations).await;
    conformance::check_contention(store, 32, 5).await;
}

mod memory {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn conforms() {
        prove(Arc::new(MemoryStore::new()), 20_000).await;
    }
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use lambda_idempotency::store::{StoreBuilder, dynamodb::DynamoDbStore};

    use testkit::emulator::{Emulator, fresh_table};

    use super::*;

    async fn prove_as(configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>) {
        let emulator = Emulator::start().await;
        // The emulator may be slow with 6 MB on a busy machine, and this test isn't about time.
        let (attempt, operation) = (Duration::from_secs(30), Duration::from_secs(60));
        let builder = DynamoDbStore::builder(fresh_table())
            .client(emulator.client())
            .attempt_timeout(attempt)
            .operation_timeout(operation);
        let store = configure(builder).build().await.unwrap();
        store.create_table().await.unwrap();
        prove(Arc::new(store), 300).await;
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

    /// User-chosen names: reserved words, and characters that an expression can't contain.
    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_other_names() {
        let names = format!(
            "id:PK,status:state,owner:a.b,generation:value,lock_acquired_at:lock-acquired,lease_until:{},\
             expires_at:ttl,fingerprint:hash,attempt:count,response:data,response_encoding:#encoding,\
             response_length::length,response_sha256:größe,request_id:key,interrupted:boolean,version:0",
            "x".repeat(255)
        );
        prove_as(|builder| builder.attributes(names).unwrap().sort_key("SK").inline_limit(1024)).await;
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use lambda_idempotency::{
        StoredKey,
        store::{
            BoxFuture, Record, StoreBuilder, Write, WriteOutcome,
            postgres::{PostgresStore, deadpool_postgres, tokio_postgres},
        },
    };

    use testkit::{
        pgbouncer::PgBouncer,
        postgres::{Server, fresh_table},
    };

    use super::*;

    async fn prove_as(configure: impl FnOnce(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>) {
        let Some(server) = Server::shared() else { return };
        // A hundred concurrent writes may take long on a busy machine, and this test isn't about time.
        let patience = Duration::from_secs(30);
        let store = server
            .store(|builder| {
                configure(builder)
                    .connect_timeout(2 * patience)
                    .statement_timeout(2 * patience)
                    .lock_timeout(patience)
            })
            .await;
        let store: Arc<dyn Store> = Arc::new(store);
        conformance::check_contention(Arc::clone(&store), 64, 10).await;
        prove(store, 2000).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms() {
        prove_as(|builder| builder).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_prepared_statements() {
        prove_as(|builder| builder.connections(16).prepared_statements(true)).await;
    }

    /// Each statement runs in either of two sessions.
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
        prove(Arc::new(store), 500).await;
    }

    /// Runs each write and each read in its own transaction, opened outside the store.
    #[derive(Debug)]
    struct InTransactions {
        store: PostgresStore,
        pool: deadpool_postgres::Pool,
    }

    impl Store for InTransactions {
        fn apply<'a>(
            &'a self,
            key: &'a StoredKey,
            write: &'a Write,
        ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
            Box::pin(async move {
                let mut client = self.pool.get().await.unwrap();
                let transaction = client.transaction().await.unwrap();
                let written = self.store.apply_in(&transaction, key, write).await?;
                transaction.commit().await.unwrap();
                Ok(written)
            })
        }

        fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
            Box::pin(async move {
                let mut client = self.pool.get().await.unwrap();
                let transaction = client.transaction().await.unwrap();
                let record = self.store.lock_and_read_in(&transaction, key).await?;
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
        prove(Arc::new(InTransactions { store, pool }), 1000).await;
    }
}

#[cfg(feature = "redis")]
mod redis {
    use lambda_idempotency::store::redis::RedisStore;

    use testkit::redis::shared;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms() {
        let Some(server) = shared() else { return };
        let store = Arc::new(patient(&server.url()));
        prove(store.clone(), 5000).await;
        conformance::check_contention(store, 64, 20).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn conforms_with_another_prefix_and_database() {
        let Some(server) = shared() else { return };
        prove(Arc::new(patient(&format!("{}/3?prefix={{t}}*", server.url()))), 1000).await;
    }

    /// A server may be slow on a busy machine, and this test isn't about time.
    fn patient(url: &str) -> RedisStore {
        let (attempt, operation) = (Duration::from_secs(30), Duration::from_secs(60));
        RedisStore::builder(url).attempt_timeout(attempt).operation_timeout(operation).build().unwrap()
    }
}

#[test]
fn arcs_keep_a_stores_capabilities() {
    assert!(Store::chunks(&Arc::new(Faulty::new(Fault::None))).is_some());
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

/// Every fault of the faulty store. One condition is missing: a takeover that doesn't test the status is still
/// refused, since a settled record has no lease.
const FAULTS: &[Fault] = &[
    Fault::Untested(ClaimAbsent),
    Fault::Untested(Reclaim(Status)),
    Fault::Untested(Reclaim(OwnerField)),
    Fault::Untested(Reclaim(Generation)),
    Fault::Untested(Reclaim(ExpiresAt)),
    Fault::Untested(Reclaim(LeaseUntil)),
    Fault::Untested(TakeOver(OwnerField)),
    Fault::Untested(TakeOver(Generation)),
    Fault::Untested(TakeOver(LockAcquiredAt)),
    Fault::Untested(TakeOver(LeaseUntil)),
    Fault::Untested(Settle(Status)),
    Fault::Untested(Settle(OwnerField)),
    Fault::Untested(Settle(Generation)),
    Fault::Untested(Extend(Status)),
    Fault::Untested(Extend(OwnerField)),
    Fault::Untested(Extend(Generation)),
    Fault::Untested(Extend(LeaseUntil)),
    Fault::Untested(ConcludeAbsent),
    Fault::Untested(Conclude(Status)),
    Fault::Untested(Conclude(OwnerField)),
    Fault::Untested(Conclude(Generation)),
    Fault::Untested(Conclude(LockAcquiredAt)),
    Fault::Untested(Conclude(LeaseUntil)),
    Fault::Untested(Conclude(ExpiresAt)),
    Fault::Untested(Resolve(Status)),
    Fault::Untested(Resolve(OwnerField)),
    Fault::Untested(Resolve(Generation)),
    Fault::Untested(Resolve(LockAcquiredAt)),
    Fault::Untested(Resolve(LeaseUntil)),
    Fault::Untested(Resolve(ExpiresAt)),
    Fault::NotOlder(Reclaim(Generation)),
    Fault::NotOlder(Reclaim(ExpiresAt)),
    Fault::NotOlder(Reclaim(LeaseUntil)),
    Fault::NotOlder(TakeOver(Generation)),
    Fault::NotOlder(TakeOver(LockAcquiredAt)),
    Fault::NotOlder(TakeOver(LeaseUntil)),
    Fault::NotOlder(Settle(Generation)),
    Fault::NotOlder(Extend(Generation)),
    Fault::NotOlder(Extend(LeaseUntil)),
    Fault::NotOlder(Conclude(Generation)),
    Fault::NotOlder(Conclude(LockAcquiredAt)),
    Fault::NotOlder(Conclude(LeaseUntil)),
    Fault::NotOlder(Conclude(ExpiresAt)),
    Fault::NotOlder(Resolve(Generation)),
    Fault::NotOlder(Resolve(LockAcquiredAt)),
    Fault::NotOlder(Resolve(LeaseUntil)),
    Fault::NotOlder(Resolve(ExpiresAt)),
    Fault::Overtested(Reclaim(LockAcquiredAt)),
    Fault::Overtested(TakeOver(ExpiresAt)),
    Fault::Overtested(Extend(ExpiresAt)),
    Fault::LateExtensionRefused,
    Fault::ExtensionKeepsExpiry,
    Fault::ExtensionKeepsLaterExpiry,
    Fault::ExtensionKeepsLease,
    Fault::ExtensionCounts,
    Fault::ExtensionLosesRequestId,
    Fault::LeasesAreTexts,
    Fault::LeasesAreFloats,
    Fault::LeasesAreSigned,
    Fault::VersionsAreFloats,
    Fault::ConclusionTakesAbsent,
    Fault::OmittedConclusionIsUnfenced,
    Fault::ConclusionKeepsRequestId,
    Fault::ConclusionKeepsFingerprint,
    Fault::ConclusionKeepsAttempt,
    Fault::ConclusionKeepsLock,
    Fault::ConclusionKeepsExpiry,
    Fault::ConclusionIsCompletion,
    Fault::ConclusionKeepsOutcome,
    Fault::ConclusionLosesLease,
    Fault::OmittedIsUnfenced,
    Fault::PartsAreUnfenced,
    Fault::ResolveKeepsOwner,
    Fault::ResolveKeepsGeneration,
    Fault::ResolveKeepsOutcome,
    Fault::NamelessIsUnfenced,
    Fault::NotAtomic,
    Fault::RefusedIsMade,
    Fault::RefusedTouches,
    Fault::RefusedShowsOld,
    Fault::RefusedShowsNothing,
    Fault::AppliedIsRefused,
    Fault::RefusedIsError,
    Fault::ReadsLag,
    Fault::ExpiredReadsAbsent,
    Fault::ExpiredIsAbsent,
    Fault::StaleIsAbsent,
    Fault::LateSettlementRefused,
    Fault::Lost(Attempt),
    Fault::Lost(Fingerprint),
    Fault::Lost(LockAcquiredAt),
    Fault::Lost(RequestId),
    Fault::Lost(ExpiresAt),
    Fault::Lost(Interrupted),
    Fault::EmptyRequestIdLost,
    Fault::Floats,
    Fault::Signed,
    Fault::LeaseInSeconds,
    Fault::OutcomeCut,
    Fault::EmptyIsOmitted,
    Fault::FailureIsCompletion,
    Fault::TakeOverKeepsRequestId,
    Fault::TakeOverWritesFingerprint,
    Fault::ReclaimLeavesOutcome,
    Fault::NoExpiryMatchesAny,
    Fault::AnyExpiryMatchesNone,
    Fault::NoExpiryMatchesNothing,
    Fault::NoExpiryIsZero,
    Fault::NoExpiryIsTheLast,
    Fault::NoExpiryReadsAbsent,
    Fault::TakeOverKeepsExpiry,
    Fault::TakeOverKeepsInterrupted,
    Fault::ExtensionOnlyMovesExpiry,
    Fault::ExtensionForgetsInterrupted,
    Fault::ConclusionKeepsInterrupted,
    Fault::ReleaseMovesExpiry,
    Fault::ReleaseKeepsExpiry,
    Fault::ReleaseKeepsInterrupted,
    Fault::ReleaseOnlySetsInterrupted,
    Fault::ReleaseKeepsLease,
    Fault::SettlementForgetsInterrupted,
    Fault::SettlementKeepsExpiry,
    Fault::KeysCut,
    Fault::KeysFolded,
    Fault::KeysTrimmed,
    Fault::PartsOfOwnersMixed,
    Fault::PartsOfKeysMixed,
    Fault::PartsMissingLeftOut,
    Fault::PartsUnlimited,
    Fault::PartsCut,
    Fault::PartsSmall,
    Fault::PartsAreRecords,
    Fault::PartsGoWithCompletion,
];

async fn failed_cases(fault: Fault) -> Vec<Failure> {
    conformance::failures(&Faulty::new(fault)).await
}

#[tokio::test]
async fn correct_stores_pass() {
    assert_eq!(failed_cases(Fault::None).await, []);
    prove(Arc::new(Faulty::new(Fault::None)), 2000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_and_faults_cover_each_other() {
    let mut runs = JoinSet::new();
    for fault in FAULTS {
        runs.spawn(async move { (fault, failed_cases(*fault).await) });
    }
    let mut useful = HashSet::new();
    while let Some(run) = runs.join_next().await {
        let (fault, failures) = run.unwrap();
        assert!(!failures.is_empty(), "no case found {fault:?}");
        for prefix in own_cases(*fault) {
            let found = failures.iter().any(|failure| failure.case.starts_with(prefix));
            assert!(found, "{prefix} didn't find {fault:?}");
        }
        useful.extend(failures.into_iter().map(|failure| failure.case));
    }
    let idle: Vec<_> = conformance::cases().filter(|case| !useful.contains(case)).collect();
    assert_eq!(idle, [""; 0], "these cases find no fault");
}

const OPERATORS: &[&str] = &["an operator's completion", "an operator's failure", "an operator's release"];

const CONCLUSIONS: &[&str] = &[
    "a conclusion to COMPLETED",
    "a conclusion to FAILED",
    "a conclusion to RELEASED",
    "a conclusion to STARTED",
];

/// Returns the suite's cases that must each find this fault in a transition's conditions.
fn own_cases(fault: Fault) -> &'static [&'static str] {
    match fault {
        Fault::Untested(condition) | Fault::NotOlder(condition) | Fault::Overtested(condition) => {
            match condition {
                ClaimAbsent => &["T1"],
                Reclaim(_) => &["T2"],
                TakeOver(_) => &["T3"],
                Settle(_) => &["T4", "T5", "T6"],
                Extend(_) => &["T7: an extension of the lease"],
                ConcludeAbsent | Conclude(_) => CONCLUSIONS,
                Resolve(_) => OPERATORS,
            }
        }
        Fault::ResolveKeepsOwner | Fault::ResolveKeepsGeneration | Fault::ResolveKeepsOutcome => OPERATORS,
        Fault::ExtensionKeepsExpiry
        | Fault::ExtensionKeepsLaterExpiry
        | Fault::ExtensionKeepsLease
        | Fault::ExtensionCounts
        | Fault::ExtensionLosesRequestId => &["T7: an extension of the lease"],
        Fault::LeasesAreTexts | Fault::LeasesAreFloats | Fault::LeasesAreSigned => {
            &["T7: leases are compared as numbers"]
        }
        Fault::VersionsAreFloats => &["versions differ"],
        Fault::ConclusionTakesAbsent
        | Fault::ConclusionKeepsRequestId
        | Fault::ConclusionKeepsFingerprint
        | Fault::ConclusionKeepsAttempt
        | Fault::ConclusionKeepsLock => CONCLUSIONS,
        Fault::OmittedConclusionIsUnfenced => &["a conclusion to COMPLETED", "a conclusion to FAILED"],
        Fault::ConclusionIsCompletion => &["a conclusion to FAILED", "a conclusion round-trips"],
        Fault::ConclusionKeepsOutcome => {
            &["a conclusion to COMPLETED", "a conclusion to RELEASED", "a conclusion removes"]
        }
        Fault::ConclusionLosesLease => &["a conclusion to STARTED"],
        Fault::OmittedIsUnfenced | Fault::PartsAreUnfenced => &["T4", "T5"],
        Fault::NamelessIsUnfenced => &["T3"],
        // A takeover doesn't test the expiry, and T4 to T7 don't name one.
        Fault::NoExpiryMatchesAny | Fault::AnyExpiryMatchesNone => {
            &["T2", "a conclusion to COMPLETED", "an operator's release"]
        }
        Fault::NoExpiryMatchesNothing => &["T2", "a conclusion to STARTED", "an operator's completion"],
        Fault::NoExpiryIsZero => &["versions differ"],
        Fault::NoExpiryIsTheLast | Fault::NoExpiryReadsAbsent => &["T1", "a lock round-trips"],
        Fault::TakeOverKeepsExpiry | Fault::TakeOverKeepsInterrupted => &["T3"],
        Fault::ExtensionOnlyMovesExpiry => &["T7: an extension of the lease", "a claim without an expiry"],
        Fault::ExtensionForgetsInterrupted => &["T7: an extension of the lease", "an interrupted attempt"],
        Fault::ConclusionKeepsInterrupted => &["an interrupted attempt", "a conclusion removes"],
        Fault::ReleaseKeepsExpiry => &["T6", "an operator's release", "a settled record has no lease"],
        Fault::ReleaseKeepsInterrupted | Fault::ReleaseOnlySetsInterrupted => {
            &["T6", "an operator's release", "an interrupted attempt"]
        }
        Fault::SettlementForgetsInterrupted => &["T4", "T5", "an interrupted attempt"],
        _ => &[],
    }
}

#[tokio::test]
async fn findings_name_write_field_and_expectation() {
    let failures = failed_cases(Fault::Untested(Settle(Generation))).await;
    let found = failures.iter().find(|failure| failure.case.starts_with("T4")).unwrap().to_string();
    assert!(
        found.starts_with("T4: a completion: Complete on Started, different in Generation(1): "),
        "{found}"
    );
    assert!(found.contains("a settlement to COMPLETED"), "{found}");
    assert!(found.contains("should have been refused because of Record {"), "{found}");

    let failures = failed_cases(Fault::Lost(RequestId)).await;
    let expected = "should have request_id = Some(\"second-invocation\"), but has None";
    assert!(failures.iter().any(|failure| failure.finding.contains(expected)), "{failures:#?}");
}

#[tokio::test]
async fn check_lists_every_failed_case() {
    let store = Faulty::new(Fault::PartsUnlimited);
    let panic = tokio::spawn(async move { conformance::check(&store).await }).await.unwrap_err();
    let message = panic.into_panic().downcast::<String>().unwrap();
    assert!(message.starts_with("1 of "), "{message}");
    assert!(message.contains("chunks over the limit are an error: reading 700,000 bytes"), "{message}");
}

#[tokio::test]
async fn differential_findings_are_reproducible() {
    let mut messages = Vec::new();
    for _ in 0..2 {
        let store = Faulty::new(Fault::Untested(TakeOver(LockAcquiredAt)));
        let run = tokio::spawn(async move { conformance::differential(&store, 7, 5000).await });
        messages.push(*run.await.unwrap_err().into_panic().downcast::<String>().unwrap());
    }
    let [one, other] = messages.as_slice() else { panic!() };
    assert!(one.starts_with("seed 7, after "), "{one}");
    assert!(one.contains("operations on this key:\n  "), "{one}");
    // Two runs have different times but the same operations.
    let shape = |message: &str| message.split(',').next().map(str::len).zip(Some(message.lines().count()));
    assert_eq!(shape(one), shape(other), "{one}\n{other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contention_finds_non_atomic_writes() {
    let store = Arc::new(Faulty::new(Fault::NotAtomic));
    let run = tokio::spawn(async move { conformance::check_contention(store, 32, 20).await });
    let message = *run.await.unwrap_err().into_panic().downcast::<String>().unwrap();
    assert!(message.starts_with("contention, 32 tasks, round "), "{message}");
    assert!(message.contains("were applied instead of one"), "{message}");
}

/// Checks that the list above leaves out no condition.
#[test]
fn every_condition_has_its_fault() {
    let untested: Vec<Condition> = FAULTS
        .iter()
        .filter_map(|fault| if let Fault::Untested(condition) = fault { Some(*condition) } else { None })
        .collect();
    // T1 has one condition, T2 five, and T3 five, of which one is implied. T4 to T6 have three. T7 has those and the
    // order of the leases. A conclusion has all six, or that there's no record. An operator's write has all six.
    assert_eq!(untested.len(), 1 + 5 + 4 + 3 + 4 + 7 + 6);
}
