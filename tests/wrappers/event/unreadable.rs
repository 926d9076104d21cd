//! If a recorded outcome can't be read, the library refuses the duplicate and logs the refusal.

use lambda_idempotency::{
    StoredKey,
    store::{Outcome, State, StoredResponse, memory::MemoryStore},
};
use testkit::logged::logged;

use super::*;

/// Runs `future`, and returns the events that it logs.
async fn events(future: impl Future<Output = ()>) -> Vec<String> {
    logged(future).await.1.events
}

/// Replaces the response in the only record with bytes that aren't JSON. Returns the record's key.
fn damage(store: &MemoryStore) -> StoredKey {
    let (key, mut record) = store.all().remove(0);
    let damaged = Outcome::Retained(StoredResponse::new("not JSON".into()));
    record.state = match record.state {
        State::Failed(_) => State::Failed(damaged),
        _ => State::Completed(damaged),
    };
    store.set(&key, Some(record));
    key
}

/// Checks that exactly one of the events is a refusal of `key`, with this reason.
#[track_caller]
fn assert_refused(events: &[String], key: &StoredKey, name: &str, why: &str) {
    let name = format!("event=\"{name}\"");
    let is_refusal = |event: &&String| event.contains(&name) && event.contains(key.as_str());
    let refused: Vec<_> = events.iter().filter(is_refusal).collect();
    assert_eq!(refused.len(), 1, "{events:?}");
    assert!(refused[0].contains(r#"kind="Corrupt""#) && refused[0].contains(why), "{refused:?}");
}

#[tokio::test]
async fn unreadable_event_replays_are_logged() {
    recording::begin();
    for (order, why) in [
        (r#"{"id":"17"}"#, "the recorded response isn't JSON"),
        (r#"{"id":"17","fail":true}"#, "can't read the stored failure"),
    ] {
        let store = MemoryStore::new();
        let builder = Idempotency::builder(store.clone()).function("orders");
        let idempotency = builder.settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
        let service = idempotency.events(key).layer(handler(&Runs::default()));
        service.clone().oneshot(event(order)).await.ok();
        let damaged = damage(&store);
        let again =
            async { assert_eq!(kind(service.oneshot(event(order)).await), ErrorKind::Corrupt, "{why}") };
        assert_refused(&events(again).await, &damaged, "refused", why);
    }
}

#[tokio::test]
async fn unreadable_results_are_logged() {
    recording::begin();
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone()).function("orders").build().unwrap();
    let charge = idempotency.operation("charge").unwrap();
    let run = async || {
        let work = || async { Ok::<_, std::io::Error>("receipt".to_owned()) };
        charge.run(Key::new("order-17").unwrap(), &1, work).await
    };
    run().await.unwrap();
    let damaged = damage(&store);
    let again = async { assert_eq!(kind(run().await), ErrorKind::Corrupt) };
    let why = "its recorded result doesn't fit";
    assert_refused(&events(again).await, &damaged, "result_does_not_fit", why);
}
