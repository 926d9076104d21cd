//! What a handler may do to the transaction of `run_in`: outlast its deadline, end the transaction, change its settings.

use std::time::{Duration, Instant};

use lambda_idempotency::{
    Begun, ErrorKind, Fingerprint, Idempotency, Invocation, Key, Operation, RunError,
    store::{
        Store as _,
        postgres::tokio_postgres::{Error, Transaction},
    },
    time::{Clock as _, system_clock},
};

use testkit::clock::SetClock;

use super::{
    fixtures::{Server, server},
    operations::{Shop, kind},
};

/// So long that a busy machine meets each limit: the smallest is the time between the last wait and the deadline, a tenth.
const LEFT: Duration = Duration::from_secs(8);
const RESERVE: Duration = Duration::from_secs(4);

/// Returns the shop's operation in an invocation that has [`LEFT`].
fn in_invocation(shop: &Shop, cut_off: bool) -> Operation {
    let now = system_clock().now();
    let builder = Idempotency::builder(shop.store.clone()).function("shop").settings(|s| s.cut_off = cut_off);
    let idempotency = builder.settings(|s| s.answer_reserve = RESERVE).build().unwrap();
    idempotency
        .for_invocation(Invocation::entered(now, now.saturating_add(LEFT), "r"))
        .operation("place")
        .unwrap()
}

/// Whether a session waits in a transaction that has touched the shop's orders.
async fn is_open(server: &Server, shop: &Shop) -> bool {
    let locks = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::text::regclass)";
    server.client().await.query_one(locks, &[&shop.orders]).await.unwrap().get(0)
}

#[tokio::test]
async fn deadline_cuts_run_in_off() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut client, key) = (server.client().await, Key::new("a").unwrap());
    let work = async |transaction: &Transaction<'_>| {
        shop.insert(transaction).await?;
        system_clock().sleep(2 * LEFT).await;
        Ok::<_, Error>("late".to_owned())
    };
    let began = Instant::now();
    let operation = in_invocation(&shop, true);
    let late = operation.run_in(&shop.store, &mut client, &key, "12", work).await;
    let took = began.elapsed();
    let Err(RunError::Idempotency(error)) = late else { panic!("{late:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("was cut off"), "{error}");
    assert!(took < LEFT && took > LEFT / 2, "{took:?}");
    assert!(!is_open(server, &shop).await, "the transaction is rolled back when the answer is there");
    assert_eq!(shop.placed().await, 0);
    assert_eq!(shop.place(&mut client, "a", "12").await.unwrap(), "placed a");
    // The work that's waited for is the server's.
    let work = async |transaction: &Transaction<'_>| {
        shop.insert(transaction).await?;
        transaction.batch_execute("SELECT pg_sleep(12)").await?;
        shop.insert(transaction).await
    };
    let began = Instant::now();
    let (operation, key) = (in_invocation(&shop, true), Key::new("b").unwrap());
    let late: Result<(), _> = operation.run_in(&shop.store, &mut client, &key, "12", work).await;
    assert_eq!((kind(late), began.elapsed() < LEFT), (ErrorKind::Unavailable, true), "{:?}", began.elapsed());
    assert_eq!(shop.place(&mut client, "c", "12").await.unwrap(), "placed c");
    assert_eq!((shop.placed().await, is_open(server, &shop).await), (2, false));
}

#[tokio::test]
async fn set_back_clock_does_not_prolong_run_in() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut client, key, clock) = (server.client().await, Key::new("a").unwrap(), SetClock::system());
    clock.set_ahead(3600);
    let builder = Idempotency::builder(shop.store.clone()).function("shop").clock(clock.clone());
    let builder = builder.settings(|s| s.answer_reserve = RESERVE);
    let deadline = clock.now().saturating_add(LEFT);
    let invocation = Invocation::entered(clock.now(), deadline, "r");
    let operation = builder.build().unwrap().for_invocation(invocation).operation("place").unwrap();
    let work = async |transaction: &Transaction<'_>| {
        clock.set_ahead(0);
        shop.insert(transaction).await?;
        for _ in 0..20 {
            system_clock().sleep(LEFT / 10).await;
            transaction.batch_execute("SELECT 1").await?;
        }
        Ok::<_, Error>(())
    };
    let began = Instant::now();
    let late = operation.run_in(&shop.store, &mut client, &key, "12", work).await;
    assert_eq!((kind(late), began.elapsed() < LEFT), (ErrorKind::Unavailable, true), "{:?}", began.elapsed());
    assert_eq!(shop.placed().await, 0);
}

#[tokio::test]
async fn run_in_without_cut_off_commits_late() {
    let server = server!();
    let shop = Shop::new(server).await;
    let (mut client, key) = (server.client().await, Key::new("a").unwrap());
    let work = async |transaction: &Transaction<'_>| {
        system_clock().sleep(2 * LEFT).await;
        shop.insert(transaction).await
    };
    let late: Result<(), _> =
        in_invocation(&shop, false).run_in(&shop.store, &mut client, &key, "12", work).await;
    late.unwrap();
    assert_eq!(shop.placed().await, 1);
    let operation = in_invocation(&shop, false);
    system_clock().sleep(LEFT).await;
    let work = async |transaction: &Transaction<'_>| shop.insert(transaction).await;
    let (key, mut other) = (Key::new("b").unwrap(), server.client().await);
    let late: Result<(), _> = operation.run_in(&shop.store, &mut other, &key, "12", work).await;
    assert_eq!(
        (kind(late), shop.placed().await),
        (ErrorKind::Unavailable, 1),
        "it doesn't begin after the deadline"
    );
}

