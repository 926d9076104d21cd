//! The operator's view and actions (rule 10): the meaning of a record at a given time, and the write that
//! settles a record in any state.

use std::time::Duration;

use crate::{
    protocol::{Intent, Rules, judge::Judgement, judge::judge, plan::MIN_LOCK_RETENTION, settlement},
    record::{Owner, Record, State, Status},
    store::Put,
    time::Timestamp,
};

/// The meaning of a record at a given time; computed, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Whether the record is STARTED and its lease ended more than the skew margin ago.
    pub is_stale: bool,
    /// Whether the record expired more than the skew margin ago.
    pub is_expired: bool,
    /// The result of the next delivery of the same request.
    pub next: NextDelivery,
}

/// The result of another delivery of the request that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextDelivery {
    /// The delivery is answered with the record's outcome.
    Replayed,
    /// The delivery is refused, since a claim is live. The key becomes claimable at this time.
    InProgress(Timestamp),
    /// The delivery is refused, since an earlier claim ended without an outcome, and that claim or the delivery's
    /// function allows only one run.
    OutcomeUnknown,
    /// The delivery takes the stale claim over and runs, so the earlier handler's effects may happen again.
    TakesOver,
    /// The delivery claims the key as a new operation or attempt, and runs.
    ClaimsAnew,
}

/// Returns the meaning of `record` at `now`, by the rules of its function.
///
/// ```
/// use std::time::Duration;
/// use lambda_idempotency::settings::Execution;
/// use lambda_idempotency::Fingerprint;
/// use lambda_idempotency::store::{Generation, Owner, Record, State};
/// use lambda_idempotency::time::Timestamp;
/// use lambda_idempotency::protocol::{NextDelivery, Rules, outlook};
///
/// let (skew_margin, retention) = (Duration::from_secs(2), Duration::from_secs(24 * 60 * 60));
/// let rules = Rules { skew_margin, retention, execution: Execution::AtMostOnce };
/// let lease_until = Timestamp::from_secs(1_795_000_060);
/// let record = Record {
///     owner: Owner::from_bytes([7; 16]),
///     generation: Generation::new(1_795_000_000_000),
///     attempt: 1,
///     fingerprint: Fingerprint::of_bytes(b"the request"),
///     lock_acquired_at: Timestamp::from_secs(1_795_000_000),
///     execution: Execution::AtMostOnce,
///     expires_at: None,
///     interrupted: false,
///     request_id: None,
///     trace: None,
///     state: State::Started { lease_until },
/// };
/// let next = |secs| outlook(&rules, &record, Timestamp::from_secs(secs)).next;
/// assert_eq!(next(1_795_000_061), NextDelivery::InProgress(rules.claimable_at(lease_until)));
/// assert_eq!(next(1_795_000_063), NextDelivery::OutcomeUnknown);
/// ```
pub fn outlook(rules: &Rules, record: &Record, now: Timestamp) -> Outlook {
    // Judge for another owner: the record's own owner would treat the record as its own claim.
    let other = Owner::from_bytes(record.owner.as_bytes().map(|byte| !byte));
    let next = match judge(rules, other, record.fingerprint, record, now) {
        Judgement::Replay => NextDelivery::Replayed,
        Judgement::InProgress(until) => NextDelivery::InProgress(until),
        Judgement::OutcomeUnknown => NextDelivery::OutcomeUnknown,
        Judgement::TakeOver => NextDelivery::TakesOver,
        // `Own` and `Mismatch` can't happen: the judgement was for another owner and the same fingerprint.
        Judgement::Reclaim | Judgement::Own(_) | Judgement::Mismatch => NextDelivery::ClaimsAnew,
    };
    Outlook {
        is_stale: record.lease_until().is_some_and(|lease_until| rules.have_passed(lease_until, now)),
        is_expired: record.expires_at.is_some_and(|expires_at| rules.have_passed(expires_at, now)),
        next,
    }
}

/// Whether `record` is still the STARTED claim that was `seen`, except that its lease may have been extended.
///
/// If so, an operator's decision about `seen` also applies to `record`. If an extended lease counted as a change, no
/// operator could settle a claim whose lease is extended every few seconds.
pub fn is_same_claim(seen: &Record, record: &Record) -> bool {
    let claim_of =
        |record: &Record| (record.status() == Status::Started).then_some((record.owner, record.generation));
    claim_of(seen).is_some() && claim_of(seen) == claim_of(record)
}

