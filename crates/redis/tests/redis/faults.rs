//! Connections that fail before or after a command arrives. After a failed write, the store reports "not applied" only
//! if that's certain, and otherwise "maybe applied". If a connection died while idle, the next call still succeeds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use lambda_idempotency::{
    Idempotency, Key,
    store::{PutOutcome, Store, StoreErrorKind, redis::RedisStore},
};
use testkit::puts;

use super::{
    fixtures::{
        ATTEMPT, chain, claim, claimed, complete, completed, fresh_key, hasty, lock, patient, resending,
        settle, settlements, started, until_clients, writes_on_started,
    },
    wire::{Reply, Wire},
};
use testkit::redis::{RedisServer, shared};

const LOST: [Reply; 2] = [Reply::ForwardThenClose, Reply::ForwardThenHang];

#[tokio::test]
async fn each_failure_reports_maybe_applied_correctly() {
    use Reply::{Answer, Close, Hang, Reset};
    let oom = Answer("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    let cases: Vec<(&str, Vec<Reply>, bool, usize)> = vec![
        ("no answer", vec![Hang], true, 2),
        ("closed", vec![Close], true, 2),
        ("reset", vec![Reset], true, 2),
        ("no memory", vec![oom], false, 1),
        ("closed, then no memory", vec![Close, oom], true, 2),
        ("hangs, then no memory", vec![Hang, oom], true, 2),
        ("a replica on every attempt", vec![Answer("-READONLY secret\r\n")], false, 2),
        ("HTTP", vec![Answer("HTTP/1.1 400 secret\r\n\r\n")], true, 1),
        ("a response of another type", vec![Answer("$6\r\nsecret\r\n")], true, 1),
    ];
    for (name, script, maybe_applied, commands) in cases {
        let hangs = script.iter().any(|reply| matches!(reply, Hang));
        let store = |wire: &Wire| if hangs { hasty(&wire.url()) } else { patient(&wire.url()) };
        let wire = Wire::scripted(None, &script).await;
        let began = Instant::now();
        let error = claim(&store(&wire), &fresh_key()).await.unwrap_err();
        // Calls that hang have a short timeout. No other call waits for its attempt timeout of 20 s.
        assert!(began.elapsed() < Duration::from_secs(15), "{name}: {:?}", began.elapsed());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{name}: {error}");
        assert_eq!(error.is_maybe_applied(), maybe_applied, "{name}: {error}");
        assert!(!chain(&error).contains("secret"), "{name}: {}", chain(&error));
        assert_eq!(wire.commands().len(), commands, "{name}: {:?}", wire.commands());
        // A failed read has written nothing.
        let wire = Wire::scripted(None, &script).await;
        let error = store(&wire).read(&fresh_key()).await.unwrap_err();
        assert!(!error.is_maybe_applied(), "{name}: {error}");
    }
}

#[tokio::test]
async fn refused_connections_fail_fast_as_unapplied() {
    // No other test can use this socket's port, and the socket never listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let store = patient(&format!("redis://user:secret@{address}"));
    for write in [puts::claim(lock()), complete()] {
        let began = Instant::now();
        let error = store.put(&fresh_key(), &write).await.unwrap_err();
        // The store doesn't wait for an attempt's timeout of 20 s.
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!error.is_maybe_applied(), "no server could have applied the write");
        assert!(error.to_string().contains("couldn't be reached"), "{error}");
        assert!(chain(&error).contains("Connection refused"), "{}", chain(&error));
        assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    }
}

#[tokio::test]
async fn unreachable_hosts_fail_fast_as_unapplied() {
    // Fills the listener's backlog, so that the kernel leaves the next connection waiting.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fillers = Vec::new();
    for _ in 0..3 {
        let connect = tokio::net::TcpStream::connect(address);
        fillers.push(tokio::time::timeout(Duration::from_millis(100), connect).await);
    }
    let began = Instant::now();
    let error = claim(&hasty(&format!("redis://{address}")), &fresh_key()).await.unwrap_err();
    // The call doesn't wait for the operation timeout of a minute.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(!error.is_maybe_applied(), "{error}");
    assert!(error.to_string().contains("couldn't be reached"), "{error}");
}

