//! Tests that the judge accepts a sound run, and finds each defect in a run that has no other.

use std::{collections::BTreeMap, sync::Arc};

use lambda_idempotency::{
    Fingerprint,
    settings::Execution,
    store::{Generation, Mark, Outcome, Owner, Place, StoreErrorKind, StoredResponse},
};

use super::*;
use crate::wire::{
    budget::{SETTLE_WITHIN, TimeOuts},
    case::{Case, Origin},
    play::{Delivery, Effect},
    scenario,
    told::Brief,
    watched::Call,
    way::Medium,
};
use lambda_idempotency_rehearsal::{
    clock,
    wire::{Exchange, HttpWay, Served},
};

const NOW: u64 = 1_795_000_000_000;
const MINE: Owner = Owner::from_bytes([1; 16]);
const STRANGER: Owner = Owner::from_bytes([9; 16]);
const RESPONSE: &str = "the response of delivery 0, 17";

fn started(owner: Owner) -> Record {
    Record {
        owner,
        generation: Generation::new(NOW),
        attempt: 1,
        fingerprint: Fingerprint::from_digest([7; 32]),
        lock_acquired_at: Timestamp::from_millis(NOW),
        execution: Execution::AtLeastOnce,
        expires_at: Some(Timestamp::from_millis(NOW + 90_000_000)),
        mark: Mark::None,
        request_id: None::<Arc<str>>,
        trace: None,
        state: State::Started { lease_until: Timestamp::from_millis(NOW + 60_000) },
    }
}

fn completed(owner: Owner) -> Record {
    let outcome = Outcome::Retained(StoredResponse {
        deflated: false,
        length: 0,
        sha256: [0; 32],
        labels: None,
        place: Place::Inline(bytes::Bytes::new()),
    });
    Record { state: State::Completed(outcome), ..started(owner) }
}

fn snapshot(after_ms: u64, record: Option<Record>, text: Option<&str>) -> Snapshot {
    let outcome = text.map(|text| Said::Text(text.to_owned()));
    Snapshot { at: Timestamp::from_millis(NOW + after_ms), record, outcome }
}

fn delivery(answer: Answer, owner: Owner, before: Snapshot, after: Snapshot) -> Delivery {
    Delivery {
        answer,
        retry_after: None,
        took: Duration::from_millis(10),
        late: Duration::ZERO,
        owners: vec![owner],
        before,
        after,
    }
}

fn call(meaning: Meaning, request: usize, told: Told) -> Call {
    Call {
        meaning,
        ended: clock::start(),
        took: Duration::from_millis(5),
        requests: (request, request + 1),
        told,
        late: Duration::ZERO,
    }
}

fn exchange(meaning: Meaning, status: u16) -> Exchange {
    let error = (status != 200).then(|| "ConditionalCheckFailedException".to_owned());
    let at = Duration::from_millis(1);
    let served = Some(Served { at, status, error });
    Exchange { at, meaning, served, answered: Some(at), ..Exchange::default() }
}

/// A first delivery that runs the handler, a duplicate, and another duplicate after all leases have ended.
fn sound() -> Facts {
    let value = Answer::Value(RESPONSE.to_owned());
    let done = |after_ms| snapshot(after_ms, Some(completed(MINE)), Some(RESPONSE));
    let case = Case {
        medium: Medium::Http,
        origin: Origin::Seed(0),
        scenario: &scenario::ALL[0],
        retries: Retries::None,
        faults: BTreeMap::new(),
        long: None,
    };
    Facts {
        tells_waits: true,
        time_outs: TimeOuts::of(&case),
        case,
        fingerprint: Fingerprint::from_digest([7; 32]),
        deliveries: vec![
            delivery(value.clone(), MINE, snapshot(0, None, None), done(20)),
            delivery(value.clone(), Owner::from_bytes([2; 16]), done(20), done(40)),
            delivery(value, Owner::from_bytes([3; 16]), done(90_000), done(90_020)),
        ],
        rival: None,
        effects: vec![Effect { delivery: 0, generation: NOW, succeeded: true }],
        calls: vec![call(Meaning::Claim, 0, Told::Applied), call(Meaning::Complete, 1, Told::Applied)],
        exchanges: vec![exchange(Meaning::Claim, 200), exchange(Meaning::Complete, 200)],
    }
}

