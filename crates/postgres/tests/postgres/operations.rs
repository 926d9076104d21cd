//! Operations that commit their work and their record in one transaction: `begin_in` and `run_in`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lambda_idempotency::{
    Begun, ErrorKind, Fingerprint, Idempotency, Invocation, Key, RunError, Settled, StoredKey,
    settings::{Execution, Mode},
    store::{
        CallerTransactions as _, Status, Store as _, StoreErrorKind,
        postgres::{
            PostgresStore,
            tokio_postgres::{Client, Error, NoTls, Transaction},
        },
    },
    time::{Clock as _, system_clock},
};
use lambda_idempotency_testing::Fault;

use testkit::clock::SetClock;

use super::{
    fixtures::{Server, fresh_table, patient, server},
    wire::Wire,
};

/// The statement timeout. It's this long because a busy machine may pause a process for almost as long.
const STATEMENT: Duration = Duration::from_secs(8);

/// A store with its `Idempotency`, and a table of orders.
pub(super) struct Shop {
    server: &'static Server,
    pub(super) store: PostgresStore,
    idempotency: Idempotency,
    pub(super) orders: String,
}

impl Shop {
    pub(super) async fn new(server: &'static Server) -> Self {
        Self::over(server, server.port()).await
    }

    /// Creates the tables, and connects the store to `port`: the server's own port, or a proxy's.
    async fn over(server: &'static Server, port: u16) -> Self {
        let table = fresh_table();
        let builder = patient(PostgresStore::builder(server.url_at(port))).table(&table);
        let store = builder.statement_timeout(STATEMENT).lock_timeout(STATEMENT / 2).build().unwrap();
        store.create_table().await.unwrap();
        let orders = format!("{table}_orders");
        server.client().await.batch_execute(&format!("CREATE TABLE {orders} (n int)")).await.unwrap();
        let idempotency = Idempotency::builder(store.clone()).function("shop").build().unwrap();
        Self { server, store, idempotency, orders }
    }

    pub(super) async fn insert(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        transaction.batch_execute(&format!("INSERT INTO {} VALUES (1)", self.orders)).await
    }

    /// Places an order.
    pub(super) async fn place(
        &self,
        client: &mut Client,
        key: &str,
        payload: &str,
    ) -> Result<String, RunError<Error>> {
        let place = async |transaction: &Transaction<'_>| {
            self.insert(transaction).await?;
            Ok(format!("placed {key}"))
        };
        self.operation().run_in(&self.store, client, &Key::new(key).unwrap(), payload, place).await
    }

    pub(super) fn operation(&self) -> lambda_idempotency::Operation {
        self.idempotency.operation("place").unwrap()
    }

    pub(super) async fn placed(&self) -> i64 {
        let count = format!("SELECT count(*) FROM {}", self.orders);
        self.server.client().await.query_one(&count, &[]).await.unwrap().get(0)
    }

    pub(super) fn stored(&self, key: &str) -> StoredKey {
        self.operation().stored_key(&Key::new(key).unwrap())
    }
}

pub(super) fn kind<T>(result: Result<T, RunError<Error>>) -> ErrorKind {
    match result {
        Err(RunError::Idempotency(error)) => error.kind(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the operation succeeded"),
    }
}

#[tokio::test]
async fn operations_run_once_and_are_replayed() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    for _ in 0..3 {
        assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a");
    }
    assert_eq!(shop.placed().await, 1);
    assert_eq!(kind(shop.place(&mut client, "a", "13").await), ErrorKind::Mismatch);
    assert_eq!(shop.place(&mut client, "b", "12").await.unwrap(), "placed b");
    assert_eq!(shop.placed().await, 2);
    // A plain `run` finds the same record.
    let again: String = shop
        .operation()
        .run(Key::new("a").unwrap(), "12", async || Err(std::io::Error::other("the handler ran")))
        .await
        .unwrap();
    assert_eq!(again, "placed a");
}

