//! Tests the judge on cases made by hand.

use std::time::Duration;

use super::*;
use crate::crash::{
    gateway::{Applied, Asked, Charge, Told},
    job::ARRIVES,
};

/// Two claims of one key, at these times in ms: the first at 1,000 with a lease until 1,400, the second as soon as the
/// first is stale. The time of a claim is also its generation.
const FIRST: u64 = 1_000;
const LEASE: u64 = 1_400;
const SECOND: u64 = 1_451;

fn line(run: &str, generation: u64, attempt: u32) -> Line {
    Line { run: run.into(), generation, attempt, lease_until: generation + (LEASE - FIRST) }
}

fn response(run: &str) -> Said {
    Said::Response(format!("\"{run}\"").into_bytes())
}

fn error(kind: &str) -> Said {
    Said::Error(kind.into(), "why".into())
}

fn delivery(run: &str, deed: Deed, said: Said, said_at: u64) -> Delivery {
    Delivery { run: run.into(), deed, said, said_at }
}

fn completed(run: &str, generation: u64, attempt: u32) -> Stored {
    Stored {
        status: "COMPLETED".into(),
        generation,
        attempt,
        lease_until: None,
        response: Some(format!("\"{run}\"").into_bytes()),
    }
}

/// One delivery, one effect, one duplicate that got the same answer.
fn undisturbed() -> Case {
    Case {
        key: "k".into(),
        promise: Promise::AtLeastOnce,
        lines: vec![line("1-1", FIRST, 1)],
        log: Log::default(),
        deliveries: vec![
            delivery("1-1", Deed::Spared, response("1-1"), FIRST + 30),
            delivery("1-2", Deed::Spared, response("1-1"), FIRST + 60),
        ],
        seen: vec![completed("1-1", FIRST, 1)],
        record: Some(completed("1-1", FIRST, 1)),
    }
}

/// The first run had its effect, and then the harness did `deed` to that run. The second run's outcome is recorded.
fn disturbed(deed: Deed, said: Said) -> Case {
    Case {
        lines: vec![line("1-1", FIRST, 1), line("2-1", SECOND, 2)],
        deliveries: vec![
            delivery("1-1", deed, said, FIRST + 30),
            delivery("2-1", Deed::Spared, response("2-1"), SECOND + 30),
        ],
        seen: Vec::new(),
        record: Some(completed("2-1", SECOND, 2)),
        ..undisturbed()
    }
}

fn assert_violation(case: &Case, words: &str) {
    let violation = case.judge().unwrap_err().to_string();
    assert!(violation.starts_with("key k: ") && violation.contains(words), "{violation}");
    for line in &case.lines {
        assert!(violation.contains(&line.to_string()), "the message doesn't show the ledger: {violation}");
    }
}

#[test]
fn judge_counts_effects_and_crashes() {
    let found = undisturbed().judge().unwrap();
    assert_eq!(found, Finding { effects: 1, ..Finding::default() });

    let found = disturbed(Deed::Killed, Said::Nothing).judge().unwrap();
    let in_the_gap = Finding { effects: 2, crashes_in_the_gap: 1, later_claims: 1, ..Finding::default() };
    assert_eq!(found, Finding { killed_in_the_gap: 1, ..in_the_gap });

    let found = disturbed(Deed::Froze, response("2-1")).judge().unwrap();
    assert_eq!(found, Finding { fenced: 1, ..in_the_gap });
}

#[test]
fn kills_outside_the_gap_are_counted() {
    let mut case = undisturbed();
    case.deliveries[0] = delivery("1-1", Deed::Killed, Said::Nothing, FIRST + 30);
    assert_eq!(case.judge().unwrap().killed_after, 1);
    case.deliveries.push(delivery("3-1", Deed::Killed, Said::Nothing, FIRST + 90));
    assert_eq!(case.judge().unwrap().killed_before, 1);
}

