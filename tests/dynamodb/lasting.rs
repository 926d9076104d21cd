//! An at-most-once claim has no TTL attribute, so that DynamoDB's sweeper never deletes it. Settling the claim
//! adds the attribute.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_idempotency::store::{Lock, Outcome, Put, PutOutcome, Record, State, Store};
use testkit::puts::{self, Settlement};

use super::{
    emulator::Table,
    fixtures::{
        SETTLED_UNTIL, in_parts, inline, item, key, lasting_lock, lock, ms, n, next_lock, release, resolve,
    },
};

/// Applies these writes in order, and returns the TTL attribute after each.
async fn expiries(writes: &[Put]) -> Vec<Option<AttributeValue>> {
    let table = Table::new().await;
    let mut record: Option<Record> = None;
    let mut expiries = Vec::new();
    for write in writes {
        assert_eq!(table.store.put(&key(), write).await.unwrap(), PutOutcome::Applied, "{write:?}");
        record = write.apply_to(record.as_ref());
        assert_eq!(table.store.read(&key()).await.unwrap(), record, "{write:?}");
        let mut found = table.record_item(&key()).await.unwrap();
        assert_eq!(found, item(&key(), record.as_ref().unwrap()), "{write:?}");
        expiries.push(found.remove("expires_at"));
    }
    expiries
}

fn extend(lock: &Lock, lease_until: u64) -> Put {
    puts::extend(lock, ms(lease_until), None)
}

/// Returns a claim, two extensions, a takeover and another extension, all without an expiry, and the resulting record.
fn unsettled() -> (Vec<Put>, Record) {
    let (first, next) = (lasting_lock(), puts::lasting(next_lock()));
    let first_until = first.lease_until.as_millis();
    let extended = Lock { lease_until: ms(first_until + 1), ..first.clone() };
    let mut writes =
        vec![puts::claim(first.clone()), extend(&first, first_until + 1), extend(&extended, first_until + 2)];
    let seen = after(&writes);
    writes.push(puts::take_over(&seen, next.clone()));
    writes.push(extend(&next, next.lease_until.as_millis() + 1));
    let record = after(&writes);
    (writes, record)
}

fn after(writes: &[Put]) -> Record {
    let record = writes.iter().fold(None, |record: Option<Record>, write| write.apply_to(record.as_ref()));
    record.unwrap()
}

fn settlements() -> [(Settlement, u64); 6] {
    let until = SETTLED_UNTIL.as_millis() / 1000;
    [
        (Settlement::Complete(inline(), SETTLED_UNTIL), until),
        (Settlement::Complete(in_parts(), SETTLED_UNTIL), until),
        (Settlement::Complete(Outcome::Omitted, SETTLED_UNTIL), until),
        (Settlement::Fail(inline(), SETTLED_UNTIL), until),
        (release(false), 2_095_086_470),
        (release(true), 2_095_086_470),
    ]
}

#[tokio::test]
async fn unsettled_claims_have_no_ttl_attribute() {
    let (writes, _) = unsettled();
    assert_eq!(expiries(&writes).await, [None, None, None, None, None]);
}

#[tokio::test]
async fn every_settlement_writes_a_ttl_attribute() {
    for (settlement, until) in settlements() {
        let (mut writes, record) = unsettled();
        writes.push(puts::settle(&record.lock_until(ms(0)), settlement.clone()));
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(until)), "{settlement:?}");
        writes.pop();
        writes.push(resolve(&record, settlement.clone()));
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(until)), "operator: {settlement:?}");
        writes.pop();
        let lock = lock();
        let concluded = Record { state: State::Failed(Outcome::Omitted), ..lock.into() };
        writes.push(puts::conclude(Some(&record), concluded));
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(2_095_086_461)), "conclusion");
    }
}

/// The next claim may have other settings: a record that expires may follow one that never does, and the reverse.
#[tokio::test]
async fn later_claims_choose_their_own_expiry() {
    let (first, next) = (lasting_lock(), next_lock());
    let extension = puts::extend(&next, ms(next.lease_until.as_millis() + 1), Some(ms(2_095_086_540_000)));
    let mut writes = vec![puts::claim(first.clone())];
    writes.push(puts::take_over(&first.into(), next.clone()));
    writes.push(extension);
    let seen = after(&writes);
    writes.push(puts::take_over(&seen, lasting_lock()));
    writes.push(puts::reclaim(&lasting_lock().into(), next));
    writes.push(puts::reclaim(&next_lock().into(), lasting_lock()));
    writes.push(puts::settle(&lasting_lock(), release(false)));
    let second = |seconds: u64| Some(n(seconds));
    assert_eq!(
        expiries(&writes).await,
        [
            None,
            second(2_095_086_531),
            second(2_095_086_540),
            None,
            second(2_095_086_531),
            None,
            second(2_095_086_470)
        ]
    );
}
