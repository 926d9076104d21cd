//! Passwords that change under load. No run fails that a reconnection could have saved.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lambda_idempotency::{
    Idempotency,
    store::{Store as _, StoreErrorKind, redis::RedisStore},
};
use testkit::{load::under_load, redis::RedisServer};
use tokio::sync::Mutex;

use super::fixtures::fresh_key;

const ROTATIONS: usize = 20;

/// Changes the password of the user `app`, and closes its connections.
fn rotate(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let user = ["ACL", "SETUSER", "app", "on", "resetpass", &password, "~*", "&*", "+@all"];
    assert_eq!(server.run(&user), "OK");
    server.run(&["CLIENT", "KILL", "USER", "app"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rotating_passwords_fail_no_run() {
    let Some(server) = RedisServer::start(&[]) else { return };
    rotate(&server, "first");
    let password = Arc::new(Mutex::new("first".to_owned()));
    let (current, asked) = (Arc::clone(&password), Arc::<AtomicUsize>::default());
    let count = Arc::clone(&asked);
    let store = RedisStore::builder(server.url()).password_from("app", move || {
        let current = Arc::clone(&current);
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Infallible>(current.lock().await.clone()) }
    });
    let store = store.build().unwrap();
    let idempotency = Idempotency::builder(store).function("rotation").build().unwrap();
    let ended = under_load(&idempotency, ROTATIONS, async |nth| {
        // The server's password and the code's change together.
        let mut current = password.lock().await;
        *current = format!("password-{nth}");
        rotate(&server, &current);
    });
    let (ended, asked) = (ended.await, asked.load(Ordering::SeqCst));
    eprintln!("{ended:?}; the password was asked for {asked} times");
    assert_eq!(ended.failed, 0);
    assert!(
        (ROTATIONS..ended.runs).contains(&asked),
        "asked {asked} times: for each connection, and not for each run"
    );
}

/// Without asking, the same change fails: the test above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn fixed_passwords_fail_after_a_rotation() {
    let Some(server) = RedisServer::start(&[]) else { return };
    rotate(&server, "first");
    let store = RedisStore::builder(server.url()).credentials("app", "first").build().unwrap();
    assert!(store.read(&fresh_key()).await.is_ok());
    rotate(&server, "second");
    let error = store.read(&fresh_key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
}

/// The code that returns the password fails: nothing was sent, and the call may succeed later.
#[tokio::test(flavor = "multi_thread")]
async fn missing_passwords_are_definite_and_transient() {
    let Some(server) = RedisServer::start(&[]) else { return };
    rotate(&server, "first");
    let fails = || async { Err::<String, _>(io::Error::other("AccessDenied")) };
    let store = RedisStore::builder(server.url()).password_from("app", fails).build().unwrap();
    let error = store.read(&fresh_key()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false));
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.to_string().contains("password") && cause.contains("AccessDenied"), "{error}: {cause}");
    // A password that stays wrong is refused, as without asking.
    let wrong = || async { Ok::<_, Infallible>("wrong".to_owned()) };
    let store = RedisStore::builder(server.url()).password_from("app", wrong).build().unwrap();
    assert_eq!(store.read(&fresh_key()).await.unwrap_err().kind(), StoreErrorKind::Rejected);
}