#[test]
fn unexplained_effect_is_found() {
    let case = disturbed(Deed::Spared, error("Idempotency.InProgress"));
    assert_violation(&case, "the run was neither killed nor frozen, and it answered in time");

    // A slow run isn't a violation: Lambda would have killed the run at its deadline, and a killed run may be repeated.
    let mut slow = case.clone();
    slow.deliveries[0].said_at = LEASE;
    assert_eq!(slow.judge().unwrap().slow, 1);

    let mut unknown = case;
    unknown.deliveries.remove(0);
    assert_violation(&unknown, "no delivery started run 1-1");
}

#[test]
fn exactly_once_requires_exactly_one_effect() {
    let case = Case { promise: Promise::ExactlyOnce, ..disturbed(Deed::Killed, Said::Nothing) };
    assert_violation(&case, "in the outcome's transaction, but happened 2 times");
    let none = Case { promise: Promise::ExactlyOnce, lines: Vec::new(), ..undisturbed() };
    assert_violation(&none, "in the outcome's transaction, but happened 0 times");
    let others = Case { promise: Promise::ExactlyOnce, lines: vec![line("9-9", FIRST, 1)], ..undisturbed() };
    assert_violation(&others, "its effect and its record are from different runs");
    Case { promise: Promise::ExactlyOnce, ..undisturbed() }.judge().unwrap();
}

#[test]
fn duplicate_effects_are_found() {
    let mut case = disturbed(Deed::Killed, Said::Nothing);
    case.lines[1].generation = FIRST;
    case.record = Some(completed("2-1", FIRST, 2));
    assert_violation(&case, "had two effects");

    let mut case = disturbed(Deed::Killed, Said::Nothing);
    case.lines[0].run = "2-1".into();
    assert_violation(&case, "run 2-1 had two effects");
}

#[test]
fn overlapping_claims_are_found() {
    let mut case = disturbed(Deed::Killed, Said::Nothing);
    for generation in [FIRST + 1, LEASE, LEASE + 50] {
        case.lines[1].generation = generation;
        case.record = Some(completed("2-1", generation, 2));
        assert_violation(&case, "during the lease of generation 1000");
    }
}

#[test]
fn effect_of_a_later_claim_is_found() {
    let mut case = disturbed(Deed::Spared, response("1-1"));
    case.deliveries[1] = delivery("2-1", Deed::Killed, Said::Nothing, SECOND + 30);
    case.record = Some(completed("1-1", FIRST, 1));
    assert_violation(&case, "run 2-1 ran under a later claim");
}

#[test]
fn differing_answers_are_found() {
    let case = disturbed(Deed::Froze, response("1-1"));
    assert_violation(&case, "run 1-1 answered with a response that isn't the record's");
    // Now the frozen run answers after its own deadline, but before the other run. There's no outcome to replay yet, so
    // the frozen run may answer with its own.
    let mut case = case;
    case.deliveries[0].said_at = LEASE;
    case.judge().unwrap();
    let mut case = disturbed(Deed::Spared, response("1-1"));
    assert_violation(&case, "run 1-1 answered with a response that isn't the record's");
    // An answer after the deadline doesn't count, since the caller has timed out.
    case.deliveries[0].said_at = LEASE;
    assert_eq!(case.judge().unwrap().slow, 1);

    let mut case = undisturbed();
    case.deliveries.clear();
    assert_violation(&case, "no delivery got an answer");
}

#[test]
fn record_of_another_generation_is_found() {
    // The frozen run overwrote its successor's claim with its own outcome.
    let mut case = disturbed(Deed::Froze, response("1-1"));
    case.record = Some(completed("1-1", SECOND, 2));
    case.deliveries[1].said = response("1-1");
    assert_violation(&case, "isn't from the run with the record's generation");

    let mut case = undisturbed();
    case.record = Some(completed("1-1", SECOND, 1));
    case.seen.clear();
    assert_violation(&case, "no effect has the record's generation");
}