#[tokio::test]
async fn lost_commands_are_retried() {
    let Some(server) = shared() else { return };
    for lost in [Reply::Close, Reply::Reset, Reply::Hang] {
        let wire = Wire::scripted(Some(server.address()), &[lost, Reply::Forward]).await;
        let key = fresh_key();
        assert_eq!(claim(&resending(&wire.url()), &key).await.unwrap(), PutOutcome::Applied, "{lost:?}");
        assert_eq!(patient(&server.url()).read(&key).await.unwrap(), Some(started()));
    }
}

#[tokio::test]
async fn retried_writes_find_their_own_record() {
    let Some(server) = shared() else { return };
    let direct = patient(&server.url());
    // Loads the script, so that each transition is one command.
    claimed(&direct, &fresh_key()).await;
    for lost in LOST {
        let wire = Wire::scripted(Some(server.address()), &[lost, Reply::Forward]).await;
        let key = fresh_key();
        let written = claim(&resending(&wire.url()), &key).await.unwrap();
        assert_eq!(written, PutOutcome::Refused(Some(started())));
        // The writes run concurrently, because each hanging attempt takes seconds.
        let writes = writes_on_started().into_iter().map(|write| {
            let direct = &direct;
            async move {
                let key = fresh_key();
                claimed(direct, &key).await;
                let wire = Wire::scripted(Some(server.address()), &[lost, Reply::Forward]).await;
                let written = resending(&wire.url()).put(&key, &write).await.unwrap();
                let after = write.apply_to(Some(&started()));
                // The store sends the write twice. The second time, the write's condition fails, even if it's a release
                // or an operator's write.
                assert_eq!(written, PutOutcome::Refused(after), "{write:?}");
            }
        });
        join_all(writes).await;
    }
}

#[tokio::test]
async fn writes_without_answers_are_ambiguous() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    for lost in LOST {
        let wire = Wire::scripted(Some(server.address()), &[lost]).await;
        let key = fresh_key();
        let error = claim(&hasty(&wire.url()), &key).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.is_maybe_applied());
        assert_eq!(patient(&server.url()).read(&key).await.unwrap(), Some(started()));
    }
}

#[tokio::test]
async fn lost_completion_answers_are_resolved() {
    let Some(server) = shared() else { return };
    for lost in LOST {
        // The first command is the claim. The next EVALSHA is the completion, whose answer is lost.
        let wire = Wire::new(Some(server.address()), {
            let settles = std::sync::atomic::AtomicBool::new(false);
            move |nth, name| match name {
                "EVALSHA" if nth > 0 && !settles.swap(true, std::sync::atomic::Ordering::Relaxed) => lost,
                _ => Reply::Forward,
            }
        })
        .await;
        claimed(&patient(&server.url()), &fresh_key()).await;
        let engine = Idempotency::builder(resending(&wire.url()))
            .function("payments")
            .build()
            .unwrap()
            .operation("pay")
            .unwrap();
        let key = Key::new(lambda_idempotency::store::Owner::random().unwrap().to_string()).unwrap();
        for _ in 0..2 {
            let done: String = engine
                .run(key.clone(), &1, async || Ok::<_, std::io::Error>("done".to_owned()))
                .await
                .unwrap();
            assert_eq!(done, "done");
        }
        assert_eq!(wire.commands(), ["EVALSHA"; 4], "a claim, a completion twice, a duplicate");
    }
}

#[tokio::test]
async fn first_runs_take_two_requests_duplicates_one() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let wire = Wire::scripted(Some(server.address()), &[Reply::Forward]).await;
    let engine = Idempotency::builder(patient(&wire.url()))
        .function("payments")
        .build()
        .unwrap()
        .operation("pay")
        .unwrap();
    let key = Key::new(lambda_idempotency::store::Owner::random().unwrap().to_string()).unwrap();
    let run = || engine.run(key.clone(), &"12.50", async || Ok::<_, std::io::Error>("x".repeat(100_000)));
    let first: String = run().await.unwrap();
    assert_eq!(wire.commands(), ["EVALSHA"; 2]);
    let second: String = run().await.unwrap();
    assert_eq!(wire.commands(), ["EVALSHA"; 3]);
    assert_eq!(first, second);
}

