//! Batch workers: each record is claimed, handled and settled separately.

mod all_failed;
mod kafka;
mod kafka_random;
mod leases;
mod property;
mod records;
mod streams;
mod support;
mod visibility;

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use lambda_idempotency::{
    Builder, ClaimHandle, ErrorKind, Failure, Found, Idempotency, Key,
    lambda::batch::{Batch, SqsMessage},
    settings::{Execution, Mode},
    store::memory::MemoryStore,
    time::Clock,
};
use lambda_runtime::{Context, LambdaEvent, tower::Service as _};
use serde_json::{json, value::RawValue};
use testkit::clock::SetClock;

use crate::{api::CANARY, recording, store::empty_store};
use support::{Bench, Message, by_id, by_order, deliver, deliver_by, returned, sqs, told};

#[tokio::test]
async fn redelivered_messages_run_once() {
    let bench = Bench::new();
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b"), Message::new("m3", "c")]);
    for delivery in 1..=2 {
        assert_eq!(deliver(&bench.worker(by_id), &batch).await, [""; 0], "delivery {delivery}");
        assert_eq!(bench.ran(), ["a", "b", "c"]);
    }
    assert_eq!(bench.requests(), 3 * 2 + 3, "two requests for each first run, one for each duplicate");
}

#[tokio::test]
async fn only_failed_messages_are_returned() {
    let bench = Bench::new();
    let mut bodyless = Message::new("bodyless", "x").json();
    bodyless.as_object_mut().unwrap().remove("body");
    let mut batch = sqs([
        Message::new("good", "a"),
        Message::new("fails", "fail 1"),
        Message::new("panics", "panic 1"),
        Message::new("unread", "no JSON").with_body("no JSON"),
        Message::new("keyless", "x").with_body("{\"order\": null}"),
        Message::new("good too", "b"),
    ]);
    batch["Records"].as_array_mut().unwrap().push(bodyless);
    let returned = deliver(&bench.worker(by_order), &batch).await;
    assert_eq!(returned, ["fails", "panics", "unread", "keyless", "bodyless"]);
    assert_eq!(bench.ran(), ["a", "b", "fail 1", "panic 1"]);
    // On redelivery, the failed records run again, and the completed ones don't.
    assert_eq!(deliver(&bench.worker(by_order), &batch).await, returned);
    assert_eq!(bench.ran(), ["a", "b", "fail 1", "fail 1", "panic 1", "panic 1"]);
}

#[tokio::test]
async fn progress_counts_records_in_flight() {
    let bench = Bench::new();
    let counts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&counts);
    let worker = bench.worker(by_id).concurrency(NonZeroUsize::new(2).unwrap());
    let worker = worker.on_progress(move |records, returned| {
        seen.lock().unwrap().push((records, returned.join(" ")));
    });
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b"), Message::new("m3", "fail 1")]);
    assert_eq!(deliver(&worker, &batch).await, ["m3"]);
    let expected =
        [(2, ""), (2, ""), (1, ""), (0, "m3")].map(|(records, returned)| (records, returned.to_owned()));
    assert_eq!(*counts.lock().unwrap(), expected);
}

/// Order 17 in the queue `ship` and order 17 in the queue `cancel` are two operations, even in one event.
#[tokio::test]
async fn queues_of_one_function_have_separate_keys() {
    let bench = Bench::new();
    for batch in [
        sqs([Message::new("m1", "17").in_queue("ship"), Message::new("m2", "17").in_queue("cancel")]),
        sqs([Message::new("m3", "17").in_queue("return")]),
    ] {
        for _ in 0..2 {
            assert_eq!(deliver(&bench.worker(by_order), &batch).await, [""; 0]);
        }
    }
    assert_eq!(bench.ran(), ["17", "17", "17"]);
}

/// With a named source, a message finds its record even after it moves to a dead-letter queue, and from there to
/// another queue.
#[tokio::test]
async fn messages_of_named_sources_keep_their_record() {
    let bench = Bench::new();
    for queue in ["orders", "orders-dead-letters", "orders-moved"] {
        let batch = sqs([Message::new("m1", "17").in_queue(queue)]);
        assert_eq!(deliver(&bench.worker(by_order).source_name("orders"), &batch).await, [""; 0]);
        assert_eq!(bench.ran(), ["17"], "{queue}");
    }
    let other = sqs([Message::new("m1", "17").in_queue("orders")]);
    assert_eq!(deliver(&bench.worker(by_order).source_name("refunds"), &other).await, [""; 0]);
    assert_eq!(bench.ran(), ["17", "17"]);
}

