//! Calls that are dropped before their answer arrives, as the library drops a call that takes too long. A call may be
//! dropped at any await: the call stops completely, and the store serves the next call.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, Update};
use bytes::Bytes;
use lambda_idempotency::store::{
    BoxFuture, Put, PutOutcome, ResponseChunks, Store,
    dynamodb::{DynamoDbStore, Transaction},
};
use testkit::puts::{self, Settlement};

use super::{
    emulator::{TABLE, Table, builder},
    fixtures::{SETTLED_UNTIL, inline, item, key, lock, owner, s, settle, started},
    wire::{Reply, Wire},
};

/// Polls `call` up to `times` times, then drops it. Returns `None` if it wasn't done by then.
async fn polled<T>(call: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut call = pin!(call);
    let mut polls = 0;
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            polls += 1;
            if polls >= times { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

fn complete() -> Put {
    settle(Settlement::Complete(inline(), SETTLED_UNTIL))
}

fn effect() -> Transaction {
    let update = Update::builder().table_name(TABLE).key("id", s("effect")).update_expression("ADD n :one");
    let one = AttributeValue::N("1".into());
    Transaction::new().update(update.expression_attribute_values(":one", one).build().unwrap())
}

/// More bytes than one chunk holds.
const LENGTH: u32 = 500_000;

fn response() -> Bytes {
    Bytes::from((0..LENGTH).map(|n| (n.wrapping_mul(n) / 7) as u8).collect::<Vec<_>>())
}

/// The calls that the tests drop.
const CALLS: [&str; 6] = ["claim", "read", "settle", "commit", "write chunks", "read chunks"];

async fn call(store: &DynamoDbStore, name: &str) {
    match name {
        "claim" => drop(store.put(&key(), &puts::claim(lock())).await),
        "read" => drop(store.read(&key()).await),
        "settle" => drop(store.put(&key(), &complete()).await),
        "commit" => {
            drop(store.transactions().unwrap().commit(&key(), &complete(), &effect(), "token").await);
        }
        "write chunks" => drop(store.write_chunks(&key(), owner(1), &response(), SETTLED_UNTIL).await),
        "read chunks" => drop(store.read_chunks(&key(), owner(1), 2, LENGTH.into()).await),
        _ => panic!("no call has the name {name}"),
    }
}

/// With a sort key, the store sends a read before a process's first write, to check the table's key. The test drops the
/// call during this read too.
#[tokio::test]
async fn calls_may_be_dropped_at_every_await() {
    for (name, sort_key) in [
        ("claim", None),
        ("claim", Some("sk")),
        ("read", None),
        ("settle", None),
        ("settle", Some("sk")),
        ("commit", None),
        ("write chunks", None),
        ("write chunks", Some("sk")),
        ("read chunks", None),
    ] {
        let mut table = prepared(name, sort_key).await;
        let mut times = 1;
        while polled(call(&table.store, name), times).await.is_none() {
            still_serves(&table, name).await;
            // Reads don't change the table, so the next round can use it again.
            if !name.starts_with("read") {
                table = prepared(name, sort_key).await;
            }
            times += 1;
        }
        assert!(times > 1, "{name} was never dropped");
    }
}

/// Creates a table that has what the call `name` needs, such as a claim to settle or chunks to read.
async fn prepared(name: &str, sort_key: Option<&str>) -> Table {
    let table = Table::with(|builder| match sort_key {
        Some(sort_key) => builder.sort_key(sort_key),
        None => builder,
    })
    .await;
    match name {
        "settle" | "commit" => {
            let mut before = item(&key(), &started());
            before.extend(sort_key.map(|sort_key| (sort_key.to_owned(), s("record"))));
            table.put(before).await;
        }
        "read chunks" => {
            let parts = table.store.write_chunks(&key(), owner(1), &response(), SETTLED_UNTIL).await;
            assert_eq!(parts.unwrap(), 2);
        }
        _ => {}
    }
    table
}

/// Checks that the dropped write wasn't applied in part, and that the same call now succeeds.
async fn still_serves(table: &Table, name: &str) {
    let store = &table.store;
    let completed = complete().apply_to(Some(&started()));
    match name {
        "claim" => {
            let written = store.put(&key(), &puts::claim(lock())).await.unwrap();
            assert!(
                [PutOutcome::Applied, PutOutcome::Refused(Some(started()))].contains(&written),
                "{written:?}"
            );
            assert_eq!(store.read(&key()).await.unwrap(), Some(started()));
        }
        "read" => assert_eq!(store.read(&key()).await.unwrap(), None),
        "settle" => {
            let written = store.put(&key(), &complete()).await.unwrap();
            let made = PutOutcome::Refused(completed.clone());
            assert!([PutOutcome::Applied, made].contains(&written), "{written:?}");
            assert_eq!(store.read(&key()).await.unwrap(), completed);
        }
        "commit" => {
            let transactions = store.transactions().unwrap();
            let again = transactions.commit(&key(), &complete(), &effect(), "token").await;
            assert!(again.is_ok(), "{again:?}");
            assert_eq!(store.read(&key()).await.unwrap(), completed);
            assert_eq!(table.item("effect").await.unwrap()["n"], AttributeValue::N("1".into()));
        }
        "read chunks" => {
            let back = store.read_chunks(&key(), owner(1), 2, LENGTH.into()).await.unwrap();
            assert!(back == response(), "read {} bytes that differ from the response", back.len());
        }
        _ => {
            let count = store.write_chunks(&key(), owner(1), &response(), SETTLED_UNTIL).await.unwrap();
            let back = store.read_chunks(&key(), owner(1), count, LENGTH.into()).await.unwrap();
            assert!(back == response(), "read {} bytes that differ from the response", back.len());
        }
    }
}

/// After a call is dropped, no further request arrives. If the call continued, it would send its second attempt or its
/// next chunk.
#[tokio::test]
async fn dropped_calls_stop_all_work() {
    // No first attempt times out before the drop, even on a busy machine.
    let attempt = Duration::from_secs(6);
    let runs = CALLS.map(|name| async move {
        let wire = Wire::scripted(None, &[Reply::Hang]).await;
        let store = builder(wire.address).attempt_timeout(attempt).build().await.unwrap();
        let under_way = if name.ends_with("chunks") { 2 } else { 1 };
        let dropped: BoxFuture<'_, ()> = Box::pin(call(&store, name));
        let arrived = async {
            while wire.requests().len() < under_way {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = dropped => panic!("{name} returned without a response"),
            () = arrived => {}
        }
        let sent = wire.requests().len();
        tokio::time::sleep(attempt + Duration::from_secs(2)).await;
        assert_eq!(wire.requests().len(), sent, "{name} continued after it was dropped");
    });
    for run in runs.map(|run| Box::pin(run) as BoxFuture<'static, ()>).map(tokio::spawn) {
        run.await.unwrap();
    }
}