/// In the modes off and shadow, every delivery commits its work, even while another delivery of the same key is
/// running. A failed delivery is rolled back.
#[tokio::test]
async fn transactions_stay_atomic_without_enforcement() {
    let server = server!();
    for mode in [Mode::Off, Mode::Shadow] {
        let shop = Shop::new(server).await;
        let idempotency = shop.idempotency.with_settings(|settings| settings.mode = mode).unwrap();
        let shop = Shop { idempotency, ..shop };
        let (mut client, mut other) = (server.client().await, server.client().await);
        for placed in 1..=2 {
            assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a");
            assert_eq!(shop.placed().await, placed, "{mode:?}");
        }
        let failing = async |transaction: &Transaction<'_>| {
            shop.insert(transaction).await?;
            transaction.batch_execute("SELECT 1 / 0").await
        };
        let (operation, key) = (shop.operation(), Key::new("f").unwrap());
        let failed = operation.run_in(&shop.store, &mut client, &key, "12", failing);
        assert!(matches!(failed.await, Err(RunError::Handler(_))));
        assert_eq!(shop.placed().await, 2, "{mode:?}");
        // This handler ignores a failed statement. On COMMIT, PostgreSQL would roll back without an error.
        let hiding = async |transaction: &Transaction<'_>| {
            shop.insert(transaction).await?;
            let failed = transaction.batch_execute("SELECT 1 / 0").await;
            Ok::<_, Error>(failed.is_err())
        };
        let key = Key::new("g").unwrap();
        let hidden = operation.run_in(&shop.store, &mut client, &key, "12", hiding).await;
        assert_eq!(kind(hidden), ErrorKind::Invalid, "{mode:?}");
        assert_eq!(shop.placed().await, 2, "{mode:?}");
        let recorded = async || {
            let records = shop.store.scan(None).await.unwrap().records;
            let shadows = records.iter().filter(|(key, _)| key.as_str().contains("~shadow#")).count();
            (records.len(), shadows)
        };
        let expected = if mode == Mode::Off { (0, 0) } else { (2, 2) };
        let mut placed = 2;
        // In shadow mode, a delivery waits at most 100 ms for the store. If that's too short on a busy machine, the
        // record is missing, and the next delivery tries again.
        for _ in 0..20 {
            // Two concurrent deliveries call `begin_in`.
            let (one, two) = (client.transaction().await.unwrap(), other.transaction().await.unwrap());
            for transaction in [&one, &two] {
                let (key, fingerprint) = (Key::new("h").unwrap(), Fingerprint::of("12").unwrap());
                let begun = operation.begin_in(&shop.store, transaction, &key, fingerprint);
                let Begun::Claimed(begun) = begun.await.unwrap() else { panic!("{mode:?}: a replay") };
                shop.insert(transaction).await.unwrap();
                assert!(matches!(begun.complete("x").await.unwrap(), Settled::Recorded));
            }
            one.commit().await.unwrap();
            two.commit().await.unwrap();
            placed += 2;
            assert_eq!(shop.placed().await, placed, "{mode:?}");
            if recorded().await == expected {
                break;
            }
            assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a");
            placed += 1;
        }
        assert_eq!(recorded().await, expected, "{mode:?}");
    }
}

#[tokio::test]
async fn failed_or_dropped_operations_write_nothing() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    let key = Key::new("a").unwrap();
    let failing = async |transaction: &Transaction<'_>| {
        shop.insert(transaction).await?;
        transaction.batch_execute("SELECT 1 / 0").await
    };
    let operation = shop.operation();
    let failed = operation.run_in(&shop.store, &mut client, &key, "12", failing).await;
    assert!(matches!(failed, Err(RunError::Handler(_))), "{failed:?}");
    let never = async |transaction: &Transaction<'_>| {
        shop.insert(transaction).await?;
        std::future::pending::<Result<(), Error>>().await
    };
    let dropped = operation.run_in(&shop.store, &mut client, &key, "12", never);
    assert!(tokio::time::timeout(Duration::from_millis(200), dropped).await.is_err());
    assert_eq!((shop.placed().await, shop.store.read(&shop.stored("a")).await.unwrap()), (0, None));
    assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a");
    assert_eq!(shop.placed().await, 1);
}

