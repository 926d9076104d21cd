//! The peer's protocol, in the same net: Powertools for AWS Lambda (Python 3.37.0), its DynamoDB layer, with a
//! remaining time registered and payload validation switched on.
//!
//! - Claim: `PutItem` if `attribute_not_exists(id) OR expiry < now OR (status = INPROGRESS AND
//!   in_progress_expiry < now)`, by the caller's clock. `expiry` is the claim's time and the retention,
//!   `in_progress_expiry` the invocation's deadline.
//! - Completion: `UpdateItem` without a condition. Failure: `DeleteItem` without a condition.
//! - There is no owner and no generation. The record's owner is written here all the same, so that the
//!   net can tell whose claim it was; no condition and no decision looks at it.
//! - An error of the store is an error to the caller, whatever became of the write. A record that expired
//!   between the refusal and the look at it is tried again, three times in all.

use lambda_idempotency::{
    Generation, Lock, Record, State as RecordState, Status, Timestamp,
    protocol::{Action, End, Event, Held, Input, Intent, Plan, Refusal},
    store::{Settlement, Write, Written},
};

use crate::{
    configuration::{Configuration, Host, TICK, drawn_by, fingerprint, ticks},
    invariants::Invariant,
    model::Verdict,
    under_test::{Effect, Protocol},
};

/// How often a claim is tried while what it meets has expired by the time it is looked at.
const TRIES: u8 = 3;

/// What the peer does not claim to have, or has in another form: nothing is said of it.
pub const NOT_APPLICABLE: &[Invariant] = &[
    // Its claim tests the time in the write itself, which is as good where the clocks agree.
    Invariant::ClaimSeesVersion,
    // It has no generations.
    Invariant::GenerationsGrow,
    Invariant::StartsInOrder,
    // It tells its handlers nothing.
    Invariant::TakeoverTold,
    // How long its records stay is another rule.
    Invariant::ExpiryPromised,
    // It never looks: what comes of that is seen elsewhere.
    Invariant::DoubtLookedInto,
];

/// What the spaces of the comparison do not try: they have one request, and nothing that the peer lacks, such as a mode
/// that runs at most once, transactions with the handler's own writes, or leases that are extended.
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

/// Where a peer's executor stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It has claimed the key so many times, or not yet.
    Claiming(Plan, u8),
    /// Its handler runs, or its outcome is being stored.
    Running(Plan),
    /// Nothing more will be done.
    Over,
}

impl Protocol for Powertools {
    type State = State;

    fn exempt(&self) -> &'static [Invariant] {
        NOT_APPLICABLE
    }

    fn begin(&self, plan: &Plan) -> State {
        State::Claiming(plan.clone(), 0)
    }

    fn step(&self, state: State, input: Input) -> (State, Action) {
        let Input { now, event } = input;
        match (state, event) {
            (State::Claiming(plan, 0), Event::Begin) => claim(plan, 0, now),
            (State::Claiming(plan, _), Event::Answered(Written::Applied)) => {
                let held = Held {
                    owner: plan.owner,
                    generation: Generation::new(0),
                    attempt: 1,
                    lease_until: plan.usable_until,
                    is_takeover: false,
                    is_recovered: false,
                };
                (State::Running(plan), Action::Claimed(held))
            }
            (State::Claiming(plan, tries), Event::Answered(Written::Refused(Some(record)))) => {
                refused(plan, tries, now, record)
            }
            (State::Claiming(..), _) => over(Action::Refused(Refusal::Unavailable)),
            (State::Running(plan), Event::Settle(intent)) => settle(plan, intent, now),
            (State::Running(_), Event::Answered(Written::Applied)) => over(Action::Settled(End::Recorded)),
            (State::Running(_), _) => over(Action::Settled(End::Unrecorded(Refusal::Unavailable))),
            (State::Over, _) => over(Action::Nothing),
        }
    }

    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect {
        match (write, current) {
            (Write::Claim(lock), current) => {
                let now = lock.lock_acquired_at;
                let is_free = current.is_none_or(|record| {
                    has_expired(record, now) || record.lease_until().is_some_and(|lease| lease < now)
                });
                if is_free { Effect::Put(lock.clone().into()) } else { Effect::Refused }
            }
            (Write::Settle { settlement: Settlement::Release { .. }, .. }, Some(_)) => Effect::Removed,
            // To delete what is not there is a success.
            (Write::Settle { settlement: Settlement::Release { .. }, .. }, None) => Effect::Removed,
            (Write::Settle { owner, settlement: Settlement::Complete(outcome, expires_at), .. }, current) => {
                // UpdateItem makes the item if there is none.
                let (_, request) = drawn_by(*owner);
                let made = Record {
                    owner: *owner,
                    generation: Generation::new(0),
                    attempt: 1,
                    fingerprint: fingerprint(request),
                    lock_acquired_at: Timestamp::default(),
                    expires_at: Some(*expires_at),
                    interrupted: false,
                    request_id: None,
                    state: RecordState::Released,
                };
                let record = current.cloned().unwrap_or(made);
                Effect::Put(Record {
                    state: RecordState::Completed(outcome.clone()),
                    expires_at: Some(*expires_at),
                    ..record
                })
            }
            _ => Effect::Refused,
        }
    }
}

fn claim(plan: Plan, tries: u8, now: Timestamp) -> (State, Action) {
    let lock = Lock {
        owner: plan.owner,
        generation: Generation::new(0),
        attempt: 1,
        fingerprint: plan.fingerprint,
        lock_acquired_at: now,
        lease_until: plan.usable_until,
        expires_at: Some(now.saturating_add(plan.rules.retention).rounded_up_to_second()),
        interrupted: false,
        request_id: None,
    };
    (State::Claiming(plan, tries + 1), Action::Apply(Write::Claim(lock)))
}

fn refused(plan: Plan, tries: u8, now: Timestamp, record: Record) -> (State, Action) {
    if record.fingerprint != plan.fingerprint {
        return over(Action::Refused(Refusal::Mismatch));
    }
    let is_stale = record.lease_until().is_some_and(|lease| lease < now);
    if has_expired(&record, now) || is_stale {
        // "Inconsistent state": once more.
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

fn settle(plan: Plan, intent: Intent, now: Timestamp) -> (State, Action) {
    let settlement = match intent {
        Intent::Complete(outcome) | Intent::Commit(outcome) => {
            Settlement::Complete(outcome, now.saturating_add(plan.rules.retention).rounded_up_to_second())
        }
        // Every error deletes the record: there is no final failure.
        Intent::Fail(_) | Intent::Release { .. } => {
            Settlement::Release { expires_at: Timestamp::default(), interrupted: false }
        }
    };
    let write = Write::Settle { owner: plan.owner, generation: Generation::new(0), settlement };
    (State::Running(plan), Action::Apply(write))
}

fn over(action: Action) -> (State, Action) {
    (State::Over, action)
}

/// Where both protocols are looked at side by side: handlers complete or fail, twice on each of two
/// executors. The skew margin is as wide as their clocks are apart; the peer has none.
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
