//! The methods of the bench that cause faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::ErrorKind;
use lambda_idempotency_testing::{Bench, Call, Event, Fault, Function, Point};
use serde_json::Value;

use super::{ORDER, safe, unsafe_one};

fn order() -> Event {
    Event::json(ORDER)
}

#[test]
fn lost_store_responses_repeat_no_effect() {
    for call in [Call::Claim, Call::Complete] {
        let bench = Bench::new();
        let mut function = unsafe_one(&bench);
        bench.lose_answer(call);
        bench.deliver(&mut function, &order()).assert_ran();
        bench.deliver(&mut function, &order()).assert_replayed();
        bench.ledger().assert_count("charge", 1);
    }
}

#[test]
fn throttled_completions_are_retried() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.throttle(Call::Complete, 3);
    let first = bench.deliver(&mut function, &order());
    assert_eq!(first.assert_ran().requests(), 5);
    bench.deliver(&mut function, &order()).assert_replayed();
}

#[test]
fn throttled_claim_runs_nothing() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.throttle(Call::Claim, 1);
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::Unavailable);
    bench.ledger().assert_count("charge", 0);
}

#[test]
fn claim_of_dead_process_is_taken_over() {
    let bench = Bench::new();
    bench.die_at(Point::AfterEffect);
    bench.deliver(&mut unsafe_one(&bench), &order()).assert_died();
    let next = bench.process();
    let mut function = unsafe_one(&next);
    next.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    next.advance_past_leases();
    next.deliver(&mut function, &order()).assert_ran();
    bench.ledger().assert_count("charge", 2);
}

#[test]
fn outage_leaves_the_outcome_unrecorded() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.outage_from(Call::Complete);
    bench.deliver(&mut function, &order()).assert_ran();
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    bench.advance_past_leases();
    bench.deliver(&mut function, &order()).assert_ran();
    bench.ledger().assert_count("charge", 2);
}

#[test]
fn failed_effect_releases_the_key() {
    let bench = Bench::new();
    let mut function = safe(&bench);
    bench.fail_effect();
    assert!(!bench.deliver(&mut function, &order()).answer().unwrap().is_done());
    bench.ledger().assert_count("charge", 0);
    bench.lose_effects_answer();
    assert!(!bench.deliver(&mut function, &order()).answer().unwrap().is_done());
    bench.deliver(&mut function, &order()).assert_ran();
    bench.ledger().assert_count("charge", 1);
}

#[test]
fn fenced_run_answers_with_its_successors_outcome() {
    let bench = Bench::new();
    let (mut late, other) = (unsafe_one(&bench), bench.process());
    bench.pause_at(Point::Before(Call::Complete));
    let paused = bench.deliver(&mut late, &order());
    assert!(paused.answer().is_none());
    other.deliver(&mut unsafe_one(&other), &order()).assert_refused(ErrorKind::InProgress);
    other.advance_past_leases();
    let successor = other.deliver(&mut unsafe_one(&other), &order());
    let late = bench.resume(&paused);
    assert_eq!(late.answer().unwrap().body(), successor.assert_ran().answer().unwrap().body());
    bench.ledger().assert_count("charge", 2);
}

#[test]
fn hanging_effect_is_cut_off_at_the_deadline() {
    let bench = Bench::new().timeout(Duration::from_secs(5));
    let (mut function, began) = (safe(&bench), bench.now());
    bench.run_out_of_time_at(Point::BeforeEffect);
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    assert_eq!(began.until(bench.now()), Duration::from_secs(5));
}

#[test]
fn process_is_killed_after_its_deadline() {
    let bench = Bench::new().timeout(Duration::from_secs(5));
    let mut hangs = Function::new(|_: Value| async {
        std::future::pending::<()>().await;
        Ok::<_, super::Error>(())
    });
    bench.deliver(&mut hangs, &order()).assert_died();
}

/// Counts how often it's dropped.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn killed_process_runs_no_destructor() {
    let (bench, dropped) = (Bench::new(), Arc::new(AtomicUsize::new(0)));
    let (ledger, count) = (bench.ledger(), Arc::clone(&dropped));
    let mut function = Function::new(move |_: Value| {
        let (guard, ledger) = (Guard(Arc::clone(&count)), ledger.clone());
        async move {
            ledger.call("charge", None, "").await?;
            drop(guard);
            Ok::<_, super::Error>(())
        }
    });
    bench.die_at(Point::BeforeEffect);
    bench.deliver(&mut function, &order()).assert_died();
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    bench.ledger().assert_count("charge", 0);
}

#[test]
fn synchronous_code_stops_when_its_process_dies() {
    let bench = Bench::new();
    let ledger = bench.ledger();
    let mut function = Function::new(move |_: Value| {
        let ledger = ledger.clone();
        async move {
            ledger.record("first", "");
            ledger.record("second", "");
            Ok::<_, super::Error>(())
        }
    });
    bench.die_at(Point::AfterEffect);
    bench.deliver(&mut function, &order()).assert_died();
    bench.ledger().assert_count("first", 1);
    bench.ledger().assert_count("second", 0);
}

