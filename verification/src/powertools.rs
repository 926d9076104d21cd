//! Powertools for AWS Lambda (Python), version 3.37.0, in the model checker: the protocol of its DynamoDB
//! persistence layer, with the Lambda context registered (so that this layer knows the deadline) and payload
//! validation enabled.
//!
//! - Claim: `PutItem` if `attribute_not_exists(id) OR expiry < now OR (status = INPROGRESS AND
//!   in_progress_expiry < now)`, by the caller's clock. `expiry` is the time of the claim plus the retention,
//!   `in_progress_expiry` the invocation's deadline.
//! - The handler completes: `UpdateItem` without a condition. The handler fails: `DeleteItem` without a condition.
//! - Powertools' record has no owner and no generation. The model writes an owner into the record so that the
//!   checker knows which delivery claimed it. No condition and no decision reads this owner.
//! - The caller gets every store error, whether or not the write was applied.
//! - After a claim is refused, Powertools examines the record that refused it. If that record or its lease has
//!   expired by then, Powertools sends the claim again, but at most three times in all.

use lambda_idempotency::{
    protocol::{Action, End, Event, Held, Input, Intent, Plan, Refusal},
    settings::Execution,
    store::{Generation, Lock, Mark as RecordMark, Put, PutOutcome, Record, State as RecordState, Status},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, Host, TICK, ticks},
    invariants::Invariant,
    model::Verdict,
    under_test::{Effect, Protocol},
};

/// How often an executor sends its claim, at most.
const TRIES: u8 = 3;

/// The invariants that Powertools doesn't claim to keep, or keeps in another form: the comparison doesn't judge
/// them.
pub const NOT_APPLICABLE: &[Invariant] = &[
    // The condition of Powertools' claim tests whether the record or its lease has expired, and not the record's
    // version. If the clocks agree, both tests are equivalent.
    Invariant::ClaimSeesVersion,
    // Powertools has no generations.
    Invariant::GenerationsGrow,
    Invariant::StartsInOrder,
    // Powertools' handlers don't learn of a takeover.
    Invariant::TakeoverTold,
    // Powertools' records expire by another rule.
    Invariant::ExpiryPromised,
    // Powertools never reads the record to resolve an ambiguous write. Other invariants show the consequences.
    Invariant::DoubtLookedInto,
];

/// The invariants that the comparison's spaces don't exercise. The spaces have one request, and no feature that
/// Powertools lacks: at-most-once, transactions with the handler's own writes, lease extension.
pub const UNTRIED: &[Invariant] = &[
    Invariant::MismatchHarmless,
    Invariant::AtMostOnce,
    Invariant::EffectsExactlyOnce,
    Invariant::DeniedStays,
    Invariant::TokenKept,
    Invariant::OwnerExtends,
    Invariant::LeasesGrow,
];

/// Powertools' protocol.
#[derive(Clone, Copy, Debug)]
pub struct Powertools;

/// The state of one executor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The executor has tried to claim the key this many times, the last time at this time.
    Claiming(Plan, u8, Timestamp),
    /// The handler runs, or its outcome is being stored.
    Running(Plan, Lock),
    /// The delivery is over.
    Over,
}

impl Protocol for Powertools {
    type State = State;

    fn exempt(&self) -> &'static [Invariant] {
        NOT_APPLICABLE
    }

    fn begin(&self, plan: &Plan) -> State {
        State::Claiming(plan.clone(), 0, Timestamp::default())
    }

    fn step(&self, state: State, input: Input) -> (State, Action) {
        let Input { now, event } = input;
        match (state, event) {
            (State::Claiming(plan, 0, _), Event::Begin) => claim(plan, 0, now),
            (State::Claiming(plan, _, at), Event::Answered(PutOutcome::Applied)) => {
                let lock = lock(&plan, at);
                let held = Held { lock: lock.clone(), is_recovered: false };
                (State::Running(plan, lock), Action::Claimed(held))
            }
            (State::Claiming(plan, tries, _), Event::Answered(PutOutcome::Refused(Some(record)))) => {
                refused(plan, tries, now, record)
            }
            (State::Claiming(..), _) => over(Action::Refused(Refusal::Unavailable)),
            (State::Running(plan, lock), Event::Settle(intent)) => settle(plan, lock, intent, now),
            (State::Running(..), Event::Answered(PutOutcome::Applied)) => {
                over(Action::Settled(End::Recorded))
            }
            (State::Running(..), _) => over(Action::Settled(End::Unrecorded(Refusal::Unavailable))),
            (State::Over, _) => over(Action::Nothing),
        }
    }

    fn put(&self, put: &Put, current: Option<&Record>) -> Effect {
        match put {
            Put::Create(new) => {
                let now = new.lock_acquired_at;
                let is_free = current.is_none_or(|record| {
                    has_expired(record, now) || record.lease_until().is_some_and(|lease| lease < now)
                });
                if is_free { Effect::Put(new.clone()) } else { Effect::Refused }
            }
            // Deleting a missing item succeeds.
            Put::Mine { new, .. } if new.status() == Status::Released => Effect::Removed,
            // UpdateItem creates the item if there is none.
            Put::Mine { new, .. } => {
                let (state, expires_at) = (new.state.clone(), new.expires_at);
                Effect::Put(Record { state, expires_at, ..current.unwrap_or(new).clone() })
            }
            Put::Replace { .. } => Effect::Refused,
        }
    }
}

