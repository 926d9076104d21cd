//! The meaning of a record, at a given time, to an executor that wants to claim the record's key.

use crate::{
    fingerprint::Fingerprint,
    protocol::Rules,
    record::{Lock, Owner, Record, State},
    settings::Execution,
    time::Timestamp,
};

/// The meaning of a record to an executor that wants to claim the record's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The record is this executor's own claim, with the lease and generation in this lock.
    Own(Lock),
    /// The record has the outcome.
    Replay,
    /// The key is used for another request.
    Mismatch,
    /// Another claim is live, and the key becomes claimable at this time.
    InProgress(Timestamp),
    /// An earlier claim ended without an outcome, and this executor or that claim allows only one run.
    OutcomeUnknown,
    /// The record is no longer live: replace it (T2).
    Reclaim,
    /// The record's claim is stale: take it over (T3).
    TakeOver,
}

pub(super) fn judge(
    rules: &Rules,
    owner: Owner,
    fingerprint: Fingerprint,
    record: &Record,
    now: Timestamp,
) -> Judgement {
    let has_passed = |time: Timestamp| rules.have_passed(time, now);
    let is_expired = record.expires_at.is_some_and(has_passed);
    let matches = record.fingerprint == fingerprint;
    match record.state {
        State::Started { lease_until } if record.owner == owner => {
            Judgement::Own(record.lock_until(lease_until))
        }
        State::Started { lease_until } => {
            let is_stale = has_passed(lease_until);
            match rules.execution {
                _ if !(matches || is_stale && is_expired) => Judgement::Mismatch,
                _ if !is_stale => Judgement::InProgress(rules.claimable_at(lease_until)),
                // Whatever this executor's settings are: the claim's function runs at most once.
                _ if record.is_at_most_once_claim() => Judgement::OutcomeUnknown,
                // Expired or not, the outcome of that run is still unknown.
                Execution::AtMostOnce => Judgement::OutcomeUnknown,
                Execution::AtLeastOnce if is_expired => Judgement::Reclaim,
                Execution::AtLeastOnce => Judgement::TakeOver,
            }
        }
        // The key was released: the next request may use it for anything.
        State::Released => Judgement::Reclaim,
        State::Completed(_) | State::Failed(_) if is_expired => Judgement::Reclaim,
        State::Completed(_) | State::Failed(_) if !matches => Judgement::Mismatch,
        State::Completed(_) | State::Failed(_) => Judgement::Replay,
    }
}

/// The answer that a cached copy of a settled record gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
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
pub(crate) fn recall(rules: &Rules, fingerprint: Fingerprint, copy: &Record, now: Timestamp) -> Recalled {
    if copy.expires_at.is_some_and(|expires_at| now >= expires_at) {
        return Recalled::Unknown;
    }
    // A cache lookup claims nothing, so it has drawn no owner. Any owner but the record's will do.
    let other = Owner::from_bytes(copy.owner.as_bytes().map(|byte| !byte));
    match judge(rules, other, fingerprint, copy, now) {
        Judgement::Replay => Recalled::Replay,
        // A copy of a STARTED record gives no answer: the record may be settled or taken over at any time.
        Judgement::Mismatch if copy.lease_until().is_none() => Recalled::Mismatch,
        _ => Recalled::Unknown,
    }
}

/// Returns the next attempt's number when a claim replaces `record`, and whether an earlier attempt was
/// interrupted. If the record is released or unsettled and the request is the same, the claim continues the
/// operation. Any other claim begins a new operation.
pub(super) fn history(fingerprint: Fingerprint, record: &Record) -> (u32, bool) {
    let next = record.attempt.saturating_add(1);
    match record.state {
        _ if record.fingerprint != fingerprint => (1, false),
        State::Started { .. } => (next, true),
        State::Released => (next, record.interrupted),
        State::Completed(_) | State::Failed(_) => (1, false),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{outcome::Outcome, record::Generation};

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
            interrupted: false,
            request_id: None,
            trace: None,
            state,
        }
    }

    fn rules(execution: Execution) -> Rules {
        let skew_margin = Duration::from_millis(MARGIN);
        Rules { skew_margin, retention: Duration::from_secs(100), execution }
    }

    #[test]
    fn valid_copy_always_matches_its_record() {
        let other = Owner::from_bytes([9; 16]);
        for state in [State::Completed(Outcome::Omitted), State::Failed(Outcome::Omitted)] {
            let copy = copy(state);
            for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
                let rules = rules(execution);
                for request in [&b"request"[..], b"another"] {
                    let fingerprint = Fingerprint::of_bytes(request);
                    let mut answered = 0;
                    for now in EXPIRY - 3000..EXPIRY + 5000 {
                        let at = |millis| Timestamp::from_millis(millis);
                        let judged = |millis| judge(&rules, other, fingerprint, &copy, at(millis));
                        let as_judged = match recall(&rules, fingerprint, &copy, at(now)) {
                            Recalled::Unknown => continue,
                            Recalled::Replay => Judgement::Replay,
                            Recalled::Mismatch => Judgement::Mismatch,
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
        let (other, same) = (Owner::from_bytes([9; 16]), Fingerprint::of_bytes(b"request"));
        let (at, lease_until) = (Timestamp::from_millis, Timestamp::from_millis(1000));
        let claim = Record {
            execution: Execution::AtMostOnce,
            expires_at: None,
            ..copy(State::Started { lease_until })
        };
        for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
            let rules = rules(execution);
            let judged =
                |fingerprint, now| judge(&rules, other, fingerprint, &claim, Timestamp::from_millis(now));
            assert_eq!(judged(same, 3000), Judgement::InProgress(at(3001)), "{execution:?}");
            for now in [3001, EXPIRY, EXPIRY * 1000, u64::MAX] {
                assert_eq!(judged(same, now), Judgement::OutcomeUnknown, "{execution:?} at {now}");
                assert_eq!(
                    judged(Fingerprint::of_bytes(b"another"), now),
                    Judgement::Mismatch,
                    "{execution:?}"
                );
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