#[tokio::test]
async fn duplicates_within_a_batch_cost_no_request() {
    let bench = Bench::new();
    let batch = sqs([
        Message::new("m1", "a"),
        Message::new("m2", "a"),
        Message::new("m3", "fail 1"),
        Message::new("m4", "fail 1"),
        Message::new("m5", "a").with_body(&format!(r#"{{ "note": "{CANARY}", "order": "a" }}"#)),
        Message::new("m6", "a").with_body(r#"{"order": "a", "more": 1}"#),
    ]);
    let returned = deliver(&bench.worker(by_order), &batch).await;
    assert_eq!(
        returned,
        ["m3", "m4", "m6"],
        "duplicates share the outcome, but a message with another payload doesn't"
    );
    assert_eq!(bench.ran(), ["a", "fail 1"]);
    assert_eq!(bench.requests(), 4, "one claim and one settlement per operation");
}

#[tokio::test]
async fn mismatched_payloads_are_returned() {
    let bench = Bench::new();
    let other = Message::new("m1", "a").with_body(r#"{"order": "a", "more": 1}"#);
    assert_eq!(deliver(&bench.worker(by_order), &sqs([Message::new("m0", "a")])).await, [""; 0]);
    // The failure of the first message doesn't affect the second.
    assert_eq!(deliver(&bench.worker(by_order), &sqs([other, Message::new("m2", "a")])).await, ["m1"]);
    assert_eq!(bench.ran(), ["a"]);
}

#[tokio::test]
async fn messages_in_progress_are_returned() {
    let bench = Bench::new();
    let batch = sqs([Message::new("m1", "held"), Message::new("m2", "a")]);
    let worker = bench.worker(by_order);
    assert_eq!(deliver(&worker, &sqs([Message::new("m2", "a")])).await, [""; 0]);
    let first = deliver(&worker, &batch);
    let second = async {
        bench.is_held().await;
        let returned = deliver(&worker, &batch).await;
        bench.let_go();
        returned
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first, second), (vec![], vec!["m1".to_owned()]));
    assert_eq!(bench.ran(), ["a", "held"]);
}

#[tokio::test]
async fn completed_messages_without_response_are_acknowledged() {
    let bench = Bench::with(|builder| builder.settings(|s| s.max_response = 0));
    let batch = sqs([Message::new("m1", "a")]);
    for _ in 0..2 {
        assert_eq!(deliver(&bench.worker(by_order), &batch).await, [""; 0]);
    }
    assert_eq!(bench.ran(), ["a"]);
}

#[tokio::test]
async fn store_outages_return_all_messages() {
    let bench = Bench::new();
    bench.store.is_down.store(true, Ordering::SeqCst);
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b")]);
    assert_eq!(deliver(&bench.worker(by_order), &batch).await, ["m1", "m2"]);
    assert_eq!(bench.ran(), [""; 0]);
}

#[tokio::test]
async fn fifo_groups_stop_at_the_first_failure() {
    let bench = Bench::new();
    let of = |id: &str, order: &str, group: &str| Message::new(id, order).in_group(group).fifo();
    let batch = sqs([
        of("a1", "a1", "a"),
        of("b1", "b1", "b"),
        of("a2", "fail a2", "a"),
        of("b2", "b2", "b"),
        of("a3", "a3", "a"),
        of("b3", "b3", "b"),
        of("a4", "a4", "a"),
    ]);
    assert_eq!(deliver(&bench.worker(by_id), &batch).await, ["a2", "a3", "a4"]);
    let ran = bench.in_order();
    let of_group =
        |group: &str| ran.iter().filter(|order| order.contains(group)).cloned().collect::<Vec<_>>();
    assert_eq!(of_group("a"), ["a1", "fail a2"]);
    assert_eq!(of_group("b"), ["b1", "b2", "b3"]);
    assert_eq!(bench.requests(), 5 * 2, "messages behind a failure cost no request");

    // A message without a key, or without a body, blocks the rest of its group too.
    let keyless = of("a1", "", "a").with_body("{}");
    let batch = sqs([keyless, of("a2", "a9", "a"), of("b4", "b4", "b")]);
    assert_eq!(deliver(&bench.worker(by_order), &batch).await, ["a1", "a2"]);
    let mut batch = sqs([of("a1", "a8", "a"), of("a2", "a9", "a"), of("b5", "b5", "b")]);
    batch["Records"][0].as_object_mut().unwrap().remove("body");
    assert_eq!(deliver(&bench.worker(by_order), &batch).await, ["a1", "a2"]);
}

#[tokio::test]
async fn only_fifo_groups_run_in_order() {
    for (is_fifo, widest) in [(true, 1), (false, 3)] {
        let bench = Bench::in_memory();
        let messages = ["x", "y", "z"].map(|order| Message::new(order, order).in_group("one"));
        let messages = messages.map(|message| if is_fifo { message.fifo() } else { message });
        assert_eq!(deliver(&bench.worker(by_id), &sqs(messages)).await, [""; 0]);
        assert_eq!(bench.widest(), widest, "FIFO: {is_fifo}");
    }
    let bench = Bench::in_memory();
    let messages = ["x", "y", "z"].map(|order| Message::new(order, order).in_group(order).fifo());
    deliver(&bench.worker(by_id), &sqs(messages)).await;
    assert_eq!(bench.widest(), 3);
}

#[tokio::test]
async fn ten_thousand_records_respect_the_concurrency_limit() {
    let bench = Bench::in_memory();
    let orders = if recording::is_on() { 90 } else { 9_000 };
    let messages =
        (0..orders * 10 / 9).map(|nth| Message::new(&format!("m{nth}"), &format!("o{}", nth % orders)));
    let batch = sqs(messages);
    let worker = bench.worker(by_order).concurrency(NonZeroUsize::new(7).unwrap());
    assert_eq!(deliver(&worker, &batch).await, [""; 0]);
    assert_eq!((bench.widest(), bench.ran().len()), (7, orders));
}

#[tokio::test]
async fn ten_records_run_concurrently_by_default() {
    let bench = Bench::in_memory();
    let messages = (0..12).map(|nth| Message::new(&format!("m{nth}"), &format!("o{nth}")));
    assert_eq!(deliver(&bench.worker(by_order), &sqs(messages)).await, [""; 0]);
    assert_eq!((bench.widest(), bench.ran().len()), (10, 12));
}

#[tokio::test]
async fn permanent_failures_are_returned_or_acknowledged() {
    let batch = sqs([Message::new("m1", "final 1"), Message::new("m2", "a")]);
    for (acknowledges, returned) in [(false, vec!["m1"]), (true, vec![])] {
        let bench = Bench::new();
        for _ in 0..3 {
            let worker = bench.worker(by_order).acknowledge_permanent_failures(acknowledges);
            assert_eq!(deliver(&worker, &batch).await, returned, "{acknowledges}");
        }
        assert_eq!(bench.ran(), ["a", "final 1"]);
    }
}

#[tokio::test]
async fn at_most_once_failures_are_permanent() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let batch = sqs([Message::new("m1", "fail 1"), Message::new("m2", "panic 1")]);
    for _ in 0..2 {
        assert_eq!(deliver(&bench.worker(by_order), &batch).await, ["m1", "m2"]);
    }
    assert_eq!(bench.ran(), ["fail 1", "panic 1"]);
}

#[tokio::test]
async fn keyless_messages_are_returned_or_run_unprotected() {
    let bench = Bench::new();
    let keyless =
        |id: &str, order: &str| Message::new(id, order).with_body(&json!({ "name": order }).to_string());
    let batch = sqs([
        keyless("m1", "a"),
        keyless("m2", "fail 1"),
        keyless("m3", "panic 1"),
        keyless("m4", "final 1"),
    ]);
    assert_eq!(deliver(&bench.worker(by_order), &batch).await, ["m1", "m2", "m3", "m4"]);
    assert_eq!(bench.ran(), [""; 0]);
    let worker = bench.worker(by_order).required(false);
    assert_eq!(deliver(&worker, &batch).await, ["m2", "m3", "m4"]);
    assert_eq!((bench.ran().len(), bench.requests()), (4, 0));
}

#[tokio::test]
async fn panicking_key_closures_fail_one_message() {
    let bench = Bench::new();
    let key = |message: &SqsMessage| match message.message_id() {
        "m2" => panic!("no key"),
        id => Key::new(id),
    };
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b"), Message::new("m3", "c")]);
    assert_eq!(deliver(&bench.worker(key), &batch).await, ["m2"]);
    assert_eq!(bench.ran(), ["a", "c"]);
}

#[tokio::test]
async fn empty_batches_succeed_and_other_sources_fail() {
    let bench = Bench::new();
    let answer = told(&bench.worker(by_id), &json!({"Records": []}), 0).await.unwrap();
    assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"batchItemFailures":[]}"#);

    let mut other = sqs([Message::new("m1", "a"), Message::new("m2", "b")]);
    other["Records"][1]["eventSource"] = "aws:kinesis".into();
    let mut nameless = sqs([Message::new("m1", "a")]);
    nameless["Records"][0].as_object_mut().unwrap().remove("messageId");
    for (event, says) in
        [(other, "`aws:kinesis`"), (nameless, "record 0"), (json!({"id": 1}), "without a source")]
    {
        let error = told(&bench.worker(by_id), &event, 0).await.unwrap_err();
        assert!(error.to_string().contains(says) && error.to_string().contains("`aws:sqs`"), "{error}");
    }
    assert_eq!(bench.ran(), [""; 0]);
}

/// `acknowledge_permanent_failures` acknowledges a permanent failure only if the failure is recorded. Otherwise the
/// message is redelivered.
#[tokio::test]
async fn unrecorded_failures_are_always_returned() {
    let batch = sqs([Message::new("m1", "final 1"), Message::new("m2", "a"), Message::new("m3", "fail 1")]);
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let bench = Bench::with(|builder| {
            builder.execution(execution).settings(|s| s.settle_within = Duration::from_secs(1))
        });
        bench.settles_in_vain();
        let worker = bench.worker(by_order).acknowledge_permanent_failures(true);
        assert_eq!(deliver(&worker, &batch).await, ["m1", "m3"], "{execution:?}: m2 succeeded");
    }
    // An unprotected run is never recorded.
    let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
    bench.store.is_down.store(true, Ordering::SeqCst);
    let worker = bench.worker(by_order).acknowledge_permanent_failures(true);
    assert_eq!(deliver(&worker, &batch).await, ["m1", "m3"]);
}

