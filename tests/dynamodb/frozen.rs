//! Connections that died while the sandbox was frozen. DynamoDB is up, so the first run afterwards must succeed, and
//! soon, however many connections died.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use futures_util::future::join_all;
use lambda_idempotency::{
    Key, Scope, StoredKey,
    store::{PutOutcome, Store as _, dynamodb::DynamoDbStore},
};
use testkit::puts;
use testkit::{
    links::{Death, Links},
    unpaused::unpaused,
};

use super::{
    emulator::{TABLE, bare_config, builder, emulator},
    fixtures::{lock, release, settle},
};

/// How much longer than an attempt's limit the first run may take: less than one more attempt.
const MARGIN: Duration = Duration::from_millis(900);
const ATTEMPT: Duration = Duration::from_secs(1);
/// The limit of an attempt where the time isn't measured. An answer that takes longer is lost, and the next attempt finds
/// the first one's claim.
const PATIENT: Duration = Duration::from_secs(6);

fn key(n: usize) -> StoredKey {
    StoredKey::new(&Scope::new("payments", "http").unwrap(), &Key::new(format!("order-{n}")).unwrap())
}

/// Claims `key`, and releases it. Returns whether both happened at the first answer.
async fn runs(store: &DynamoDbStore, key: &StoredKey) -> bool {
    let mut applied = true;
    for write in [puts::claim(lock()), settle(release(false))] {
        applied &= store.put(key, &write).await.unwrap() == PutOutcome::Applied;
    }
    applied
}

async fn run(store: &DynamoDbStore, key: &StoredKey) {
    assert!(runs(store, key).await);
}

/// Returns a store with `count` connections that died, and their proxy.
async fn thawed(count: usize, death: Death, attempt: Duration) -> (DynamoDbStore, Links) {
    let address = emulator().await;
    builder(address).build().await.unwrap().create_table().await.unwrap();
    let links = Links::before(address);
    let client = Client::from_conf(bare_config(links.address()).build());
    let store = DynamoDbStore::builder(TABLE).client(client).operation_timeout(Duration::from_secs(20));
    let patient = store.clone().attempt_timeout(Duration::from_secs(20)).build().await.unwrap();
    // Warms up the emulator. These connections belong to another store.
    run(&patient, &key(1_000)).await;
    let store = store.attempt_timeout(attempt).build().await.unwrap();
    links.delay(Duration::from_millis(600));
    let before = links.made();
    let keys: Vec<_> = (0..count).map(key).collect();
    join_all(keys.iter().map(|key| store.read(key)))
        .await
        .into_iter()
        .for_each(|read| assert!(read.is_ok(), "{read:?}"));
    assert!(links.made() >= before + count, "{} connections", links.made() - before);
    links.delay(Duration::ZERO);
    links.kill(death);
    (store, links)
}

#[tokio::test(flavor = "multi_thread")]
async fn first_run_after_a_freeze_is_prompt() {
    for (death, limit) in [(Death::Closes, MARGIN), (Death::Swallows, ATTEMPT + MARGIN)] {
        for count in [1, 16, 64] {
            let ran = unpaused(
                async || {
                    let (store, _links) = thawed(count, death, ATTEMPT).await;
                    let start = Instant::now();
                    (runs(&store, &key(0)).await, start.elapsed())
                },
                |(applied, took)| *applied && *took < limit,
            );
            let (applied, took) = ran.await;
            eprintln!("{death:?} {count}: {took:?}");
            assert!(applied && took < limit, "{death:?} {count}: {took:?}");
        }
    }
}

/// The SDK's own quota of retries would end after 50 timeouts.
#[tokio::test(flavor = "multi_thread")]
async fn every_message_of_a_batch_survives_the_freeze() {
    for death in [Death::Closes, Death::Swallows] {
        let (store, _links) = thawed(64, death, PATIENT).await;
        let keys: Vec<_> = (0..64).map(key).collect();
        join_all(keys.iter().map(|key| run(&store, key))).await;
    }
}

/// After the restore of a snapshot, neither clock needs to show that time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_never_used() {
    for closes in [true, false] {
        let (store, links) = thawed(16, Death::Swallows, PATIENT).await;
        if closes {
            store.close_connections();
        }
        run(&store, &key(0)).await;
        assert_eq!(links.lost() > 0, !closes, "{} requests were lost", links.lost());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_idle_connections_are_never_used() {
    let (store, links) = thawed(16, Death::Swallows, PATIENT).await;
    tokio::time::sleep(Duration::from_millis(20_500)).await;
    let keys: Vec<_> = (0..16).map(key).collect();
    join_all(keys.iter().map(|key| run(&store, key))).await;
    assert_eq!(links.lost(), 0);
}
