//! Every transition from every prior state. The write expects the stored version, or a version with one changed part.
//!
//! The expected result comes from two sources: [`holds`] and [`expected`], written by hand from the table of
//! transitions, and [`Write::apply_to`], which is the contract itself. If the two disagree, the case fails
//! whatever the store does.

use std::time::Duration;

use super::{
    Verdict,
    bench::{applied, described, fresh_key, prepare, refused, same},
    fields::put_away,
    samples::{
        first_lock, in_chunks, inline, lasting_lock, second_lock, settle, settled, settlements, tomorrow,
    },
};
use crate::{
    outcome::Outcome,
    record::{Generation, Lock, Owner, Record, State, Status},
    store::{Revision, Settlement, Store, Write},
    time::Timestamp,
};

/// The record before the write.
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

impl Prior {
    const fn status(self) -> Option<Status> {
        match self {
            Self::Absent => None,
            Self::Started | Self::Lasting => Some(Status::Started),
            Self::Completed => Some(Status::Completed),
            Self::Failed => Some(Status::Failed),
            Self::Released => Some(Status::Released),
        }
    }

    fn is_started(self) -> bool {
        self.status() == Some(Status::Started)
    }
}

/// The transition under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Claim,
    Reclaim,
    TakeOver,
    Complete,
    Fail,
    Release,
    Extend,
    /// Concludes without a claim, to this state.
    Conclude(Status),
    /// An operator's write, to this state.
    Resolve(Settled),
}

/// The state that an operator's write leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    Complete,
    Fail,
    Release,
}

/// How the version that the write expects differs from the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Nothing,
    /// Only for takeovers: the write expects the version of the settled record, instead of its earlier STARTED version.
    Settled,
    Status(Status),
    Owner,
    /// The generations differ by this number. The times of the next three variants differ by this many milliseconds.
    Generation(i64),
    LockAcquiredAt(i64),
    LeaseUntil(i64),
    ExpiresAt(i64),
    /// The version has an expiry if the record has none, and none if the record has one.
    HasExpiry,
    /// The version has a lease if the record has none, and none if the record has one.
    HasLease,
    /// For an extension: the new lease ends this many milliseconds later than the stored one.
    NewLease(i64),
    /// For a conclusion: the write expects a version although there's no record, or no record although there's one.
    Presence,
}

/// Whether the store must apply the write: an independent copy of the table of transitions.
fn holds(act: Act, prior: Prior, difference: Difference) -> bool {
    use Difference::{ExpiresAt, HasExpiry, LockAcquiredAt, NewLease, Nothing};
    match act {
        Act::Claim => prior == Prior::Absent,
        // A reclaim compares the whole version except the lock's time.
        Act::Reclaim => prior != Prior::Absent && matches!(difference, Nothing | LockAcquiredAt(_)),
        // A takeover compares the whole version except the expiry.
        Act::TakeOver => prior.is_started() && matches!(difference, Nothing | ExpiresAt(_) | HasExpiry),
        Act::Complete | Act::Fail | Act::Release => prior.is_started() && difference == Nothing,
        // The new lease must be later than the stored one.
        Act::Extend => prior.is_started() && matches!(difference, Nothing | NewLease(1..)),
        // A conclusion compares the whole version, or checks that there's no record.
        Act::Conclude(_) => difference == Nothing,
        // An operator's write compares the whole version.
        Act::Resolve(_) => prior != Prior::Absent && difference == Nothing,
    }
}

/// The expected record after `act` on `prior`, field by field.
fn expected(act: Act, prior: Option<&Record>, content: &Content) -> Verdict<Record> {
    let Content { lock, settlement } = content;
    let claimed = Record {
        owner: lock.owner,
        generation: lock.generation,
        attempt: lock.attempt,
        fingerprint: lock.fingerprint,
        lock_acquired_at: lock.lock_acquired_at,
        expires_at: lock.expires_at,
        interrupted: lock.interrupted,
        request_id: lock.request_id.clone(),
        state: State::Started { lease_until: lock.lease_until },
    };
    // A conclusion replaces whatever was there.
    if let Act::Conclude(_) = act {
        return Ok(match settlement.clone() {
            Some(settlement) => settled(&claimed, settlement),
            None => claimed,
        });
    }
    let Some(prior) = prior.cloned() else { return Ok(claimed) };
    match (act, settlement.clone()) {
        (Act::Claim | Act::Reclaim, _) => Ok(claimed),
        (Act::TakeOver, _) => Ok(Record { fingerprint: prior.fingerprint, ..claimed }),
        (Act::Complete | Act::Fail | Act::Release, Some(settlement)) => Ok(settled(&prior, settlement)),
        (Act::Extend, _) => {
            let state = State::Started { lease_until: lock.lease_until };
            Ok(Record { state, expires_at: lock.expires_at, ..prior })
        }
        (Act::Resolve(_), Some(settlement)) => {
            Ok(Record { owner: lock.owner, generation: lock.generation, ..settled(&prior, settlement) })
        }
        _ => Err("the suite has a mistake: an act without its settlement".to_owned()),
    }
}

