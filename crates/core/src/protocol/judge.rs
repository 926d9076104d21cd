//! The meaning of a record at a given time: to the next delivery, and to an operator.

use crate::{
    fingerprint::Fingerprint,
    protocol::{Refusal, Rules},
    record::{Mark, Record, State},
    settings::Execution,
    time::Timestamp,
};

/// The meaning of a record at a given time; computed, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Whether the record is STARTED and its lease ended more than the skew margin ago, and the rules' `arrives_within`
    /// before that.
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
    /// The delivery takes the stale claim over and runs, so the earlier handler's effects may happen again. With a
    /// reconciler, it first asks whether they have happened.
    TakesOver,
    /// The delivery claims the key as a new operation or attempt, and runs.
    ClaimsAnew,
}

/// Returns the meaning of `record` at `now`, by the rules of its function.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use std::time::Duration;
/// use lambda_idempotency::settings::Execution;
/// use lambda_idempotency::Fingerprint;
/// use lambda_idempotency::store::{Generation, Mark, Owner, Record, State};
/// use lambda_idempotency::time::Timestamp;
/// use lambda_idempotency::protocol::{NextDelivery, Rules, outlook};
///
/// let (skew_margin, retention) = (Duration::from_secs(2), Duration::from_secs(24 * 60 * 60));
/// let rules = Rules { skew_margin, retention, execution: Execution::AtMostOnce, reconcile: None };
/// let lease_until = Timestamp::from_secs(1_795_000_060);
/// let record = Record {
///     owner: Owner::from_bytes([7; 16]),
///     generation: Generation::new(1_795_000_000_000),
///     attempt: 1,
///     fingerprint: Fingerprint::of_bytes(b"the request"),
///     lock_acquired_at: Timestamp::from_secs(1_795_000_000),
///     execution: Execution::AtMostOnce,
///     expires_at: None,
///     mark: Mark::None,
///     request_id: None,
///     trace: None,
///     state: State::Started { lease_until },
/// };
/// let next = |secs| outlook(&rules, &record, Timestamp::from_secs(secs)).next;
/// assert_eq!(next(1_795_000_061), NextDelivery::InProgress(rules.claimable_at(lease_until)));
/// assert_eq!(next(1_795_000_063), NextDelivery::OutcomeUnknown);
/// ```
pub fn outlook(rules: &Rules, record: &Record, now: Timestamp) -> Outlook {
    let has_passed = |time: Timestamp| rules.have_passed(time, now);
    let waits_until = record.lease_until().map(|lease_until| rules.waits_until(lease_until, record.mark));
    let is_stale = waits_until.is_some_and(has_passed);
    let is_expired = record.expires_at.is_some_and(has_passed);
    let next = match record.state {
        State::Started { lease_until } if !is_stale => {
            NextDelivery::InProgress(rules.unanswered_until(rules.waits_until(lease_until, record.mark)))
        }
        // Whatever this executor's settings are: the claim's function runs at most once, and only an executor that keeps to
        // that may ask.
        State::Started { .. }
            if record.is_at_most_once_claim() && rules.execution == Execution::AtLeastOnce =>
        {
            NextDelivery::OutcomeUnknown
        }
        // Expired or not, the outcome of that run is still unknown.
        State::Started { .. } if rules.execution == Execution::AtMostOnce => match rules.reconcile {
            Some(_) => NextDelivery::TakesOver,
            None => NextDelivery::OutcomeUnknown,
        },
        State::Started { .. } if !is_expired => NextDelivery::TakesOver,
        State::Completed(_) | State::Failed(_) if !is_expired => NextDelivery::Replayed,
        // If the key was released, the next request may use it for anything.
        State::Started { .. } | State::Completed(_) | State::Failed(_) | State::Released => {
            NextDelivery::ClaimsAnew
        }
    };
    Outlook { is_stale, is_expired, next }
}

/// The meaning of another executor's record to an executor that wants to claim the record's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The record has the outcome.
    Replay,
    /// The key can't be claimed now.
    Refused(Refusal),
    /// The record is no longer live: replace it (T2).
    Reclaim,
    /// The record's claim is stale: take it over (T3).
    TakeOver,
}

/// Judges another executor's record for a request with this fingerprint.
pub(super) fn judge(rules: &Rules, fingerprint: Fingerprint, record: &Record, now: Timestamp) -> Judgement {
    let Outlook { is_stale, is_expired, next } = outlook(rules, record, now);
    let is_live = match record.state {
        State::Started { .. } => !(is_stale && is_expired),
        State::Completed(_) | State::Failed(_) => !is_expired,
        State::Released => false,
    };
    match next {
        _ if is_live && record.fingerprint != fingerprint => Judgement::Refused(Refusal::Mismatch),
        NextDelivery::Replayed => Judgement::Replay,
        NextDelivery::InProgress(until) => Judgement::Refused(Refusal::InProgress(Some(until))),
        NextDelivery::OutcomeUnknown => Judgement::Refused(Refusal::OutcomeUnknown),
        NextDelivery::TakesOver => Judgement::TakeOver,
        NextDelivery::ClaimsAnew => Judgement::Reclaim,
    }
}

/// The answer that a cached copy of a settled record gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recalled {
    /// The copy's outcome.
    Replay,
    /// The key is used for another request.
    Mismatch,
    /// No answer: ask the store.
    Unknown,
}