#[tokio::test]
async fn unretained_failures_remain_failures() {
    let batch = sqs([Message::new("m1", "final 1"), Message::new("m2", "a")]);
    for (acknowledges, returned) in [(false, vec!["m1"]), (true, vec![])] {
        let bench = Bench::with(|builder| builder.settings(|s| s.max_response = 0));
        for _ in 0..2 {
            let worker = bench.worker(by_order).acknowledge_permanent_failures(acknowledges);
            assert_eq!(deliver(&worker, &batch).await, returned, "{acknowledges}");
        }
    }
}

#[tokio::test]
async fn panicking_serialisation_fails_one_message() {
    struct Bomb(bool);
    impl serde::Serialize for Bomb {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            assert!(!self.0, "this panic is intended");
            serializer.serialize_unit()
        }
    }
    let bench = Bench::new();
    let handler = |message: SqsMessage| async move { Ok::<_, Failure>(Bomb(message.message_id() == "m2")) };
    let mut worker = bench.idempotency.sqs(by_id, handler);
    let batch = sqs(["m1", "m2", "m3"].map(|id| Message::new(id, id)));
    let event = LambdaEvent::new(RawValue::from_string(batch.to_string()).unwrap(), Context::default());
    let answer = worker.call(event).await.unwrap();
    assert_eq!(returned(&answer), ["m2"]);
}