pub(super) async fn claim(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Claim).await
}

pub(super) async fn reclaim(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Reclaim).await
}

pub(super) async fn take_over(store: &dyn Store) -> Verdict {
    every_trial(store, Act::TakeOver).await
}

pub(super) async fn complete(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Complete).await
}

pub(super) async fn fail(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Fail).await
}

pub(super) async fn release(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Release).await
}

pub(super) async fn extend(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Extend).await
}

pub(super) async fn conclude_complete(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Conclude(Status::Completed)).await
}

pub(super) async fn conclude_fail(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Conclude(Status::Failed)).await
}

pub(super) async fn conclude_release(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Conclude(Status::Released)).await
}

pub(super) async fn conclude_start(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Conclude(Status::Started)).await
}

pub(super) async fn resolve_complete(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Resolve(Settled::Complete)).await
}

pub(super) async fn resolve_fail(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Resolve(Settled::Fail)).await
}

pub(super) async fn resolve_release(store: &dyn Store) -> Verdict {
    every_trial(store, Act::Resolve(Settled::Release)).await
}

async fn every_trial(store: &dyn Store, act: Act) -> Verdict {
    for prior in PRIORS {
        for difference in differences(act, prior) {
            for (form, content) in contents(act, difference)? {
                let what = format!("{act:?}{form} on {prior:?}, different in {difference:?}");
                trial(store, act, prior, difference, content)
                    .await
                    .map_err(|finding| format!("{what}: {finding}"))?;
            }
        }
    }
    Ok(())
}

async fn trial(
    store: &dyn Store,
    act: Act,
    prior: Prior,
    difference: Difference,
    content: Content,
) -> Verdict {
    let key = fresh_key()?;
    let first = if prior == Prior::Lasting { lasting_lock()? } else { first_lock()? };
    let (way, current) = way_to(prior, &first);
    prepare(store, &key, &way).await?;
    let content = content.different(difference, first.lease_until);
    let write = write_of(act, seen_by(act, current.as_ref(), first, difference), &content)?;

    let by_contract = write.apply_to(current.as_ref());
    let stands = if holds(act, prior, difference) {
        let record = expected(act, current.as_ref(), &content)?;
        same(by_contract.as_ref(), Some(&record), "the record according to `Write::apply_to`")?;
        applied(store, &key, &write, &record).await?;
        Some(record)
    } else {
        if by_contract.is_some() {
            return Err(format!("`Write::apply_to` applies {}, which must be refused", described(&write)));
        }
        refused(store, &key, &write, current.as_ref()).await?;
        current
    };
    match stands.filter(|record| record.expires_at.is_none()) {
        Some(record) => put_away(store, &key, &record).await,
        None => Ok(()),
    }
}

/// The values that a write puts into the record.
#[derive(Clone)]
struct Content {
    lock: Lock,
    /// `None` for a write that doesn't settle.
    settlement: Option<Settlement>,
}

impl Content {
    /// Changes the new lease, if the difference is a [`Difference::NewLease`].
    fn different(mut self, difference: Difference, lease_until: Timestamp) -> Self {
        if let Difference::NewLease(by) = difference {
            self.lock.lease_until = moved(lease_until, by);
        }
        self
    }
}

