//! Connections that died while the sandbox was frozen. The server is up, so the first run afterwards must succeed, and
//! soon.

use std::time::{Duration, Instant};

use lambda_idempotency::store::{PutOutcome, Store, redis::RedisStore};
use testkit::{
    links::{Death, Links},
    redis::shared,
    unpaused::unpaused,
};

use super::fixtures::{claim, complete, fresh_key};

const ATTEMPT: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn first_run_after_a_freeze_is_prompt() {
    let Some(server) = shared() else { return };
    for (death, limit) in [(Death::Closes, MARGIN), (Death::Swallows, ATTEMPT + MARGIN)] {
        let took = unpaused(
            async || {
                let links = Links::before(server.address());
                let store = RedisStore::builder(format!("redis://{}", links.address()));
                let store = store.operation_timeout(Duration::from_secs(20)).build().unwrap();
                store.read(&fresh_key()).await.unwrap();
                links.kill(death);
                let (start, key) = (Instant::now(), fresh_key());
                assert_eq!(claim(&store, &key).await.unwrap(), PutOutcome::Applied);
                assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
                start.elapsed()
            },
            |took| *took < limit,
        );
        let took = took.await;
        assert!(took < limit, "{death:?}: {took:?}");
    }
}

/// After the restore of a snapshot, neither clock needs to show that time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_never_used() {
    let Some(server) = shared() else { return };
    for (closes, lost) in [(true, 0), (false, 1)] {
        let links = Links::before(server.address());
        let store = RedisStore::builder(format!("redis://{}", links.address()));
        let store = store.operation_timeout(Duration::from_secs(20)).build().unwrap();
        store.read(&fresh_key()).await.unwrap();
        links.kill(Death::Swallows);
        if closes {
            store.close_connections();
        }
        assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
        assert_eq!(links.lost(), lost);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_idle_connections_are_never_used() {
    let Some(server) = shared() else { return };
    let links = Links::before(server.address());
    let store = RedisStore::new(format!("redis://{}", links.address())).unwrap();
    store.read(&fresh_key()).await.unwrap();
    links.kill(Death::Swallows);
    tokio::time::sleep(Duration::from_millis(20_500)).await;
    assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(links.lost(), 0);
}