#[test]
fn missing_or_replaced_outcome_is_found() {
    let mut case = undisturbed();
    case.record = None;
    assert_violation(&case, "there's no record");

    let mut case = undisturbed();
    case.record = case.record.map(|record| Stored { status: "STARTED".into(), ..record });
    assert_violation(&case, "is STARTED, not COMPLETED");

    let mut case = disturbed(Deed::Killed, Said::Nothing);
    case.seen.push(completed("1-1", FIRST, 1));
    assert_violation(&case, "a stored outcome was replaced");
}

#[test]
fn forbidden_answers_are_found() {
    for said in [
        error("Idempotency.Mismatch"),
        error("Idempotency.Corrupt"),
        error("Test.NoClaim"),
        Said::Lost("the process ended, signal: 6".into()),
        Said::Nothing,
    ] {
        let mut case = undisturbed();
        case.deliveries.push(delivery("4-1", Deed::Spared, said.clone(), FIRST + 99));
        assert_violation(&case, &format!("run 4-1 {said}"));
    }
    for said in [error("Idempotency.InProgress"), error("Idempotency.Unavailable"), error(TOLD_TO_FAIL)] {
        let mut case = undisturbed();
        case.deliveries.push(delivery("4-1", Deed::Spared, said, FIRST + 99));
        case.judge().unwrap();
    }
}

/// The first run's charge took `delay` ms to arrive and the harness killed that run. The second run asked at `SECOND` + 10
/// and got this answer. It charged, too, unless it found the charge.
fn reconciled(delay: u64, told: Told) -> Case {
    let sent = |line: Line, delay: u64| {
        let sent_at = line.generation + 5;
        let (job, key) = ("k".to_owned(), "remote".to_owned());
        let charge = Charge { job, key, cents: 1, line, sent_at };
        Applied { charge, delay: Duration::from_millis(delay), at: sent_at + delay }
    };
    let mut case = disturbed(Deed::Killed, Said::Nothing);
    case.promise = Promise::Reconciled;
    let mut charges = case.lines.clone().into_iter();
    case.log.applied.extend(charges.next().map(|line| sent(line, delay)));
    case.log.asked.push(Asked { generation: SECOND, at: SECOND + 10, told });
    if told == Told::Happened {
        case.deliveries[1].said = response("1-1");
        case.record = Some(completed("1-1", SECOND, 2));
    } else {
        case.log.applied.extend(charges.next().map(|line| sent(line, 20)));
    }
    case.lines = case.log.lines();
    case
}

#[test]
fn found_charges_are_the_answer() {
    let found = reconciled(100, Told::Happened).judge().unwrap();
    assert_eq!((found.effects, found.late, found.happened, found.killed_in_the_gap), (1, 0, 1, 1));
    let mut case = reconciled(100, Told::Happened);
    case.record = Some(completed("9-9", SECOND, 2));
    case.deliveries[1].said = response("9-9");
    assert_violation(&case, "isn't that of a charge");
}

#[test]
fn second_charges_need_a_late_first_one() {
    let found = reconciled(millis(ARRIVES) + 1, Told::Absent).judge().unwrap();
    assert_eq!((found.effects, found.late, found.slow), (2, 1, 0));
    assert_violation(&reconciled(millis(ARRIVES), Told::Absent), "the question came too soon");
    assert_violation(&reconciled(100, Told::Absent), "had charged before the question");
    for told in [Told::NotKnownYet, Told::Nothing] {
        assert_violation(&reconciled(9_999, told), "no question was told that there's no charge");
    }
}

#[test]
fn unreconciled_charges_need_a_run_without_answer() {
    let mut case = reconciled(100, Told::Absent);
    case.promise = Promise::Unreconciled;
    assert_eq!(case.judge().unwrap().effects, 2);
    case.deliveries[0] = delivery("1-1", Deed::Spared, error("Idempotency.InProgress"), FIRST + 30);
    assert_violation(&case, "charged a second time, but it answered in time");
    case.deliveries[0].said = error(UNKNOWN);
    assert_eq!(case.judge().unwrap().unknown, 1);
}
