//! Mutants of how a key is claimed, and of how a record is interpreted.

use std::time::Duration;

use lambda_idempotency::{
    protocol::{Action, Event, Fault, Held, Limits, Plan, Refusal, Rules},
    settings::Execution,
    store::{
        Generation, Mark as RecordMark, Owner, Put, PutOutcome, Record, State as RecordState, Status,
        StoreErrorKind,
    },
    time::Timestamp,
};

use crate::{
    configuration::{self, Configuration, TICK, millis, ticks},
    invariants::Invariant,
    mutants::{Mutant, NONE, Outcome, sent_by, small, with_new},
    spaces,
    under_test::Purpose,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the executor's own claim isn't recognised",
        caught_by: Invariant::OwnRecognised,
        takes: |moment, record| {
            let is_own = record.owner == moment.plan.owner && !moment.is_settling();
            Record { owner: if is_own { STRANGER } else { record.owner }, ..record }
        },
        ..NONE
    },
    Mutant {
        name: "the owner is the request's id, which two attempts share",
        caught_by: Invariant::OneInsideLease,
        owner: |_, request| configuration::owner(0, request),
        ..NONE
    },
    Mutant {
        name: "the executor's lease comes from its clock, not the record",
        caught_by: Invariant::GrantBeforeStart,
        takes: |moment, record| {
            if record.owner != moment.plan.owner {
                return record;
            }
            with_lease(record, |_| moment.now.saturating_add(millis(TICK)))
        },
        ..NONE
    },
    Mutant {
        name: "the executor's lease is longer than the record's",
        caught_by: Invariant::GrantBeforeStart,
        does: |_, (state, action)| match action {
            Action::Claimed(mut held) => {
                held.lock.lease_until = held.lock.lease_until.saturating_add(millis(TICK));
                (state, Action::Claimed(held))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "no skew margin",
        caught_by: Invariant::OneInsideLease,
        plan: |plan| with_rules(plan, |rules| Rules { skew_margin: Duration::ZERO, ..rules }),
        ..NONE
    },
    Mutant {
        name: "a lock is stale one moment too early",
        caught_by: Invariant::OneInsideLease,
        plan: |plan| {
            let skew_margin = plan.rules.skew_margin.saturating_sub(Duration::from_millis(1));
            with_rules(plan, |rules| Rules { skew_margin, ..rules })
        },
        ..NONE
    },
    Mutant {
        name: "a lock is stale before its lease ends, and not after",
        caught_by: Invariant::BecomesClaimable,
        takes: |moment, record| {
            let margin = moment.plan.rules.skew_margin;
            let is_stale = |lease: Timestamp| lease.saturating_add(margin) < moment.now;
            with_lease(record, |lease| if is_stale(lease) { FAR } else { Timestamp::default() })
        },
        ..NONE
    },
    Mutant {
        name: "a lock never becomes stale",
        caught_by: Invariant::BecomesClaimable,
        takes: |_, record| with_lease(record, |_| FAR),
        ..NONE
    },
    Mutant {
        name: "a lease is in microseconds",
        caught_by: Invariant::LeaseBounded,
        does: |_, outcome| {
            with_claim(outcome, |new| {
                new.state =
                    leased(new, |lease| Timestamp::from_millis(lease.as_millis().saturating_mul(1000)));
            })
        },
        ..NONE
    },
    Mutant {
        name: "no time left is treated as no deadline",
        caught_by: Invariant::LeaseBounded,
        does: |moment, (state, action)| match (moment.event, &action) {
            (Event::Begin, Action::Refused(Refusal::NoTimeLeft)) => {
                let limits = Limits { lease_until: FAR, ..moment.plan.limits };
                let plan = Plan { limits, ..moment.plan.clone() };
                let mut state = lambda_idempotency::protocol::State::new(plan);
                let begin = lambda_idempotency::protocol::Input { now: moment.now, event: Event::Begin };
                let action = lambda_idempotency::protocol::step(&mut state, begin);
                (state, action)
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "the handler starts without time left",
        caught_by: Invariant::StartInTime,
        does: |moment, (state, action)| match (moment.event, &action, &moment.before.sent) {
            (Event::Answered(PutOutcome::Applied), Action::Put(Put::Mine { .. }), Some((_, sent)))
                if !moment.is_settling() =>
            {
                match granted(sent) {
                    Some(held) => (state, Action::Claimed(held)),
                    None => (state, action),
                }
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a replay despite a mismatch",
        caught_by: Invariant::MismatchHarmless,
        space: two_requests,
        takes: |moment, record| match record.status() {
            Status::Completed | Status::Failed => Record { fingerprint: moment.plan.fingerprint, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a run despite a mismatch",
        caught_by: Invariant::MismatchHarmless,
        space: two_requests,
        takes: |moment, record| match record.status() {
            Status::Started => Record { fingerprint: moment.plan.fingerprint, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a mismatch replaces the record",
        caught_by: Invariant::MismatchHarmless,
        space: two_requests,
        takes: |moment, record| {
            if record.fingerprint == moment.plan.fingerprint {
                return record;
            }
            Record { state: RecordState::Released, ..record }
        },
        ..NONE
    },
    Mutant {
        name: "a takeover keeps the generation",
        caught_by: Invariant::GenerationsGrow,
        takes: |moment, record| {
            let is_own = record.owner == moment.plan.owner;
            let generation = record.generation.get() - u64::from(!is_own);
            Record { generation: Generation::new(generation), ..record }
        },
        ..NONE
    },
    Mutant {
        name: "the generation is only the time",
        caught_by: Invariant::GenerationsGrow,
        takes: |moment, record| {
            let is_own = record.owner == moment.plan.owner;
            let generation = if is_own { record.generation } else { Generation::new(0) };
            Record { generation, ..record }
        },
        ..NONE
    },
    Mutant {
        name: "a live outcome is reclaimed",
        caught_by: Invariant::ReplayTrue,
        takes: |_, record| match record.status() {
            Status::Completed | Status::Failed => Record { expires_at: Some(Timestamp::default()), ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "an outcome expires without the skew margin",
        caught_by: Invariant::ReplayTrue,
        takes: |moment, record| match record.status() {
            Status::Completed | Status::Failed if record.expires_at <= Some(moment.now) => {
                Record { expires_at: Some(Timestamp::default()), ..record }
            }
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "an expired outcome is replayed",
        caught_by: Invariant::BecomesClaimable,
        takes: |_, record| match record.status() {
            Status::Completed | Status::Failed => Record { expires_at: None, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a lock's expiry ignores its lease",
        caught_by: Invariant::ExpiryPromised,
        does: |moment, outcome| {
            let retention = moment.plan.rules.retention;
            with_claim(outcome, |new| new.expires_at = Some(new.lock_acquired_at.saturating_add(retention)))
        },
        ..NONE
    },
    Mutant {
        name: "a lock expires with its lease",
        caught_by: Invariant::ExpiryPromised,
        does: |_, outcome| with_claim(outcome, |new| new.expires_at = new.lease_until()),
        ..NONE
    },
    Mutant {
        name: "the handler runs without a claim when the item is gone",
        caught_by: Invariant::GrantBeforeStart,
        does: |moment, (state, action)| match (moment.event, &action) {
            (
                Event::Answered(PutOutcome::Refused(None)) | Event::Found(None),
                Action::Put(Put::Create(_)),
            ) if !moment.is_settling() => {
                let held = granted(&action);
                (state, held.map_or(action, Action::Claimed))
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous claim is treated as a success",
        caught_by: Invariant::GrantBeforeStart,
        hears: |moment, event| match event {
            Event::Failed(_) if moment.is_doubtful() && !moment.is_settling() => {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous claim is treated as a definite failure",
        caught_by: Invariant::DoubtLookedInto,
        hears: |moment, event| if moment.is_settling() { event } else { definite(event) },
        ..NONE
    },
    Mutant {
        name: "an ambiguous claim is sent again without a read",
        caught_by: Invariant::DoubtLookedInto,
        hears: |moment, event| match event {
            Event::Failed(_) if moment.is_doubtful() && !moment.is_settling() => Event::Found(None),
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a throttled claim is treated as a success",
        caught_by: Invariant::GrantBeforeStart,
        hears: |moment, event| match event {
            Event::Failed(Fault { kind: StoreErrorKind::Unavailable, maybe_applied: false })
                if !moment.is_settling() =>
            {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a claim is retried endlessly",
        caught_by: Invariant::Terminates,
        space: one,
        does: |moment, outcome| match (&outcome.1, &moment.before.sent) {
            (Action::Refused(Refusal::InProgress(None) | Refusal::Unavailable), Some(sent))
                if matches!(moment.event, Event::Found(_) | Event::Answered(_)) =>
            {
                sent.clone()
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a claim is retried endlessly on conflicts",
        caught_by: Invariant::Terminates,
        space: one,
        hears: |moment, event| match &event {
            Event::Failed(Fault { kind: StoreErrorKind::Conflict, maybe_applied: false })
                if moment.was(Purpose::Claim) && !moment.is_settling() =>
            {
                Event::Resumed
            }
            _ => event,
        },
        ..NONE
    },
    Mutant {
        name: "at most once, a stale claim is taken over",
        caught_by: Invariant::AtMostOnce,
        space: at_most_once,
        takes: |moment, record| {
            let margin = moment.plan.rules.skew_margin;
            let is_stale = |lease: Timestamp| lease.saturating_add(margin) < moment.now;
            let is_other = record.owner != moment.plan.owner;
            match record.lease_until() {
                Some(lease) if is_stale(lease) && is_other => {
                    Record { state: RecordState::Released, ..record }
                }
                _ => record,
            }
        },
        ..NONE
    },
    Mutant {
        name: "an at-least-once version takes over an at-most-once claim",
        caught_by: Invariant::AtMostOnce,
        space: || spaces::mixed("at most once, then at least once", Execution::AtMostOnce),
        takes: |moment, record| {
            let margin = moment.plan.rules.skew_margin;
            let is_stale = |lease: Timestamp| lease.saturating_add(margin) < moment.now;
            let is_other = record.owner != moment.plan.owner && record.is_at_most_once_claim();
            match (record.lease_until(), moment.plan.rules.execution) {
                (Some(lease), Execution::AtLeastOnce) if is_stale(lease) && is_other => {
                    Record { state: RecordState::Released, ..record }
                }
                _ => record,
            }
        },
        ..NONE
    },
    Mutant {
        name: "at most once, a lock that is stale and expired is reclaimed",
        caught_by: Invariant::AtMostOnce,
        space: at_most_once,
        takes: |moment, record| {
            let margin = moment.plan.rules.skew_margin;
            let has_passed = |time: Timestamp| time.saturating_add(margin) < moment.now;
            let day = millis(2 * TICK);
            let is_dead = |lease: Timestamp| has_passed(lease.saturating_add(day));
            match record.status() {
                Status::Started
                    if record.lease_until().is_some_and(is_dead) && record.owner != moment.plan.owner =>
                {
                    Record { state: RecordState::Released, ..record }
                }
                _ => record,
            }
        },
        ..NONE
    },
    Mutant {
        name: "the handler doesn't learn of a takeover",
        caught_by: Invariant::TakeoverTold,
        does: |_, (state, action)| match action {
            Action::Claimed(mut held) => {
                held.lock.mark = RecordMark::None;
                (state, Action::Claimed(held))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a released key blocks claims",
        caught_by: Invariant::BecomesClaimable,
        takes: |moment, record| match record.status() {
            Status::Released if record.owner != moment.plan.owner => {
                let lease_until = FAR;
                Record { state: RecordState::Started { lease_until }, ..record }
            }
            _ => record,
        },
        ..NONE
    },
];

/// An owner that no delivery draws.
const STRANGER: Owner = Owner::from_bytes([0xff; 16]);
/// A time that's never reached.
const FAR: Timestamp = Timestamp::from_millis(u64::MAX / 2);

fn two_requests() -> Configuration {
    Configuration { name: "another request under the key", requests: 2, ..Configuration::default() }
}

pub(super) fn at_most_once() -> Configuration {
    Configuration { name: "at most once", execution: Execution::AtMostOnce, ..Configuration::default() }
}

/// One executor with faults.
pub(super) fn one() -> Configuration {
    Configuration {
        name: "1 executor, 4 faults",
        clocks: vec![0],
        executors: 1,
        times: ticks(2),
        faults: 4,
        ..small()
    }
}

pub(super) fn with_rules(plan: Plan, rules: impl Fn(Rules) -> Rules) -> Plan {
    Plan { rules: rules(plan.rules), ..plan }
}

fn with_lease(record: Record, lease: impl Fn(Timestamp) -> Timestamp) -> Record {
    Record { state: leased(&record, lease), ..record }
}

/// The state of a record with another lease, if it has one.
fn leased(record: &Record, lease: impl Fn(Timestamp) -> Timestamp) -> RecordState {
    match &record.state {
        RecordState::Started { lease_until } => RecordState::Started { lease_until: lease(*lease_until) },
        state => state.clone(),
    }
}

/// Changes the claim that an action sends.
pub(super) fn with_claim(outcome: Outcome, change: impl FnOnce(&mut Record)) -> Outcome {
    with_new(outcome, Purpose::Claim, change)
}

/// The claim that a put grants if it's applied.
fn granted(action: &Action) -> Option<Held> {
    let new = sent_by(action).filter(|put| Purpose::of(put) == Purpose::Claim)?.record();
    Some(Held { lock: new.lock_until(new.lease_until()?), is_recovered: false })
}

/// Turns an ambiguous failure into a definite one.
pub(super) fn definite(event: Event) -> Event {
    match event {
        Event::Failed(fault) => Event::Failed(Fault { maybe_applied: false, ..fault }),
        event => event,
    }
}
