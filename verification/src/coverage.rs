//! The marks that an exploration must reach. Without these marks, an exploration might pass only because
//! nothing went wrong in it.

use std::fmt;

macro_rules! marks {
    ($($group:literal { $($variant:ident $what:literal)* })*) => {
        /// An event or a situation that a thorough exploration reaches.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mark {
            $($(#[doc = $what] $variant,)*)*
        }

        impl Mark {
            /// All marks, each with its group.
            pub const ALL: &[(Self, &'static str)] = &[$($((Self::$variant, $group),)*)*];

            /// The mark's description.
            pub const fn what(self) -> &'static str {
                match self { $($(Self::$variant => $what,)*)* }
            }
        }
    };
}

marks! {
    "transitions" {
        T1 "T1 applied: a key without a record claimed"
        T2Completed "T2 applied: an expired outcome reclaimed"
        T2Failed "T2 applied: an expired failure reclaimed"
        T2Released "T2 applied: a released key reclaimed"
        T2Lock "T2 applied: another request's lock, both stale and expired, reclaimed"
        T3 "T3 applied: a stale lock of the same request taken over"
        T4 "T4 applied: completed"
        T5 "T5 applied: failed permanently"
        T6 "T6 applied: released"
        ReleasedByPanic "T6 applied: released by a handler that panicked"
        T7 "T7 applied: a lease extended"
        T8 "T8 applied: completed, with the handler's own writes"
        ConcludedAbsent "concluded without a claim, where there was no record"
        ConcludedReleased "concluded without a claim, replacing a released key"
        ConcludedOutcome "concluded without a claim, replacing an expired outcome"
        ConcludedLock "concluded without a claim, replacing a stale lock"
        ConcludedAlone "concluded without a claim and without the handler's own writes"
        ConcludedFailure "a failure concluded without a claim"
    }
    "an operator" {
        Operates "an operator sends a write"
        ResolvedLock "an operator's write settles a stale lock"
        ResolvedSettled "an operator's write replaces a settled record"
        OperatorLost "an operator's write is refused: the record has changed"
        OperatorAsks "an operator reads the record after an ambiguous answer"
        OperatorRepeats "an operator sends an ambiguous write again, unchanged"
        OperatorRecognised "an operator recognises the write by its owner"
        OperatorFollows "an operator's write follows an extension of the lease"
        OperatorUnwritten "an operator learns that the record has changed, and that nothing was written"
        OperatorInDoubt "an operator doesn't learn whether the write was applied"
        OperatorReplayed "a late executor or a duplicate gets an operator's outcome"
    }
    "refused by the store" {
        RefusedT1 "T1 refused"
        RefusedT2 "T2 refused: the compare-and-set lost"
        RefusedT3 "T3 refused: the compare-and-set lost"
        RefusedSettle "a settlement refused"
        RefusedT7 "T7 refused"
        RefusedT8 "T8 refused"
        RefusedConclusion "a conclusion refused: the record exists or changed"
        Declined "a condition on the handler's own writes fails"
        Repeated "an applied transaction is sent again, and gets the same response"
        TokenForgotten "an applied transaction is sent again after the store forgot its token"
    }
    "faults" {
        AnswerLost "a write is applied, but its response is lost"
        NotApplied "a write is lost, and not applied"
        LateSent "an executor gives up on a write that's still in flight"
        LateClaimLands "a late claim arrives, and is applied"
        LateSettlementLands "a late settlement arrives, and is applied"
        LateExtensionLands "a late extension arrives, and is applied"
        LateTransactionLands "a late transaction arrives, and is applied"
        LateConclusionLands "a late conclusion arrives, and is applied"
        LateRefused "a late write arrives, and is refused"
        LateRepeated "a late transaction arrives, and was already applied"
        SdkRetry "the SDK retries a write that was applied"
        SdkRetryLate "the SDK retries a write that is still in flight"
        OwnRetryRefused "the SDK's retry is refused because the first attempt was applied"
        Throttled "a write is throttled: definitely not applied"
        Conflict "a write conflicts with another transaction: definitely not applied"
        ConflictDoubtful "a write conflicts with another transaction, after an ambiguous first attempt"
        Rejected "the store rejects the request as invalid"
        Unstorable "the store rejects this response permanently"
        Unreadable "the store holds an unreadable record"
        ReadFailed "a read fails"
        ReadUnreadable "a read finds an unreadable record"
        CrashSending "a crash before the handler starts, with a write not yet sent"
        CrashReading "a crash with a read not yet sent"
        CrashAnswered "a crash before the response is processed"
        CrashPausing "a crash during a pause"
        CrashRunning "a crash while the handler runs"
        CrashSettling "a crash while settling"
        CrashExtending "a crash while the handler runs, with an extension in flight"
        Killed "the platform kills the process at the deadline"
        CutOff "the library cuts the handler off"
        Frozen "a handler, frozen beyond its lease, thaws and ends"
        ThawedAnswer "a response processed after the lease expired"
        ClockJump "a clock jumps"
        ClocksApart "two executors run with different clocks"
        SweptOutcome "the sweeper removes a settled record"
        SweptLock "the sweeper removes a lock"
        SweptReleased "the sweeper removes a released key"
    }
    "deliveries" {
        Duplicate "a delivery while another is being processed"
        OtherRequest "a delivery of another request under the key"
        NoTime "a delivery whose deadline is now"
        Blind "a delivery whose handler runs without a claim, and without reading first"
    }
    "phases" {
        Claiming "a claim is sent"
        LookingForClaim "an ambiguous claim is looked up"
        GivingBack "an executor releases its claim, which it can't use or which may exist"
        Held "the handler runs"
        Settling "a settlement is sent"
        LookingForSettlement "an ambiguous settlement is looked up"
        Recording "a claim is sent only to record an outcome"
        LookingForRecording "an ambiguous claim to record an outcome is looked up"
        RecordingSettles "the outcome of a fenced run is settled under a new claim"
        Pausing "a pause before a claim is sent again"
        PausingToSettle "a pause before a settlement is sent again"
        PausingToLook "a pause before an ambiguous settlement is looked up again"
        PausingToCommit "a pause before a transaction, or conclusion, is sent again"
        PausingToRecord "a pause before a claim to record an outcome is sent again"
        Extending "an extension is sent"
        ExtendingAgain "an extension is sent on top of an earlier one whose response was lost"
        Looking "without a claim: the record is read"
        Committing "a transaction is sent"
        CommittingAgain "an ambiguous transaction is sent again, unchanged"
        LookingForCommit "an ambiguous transaction or conclusion is looked up"
        Concluding "a conclusion is sent"
        ConcludingAgain "an ambiguous conclusion is sent again, unchanged"
        RecordingCommits "the transaction of a fenced run is sent under a new claim"
    }
    "meanings of a record" {
        OwnByRefusal "an executor recognises its own claim in a refusal"
        OwnByRead "an executor recognises its own claim by reading"
        OwnSettled "an executor recognises its own settlement"
        TookOver "a handler learns that it took over"
        ReplayCompleted "an outcome replayed"
        ReplayFailed "a failure replayed"
        OpenAbsent "without a claim: no record"
        OpenLock "without a claim: a stale lock"
        OpenReleased "without a claim: a released key"
        OpenExpired "without a claim: an expired outcome"
        Extended "a lease extended, and the response received"
        ExtendedBefore "a lease found extended by an earlier extension whose response was lost"
        NotExtended "a lease that couldn't be extended"
        NotAskedFor "an extension that wouldn't make the lease longer isn't sent"
        Lost "an extension finds that the claim is lost"
        OwnCommitted "an executor recognises its own transaction or conclusion by its record"
        DeclinedCondition "declined: a condition on the handler's own writes failed"
        DeclinedConflict "declined: other transactions conflicted too often or too long"
        DeclinedRejected "declined: the store rejects the transaction as invalid"
        DeclinedUnstorable "declined: the store rejects the response permanently"
        DeclinedCorrupt "declined: the record is unreadable"
        DeclinedUnavailable "declined: the store couldn't be reached"
    }
    "refusals" {
        Mismatch "Mismatch"
        InProgressUntil "InProgress, with the time when the key becomes claimable"
        InProgressUnknown "InProgress, after too many lost compare-and-sets or a conflict"
        OutcomeUnknown "OutcomeUnknown"
        Unavailable "Unavailable"
        RefusedRejected "Rejected"
        Corrupt "Corrupt"
        NoTimeLeft "NoTimeLeft"
        Abandoned "Abandoned: the claim may exist, with the time when the key becomes claimable"
    }
    "results of settlements" {
        RecordedComplete "Recorded: completed"
        RecordedFail "Recorded: failed"
        RecordedRelease "Recorded: released"
        RecordedAnew "Recorded: under a new claim, after being fenced"
        Superseded "Superseded"
        FencedUntil "Fenced by a running successor, with the time when the key becomes claimable"
        FencedUnknown "Fenced by a running successor; it's unknown when the key becomes claimable"
        UnrecordedUnavailable "Unrecorded: the store couldn't be reached"
        UnrecordedMismatch "Unrecorded: the key is in use for another request"
        UnrecordedConflict "Unrecorded: other transactions conflicted too often"
        UnrecordedRejected "Unrecorded: the store rejects the settlement as invalid"
        UnrecordedCorrupt "Unrecorded: the record is unreadable"
        RecordedCommit "Recorded: completed, with the handler's own writes"
        NothingToConclude "Recorded: without a claim there's nothing to release"
        SupersededByOwn "Superseded by its own earlier transaction, which was declined but applied"
        RivalStands "Superseded: without a claim, another delivery recorded its outcome first"
        NotCommittedMismatch "NotCommitted: the key is in use for another request"
        NotCommittedInProgress "NotCommitted: another claim is live, or other deliveries won too often"
        NotCommittedUnknown "NotCommitted: an earlier claim ended without an outcome"
        NotCommittedUnavailable "NotCommitted: the store couldn't be reached"
        UnresolvedClaim "Unresolved, under a claim"
        UnresolvedOpen "Unresolved, without a claim"
        OmittedRecorded "an outcome recorded without its response"
    }
    "callers' transactions" {
        Locked "another caller's transaction holds the key"
        StillLocked "after a lost commit: the key is still locked"
        LookedAgain "after a lost commit: the key is free, and is looked at once more"
        RolledBack "after a lost commit: nothing was committed"
    }
    "interruptions" {
        T9 "T9 applied: the lease of an interrupted claim shortened"
        RefusedT9 "T9 refused: the compare-and-set lost"
        LateInterruptionLands "a late interruption arrives, and is applied"
        Interrupting "an interruption is sent"
        RecordedInterruption "Recorded: interrupted"
    }
    "questions" {
        AskedLock "a question is asked after a takeover of a lock"
        AskedReleased "a question is asked for a key that was released after an interruption"
        AskedOwn "a question is asked under a claim whose response was lost"
        WaitsForEffect "a lock whose lease has passed isn't taken over, since an effect may still arrive"
        AnsweredHappened "a question is answered: it happened"
        AnsweredFailed "a question is answered: it failed for good"
        AnsweredAbsent "a question is answered: it did not happen"
        AnsweredNotYet "a question is answered: not known yet"
        AnsweredNothing "a question fails or panics"
        RunsAfterAbsent "the handler runs after the answer that the effect did not happen"
        AbsentTooLate "after that answer, no time is left for the handler"
        AbsentOnce "after that answer, the handler may not run again under at-most-once"
        MarkedUnused "a claim that must ask isn't released although nothing ran: it's marked instead"
        RecordedFound "Recorded: found by asking"
        RecordedUnanswered "Recorded: the question has no answer"
        FoundAnew "an outcome that was found is recorded under a new claim"
        ReplayReconciled "an outcome that was found is replayed"
        CrashAsking "a crash while the question is asked"
        CutOffAsking "the library cuts the question off"
        KilledAsking "the platform kills the process while the question is asked"
        ExtendedAsking "a lease is extended while the question is asked"
    }
}

/// A set of marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage(u128, u128);

impl Coverage {
    /// No marks.
    pub const NONE: Self = Self(0, 0);

    /// Adds `mark`.
    pub fn reach(&mut self, mark: Mark) {
        match mark as u32 {
            low @ 0..128 => self.0 |= 1 << low,
            high => self.1 |= 1 << (high - 128),
        }
    }

    /// Adds all of `others`.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
        self.1 |= others.1;
    }

    /// Encodes the set as digits that [`from_hex`](Self::from_hex) reads.
    pub fn to_hex(self) -> String {
        format!("{:x}.{:x}", self.1, self.0)
    }

    /// Decodes the digits that [`to_hex`](Self::to_hex) wrote.
    pub fn from_hex(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('.')?;
        let number = |digits| u128::from_str_radix(digits, 16).ok();
        Some(Self(number(low)?, number(high)?))
    }

    /// Whether `mark` was reached.
    pub fn has(self, mark: Mark) -> bool {
        match mark as u32 {
            low @ 0..128 => self.0 & (1 << low) != 0,
            high => self.1 & (1 << (high - 128)) != 0,
        }
    }

    /// The marks that weren't reached.
    pub fn missing(self) -> impl Iterator<Item = Mark> {
        Mark::ALL.iter().map(|&(mark, _)| mark).filter(move |&mark| !self.has(mark))
    }

    /// How many marks were reached.
    pub fn count(self) -> usize {
        (self.0.count_ones() + self.1.count_ones()) as usize
    }
}

impl fmt::Display for Coverage {
    /// Prints `reached/all`, then the missing marks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count(), Mark::ALL.len())?;
        for mark in self.missing() {
            write!(f, "\n  missing: {}", mark.what())?;
        }
        Ok(())
    }
}