/// Returns a bench with a paused clock. The bench uses the memory store, because tokio's paused clock jumps ahead while
/// a test waits for the network.
fn paused() -> (Bench, SetClock) {
    let clock = SetClock::tokio();
    (Bench::over(Arc::new(MemoryStore::new()), |builder| builder.clock(clock.clone())), clock)
}

#[tokio::test(start_paused = true)]
async fn claims_stop_near_the_deadline() {
    let (bench, clock) = paused();
    let worker = bench.worker(by_order).concurrency(NonZeroUsize::MIN).reserve(Duration::from_millis(500));
    let takes = |id: &str, millis: u64| Message::new(id, &format!("takes {millis}"));
    // m2 ends 100 ms after the worker stops claiming, so m3 isn't claimed.
    let batch = sqs([takes("m1", 0), takes("m2", 9_100), takes("m3", 1)]);
    assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, ["m3"]);
    assert_eq!(bench.ran(), ["takes 0", "takes 9100"]);

    // m4 takes longer than the time left. It's cut off 500 ms before the deadline, and the worker answers at once.
    let batch = sqs([takes("m1", 0), takes("m4", 60_000), takes("m3", 1)]);
    let began = clock.now();
    assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, ["m4", "m3"]);
    let took = began.until(clock.now()).as_millis();
    assert!((9_500..9_510).contains(&took), "{took}");
    assert_eq!(bench.in_order().last().unwrap(), "takes 60000", "m3 must not start");

    // The key of the cut-off run is claimable again only after its lease and the skew margin.
    let batch = sqs([takes("m4", 60_000)]);
    assert_eq!(deliver_by(&worker, &batch, clock.after(300_000)).await, ["m4"]);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(deliver_by(&worker, &batch, clock.after(300_000)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn keyless_messages_stop_near_the_deadline() {
    let (bench, clock) = paused();
    let worker = bench.worker(|_: &SqsMessage| None::<Key>).required(false).concurrency(NonZeroUsize::MIN);
    let batch = sqs([Message::new("m1", "takes 9100"), Message::new("m2", "takes 1")]);
    let worker = worker.reserve(Duration::from_millis(500));
    assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, ["m2"]);
    assert_eq!(bench.ran(), ["takes 9100"]);
}

/// The worker reserves no time to record the outcome of a handler without protection. So such a handler may run longer
/// than a protected one.
#[tokio::test(start_paused = true)]
async fn unprotected_handlers_run_until_response_is_due() {
    type Build = fn(Builder) -> Builder;
    let builds: [(&str, Build); 3] = [
        ("no key", |builder| builder),
        ("off", |builder| builder.mode(Mode::Off)),
        ("shadow", |builder| builder.mode(Mode::Shadow)),
    ];
    for (name, build) in builds {
        let clock = SetClock::tokio();
        let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| build(builder.clock(clock.clone())));
        let key = move |message: &SqsMessage| if name == "no key" { Ok(None) } else { by_order(message) };
        let worker = bench.worker(key).required(false).reserve(Duration::from_millis(500));
        let batch = sqs([Message::new("m1", "takes 9600"), Message::new("m2", "takes 60000")]);
        let began = clock.now();
        assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, ["m2"], "{name}");
        let took = began.until(clock.now()).as_millis();
        assert!((9_750..9_760).contains(&took), "{name}: {took}");
    }
}

