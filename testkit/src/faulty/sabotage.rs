//! The ways in which the faulty store breaks the contract.

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
    /// A settlement whose outcome is omitted does not test the generation.
    OmittedIsUnfenced,
    /// A settlement whose outcome is in chunks does not test the owner.
    PartsAreUnfenced,
    /// An operator's write keeps the owner.
    ResolveKeepsOwner,
    /// An operator's write keeps the generation.
    ResolveKeepsGeneration,
    /// An operator's write to a settled record keeps the old status and outcome.
    ResolveKeepsOutcome,
    /// A takeover by an invocation without a request id does not test the lease.
    NamelessIsUnfenced,
    /// An extension after the lease expired is refused.
    LateExtensionRefused,
    /// An extension keeps the expiry.
    ExtensionKeepsExpiry,
    /// An extension does not move the expiry to an earlier time.
    ExtensionKeepsLaterExpiry,
    /// An extension keeps the lease.
    ExtensionKeepsLease,
    /// An extension counts as another attempt.
    ExtensionCounts,
    /// An extension loses the request id.
    ExtensionLosesRequestId,
    /// An extension compares the leases as texts.
    LeasesAreTexts,
    /// An extension compares the leases as 64-bit floats.
    LeasesAreFloats,
    /// An extension compares the leases as signed integers.
    LeasesAreSigned,
    /// The numbers of a version are compared as 64-bit floats.
    VersionsAreFloats,
    /// A conclusion that saw a version is applied although the record is absent.
    ConclusionTakesAbsent,
    /// A conclusion whose outcome is omitted does not test the generation.
    OmittedConclusionIsUnfenced,
    /// A conclusion by an invocation without a request id keeps the old request id.
    ConclusionKeepsRequestId,
    /// A conclusion keeps the old record's fingerprint.
    ConclusionKeepsFingerprint,
    /// A conclusion keeps the old record's attempt.
    ConclusionKeepsAttempt,
    /// A conclusion keeps the time of the old lock.
    ConclusionKeepsLock,
    /// A conclusion to FAILED is stored as COMPLETED.
    ConclusionIsCompletion,
    /// A conclusion without an outcome, or with an omitted one, keeps the old outcome.
    ConclusionKeepsOutcome,
    /// A conclusion whose record is STARTED loses the lease, so the record counts as released.
    ConclusionLosesLease,
    /// A conclusion keeps the old expiry.
    ConclusionKeepsExpiry,
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
    /// A takeover without a request id keeps the old request id.
    TakeOverKeepsRequestId,
    /// A takeover overwrites the fingerprint.
    TakeOverWritesFingerprint,
    /// A reclaim keeps the old outcome. If a later outcome is omitted, the record shows the old one.
    ReclaimLeavesOutcome,
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
    /// A takeover without an expiry keeps the old expiry.
    TakeOverKeepsExpiry,
    /// An extension without an expiry keeps the old expiry.
    ExtensionOnlyMovesExpiry,
    /// A release keeps the expiry.
    ReleaseKeepsExpiry,
    /// A takeover keeps the mark that an earlier attempt was interrupted.
    TakeOverKeepsInterrupted,
    /// An extension forgets that an earlier attempt was interrupted.
    ExtensionForgetsInterrupted,
    /// A conclusion does not write whether an earlier attempt was interrupted.
    ConclusionKeepsInterrupted,
    /// A release does not write whether an attempt was interrupted.
    ReleaseKeepsInterrupted,
    /// A release can set the mark that an attempt was interrupted, but never clears it.
    ReleaseOnlySetsInterrupted,
    /// A completion or a failure forgets that an earlier attempt was interrupted.
    SettlementForgetsInterrupted,
    /// A release stores another expiry than requested.
    ReleaseMovesExpiry,
    /// A release keeps the lease, so that the record still counts as STARTED.
    ReleaseKeepsLease,
    /// A settlement keeps the old expiry.
    SettlementKeepsExpiry,
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

/// One condition of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The condition of a claim: the record is absent.
    ClaimAbsent,
    /// The condition of a reclaim on this field.
    Reclaim(Field),
    /// The condition of a takeover on this field.
    TakeOver(Field),
    /// The condition of a settlement on this field.
    Settle(Field),
    /// The condition of an extension on this field.
    Extend(Field),
    /// The condition of a conclusion that saw no record: the record is absent.
    ConcludeAbsent,
    /// The condition of a conclusion on this field.
    Conclude(Field),
    /// The condition of an operator's write on this field.
    Resolve(Field),
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
    ExpiresAt,
    Interrupted,
    RequestId,
}
