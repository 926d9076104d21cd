//! The invariants, by name. Every transition of every exploration checks each one, except the time-dependent
//! ones where the clocks are further apart than the skew margin.

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

            /// Its short name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The property, as a sentence.
            pub const fn promise(self) -> &'static str {
                match self { $(Self::$variant => $promise,)* }
            }

            /// Whether it holds only while the clocks agree up to the skew margin.
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
        "a settled outcome is neither replaced, changed nor removed while it is live, but by an operator";
    OwnerSettles, false, "only the owner settles",
        "an outcome or a failure is stored only under the claim that still holds the key, owner and generation";
    OwnerReleases, false, "only the owner releases",
        "a key is given back only under the claim that still holds it, owner and generation";
    ClaimSeesVersion, false, "claims compare and set",
        "a claim, or an operator's write, replaces exactly the version of the record that it was decided on";
    GenerationsGrow, false, "generations grow",
        "a claim, or an operator's write, has a higher generation than the record that it replaces";
    StartsInOrder, true, "starts in order",
        "a handler starts under a higher generation than every handler before it";
    OwnRecognised, false, "own claim recognised",
        "an executor's own claim or settlement is never taken for another's";
    MismatchHarmless, false, "mismatch harmless",
        "a request that does not match a live record neither replays nor runs";
    ReplayTrue, false, "replay true",
        "a duplicate gets exactly what a handler of the same request, or an operator, recorded";
    ExpiredNotReplayed, false, "expired not replayed",
        "an outcome is not replayed after its expiry";
    GrantBeforeStart, false, "grant before start",
        "a handler starts only under a claim that is in the store's history, with its lease";
    StartInTime, false, "starts in time",
        "nothing is claimed, and no handler starts, when no time is left";
    BecomesClaimable, false, "becomes claimable",
        "a released key is claimable at once, a lock (at most once: answered as unknown) and an outcome a millisecond after its lease, or its expiry, and the skew margin";
    LeaseBounded, false, "lease bounded",
        "no lease is longer than the executor's own time";
    ExpiryPromised, false, "expiry as promised",
        "a lock stays for a day or the retention beyond its lease, an outcome for the retention";
    AtMostOnce, true, "at most once",
        "at most once: no second handler starts, unless the first, or an operator, said that nothing happened";
    UnresolvedKept, false, "unresolved claims kept",
        "at most once: a claim that is not settled is never removed, however old it is";
    GhostTold, true, "ghosts told",
        "who is told that nothing is claimed leaves no claim standing, then or later, unless the sweeper has removed what was in the way of a claim in flight; and who is told that one may stand, none for longer";
    RecordedIsStored, false, "recorded is stored",
        "what is answered as recorded was in the store";
    VerdictKept, false, "verdict kept",
        "what is stored is what the handler said";
    OwnerNotRefused, false, "owner not refused",
        "an executor that still holds its claim can settle it, whatever the time";
    SettledPatiently, false, "settled patiently",
        "a settlement is given up because the store fails only after all its retries, or when its time is over";
    ResponseKept, false, "response kept",
        "an outcome is stored without its response only where the store will never take it";
    DoubtLookedInto, false, "doubt looked into",
        "a doubtful answer is followed by a look at the record, while there is time";
    TakeoverTold, true, "takeover told",
        "a handler is told when an earlier one of the same operation was interrupted: it had started, and ended without an answer, or panicked";
    TakeoverTrue, true, "takeover true",
        "a handler is told so only if an earlier claim of the same operation was left standing, or its handler panicked";
    EffectsExactlyOnce, false, "effects exactly once",
        "a handler's own writes are made together with the record that says so and never without it, once while it counts, and the record never without them";
    DeniedStays, false, "denied stays denied",
        "writes of a handler's that were told to be not made do not stand with a record that counts then, and are not made later";
    TokenKept, false, "tokens kept",
        "a transaction in doubt is sent again as the same request under its token, and any other has a token of its own";
    OwnerExtends, false, "only the owner extends",
        "a lease is extended only under the claim that still holds the key, and a handler whose claim does not is told to stop";
    LeasesGrow, false, "leases grow",
        "an extension makes a lease longer, and its expiry with it";
    MachineAnswers, false, "machine answers",
        "the machine has an action for whatever happens";
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
    /// None.
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

    /// Whether everything holds.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The broken invariants.
    pub fn iter(self) -> impl Iterator<Item = Invariant> {
        Invariant::ALL.iter().copied().filter(move |&invariant| self.0 & (1 << invariant as u64) != 0)
    }

    /// The set without the invariants that need clocks that agree.
    #[must_use]
    pub fn timeless(self) -> Self {
        self.dropping(Invariant::ALL.iter().filter(|invariant| invariant.needs_agreeing_clocks()))
    }

    /// The set without `exempt`.
    #[must_use]
    pub fn without(self, exempt: &[Invariant]) -> Self {
        self.dropping(exempt.iter())
    }

    fn dropping<'a>(self, which: impl Iterator<Item = &'a Invariant>) -> Self {
        if self.is_empty() {
            return self;
        }
        Self(which.fold(self.0, |left, &invariant| left & !(1 << invariant as u64)))
    }
}
