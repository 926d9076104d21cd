//! The points of a run at which a process can die, freeze or lose an answer. The kit, the rehearsal and the
//! verification suite share this list.

use std::fmt;

use lambda_idempotency_core::store::{Put, Status};

/// A write to the store, by its purpose. [`guide::protocol`](lambda_idempotency::guide::protocol) describes T1 to T7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// T1: claims a new key.
    Claim,
    /// T2: claims a key whose record has expired or was released.
    Reclaim,
    /// T3: takes over a stale claim.
    TakeOver,
    /// T4: stores the outcome.
    Complete,
    /// T5: stores a permanent failure.
    Fail,
    /// T6: releases the key.
    Release,
    /// T7: extends the lease. T9 counts as this too: it ends an interrupted claim's lease soon.
    Extend,
    /// Stores the settled record of a run without a claim, together with the handler's own writes if there are any.
    Conclude,
}

impl Call {
    /// Returns the purpose of `put`. An operator's put counts as the settlement that it writes.
    pub fn of(put: &Put) -> Self {
        match (put, put.record().status()) {
            (Put::Create(_), Status::Started) => Self::Claim,
            (Put::Mine { .. }, Status::Started) => Self::Extend,
            (Put::Replace { seen, new }, Status::Started) if new.is_claim_of(seen) => Self::Extend,
            (Put::Replace { .. }, Status::Started) if put.begins_anew() => Self::Reclaim,
            (Put::Replace { .. }, Status::Started) => Self::TakeOver,
            _ if put.begins_anew() => Self::Conclude,
            (_, Status::Completed) => Self::Complete,
            (_, Status::Failed) => Self::Fail,
            (_, Status::Released) => Self::Release,
        }
    }

    /// Whether this write claims a key.
    pub const fn is_claim(self) -> bool {
        matches!(self, Self::Claim | Self::Reclaim | Self::TakeOver)
    }

    /// Whether this write ends a claim.
    pub const fn is_settlement(self) -> bool {
        matches!(self, Self::Complete | Self::Fail | Self::Release)
    }

    /// Describes the write as a part of a sentence.
    pub(super) const fn described(self) -> &'static str {
        match self {
            Self::Claim => "its claim",
            Self::Reclaim => "its new claim",
            Self::TakeOver => "its takeover",
            Self::Complete => "its completion",
            Self::Fail => "the record of its failure",
            Self::Release => "its release",
            Self::Extend => "the extension of its lease",
            Self::Conclude => "its outcome",
        }
    }
}

/// A point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The event has arrived. The library hasn't seen it.
    Entered,
    /// The library has decided on this write, and has sent nothing.
    Before(Call),
    /// This write has been applied. The library doesn't know that yet.
    After(Call),
    /// The handler runs, and its effect hasn't happened.
    BeforeEffect,
    /// The effect has happened.
    AfterEffect,
    /// The library has answered, and the response hasn't been posted.
    Answered,
}

impl Point {
    /// The points of a run with a claim, in order, except those of T5 and T7. The verification suite kills processes at
    /// each of these points.
    pub const ALL: [Self; 14] = [
        Self::Entered,
        Self::Before(Call::Claim),
        Self::After(Call::Claim),
        Self::Before(Call::Reclaim),
        Self::After(Call::Reclaim),
        Self::Before(Call::TakeOver),
        Self::After(Call::TakeOver),
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::Before(Call::Complete),
        Self::After(Call::Complete),
        Self::Before(Call::Release),
        Self::After(Call::Release),
        Self::Answered,
    ];

    /// The points of a run with an effect but no claim.
    pub const CLAIM_FREE: [Self; 6] = [
        Self::Entered,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::Before(Call::Conclude),
        Self::After(Call::Conclude),
        Self::Answered,
    ];

    /// The points of a run that commits its effect and its record in one PostgreSQL transaction.
    pub const IN_TRANSACTION: [Self; 4] =
        [Self::Entered, Self::BeforeEffect, Self::AfterEffect, Self::Answered];

    /// Returns the point's name on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entered => "entered",
            Self::Before(Call::Claim) => "before_claim_sent",
            Self::After(Call::Claim) => "after_claim_applied",
            Self::Before(Call::Reclaim) => "before_reclaim_sent",
            Self::After(Call::Reclaim) => "after_reclaim_applied",
            Self::Before(Call::TakeOver) => "before_takeover_sent",
            Self::After(Call::TakeOver) => "after_takeover_applied",
            Self::BeforeEffect => "before_effect",
            Self::AfterEffect => "after_effect",
            Self::Before(Call::Complete) => "before_completion_sent",
            Self::After(Call::Complete) => "after_completion_applied",
            Self::Before(Call::Fail) => "before_failure_sent",
            Self::After(Call::Fail) => "after_failure_applied",
            Self::Before(Call::Release) => "before_release_sent",
            Self::After(Call::Release) => "after_release_applied",
            Self::Before(Call::Extend) => "before_extension_sent",
            Self::After(Call::Extend) => "after_extension_applied",
            Self::Before(Call::Conclude) => "before_conclusion_sent",
            Self::After(Call::Conclude) => "after_conclusion_applied",
            Self::Answered => "answered",
        }
    }

    /// Returns the point of [`ALL`](Self::ALL) or [`CLAIM_FREE`](Self::CLAIM_FREE) that has this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::CLAIM_FREE).find(|point| point.name() == name)
    }

    /// Whether the effect has happened at this point, but its completion isn't stored. If the process dies here, no
    /// protocol can prevent a second effect, unless the effect is in the completion's own transaction.
    pub const fn is_in_the_gap(self) -> bool {
        matches!(self, Self::AfterEffect | Self::Before(Call::Complete))
    }

    /// Describes the point as a part of a sentence.
    pub(super) fn described(self) -> String {
        match self {
            Self::Entered => "before the library saw the event".to_owned(),
            Self::Before(call) => format!("before {} was sent", call.described()),
            Self::After(call) => format!("after {} was applied", call.described()),
            Self::BeforeEffect => "before its effect".to_owned(),
            Self::AfterEffect => "after its effect".to_owned(),
            Self::Answered => "after it had answered".to_owned(),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_names_are_unique() {
        for point in Point::ALL.into_iter().chain(Point::CLAIM_FREE) {
            assert_eq!(Point::named(point.name()), Some(point));
        }
        assert_eq!(Point::named("nowhere"), None);
    }

    #[test]
    fn write_points_are_named_sent_or_applied() {
        use Call::{Claim, Complete, Conclude, Extend, Fail, Reclaim, Release, TakeOver};
        for call in [Claim, Reclaim, TakeOver, Complete, Fail, Release, Extend, Conclude] {
            assert!(Point::Before(call).name().ends_with("_sent"), "{call:?}");
            assert!(Point::After(call).name().ends_with("_applied"), "{call:?}");
        }
    }
}
