//! Every put on every prior record. The put expects the stored version, or a version with one changed part.
//!
//! The expected answer comes from two sources: [`holds`], written by hand, and [`Put::apply_to`], which is the contract
//! itself. If the two disagree, the case fails whatever the store does.

use std::time::Duration;

use super::{
    Verdict,
    bench::{applied, described, fresh_key, prepare, refused, same},
    fields::put_away,
    samples::{
        Settlement, claim, first_lock, in_chunks, inline, lasting_lock, second_lock, settle, settled,
        settlements, tomorrow,
    },
};
use crate::{
    outcome::Outcome,
    record::{Generation, Lock, Owner, Record, State, Status},
    settings::Execution,
    store::{Put, Store},
    time::Timestamp,
};

/// The record before the put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prior {
    Absent,
    Started,
    /// STARTED without an expiry, after an interrupted attempt.
    Lasting,
    Completed,
    Failed,
    Released,
}

const PRIORS: [Prior; 6] =
    [Prior::Absent, Prior::Started, Prior::Lasting, Prior::Completed, Prior::Failed, Prior::Released];

/// The put's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Create,
    Replace,
    Mine,
}

/// How the version that the put expects differs from the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Nothing,
    Status(Status),
    Owner,
    /// The generations differ by this number, and the times by this many milliseconds.
    Generation(i64),
    LeaseUntil(i64),
    ExpiresAt(i64),
    /// The version has an expiry if the record has none, and none if the record has one.
    HasExpiry,
}

/// Whether the store must apply the put: an independent copy of the contract.
fn holds(condition: Condition, prior: Prior, difference: Difference) -> bool {
    use Difference::{ExpiresAt, HasExpiry, LeaseUntil, Nothing};
    match condition {
        Condition::Create => prior == Prior::Absent,
        Condition::Replace => prior != Prior::Absent && difference == Nothing,
        // The lease and the expiry may have moved.
        Condition::Mine => {
            matches!(prior, Prior::Started | Prior::Lasting)
                && matches!(difference, Nothing | LeaseUntil(_) | ExpiresAt(_) | HasExpiry)
        }
    }
}

pub(super) async fn create(store: &dyn Store) -> Verdict {
    every_trial(store, Condition::Create).await
}

pub(super) async fn replace(store: &dyn Store) -> Verdict {
    every_trial(store, Condition::Replace).await
}

pub(super) async fn mine(store: &dyn Store) -> Verdict {
    every_trial(store, Condition::Mine).await
}

async fn every_trial(store: &dyn Store, condition: Condition) -> Verdict {
    for prior in PRIORS {
        for difference in differences(condition, prior) {
            for form in 0.. {
                let (key, first) = (fresh_key()?, first_of(prior)?);
                let (way, current) = way_to(prior, &first);
                let seen = different(current.as_ref().unwrap_or(&first.clone().into()), difference);
                // A store may test the claim in another way for each form. For the other differences, two forms are enough.
                let news = news(condition, &seen)?;
                let is_every =
                    matches!(difference, Difference::Nothing | Difference::Owner | Difference::Generation(_));
                let is_last = form + 1 == news.len() || !is_every && form == 1;
                let Some((name, new)) = news.into_iter().nth(form) else { break };
                let put = match condition {
                    Condition::Create => Put::Create(new),
                    Condition::Replace => Put::Replace { seen, new },
                    Condition::Mine => {
                        let lease_until = seen.lease_until().unwrap_or(first.lease_until);
                        Put::Mine { held: seen.lock_until(lease_until), new }
                    }
                };
                prepare(store, &key, &way).await?;
                let expects = holds(condition, prior, difference);
                trial(store, &key, &put, current.as_ref(), expects).await.map_err(|finding| {
                    format!("{condition:?} {name} on {prior:?}, different in {difference:?}: {finding}")
                })?;
                if is_last {
                    break;
                }
            }
        }
    }
    Ok(())
}

