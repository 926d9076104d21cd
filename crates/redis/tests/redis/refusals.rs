//! Commands that a server rejects. Each error has the right kind, says what to do, and is definite.

use lambda_idempotency::store::{Outcome, Place, PutOutcome, Store, StoreErrorKind, StoredResponse};
use testkit::puts::{self, Settlement};

use super::fixtures::{
    EXPIRES_AT, chain, claim, claimed, complete, completed, extend, fresh_key, lasting, lock, ms, patient,
    settle, started, until, writes_on_started,
};
use testkit::redis::{RedisServer, shared};

/// Checks that the server rejects a claim with a definite error of this kind, whose message contains `says`.
async fn refused(server: &RedisServer, kind: StoreErrorKind, says: &str) {
    let (store, key) = (patient(&server.url()), fresh_key());
    let error = claim(&store, &key).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{}", chain(&error));
    assert!(!error.is_maybe_applied(), "{}", chain(&error));
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test]
async fn full_memory_refuses_claims_not_settlements() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = patient(&server.url());
    let mut open = Vec::new();
    for write in writes_on_started() {
        let key = fresh_key();
        claimed(&store, &key).await;
        open.push((key, write));
    }
    server.run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(server.run(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    refused(&server, StoreErrorKind::Unavailable, "no memory left").await;
    for (key, write) in open {
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied, "{write:?}");
        assert_eq!(store.read(&key).await.unwrap(), write.apply_to(Some(&started())), "{write:?}");
    }
    // The server forgets the script, so the store has to send the script's source. The error must be the same.
    server.run(&["SCRIPT", "FLUSH"]);
    refused(&server, StoreErrorKind::Unavailable, "no memory left").await;
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
}

#[tokio::test]
async fn replicas_reject_writes_and_change_nothing() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    claimed(&store, &key).await;
    // The server becomes a replica of a primary that doesn't exist.
    server.run(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    assert_eq!(server.run(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    refused(&server, StoreErrorKind::Unavailable, "is a read-only replica").await;
    for write in writes_on_started() {
        let error = store.put(&key, &write).await.unwrap_err();
        assert!(!error.is_maybe_applied(), "{error}");
    }
    assert_eq!(store.read(&key).await.unwrap(), Some(started()));
    server.run(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    refused(&server, StoreErrorKind::Unavailable, "has lost its primary").await;
    server.run(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
}

#[tokio::test]
async fn server_with_too_few_replicas_rejects_writes() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    claimed(&store, &key).await;
    server.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    refused(&server, StoreErrorKind::Unavailable, "fewer replicas").await;
    for write in writes_on_started() {
        let error = store.put(&key, &write).await.unwrap_err();
        assert!(!error.is_maybe_applied(), "{error}");
    }
    // The server answers commands that need no write.
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(started())));
    assert_eq!(store.read(&key).await.unwrap(), Some(started()));
}

#[tokio::test]
async fn servers_that_cannot_save_are_reported() {
    let Some(server) = RedisServer::start(&[]) else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    server.run(&["CONFIG", "SET", "save", "3600 1"]);
    // The server can't save into its folder any more, since the folder has another name now.
    let gone = server.folder().with_extension("gone");
    std::fs::rename(server.folder(), &gone).unwrap();
    server.run(&["BGSAVE"]);
    for _ in 0..200 {
        if server.run(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err") {
            refused(&server, StoreErrorKind::Unavailable, "can't save").await;
            std::fs::rename(gone, server.folder()).unwrap();
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    std::fs::rename(gone, server.folder()).unwrap();
    // A server that keeps its folder open can still save.
    eprintln!("SKIPPED: this server can save into a renamed folder");
}

#[tokio::test]
async fn servers_still_loading_are_reported() {
    let Some(server) = RedisServer::start(&["--enable-debug-command", "yes"]) else { return };
    let store = patient(&server.url());
    claimed(&store, &fresh_key()).await;
    assert_eq!(server.run(&["DEBUG", "POPULATE", "200", "k", "10"]), "OK");
    // Loading takes a tenth of a second per key. Until it's done, the server answers every command with LOADING.
    server.run(&["CONFIG", "SET", "key-load-delay", "100000"]);
    server.run(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    let address = server.address();
    let reload = std::thread::spawn(move || {
        use std::io::Write as _;
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"DEBUG RELOAD\r\n").unwrap();
        std::thread::sleep(std::time::Duration::from_secs(4));
    });
    for _ in 0..60 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        match claim(&store, &fresh_key()).await {
            Err(error) if error.to_string().contains("still loading") => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable);
                assert!(!error.is_maybe_applied(), "{error}");
                return;
            }
            _ => {}
        }
    }
    reload.join().unwrap();
    panic!("the server never reported that it's loading");
}

#[tokio::test]
async fn busy_servers_are_reported() {
    let Some(server) = RedisServer::start(&["--busy-reply-threshold", "1"]) else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let address = server.address();
    let busy = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n").unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    until("the script runs", || server.run(&["PING"]).starts_with("-BUSY")).await;
    refused(&server, StoreErrorKind::Unavailable, "busy").await;
    assert_eq!(server.run(&["SCRIPT", "KILL"]), "OK");
    busy.join().unwrap();
}

