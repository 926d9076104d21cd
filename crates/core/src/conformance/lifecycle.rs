//! Sequences of writes on one record: the fields that each write keeps, replaces or removes.

use std::time::Duration;

use super::{
    Verdict,
    bench::{applied, described, fresh_key, owner, prepare, refused, stands},
    samples::{
        Settlement, base, claim, conclude, extend, extended, first_lock, in_chunks, inline, lasting_lock,
        odd_request_ids, reclaim, release, resolve, second_lock, settle, settled, settlements, take_over,
        tomorrow, until,
    },
};
use crate::{
    outcome::Outcome,
    record::{Lock, Record, State, Status},
    store::{Put, Store},
    time::Timestamp,
};

/// Settles one key with outcomes of every shape in sequence, with a reclaim after each. An attribute left over from one
/// outcome would change the shape of the next.
pub(super) async fn reclaim_leaves_nothing(store: &dyn Store) -> Verdict {
    let chunks = in_chunks(3);
    let outcomes =
        [inline(b"first"), Outcome::Omitted, chunks.clone(), inline(b""), chunks, Outcome::Omitted];
    let (key, expires_at) = (fresh_key()?, tomorrow());
    let first = first_lock()?;
    let mut current = Record::from(first.clone());
    applied(store, &key, &claim(first), &current).await?;
    for (round, outcome) in outcomes.into_iter().enumerate() {
        let settled = if round % 2 == 0 {
            Record {
                state: State::Completed(outcome.clone()),
                expires_at: Some(expires_at),
                ..current.clone()
            }
        } else {
            Record { state: State::Failed(outcome.clone()), expires_at: Some(expires_at), ..current.clone() }
        };
        let settlement = match round % 2 {
            0 => Settlement::Complete(outcome, expires_at),
            _ => Settlement::Fail(outcome, expires_at),
        };
        applied(store, &key, &settle(&current, settlement), &settled).await?;
        let lock = second_lock()?;
        current = lock.clone().into();
        applied(store, &key, &reclaim(&settled, lock), &current).await?;
    }
    let (release, released) = release(&current);
    applied(store, &key, &release, &released).await
}

/// Each takeover replaces the previous invocation's id, even if one of the two invocations has no id.
pub(super) async fn take_over_replaces(store: &dyn Store) -> Verdict {
    for before in odd_request_ids() {
        for after in odd_request_ids() {
            let (key, first) = (fresh_key()?, Lock { request_id: before.clone(), ..first_lock()? });
            let second = Lock { request_id: after.clone(), ..second_lock()? };
            prepare(store, &key, &[claim(first.clone())]).await?;
            let seen = Record::from(first.clone());
            let taken = Record { fingerprint: first.fingerprint, ..second.clone().into() };
            applied(store, &key, &take_over(&seen, second.clone()), &taken).await?;
            // A reclaim replaces everything.
            let third = Lock { owner: owner()?, request_id: before.clone(), ..second };
            let write = reclaim(&taken, third.clone());
            applied(store, &key, &write, &third.into()).await?;
        }
    }
    Ok(())
}

/// The protocol shortens the lease of a claim whose process died. Nothing else changes, even if an extension whose
/// answer was lost moved the lease and the expiry before. Then the claim can still be extended and settled.
pub(super) async fn shortened_leases(store: &dyn Store) -> Verdict {
    for lock in [first_lock()?, lasting_lock()?, second_lock()?] {
        for settlement in settlements() {
            let (key, claimed) = (fresh_key()?, Record::from(lock.clone()));
            applied(store, &key, &claim(lock.clone()), &claimed).await?;
            let leased = |lease_until| Record { state: State::Started { lease_until }, ..claimed.clone() };
            let short = leased(lock.lease_until.saturating_sub(Duration::from_millis(1)));
            let shorter = Put::Mine { held: lock.clone(), new: short.clone() };
            applied(store, &key, &shorter, &short).await?;
            applied(store, &key, &shorter, &short).await?;
            let extension = extend(&short, lock.lease_until);
            applied(store, &key, &extension, &extended(&short, lock.lease_until)).await?;
            applied(store, &key, &shorter, &short).await?;
            refused(store, &key, &extend(&claimed, lock.lease_until), Some(&short)).await?;
            applied(store, &key, &settle(&short, settlement.clone()), &settled(&short, settlement)).await?;
        }
    }
    Ok(())
}

