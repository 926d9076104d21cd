//! The machine's answers: the next action, and how a claim or a settlement ended.

use crate::{
    record::{Lock, Record},
    store::{Put, StoreErrorKind},
    time::Timestamp,
};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this put to the store, and feed back `Event::Answered` or `Event::Failed`.
    Put(Put),
    /// Send this put to the store together with the handler's own writes, in one transaction. Derive the
    /// transaction's token from the submission's number. Feed back `Event::Answered`, `Event::Declined` or
    /// `Event::Failed`.
    Commit {
        /// The put.
        put: Put,
        /// The submission's number. If an action repeats a number, it repeats the request.
        submission: u32,
    },
    /// Send the handler's own writes alone, under a token derived from the owner. Feed back `Event::Answered`,
    /// `Event::Declined` or `Event::Failed`.
    CommitAlone,
    /// Read the record, and feed back `Event::Found` or `Event::Failed`.
    Read,
    /// Wait a little, longer for a higher number, and feed back `Event::Resumed`.
    Pause(u8),
    /// The claim is held: run the handler, then feed back `Event::Settle`.
    Claimed(Held),
    /// The claim is held, and an earlier attempt ended without an answer: ask the remote system for its effect. Then feed
    /// back `Event::Settle` with the outcome or the lack of an answer, or `Event::DidNotHappen`.
    Ask(Held),
    /// The record has an outcome: answer with it. The machine is done.
    Replay(Record),
    /// The claim failed, and the handler must not run. The machine is done.
    Refused(Refusal),
    /// The key is claimable, but not claimed: run the handler, then feed back `Event::Settle`.
    Open,
    /// The lease was extended. This is the claim with its new lease.
    Extended(Held),
    /// The extension isn't known to be applied: the claim is held as before.
    NotExtended,
    /// The claim has been taken over or settled, or its record is gone or unreadable: stop the handler.
    Lost,
    /// The last attempt at the transaction wasn't applied; [`State::is_in_doubt`](crate::protocol::State::is_in_doubt)
    /// says whether an earlier attempt may still be applied. A claim that was held still is: feed back `Event::Settle`.
    Declined(Decline),
    /// The settlement, or the operator's write, ended. The machine is done.
    Settled(End),
    /// The operator's write is applied, and this is its record. `None`: the record has changed since it was seen, and
    /// nothing was written. The machine is done.
    Resolved(Option<Record>),
    /// The event isn't expected in this state, so nothing changes.
    Nothing,
}

/// Why a claim failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The key is in use with another fingerprint.
    Mismatch,
    /// Another claim is live. The key becomes claimable at this time, if it's known.
    InProgress(Option<Timestamp>),
    /// An earlier claim ended without an outcome, and only one run is allowed.
    OutcomeUnknown,
    /// The store couldn't be reached.
    Unavailable,
    /// Nothing ran, but the claim may hold the key, since its release isn't known to be applied. If it does, the key
    /// becomes claimable at this time.
    Abandoned(Timestamp),
    /// The store rejects the request itself.
    Rejected,
    /// The record is unreadable.
    Corrupt,
    /// There's no time left to run the handler.
    NoTimeLeft,
}

/// Why a transaction wasn't applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decline {
    /// A condition of the handler's writes failed.
    Condition,
    /// The store couldn't apply the transaction, or rejected it.
    Store(StoreErrorKind),
}

/// How a settlement ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The settlement is stored.
    Recorded,
    /// This record has another outcome, which counts: usually a successor's, or one that an earlier transaction of
    /// this run stored.
    Superseded(Record),
    /// The claim is lost, usually to a successor that still runs. The key becomes claimable at this time, if it's
    /// known.
    Fenced(Option<Timestamp>),
    /// The settlement isn't known to be stored, for this reason.
    Unrecorded(Refusal),
    /// Neither the outcome nor the handler's writes are stored, for this reason. No claim is held.
    NotCommitted(Refusal),
    /// It's unknown whether the transaction with the outcome and the handler's own writes was applied, or still
    /// will be. If there's a claim, the key becomes claimable at this time.
    Unresolved(Option<Timestamp>),
}

/// A claim that this executor holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The claim's record.
    pub lock: Lock,
    /// Whether the claim's answer was lost, and the record's owner then showed that the claim was applied.
    pub is_recovered: bool,
}

/// Maps a store's error to the refusal of a claim.
pub fn refusal_for(kind: StoreErrorKind) -> Refusal {
    match kind {
        StoreErrorKind::Unavailable => Refusal::Unavailable,
        StoreErrorKind::Conflict => Refusal::InProgress(None),
        StoreErrorKind::Rejected | StoreErrorKind::Unstorable => Refusal::Rejected,
        StoreErrorKind::Corrupt => Refusal::Corrupt,
    }
}