/// Returns the answer of a cached `copy` to a request with this fingerprint. The record itself would give the
/// same answer.
///
/// The copy is valid until the record's expiry, without the skew margin. A settled record may be replaced only
/// after its expiry plus the margin. So if all clocks are within the margin, the record doesn't change while
/// the copy is valid. Only an operator can change it earlier.
pub fn recall(rules: &Rules, fingerprint: Fingerprint, copy: &Record, now: Timestamp) -> Recalled {
    if copy.expires_at.is_some_and(|expires_at| now >= expires_at) {
        return Recalled::Unknown;
    }
    match judge(rules, fingerprint, copy, now) {
        Judgement::Replay => Recalled::Replay,
        // A copy of a STARTED record gives no answer: the record may be settled or taken over at any time.
        Judgement::Refused(Refusal::Mismatch) if copy.lease_until().is_none() => Recalled::Mismatch,
        _ => Recalled::Unknown,
    }
}

/// Returns the next attempt's number when a claim replaces `record`, and whether an earlier attempt was
/// interrupted, as a mark. If the record is released or unsettled and the request is the same, the claim continues the
/// operation. Any other claim begins a new operation.
pub(super) fn history(fingerprint: Fingerprint, record: &Record) -> (u32, Mark) {
    let next = record.attempt.saturating_add(1);
    match record.state {
        _ if record.fingerprint != fingerprint => (1, Mark::None),
        State::Started { .. } => (next, Mark::Interrupted),
        State::Released => (next, record.mark),
        State::Completed(_) | State::Failed(_) => (1, Mark::None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        outcome::Outcome,
        record::{Generation, Owner},
    };

    const MARGIN: u64 = 2000;
    const EXPIRY: u64 = 100_000;

    fn copy(state: State) -> Record {
        Record {
            owner: Owner::from_bytes([7; 16]),
            generation: Generation::new(1),
            attempt: 1,
            fingerprint: Fingerprint::of_bytes(b"request"),
            lock_acquired_at: Timestamp::from_millis(0),
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_millis(EXPIRY)),
            mark: Mark::None,
            request_id: None,
            trace: None,
            state,
        }
    }

    fn rules(execution: Execution) -> Rules {
        let skew_margin = Duration::from_millis(MARGIN);
        Rules { skew_margin, retention: Duration::from_secs(100), execution, reconcile: None }
    }

    #[test]
    fn valid_copy_always_matches_its_record() {
        for state in [State::Completed(Outcome::Omitted), State::Failed(Outcome::Omitted)] {
            let copy = copy(state);
            for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
                let rules = rules(execution);
                for request in [&b"request"[..], b"another"] {
                    let fingerprint = Fingerprint::of_bytes(request);
                    let mut answered = 0;
                    for now in EXPIRY - 3000..EXPIRY + 5000 {
                        let at = |millis| Timestamp::from_millis(millis);
                        let judged = |millis| judge(&rules, fingerprint, &copy, at(millis));
                        let as_judged = match recall(&rules, fingerprint, &copy, at(now)) {
                            Recalled::Unknown => continue,
                            Recalled::Replay => Judgement::Replay,
                            Recalled::Mismatch => Judgement::Refused(Refusal::Mismatch),
                        };
                        answered += 1;
                        for theirs in [now - MARGIN, now, now + MARGIN] {
                            assert_eq!(judged(theirs), as_judged, "{request:?} at {now}, judged at {theirs}");
                        }
                    }
                    assert_eq!(answered, 3000, "the copy answers until its expiry, and no longer");
                }
            }
        }
    }

    /// A version that runs at least once may follow one that runs at most once, for example after a rollback.
    #[test]
    fn no_reader_takes_over_at_most_once_claims() {
        let same = Fingerprint::of_bytes(b"request");
        let (at, lease_until) = (Timestamp::from_millis, Timestamp::from_millis(1000));
        let claim = Record {
            execution: Execution::AtMostOnce,
            expires_at: None,
            ..copy(State::Started { lease_until })
        };
        for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
            let rules = rules(execution);
            let judged = |fingerprint, now| judge(&rules, fingerprint, &claim, Timestamp::from_millis(now));
            let refused = Judgement::Refused;
            assert_eq!(judged(same, 3000), refused(Refusal::InProgress(Some(at(3001)))), "{execution:?}");
            for now in [3001, EXPIRY, EXPIRY * 1000, u64::MAX] {
                assert_eq!(judged(same, now), refused(Refusal::OutcomeUnknown), "{execution:?} at {now}");
                let another = judged(Fingerprint::of_bytes(b"another"), now);
                assert_eq!(another, refused(Refusal::Mismatch), "{execution:?}");
            }
        }
    }

    #[test]
    fn unsettled_cached_records_give_no_answer() {
        for state in [State::Started { lease_until: Timestamp::from_millis(1000) }, State::Released] {
            for request in [&b"request"[..], b"another"] {
                for now in [0, 500, 1000, 50_000] {
                    let (copy, now) = (copy(state.clone()), Timestamp::from_millis(now));
                    let fingerprint = Fingerprint::of_bytes(request);
                    let recalled = recall(&rules(Execution::AtLeastOnce), fingerprint, &copy, now);
                    assert_eq!(recalled, Recalled::Unknown);
                }
            }
        }
    }
}
