//! A primary that is lost, and its standby that takes over.

use std::time::{Duration, Instant};

use lambda_idempotency::{
    Status, Store as _,
    store::{Write, Written, postgres::PostgresStore},
};

use super::fixtures::{Server, completion, fresh_table, key, lock, make};

/// On a busy machine, a call takes its time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `sql`, a condition, is so at `server`.
async fn until(server: &Server, sql: &str) {
    let client = server.client().await;
    for _ in 0..600 {
        if client.query_one(&format!("SELECT {sql}"), &[]).await.unwrap().get::<_, bool>(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it never came to be: {sql}");
}

/// The store finds the primary among the hosts of its URL, and the one that has become it: with the attribute that says so,
/// and without. The standby is named first.
#[tokio::test]
async fn a_promoted_standby_is_found() {
    for attributes in ["?target_session_attrs=read-write", ""] {
        let Some(mut primary) = Server::start("") else { return };
        let standby = primary.standby();
        let (own, other) = (format!(":{}/", primary.port()), standby.port());
        let hosts = primary.url().replace(&own, &format!(":{other},127.0.0.1:{}/", primary.port()));
        let builder = PostgresStore::builder(hosts + attributes).table(fresh_table());
        let store = builder.connect_timeout(PATIENCE).statement_timeout(PATIENCE).build().unwrap();
        store.create_table().await.unwrap();
        let (key, lock) = (key("kept"), lock());
        make(&store, &key, &Write::Claim(lock.clone())).await;
        let table = store.table();
        let has_followed = format!("to_regclass('{table}') IS NOT NULL");
        until(&standby, &has_followed).await;
        until(&standby, &format!("EXISTS (SELECT FROM {table})")).await;

        primary.crash();
        until(&standby, "pg_promote()").await;
        let began = Instant::now();
        // The first call may meet the connection that the crash has cut.
        let settled = match store.apply(&key, &completion(&lock)).await {
            Err(error) => {
                assert!(error.is_maybe_applied(), "{error:?}");
                store.apply(&key, &completion(&lock)).await.unwrap()
            }
            Ok(settled) => settled,
        };
        assert_eq!(settled, Written::Applied);
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        let record = store.read(&key).await.unwrap().unwrap();
        assert_eq!((record.status(), record.owner), (Status::Completed, lock.owner));
        make(&store, &super::fixtures::key("new"), &Write::Claim(super::fixtures::lock())).await;
    }
}

/// A host that takes no connection and says nothing leaves the next one its time.
#[tokio::test]
async fn a_silent_host_leaves_the_next_its_time() {
    let Some(server) = Server::shared() else { return };
    let own = format!("127.0.0.1:{}/", server.port());
    // Its queue is full, so that the kernel drops further connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(one)) =
        tokio::time::timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await
    {
        queued.push(one);
    }
    let hosts = server.url().replace(&own, &format!("{address},{own}"));
    let store = PostgresStore::builder(hosts + "?sslmode=disable").table(fresh_table());
    let store = store.connect_timeout(PATIENCE).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("next"), &Write::Claim(lock())).await;
}
