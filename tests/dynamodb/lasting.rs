//! An at-most-once claim has no TTL attribute, so that DynamoDB's sweeper never deletes it. Settling the claim
//! adds the attribute.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_idempotency::store::{
    Lock, Outcome, Record, Revision, Settlement, State, Store, Write, WriteOutcome,
};

use super::{
    emulator::Table,
    fixtures::{
        SETTLED_UNTIL, in_parts, inline, item, key, lasting_lock, lock, ms, n, next_lock, release, resolve,
        settle,
    },
};

/// Applies these writes in order, and returns the TTL attribute after each.
async fn expiries(writes: &[Write]) -> Vec<Option<AttributeValue>> {
    let table = Table::new().await;
    let mut record: Option<Record> = None;
    let mut expiries = Vec::new();
    for write in writes {
        assert_eq!(table.store.apply(&key(), write).await.unwrap(), WriteOutcome::Applied, "{write:?}");
        record = write.apply_to(record.as_ref());
        assert_eq!(table.store.read(&key()).await.unwrap(), record, "{write:?}");
        let mut found = table.record_item(&key()).await.unwrap();
        assert_eq!(found, item(&key(), record.as_ref().unwrap()), "{write:?}");
        expiries.push(found.remove("expires_at"));
    }
    expiries
}

fn extend(lock: &Lock, lease_until: u64) -> Write {
    let (owner, generation) = (lock.owner, lock.generation);
    Write::Extend { owner, generation, lease_until: ms(lease_until), expires_at: None }
}

/// Returns a claim, two extensions, a takeover and another extension, all without an expiry, and the resulting record.
fn unsettled() -> (Vec<Write>, Record) {
    let (first, next) = (lasting_lock(), Lock { expires_at: None, ..next_lock() });
    let first_until = first.lease_until.as_millis();
    let mut writes =
        vec![Write::Claim(first.clone()), extend(&first, first_until + 1), extend(&first, first_until + 2)];
    let seen = Revision::of(&after(&writes));
    writes.push(Write::TakeOver { seen, lock: next.clone() });
    writes.push(extend(&next, next.lease_until.as_millis() + 1));
    let record = after(&writes);
    (writes, record)
}

fn after(writes: &[Write]) -> Record {
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
        let (owner, generation) = (record.owner, record.generation);
        writes.push(Write::Settle { owner, generation, settlement: settlement.clone() });
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(until)), "{settlement:?}");
        writes.pop();
        writes.push(resolve(&record, settlement.clone()));
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(until)), "operator: {settlement:?}");
        writes.pop();
        let lock = lock();
        let concluded = Record { state: State::Failed(Outcome::Omitted), ..lock.into() };
        writes.push(Write::Conclude { seen: Some(Revision::of(&record)), record: concluded });
        assert_eq!(expiries(&writes).await.pop().unwrap(), Some(n(2_095_086_461)), "conclusion");
    }
}

/// The next claim may have other settings: a record that expires may follow one that never does, and the reverse.
#[tokio::test]
async fn later_claims_choose_their_own_expiry() {
    let (first, next) = (lasting_lock(), next_lock());
    let extension = Write::Extend {
        owner: next.owner,
        generation: next.generation,
        lease_until: ms(next.lease_until.as_millis() + 1),
        expires_at: Some(ms(2_095_086_540_000)),
    };
    let mut writes = vec![Write::Claim(first.clone())];
    writes.push(Write::TakeOver { seen: Revision::of(&first.into()), lock: next.clone() });
    writes.push(extension);
    let seen = Revision::of(&after(&writes));
    writes.push(Write::TakeOver { seen, lock: lasting_lock() });
    writes.push(Write::Reclaim { seen: Revision::of(&lasting_lock().into()), lock: next });
    writes.push(Write::Reclaim { seen: Revision::of(&next_lock().into()), lock: lasting_lock() });
    writes.push(settle(release(false)));
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
