//! Strategies for property tests with [`mod@proptest`]: keys, events and schedules. Feature `proptest`.
//!
//! ```
//! use lambda_idempotency_testing::{Bench, Event, Function, strategies};
//! use proptest::prelude::*;
//! # use lambda_idempotency::Key;
//! # fn make(bench: &Bench) -> Function {
//! #     let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
//! #     Function::new(move |order: serde_json::Value| {
//! #         let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
//! #         async move {
//! #             let charge = || async {
//! #                 let key = lambda_idempotency::current().ok_or("not protected")?.derive_key("charge");
//! #                 Ok::<_, Box<dyn std::error::Error + Send + Sync>>(ledger.call("charge", Some(&key), "").await?)
//! #             };
//! #             let key = Key::new(order["id"].as_str().unwrap_or_default())?;
//! #             Ok::<String, Box<dyn std::error::Error + Send + Sync>>(
//! #                 idempotency.operation("pay")?.run(key, &order, charge).await?)
//! #         }
//! #     })
//! # }
//!
//! let sample = Event::json(r#"{"id": "order-17", "cents": 1250}"#);
//! proptest!(ProptestConfig::with_cases(20), |(event in strategies::event(&sample), schedule in strategies::schedule())| {
//!     schedule.play(make, &event).assert_safe();
//! });
//! ```

use proptest::{collection, prelude::*, sample::select};
use serde_json::json;

use super::{event::Event, fields::variants, survive::Survival};

/// The range from which a schedule's number is drawn. The first schedules have at most one fault each. The number of a
/// later schedule is the seed from which its faults are drawn.
const DRAWN: std::ops::Range<u64> = 0..1 << 32;

/// Idempotency keys as clients send them: UUIDs, and texts of 1 to 255 letters, digits and signs.
pub fn key() -> impl Strategy<Value = String> {
    let uuid = any::<u128>().prop_map(|bits| {
        let hex = format!("{bits:032x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    });
    let signs = select("ABCXYZabcxyz0189-_.:/+~".chars().collect::<Vec<_>>());
    prop_oneof![uuid, collection::vec(signs, 1..=255).prop_map(String::from_iter)]
}

/// The sample event, or the same event with one of its fields changed.
pub fn event(sample: &Event) -> impl Strategy<Value = Event> {
    let changed = variants(sample.text()).into_iter().map(|variant| Event::json(&*variant.json));
    select(std::iter::once(sample.clone()).chain(changed).collect::<Vec<_>>())
}

/// An SQS event. The body of each message is an order with a random id and amount. Several orders may have the same id.
pub fn orders(queue: &str) -> impl Strategy<Value = Event> {
    let queue = queue.to_owned();
    collection::vec((0..20_u32, 1..10_000_u32), 1..10).prop_map(move |orders| {
        let body =
            |(id, cents): (u32, u32)| json!({ "id": format!("order-{id}"), "cents": cents }).to_string();
        Event::sqs(&queue, orders.into_iter().map(body))
    })
}

/// One schedule: the faults of each delivery. To play a failing schedule again, give its number to [`Survival::seed`].
pub fn schedule() -> impl Strategy<Value = Survival> {
    DRAWN.prop_map(|seed| Survival::new().seed(seed))
}