fn claim(plan: Plan, tries: u8, now: Timestamp) -> (State, Action) {
    let lock = lock(&plan, now);
    (State::Claiming(plan, tries + 1, now), Action::Put(Put::Create(lock.into())))
}

fn lock(plan: &Plan, now: Timestamp) -> Lock {
    Lock {
        owner: plan.owner,
        generation: Generation::new(0),
        attempt: 1,
        fingerprint: plan.fingerprint,
        lock_acquired_at: now,
        lease_until: plan.start_by(),
        execution: Execution::AtLeastOnce,
        expires_at: Some(now.saturating_add(plan.rules.retention).rounded_up_to_second()),
        mark: RecordMark::None,
        request_id: None,
        trace: None,
    }
}

fn refused(plan: Plan, tries: u8, now: Timestamp, record: Record) -> (State, Action) {
    if record.fingerprint != plan.fingerprint {
        return over(Action::Refused(Refusal::Mismatch));
    }
    let is_stale = record.lease_until().is_some_and(|lease| lease < now);
    if has_expired(&record, now) || is_stale {
        // Powertools raises `IdempotencyInconsistentStateError` here, catches it, and claims again.
        return if tries < TRIES {
            claim(plan, tries, now)
        } else {
            over(Action::Refused(Refusal::Unavailable))
        };
    }
    match record.status() {
        Status::Started => over(Action::Refused(Refusal::InProgress(record.lease_until()))),
        _ => over(Action::Replay(record)),
    }
}

fn has_expired(record: &Record, now: Timestamp) -> bool {
    record.expires_at.is_some_and(|expires_at| expires_at < now)
}

fn settle(plan: Plan, lock: Lock, intent: Intent, now: Timestamp) -> (State, Action) {
    let (state, expires_at) = match intent {
        Intent::Complete(outcome) | Intent::Commit(outcome) => {
            let expires_at = now.saturating_add(plan.rules.retention).rounded_up_to_second();
            (RecordState::Completed(outcome), expires_at)
        }
        // Every error of the handler deletes the record: Powertools has no permanent failures.
        Intent::Fail(_) | Intent::Release { .. } | Intent::Unanswered { .. } => {
            (RecordState::Released, Timestamp::default())
        }
    };
    let new = Record { state, expires_at: Some(expires_at), ..lock.clone().into() };
    let put = Put::Mine { held: lock.clone(), new };
    (State::Running(plan, lock), Action::Put(put))
}

fn over(action: Action) -> (State, Action) {
    (State::Over, action)
}

/// A space in which both protocols are compared. There are two executors with two deliveries each. Each handler
/// completes, or returns an error that releases the key. The executors' clocks are `apart` ms apart. This library's
/// skew margin is just as large, and Powertools has none.
pub fn space(name: &'static str, host: Host, apart: i64) -> Configuration {
    Configuration {
        name,
        clocks: vec![0, apart],
        skew_margin: apart,
        host,
        attempts: 2,
        times: ticks(4),
        verdicts: &[Verdict::Complete, Verdict::Release],
        ..Configuration::default()
    }
}

/// The spaces of the comparison.
pub fn spaces() -> [Configuration; 3] {
    [
        space("ordinary Lambda, one clock", Host::Kills, 0),
        space("Managed Instances, one clock", Host::LetsRun, 0),
        space("Managed Instances, clocks M apart", Host::LetsRun, TICK),
    ]
}
