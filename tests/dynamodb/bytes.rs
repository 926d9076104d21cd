//! How many bytes each request's body has.

use lambda_idempotency::store::{PutOutcome, Store as _};
use testkit::puts::{self, Settlement};

use super::{
    emulator::on,
    fixtures::{SETTLED_UNTIL, inline, key, lock, ms, next_lock, release, settle, started},
    wire::{Reply, Wire},
};

/// The limits are the lengths with version 3 of the record, the shortest so far.
#[tokio::test]
async fn requests_are_no_longer_than_before() {
    let extension = puts::extend(&lock(), ms(1_795_000_090_000), Some(ms(2_095_086_491_000)));
    let mut lengths = Vec::new();
    for (name, put, limit) in [
        ("claim of a first run or a duplicate", puts::claim(lock()), 633),
        ("claim, at most once", puts::claim(puts::lasting(lock())), 635),
        ("completion", settle(Settlement::Complete(inline(), SETTLED_UNTIL)), 725),
        ("takeover", puts::take_over(&started(), next_lock()), 881),
        ("extension", extension, 621),
        ("release", settle(release(false)), 638),
        ("release, interrupted", settle(release(true)), 666),
    ] {
        let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
        assert_eq!(on(&wire).await.put(&key(), &put).await.unwrap(), PutOutcome::Applied);
        let [body] = wire.bodies().try_into().unwrap();
        lengths.push((name, body.len(), limit));
    }
    assert!(lengths.iter().all(|(_, length, limit)| length <= limit), "{lengths:#?}");
}
