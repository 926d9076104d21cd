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
        CachedPerHandle,
        Condition::{
            self, ClaimAbsent, Conclude, ConcludeAbsent, Extend, Reclaim, Resolve, Settle, TakeOver,
        },
        Faulty,
        Field::{
            Attempt, ExpiresAt, Fingerprint, Generation, Interrupted, LeaseUntil, LockAcquiredAt,
            Owner as OwnerField, RequestId, Status,
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
            "id:PK,status:state,owner:a.b,generation:value,lock_acquired_at:lock-acquired,lease_until:{},\
             expires_at:ttl,fingerprint:hash,attempt:count,response:data,response_encoding:#encoding,\
             response_length::length,response_sha256:größe,request_id:key,interrupted:boolean,version:0",
            "x".repeat(255)
        );
        prove_as(|builder| builder.attributes(&names).unwrap().sort_key("SK").inline_limit(1024)).await;
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
        prove(&[Arc::new(InTransactions { store, pool })], 1000).await;
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

/// Every sabotage of the faulty store, except `Untested(TakeOver(Status))`. No case can find that sabotage: a settled
/// record has no lease, so the takeover's condition on the lease fails anyway.
const FAULTS: &[Sabotage] = &[
    Sabotage::Untested(ClaimAbsent),
    Sabotage::Untested(Reclaim(Status)),
    Sabotage::Untested(Reclaim(OwnerField)),
    Sabotage::Untested(Reclaim(Generation)),
    Sabotage::Untested(Reclaim(ExpiresAt)),
    Sabotage::Untested(Reclaim(LeaseUntil)),
    Sabotage::Untested(TakeOver(OwnerField)),
    Sabotage::Untested(TakeOver(Generation)),
    Sabotage::Untested(TakeOver(LockAcquiredAt)),
    Sabotage::Untested(TakeOver(LeaseUntil)),
    Sabotage::Untested(Settle(Status)),
    Sabotage::Untested(Settle(OwnerField)),
    Sabotage::Untested(Settle(Generation)),
    Sabotage::Untested(Extend(Status)),
    Sabotage::Untested(Extend(OwnerField)),
    Sabotage::Untested(Extend(Generation)),
    Sabotage::Untested(Extend(LeaseUntil)),
    Sabotage::Untested(ConcludeAbsent),
    Sabotage::Untested(Conclude(Status)),
    Sabotage::Untested(Conclude(OwnerField)),
    Sabotage::Untested(Conclude(Generation)),
    Sabotage::Untested(Conclude(LockAcquiredAt)),
    Sabotage::Untested(Conclude(LeaseUntil)),
    Sabotage::Untested(Conclude(ExpiresAt)),
    Sabotage::Untested(Resolve(Status)),
    Sabotage::Untested(Resolve(OwnerField)),
    Sabotage::Untested(Resolve(Generation)),
    Sabotage::Untested(Resolve(LockAcquiredAt)),
    Sabotage::Untested(Resolve(LeaseUntil)),
    Sabotage::Untested(Resolve(ExpiresAt)),
    Sabotage::NotOlder(Reclaim(Generation)),
    Sabotage::NotOlder(Reclaim(ExpiresAt)),
    Sabotage::NotOlder(Reclaim(LeaseUntil)),
    Sabotage::NotOlder(TakeOver(Generation)),
    Sabotage::NotOlder(TakeOver(LockAcquiredAt)),
    Sabotage::NotOlder(TakeOver(LeaseUntil)),
    Sabotage::NotOlder(Settle(Generation)),
    Sabotage::NotOlder(Extend(Generation)),
    Sabotage::NotOlder(Extend(LeaseUntil)),
    Sabotage::NotOlder(Conclude(Generation)),
    Sabotage::NotOlder(Conclude(LockAcquiredAt)),
    Sabotage::NotOlder(Conclude(LeaseUntil)),
    Sabotage::NotOlder(Conclude(ExpiresAt)),
    Sabotage::NotOlder(Resolve(Generation)),
    Sabotage::NotOlder(Resolve(LockAcquiredAt)),
    Sabotage::NotOlder(Resolve(LeaseUntil)),
    Sabotage::NotOlder(Resolve(ExpiresAt)),
    Sabotage::Overtested(Reclaim(LockAcquiredAt)),
    Sabotage::Overtested(TakeOver(ExpiresAt)),
    Sabotage::Overtested(Extend(ExpiresAt)),
    Sabotage::LateExtensionRefused,
    Sabotage::ExtensionKeepsExpiry,
    Sabotage::ExtensionKeepsLaterExpiry,
    Sabotage::ExtensionKeepsLease,
    Sabotage::ExtensionCounts,
    Sabotage::ExtensionLosesRequestId,
    Sabotage::LeasesAreTexts,
    Sabotage::LeasesAreFloats,
    Sabotage::LeasesAreSigned,
    Sabotage::VersionsAreFloats,
    Sabotage::ConclusionTakesAbsent,
    Sabotage::OmittedConclusionIsUnfenced,
    Sabotage::ConclusionKeepsRequestId,
    Sabotage::ConclusionKeepsFingerprint,
    Sabotage::ConclusionKeepsAttempt,
    Sabotage::ConclusionKeepsLock,
    Sabotage::ConclusionKeepsExpiry,
    Sabotage::ConclusionIsCompletion,
    Sabotage::ConclusionKeepsOutcome,
    Sabotage::ConclusionLosesLease,
    Sabotage::OmittedIsUnfenced,
    Sabotage::PartsAreUnfenced,
    Sabotage::ResolveKeepsOwner,
    Sabotage::ResolveKeepsGeneration,
    Sabotage::ResolveKeepsOutcome,
    Sabotage::NamelessIsUnfenced,
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
    Sabotage::TakeOverKeepsRequestId,
    Sabotage::TakeOverWritesFingerprint,
    Sabotage::ReclaimLeavesOutcome,
    Sabotage::NoExpiryMatchesAny,
    Sabotage::AnyExpiryMatchesNone,
    Sabotage::NoExpiryMatchesNothing,
    Sabotage::NoExpiryIsZero,
    Sabotage::NoExpiryIsTheLast,
    Sabotage::NoExpiryReadsAbsent,
    Sabotage::TakeOverKeepsExpiry,
    Sabotage::TakeOverKeepsInterrupted,
    Sabotage::ExtensionOnlyMovesExpiry,
    Sabotage::ExtensionForgetsInterrupted,
    Sabotage::ConclusionKeepsInterrupted,
    Sabotage::ReleaseMovesExpiry,
    Sabotage::ReleaseKeepsExpiry,
    Sabotage::ReleaseKeepsInterrupted,
    Sabotage::ReleaseOnlySetsInterrupted,
    Sabotage::ReleaseKeepsLease,
    Sabotage::SettlementForgetsInterrupted,
    Sabotage::SettlementKeepsExpiry,
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
    let mut useful = HashSet::new();
    while let Some(run) = runs.join_next().await {
        let (sabotage, failures) = run.unwrap();
        assert!(!failures.is_empty(), "no case found the sabotage {sabotage:?}");
        for prefix in own_cases(*sabotage) {
            let found = failures.iter().any(|failure| failure.case.starts_with(prefix));
            assert!(found, "no case `{prefix}…` found the sabotage {sabotage:?}");
        }
        useful.extend(failures.into_iter().map(|failure| failure.case));
    }
    let idle: Vec<_> = conformance::cases().filter(|case| !useful.contains(case)).collect();
    assert_eq!(idle, [""; 0], "these cases find no sabotage");
}