/// A duplicate waits neither for the uncommitted row nor for the key's lock.
#[tokio::test]
async fn concurrent_duplicates_are_in_progress_immediately() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut one, mut other) = (server.client().await, server.client().await);
    let transaction = one.transaction().await.unwrap();
    let fingerprint = Fingerprint::of("12").unwrap();
    let key = Key::new("a").unwrap();
    let begun = shop.operation().begin_in(&shop.store, &transaction, &key, fingerprint).await;
    let Begun::Claimed(operation) = begun.unwrap() else { panic!("the key has an outcome") };
    shop.insert(&transaction).await.unwrap();
    let is_at_once = Instant::now();
    assert_eq!(kind(shop.place(&mut other, "a", "12").await), ErrorKind::InProgress);
    assert!(matches!(operation.complete("\"by hand\"").await.unwrap(), Settled::Recorded));
    assert_eq!(kind(shop.place(&mut other, "a", "12").await), ErrorKind::InProgress);
    assert!(is_at_once.elapsed() < STATEMENT, "{:?}", is_at_once.elapsed());
    transaction.commit().await.unwrap();
    assert_eq!(shop.place(&mut other, "a", "12").await.unwrap(), "by hand");
    assert_eq!(shop.placed().await, 1);
}

/// The work ends within the answer reserve. The library still writes the record, and commits it together with the work.
#[tokio::test]
async fn late_work_is_still_committed() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (reserve, left) = (Duration::from_secs(16), Duration::from_secs(24));
    let builder =
        Idempotency::builder(shop.store.clone()).function("shop").settings(|s| s.answer_reserve = reserve);
    let (mut client, key) = (server.client().await, Key::new("a").unwrap());
    let now = system_clock().now();
    let invocation = Invocation::entered(now, now.saturating_add(left), "r");
    let operation = builder.build().unwrap().for_invocation(invocation).operation("place").unwrap();
    let place = async |transaction: &Transaction<'_>| {
        system_clock().sleep(left - reserve + Duration::from_millis(100)).await;
        shop.insert(transaction).await
    };
    let placed: Result<(), _> = operation.run_in(&shop.store, &mut client, &key, "12", place).await;
    placed.unwrap();
    assert_eq!(shop.placed().await, 1);
}

/// The handler of an at-most-once operation runs an inner operation. The inner operation is refused, and the handler
/// returns that refusal. The library then releases the outer key.
#[tokio::test]
async fn inner_refusals_release_at_most_once_keys() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut one, mut other) = (server.client().await, server.client().await);
    let transaction = one.transaction().await.unwrap();
    let (fingerprint, key) = (Fingerprint::of("12").unwrap(), Key::new("a").unwrap());
    let held = shop.operation().begin_in(&shop.store, &transaction, &key, fingerprint).await.unwrap();
    let builder = Idempotency::builder(shop.store.clone()).function("shop");
    let once = builder.execution(Execution::AtMostOnce).build().unwrap().operation("around").unwrap();
    let around = Key::new("around").unwrap();
    let place = async || shop.place(&mut other, "a", "12").await.map_err(Box::new);
    let refused: Result<String, _> = once.run(around.clone(), "12", place).await;
    assert!(refused.is_err());
    let record = shop.store.read(&once.stored_key(&around)).await.unwrap().unwrap();
    assert_eq!(record.status(), Status::Released);
    drop(held);
}

