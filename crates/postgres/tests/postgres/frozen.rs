//! Connections that died while the sandbox was frozen. The server is up, so the first run afterwards must succeed, and
//! soon, however many connections died.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lambda_idempotency::{
    Idempotency, Key,
    store::{Store as _, postgres::PostgresStore},
};
use testkit::{
    links::{Death, Links},
    unpaused::unpaused,
};

use super::fixtures::{Server, key, server};

/// How much longer than a statement's limit the first run may take: less than one more statement.
const MARGIN: Duration = Duration::from_millis(900);
const STATEMENT: Duration = Duration::from_secs(1);

async fn run(store: &PostgresStore, name: String) {
    let idempotency = Idempotency::builder(store.clone()).function("frozen").build().unwrap();
    let key = Key::new(name).unwrap();
    let operation = idempotency.operation("run").unwrap();
    assert_eq!(operation.run(&key, &1, async || Ok::<_, Infallible>(2)).await.unwrap(), 2);
}

/// Returns a store with `count` connections that died, and their proxy.
async fn thawed(server: &Server, count: usize, death: Death) -> (PostgresStore, Links) {
    let table = server.store(|builder| builder).await.table();
    let links = Links::before(([127, 0, 0, 1], server.port()).into());
    let store = PostgresStore::builder(server.url_at(links.address().port())).table(table);
    let store = store.connections(count).connect_timeout(Duration::from_secs(20));
    let store = store.statement_timeout(STATEMENT).build().unwrap();
    links.delay(Duration::from_millis(100));
    let keys: Vec<_> = (0..count).map(|n| key(&n.to_string())).collect();
    join_all(keys.iter().map(|key| store.read(key))).await;
    assert!(links.made() >= count, "{} connections", links.made());
    links.delay(Duration::ZERO);
    links.kill(death);
    (store, links)
}

#[tokio::test(flavor = "multi_thread")]
async fn first_run_after_a_freeze_is_prompt() {
    let server = server!();
    for (death, limit) in [(Death::Closes, MARGIN), (Death::Swallows, STATEMENT + MARGIN)] {
        for count in [1, 16, 64] {
            let took = unpaused(
                async || {
                    let (store, _links) = thawed(server, count, death).await;
                    let start = Instant::now();
                    run(&store, "first".to_owned()).await;
                    start.elapsed()
                },
                |took| *took < limit,
            );
            let took = took.await;
            eprintln!("{death:?} {count}: {took:?}");
            assert!(took < limit, "{death:?} {count}: {took:?}");
        }
    }
}

/// After the restore of a snapshot, neither clock needs to show that time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_never_used() {
    let server = server!();
    for closes in [true, false] {
        let (store, links) = thawed(server, 16, Death::Swallows).await;
        if closes {
            store.close_connections();
        }
        run(&store, "first".to_owned()).await;
        assert_eq!(links.lost() > 0, !closes, "{} requests were lost", links.lost());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_idle_connections_are_never_used() {
    let server = server!();
    let (store, links) = thawed(server, 16, Death::Swallows).await;
    tokio::time::sleep(Duration::from_millis(20_500)).await;
    join_all((0..16).map(|n| run(&store, n.to_string()))).await;
    assert_eq!(links.lost(), 0);
}