/// Returns the contents to try for `act`, each with a name. A store may need a different request for each form of a
/// write, so there's one content for each form. If the write expects a version that differs from the stored one, only
/// two forms of claims, reclaims and takeovers are tried: with all optional fields, and with none.
fn contents(act: Act, difference: Difference) -> Verdict<Vec<(&'static str, Content)>> {
    let expires_at = tomorrow().saturating_add(Duration::from_secs(7));
    let earlier = tomorrow().saturating_sub(Duration::from_secs(1000));
    let lock = second_lock()?;
    let nameless = Lock { request_id: None, interrupted: false, ..second_lock()? };
    let lasting = Lock { expires_at: None, ..second_lock()? };
    let with = |lock: &Lock, settlement| Content { lock: lock.clone(), settlement: Some(settlement) };
    let alone = |lock: &Lock| Content { lock: lock.clone(), settlement: None };
    let shapes =
        [("", inline(b"\x00\xffdone")), (" in chunks", in_chunks(3)), (" omitted", Outcome::Omitted)];
    let completions = shapes
        .clone()
        .map(|(form, outcome)| (form, with(&lock, Settlement::Complete(outcome, expires_at))))
        .to_vec();
    let failures =
        shapes.map(|(form, outcome)| (form, with(&lock, Settlement::Fail(outcome, expires_at)))).to_vec();
    let mut contents = match act {
        Act::Claim | Act::Reclaim | Act::TakeOver => {
            let none = Lock { expires_at: None, ..nameless.clone() };
            let mut forms = vec![("", alone(&lock)), (" without optional fields", alone(&none))];
            // If the write expects the stored version, try the other combinations of the three optional fields too.
            if difference == Difference::Nothing {
                let without = |lock: &Lock| Lock { interrupted: false, ..lock.clone() };
                let no_request = |lock: &Lock| Lock { request_id: None, ..lock.clone() };
                forms.extend([
                    (" without request id", alone(&no_request(&lock))),
                    (" without request id, not interrupted", alone(&nameless)),
                    (" not interrupted", alone(&without(&lock))),
                    (" without expiry", alone(&lasting)),
                    (" without expiry and request id", alone(&no_request(&lasting))),
                    (" without expiry, not interrupted", alone(&without(&lasting))),
                ]);
            }
            forms
        }
        Act::Complete | Act::Resolve(Settled::Complete) | Act::Conclude(Status::Completed) => completions,
        Act::Fail | Act::Resolve(Settled::Fail) | Act::Conclude(Status::Failed) => failures,
        Act::Release | Act::Resolve(Settled::Release) | Act::Conclude(Status::Released) => {
            let release = |expires_at, interrupted| Settlement::Release { expires_at, interrupted };
            vec![
                ("", with(&lock, release(expires_at, true))),
                (" not interrupted, with an earlier expiry", with(&lock, release(earlier, false))),
            ]
        }
        Act::Extend => vec![
            ("", alone(&lock)),
            // An extension sets the expiry together with the lease, even to an earlier expiry.
            (" to an earlier expiry", alone(&Lock { expires_at: Some(earlier), ..lock.clone() })),
            (" without expiry", alone(&lasting)),
        ],
        Act::Conclude(Status::Started) => vec![("", alone(&lock)), (" without expiry", alone(&lasting))],
    };
    if let Act::Conclude(_) = act {
        let settlement = contents.first().and_then(|(_, content)| content.settlement.clone());
        contents.push((" without request id, not interrupted", Content { lock: nameless, settlement }));
    }
    Ok(contents)
}

/// The writes that lead to `prior`, and the record after them.
fn way_to(prior: Prior, first: &Lock) -> (Vec<Write>, Option<Record>) {
    let started = Record::from(first.clone());
    let [complete, fail, release] = settlements();
    let settlement = match prior {
        Prior::Absent => return (vec![], None),
        Prior::Started | Prior::Lasting => return (vec![Write::Claim(first.clone())], Some(started)),
        Prior::Completed => complete,
        Prior::Failed => fail,
        Prior::Released => release,
    };
    let write = settle(&started, settlement.clone());
    (vec![Write::Claim(first.clone()), write], Some(settled(&started, settlement)))
}