/// The question replaces the handler of a message whose first attempt ended without an answer.
#[tokio::test(start_paused = true)]
async fn messages_without_answer_are_asked_for() {
    let (bench, clock) = paused();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let worker = bench.worker(by_order).reserve(Duration::from_millis(500)).reconcile(
        move |claim: ClaimHandle, message: SqsMessage| {
            let (seen, id) = (Arc::clone(&seen), message.message_id().to_owned());
            async move {
                assert!(claim.is_takeover());
                seen.lock().unwrap().push(id.clone());
                Ok(match id.as_str() {
                    "m1" => Found::Happened(()),
                    "m2" => Found::DidNotHappen,
                    "m3" => Found::NotKnownYet { ask_again_after: Duration::from_secs(60) },
                    _ => return Err("the carrier doesn't answer".into()),
                })
            }
        },
    );
    let worker = worker.unwrap();
    let ids = ["m1", "m2", "m3", "m4"];
    let batch = sqs(ids.map(|id| Message::new(id, &format!("takes 6000{}", &id[1..]))));
    assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, ids, "all are cut off");
    tokio::time::advance(Duration::from_secs(40)).await;
    let began = bench.in_order().len();
    assert_eq!(deliver_by(&worker, &batch, clock.after(100_000)).await, ["m3", "m4"]);
    assert_eq!(asked.lock().unwrap().len(), 4);
    assert_eq!(bench.in_order()[began..], ["takes 60002"], "only this handler runs again");
}

