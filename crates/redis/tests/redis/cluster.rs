//! Clusters of one node, and of two nodes that share the slots and move them.

use std::sync::{Arc, OnceLock};

use lambda_idempotency::{
    StoredKey, conformance,
    store::{PutOutcome, Store, StoreErrorKind, TableProblem},
};
use tokio::net::TcpSocket;

use super::{
    fixtures::{chain, claim, claimed, complete, completed, fresh_key, patient, started, until},
    wire::{Reply, Wire},
};
use testkit::redis::RedisServer;

/// With a short timeout, a pause of one node on a busy machine would take the cluster down.
const CLUSTER: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"];
const LAST_SLOT: u16 = 16_383;

fn serve(server: &RedisServer, first: u16, last: u16) {
    let answer = server.run(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
    assert_eq!(answer, "OK");
}

fn is_up(server: &RedisServer) -> bool {
    server.run(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

fn url(server: &RedisServer) -> String {
    format!("redis-cluster://{}", server.address())
}

fn id(server: &RedisServer) -> String {
    server.run(&["CLUSTER", "MYID"])
}

fn slot(server: &RedisServer, key: &StoredKey) -> String {
    server.run(&["CLUSTER", "KEYSLOT", &format!("idempotency:{key}")])
}

/// Starts two nodes that know each other, with half of the slots each.
async fn two() -> Option<[RedisServer; 2]> {
    let (one, other) = (RedisServer::start(&CLUSTER)?, RedisServer::start(&CLUSTER)?);
    serve(&one, 0, 8191);
    serve(&other, 8192, LAST_SLOT);
    let (host, port) = (other.address().ip().to_string(), other.address().port().to_string());
    assert_eq!(one.run(&["CLUSTER", "SET-CONFIG-EPOCH", "1"]), "OK");
    assert_eq!(other.run(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]), "OK");
    assert_eq!(one.run(&["CLUSTER", "MEET", &host, &port]), "OK");
    until("the nodes form a cluster", || is_up(&one) && is_up(&other)).await;
    Some([one, other])
}

/// Returns a key whose slot is in the first half of the slots, or in the second.
fn key_in(server: &RedisServer, first_half: bool) -> StoredKey {
    loop {
        let key = fresh_key();
        if (slot(server, &key).parse::<u16>().unwrap() < 8192) == first_half {
            return key;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_node_cluster_conforms() {
    let Some(server) = RedisServer::start(&CLUSTER) else { return };
    // The node has no slots yet.
    let error = claim(&patient(&url(&server)), &fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(!error.is_maybe_applied() && error.to_string().contains("slot"), "{error}");
    serve(&server, 0, LAST_SLOT);
    until("the cluster is up", || is_up(&server)).await;
    conformance::check(&patient(&url(&server))).await;
    // A URL without `redis-cluster://` works as long as the cluster has only one node.
    claimed(&patient(&server.url()), &fresh_key()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_the_node_with_the_slot() {
    let Some(nodes) = two().await else { return };
    let store = patient(&url(&nodes[0]));
    conformance::check(&store).await;
    for (node, first_half) in [(&nodes[0], true), (&nodes[1], false)] {
        let (before, key) = (node.calls("evalsha"), key_in(node, first_half));
        claimed(&store, &key).await;
        assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
        assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(completed())));
        assert_eq!(node.calls("evalsha"), before + 3, "this node must get all three commands");
    }
    // A scan lists the records of both nodes.
    let (mut found, mut position) = (0, None);
    loop {
        let page = store.scan(position).await.unwrap();
        found += page.records.len();
        position = page.next;
        if position.is_none() {
            break;
        }
    }
    let there: usize = nodes.iter().map(|node| node.run(&["DBSIZE"]).parse::<usize>().unwrap()).sum();
    assert_eq!(found, there);
    // A store with a `redis://` URL knows only one node. If the other node has the key, the error names the scheme
    // to use.
    let error = claim(&patient(&nodes[0].url()), &key_in(&nodes[0], false)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("redis-cluster://"), "{error}");
}

/// Each node has its own policy.
#[tokio::test]
async fn each_node_is_checked_for_eviction() {
    let Some(nodes) = two().await else { return };
    let store = patient(&url(&nodes[0]));
    assert_eq!(store.check_servers().await.unwrap(), []);
    assert_eq!(nodes[1].run(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]), "OK");
    claimed(&store, &key_in(&nodes[0], true)).await;
    let error = claim(&store, &key_in(&nodes[0], false)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("volatile-lru"), "{error}");
    let problem =
        TableProblem::Evicts { server: nodes[1].address().to_string(), policy: "volatile-lru".to_owned() };
    assert_eq!(store.check_servers().await.unwrap(), [problem]);
}

#[tokio::test]
async fn moved_slots_are_followed() {
    let Some([one, other]) = two().await else { return };
    let (store, key) = (patient(&url(&one)), key_in(&one, true));
    claimed(&store, &key).await;
    let slot = slot(&one, &key);
    assert_eq!(other.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&one)]), "OK");
    assert_eq!(one.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&other)]), "OK");
    // The key is still on the old node.
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(started())));
    let (host, port) = (other.address().ip().to_string(), other.address().port().to_string());
    let redis_key = format!("idempotency:{key}");
    assert_eq!(one.run(&["MIGRATE", &host, &port, &redis_key, "0", "60000"]), "OK");
    // The key is on the new node, but the slot is still on the old one, which answers ASK.
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(started())));
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(store.read(&key).await.unwrap(), Some(completed()));
    assert!(other.calls("asking") >= 3);
    // Once the slot is on the new node too, the old node answers MOVED. The store then remembers the new node.
    for node in [&other, &one] {
        assert_eq!(node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(&other)]), "OK");
    }
    let moved = one.calls("evalsha");
    for _ in 0..3 {
        assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(completed())));
    }
    assert!(one.calls("evalsha") <= moved + 1, "the store must remember the new node");
}