/// The differences that matter for `act` on `prior`. Each part of the version changes separately, in both
/// directions, so that neither `<=` nor `>=` passes as `=`.
fn differences(act: Act, prior: Prior) -> Vec<Difference> {
    use Difference::{
        ExpiresAt, Generation, HasExpiry, HasLease, LeaseUntil, LockAcquiredAt, NewLease, Nothing, Owner,
        Presence,
    };
    match (act, prior) {
        // After `Nothing`, the write expects a version although there's no record: first a STARTED version, then a
        // settled one.
        (Act::Conclude(_), Prior::Absent) => {
            return vec![Nothing, Presence, Difference::Status(Status::Completed)];
        }
        (Act::Claim, _) | (_, Prior::Absent) => return vec![Nothing],
        _ => {}
    }
    let mut list = vec![Nothing, Owner, Generation(1), Generation(-1)];
    if matches!(act, Act::Reclaim | Act::TakeOver | Act::Conclude(_) | Act::Resolve(_)) {
        list.extend([LockAcquiredAt(1), LockAcquiredAt(-1), HasExpiry, HasLease]);
        // A field that the record doesn't have can't differ: a `Lasting` record has no expiry, and a settled record has
        // no lease.
        if prior != Prior::Lasting {
            list.extend([ExpiresAt(1000), ExpiresAt(-1000)]);
        }
        if prior.is_started() || act == Act::TakeOver {
            list.extend([LeaseUntil(1), LeaseUntil(-1)]);
        }
    }
    if act == Act::TakeOver && !prior.is_started() {
        list.push(Difference::Settled);
    }
    if act == Act::Extend {
        list.extend([NewLease(1), NewLease(0), NewLease(-1)]);
    }
    if matches!(act, Act::Conclude(_)) {
        list.push(Presence);
    }
    if matches!(act, Act::Reclaim | Act::Conclude(_) | Act::Resolve(_)) {
        let statuses = [Status::Started, Status::Completed, Status::Failed, Status::Released];
        list.extend(
            statuses.into_iter().filter(|status| prior.status() != Some(*status)).map(Difference::Status),
        );
    }
    list
}

/// The version that the write expects; `None` if the write expects no record.
fn seen_by(act: Act, current: Option<&Record>, first: Lock, difference: Difference) -> Option<Revision> {
    let absent = match current {
        None => difference == Difference::Nothing,
        Some(_) => difference == Difference::Presence,
    };
    if matches!(act, Act::Conclude(_)) && absent {
        return None;
    }
    let lease_until = first.lease_until;
    let started = Record::from(first);
    // The protocol only takes over STARTED records. If the record is settled now, the takeover expects its earlier,
    // STARTED version.
    let as_started = act == Act::TakeOver && difference != Difference::Settled;
    let mut seen = Revision::of(if as_started { &started } else { current.unwrap_or(&started) });
    match difference {
        Difference::Nothing | Difference::Settled | Difference::NewLease(_) | Difference::Presence => {}
        Difference::HasLease => {
            seen.lease_until = if seen.lease_until.is_none() { Some(lease_until) } else { None };
        }
        Difference::Status(status) => {
            seen.status = status;
            seen.lease_until = (status == Status::Started).then_some(lease_until);
        }
        Difference::Owner => seen.owner = other_owner(seen.owner),
        Difference::Generation(by) => {
            seen.generation = Generation::new(seen.generation.get().saturating_add_signed(by));
        }
        Difference::LockAcquiredAt(by) => seen.lock_acquired_at = moved(seen.lock_acquired_at, by),
        Difference::LeaseUntil(by) => seen.lease_until = seen.lease_until.map(|lease| moved(lease, by)),
        Difference::ExpiresAt(by) => seen.expires_at = seen.expires_at.map(|expiry| moved(expiry, by)),
        Difference::HasExpiry => {
            seen.expires_at = if seen.expires_at.is_none() { Some(tomorrow()) } else { None };
        }
    }
    Some(seen)
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

fn write_of(act: Act, seen: Option<Revision>, content: &Content) -> Verdict<Write> {
    let Content { lock, settlement } = content;
    if let Act::Conclude(_) = act {
        return Ok(Write::Conclude { seen, record: expected(act, None, content)? });
    }
    let (Some(seen), settlement) = (seen, settlement.clone()) else {
        return Err("the suite has a mistake: an act without its version".to_owned());
    };
    let (owner, generation) = (seen.owner, seen.generation);
    Ok(match (act, settlement) {
        (Act::Claim, _) => Write::Claim(lock.clone()),
        (Act::Reclaim, _) => Write::Reclaim { seen, lock: lock.clone() },
        (Act::TakeOver, _) => Write::TakeOver { seen, lock: lock.clone() },
        (Act::Extend, _) => {
            Write::Extend { owner, generation, lease_until: lock.lease_until, expires_at: lock.expires_at }
        }
        (Act::Resolve(_), Some(settlement)) => {
            Write::Resolve { seen, owner: lock.owner, generation: lock.generation, settlement }
        }
        (_, Some(settlement)) => Write::Settle { owner, generation, settlement },
        (_, None) => return Err("the suite has a mistake: an act without its settlement".to_owned()),
    })
}