async fn trial(
    store: &dyn Store,
    key: &crate::key::StoredKey,
    put: &Put,
    current: Option<&Record>,
    expects: bool,
) -> Verdict {
    let by_contract = put.apply_to(current);
    let stands = if expects {
        same(by_contract.as_ref(), Some(put.record()), "the record according to `Put::apply_to`")?;
        applied(store, key, put, put.record()).await?;
        Some(put.record())
    } else {
        if by_contract.is_some() {
            return Err(format!("`Put::apply_to` applies {}, which must be refused", described(put)));
        }
        refused(store, key, put, current).await?;
        current
    };
    match stands.filter(|record| record.expires_at.is_none()) {
        Some(record) => put_away(store, key, record).await,
        None => Ok(()),
    }
}

fn first_of(prior: Prior) -> Verdict<Lock> {
    match prior {
        Prior::Lasting => lasting_lock(),
        // Only an at-most-once claim may lose its expiry.
        Prior::Started => Ok(Lock { execution: Execution::AtMostOnce, ..first_lock()? }),
        _ => first_lock(),
    }
}

/// The puts that lead to `prior`, and the record after them.
fn way_to(prior: Prior, first: &Lock) -> (Vec<Put>, Option<Record>) {
    let started = Record::from(first.clone());
    let [complete, fail, release] = settlements();
    let settlement = match prior {
        Prior::Absent => return (vec![], None),
        Prior::Started | Prior::Lasting => return (vec![claim(first.clone())], Some(started)),
        Prior::Completed => complete,
        Prior::Failed => fail,
        Prior::Released => release,
    };
    let put = settle(&started, settlement.clone());
    (vec![claim(first.clone()), put], Some(settled(&started, settlement)))
}

/// Returns the records to store, each with a name. A store may need a different request for each of them.
fn news(condition: Condition, seen: &Record) -> Verdict<Vec<(String, Record)>> {
    let lock = second_lock()?;
    let other = Record::from(lock.clone());
    // An operator's record belongs to the claim that was seen, with a new owner and generation.
    let resolved = Record { owner: lock.owner, generation: lock.generation, ..seen.clone() };
    let mut news = match condition {
        Condition::Create => [locks("claim", &lock), outcomes("conclusion", &other)].concat(),
        Condition::Replace => {
            [locks("reclaim", &lock), outcomes("conclusion", &other), outcomes("operator's", &resolved)]
                .concat()
        }
        Condition::Mine => outcomes("settlement", seen),
    };
    if seen.status() == Status::Started && condition != Condition::Create {
        // The lease moves in both directions, and so does the expiry.
        let later = seen.expires_at.map(|expires_at| moved(expires_at, 7_000));
        let earlier = seen.expires_at.map(|expires_at| moved(expires_at, -7_000));
        for (lease, expires_at) in
            [(90_000, later), (-1, earlier), (90_000, None), (90_000, Some(tomorrow()))]
        {
            let lease_until = moved(seen.lease_until().unwrap_or_default(), lease);
            let state = State::Started { lease_until };
            news.push(("another lease".to_owned(), Record { state, expires_at, ..seen.clone() }));
        }
        if condition == Condition::Replace {
            news.extend(locks("takeover", &Lock { fingerprint: seen.fingerprint, ..lock }));
        }
    }
    Ok(news)
}

/// `lock` with each combination of its optional fields.
fn locks(name: &str, lock: &Lock) -> Vec<(String, Record)> {
    use Execution::{AtLeastOnce, AtMostOnce};
    let mut locks = Vec::new();
    for (execution, expires_at) in
        [(AtMostOnce, lock.expires_at), (AtMostOnce, None), (AtLeastOnce, lock.expires_at)]
    {
        for interrupted in [true, false] {
            for (request_id, trace) in [
                (lock.request_id.clone(), lock.trace.clone()),
                (None, None),
                (lock.request_id.clone(), None),
                (None, lock.trace.clone()),
            ] {
                let with =
                    format!("{name} {execution:?} {expires_at:?} {interrupted} {request_id:?} {trace:?}");
                let optional = Lock {
                    execution,
                    expires_at,
                    mark: interrupted.into(),
                    request_id,
                    trace,
                    ..lock.clone()
                };
                locks.push((with, optional.into()));
            }
        }
    }
    locks
}

