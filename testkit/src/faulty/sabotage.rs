//! The ways in which the faulty store breaks the contract.

use lambda_idempotency::store::{Put, Status};

/// A sabotage of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// No sabotage: the store keeps the contract.
    None,
    /// The store doesn't test this condition.
    Untested(Condition),
    /// The store tests this condition only as "not older than the stored value".
    NotOlder(Condition),
    /// The store tests this condition, which the contract doesn't have.
    Overtested(Condition),
    /// A put of this kind keeps the old value of this field.
    Keeps(Act, Field),
    /// A put of this kind keeps the old value of this field if the new record has none.
    KeepsIfUnset(Act, Field),
    /// A put whose outcome is omitted does not test the generation.
    OmittedIsUnfenced,
    /// A settlement whose outcome is in chunks does not test the owner.
    PartsAreUnfenced,
    /// A takeover or a reclaim by an invocation without a request id does not test the lease.
    NamelessIsUnfenced,
    /// An extension after the lease expired is refused.
    LateExtensionRefused,
    /// A put does not move the expiry to an earlier time.
    ExpiryOnlyGrows,
    /// An extension counts as another attempt.
    ExtensionCounts,
    /// An extension loses the request id.
    ExtensionLosesRequestId,
    /// The numbers of a version are compared as 64-bit floats.
    VersionsAreFloats,
    /// A put that saw a version is applied although the record is absent.
    AbsentIsReplaced,
    /// The store applies the write some time after it tested the condition.
    NotAtomic,
    /// A refused write is applied.
    RefusedIsMade,
    /// A refused write overwrites the request id.
    RefusedTouches,
    /// A refusal shows the previous version.
    RefusedShowsOld,
    /// A refusal shows no record.
    RefusedShowsNothing,
    /// An applied write is reported as refused.
    AppliedIsRefused,
    /// A refused write is reported as an error.
    RefusedIsError,
    /// A read shows the previous version.
    ReadsLag,
    /// A read shows an expired record as absent.
    ExpiredReadsAbsent,
    /// A claim overwrites an expired record instead of being refused.
    ExpiredIsAbsent,
    /// A claim overwrites a STARTED record whose lease has expired instead of being refused.
    StaleIsAbsent,
    /// A settlement after the lease expired is refused.
    LateSettlementRefused,
    /// The field is not stored.
    Lost(Field),
    /// An empty request id is not stored.
    EmptyRequestIdLost,
    /// Numbers are rounded to 64-bit floats.
    Floats,
    /// Numbers above the largest signed 64-bit integer are stored as that integer.
    Signed,
    /// The lease is stored in seconds.
    LeaseInSeconds,
    /// An outcome over 16 KB loses its end.
    OutcomeCut,
    /// The store has no chunks, and a response over 1 MiB loses its end.
    LargeOutcomeCut,
    /// The store has no chunks, and refuses a response over 1 MiB with an error that the library retries.
    LargeOutcomeRejected,
    /// An empty response is stored as omitted.
    EmptyIsOmitted,
    /// A failure is stored as a completion.
    FailureIsCompletion,
    /// If an outcome is omitted, the record shows an older one.
    OldOutcomeShows,
    /// A seen version without an expiry matches any expiry.
    NoExpiryMatchesAny,
    /// A seen version with an expiry matches a record without one.
    AnyExpiryMatchesNone,
    /// A seen version without an expiry never matches, as with `NULL = NULL` in SQL.
    NoExpiryMatchesNothing,
    /// A missing expiry counts as an expiry in 1970.
    NoExpiryIsZero,
    /// A missing expiry is stored as the latest possible time.
    NoExpiryIsTheLast,
    /// A read shows a record without an expiry as absent.
    NoExpiryReadsAbsent,
    /// An extension forgets that an earlier attempt was interrupted.
    ExtensionForgetsInterrupted,
    /// A completion or a failure forgets that an earlier attempt was interrupted.
    SettlementForgetsInterrupted,
    /// A dropped call's answer goes to the next call.
    DroppedAnswersStay,
    /// Keys are cut at 255 bytes.
    KeysCut,
    /// Keys that differ only in case are the same.
    KeysFolded,
    /// Keys that differ only in trailing blanks are the same.
    KeysTrimmed,
    /// Two owners of a key share chunks.
    PartsOfOwnersMixed,
    /// Two keys of an owner share chunks.
    PartsOfKeysMixed,
    /// Missing chunks are skipped.
    PartsMissingLeftOut,
    /// A read of chunks ignores its size limit.
    PartsUnlimited,
    /// A response loses its last byte.
    PartsCut,
    /// Responses over 4 MB can't be written.
    PartsSmall,
    /// A chunk replaces the record.
    PartsAreRecords,
    /// Completing the record removes its chunks.
    PartsGoWithCompletion,
}

/// One condition of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There's no record.
    Absent,
    /// This field is as seen.
    Replace(Field),
    /// This field is the claim's.
    Mine(Field),
}

/// The effect of a put on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It begins anew in place of the record.
    Anew,
    /// It takes the claim over.
    TakeOver,
    /// It extends the claim's lease.
    Extend,
    /// It settles the owner's claim.
    Settle,
    /// It settles the record for an operator.
    Resolve,
}

impl Act {
    /// Returns what `put` does.
    pub fn of(put: &Put) -> Self {
        let is_started = put.record().status() == Status::Started;
        match put {
            Put::Mine { .. } if is_started => Self::Extend,
            Put::Mine { .. } => Self::Settle,
            _ if put.begins_anew() => Self::Anew,
            Put::Replace { seen, new } if new.is_claim_of(seen) => Self::Extend,
            _ if is_started => Self::TakeOver,
            _ => Self::Resolve,
        }
    }
}

/// One field of a record, named as in the record.
#[allow(missing_docs, reason = "the record documents its fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Status,
    Owner,
    Generation,
    Attempt,
    Fingerprint,
    LockAcquiredAt,
    LeaseUntil,
    Execution,
    ExpiresAt,
    Interrupted,
    RequestId,
    Trace,
    Outcome,
}
