//! The store's own connections, in addition to those of the user's pool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::{
    Idempotency, Key,
    store::postgres::{
        PostgresStore,
        deadpool_postgres::{Manager, Pool},
        tokio_postgres::NoTls,
    },
};
use testkit::puts;

use super::fixtures::{fresh_table, key, lock, make, patient, server};

fn pool_of(url: &str, connections: usize) -> Pool {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(connections).build().unwrap()
}

/// There are more handlers than pooled connections, and each handler holds a connection while it works. The
/// handlers' completions don't wait for the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn completions_do_not_wait_for_the_pool() {
    const HANDLERS: u32 = 8;
    let server = server!();
    let pool = pool_of(&server.url(), 1);
    let table = fresh_table();
    let store = patient(PostgresStore::pool_builder(pool.clone())).table(&table).build().unwrap();
    store.create_table().await.unwrap();
    let builder =
        Idempotency::builder(store).function("orders").settings(|s| s.settle_within = Duration::from_secs(8));
    let idempotency = builder.build().unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    for delivery in ["first", "second"] {
        let mut handlers = tokio::task::JoinSet::new();
        for n in 0..HANDLERS {
            let (idempotency, pool, effects) = (idempotency.clone(), pool.clone(), Arc::clone(&effects));
            handlers.spawn(async move {
                let work = async || {
                    let client = pool.get().await.map_err(std::io::Error::other)?;
                    effects.fetch_add(1, Ordering::SeqCst);
                    let sleep = client.batch_execute("SELECT pg_sleep(2)").await;
                    sleep.map_err(std::io::Error::other)?;
                    // The next handler takes the connection at once, before this handler's completion runs.
                    drop(client);
                    Ok::<_, std::io::Error>(n)
                };
                idempotency
                    .operation("order")
                    .unwrap()
                    .run(Key::new(format!("order-{n}")).unwrap(), &n, work)
                    .await
            });
        }
        while let Some(handled) = handlers.join_next().await {
            handled.unwrap().unwrap_or_else(|error| panic!("{delivery}: {error}"));
        }
    }
    let count = format!("SELECT count(*) FROM {table} WHERE status = 'COMPLETED'");
    let completed: i64 = server.client().await.query_one(&count, &[]).await.unwrap().get(0);
    assert_eq!((effects.load(Ordering::SeqCst), completed), (HANDLERS, i64::from(HANDLERS)));
}

/// The user's code holds the pool's only connection. The store doesn't wait for that connection, since it opens its
/// own.
#[tokio::test]
async fn records_are_written_despite_exhausted_pool() {
    let server = server!();
    let pool = pool_of(&server.url(), 1);
    let builder = patient(PostgresStore::pool_builder(pool.clone())).table(fresh_table());
    let store = builder.connect_timeout(Duration::from_secs(20)).build().unwrap();
    let _lent = pool.get().await.unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("used-up"), &puts::claim(lock())).await;
}