#[tokio::test]
async fn lost_nodes_apply_nothing_and_others_serve() {
    let Some([one, other]) = two().await else { return };
    // Lets one node serve its half of the slots while the other node is down.
    for node in [&one, &other] {
        assert_eq!(node.run(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
    }
    let (here, there) = (key_in(&one, true), key_in(&one, false));
    let store = patient(&format!("{}?node={}", url(&other), one.address()));
    for key in [&here, &there] {
        claimed(&store, key).await;
    }
    drop(other);
    let error = store.put(&there, &complete()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    assert_eq!(store.put(&here, &complete()).await.unwrap(), PutOutcome::Applied);
    let error = claim(&store, &there).await.unwrap_err();
    assert!(!error.is_maybe_applied(), "{}", chain(&error));
}

/// Starts a fake node. It says that the node at `port` has all slots, and redirects every read to that node. Without a
/// `port`, the fake node names itself.
async fn node(port: Option<u16>) -> Wire {
    let own = Arc::new(OnceLock::<[&str; 2]>::new());
    let answers = Arc::clone(&own);
    let wire = Wire::new(None, move |_, name| match (name, answers.get()) {
        ("CLUSTER", Some([slots, _])) => Reply::Answer(slots),
        ("HGETALL", Some([_, moved])) => Reply::Answer(moved),
        _ => Reply::Answer("+OK\r\n"),
    })
    .await;
    let port = port.unwrap_or(wire.address.port());
    let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$-1\r\n:{port}\r\n$2\r\nid\r\n");
    let moved = format!("-MOVED 1 :{port}\r\n");
    own.set([slots.leak(), moved.leak()]).unwrap();
    wire
}

/// Reads a record from a fake node, and checks that the read fails. Returns how often the node got `command`.
async fn failed_read(wire: &Wire, command: &str) -> usize {
    let store = patient(&format!("{}?cluster=true", wire.url()));
    let error = store.read(&fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    wire.commands().iter().filter(|name| *name == command).count()
}

#[tokio::test]
async fn redirections_end_after_the_fifth() {
    assert_eq!(failed_read(&node(None).await, "HGETALL").await, 6);
}

#[tokio::test]
async fn unreachable_nodes_cause_one_slot_refresh() {
    // No other test can use this socket's port, and the socket never listens.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    assert_eq!(failed_read(&node(Some(port)).await, "CLUSTER").await, 2);
}

#[tokio::test]
async fn failed_slot_requests_are_classified() {
    for (reply, kind, says) in [
        (
            Reply::Answer("-ERR This instance has cluster support disabled\r\n"),
            StoreErrorKind::Rejected,
            "rejected",
        ),
        (Reply::Close, StoreErrorKind::Unavailable, "reached"),
    ] {
        let wire = Wire::new(None, move |_, name| match name {
            "CLUSTER" => reply,
            _ => Reply::Answer("+OK\r\n"),
        })
        .await;
        let store = patient(&format!("{}?cluster=true", wire.url()));
        let error = claim(&store, &fresh_key()).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (kind, false));
        assert!(error.to_string().contains(says), "{}", chain(&error));
    }
}