#[tokio::test]
async fn login_errors_are_reported_without_secrets() {
    let Some(server) = RedisServer::start(&["--requirepass", "correct"]) else { return };
    for user in ["", ":secret@", "default:secret@", "nobody:secret@"] {
        let store = patient(&format!("redis://{user}{}", server.address()));
        let error = claim(&store, &fresh_key()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{user}: {}", chain(&error));
        assert!(!error.is_maybe_applied(), "{user}: {}", chain(&error));
        assert!(error.to_string().contains("check both in the URL"), "{user}: {}", chain(&error));
        assert!(!chain(&error).contains("secret"), "{}", chain(&error));
        assert!(!format!("{store:?}").contains("secret"), "{store:?}");
    }
    for user in [":correct@", "default:correct@"] {
        let store = patient(&format!("redis://{user}{}/2", server.address()));
        assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
    }
    // The reverse: the URL has a password, but the server doesn't require one.
    let Some(server) = shared() else { return };
    let error =
        claim(&patient(&format!("redis://:secret@{}", server.address())), &fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}");
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    let error = claim(&patient(&format!("redis://{}/99", server.address())), &fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}");
    assert!(error.to_string().contains("no database"), "{error}");
}

#[tokio::test]
async fn documented_permissions_are_sufficient_and_necessary() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let needed =
        ["+evalsha", "+eval", "+exists", "+hget", "+hgetall", "+hset", "+hdel", "+pexpireat", "+persist"];
    let user = |name: &str, without: &str| {
        let mut rule = vec!["ACL", "SETUSER", name, "reset", "on", ">pw", "~idempotency:*", "+ping"];
        rule.extend(needed.iter().filter(|command| **command != without));
        assert_eq!(server.run(&rule), "OK");
        patient(&format!("redis://{name}:pw@{}", server.address()))
    };
    let store = user("enough", "");
    for write in writes_on_started() {
        let key = fresh_key();
        assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied, "{write:?}");
        assert_eq!(store.read(&key).await.unwrap(), write.apply_to(Some(&started())));
    }
    for without in needed {
        // The server forgets the script, so the store has to send the script's source. Otherwise this loop wouldn't
        // test `+eval`.
        server.run(&["SCRIPT", "FLUSH"]);
        let (store, key) = (user("less", without), fresh_key());
        let mut refusals = Vec::new();
        for write in [puts::claim(lock()), complete(), puts::claim(lock())] {
            refusals.extend(store.put(&key, &write).await.err());
        }
        refusals.extend(store.put(&fresh_key(), &puts::claim(lasting())).await.err());
        refusals.extend(store.read(&key).await.err());
        assert!(!refusals.is_empty(), "{without} isn't needed");
        for error in &refusals {
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{without}: {error}");
            assert!(error.to_string().contains("doesn't let this user"), "{without}: {error}");
        }
    }
    // This user has access to other keys only.
    server.run(&["ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all"]);
    let store = patient(&format!("redis://elsewhere:pw@{}", server.address()));
    assert_eq!(claim(&store, &fresh_key()).await.unwrap_err().kind(), StoreErrorKind::Rejected);
}

/// The server would reject an oversized response at every retry. `Unstorable` tells the library to record the outcome
/// without the response instead.
#[tokio::test]
async fn oversized_responses_are_unstorable() {
    let Some(server) = RedisServer::start(&["--proto-max-bulk-len", "1mb"]) else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    claimed(&store, &key).await;
    let settled = |kept: Vec<u8>| {
        let response = StoredResponse {
            deflated: false,
            length: kept.len() as u64,
            sha256: [0; 32],
            labels: None,
            place: Place::Inline(kept.into()),
        };
        settle(Settlement::Complete(Outcome::Retained(response), ms(EXPIRES_AT)))
    };
    // Two lengths over this server's limit, twenty times each. The server may close the connection at any point during
    // the upload, and the store must still read the server's reason every time. The last length is over Redis's default
    // limit, so the store doesn't even send the response. That response takes no memory, since nothing writes to its
    // pages.
    for length in [[(1 << 20) + 1; 20], [48 << 20; 20]].concat().into_iter().chain([(512 << 20) + 1]) {
        let error = store.put(&key, &settled(vec![0; length])).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unstorable, "{length}: {}", chain(&error));
        assert!(!error.is_maybe_applied(), "{length}: {}", chain(&error));
        assert_eq!(store.read(&key).await.unwrap(), Some(started()));
    }
    assert_eq!(store.put(&key, &settled(vec![0; 1 << 20])).await.unwrap(), PutOutcome::Applied);
}

#[tokio::test]
async fn redis_key_of_wrong_type_is_corrupt() {
    let Some(server) = shared() else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    let redis_key = format!("idempotency:{key}");
    server.run(&["SET", &redis_key, "secret"]);
    for write in [puts::claim(lock()), complete(), extend(1)] {
        let error = store.put(&key, &write).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(!error.is_maybe_applied(), "{error}");
        assert!(!chain(&error).contains("secret"), "{error}");
    }
    assert_eq!(store.read(&key).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(server.run(&["GET", &redis_key]), "secret");
    server.run(&["DEL", &redis_key]);
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(store.read(&key).await.unwrap(), Some(completed()));
}

#[tokio::test]
async fn exhausted_client_limits_are_reported() {
    let Some(server) = RedisServer::start(&["--maxclients", "1"]) else { return };
    // Takes the server's only client slot. The startup check's connection may still use it, so this retries until that
    // connection is closed.
    let _taken = loop {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 1];
        if stream.read(&mut answer).is_ok_and(|read| read == 1) && answer == *b"+" {
            break stream;
        }
    };
    for user in ["", ":pw@"] {
        let store = patient(&format!("redis://{user}{}", server.address()));
        let error = claim(&store, &fresh_key()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", chain(&error));
    }
}