/// A claim that never expires is extended, taken over and reclaimed like any other. It has no expiry until a
/// write sets one. Every settlement sets an expiry.
pub(super) async fn lasting_claims(store: &dyn Store) -> Verdict {
    for nth in 0..6 {
        let (key, lock) = (fresh_key()?, lasting_lock()?);
        let mut current = Record::from(lock.clone());
        applied(store, &key, &claim(lock), &current).await?;
        for (minutes, expires_at) in [(60, None), (120, Some(tomorrow())), (180, None)] {
            let lease_until = base().saturating_add(Duration::from_secs(60 * minutes));
            let new = Record { state: State::Started { lease_until }, expires_at, ..current.clone() };
            let write = Put::Replace { seen: current, new: new.clone() };
            current = new;
            applied(store, &key, &write, &current).await?;
        }
        for expires_at in [None, Some(tomorrow()), None] {
            let (seen, lock) = (current.clone(), until(expires_at, second_lock()?));
            current = Record { fingerprint: current.fingerprint, ..lock.clone().into() };
            applied(store, &key, &take_over(&seen, lock), &current).await?;
        }
        for expires_at in [None, Some(tomorrow()), None] {
            let (seen, lock) = (current.clone(), until(expires_at, first_lock()?));
            current = lock.clone().into();
            applied(store, &key, &reclaim(&seen, lock), &current).await?;
        }
        let settlement = settlements()[nth % 3].clone();
        let write = if nth < 3 { settle(&current, settlement) } else { resolve(&current, settlement)? };
        let after = write.record().clone();
        applied(store, &key, &write, &after).await?;
        stands(store, &key, Some(&after), "after the settlement of a claim without an expiry").await?;
    }
    Ok(())
}

/// Every claim, release and conclusion writes whether an earlier attempt was interrupted. Extensions and completions
/// keep the record's value.
pub(super) async fn interrupted_is_kept(store: &dyn Store) -> Verdict {
    for first in [false, true] {
        for second in [false, true] {
            let (key, lock) = (fresh_key()?, Lock { mark: first.into(), ..first_lock()? });
            let mut current = Record::from(lock.clone());
            applied(store, &key, &claim(lock), &current).await?;
            let lease_until = far_lease();
            let extension = extend(&current, lease_until);
            current = extended(&current, lease_until);
            applied(store, &key, &extension, &current).await?;
            let (seen, lock) = (current.clone(), Lock { mark: second.into(), ..second_lock()? });
            current = Record { fingerprint: current.fingerprint, ..lock.clone().into() };
            applied(store, &key, &take_over(&seen, lock), &current).await?;
            for interrupted in [first, second] {
                let release = Settlement::Release { expires_at: tomorrow(), interrupted };
                let write = settle(&current, release.clone());
                current = settled(&current, release);
                applied(store, &key, &write, &current).await?;
                let (seen, lock) = (current.clone(), Lock { mark: second.into(), ..second_lock()? });
                current = lock.clone().into();
                applied(store, &key, &reclaim(&seen, lock), &current).await?;
            }
            let [complete, ..] = settlements();
            let write = settle(&current, complete.clone());
            current = settled(&current, complete);
            applied(store, &key, &write, &current).await?;
            for interrupted in [first, second] {
                let lock = Lock { mark: interrupted.into(), ..first_lock()? };
                let record = Record { state: State::Failed(Outcome::Omitted), ..lock.into() };
                let write = conclude(Some(&current), record.clone());
                applied(store, &key, &write, &record).await?;
                current = record;
            }
        }
    }
    Ok(())
}