/// The key's lock alone wouldn't refuse an operation inside itself: PostgreSQL lets a transaction take its own lock
/// again, and an inner operation without a transaction takes no lock.
#[tokio::test]
async fn operation_inside_itself_is_refused() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut client, mut other) = (server.client().await, server.client().await);
    let (operation, key) = (shop.operation(), Key::new("a").unwrap());
    let place = async |transaction: &Transaction<'_>| {
        let fingerprint = Fingerprint::of("12").unwrap();
        let inside = operation.begin_in(&shop.store, transaction, &key, fingerprint).await.unwrap_err();
        assert!(inside.to_string().contains("inside the same operation"), "{inside}");
        let claimed = Box::pin(operation.begin(&key, fingerprint)).await.unwrap_err();
        let beside = kind(Box::pin(shop.place(&mut other, "a", "12")).await);
        assert_eq!([inside.kind(), claimed.kind(), beside], [ErrorKind::Invalid; 3]);
        assert_eq!(Box::pin(shop.place(&mut other, "b", "12")).await.unwrap(), "placed b");
        shop.insert(transaction).await?;
        Ok::<_, Error>("placed a".to_owned())
    };
    assert_eq!(operation.run_in(&shop.store, &mut client, &key, "12", place).await.unwrap(), "placed a");
    assert_eq!(shop.placed().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_deliveries_have_one_effect() {
    let server = server!();
    let shop = Arc::new(Shop::new(server).await);
    for round in 0..10 {
        let done = Arc::new(AtomicU32::new(0));
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (shop, done) = (Arc::clone(&shop), Arc::clone(&done));
            runs.spawn(async move {
                let mut client = shop.server.client().await;
                loop {
                    match shop.place(&mut client, &format!("round-{round}"), "12").await {
                        Ok(_) => break done.fetch_add(1, Ordering::SeqCst),
                        Err(error) => assert_eq!(kind::<()>(Err(error)), ErrorKind::InProgress),
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        }
        while let Some(run) = runs.join_next().await {
            run.unwrap();
        }
        assert_eq!((done.load(Ordering::SeqCst), shop.placed().await), (8, round + 1));
    }
}

/// Two functions with their own tables in one database don't block each other, even if their keys are equal. But two
/// stores share the lock of a key if one names the table with its schema, and the other without it.
#[tokio::test]
async fn tables_do_not_block_each_others_keys() {
    let server = server!();
    let (shop, other) = (Shop::new(server).await, Shop::new(server).await);
    let mut client = server.client().await;
    let transaction = client.transaction().await.unwrap();
    let stored = shop.stored("a");
    let looked = shop.store.lock_and_read_in(&transaction, &stored).await.unwrap().0;
    assert_eq!(looked, None);
    assert_eq!(other.stored("a"), stored);
    let mut second = server.client().await;
    assert_eq!(other.place(&mut second, "a", "12").await.unwrap(), "placed a");
    let qualified = format!("public.{}", shop.store.table());
    let same = patient(PostgresStore::builder(server.url())).table(qualified).build().unwrap();
    assert_eq!(same.look(&stored).await.unwrap_err().kind(), StoreErrorKind::Conflict);
}

/// The commit or its answer is lost. The record shows whether the commit was applied.
#[tokio::test]
async fn lost_commit_answers_are_resolved() {
    let server = server!();
    for (fault, is_committed) in
        [(Fault::LoseAnswer, true), (Fault::LoseRequest, false), (Fault::SilenceAfter, true)]
    {
        let wire = Wire::to(server.port()).await;
        // Only the operation's transaction goes through the wire. The store's own connections don't.
        let shop = Shop::new(server).await;
        let (mut client, connection) =
            lambda_idempotency::store::postgres::tokio_postgres::connect(&server.url_at(wire.port()), NoTls)
                .await
                .unwrap();
        tokio::spawn(connection);
        let before = wire.requests();
        assert_eq!(shop.place(&mut client, "counted", "12").await.unwrap(), "placed counted");
        let requests = wire.requests();
        assert!(before > 0 && requests > 2, "{before}, {requests}");

        // The commit is a run's last request, so the fault waits until the run has sent all the others.
        let counting = async {
            while wire.requests_so_far() < requests - 1 {
                tokio::task::yield_now().await;
            }
            wire.fail_next(fault);
            std::future::pending::<()>().await
        };
        let placed = tokio::select! {
            placed = shop.place(&mut client, "a", "12") => placed,
            () = counting => unreachable!(),
        };
        assert!(wire.has_failed(), "{fault:?}: the fault never hit the commit");
        if is_committed {
            assert_eq!(placed.unwrap(), "placed a", "{fault:?}");
        } else {
            assert_eq!(kind(placed), ErrorKind::Unavailable, "{fault:?}");
        }
        assert_eq!(shop.placed().await, 1 + i64::from(is_committed), "{fault:?}");
        let mut client = server.client().await;
        assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a", "{fault:?}");
        assert_eq!(shop.placed().await, 2, "{fault:?}");
    }
}

/// `begin` claims the key, and `run_in` doesn't. A live claim blocks `run_in`, and a stale claim is taken over.
#[tokio::test]
async fn deliveries_with_and_without_claims_share_keys() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    let engine = |builder: lambda_idempotency::Builder| builder.function("shop").build().unwrap();
    let claiming = engine(Idempotency::builder(shop.store.clone()));
    let fingerprint = Fingerprint::of("12").unwrap();
    let begun =
        claiming.operation("place").unwrap().begin(Key::new("a").unwrap(), fingerprint).await.unwrap();
    let clock = SetClock::system();
    let later = Shop {
        idempotency: engine(Idempotency::builder(shop.store.clone()).clock(clock.clone())),
        orders: shop.orders.clone(),
        store: shop.store.clone(),
        server,
    };
    assert_eq!(kind(later.place(&mut client, "a", "12").await), ErrorKind::InProgress);
    // Two minutes later, the lease has expired.
    clock.set_ahead(120);
    assert_eq!(later.place(&mut client, "a", "12").await.unwrap(), "placed a");
    let lambda_idempotency::Begun::Claimed(claim) = begun else { panic!("the key has an outcome") };
    let late = claim.complete("late").await.unwrap();
    assert!(matches!(late, lambda_idempotency::Settled::Superseded(_)), "{late:?}");
    assert_eq!(shop.placed().await, 1);
}

/// The test kills sessions at random points, some of them in the middle of a commit. Each worker retries after
/// an error, as a queue would. In the end there is one order and one record per key.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_sessions_leave_each_order_once() {
    const WORKERS: i64 = 6;
    const KILLS: i64 = 25;
    let server = server!();
    let shop = Shop::new(server).await;
    let kills = AtomicI64::new(0);
    let killing = async {
        let operator = server.client().await;
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
             WHERE query LIKE '%{}%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one",
            shop.store.table()
        );
        loop {
            kills.fetch_add(operator.query_one(&kill, &[]).await.unwrap().get(0), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    };
    // Each worker takes the orders in another sequence, so each order is delivered six times at about the same time.
    let workers = (0..WORKERS).map(|worker| {
        let (shop, kills) = (&shop, &kills);
        async move {
            let (mut client, mut orders) = (server.client().await, 0);
            while orders < 60 || kills.load(Ordering::Relaxed) < KILLS {
                let key = format!("order {}", orders ^ worker);
                while shop.place(&mut client, &key, "12").await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    if client.is_closed() {
                        client = server.client().await;
                    }
                }
                orders += 1;
            }
            orders
        }
    });
    let deliveries: i64 = tokio::select! {
        delivered = join_all(workers) => delivered.into_iter().sum(),
        () = killing => 0,
    };
    let records = format!("SELECT count(*) FROM {} WHERE status = 'COMPLETED'", shop.store.table());
    let records: i64 = server.client().await.query_one(&records, &[]).await.unwrap().get(0);
    let (placed, kills) = (shop.placed().await, kills.load(Ordering::Relaxed));
    eprintln!("{deliveries} deliveries, {kills} sessions killed: {placed} orders, {records} records");
    assert!(placed == records && placed >= 60, "{placed} orders, {records} records");
}