/// Users disable the cut-off if the handler's work runs in another process, and goes on when the handler is dropped. So
/// the worker waits for the handler's result and records it.
#[tokio::test(start_paused = true)]
async fn handlers_without_cut_off_run_past_deadline() {
    for mode in [Mode::Enforce, Mode::Shadow] {
        let clock = SetClock::tokio();
        let build =
            |builder: Builder| builder.clock(clock.clone()).settings(|s| s.cut_off = false).mode(mode);
        let bench = Bench::over(Arc::new(MemoryStore::new()), build);
        let worker = bench.worker(by_order);
        let batch = sqs([Message::new("m1", "takes 60000"), Message::new("m2", "takes 1")]);
        let began = clock.now();
        assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, [""; 0], "{mode:?}");
        assert_eq!(began.until(clock.now()).as_secs(), 60, "{mode:?}");
        if mode == Mode::Enforce {
            assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, [""; 0]);
            assert_eq!(bench.ran().len(), 2, "the late outcome is recorded");
        }
    }
}

/// The handler returns just before the deadline, and the store is too slow to record its outcome in time. The worker
/// still acknowledges the message, because a redelivery would run the handler again.
#[tokio::test(start_paused = true)]
async fn late_successes_are_acknowledged_in_time() {
    for takes in ["takes 9700", "takes 9900"] {
        let clock = SetClock::tokio();
        let build = |builder: Builder| builder.clock(clock.clone()).settings(|s| s.cut_off = false);
        let bench = Bench::over(Arc::new(MemoryStore::new()), build);
        let worker = bench.worker(by_order);
        let (batch, began) = (sqs([Message::new("m1", takes)]), clock.now());
        let returned = tokio::join!(deliver_by(&worker, &batch, clock.after(10_000)), async {
            tokio::time::advance(Duration::from_millis(1)).await;
            bench.is_slow(30_000);
        });
        assert_eq!(returned.0, [""; 0], "{takes}");
        let took = began.until(clock.now()).as_millis();
        assert!(took < 10_000, "{takes}: answered after {took} ms");
    }
}

/// The handler returns late. The store still answers in time, so the worker records the outcome.
#[tokio::test(start_paused = true)]
async fn late_successes_are_recorded() {
    let clock = SetClock::tokio();
    let build = |builder: Builder| builder.clock(clock.clone()).settings(|s| s.cut_off = false);
    let bench = Bench::over(Arc::new(MemoryStore::new()), build);
    bench.is_slow(20);
    let (worker, batch) = (bench.worker(by_order), sqs([Message::new("m1", "takes 9880")]));
    for _ in 0..2 {
        assert_eq!(deliver_by(&worker, &batch, clock.after(10_000)).await, [""; 0]);
    }
    assert_eq!(bench.ran().len(), 1, "the duplicate is answered from the record");
}

/// The handler returns just before the worker would cut it off. The worker then waits for the settlement, which ends
/// after the cut-off.
#[tokio::test(start_paused = true)]
async fn pending_settlements_are_awaited() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let clock = SetClock::tokio();
        let build = |builder: Builder| builder.clock(clock.clone()).execution(execution);
        let bench = Bench::over(Arc::new(MemoryStore::new()), build);
        bench.is_slow(200);
        let worker = bench.worker(by_order).reserve(Duration::from_millis(500));
        let batch = sqs([Message::new("m1", "takes 9250")]);
        assert_eq!(
            deliver_by(&worker, &batch, clock.after(10_000)).await,
            [""; 0],
            "the handler returns at 9.45 s, and the cut-off is at 9.5 s"
        );
        assert_eq!(bench.ran(), ["takes 9250"]);
    }
}