/// After a settlement, the store refuses a takeover of the STARTED version, an extension, and a second settlement.
pub(super) async fn settled_without_lease(store: &dyn Store) -> Verdict {
    for settlement in settlements() {
        let (key, lock) = (fresh_key()?, first_lock()?);
        let started = Record::from(lock.clone());
        prepare(store, &key, &[claim(lock)]).await?;
        let after = settled(&started, settlement.clone());
        applied(store, &key, &settle(&started, settlement), &after).await?;
        let take_over = take_over(&started, second_lock()?);
        refused(store, &key, &take_over, Some(&after)).await?;
        refused(store, &key, &extend(&started, far_lease()), Some(&after)).await?;
        for again in settlements() {
            refused(store, &key, &settle(&started, again), Some(&after)).await?;
        }
    }
    Ok(())
}

/// An operator settles a record in any state. The case tries all settlements in sequence: an attribute left over
/// from one settlement would change the shape of the next. Later writes of the claim's owner are refused.
pub(super) async fn operators_replace(store: &dyn Store) -> Verdict {
    let expires_at = tomorrow().saturating_add(Duration::from_secs(9));
    let (completed, failed) = (
        |outcome| Settlement::Complete(outcome, expires_at),
        |outcome| Settlement::Fail(outcome, expires_at),
    );
    let (key, lock) = (fresh_key()?, first_lock()?);
    let mine = Record::from(lock.clone());
    prepare(store, &key, &[claim(lock)]).await?;
    let mut current = mine.clone();
    for settlement in [
        completed(inline(b"first")),
        completed(in_chunks(3)),
        // Only the number of chunks changes.
        completed(in_chunks(2)),
        failed(Outcome::Omitted),
        failed(inline(b"")),
        Settlement::Release { expires_at, interrupted: true },
        completed(in_chunks(2)),
        completed(inline(b"second")),
        completed(Outcome::Omitted),
        Settlement::Release { expires_at, interrupted: false },
        Settlement::Release { expires_at, interrupted: true },
    ] {
        let write = resolve(&current, settlement)?;
        let Some(after) = write.apply_to(Some(&current)) else {
            return Err(format!("the suite has a mistake: `Put::apply_to` refuses {}", described(&write)));
        };
        applied(store, &key, &write, &after).await?;
        // The version that the write expects is gone.
        refused(store, &key, &write, Some(&after)).await?;
        refused(store, &key, &extend(&mine, far_lease()), Some(&after)).await?;
        for late in settlements() {
            refused(store, &key, &settle(&mine, late), Some(&after)).await?;
        }
        current = after;
    }
    let lock = second_lock()?;
    applied(store, &key, &reclaim(&current, lock.clone()), &lock.into()).await
}

/// A conclusion writes the whole record, whatever was there. The case tries all shapes in sequence, some of them with
/// a request id. Later writes of the replaced claim's owner are refused.
pub(super) async fn conclusions_leave_nothing(store: &dyn Store) -> Verdict {
    let (key, lock) = (fresh_key()?, first_lock()?);
    let mine = Record::from(lock.clone());
    prepare(store, &key, &[claim(lock)]).await?;
    let mut current = mine.clone();
    let states = [
        State::Completed(inline(b"first")),
        State::Failed(in_chunks(3)),
        State::Failed(in_chunks(2)),
        State::Completed(Outcome::Omitted),
        State::Released,
        State::Failed(inline(b"")),
        State::Started { lease_until: far_lease() },
        State::Failed(Outcome::Omitted),
        State::Completed(in_chunks(2)),
        State::Released,
        State::Completed(Outcome::Omitted),
    ];
    for (nth, (state, request_id)) in
        states.into_iter().zip(odd_request_ids().into_iter().cycle()).enumerate()
    {
        let mut record = Record { state, request_id, mark: (nth % 3 == 0).into(), ..second_lock()?.into() };
        if record.status() == Status::Started {
            record.expires_at = None;
        }
        let write = conclude(Some(&current), record.clone());
        applied(store, &key, &write, &record).await?;
        // The first write expects a version that is gone. The second write expects no record, but there's one.
        refused(store, &key, &write, Some(&record)).await?;
        let write = conclude(None, current);
        refused(store, &key, &write, Some(&record)).await?;
        refused(store, &key, &extend(&mine, far_lease()), Some(&record)).await?;
        for late in settlements() {
            refused(store, &key, &settle(&mine, late), Some(&record)).await?;
        }
        current = record;
    }
    let lock = second_lock()?;
    applied(store, &key, &reclaim(&current, lock.clone()), &lock.into()).await
}

