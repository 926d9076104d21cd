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
/// How much longer than an attempt's limit the first run may take: less than one more attempt.
const MARGIN: Duration = Duration::from_millis(900);
/// The limit of an attempt where the time isn't measured. An answer that takes longer is lost, and the next attempt finds
/// the first one's claim.
const PATIENT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn first_run_after_a_freeze_is_prompt() {
    let Some(server) = shared() else { return };
    for (death, limit) in [(Death::Closes, MARGIN), (Death::Swallows, ATTEMPT + MARGIN)] {
        let ran = unpaused(
            async || {
                let links = Links::before(server.address());
                let store = RedisStore::builder(format!("redis://{}", links.address()));
                let store = store.operation_timeout(Duration::from_secs(20)).build().unwrap();
                store.read(&fresh_key()).await.unwrap();
                links.kill(death);
                let (start, key) = (Instant::now(), fresh_key());
                let claimed = claim(&store, &key).await.unwrap();
                let completed = store.put(&key, &complete()).await.unwrap();
                ([claimed, completed] == [PutOutcome::Applied, PutOutcome::Applied], start.elapsed())
            },
            |(applied, took)| *applied && *took < limit,
        );
        let (applied, took) = ran.await;
        assert!(applied && took < limit, "{death:?}: {took:?}");
    }
}

/// After the restore of a snapshot, neither clock needs to show that time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_never_used() {
    let Some(server) = shared() else { return };
    for (closes, lost) in [(true, 0), (false, 1)] {
        let links = Links::before(server.address());
        let store = RedisStore::builder(format!("redis://{}", links.address())).attempt_timeout(PATIENT);
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
    let store = RedisStore::builder(format!("redis://{}", links.address())).attempt_timeout(PATIENT);
    let store = store.operation_timeout(Duration::from_secs(20)).build().unwrap();
    store.read(&fresh_key()).await.unwrap();
    links.kill(Death::Swallows);
    tokio::time::sleep(Duration::from_millis(20_500)).await;
    assert_eq!(claim(&store, &fresh_key()).await.unwrap(), PutOutcome::Applied);
    assert_eq!(links.lost(), 0);
}
