//! The bench: its reports of deliveries, the record states that a test can set up, and staged writes.

use std::{
    collections::BTreeSet,
    panic::catch_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use lambda_idempotency::{ErrorKind, Idempotency, Key, metrics::Metric, settings::Mode, staging};
use lambda_idempotency_testing::{
    Bench, Call, Declined, Event, Fault, Function, Given, Point, Survival, Transaction, survive,
};
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};
use serde_json::Value;

use super::{DEARER, Error, ORDER, OTHER, function_of, pay, safe};

#[test]
fn delivery_reports_what_happened() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    let first = bench.deliver(&mut function, &Event::json(ORDER));
    first.assert_ran();
    assert_eq!((first.requests(), first.effects().len(), first.keys().len()), (2, 1, 1));
    assert_eq!(first.points().first(), Some(&Point::Entered));
    assert_eq!(first.points().last(), Some(&Point::Answered));
    let again = bench.deliver(&mut function, &Event::json(ORDER).retried(1));
    again.assert_replayed();
    assert_eq!((again.requests(), again.effects().len()), (1, 0));
    assert_eq!(again.answer().unwrap().body(), first.answer().unwrap().body());
    bench.deliver(&mut function, &Event::json(DEARER)).assert_refused(ErrorKind::Mismatch);
    bench.deliver(&mut function, &Event::json(OTHER)).assert_ran();
    bench.ledger().assert_count("charge", 2);
}

#[test]
#[should_panic(expected = "delivery 1 should be answered from the record, but the handler ran")]
fn failed_assertion_shows_what_the_delivery_did() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.deliver(&mut function, &Event::json(ORDER)).assert_replayed();
}

#[test]
#[should_panic(expected = "`charge` happened once, expected twice. The ledger:\n  delivery 1: charge (1250)")]
fn wrong_count_lists_the_ledger() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
    bench.ledger().assert_count("charge", 2);
}