#[tokio::test]
async fn ended_transactions_record_nothing() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    for (nth, (sql, stays)) in [
        ("ROLLBACK", 0),
        ("ABORT", 0),
        ("ROLLBACK AND CHAIN", 0),
        ("ROLLBACK; BEGIN", 0),
        ("COMMIT", 1),
        ("END", 1),
        ("COMMIT AND CHAIN", 1),
        ("COMMIT; BEGIN", 1),
        ("SAVEPOINT s; COMMIT; BEGIN; SAVEPOINT s", 1),
    ]
    .into_iter()
    .enumerate()
    {
        let (before, name) = (shop.placed().await, format!("order {nth}"));
        let key = Key::new(&name).unwrap();
        let work = async |transaction: &Transaction<'_>| {
            shop.insert(transaction).await?;
            transaction.batch_execute(sql).await
        };
        let ended: Result<(), _> = shop.operation().run_in(&shop.store, &mut client, &key, "12", work).await;
        let Err(RunError::Idempotency(error)) = ended else { panic!("{sql}: {ended:?}") };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {error}");
        assert!(error.to_string().contains("COMMIT or ROLLBACK as SQL"), "{sql}: {error}");
        assert_eq!(shop.placed().await, before + stays, "{sql}");
        assert!(shop.store.read(&shop.stored(&name)).await.unwrap().is_none(), "{sql}");
        assert_eq!(shop.place(&mut client, &name, "12").await.unwrap(), format!("placed {name}"), "{sql}");
        // The same with `begin_in`.
        let (name, fingerprint) = (format!("by hand {nth}"), Fingerprint::of("12").unwrap());
        let key = Key::new(&name).unwrap();
        let transaction = client.transaction().await.unwrap();
        let operation = shop.operation();
        let begun = operation.begin_in(&shop.store, &transaction, &key, fingerprint).await.unwrap();
        let Begun::Claimed(begun) = begun else { panic!("{sql}: there's an outcome") };
        transaction.batch_execute(sql).await.unwrap();
        let error = begun.complete("done").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {error}");
        transaction.rollback().await.unwrap();
        assert!(shop.store.read(&shop.stored(&name)).await.unwrap().is_none(), "{sql}");
    }
}

#[tokio::test]
async fn savepoints_keep_the_transaction() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    let key = Key::new("a").unwrap();
    let work = async |transaction: &Transaction<'_>| {
        transaction.batch_execute("SAVEPOINT s").await?;
        shop.insert(transaction).await?;
        let broken = transaction.batch_execute("SELECT 1 / 0").await;
        assert!(broken.is_err());
        transaction.batch_execute("ROLLBACK TO s; SET LOCAL TimeZone = 'Asia/Tokyo'").await?;
        shop.insert(transaction).await
    };
    let placed: Result<(), _> = shop.operation().run_in(&shop.store, &mut client, &key, "12", work).await;
    placed.unwrap();
    assert_eq!(shop.placed().await, 1);
    assert!(shop.store.read(&shop.stored("a")).await.unwrap().is_some());
}

#[tokio::test]
async fn errors_name_the_handlers_transaction() {
    let server = server!();
    let shop = Shop::new(server).await;
    let mut client = server.client().await;
    let (parents, children) = (format!("{}_parents", shop.orders), format!("{}_children", shop.orders));
    let role = format!("{}_role", shop.orders);
    let tables = format!(
        "CREATE TABLE {parents} (id int PRIMARY KEY); \
         CREATE TABLE {children} (id int REFERENCES {parents} DEFERRABLE INITIALLY DEFERRED); \
         CREATE ROLE {role}"
    );
    server.client().await.batch_execute(&tables).await.unwrap();
    for (nth, (sql, says, never)) in [
        (
            format!("INSERT INTO {children} VALUES (7)"),
            ["COMMIT of the handler's", "23503"],
            "the statement on",
        ),
        ("SET TRANSACTION READ ONLY".to_owned(), ["SET TRANSACTION READ ONLY", "25006"], "standby"),
        (format!("SET LOCAL ROLE {role}"), ["RESET ROLE", "42501"], "the user lacks"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = Key::new(format!("order {nth}")).unwrap();
        let work = async |transaction: &Transaction<'_>| transaction.batch_execute(&sql).await;
        let failed: Result<(), _> = shop.operation().run_in(&shop.store, &mut client, &key, "12", work).await;
        let Err(RunError::Idempotency(error)) = failed else { panic!("{sql}: {failed:?}") };
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {text}");
        assert!(says.iter().all(|says| text.contains(says)) && !text.contains(never), "{sql}: {text}");
        assert!(!text.contains("(7)") && !text.contains("id="), "{sql}: {text}");
    }
    server.client().await.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}
