//! A server that restarts, and a primary that fails over to its replica: which records survive, and which can
//! be lost.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use lambda_idempotency::{
    StoredKey,
    store::{PutOutcome, Store, StoreErrorKind},
};
use tokio::net::{TcpListener, TcpStream};

use super::fixtures::{chain, claim, claimed, complete, completed, fresh_key, patient, started, until};
use testkit::redis::RedisServer;

/// A proxy whose address leads to one server and later to another, as a DNS name can. The proxy ends with the test's
/// runtime.
struct Name {
    address: SocketAddr,
    leads_to: Arc<Mutex<SocketAddr>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Name {
    async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let name =
            Self { address, leads_to: Arc::new(Mutex::new(server.address())), connections: Arc::default() };
        let (leads_to, connections) = (Arc::clone(&name.leads_to), Arc::clone(&name.connections));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = *leads_to.lock().unwrap();
                let task = tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(server).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
                let connections: &Mutex<Vec<_>> = &connections;
                connections.lock().unwrap().push(task.abort_handle());
            }
        });
        name
    }

    /// Cuts the open connections, and points to another address from now on.
    fn lead_to(&self, address: SocketAddr) {
        *self.leads_to.lock().unwrap() = address;
        for task in self.connections.lock().unwrap().drain(..) {
            task.abort();
        }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

/// Starts a replica in sync with the primary at `address`.
async fn replica_of(address: SocketAddr) -> RedisServer {
    let port = address.port().to_string();
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    until("the replica is in sync", || {
        replica.run(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    replica
}

fn has(server: &RedisServer, key: &StoredKey, status: &str) -> bool {
    server.run(&["HGET", &format!("idempotency:{key}"), "status"]) == status
}

/// Replication is asynchronous, so the primary may acknowledge writes that its replica never gets.
#[tokio::test]
async fn a_promoted_replica_can_lose_acknowledged_writes() {
    let Some(mut primary) = RedisServer::start(&[]) else { return };
    let link = Name::of(&primary).await;
    let replica = replica_of(link.address).await;
    let name = Name::of(&primary).await;
    let store = patient(&name.url());
    let [kept, half, lost] = [fresh_key(), fresh_key(), fresh_key()];
    claimed(&store, &kept).await;
    assert_eq!(store.put(&kept, &complete()).await.unwrap(), PutOutcome::Applied);
    claimed(&store, &half).await;
    until("the replica has both records", || {
        has(&replica, &kept, "COMPLETED") && has(&replica, &half, "STARTED")
    })
    .await;

    // Nothing listens on port 9: the replica gets no more data, while the primary continues.
    link.lead_to(([127, 0, 0, 1], 9).into());
    assert_eq!(store.put(&half, &complete()).await.unwrap(), PutOutcome::Applied);
    claimed(&store, &lost).await;
    primary.crash();
    until("the primary has stopped", || std::net::TcpStream::connect(primary.address()).is_err()).await;
    assert_eq!(replica.run(&["REPLICAOF", "NO", "ONE"]), "OK");
    name.lead_to(replica.address());

    assert_eq!(
        claim(&store, &kept).await.unwrap(),
        PutOutcome::Refused(Some(completed())),
        "the replicated record must survive"
    );
    assert_eq!(
        store.read(&half).await.unwrap(),
        Some(started()),
        "a lost completion leaves the claim in place"
    );
    assert_eq!(
        claim(&store, &lost).await.unwrap(),
        PutOutcome::Applied,
        "after a lost claim, the next claim is applied"
    );
}

/// The store doesn't ask Sentinel for the primary, so its URL needs a name that points to the primary. Until the name
/// points to the new primary, every call fails.
#[tokio::test]
async fn a_replica_promoted_by_sentinel_serves() {
    let Some(mut primary) = RedisServer::start(&[]) else { return };
    let replica = replica_of(primary.address()).await;
    let sentinel = RedisServer::sentinel_of(primary.address());
    let (name, key) = (Name::of(&primary).await, fresh_key());
    let store = patient(&name.url());
    claimed(&store, &key).await;
    until("the replica has the claim", || has(&replica, &key, "STARTED")).await;
    let port = replica.address().port().to_string();
    until("the Sentinel knows the replica", || {
        sentinel.run(&["SENTINEL", "REPLICAS", "records"]).contains(&port)
    })
    .await;

    primary.crash();
    until("the primary has stopped", || std::net::TcpStream::connect(primary.address()).is_err()).await;
    name.lead_to(primary.address());
    let error = claim(&store, &fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    let patience = ["SENTINEL", "SET", "records", "down-after-milliseconds", "2000"];
    assert_eq!(sentinel.run(&patience), "OK");
    let chosen = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "records"];
    // Sentinel takes up to ten seconds to promote the replica. If the machine paused, Sentinel first waits half a
    // minute.
    until("the Sentinel has chosen the replica", || sentinel.run(&chosen).ends_with(&port)).await;
    until("the replica is the primary", || replica.run(&["ROLE"]).starts_with("master")).await;
    name.lead_to(replica.address());
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(completed())));
    claimed(&store, &fresh_key()).await;
}

/// With `appendfsync always`, the server writes to disk before it answers. Without an append-only file, a restart loses
/// everything.
#[tokio::test]
async fn killed_servers_keep_synced_writes() {
    for (settings, is_kept) in
        [(&["--appendonly", "yes", "--appendfsync", "always"][..], true), (&["--appendonly", "no"], false)]
    {
        let Some(mut server) = RedisServer::start(settings) else { return };
        let (store, key) = (patient(&server.url()), fresh_key());
        claimed(&store, &key).await;
        assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
        server.crash();
        until("the server has stopped", || std::net::TcpStream::connect(server.address()).is_err()).await;
        server.start_again();
        until("the server has restarted", || std::net::TcpStream::connect(server.address()).is_ok()).await;
        until("the server has loaded its data", || server.run(&["PING"]) == "PONG").await;
        assert_eq!(store.read(&key).await.unwrap(), is_kept.then(completed), "{settings:?}");
    }
}