#[tokio::test]
async fn every_transition_is_one_request() {
    let Some(server) = shared() else { return };
    let direct = patient(&server.url());
    claimed(&direct, &fresh_key()).await;
    let wire = Wire::scripted(Some(server.address()), &[Reply::Forward]).await;
    let store = patient(&wire.url());
    let mut made = 0;
    for write in writes_on_started() {
        let key = fresh_key();
        claimed(&direct, &key).await;
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
        assert_eq!(store.put(&key, &puts::claim(lock())).await.unwrap(), {
            PutOutcome::Refused(write.apply_to(Some(&started())))
        });
        made += 2;
        assert_eq!(wire.commands().len(), made, "{write:?}");
    }
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    // The test flushes the scripts, so it needs its own server.
    let Some(server) = RedisServer::start(&[]) else { return };
    let wire = Wire::scripted(Some(server.address()), &[Reply::Forward]).await;
    let (store, key) = (patient(&wire.url()), fresh_key());
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
    assert_eq!(wire.commands(), ["EVALSHA", "EVAL"]);
    assert_eq!(server.run(&["SCRIPT", "FLUSH"]), "OK");
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(wire.commands(), ["EVALSHA", "EVAL", "EVALSHA", "EVAL"]);
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(completed())));
    assert_eq!(wire.commands().len(), 5);
}

#[tokio::test]
async fn connections_that_died_idle_are_replaced() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let wire = Wire::scripted(Some(server.address()), &[Reply::Forward]).await;
    for (store, kill) in [
        (
            patient(&server.url()),
            Box::new(|| drop(server.run(&["CLIENT", "KILL", "TYPE", "normal"]))) as Box<dyn Fn()>,
        ),
        (patient(&wire.url()), Box::new(|| wire.cut())),
    ] {
        for settlement in settlements() {
            let key = fresh_key();
            assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
            kill();
            let written = store.put(&key, &settle(settlement)).await;
            assert_eq!(written.unwrap(), PutOutcome::Applied);
        }
    }
}

#[tokio::test]
async fn connections_with_unexpected_data_are_closed() {
    let Some(server) = shared() else { return };
    for odd in ["$6\r\nsecret\r\n", ":2\r\n", "+OK\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let wire = Wire::scripted(Some(server.address()), &[Reply::Answer(odd), Reply::Forward]).await;
        let (store, key) = (patient(&wire.url()), fresh_key());
        let error = claim(&store, &key).await.unwrap_err();
        assert!(error.is_maybe_applied() && error.to_string().contains("isn't Redis"), "{error}");
        claimed(&store, &key).await;
        assert_eq!(wire.connections(), 2, "{odd}");
    }
}

/// The connection is open but carries no data, as after hours in a frozen sandbox.
#[tokio::test]
async fn silent_connections_cost_one_timeout() {
    let Some(server) = shared() else { return };
    // The third command is lost, with everything that follows on its connection.
    let wire =
        Wire::new(Some(server.address()), |nth, _| if nth == 2 { Reply::Hang } else { Reply::Forward }).await;
    claimed(&patient(&server.url()), &fresh_key()).await;
    let (store, key) = (resending(&wire.url()), fresh_key());
    claimed(&store, &key).await;
    assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Refused(Some(started())));
    let began = Instant::now();
    assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
    assert!(began.elapsed() < 2 * ATTEMPT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn dropped_requests_keep_the_shared_connection() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = Arc::new(patient(&server.url()));
    claimed(&store, &fresh_key()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200u64 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let key = fresh_key();
            if n % 3 == 0 {
                let _ = tokio::time::timeout(Duration::from_micros(n), claim(&store, &key)).await;
            } else {
                assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
                assert_eq!(store.read(&key).await.unwrap(), Some(started()));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    // One connection is the store's. The other is the test's own, through `RedisServer::run`.
    until_clients(&server, 2).await;
    drop(store);
    until_clients(&server, 1).await;
}

/// A program may use one store in several runtimes. A connection ends with its runtime, so the next call opens a new
/// connection.
#[test]
fn stores_outlive_their_runtime() {
    let Some(server) = shared() else { return };
    let store: RedisStore = patient(&server.url());
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let written = runtime.block_on(claim(&store, &fresh_key())).unwrap();
        assert_eq!(written, PutOutcome::Applied);
    }
}

#[tokio::test]
async fn failures_while_authenticating_are_definite() {
    let wire = Wire::new(None, |_, _| Reply::Close).await;
    let error =
        claim(&patient(&format!("redis://:secret@{}", wire.address)), &fresh_key()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false));
    assert!(error.to_string().contains("couldn't be reached"), "{}", chain(&error));
    assert!(wire.commands().iter().all(|name| name == "AUTH"), "{:?}", wire.commands());
}