fn unavailable(maybe_applied: bool) -> Told {
    Told::Failed { kind: StoreErrorKind::Unavailable, maybe_applied }
}

#[test]
fn sound_run_has_no_violations() {
    let verdict = judge(&sound());
    assert_eq!(verdict.violations, Vec::<String>::new());
    assert!(verdict.gaps.is_empty());
}

#[test]
fn ambiguous_claims_count_as_lost() {
    let conflict = || Told::Failed { kind: StoreErrorKind::Conflict, maybe_applied: false };
    let lost = |told: Vec<Told>| {
        let calls = told.into_iter().map(|told| call(Meaning::TakeOver, 0, told)).collect();
        Facts { calls, ..sound() }.claims_lost()
    };
    assert_eq!(lost(vec![Told::Refused(None), conflict(), unavailable(true), conflict()]), 4);
    assert_eq!(lost(vec![conflict(), unavailable(false), conflict()]), 2);
    // After an ambiguous answer, the library must read the record.
    assert_eq!(lost(vec![conflict(), conflict(), conflict(), unavailable(true)]), 0);
}

#[test]
fn each_single_violation_is_found() {
    type Wrong = fn(&mut Facts);
    let wrongs: [(&str, Wrong); 17] = [
        ("the handler ran 2 times in one delivery", |f| f.effects.push(f.effects[0])),
        ("a generation had more than one effect", |f| f.effects.push(Effect { delivery: 2, ..f.effects[0] })),
        ("the effect was repeated", |f| {
            f.effects.push(Effect { delivery: 2, generation: NOW + 1, succeeded: true });
        }),
        ("the answer is the handler's response, but the handler didn't run", |f| f.effects.clear()),
        ("the answer isn't the recorded outcome", |f| f.deliveries[0].answer = Answer::Value(RIVAL.into())),
        ("the outcome wasn't stored", |f| {
            f.deliveries[0].after = snapshot(20, Some(started(MINE)), None);
        }),
        ("the record doesn't hold the outcome that the answer gives", |f| {
            f.deliveries[0].after.outcome = Some(Said::Text("another".into()));
        }),
        ("the response wasn't kept", |f| f.deliveries[0].after.outcome = Some(Said::Omitted)),
        ("unexpected Unavailable", |f| {
            f.deliveries[0].answer = Answer::Refused(ErrorKind::Unavailable);
        }),
        ("unexpected InProgress", |f| {
            f.deliveries[0].answer = Answer::Refused(ErrorKind::InProgress);
        }),
        ("a live outcome changed", |f| {
            f.deliveries[1].after = snapshot(40, Some(completed(STRANGER)), Some(RESPONSE));
        }),
        ("the record vanished", |f| f.deliveries[2].after.record = None),
        ("reported as applied", |f| f.exchanges[1] = exchange(Meaning::Complete, 400)),
        ("reported as definitely not applied", |f| f.calls[1].told = unavailable(false)),
        ("the call took", |f| f.calls[0].took = Duration::from_secs(1)),
        ("the answer took", |f| f.deliveries[0].took = Duration::from_secs(5)),
        ("delivery 0 got no answer", |f| f.deliveries[0].answer = Answer::Hung),
    ];
    for (expected, wrong) in wrongs {
        let mut facts = sound();
        wrong(&mut facts);
        let violations = judge(&facts).violations;
        assert!(violations.iter().any(|found| found.starts_with(expected)), "{expected}: {violations:?}");
    }
}

