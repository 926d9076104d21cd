//! The invariants, by name. Every transition of every exploration is checked against each of them. If the
//! clocks are further apart than the skew margin, the invariants that depend on time are left out.

use std::fmt;

macro_rules! invariants {
    ($($variant:ident, $needs_clocks:literal, $name:literal, $promise:literal;)*) => {
        /// A property that must hold.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $(#[doc = $promise] $variant,)*
        }

        impl Invariant {
            /// All invariants.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The invariant's short name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The property, as a sentence.
            pub const fn promise(self) -> &'static str {
                match self { $(Self::$variant => $promise,)* }
            }

            /// Whether the invariant holds only while the clocks agree up to the skew margin.
            pub const fn needs_agreeing_clocks(self) -> bool {
                match self { $(Self::$variant => $needs_clocks,)* }
            }
        }
    };
}

invariants! {
    OneInsideLease, true, "one inside its lease",
        "at most one executor runs its handler inside its lease";
    PollInsideLease, false, "polled inside the lease",
        "a handler is polled only inside its lease";
    OutcomeKept, true, "outcome kept",
        "only an operator replaces, changes or removes a live outcome";
    OwnerSettles, false, "only the owner settles",
        "an outcome or a failure is stored only under the claim that still holds the key, by owner and generation";
    OwnerReleases, false, "only the owner releases",
        "a key is released only under the claim that still holds the key, by owner and generation";
    ClaimSeesVersion, false, "claims compare and set",
        "a claim, or an operator's write, replaces exactly the version of the record that its sender has seen";
    GenerationsGrow, false, "generations grow",
        "a claim, or an operator's write, has a higher generation than the record that it replaces";
    StartsInOrder, true, "starts in order",
        "a handler starts under a higher generation than every handler before it";
    OwnRecognised, false, "own claim recognised",
        "an executor never mistakes its own claim or settlement for another's";
    MismatchHarmless, false, "mismatch harmless",
        "a request that doesn't match a live record neither replays nor runs";
    ReplayTrue, false, "replay true",
        "a duplicate gets exactly what a handler of the same request, or an operator, recorded";
    ExpiredNotReplayed, false, "expired not replayed",
        "an outcome isn't replayed after its expiry";
    GrantBeforeStart, false, "grant before start",
        "a handler starts only under a claim that the store has applied, and with the lease of that claim";
    StartInTime, false, "starts in time",
        "without time left, nothing is claimed and no handler starts";
    BecomesClaimable, false, "becomes claimable",
        "once the skew margin and 1 ms have passed, an expired outcome, a lock whose lease has ended (at most once: reported as unknown; with a reconciler: once an effect has arrived) and a released key are claimable";
    LeaseBounded, false, "lease bounded",
        "no lease ends later than the executor's plan allows";
    ExpiryPromised, false, "expiry as promised",
        "a lock is kept for the retention, and at least a day, beyond its lease; an outcome is kept for the retention";
    AtMostOnce, true, "at most once",
        "after a handler that runs at most once, no handler starts, not even one that runs at least once, unless the first, or an operator, said that nothing happened, or the remote system did and the user lets the handler run again then";
    UnresolvedKept, false, "unresolved claims kept",
        "at most once: an unsettled claim is never removed";
    GhostTold, true, "unused claims reported",
        "a delivery that reports no claim leaves no claim behind, then or later, unless the sweeper removed the record that blocked its claim in flight; a delivery that reports a possible claim leaves it for no longer than reported";
    RecordedIsStored, false, "recorded is stored",
        "a settlement that is reported as recorded was in the store";
    VerdictKept, false, "handler's outcome kept",
        "the stored outcome is the handler's";
    OwnerNotRefused, false, "owner not refused",
        "the store applies a put whose condition holds: an executor that still holds its claim can settle it at any time";
    SettledPatiently, false, "settlements retried",
        "an executor gives up a settlement on a failing store only after all retries, or when its time is up";
    ResponseKept, false, "response kept",
        "an outcome is stored without its response only if the store rejects the response permanently";
    DoubtLookedInto, false, "doubt resolved",
        "an ambiguous write is resolved by reading the record, while there's time";
    TakeoverTold, true, "interruption reported",
        "a handler learns of it when an earlier handler of the same operation was interrupted: that handler started, and then panicked or settled nothing";
    TakeoverTrue, true, "interruption true",
        "a handler learns of an interruption only if an earlier claim of the same operation was left unsettled, or its handler panicked";
    EffectsExactlyOnce, false, "effects exactly once",
        "a handler's own writes and the record of its outcome are applied in one transaction, and only once while the record is live";
    DeniedStays, false, "denied writes stay denied",
        "when a handler's own writes are reported as not applied, they aren't in the store with a live record, and are never applied later";
    TokenKept, false, "tokens kept",
        "an ambiguous transaction is sent again unchanged, with the same token, and every different transaction has a different token";
    OwnerExtends, false, "only the owner extends",
        "a lease is extended only under the claim that still holds the key, and a handler that lost its claim is stopped";
    ClaimKept, false, "claim kept",
        "a settlement or an extension keeps the claim's attempt, fingerprint, lock time and request id";
    LeasesGrow, false, "leases grow",
        "an extension makes the lease longer, and never moves the record's expiry back";
    OwnerInterrupts, false, "only the owner interrupts",
        "a claim is marked as unanswered only under the claim that still holds the key, when no handler runs under it any more, and under at-most-once only with a reconciler; apart from its lease and its expiry, nothing else of the record changes";
    AskedInTime, true, "asked in time",
        "no question is asked while the effect of an earlier attempt may still arrive";
    AskedFirst, true, "asked first",
        "after an attempt that ended without an answer, no handler of an operation with a reconciler starts unless the question under its own claim was answered \"did not happen\"";
    AskedWithCause, true, "asked with cause",
        "a question is asked only if an earlier claim of the same operation was left unsettled, or its handler ended without an answer";
    OneEffect, true, "one effect",
        "no handler of an operation with a reconciler starts while an earlier attempt has had its effect, or may still have it";
    UnansweredKept, false, "unanswered claims kept",
        "a question without an answer never frees the key: the record stays STARTED and marked, until the time that the answer said";
    ReconciledTrue, false, "reconciled true",
        "an outcome that a question found is marked as reconciled, in the record and in every replay, and no other outcome is";
    OperatorTold, false, "operator told the truth",
        "an operator who learns that the write was applied has written, and one who learns that nothing was written never has, then or later";
    MachineAnswers, false, "machine answers",
        "the protocol has an action for every event";
    Terminates, false, "terminates",
        "every delivery ends within a fixed number of store calls";
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of broken invariants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flaws(u64);

impl Flaws {
    /// No broken invariants.
    pub const NONE: Self = Self(0);

    /// Adds `invariant` if it doesn't hold.
    pub fn unless(&mut self, holds: bool, invariant: Invariant) {
        if !holds {
            self.0 |= 1 << invariant as u64;
        }
    }

    /// Adds all of `others`.
    pub fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Whether no invariant is broken.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The broken invariants.
    pub fn iter(self) -> impl Iterator<Item = Invariant> {
        Invariant::ALL.iter().copied().filter(move |&invariant| self.0 & (1 << invariant as u64) != 0)
    }

    /// The set without the invariants that hold only while the clocks agree.
    #[must_use]
    pub fn timeless(self) -> Self {
        self.dropping(Invariant::ALL.iter().filter(|invariant| invariant.needs_agreeing_clocks()))
    }

    /// The set without `exempt`.
    #[must_use]
    pub fn without(self, exempt: &[Invariant]) -> Self {
        self.dropping(exempt.iter())
    }

    /// The part of the set that's in `these`.
    #[must_use]
    pub fn only(self, these: &[Invariant]) -> Self {
        Self(these.iter().fold(0, |kept, &invariant| kept | self.0 & 1 << invariant as u64))
    }

    fn dropping<'a>(self, which: impl Iterator<Item = &'a Invariant>) -> Self {
        if self.is_empty() {
            return self;
        }
        Self(which.fold(self.0, |left, &invariant| left & !(1 << invariant as u64)))
    }
}