/// Returns an operator's put on `record`, the version that the operator was shown.
///
/// The put is one compare-and-set. It sets a new owner and the next generation, which fences a claim that
/// still runs. An outcome expires `retention` after `now`. A release keeps the record's expiry, if it has one.
/// After a release with `interrupted: false`, the next attempt doesn't learn that an earlier one was interrupted.
pub fn resolve(record: &Record, owner: Owner, intent: Intent, retention: Duration, now: Timestamp) -> Put {
    let released_until = || {
        let never = || now.saturating_add(retention.max(MIN_LOCK_RETENTION)).rounded_up_to_second();
        record.expires_at.unwrap_or_else(never)
    };
    let (state, expires_at) =
        settlement::outcome(retention, now, &intent).unwrap_or_else(|| (State::Released, released_until()));
    let interrupted = match intent {
        Intent::Release { interrupted } => interrupted,
        _ => record.interrupted,
    };
    let generation = record.generation.next(now);
    let expires_at = Some(expires_at);
    let new = Record { owner, generation, state, expires_at, interrupted, ..record.clone() };
    Put::Replace { seen: record.clone(), new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fingerprint::Fingerprint,
        outcome::Outcome,
        record::{Generation, State},
        settings::Execution,
    };

    const DAY: u64 = 24 * 60 * 60;

    fn rules(execution: Execution) -> Rules {
        Rules { skew_margin: Duration::from_secs(2), retention: Duration::from_secs(DAY), execution }
    }

    fn secs(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// Returns a record that was claimed at 1,000 s and expires at 2,000 s.
    fn record(state: State) -> Record {
        Record {
            owner: Owner::from_bytes([7; 16]),
            generation: Generation::new(1_000_000),
            attempt: 3,
            fingerprint: Fingerprint::of_bytes(b"request"),
            lock_acquired_at: secs(1000),
            execution: Execution::AtLeastOnce,
            expires_at: Some(secs(2000)),
            interrupted: true,
            request_id: Some("invocation".into()),
            trace: None,
            state,
        }
    }

    #[test]
    fn outlook_predicts_the_next_delivery() {
        use NextDelivery::{ClaimsAnew, InProgress, OutcomeUnknown, Replayed, TakesOver};
        let started = State::Started { lease_until: secs(1060) };
        let claimable_at = Timestamp::from_millis(1_062_001);
        let completed = State::Completed(Outcome::Omitted);
        for (state, now, once, more) in [
            (&started, 1062, InProgress(claimable_at), InProgress(claimable_at)),
            (&started, 1063, OutcomeUnknown, TakesOver),
            (&started, 2003, OutcomeUnknown, ClaimsAnew),
            (&completed, 2002, Replayed, Replayed),
            (&completed, 2003, ClaimsAnew, ClaimsAnew),
            (&State::Failed(Outcome::Omitted), 2002, Replayed, Replayed),
            (&State::Released, 1000, ClaimsAnew, ClaimsAnew),
        ] {
            for (execution, next) in [(Execution::AtMostOnce, once), (Execution::AtLeastOnce, more)] {
                let found = outlook(&rules(execution), &record(state.clone()), secs(now));
                let is_stale = now > 1062 && *state == started;
                assert_eq!(found, Outlook { is_stale, is_expired: now > 2002, next }, "{state:?} at {now}");
            }
        }
    }

    #[test]
    fn operator_write_sets_new_owner_and_generation() {
        let owner = Owner::from_bytes([9; 16]);
        for state in [State::Started { lease_until: secs(1060) }, State::Released] {
            let record = record(state);
            let retention = Duration::from_millis(5_500);
            for (now, generation) in [(Timestamp::from_millis(1_500_000), 1_500_000), (secs(5), 1_000_001)] {
                let until = now.saturating_add(retention).rounded_up_to_second();
                for (intent, state, until) in [
                    (Intent::Complete(Outcome::Omitted), State::Completed(Outcome::Omitted), until),
                    (Intent::Fail(Outcome::Omitted), State::Failed(Outcome::Omitted), until),
                    (Intent::Release { interrupted: false }, State::Released, secs(2000)),
                ] {
                    let put = resolve(&record, owner, intent, retention, now);
                    let (generation, expires_at) = (Generation::new(generation), Some(until));
                    let interrupted = record.interrupted && state != State::Released;
                    let new = Record { owner, generation, state, expires_at, interrupted, ..record.clone() };
                    assert_eq!(put, Put::Replace { seen: record.clone(), new: new.clone() });
                    // The put can't be applied twice: the version has changed.
                    assert_eq!(put.apply_to(Some(&new)), None);
                }
            }
        }
    }
}