/// A lease that is later than any other in this file.
fn far_lease() -> Timestamp {
    tomorrow()
}

/// The store refuses the late writes of an executor after a takeover, and after the successor's release.
pub(super) async fn predecessors_are_fenced(store: &dyn Store) -> Verdict {
    let (key, first, second) = (fresh_key()?, first_lock()?, second_lock()?);
    let mine = Record::from(first.clone());
    prepare(store, &key, &[claim(first.clone())]).await?;
    let successor = Record { fingerprint: first.fingerprint, ..second.clone().into() };
    applied(store, &key, &take_over(&mine, second), &successor).await?;
    let mut late = vec![claim(first.clone())];
    late.extend(settlements().map(|settlement| settle(&mine, settlement)));
    late.push(extend(&mine, far_lease()));
    late.push(take_over(&mine, first.clone()));
    late.push(reclaim(&mine, first));
    late.push(conclude(Some(&mine), mine.clone()));
    late.push(conclude(None, mine));
    for write in &late {
        refused(store, &key, write, Some(&successor)).await?;
    }
    let (release, released) = release(&successor);
    applied(store, &key, &release, &released).await?;
    for write in &late {
        refused(store, &key, write, Some(&released)).await?;
    }
    Ok(())
}

/// An expired lease or a past expiry changes nothing in the store: the record stays, the store refuses a claim, and
/// the record's owner can extend and settle it.
pub(super) async fn age_is_not_judged(store: &dyn Store) -> Verdict {
    let past = base().saturating_sub(Duration::from_secs(60));
    for expires_at in [Some(tomorrow()), Some(past), None] {
        let first = Lock { lease_until: past, lock_acquired_at: past, ..first_lock()? };
        let lock = until(expires_at, first);
        let (key, started) = (fresh_key()?, Record::from(lock.clone()));
        applied(store, &key, &claim(lock), &started).await?;
        refused(store, &key, &claim(second_lock()?), Some(&started)).await?;
        // This lease is in the past, too.
        let lease_until = past.saturating_add(Duration::from_millis(1));
        let extension = extend(&started, lease_until);
        let started = extended(&started, lease_until);
        applied(store, &key, &extension, &started).await?;
        let outcome = inline(b"late");
        let state = State::Completed(outcome.clone());
        let completed = Record { state, expires_at: Some(past), ..started.clone() };
        let complete = settle(&started, Settlement::Complete(outcome, past));
        applied(store, &key, &complete, &completed).await?;
        refused(store, &key, &claim(second_lock()?), Some(&completed)).await?;
        let failed = Record { state: State::Failed(Outcome::Omitted), ..completed.clone() };
        let write = conclude(Some(&completed), failed.clone());
        applied(store, &key, &write, &failed).await?;
        let lock = second_lock()?;
        let write = reclaim(&failed, lock.clone());
        applied(store, &key, &write, &lock.into()).await?;
    }
    Ok(())
}

/// An extension whose answer was lost has moved the lease and the expiry. The owner doesn't know, and settles the claim
/// as it knows it: nothing of the extension may remain, even if the new expiry equals the claim's.
pub(super) async fn settles_over_extension(store: &dyn Store) -> Verdict {
    let mut settlements = settlements().to_vec();
    settlements.push(Settlement::Release { expires_at: tomorrow(), interrupted: false });
    for settlement in settlements {
        for lock in [first_lock()?, lasting_lock()?] {
            let (key, mine) = (fresh_key()?, Record::from(lock.clone()));
            prepare(store, &key, &[claim(lock)]).await?;
            let state = State::Started { lease_until: far_lease() };
            let expires_at = Some(tomorrow().saturating_add(Duration::from_secs(5)));
            let extended = Record { state, expires_at, ..mine.clone() };
            let extension = Put::Replace { seen: mine.clone(), new: extended.clone() };
            applied(store, &key, &extension, &extended).await?;
            refused(store, &key, &extension, Some(&extended)).await?;
            let settled = settle(&mine, settlement.clone());
            applied(store, &key, &settled, settled.record()).await?;
        }
    }
    Ok(())
}