#[tokio::test]
async fn bench_works_in_an_asynchronous_test() {
    delivery_reports_what_happened();
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn bench_works_under_a_paused_clock() {
    delivery_reports_what_happened();
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[test]
fn deliveries_find_the_given_record_state() {
    let meets = |given: Given| {
        let bench = Bench::new();
        let mut function = safe(&bench);
        bench.given(given);
        bench.deliver(&mut function, &Event::json(ORDER))
    };
    meets(Given::InProgress(Duration::from_secs(20))).assert_refused(ErrorKind::InProgress);
    meets(Given::Stale).assert_ran();
    let completed = meets(Given::Completed(r#""receipt 1""#.into()));
    assert_eq!(completed.assert_replayed().answer().unwrap().body(), r#""receipt 1""#);
    let failed = meets(Given::Failed(r#"{"error_type":"Declined","error_message":"no money"}"#.into()));
    assert!(!failed.has_run() && failed.answer().unwrap().error().unwrap().1.contains("no money"));
    meets(Given::Expired).assert_ran();
    meets(Given::Corrupt).assert_refused(ErrorKind::Corrupt);
    meets(Given::OfAFutureVersion).assert_refused(ErrorKind::Corrupt);
}

/// The store is down, and the handler runs without protection.
#[test]
fn unprotected_run_isnt_a_replay() {
    let bench = Bench::new();
    let idempotency = bench.builder().settings(|s| s.fail_open = true).build().unwrap();
    bench.outage_from(Call::Claim);
    let first = bench.deliver(&mut function_of(idempotency, bench.ledger(), false), &Event::json(ORDER));
    first.assert_ran();
    assert!(catch_unwind(|| _ = first.assert_replayed()).is_err());
}

/// An optimistic run makes no claim. If its handler fails, the library doesn't write an outcome either, so only the
/// effect shows that the handler ran.
#[test]
fn failed_run_without_a_claim_is_reported() {
    let bench = Bench::new();
    let idempotency = bench.idempotency().optimistic_reading_first().unwrap();
    let mut function = function_of(idempotency, bench.ledger(), false);
    bench.lose_effects_answer();
    let failed = bench.deliver(&mut function, &Event::json(ORDER));
    assert!(failed.has_run(), "{failed}");
    let panic = catch_unwind(|| _ = failed.assert_replayed()).unwrap_err();
    let story = panic.downcast_ref::<String>().unwrap();
    assert!(story.contains("but the handler ran") && !story.contains("no handler ran"), "{story}");
    bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
    bench.deliver(&mut function, &Event::json(ORDER)).assert_replayed();
}

/// At every delivery, the function writes into the ledger before it calls the operation, as a middleware would. The
/// bench still reports a duplicate as a replay, even in optimistic mode, where no delivery makes a claim.
#[test]
fn replays_with_outside_effects_are_still_replays() {
    for is_optimistic in [false, true] {
        let bench = Bench::new();
        let (claimed, ledger) = (bench.idempotency(), bench.ledger());
        let idempotency = if is_optimistic { claimed.optimistic_reading_first().unwrap() } else { claimed };
        let mut function = Function::new(move |order: Value| {
            let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
            async move {
                ledger.record("verify token", "alice");
                pay(&idempotency, &ledger, &order, !is_optimistic).await
            }
        });
        bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
        bench.deliver(&mut function, &Event::json(ORDER)).assert_replayed();
        bench.ledger().assert_count("verify token", 2);
    }
}

/// In shadow mode, the store refuses the duplicate's claim, and the handler runs nevertheless.
#[test]
fn shadow_mode_duplicates_count_as_runs() {
    let bench = Bench::new();
    let idempotency = bench.builder().mode(Mode::Shadow).build().unwrap();
    let mut function = function_of(idempotency, bench.ledger(), false);
    for _ in 0..2 {
        let delivery = bench.deliver(&mut function, &Event::json(ORDER));
        delivery.assert_ran();
        assert!(catch_unwind(|| _ = delivery.assert_replayed()).is_err());
    }
}

/// The store refused the duplicate's claim, so the message of the failed `assert_ran` ends with "(no handler ran)".
#[test]
fn refused_claim_shows_that_no_handler_ran() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
    let again = bench.deliver(&mut function, &Event::json(ORDER));
    let panic = catch_unwind(|| _ = again.assert_ran()).unwrap_err();
    let story = panic.downcast_ref::<String>().unwrap();
    assert!(story.contains("but nothing shows that the handler ran"), "{story}");
    assert!(story.contains("  2 ended with") && story.ends_with("(no handler ran)"), "{story}");
}

#[test]
fn given_claim_is_taken_over_after_its_lease() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.given(Given::InProgress(Duration::from_secs(20)));
    bench.deliver(&mut function, &Event::json(ORDER)).assert_refused(ErrorKind::InProgress);
    bench.advance(Duration::from_secs(23));
    bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
}

/// Returns a function that stages a payment.
fn staged(bench: &Bench) -> Function {
    staged_in(bench.idempotency())
}

fn staged_in(idempotency: Idempotency) -> Function {
    Function::new(move |order: Value| {
        let idempotency = idempotency.clone();
        async move {
            let id = order["id"].as_str().unwrap_or_default().to_owned();
            let pay = || async {
                let staging = staging().ok_or("not protected")?;
                let payment = Transaction::new().put("payments", &id, "paid").absent("payments", &id);
                staging.add(payment)?;
                staging.on_declined(|declined: &Declined| -> Result<String, Error> {
                    Ok(format!("{} was there", declined.items()[0].1))
                });
                Ok::<_, Error>("paid".to_owned())
            };
            let key = lambda_idempotency::Key::new(&id)?;
            Ok::<String, Error>(idempotency.operation("pay")?.run(key, &order, pay).await?)
        }
    })
}

#[test]
fn late_transactions_are_applied_once() {
    let bench = Bench::new();
    let mut function = staged(&bench);
    for _ in 0..50 {
        bench.fault_at(Point::Before(Call::Complete), Fault::Late);
    }
    let first = bench.deliver(&mut function, &Event::json(ORDER));
    assert!(first.effects().is_empty(), "{first}");
    bench.advance(Duration::from_secs(1));
    assert_eq!(bench.records().item("payments", "order-17").as_deref(), Some("paid"));
    bench.deliver(&mut function, &Event::json(ORDER)).assert_replayed();
    bench.ledger().assert_count("put payments", 1);
}

#[test]
fn staged_writes_are_committed_with_the_outcome() {
    let bench = Bench::new();
    let mut function = staged(&bench);
    bench.die_at(Point::Before(Call::Complete));
    bench.deliver(&mut function, &Event::json(ORDER)).assert_died();
    assert_eq!(bench.records().item("payments", "order-17"), None);
    let after = bench.process();
    let mut function = staged(&after);
    after.advance_past_leases();
    after.lose_answer(Call::Complete);
    after.deliver(&mut function, &Event::json(ORDER)).assert_ran();
    assert_eq!(bench.records().item("payments", "order-17").as_deref(), Some("paid"));
    bench.ledger().assert_count("put payments", 1);
}

#[test]
fn staged_writes_are_applied_without_enforcement() {
    for mode in [Mode::Off, Mode::Shadow] {
        let bench = Bench::new();
        let mut function = staged_in(bench.builder().mode(mode).build().unwrap());
        bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
        assert_eq!(bench.records().item("payments", "order-17").as_deref(), Some("paid"), "{mode:?}");
        // Without a record, the condition of the handler's own write still prevents a second payment.
        let again = bench.deliver(&mut function, &Event::json(ORDER));
        assert_eq!(again.answer().unwrap().body(), r#""order-17 was there""#, "{mode:?}");
        bench.ledger().assert_count("put payments", 1);
    }
}

#[test]
fn failed_condition_declines_the_staged_writes() {
    let bench = Bench::new();
    let mut function = staged(&bench);
    bench.deliver(&mut function, &Event::json(ORDER)).assert_ran();
    for key in bench.keys() {
        bench.records().set(&key, None);
    }
    let again = bench.deliver(&mut function, &Event::json(ORDER));
    assert_eq!(again.answer().unwrap().body(), r#""order-17 was there""#);
    bench.ledger().assert_count("put payments", 1);
}

/// A function whose handler passes on a step's refusal with `?`, with a context, or as a text.
fn passing_on(bench: &Bench, how: &'static str) -> Function {
    let idempotency = bench.idempotency();
    let service = lambda_runtime::service_fn(move |event: lambda_runtime::LambdaEvent<(String, u64)>| {
        let idempotency = idempotency.clone();
        async move {
            let (order, cents) = event.payload;
            let charge = async || Ok::<_, std::io::Error>("charged".to_owned());
            let step = idempotency.for_context(&event.context).operation("charge")?;
            match step.run(Key::new(&order)?, &cents, charge).await {
                Ok(charged) => Ok(charged),
                Err(error) if how == "a text" => Err(lambda_runtime::Error::from(error.to_string())),
                Err(error) if how == "a context" => {
                    Err(anyhow::Error::from(error).context("the card").into())
                }
                Err(error) => Err(error.into()),
            }
        }
    });
    Function::lambda(service)
}

#[test]
fn refusals_keep_their_types() {
    for how in ["itself", "a context", "a text"] {
        let bench = Bench::new();
        let mut function = passing_on(&bench, how);
        bench.deliver(&mut function, &Event::json(r#"["order-17", 1]"#)).assert_ran();
        let refused = bench.deliver(&mut function, &Event::json(r#"["order-17", 2]"#));
        let checked = catch_unwind(|| _ = refused.assert_refused(ErrorKind::Mismatch));
        let (error_type, _) = refused.answer().unwrap().error().unwrap();
        match how {
            "a text" => {
                let panic = *checked.unwrap_err().downcast::<String>().unwrap();
                assert!(panic.contains("report the type `Idempotency.Mismatch`"), "{panic}");
            }
            _ => assert!(checked.is_ok() && error_type == "Idempotency.Mismatch", "{how}: {error_type}"),
        }
        let report = survive(move |bench| passing_on(bench, how), &Event::json(r#"["order-17", 1]"#));
        report.assert_safe();
        assert_eq!(report.to_string().contains("no caller can match"), how == "a text", "{report}");
    }
}

/// The names of the counters that were counted.
#[derive(Debug, Default)]
struct Counted(Mutex<BTreeSet<String>>);

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, name: &metrics::Key, _: &Metadata<'_>) -> Counter {
        self.0.lock().unwrap().insert(name.name().to_owned());
        Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn local_recorder_sees_the_deliveries_metrics() {
    let (bench, event) = (Bench::new(), Event::json(ORDER));
    let mut function = safe(&bench);
    let counted = |work: &mut dyn FnMut()| {
        let counted = Counted::default();
        metrics::with_local_recorder(&counted, work);
        counted.0.into_inner().unwrap()
    };
    let first = counted(&mut || drop(bench.deliver(&mut function, &event)));
    assert!(first.contains(Metric::Executed.name()) && !first.contains(Metric::Replayed.name()), "{first:?}");
    let again = counted(&mut || drop(bench.deliver(&mut function, &event.retried(1))));
    assert!(again.contains(Metric::Replayed.name()), "{again:?}");
    let schedules = counted(&mut || Survival::new().schedules(20).play(safe, &event).assert_safe());
    assert!(schedules.contains(Metric::Executed.name()), "{schedules:?}");
}

/// Books a hotel, a flight and a car, each in its own step and without a remote key.
fn booking(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |trip: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            for step in ["hotel", "flight", "car"] {
                let key = Key::new(trip["id"].as_str().unwrap_or_default())?;
                let book = || async { ledger.call(step, None, "").await };
                let _: String = idempotency.operation(step)?.run(key, &trip, book).await?;
            }
            Ok::<_, Error>("booked")
        }
    })
}

#[test]
fn later_occurrences_of_a_point_are_hit() {
    let (bench, event) = (Bench::new(), Event::json(ORDER));
    bench.fault_at_nth(Point::AfterEffect, 2, Fault::Die);
    bench.deliver(&mut booking(&bench), &event).assert_died();
    bench.ledger().assert_count("hotel", 1);
    bench.ledger().assert_count("flight", 1);
    bench.ledger().assert_count("car", 0);
    let next = bench.process();
    next.advance_past_leases();
    next.fault_at_nth(Point::Before(Call::Complete), 2, Fault::Throttle);
    next.deliver(&mut booking(&next), &event).assert_ran();
    bench.ledger().assert_count("hotel", 1);
    bench.ledger().assert_count("flight", 2);
    bench.ledger().assert_count("car", 1);
}

#[test]
fn processes_share_a_fakes_state() {
    type Charges = Mutex<Vec<String>>;
    let bench = Bench::new();
    let (one, another) = (bench.shared::<Charges>(), bench.process().shared::<Charges>());
    one.lock().unwrap().push("order-17".to_owned());
    assert_eq!(*another.lock().unwrap(), ["order-17"]);
    assert!(Bench::new().shared::<Charges>().lock().unwrap().is_empty());
    let _: Arc<Mutex<u64>> = bench.shared();
}
