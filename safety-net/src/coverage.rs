//! What must have happened somewhere, so that no exploration passes because nothing went wrong in it.

use std::fmt;

macro_rules! marks {
    ($($group:literal { $($variant:ident $what:literal)* })*) => {
        /// Something that a thorough exploration reaches.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mark {
            $($(#[doc = $what] $variant,)*)*
        }

        impl Mark {
            /// All of them, each with its group.
            pub const ALL: &[(Self, &'static str)] = &[$($((Self::$variant, $group),)*)*];

            /// What it is.
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
        T2Lock "T2 applied: a lock both stale and expired reclaimed"
        T3 "T3 applied: a stale lock taken over"
        T4 "T4 applied: completed"
        T5 "T5 applied: failed for good"
        T6 "T6 applied: released"
    }
    "an operator" {
        Operates "an operator sends a write"
        ResolvedLock "an operator's write settles a stale lock"
        ResolvedSettled "an operator's write replaces a settled record"
        OperatorLost "an operator's write is refused: the record has changed"
        OperatorReplayed "what an operator recorded is answered to a late executor, or replayed"
    }
    "refused by the store" {
        RefusedT1 "T1 refused"
        RefusedT2 "T2 refused: the compare-and-set lost"
        RefusedT3 "T3 refused: the compare-and-set lost"
        RefusedSettle "a settlement refused"
    }
    "faults" {
        AnswerLost "applied, but the answer was lost"
        NotApplied "not applied, and the answer was lost"
        LateSent "given up on, but still in flight"
        LateClaimLands "a claim in flight lands, and is applied"
        LateSettlementLands "a settlement in flight lands, and is applied"
        LateRefused "a write in flight lands, and is refused"
        SdkRetry "the SDK tries again a write that was applied"
        SdkRetryLate "the SDK tries again a write that is still in flight"
        OwnRetryRefused "the SDK's second attempt is refused by its first"
        Throttled "throttled: certainly not applied"
        Conflict "a transaction has the record"
        ConflictDoubtful "a transaction has the record, after a doubtful first attempt"
        Rejected "the store refuses the request as such"
        Unreadable "the store holds a record that cannot be read"
        ReadFailed "the read fails"
        ReadUnreadable "the read finds a record that cannot be read"
        CrashSending "a crash with a write not yet sent"
        CrashReading "a crash before the read"
        CrashAnswered "a crash before the answer is looked at"
        CrashPausing "a crash in a pause"
        CrashRunning "a crash while the handler runs"
        CrashSettling "a crash while settling"
        Killed "killed by the platform at the deadline"
        CutOff "the handler cut off by the engine"
        Frozen "frozen beyond the lease, and thawed"
        ThawedAnswer "an answer looked at after the lease has ended"
        ClockJump "a clock jumps"
        ClocksApart "two executors at work with different clocks"
        SweptOutcome "the sweeper removes a settled record"
        SweptLock "the sweeper removes a lock"
        SweptReleased "the sweeper removes a released key"
    }
    "deliveries" {
        Duplicate "a delivery while another is at work"
        OtherRequest "a delivery of another request under the key"
        NoTime "a delivery whose deadline is now"
    }
    "phases" {
        Claiming "a claim is with the store"
        LookingForClaim "a doubtful claim is looked for"
        GivingBack "an own claim without time left is given back"
        Held "the handler runs"
        Settling "a settlement is with the store"
        LookingForSettlement "a doubtful settlement is looked for"
        Recording "a claim is with the store only to record an outcome"
        LookingForRecording "a doubtful claim to record an outcome is looked for"
        RecordingSettles "the outcome of a fenced run is settled under a new claim"
        Pausing "a pause after a conflict"
    }
    "what a record meant" {
        OwnByRefusal "an own claim known again in a refusal"
        OwnByRead "an own claim known again by looking"
        OwnSettled "an own settlement known again"
        TookOver "a handler told that it took over"
        ReplayCompleted "an outcome replayed"
        ReplayFailed "a failure replayed"
    }
    "refusals" {
        Mismatch "Mismatch"
        InProgressUntil "InProgress, and until when"
        InProgressUnknown "InProgress, after losing too often"
        OutcomeUnknown "OutcomeUnknown"
        Unavailable "Unavailable"
        RefusedRejected "Rejected"
        Corrupt "Corrupt"
        NoTimeLeft "NoTimeLeft"
    }
    "ends" {
        RecordedComplete "Recorded: completed"
        RecordedFail "Recorded: failed"
        RecordedRelease "Recorded: released"
        RecordedAnew "Recorded: under a new claim, after being fenced"
        Superseded "Superseded"
        FencedUntil "Fenced by a successor at work"
        FencedUnknown "Fenced, and not known until when"
        UnrecordedUnavailable "Unrecorded: the store could not be asked"
        UnrecordedMismatch "Unrecorded: the key is in use for another request"
        UnrecordedConflict "Unrecorded: a transaction had the record too often"
        UnrecordedRejected "Unrecorded: the store refuses it as such"
        UnrecordedCorrupt "Unrecorded: the record cannot be read"
        OmittedRecorded "an outcome recorded without its response"
    }
}

/// A set of marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage(u128);

impl Coverage {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// Adds `mark`.
    pub fn reach(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u32;
    }

    /// Adds all of `others`.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Whether `mark` was reached.
    pub fn has(self, mark: Mark) -> bool {
        self.0 & (1 << mark as u32) != 0
    }

    /// What was not reached.
    pub fn missing(self) -> impl Iterator<Item = Mark> {
        Mark::ALL.iter().map(|&(mark, _)| mark).filter(move |&mark| !self.has(mark))
    }

    /// How many marks were reached.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }
}

impl fmt::Display for Coverage {
    /// As `reached/all`, and what is missing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count(), Mark::ALL.len())?;
        for mark in self.missing() {
            write!(f, "\n  missing: {}", mark.what())?;
        }
        Ok(())
    }
}
