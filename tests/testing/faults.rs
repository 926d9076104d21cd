//! Each verb that makes something go wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::{
    ErrorKind,
    testing::{Bench, Call, Event, Function, Point},
};
use serde_json::Value;

use super::{ORDER, safe, unsafe_one};

fn order() -> Event {
    Event::json(ORDER)
}

#[test]
fn lost_answers_repeat_nothing() {
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
fn throttled_completions_are_sent_again() {
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
fn dead_process_is_taken_over() {
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
fn overtaken_run_answers_with_its_successors_outcome() {
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
fn silent_effect_is_cut_off_in_time() {
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

/// Counts its destructions.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn death_runs_no_destructor() {
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
fn waiting_code_ends_with_its_process() {
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