/// The claim is applied too late to start the handler, so the worker releases it. The next delivery may run the
/// handler, even under at-most-once.
#[tokio::test(start_paused = true)]
async fn late_claims_are_released() {
    let clock = SetClock::tokio();
    let build = |builder: Builder| builder.clock(clock.clone()).execution(Execution::AtMostOnce);
    let bench = Bench::over(Arc::new(MemoryStore::new()), build);
    let worker = bench.worker(by_order).reserve(Duration::from_millis(2_000));
    let batch = sqs([Message::new("m1", "a")]);
    // The invocation has 12 s: claims are sent until 8 s, handlers are cut off at 10 s, and the answer is due at 11 s.
    bench.is_slow(10_200);
    let returned = tokio::join!(deliver_by(&worker, &batch, clock.after(12_000)), async {
        tokio::time::advance(Duration::from_millis(1)).await;
        bench.is_slow(200);
    });
    assert_eq!((returned.0, bench.ran().len()), (vec!["m1".to_owned()], 0));
    assert_eq!(
        deliver_by(&worker, &batch, clock.after(12_000)).await,
        [""; 0],
        "the outcome must not stay unknown"
    );
    assert_eq!(bench.ran(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_messages_claim_nothing_near_deadlines() {
    let clock = SetClock::tokio();
    let wait = Duration::from_secs(60);
    let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| {
        builder.clock(clock.clone()).settings(|s| s.wait_in_progress = wait)
    });
    let worker = bench.worker(by_order).reserve(Duration::from_secs(5));
    let first = sqs([Message::new("m1", "takes 23000")]);
    // The first handler is cut off at about 8.3 s. Its lease expires at 12 s, and the key is claimable at 14 s.
    let (first, second) = tokio::join!(deliver_by(&worker, &first, clock.after(10_000)), async {
        tokio::task::yield_now().await;
        let batch = sqs([Message::new("m1", "takes 23000")]);
        deliver_by(&worker, &batch, clock.after(12_000)).await
    });
    assert_eq!((first, second), (vec!["m1".to_owned()], vec!["m1".to_owned()]));
    assert_eq!(
        bench.ran(),
        ["takes 23000"],
        "the second delivery must stop waiting before the first delivery's lease expires"
    );
}

#[tokio::test(start_paused = true)]
async fn panic_while_dropping_handler_keeps_the_answer() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "this panic is intended");
        }
    }
    let (bench, clock) = paused();
    let handler = |message: SqsMessage| async move {
        if message.message_id() == "m1" {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }
        Ok::<_, Failure>("done".to_owned())
    };
    let worker = bench.idempotency.sqs(by_id, handler);
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b")]);
    assert_eq!(deliver_by(&worker, &batch, clock.after(3_000)).await, ["m1"]);
}

#[tokio::test(start_paused = true)]
async fn long_reserves_leave_two_thirds_for_claims() {
    let (bench, clock) = paused();
    let worker = bench.worker(by_order).concurrency(NonZeroUsize::MIN).reserve(Duration::from_secs(60));
    let batch =
        sqs(["takes 1980", "takes 30", "takes 1"].map(|order| Message::new(&order.replace(' ', "-"), order)));
    assert_eq!(deliver_by(&worker, &batch, clock.after(3_000)).await, ["takes-1"]);
}

/// Returns a worker. The worker's type doesn't contain the closures' types, so a function can name it.
fn shipping(idempotency: &Idempotency, shipped: Arc<Mutex<Vec<String>>>) -> Batch<SqsMessage> {
    idempotency.sqs(by_order, move |message: SqsMessage| {
        shipped.lock().unwrap().push(message.message_id().to_owned());
        async { Ok::<_, Failure>(()) }
    })
}

#[tokio::test]
async fn functions_can_return_workers() {
    let (bench, shipped) = (Bench::new(), Arc::default());
    let mut workers: Vec<Batch<SqsMessage>> = vec![bench.worker(by_order)];
    workers.push(shipping(&bench.idempotency, Arc::clone(&shipped)));
    for worker in &workers {
        assert_eq!(deliver(worker, &sqs([Message::new("m1", "a")])).await, [""; 0]);
    }
    assert_eq!(
        (bench.ran(), shipped.lock().unwrap().len()),
        (vec!["a".to_owned()], 0),
        "the workers share a key, so m1 runs once"
    );
    assert_eq!(deliver(&workers[1], &sqs([Message::new("m2", "b")])).await, [""; 0]);
    assert_eq!(*shipped.lock().unwrap(), ["m2"]);
}

/// Checks that a worker meets the trait bounds of `lambda_runtime::run` and `run_concurrent`. No test calls this.
#[expect(dead_code, reason = "it only has to compile")]
async fn it_works_under_every_run() -> Result<(), lambda_runtime::Error> {
    async fn ship(_: SqsMessage) -> Result<(), Failure> {
        Ok(())
    }
    let idempotency = Idempotency::builder(empty_store()).build()?;
    let worker = idempotency.sqs(|message: &SqsMessage| Key::from_json(message, "/order"), ship);
    lambda_runtime::run_concurrent(worker.clone()).await?;
    lambda_runtime::run(worker).await
}