/// `Ledger::record` can't fail, so the fault waits for the next effect that `Ledger::call` makes.
#[test]
fn effect_faults_wait_for_a_call() {
    for (point, fault) in [(Point::BeforeEffect, Fault::Throttle), (Point::AfterEffect, Fault::Overlap)] {
        let bench = Bench::new();
        let ledger = bench.ledger();
        let mut function = Function::new(move |_: Value| {
            let ledger = ledger.clone();
            async move {
                ledger.record("log", "");
                ledger.call("charge", None, "").await?;
                Ok::<_, super::Error>(())
            }
        });
        bench.fault_at(point, fault);
        let first = bench.deliver(&mut function, &order());
        assert!(first.answer().is_none_or(|answer| !answer.is_done()), "{fault}: {first}");
        bench.ledger().assert_count("log", 1);
        bench.ledger().assert_count("charge", usize::from(point == Point::AfterEffect));
    }
}

#[test]
fn delivery_with_no_time_left_runs_nothing() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.fault_at(Point::Entered, Fault::NoTime);
    let first = bench.deliver(&mut function, &order());
    assert!(!first.has_run() && first.answer().is_none_or(|answer| !answer.is_done()), "{first}");
    bench.ledger().assert_count("charge", 0);
    bench.deliver(&mut function, &order()).assert_ran();
}

#[test]
fn late_claims_arrive_after_their_delivery() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    // The first delivery's claim and its retries all arrive late.
    for _ in 0..50 {
        bench.fault_at(Point::Before(Call::Claim), Fault::Late);
    }
    let first = bench.deliver(&mut function, &order());
    assert!(!first.has_run(), "{first}");
    assert_eq!(bench.keys().len(), 0, "the claim must arrive after the delivery has ended");
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::InProgress);
    bench.advance_past_leases();
    bench.deliver(&mut function, &order()).assert_ran();
    bench.ledger().assert_count("charge", 1);
}

#[test]
fn late_completions_are_replayed() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    for _ in 0..50 {
        bench.fault_at(Point::Before(Call::Complete), Fault::Late);
    }
    bench.deliver(&mut function, &order()).assert_ran();
    bench.deliver(&mut function, &order()).assert_replayed();
    bench.ledger().assert_count("charge", 1);
}

#[test]
fn retries_by_store_client_repeat_no_effect() {
    for call in [Call::Claim, Call::Complete] {
        for (point, fault) in [
            (Point::After(call), Fault::Retry),
            (Point::Before(call), Fault::RetryLate),
            (Point::Before(call), Fault::Late),
        ] {
            let bench = Bench::new();
            let mut function = unsafe_one(&bench);
            bench.fault_at(point, fault);
            bench.deliver(&mut function, &order()).assert_ran();
            bench.deliver(&mut function, &order()).assert_replayed();
            bench.ledger().assert_count("charge", 1);
        }
    }
}

#[test]
fn unstorable_response_is_omitted_from_the_record() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.fault_at(Point::Before(Call::Complete), Fault::Unstorable);
    bench.deliver(&mut function, &order()).assert_ran();
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::NotRetained);
    bench.ledger().assert_count("charge", 1);
}

#[test]
fn unreadable_record_runs_nothing() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.fault_at(Point::Before(Call::Claim), Fault::Unreadable);
    bench.deliver(&mut function, &order()).assert_refused(ErrorKind::Corrupt);
    bench.ledger().assert_count("charge", 0);
}

#[test]
fn hidden_record_is_read_and_replayed() {
    let bench = Bench::new();
    let mut function = unsafe_one(&bench);
    bench.deliver(&mut function, &order()).assert_ran();
    bench.fault_at(Point::Before(Call::Claim), Fault::HideRecord);
    let again = bench.deliver(&mut function, &order());
    assert_eq!(again.assert_replayed().requests(), 2, "the replay must take a claim and a read");
}

#[test]
fn slow_answers_take_three_seconds() {
    for point in [Point::After(Call::Complete), Point::AfterEffect] {
        let bench = Bench::new();
        let mut function = unsafe_one(&bench);
        let before = bench.now();
        bench.fault_at(point, Fault::Slow);
        bench.deliver(&mut function, &order()).assert_ran();
        assert_eq!(before.until(bench.now()), Duration::from_secs(3), "{point}");
        bench.deliver(&mut function, &order()).assert_replayed();
    }
}

#[test]
#[should_panic(expected = "the fault `throttles` can't happen at the point `entered`")]
fn fault_at_an_impossible_point_panics() {
    let bench = Bench::new();
    bench.fault_at(Point::Entered, Fault::Throttle);
}

#[test]
#[should_panic(expected = "the fault `overlap` can't happen at the point `entered`")]
fn pause_at_an_impossible_point_panics() {
    Bench::new().pause_at(Point::Entered);
}

#[test]
#[should_panic(expected = "the fault `silence-after` can't happen at the point `answered`")]
fn running_out_of_time_at_impossible_points_panics() {
    Bench::new().run_out_of_time_at(Point::Answered);
}

/// Each fault has its own name, and can happen at one point or more.
#[test]
fn each_fault_has_a_name_and_point() {
    for fault in Fault::ALL {
        assert_eq!(Fault::named(fault.name()), Some(fault));
        assert!(Point::ALL.into_iter().any(|point| fault.fits(point)), "{fault} can't happen at any point");
        let error = fault.error();
        assert_eq!(error.as_ref().map(|error| error.kind()), fault.error_kind());
        assert!(error.is_none_or(|error| error.is_maybe_applied() == fault.is_ambiguous()), "{fault}");
    }
}
