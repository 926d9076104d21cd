//! What can be wrong with the faulty store.

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// One condition is not tested.
    Untested(Condition),
    /// One condition is tested as "not older" instead of "the same".
    NotOlder(Condition),
    /// A condition that is none is tested.
    Overtested(Condition),
    /// A settlement whose outcome is omitted does not test the generation.
    OmittedIsUnfenced,
    /// A settlement whose outcome is in parts does not test the owner.
    PartsAreUnfenced,
    /// An operator's write keeps the owner.
    ResolveKeepsOwner,
    /// An operator's write keeps the generation.
    ResolveKeepsGeneration,
    /// An operator's release leaves the outcome that was there.
    ResolveKeepsOutcome,
    /// A takeover by an invocation without a request id does not test the lease.
    NamelessIsUnfenced,
    /// An extension after the end of the lease is refused.
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
    /// A conclusion of a version that was seen is made where there is none.
    ConclusionTakesAbsent,
    /// A conclusion whose outcome is omitted does not test the generation.
    OmittedConclusionIsUnfenced,
    /// A conclusion by an invocation without a request id keeps the old one.
    ConclusionKeepsRequestId,
    /// A conclusion keeps the old record's fingerprint.
    ConclusionKeepsFingerprint,
    /// A conclusion counts the old record's attempts.
    ConclusionKeepsAttempt,
    /// A conclusion keeps the time of the old lock.
    ConclusionKeepsLock,
    /// A conclusion to FAILED is stored as COMPLETED.
    ConclusionIsCompletion,
    /// A conclusion keeps the old outcome where it has none itself, or omits it.
    ConclusionKeepsOutcome,
    /// A conclusion's lease is lost, and the record counts as given back.
    ConclusionLosesLease,
    /// A conclusion keeps the old expiry.
    ConclusionKeepsExpiry,
    /// The condition is tested, and the write is made a little later.
    NotAtomic,
    /// A refused write is made all the same.
    RefusedIsMade,
    /// A refused write overwrites the request id.
    RefusedTouches,
    /// A refusal shows the version before the one that is there.
    RefusedShowsOld,
    /// A refusal shows nothing.
    RefusedShowsNothing,
    /// A write that was made is answered as refused.
    AppliedIsRefused,
    /// A write that is refused is an error.
    RefusedIsError,
    /// A read shows the version before the one that is there.
    ReadsLag,
    /// A read shows a record that has expired as absent.
    ExpiredReadsAbsent,
    /// A record that has expired does not refuse a claim.
    ExpiredIsAbsent,
    /// A STARTED record whose lease has run out does not refuse a claim.
    StaleIsAbsent,
    /// A settlement after the end of the lease is refused.
    LateSettlementRefused,
    /// The field is not kept.
    Lost(Field),
    /// An empty request id is not kept.
    EmptyRequestIdLost,
    /// Numbers go through a 64-bit float.
    Floats,
    /// Numbers go through a signed 64-bit integer.
    Signed,
    /// The lease is kept in seconds.
    LeaseInSeconds,
    /// An outcome over 16 KB loses its end.
    OutcomeCut,
    /// An empty response is kept as omitted.
    EmptyIsOmitted,
    /// A failure is stored as a completion.
    FailureIsCompletion,
    /// A takeover keeps the request id where the new invocation has none.
    TakeOverKeepsRequestId,
    /// A takeover writes the fingerprint.
    TakeOverWritesFingerprint,
    /// A reclaim keeps the old outcome's place, which the next settlement shows where it is omitted.
    ReclaimLeavesOutcome,
    /// That no expiry was seen is not tested.
    NoExpiryMatchesAny,
    /// Any expiry that was seen is that of a record without one.
    AnyExpiryMatchesNone,
    /// That no expiry was seen is never true, as of `NULL = NULL`.
    NoExpiryMatchesNothing,
    /// No expiry and that of 1970 are the same.
    NoExpiryIsZero,
    /// No expiry is kept as the last one that there can be.
    NoExpiryIsTheLast,
    /// A read shows a record without an expiry as absent.
    NoExpiryReadsAbsent,
    /// A takeover without an expiry leaves the one that is there.
    TakeOverKeepsExpiry,
    /// An extension without an expiry leaves the one that is there.
    ExtensionOnlyMovesExpiry,
    /// A release keeps the expiry.
    ReleaseKeepsExpiry,
    /// A takeover leaves it standing that an earlier attempt was interrupted.
    TakeOverKeepsInterrupted,
    /// An extension forgets that an earlier attempt was interrupted.
    ExtensionForgetsInterrupted,
    /// A conclusion does not write whether an earlier attempt was interrupted.
    ConclusionKeepsInterrupted,
    /// A release does not write whether an attempt was interrupted.
    ReleaseKeepsInterrupted,
    /// A release writes that an attempt was interrupted, and never that none was.
    ReleaseOnlySetsInterrupted,
    /// A completion or a failure forgets that an earlier attempt was interrupted.
    SettlementForgetsInterrupted,
    /// A release's expiry is not the one that was asked for.
    ReleaseMovesExpiry,
    /// A release keeps the lease, so that the record still counts as STARTED.
    ReleaseKeepsLease,
    /// A settlement keeps the old expiry.
    SettlementKeepsExpiry,
    /// Keys are cut at 255 bytes.
    KeysCut,
    /// Keys are one if they differ in case alone.
    KeysFolded,
    /// Keys are one if they differ in blanks at the end alone.
    KeysTrimmed,
    /// Parts of two owners of a key are one.
    PartsOfOwnersMixed,
    /// Parts of two keys of an owner are one.
    PartsOfKeysMixed,
    /// A part that is missing is left out.
    PartsMissingLeftOut,
    /// A limit is not looked at.
    PartsUnlimited,
    /// The last byte is lost.
    PartsCut,
    /// No more than 4 MB can be written.
    PartsSmall,
    /// A part stands in the place of the record.
    PartsAreRecords,
    /// Completing the record removes its parts.
    PartsGoWithCompletion,
}

/// A condition of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    ClaimAbsent,
    Reclaim(Field),
    TakeOver(Field),
    Settle(Field),
    Extend(Field),
    /// That there is none, if none was seen.
    ConcludeAbsent,
    Conclude(Field),
    Resolve(Field),
}

/// A field of a record.
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