const OPERATORS: &[&str] = &["an operator's completion", "an operator's failure", "an operator's release"];

const CONCLUSIONS: &[&str] = &[
    "a conclusion to COMPLETED",
    "a conclusion to FAILED",
    "a conclusion to RELEASED",
    "a conclusion to STARTED",
];

/// Returns prefixes of case names. For each prefix, a case whose name begins with it must find this sabotage.
fn own_cases(sabotage: Sabotage) -> &'static [&'static str] {
    match sabotage {
        Sabotage::Untested(condition) | Sabotage::NotOlder(condition) | Sabotage::Overtested(condition) => {
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
        Sabotage::ResolveKeepsOwner | Sabotage::ResolveKeepsGeneration | Sabotage::ResolveKeepsOutcome => {
            OPERATORS
        }
        Sabotage::ExtensionKeepsExpiry
        | Sabotage::ExtensionKeepsLaterExpiry
        | Sabotage::ExtensionKeepsLease
        | Sabotage::ExtensionCounts
        | Sabotage::ExtensionLosesRequestId => &["T7: an extension of the lease"],
        Sabotage::LeasesAreTexts | Sabotage::LeasesAreFloats | Sabotage::LeasesAreSigned => {
            &["T7: leases are compared as numbers"]
        }
        Sabotage::VersionsAreFloats => &["versions are compared"],
        Sabotage::ConclusionTakesAbsent
        | Sabotage::ConclusionKeepsRequestId
        | Sabotage::ConclusionKeepsFingerprint
        | Sabotage::ConclusionKeepsAttempt
        | Sabotage::ConclusionKeepsLock => CONCLUSIONS,
        Sabotage::OmittedConclusionIsUnfenced => &["a conclusion to COMPLETED", "a conclusion to FAILED"],
        Sabotage::ConclusionIsCompletion => &["a conclusion to FAILED", "a conclusion round-trips"],
        Sabotage::ConclusionKeepsOutcome => {
            &["a conclusion to COMPLETED", "a conclusion to RELEASED", "a conclusion removes"]
        }
        Sabotage::ConclusionLosesLease => &["a conclusion to STARTED"],
        Sabotage::LargeOutcomeCut | Sabotage::LargeOutcomeRejected => &["a large response"],
        Sabotage::DroppedAnswersStay => &["dropped calls"],
        Sabotage::OmittedIsUnfenced | Sabotage::PartsAreUnfenced => &["T4", "T5"],
        Sabotage::NamelessIsUnfenced => &["T3"],
        // T3 to T7 don't test the expiry, so their cases can't find these two sabotages.
        Sabotage::NoExpiryMatchesAny | Sabotage::AnyExpiryMatchesNone => {
            &["T2", "a conclusion to COMPLETED", "an operator's release"]
        }
        Sabotage::NoExpiryMatchesNothing => &["T2", "a conclusion to STARTED", "an operator's completion"],
        Sabotage::NoExpiryIsZero => &["versions are compared"],
        Sabotage::NoExpiryIsTheLast | Sabotage::NoExpiryReadsAbsent => &["T1", "a lock round-trips"],
        Sabotage::TakeOverKeepsExpiry | Sabotage::TakeOverKeepsInterrupted => &["T3"],
        Sabotage::ExtensionOnlyMovesExpiry => &["T7: an extension of the lease", "a claim without an expiry"],
        Sabotage::ExtensionForgetsInterrupted => &["T7: an extension of the lease", "an interrupted attempt"],
        Sabotage::ConclusionKeepsInterrupted => &["an interrupted attempt", "a conclusion removes"],
        Sabotage::ReleaseKeepsExpiry => &["T6", "an operator's release", "a settled record has no lease"],
        Sabotage::ReleaseKeepsInterrupted | Sabotage::ReleaseOnlySetsInterrupted => {
            &["T6", "an operator's release", "an interrupted attempt"]
        }
        Sabotage::SettlementForgetsInterrupted => &["T4", "T5", "an interrupted attempt"],
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
    let failures = failed_cases(Sabotage::Untested(Settle(Generation))).await;
    let found = failures.iter().find(|failure| failure.case.starts_with("T4")).unwrap().to_string();
    assert!(
        found.starts_with("T4: a completion: Complete on Started, different in Generation(1): "),
        "{found}"
    );
    assert!(found.contains("a settlement to COMPLETED"), "{found}");
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
        let store = Faulty::new(Sabotage::Untested(TakeOver(LockAcquiredAt)));
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

/// Checks that [`FAULTS`] has an `Untested` sabotage for each condition, except the one that the comment on `FAULTS`
/// excludes.
#[test]
fn every_condition_has_its_sabotage() {
    let untested: Vec<Condition> = FAULTS
        .iter()
        .filter_map(
            |sabotage| if let Sabotage::Untested(condition) = sabotage { Some(*condition) } else { None },
        )
        .collect();
    // T1 has one condition, and T2 has five. T3 has five too, but `FAULTS` leaves out the one on the status. T4 to T6
    // share three.
    // T7 has the same three, and a fourth: the new lease ends later than the old one. A conclusion has six if it
    // expects a record, and one if it expects none. An operator's write has six.
    assert_eq!(untested.len(), 1 + 5 + 4 + 3 + 4 + 7 + 6);
}
