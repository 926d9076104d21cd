//! What the store checks of the server before a handler runs: that it doesn't evict records, and that the user may run
//! every command.

use lambda_idempotency::store::{PutOutcome, Store, StoreErrorKind, TableProblem, redis::RedisStore};
use testkit::puts;
use testkit::redis::{RedisServer, shared};

use super::fixtures::{chain, claim, claimed, complete, extend, fresh_key, lock, patient, started};

const EVICTING: [&str; 7] = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

const NEEDED: [&str; 9] =
    ["+evalsha", "+eval", "+exists", "+hget", "+hgetall", "+hset", "+hdel", "+pexpireat", "+persist"];

fn set_policy(server: &RedisServer, policy: &str) {
    assert_eq!(server.run(&["CONFIG", "SET", "maxmemory-policy", policy]), "OK");
}

#[tokio::test]
async fn evicting_servers_are_refused_unless_accepted() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let accepting = [
        RedisStore::builder(server.url()).accept_eviction().build().unwrap(),
        patient(&format!("{}?eviction=accepted", server.url())),
    ];
    for policy in EVICTING {
        set_policy(&server, policy);
        let (store, key) = (patient(&server.url()), fresh_key());
        for _ in 0..2 {
            let error = claim(&store, &key).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{}", chain(&error));
            assert!(!error.is_maybe_applied(), "{}", chain(&error));
            for words in [policy, "eviction=accepted"] {
                assert!(error.to_string().contains(words), "{error}");
            }
        }
        assert_eq!(store.read(&key).await.unwrap(), None);
        let found = store.check_servers().await.unwrap();
        let (address, policy) = (server.address().to_string(), policy.to_owned());
        assert_eq!(found, [TableProblem::Evicts { server: address, policy }]);
        for store in &accepting {
            assert_eq!(claim(store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
            assert_eq!(store.check_servers().await.unwrap(), []);
        }
        // Once the policy is right, the same store works.
        set_policy(&server, "noeviction");
        claimed(&store, &key).await;
        assert_eq!(store.check_servers().await.unwrap(), []);
    }
}

/// A handler that has run must be able to record its outcome, whatever the server's policy is by then.
#[tokio::test]
async fn evicting_servers_still_record_outcomes() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let keys = [fresh_key(), fresh_key()];
    for key in &keys {
        claimed(&patient(&server.url()), key).await;
    }
    set_policy(&server, "allkeys-lru");
    let store = patient(&server.url());
    assert_eq!(claim(&store, &keys[0]).await.unwrap(), PutOutcome::Refused(Some(started())));
    assert_eq!(store.put(&keys[0], &complete()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(store.put(&keys[1], &extend(1_795_000_090_000)).await.unwrap(), PutOutcome::Applied);
}

fn user(server: &RedisServer, name: &str, without: &str, more: &[&str]) -> RedisStore {
    let mut rule = vec!["ACL", "SETUSER", name, "reset", "on", ">pw", "~idempotency:*", "+ping"];
    rule.extend(NEEDED.iter().filter(|command| **command != without));
    rule.extend(more);
    assert_eq!(server.run(&rule), "OK");
    patient(&format!("redis://{name}:pw@{}", server.address()))
}

#[tokio::test]
async fn missing_permissions_refuse_the_first_claim() {
    let Some(server) = RedisServer::start(&[]) else { return };
    // The server knows the script, so that a user without EVAL gets as far as the check.
    claimed(&patient(&server.url()), &fresh_key()).await;
    for lock in [lock(), puts::lasting(lock())] {
        for without in NEEDED {
            let (store, key) = (user(&server, "less", without, &["+info"]), fresh_key());
            let error = store.put(&key, &puts::claim(lock.clone())).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{without}: {}", chain(&error));
            assert_eq!(patient(&server.url()).read(&key).await.unwrap(), None, "{without}");
            if !["+evalsha", "+exists"].contains(&without) {
                assert!(!error.is_maybe_applied(), "{without}: {}", chain(&error));
                assert!(error.to_string().contains(&without[1..]), "{error}");
            }
            if without != "+eval" {
                let missing = vec![without.to_owned()];
                assert_eq!(store.check_servers().await.unwrap(), [TableProblem::Privileges { missing }]);
            }
        }
    }
    let all = user(&server, "all", "", &["+info"]);
    assert_eq!(all.check_servers().await.unwrap(), []);
    claimed(&all, &fresh_key()).await;
}

/// The permission to ask for the policy isn't needed.
#[tokio::test]
async fn unknown_policies_are_only_noted() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = user(&server, "blind", "", &[]);
    claimed(&store, &fresh_key()).await;
    let problems = store.check_servers().await.unwrap();
    let unknown = TableProblem::EvictionUnknown { server: server.address().to_string() };
    assert!(unknown.is_note());
    assert_eq!(problems, [unknown]);
}

/// Redis 6 has no function to check a permission in a script, so the script tries the commands.
#[test]
fn old_servers_try_the_commands() {
    let Some(server) = shared() else { return };
    let script = concat!(include_str!("../../src/fitness.lua"), "return table.concat(lacks(KEYS[1]), ',')");
    let script = script.replace("redis.acl_check_cmd", "nil");
    for (without, expected) in [
        ("", ""),
        ("+hdel", "hdel"),
        ("+pexpireat", "pexpireat"),
        ("+persist", "persist"),
        ("+hgetall", "hgetall"),
    ] {
        user(server, "old", without, &[]);
        let key = format!("idempotency:{}", fresh_key());
        let answer = server.run_as(&["old", "pw"], &["EVAL", &script, "1", &key]);
        assert_eq!(answer, expected);
        assert_eq!(server.run(&["EXISTS", &key]), "0");
    }
}
