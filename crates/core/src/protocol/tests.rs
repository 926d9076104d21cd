//! All the rules, as tables of the machine's action in each state.

mod alone;
mod commit;
mod inside;
mod open;
mod operator;
mod reconcile;
mod settle;
mod transactions;

use std::{sync::Arc, time::Duration};

use super::{acquire::RECORDING_LEASE, limits::SHORTEST_ANSWER, *};
use crate::{
    fingerprint::Fingerprint,
    outcome::{Outcome, StoredResponse},
    record::{Generation, Lock, Mark, Owner, Record, State as RecordState, Status},
    settings::Execution,
    store::{Put, PutOutcome, StoreErrorKind},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_millis(1_795_000_000_000);
const SKEW: Duration = Duration::from_secs(2);
const RETENTION: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(30);
const RESERVE: Duration = Duration::from_secs(2);
/// The maximum number of retries in these tests.
const RETRIES: u8 = 3;
const SETTLE_WITHIN: Duration = Duration::from_secs(30);
const RELEASE: Intent = Intent::Release { interrupted: false };
const ME: Owner = Owner::from_bytes([1; 16]);
const OTHER: Owner = Owner::from_bytes([2; 16]);
const REQUEST: Fingerprint = Fingerprint::from_digest([7; 32]);
const ANOTHER_REQUEST: Fingerprint = Fingerprint::from_digest([8; 32]);

fn plan(execution: Execution) -> Plan {
    Plan {
        rules: Rules { skew_margin: SKEW, retention: RETENTION, execution, reconcile: None },
        owner: ME,
        fingerprint: REQUEST,
        limits: Limits { max_retries: Some(RETRIES), ..limits() },
        request_id: Some("request".into()),
        trace: Some(Arc::new("trace".to_owned())),
    }
}

fn limits() -> Limits {
    Limits { lease_grace: RESERVE, ..Limits::unknown(NOW.saturating_add(LEASE), SETTLE_WITHIN) }
}

/// A machine and its current time.
#[derive(Clone)]
struct Run {
    state: State,
    now: Timestamp,
}

impl Run {
    fn new() -> Self {
        Self::with(Execution::AtLeastOnce)
    }

    fn with(execution: Execution) -> Self {
        Self { state: State::new(plan(execution)), now: NOW }
    }

    fn feed(&mut self, event: Event) -> Action {
        step(&mut self.state, Input { now: self.now, event })
    }

    /// Answers every request with this failure. Returns the machine's last action, and the number of pauses.
    fn retry_until_end(&mut self, event: &Event) -> (Action, u8) {
        let mut pauses = 0;
        loop {
            match self.feed(event.clone()) {
                Action::Pause(nth) => assert_eq!(nth, pauses, "each pause has the next number"),
                Action::Put(_) | Action::Read | Action::Commit { .. } => continue,
                action => return (action, pauses),
            }
            pauses += 1;
            let again = self.feed(Event::Resumed);
            assert!(matches!(again, Action::Put(_) | Action::Read | Action::Commit { .. }), "{again:?}");
        }
    }

    /// Returns a machine whose first claim was rejected because of `record`, and its next action.
    fn claiming_over(execution: Execution, record: Record) -> (Self, Action) {
        let mut run = Self::with(execution);
        assert!(matches!(run.feed(Event::Begin), Action::Put(Put::Create(_))));
        let action = run.feed(refused(Some(record)));
        (run, action)
    }

    /// Returns a machine that holds the claim.
    fn holding() -> (Self, Held) {
        let mut run = Self::new();
        run.feed(Event::Begin);
        match run.feed(Event::Answered(PutOutcome::Applied)) {
            Action::Claimed(held) => (run, held),
            action => panic!("not claimed: {action:?}"),
        }
    }

    /// Returns a machine that has sent its completion.
    fn completing() -> (Self, Held) {
        let (mut run, held) = Self::holding();
        assert!(matches!(run.feed(Event::Settle(complete())), Action::Put(Put::Mine { .. })));
        (run, held)
    }
}

fn refused(record: Option<Record>) -> Event {
    Event::Answered(PutOutcome::Refused(record))
}

fn fault(kind: StoreErrorKind, maybe_applied: bool) -> Event {
    Event::Failed(Fault { kind, maybe_applied })
}

const LOST: fn() -> Event = || fault(StoreErrorKind::Unavailable, true);

fn outcome() -> Outcome {
    Outcome::Retained(StoredResponse::new(bytes::Bytes::from_static(b"response")))
}

fn complete() -> Intent {
    Intent::Complete(outcome())
}

/// Returns another executor's record, which was claimed ten seconds ago.
fn record(state: RecordState, expires_in_secs: i64) -> Record {
    let expires_ms = NOW.as_millis().strict_add_signed(expires_in_secs * 1000);
    Record {
        owner: OTHER,
        generation: Generation::new(NOW.as_millis() - 10_000),
        attempt: 3,
        fingerprint: REQUEST,
        lock_acquired_at: Timestamp::from_millis(NOW.as_millis() - 10_000),
        execution: Execution::AtLeastOnce,
        expires_at: Some(Timestamp::from_millis(expires_ms)),
        mark: Mark::None,
        request_id: None,
        trace: None,
        state,
    }
}

/// Returns a STARTED record whose lease ends `lease_in_ms` from now.
fn started(lease_in_ms: i64) -> Record {
    let lease_until = Timestamp::from_millis(NOW.as_millis().strict_add_signed(lease_in_ms));
    record(RecordState::Started { lease_until }, 100_000)
}

/// Returns what a settlement writes that releases a key claimed with the plan's lease.
fn released(interrupted: bool) -> (RecordState, Option<Timestamp>, bool) {
    let day = Duration::from_secs(86_400);
    let expires_at = NOW.saturating_add(LEASE).saturating_add(day).rounded_up_to_second();
    (RecordState::Released, Some(expires_at), interrupted)
}

/// Returns the record that an action puts under the machine's claim, `held`. Checks that the rest of the claim's record
/// stays.
fn settlement(held: &Held, action: Action) -> Record {
    let Action::Put(Put::Mine { held: lock, new }) = action else { panic!("no settlement: {action:?}") };
    assert_eq!(lock, held.lock);
    let claim = Record::from(lock);
    let Record { state, expires_at, mark, .. } = new.clone();
    assert_eq!(new, Record { state, expires_at, mark, ..claim });
    new
}

/// The fields that a settlement changes in its claim's record.
fn changed(record: Record) -> (RecordState, Option<Timestamp>, bool) {
    (record.state, record.expires_at, record.mark.is_interrupted())
}

/// Returns the time at which a key becomes claimable if its claim's lease ends at `lease_until`.
fn claimable_at(lease_until: Timestamp) -> Timestamp {
    lease_until.saturating_add(SKEW).saturating_add(Duration::from_millis(1))
}

fn completed() -> Record {
    record(RecordState::Completed(outcome()), 1000)
}

fn of_another_request(record: Record) -> Record {
    Record { fingerprint: ANOTHER_REQUEST, ..record }
}

/// Returns the record of the machine's own claim, in this state.
fn mine(run: &mut Run, held: &Held, state: RecordState) -> Record {
    let lock =
        acquire::lock(run.state.plan(), NOW, held.lock.generation, held.lock.attempt, Mark::None, &Goal::Run);
    Record { state, ..lock.into() }
}

#[test]
fn first_claim_sets_every_field() {
    let mut run = Run::new();
    let Action::Put(Put::Create(lock)) = run.feed(Event::Begin) else { panic!("no claim (T1)") };
    assert_eq!(lock.owner, ME);
    assert_eq!(lock.generation.get(), NOW.as_millis());
    assert_eq!(lock.attempt, 1);
    assert_eq!(lock.fingerprint, REQUEST);
    assert_eq!(lock.lock_acquired_at, NOW);
    assert_eq!(lock.lease_until(), Some(NOW.saturating_add(LEASE)));
    // A lock outlives its lease by a day, however short the retention is.
    let day = Duration::from_secs(86_400);
    let expires_at = NOW.saturating_add(LEASE).saturating_add(day).rounded_up_to_second();
    assert_eq!(lock.expires_at, Some(expires_at));
    let Action::Claimed(held) = run.feed(Event::Answered(PutOutcome::Applied)) else { panic!("not claimed") };
    assert!(!held.lock.mark.is_interrupted() && !held.is_recovered);
    assert_eq!(run.state.held(), Some(&held));
}

#[test]
fn lock_outlives_its_lease_by_the_retention() {
    let mut plan = plan(Execution::AtLeastOnce);
    plan.rules.retention = Duration::from_secs(7 * 86_400);
    let lock = acquire::lock(&plan, NOW, Generation::first(NOW), 1, Mark::None, &Goal::Run);
    let expires_at = plan.limits.lease_until.saturating_add(plan.rules.retention).rounded_up_to_second();
    assert_eq!(lock.expires_at, Some(expires_at));
}

/// The result of a claim over an existing record, for both kinds of execution.
#[test]
fn existing_record_decides_the_action() {
    #[derive(Debug, PartialEq)]
    enum Reaction {
        Replay,
        Mismatch,
        InProgress,
        Unknown,
        Reclaim,
        TakeOver,
    }
    let reaction = |execution, record: Record| match Run::claiming_over(execution, record).1 {
        Action::Replay(_) => Reaction::Replay,
        Action::Refused(Refusal::Mismatch) => Reaction::Mismatch,
        Action::Refused(Refusal::InProgress(Some(_))) => Reaction::InProgress,
        Action::Refused(Refusal::OutcomeUnknown) => Reaction::Unknown,
        Action::Put(put @ Put::Replace { .. }) if put.begins_anew() => Reaction::Reclaim,
        Action::Put(Put::Replace { .. }) => Reaction::TakeOver,
        action => panic!("unexpected {action:?}"),
    };
    let released = |expires_in| record(RecordState::Released, expires_in);
    let failed = |expires_in| record(RecordState::Failed(outcome()), expires_in);
    let done = |expires_in| record(RecordState::Completed(outcome()), expires_in);
    let expired =
        || Record { expires_at: Some(Timestamp::from_millis(NOW.as_millis() - 2001)), ..started(-60_000) };
    use Reaction::*;
    // Each row has the record that's found, then four actions: for a record of the same request under at-least-once and
    // under at-most-once, then for a record of another request under each.
    for (record, least, most, other_least, other_most) in [
        (started(1000), InProgress, InProgress, Mismatch, Mismatch),
        // Stale means that the lease ended more than the skew margin ago, to the millisecond.
        (started(-2000), InProgress, InProgress, Mismatch, Mismatch),
        (started(-2001), TakeOver, Unknown, Mismatch, Mismatch),
        // The same operation continues, so what other programs added to the record stays.
        (expired(), TakeOver, Unknown, Reclaim, Unknown),
        (done(10), Replay, Replay, Mismatch, Mismatch),
        (done(-2), Replay, Replay, Mismatch, Mismatch),
        (done(-3), Reclaim, Reclaim, Reclaim, Reclaim),
        (failed(10), Replay, Replay, Mismatch, Mismatch),
        (failed(-3), Reclaim, Reclaim, Reclaim, Reclaim),
        (released(10), Reclaim, Reclaim, Reclaim, Reclaim),
        (released(-3), Reclaim, Reclaim, Reclaim, Reclaim),
    ] {
        let other = of_another_request(record.clone());
        assert_eq!(reaction(Execution::AtLeastOnce, record.clone()), least, "{record:?}");
        assert_eq!(reaction(Execution::AtMostOnce, record.clone()), most, "{record:?}");
        assert_eq!(reaction(Execution::AtLeastOnce, other.clone()), other_least, "{other:?}");
        assert_eq!(reaction(Execution::AtMostOnce, other.clone()), other_most, "{other:?}");
    }
}

#[test]
fn started_record_expires_only_when_stale() {
    let odd = Record { expires_at: Some(Timestamp::from_millis(NOW.as_millis() - 90_000)), ..started(5000) };
    let (_, action) = Run::claiming_over(Execution::AtLeastOnce, odd);
    assert!(matches!(action, Action::Refused(Refusal::InProgress(_))), "{action:?}");
}

#[test]
fn takeover_is_conditional_on_the_seen_version() {
    let stale = started(-5000);
    let (mut run, action) = Run::claiming_over(Execution::AtLeastOnce, stale.clone());
    let Action::Put(Put::Replace { seen, new: lock }) = action else { panic!("no takeover (T3)") };
    assert_eq!(seen, stale);
    // The executor's lost claim may still be applied, so this one needs another generation.
    assert_eq!((lock.attempt, lock.generation.get()), (4, NOW.as_millis() + 1));
    let Action::Claimed(held) = run.feed(Event::Answered(PutOutcome::Applied)) else { panic!("not claimed") };
    assert!(held.lock.mark.is_interrupted());
    assert_eq!(held.lock.attempt, 4);
}

#[test]
fn generation_grows_despite_a_slow_clock() {
    let ahead = Record { generation: Generation::new(NOW.as_millis() + 5), ..started(-5000) };
    let (_, action) = Run::claiming_over(Execution::AtLeastOnce, ahead);
    let Action::Put(Put::Replace { new: lock, .. }) = action else { panic!("no takeover (T3)") };
    assert_eq!(lock.generation.get(), NOW.as_millis() + 6);
}

#[test]
fn reclaim_counts_attempts_of_the_same_request() {
    let attempt = |record| match Run::claiming_over(Execution::AtLeastOnce, record).1 {
        Action::Put(Put::Replace { new, .. }) => new.attempt,
        action => panic!("no reclaim (T2): {action:?}"),
    };
    assert_eq!(attempt(record(RecordState::Released, 10)), 4);
    assert_eq!(attempt(of_another_request(record(RecordState::Released, 10))), 1);
    assert_eq!(attempt(record(RecordState::Completed(outcome()), -3)), 1);
}

#[test]
fn lost_takeover_retries_then_reports_in_progress() {
    let (mut run, mut action) = Run::claiming_over(Execution::AtLeastOnce, started(-5000));
    for nth in 1..=3 {
        assert!(matches!(action, Action::Put(Put::Replace { .. })), "{nth}: {action:?}");
        action = run.feed(refused(Some(started(-5000 - nth))));
    }
    assert_eq!(action, Action::Refused(Refusal::InProgress(None)));
}

#[test]
fn lost_takeover_follows_the_current_record() {
    let (mut run, _) = Run::claiming_over(Execution::AtLeastOnce, started(-5000));
    assert!(matches!(run.feed(refused(Some(completed()))), Action::Replay(_)));
    let (mut run, _) = Run::claiming_over(Execution::AtLeastOnce, started(-5000));
    let winner = started(20_000);
    assert_eq!(
        run.feed(refused(Some(winner.clone()))),
        Action::Refused(Refusal::InProgress(winner.lease_until().map(claimable_at)))
    );
    let (mut run, _) = Run::claiming_over(Execution::AtLeastOnce, started(-5000));
    assert!(
        matches!(run.feed(refused(None)), Action::Put(Put::Create(_))),
        "the record is gone: claim again, never run unclaimed"
    );
}

#[test]
fn lost_claim_response_is_recovered() {
    // The SDK retries the call. The store refuses the second attempt, and returns the record that the first one wrote.
    let mut run = Run::new();
    run.feed(Event::Begin);
    let own = Record { owner: ME, generation: Generation::new(41), ..started(20_000) };
    let Action::Claimed(held) = run.feed(refused(Some(own.clone()))) else { panic!("not recognised") };
    assert_eq!(held.lock.generation.get(), 41, "the claim has the record's generation");
    assert_eq!(Some(held.lock.lease_until), own.lease_until(), "the claim has the record's lease");
    assert!(held.is_recovered);

    // The call times out: the machine reads the record.
    let mut run = Run::new();
    run.feed(Event::Begin);
    assert_eq!(run.feed(LOST()), Action::Read);
    assert!(matches!(run.feed(Event::Found(Some(own))), Action::Claimed(_)));
}

#[test]
fn recovered_claim_without_time_is_released() {
    let mut run = Run::new();
    run.feed(Event::Begin);
    let own = Record { owner: ME, generation: Generation::new(41), ..started(2000) };
    let Action::Put(Put::Mine { held, new }) = run.feed(refused(Some(own))) else { panic!("not released") };
    assert_eq!((held.owner, held.generation.get()), (ME, 41));
    assert_eq!((new.state, new.mark.is_interrupted()), (RecordState::Released, false));
    let until = claimable_at(NOW.saturating_add(Duration::from_millis(2000)));
    for (answer, refusal) in [
        (Event::Answered(PutOutcome::Applied), Refusal::NoTimeLeft),
        (
            refused(Some(Record { generation: Generation::new(40), ..started(-9000) })),
            Refusal::Abandoned(until),
        ),
        (refused(Some(started(60_000))), Refusal::NoTimeLeft),
        (LOST(), Refusal::Abandoned(until)),
    ] {
        let mut run = run.clone();
        assert_eq!(run.feed(answer.clone()), Action::Refused(refusal), "{answer:?}");
    }
}

#[test]
fn claim_answered_too_late_is_released() {
    let mut run = Run::new();
    run.feed(Event::Begin);
    run.now = NOW.saturating_add(LEASE).saturating_sub(RESERVE);
    let action = run.feed(Event::Answered(PutOutcome::Applied));
    let Action::Put(Put::Mine { new, .. }) = action else { panic!("{action:?}") };
    assert_eq!(new.state, RecordState::Released);
}

#[test]
fn no_claim_without_time_left() {
    let mut run = Run::new();
    run.now = run.state.plan().start_by();
    assert_eq!(run.feed(Event::Begin), Action::Refused(Refusal::NoTimeLeft));
    let mut run = Run::new();
    run.feed(Event::Begin);
    run.now = run.state.plan().start_by();
    assert_eq!(run.feed(refused(Some(started(-60_000)))), Action::Refused(Refusal::NoTimeLeft));
}

#[test]
fn ambiguous_claim_without_record_is_resent() {
    let mut run = Run::new();
    run.feed(Event::Begin);
    for _ in 0..3 {
        assert_eq!(run.feed(LOST()), Action::Read);
        assert!(matches!(run.feed(Event::Found(None)), Action::Put(Put::Create(_))));
    }
    assert_eq!(run.feed(LOST()), Action::Read);
    // There's no record, but the claim may still be applied, so the machine tries to release it.
    let release = run.feed(Event::Found(None));
    assert!(matches!(release, Action::Put(Put::Mine { .. })), "{release:?}");
    let until = claimable_at(NOW.saturating_add(LEASE));
    assert_eq!(run.feed(refused(None)), Action::Refused(Refusal::Abandoned(until)));
}

#[test]
fn store_failure_before_claim_refuses_the_delivery() {
    use StoreErrorKind::*;
    for (event, refusal) in [
        (fault(Unavailable, false), Refusal::Unavailable),
        (fault(Rejected, false), Refusal::Rejected),
        (fault(Unstorable, false), Refusal::Rejected),
    ] {
        let mut run = Run::new();
        run.feed(Event::Begin);
        assert_eq!(run.feed(event), Action::Refused(refusal));
    }
    let mut run = Run::new();
    run.feed(Event::Begin);
    run.feed(LOST());
    assert_eq!(run.feed(fault(Corrupt, false)), Action::Refused(Refusal::Corrupt));
}

#[test]
fn unreadable_record_refuses_the_claim_at_once() {
    let mut first = Run::new();
    let sent = first.feed(Event::Begin);
    let claims = [
        (first, sent),
        Run::claiming_over(Execution::AtLeastOnce, record(RecordState::Released, 1000)),
        Run::claiming_over(Execution::AtLeastOnce, started(-60_000)),
    ];
    let kinds = claims.each_ref().map(|(_, action)| match action {
        Action::Put(Put::Create(_)) => "T1",
        Action::Put(put @ Put::Replace { .. }) if put.begins_anew() => "T2",
        Action::Put(Put::Replace { .. }) => "T3",
        action => panic!("no claim: {action:?}"),
    });
    assert_eq!(kinds, ["T1", "T2", "T3"]);
    for ((run, _), kind) in claims.iter().zip(kinds) {
        for maybe_applied in [false, true] {
            let action = run.clone().feed(fault(StoreErrorKind::Corrupt, maybe_applied));
            assert_eq!(action, Action::Refused(Refusal::Corrupt), "{kind}, {maybe_applied}");
        }
    }
}

#[test]
fn claim_conflict_retries_then_reports_in_progress() {
    let mut run = Run::new();
    let first = run.feed(Event::Begin);
    for nth in 0..3 {
        assert_eq!(run.feed(fault(StoreErrorKind::Conflict, false)), Action::Pause(nth));
        assert_eq!(run.feed(Event::Resumed), first, "the same write again");
    }
    let last = run.feed(fault(StoreErrorKind::Conflict, false));
    assert_eq!(last, Action::Refused(Refusal::InProgress(None)));
}

#[test]
fn each_settlement_writes_its_state_and_expiry() {
    let expires_at = NOW.saturating_add(RETENTION).rounded_up_to_second();
    for (intent, expected) in [
        (complete(), (RecordState::Completed(outcome()), Some(expires_at), false)),
        (Intent::Fail(outcome()), (RecordState::Failed(outcome()), Some(expires_at), false)),
        (RELEASE, released(false)),
    ] {
        let (mut run, held) = Run::holding();
        assert_eq!(changed(settlement(&held, run.feed(Event::Settle(intent)))), expected);
        assert_eq!(run.feed(Event::Answered(PutOutcome::Applied)), Action::Settled(End::Recorded));
    }
}

#[test]
fn late_settlement_is_still_sent() {
    let (mut run, _) = Run::holding();
    run.now = NOW.saturating_add(LEASE * 10);
    assert!(matches!(run.feed(Event::Settle(complete())), Action::Put(_)));
}

#[test]
fn lost_settlement_response_is_recovered() {
    for (intent, state) in [
        (complete(), RecordState::Completed(outcome())),
        (Intent::Fail(outcome()), RecordState::Failed(outcome())),
        (RELEASE, RecordState::Released),
    ] {
        // The store refuses the second attempt, because the first was applied.
        let (mut run, held) = Run::holding();
        run.feed(Event::Settle(intent.clone()));
        let settled = mine(&mut run, &held, state);
        assert_eq!(run.clone().feed(refused(Some(settled.clone()))), Action::Settled(End::Recorded));
        // The call times out, and the machine finds the outcome by reading the record.
        assert_eq!(run.feed(LOST()), Action::Read);
        assert_eq!(run.feed(Event::Found(Some(settled))), Action::Settled(End::Recorded));
    }
}

#[test]
fn owner_identifies_the_recorded_outcome() {
    let (mut run, held) = Run::completing();
    let own = mine(&mut run, &held, RecordState::Completed(outcome()));
    let theirs = Record { owner: OTHER, ..own.clone() };
    // The generation doesn't matter: no other claim has this machine's owner.
    let later = Record { generation: own.generation.next(NOW), ..own };
    assert_eq!(run.clone().feed(refused(Some(later))), Action::Settled(End::Recorded));
    // Another owner's claim in the same millisecond has the same generation.
    assert_eq!(run.feed(refused(Some(theirs.clone()))), Action::Settled(End::Superseded(theirs)));
}

#[test]
fn unreadable_record_leaves_the_settlement_unrecorded() {
    for maybe_applied in [false, true] {
        let (mut run, _) = Run::completing();
        let action = run.feed(fault(StoreErrorKind::Corrupt, maybe_applied));
        assert_eq!(action, Action::Settled(End::Unrecorded(Refusal::Corrupt)));
    }
}

#[test]
fn reclaim_recognises_its_own_outcome() {
    // T4 was applied, but its answer was lost. The store refuses the SDK's second attempt without returning the record.
    let (mut run, held) = Run::completing();
    assert!(matches!(run.feed(refused(None)), Action::Put(Put::Create(_))));
    let own = mine(&mut run, &held, RecordState::Completed(outcome()));
    let failed = Record { state: RecordState::Failed(outcome()), ..own.clone() };
    let theirs = Record { owner: OTHER, ..own.clone() };
    assert_eq!(run.clone().feed(refused(Some(own))), Action::Settled(End::Recorded));
    for other in [failed, theirs] {
        assert_eq!(run.clone().feed(refused(Some(other.clone()))), Action::Settled(End::Superseded(other)));
    }
}

#[test]
fn fenced_settlement_returns_the_successors_outcome() {
    let (mut run, _) = Run::completing();
    let theirs = completed();
    assert_eq!(run.feed(refused(Some(theirs.clone()))), Action::Settled(End::Superseded(theirs)));

    let (mut run, _) = Run::completing();
    let working = started(20_000);
    let until = working.lease_until().map(claimable_at);
    assert_eq!(run.feed(refused(Some(working))), Action::Settled(End::Fenced(until)));

    // The machine never takes over a stale successor just to record an outcome.
    let (mut run, _) = Run::completing();
    assert!(matches!(run.feed(refused(Some(started(-60_000)))), Action::Settled(End::Fenced(_))));

    // Another request has used the key since.
    let (mut run, _) = Run::completing();
    assert_eq!(
        run.feed(refused(Some(of_another_request(completed())))),
        Action::Settled(End::Unrecorded(Refusal::Mismatch))
    );
}

#[test]
fn unexpected_event_changes_nothing() {
    let (run, _) = Run::holding();
    for event in
        [Event::Begin, Event::Resumed, Event::Found(None), Event::Answered(PutOutcome::Applied), LOST()]
    {
        let mut same = run.clone();
        assert_eq!(same.feed(event), Action::Nothing);
        assert_eq!(same.state, run.state);
    }
}

#[test]
fn released_key_is_reclaimed_not_replayed() {
    let (_, action) = Run::claiming_over(Execution::AtLeastOnce, record(RecordState::Released, 10));
    let Action::Put(Put::Replace { seen, .. }) = action else { panic!("no reclaim (T2)") };
    assert_eq!(seen.status(), Status::Released);
}