/// `record` with each kind of outcome, and released.
fn outcomes(name: &str, record: &Record) -> Vec<(String, Record)> {
    let expires_at = tomorrow().saturating_add(Duration::from_secs(7));
    let earlier = tomorrow().saturating_sub(Duration::from_secs(1000));
    let mut settlements = Vec::new();
    for outcome in [inline(b"\x00\xffdone"), in_chunks(3), Outcome::Omitted] {
        settlements.push(Settlement::Complete(outcome.clone(), expires_at));
        settlements.push(Settlement::Fail(outcome, expires_at));
    }
    settlements.push(Settlement::Release { expires_at, interrupted: true });
    settlements.push(Settlement::Release { expires_at: earlier, interrupted: false });
    let named = |settlement| (format!("{name} {settlement:?}"), settled(record, settlement));
    settlements.into_iter().map(named).collect()
}

/// The differences that matter for `condition` on `prior`. Each part of the version changes separately, in both
/// directions, so that neither `<=` nor `>=` passes as `=`.
fn differences(condition: Condition, prior: Prior) -> Vec<Difference> {
    use Difference::{ExpiresAt, Generation, HasExpiry, LeaseUntil, Nothing, Owner};
    if condition == Condition::Create || prior == Prior::Absent {
        return vec![Nothing];
    }
    let mut list = vec![Nothing, Owner, Generation(1), Generation(-1)];
    let is_started = matches!(prior, Prior::Started | Prior::Lasting);
    if is_started {
        list.extend([LeaseUntil(1), LeaseUntil(-1), HasExpiry]);
    }
    if prior != Prior::Lasting {
        list.extend([ExpiresAt(1000), ExpiresAt(-1000)]);
    }
    if condition == Condition::Replace {
        let statuses = [Status::Completed, Status::Failed, Status::Released];
        list.extend(statuses.map(Difference::Status));
        if !is_started {
            list.push(Difference::Status(Status::Started));
        }
    }
    list
}

/// Returns `record` with this difference.
fn different(record: &Record, difference: Difference) -> Record {
    let mut seen = record.clone();
    match difference {
        Difference::Nothing => {}
        Difference::Status(status) => {
            let outcome = inline(b"other");
            seen.expires_at = seen.expires_at.or(Some(tomorrow()));
            seen.state = match (status, &record.state) {
                // The stored status isn't another one, so another part of the version must differ.
                (status, state) if status == state.status() => {
                    seen.owner = other_owner(seen.owner);
                    state.clone()
                }
                (Status::Started, _) => State::Started { lease_until: record.lock_acquired_at },
                (Status::Completed, _) => State::Completed(outcome),
                (Status::Failed, _) => State::Failed(outcome),
                (Status::Released, _) => State::Released,
            };
        }
        Difference::Owner => seen.owner = other_owner(seen.owner),
        Difference::Generation(by) => {
            seen.generation = Generation::new(seen.generation.get().saturating_add_signed(by));
        }
        Difference::LeaseUntil(by) => {
            let lease_until = moved(seen.lease_until().unwrap_or_default(), by);
            seen.state = State::Started { lease_until };
        }
        Difference::ExpiresAt(by) => seen.expires_at = seen.expires_at.map(|expiry| moved(expiry, by)),
        Difference::HasExpiry => {
            seen.expires_at = if seen.expires_at.is_none() { Some(tomorrow()) } else { None };
        }
    }
    seen
}

/// An owner that differs in one bit.
fn other_owner(owner: Owner) -> Owner {
    let mut bytes = *owner.as_bytes();
    bytes[15] ^= 1;
    Owner::from_bytes(bytes)
}

fn moved(time: Timestamp, by: i64) -> Timestamp {
    let distance = Duration::from_millis(by.unsigned_abs());
    if by < 0 { time.saturating_sub(distance) } else { time.saturating_add(distance) }
}