#[test]
fn unrecorded_outcome_needs_a_failed_settlement() {
    // The completion and all later reads are lost until the library's time is over. The next two deliveries find
    // the record still STARTED.
    let mut facts = sound();
    facts.exchanges[1] =
        Exchange { fault: Some(HttpWay::CutBefore), served: None, ..facts.exchanges[1].clone() };
    facts.calls[1].told = unavailable(true);
    for request in 2..40 {
        facts.exchanges.push(Exchange { fault: Some(HttpWay::CutBefore), ..exchange(Meaning::Look, 200) });
        facts.calls.push(call(Meaning::Look, request, unavailable(false)));
    }
    facts.deliveries[0].took = SETTLE_WITHIN;
    let stands = |after_ms| snapshot(after_ms, Some(started(MINE)), None);
    let again = "the response of delivery 2, 17";
    let later = Owner::from_bytes([3; 16]);
    let taken_over = Record { generation: Generation::new(NOW + 90_000), ..completed(later) };
    facts.deliveries[0].after = stands(20);
    facts.deliveries[1] =
        delivery(Answer::Refused(ErrorKind::InProgress), Owner::from_bytes([2; 16]), stands(20), stands(40));
    facts.deliveries[2] = delivery(
        Answer::Value(again.into()),
        later,
        stands(90_000),
        snapshot(90_020, Some(taken_over), Some(again)),
    );
    facts.effects.push(Effect { delivery: 2, generation: NOW + 90_000, succeeded: true });
    let verdict = judge(&facts);
    assert_eq!(verdict.violations, Vec::<String>::new());
    assert_eq!(verdict.gaps, BTreeSet::from([Gap::Unrecorded, Gap::RanAgain]));

    // With time left, the library must retry.
    let mut in_time = facts.clone();
    in_time.deliveries[0].took = SETTLE_WITHIN / 2;
    let violations = judge(&in_time).violations;
    assert!(violations.iter().any(|found| found.starts_with("the outcome wasn't stored")), "{violations:?}");
    // If the completion is rejected because the record is already COMPLETED, the library knows its outcome is stored.
    facts.calls[1].told =
        Told::Refused(Some(Brief { owner: MINE, generation: NOW, status: Status::Completed }));
    assert!(!judge(&facts).violations.is_empty());
}

#[test]
fn recognised_claim_requires_a_handler_run() {
    let mut facts = sound();
    facts.effects.clear();
    facts.deliveries.truncate(1);
    facts.deliveries[0].answer = Answer::Refused(ErrorKind::Unavailable);
    facts.deliveries[0].after = snapshot(20, Some(started(MINE)), None);
    facts.exchanges[0].fault = Some(HttpWay::CutAfter);
    facts.exchanges[1] = Exchange { fault: Some(HttpWay::HangBefore), ..exchange(Meaning::Look, 200) };
    facts.exchanges.push(Exchange { fault: Some(HttpWay::CutBefore), ..exchange(Meaning::Release, 200) });
    facts.calls = vec![
        call(Meaning::Claim, 0, unavailable(true)),
        call(Meaning::Look, 1, unavailable(false)),
        call(Meaning::Release, 2, unavailable(true)),
    ];
    facts.deliveries[0].retry_after = Some(Duration::from_secs(62));
    let found = |facts: &Facts, expected: &str| {
        let violations = judge(facts).violations;
        violations.iter().any(|found| found.starts_with(expected))
    };
    assert!(judge(&facts).gaps.contains(&Gap::Ghost));
    let rules = [
        "the library didn't recognise its own claim",
        "a claim in doubt wasn't released",
        "the claim may outlast the reported wait",
    ];
    assert!(rules.iter().all(|rule| !found(&facts, rule)), "{:?}", judge(&facts).violations);

    for told in [None, Some(Duration::from_secs(30))] {
        let mut hasty = facts.clone();
        hasty.deliveries[0].retry_after = told;
        assert!(found(&hasty, rules[2]), "{told:?}");
    }
    let mut kept = facts.clone();
    kept.calls.truncate(2);
    assert!(found(&kept, rules[1]));

    let claim = Brief { owner: MINE, generation: NOW, status: Status::Started };
    let mut late = facts.clone();
    late.calls[2].told = Told::Refused(Some(claim));
    assert!(!found(&late, rules[0]), "the claim arrived after the release was refused");
    facts.calls[1].told = Told::Found(Some(claim));
    let violations = judge(&facts).violations;
    assert!(
        violations.iter().any(|found| found.starts_with("the library didn't recognise its own claim")),
        "{violations:?}"
    );
}
