//! The machine's input: events and their time.

use crate::{
    protocol::Intent,
    record::Record,
    store::{PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// The time, read after the event.
    pub now: Timestamp,
    /// The event.
    pub event: Event,
}

/// An event that the driver reports to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Start claiming.
    Begin,
    /// The store applied or refused an `Action::Put`, an `Action::Commit` or an `Action::CommitAlone`.
    Answered(PutOutcome),
    /// The store answered an `Action::Read`.
    Found(Option<Record>),
    /// The store returned an error for one of these actions or an `Action::Read`.
    Failed(Fault),
    /// An `Action::Pause` is over.
    Resumed,
    /// Settle the claim that's held, or conclude an optimistic run.
    Settle(Intent),
    /// The answer to an `Action::Ask` is that the earlier attempt had no effect, and will have none.
    DidNotHappen,
    /// Read the record without claiming.
    Look,
    /// Lock the key in the caller's own transaction, and read the record. The transaction's lock then holds the key
    /// until the transaction ends. The settlement is put into the transaction.
    Lock,
    /// Extend the held claim's lease to this time.
    Extend(Timestamp),
    /// The store answered an `Action::Commit` or an `Action::CommitAlone`: the record's condition held, but a condition of
    /// the handler's writes failed. Nothing was written.
    Declined,
    /// An operator settles the record as this intent says.
    Resolve {
        /// The version that the operator was shown.
        seen: Box<Record>,
        /// The operator's decision.
        intent: Intent,
    },
    /// Commit the handler's own writes without a record.
    CommitAlone,
}

/// The facts about a store's error that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The category of the store's error.
    pub kind: StoreErrorKind,
    /// Whether the write may have been applied despite the error.
    pub maybe_applied: bool,
}
