//! The scenarios: each is a delivery and the record before it. Together they reach every call of the protocol.

use lambda_idempotency_rehearsal::wire::{
    HttpWay::{self, CutAfter, CutBefore, ErrorBefore},
    Meaning::{self, Claim, Complete, Fail, Look, PartRead, PartWritten, Reclaim, Release, TakeOver},
};

use super::way::Medium;

/// The table's record before the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prior {
    /// No record.
    Absent,
    /// Another delivery's claim with a live lease.
    Live,
    /// Another delivery's claim whose lease has ended.
    Stale,
    /// Another delivery's claim whose lease and expiry have passed.
    StaleAndExpired,
    /// An outcome in the record.
    Completed,
    /// An outcome in a chunk.
    CompletedInParts,
    /// An outcome whose response wasn't kept.
    NotRetained,
    /// A permanent failure.
    Failed,
    /// An outcome that has expired.
    Expired,
    /// A released key.
    Released,
}

/// The handler's behaviour in the delivery with the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    Succeeds,
    Fails,
    Panics,
}

/// The record that a rival leaves. The rival writes right before a certain call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rival {
    /// The rival's claim, which isn't settled yet.
    AtWork,
    /// The rival's outcome, in the record.
    Completes,
    /// The rival's outcome, in a chunk.
    CompletesInParts,
    /// The rival's permanent failure.
    Fails,
    /// A released key.
    Releases,
    /// No record, as if the sweeper had removed it.
    Gone,
}

/// The size of the handler's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Fits into the record.
    Small,
    /// Fits into one chunk.
    Large,
    /// Needs two chunks.
    Huge,
}

/// The answer to the delivery if only the scenario's own faults happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    /// The response of the delivery's own handler.
    Own,
    /// The error or panic of the delivery's own handler.
    OwnFailure,
    /// The outcome that was recorded before.
    Prior,
    /// The outcome that the rival left.
    Rival,
    InProgress,
    Mismatch,
    OutcomeUnknown,
    NotRetained,
    /// The answer depends on the machine's speed.
    Any,
}

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) prior: Prior,
    pub(super) handler: Handler,
    pub(super) size: Size,
    pub(super) at_most_once: bool,
    pub(super) records_errors: bool,
    /// Whether the request differs from the request that created the record.
    pub(super) is_another_request: bool,
    /// Whether the invocation's deadline is only one attempt's timeout away.
    pub(super) is_short_of_time: bool,
    pub(super) rival: Option<(Meaning, Rival)>,
    /// The scenario's own faults, by request number. They make the library reach the calls under test.
    pub(super) lead: &'static [(usize, HttpWay)],
    /// The requests of the delivery if only the scenario's own faults happen, and the SDK doesn't retry.
    pub(super) requests: &'static [Meaning],
    pub(super) baseline: Baseline,
}

impl Scenario {
    /// Whether the scenario is possible over this medium. PostgreSQL and Redis keep a response of any size in the
    /// record, without chunks.
    pub(super) fn is_for(&self, medium: Medium) -> bool {
        let in_parts = self.size != Size::Small
            || self.prior == Prior::CompletedInParts
            || self.rival.is_some_and(|(_, rival)| rival == Rival::CompletesInParts);
        medium == Medium::Http || !in_parts
    }

    /// Whether the scenario's messages are so large that they need longer timeouts.
    pub(super) fn is_heavy(&self) -> bool {
        self.size == Size::Huge
    }
}

const PLAIN: Scenario = Scenario {
    name: "",
    prior: Prior::Absent,
    handler: Handler::Succeeds,
    size: Size::Small,
    at_most_once: false,
    records_errors: false,
    is_another_request: false,
    is_short_of_time: false,
    rival: None,
    lead: &[],
    requests: &[Claim],
    baseline: Baseline::Own,
};
const FIRST: Scenario = Scenario { name: "first run", requests: &[Claim, Complete], ..PLAIN };
const FAILING: Scenario = Scenario {
    name: "the handler fails, and the key is released",
    handler: Handler::Fails,
    requests: &[Claim, Release],
    baseline: Baseline::OwnFailure,
    ..PLAIN
};
const FAILING_FOR_GOOD: Scenario = Scenario {
    name: "the handler fails permanently",
    records_errors: true,
    requests: &[Claim, Fail],
    ..FAILING
};
const LARGE: Scenario = Scenario {
    name: "a response in a chunk",
    size: Size::Large,
    requests: &[Claim, PartWritten, Complete],
    ..PLAIN
};
const RECLAIM: Scenario = Scenario {
    name: "a released key",
    prior: Prior::Released,
    requests: &[Claim, Reclaim, Complete],
    ..PLAIN
};
const TAKEOVER: Scenario =
    Scenario { name: "a stale claim", prior: Prior::Stale, requests: &[Claim, TakeOver, Complete], ..PLAIN };
const FENCED: Scenario = Scenario {
    name: "fenced by a successor that completed",
    rival: Some((Complete, Rival::Completes)),
    requests: &[Claim, Complete],
    baseline: Baseline::Rival,
    ..PLAIN
};

/// The scenario of the runs with a long fault.
pub(super) const LONG: Scenario = Scenario { name: "a long fault during the settlement", ..FIRST };

/// Every scenario with faults on single requests.
pub(super) const ALL: &[Scenario] = &[
    FIRST,
    FAILING,
    FAILING_FOR_GOOD,
    LARGE,
    RECLAIM,
    TAKEOVER,
    FENCED,
    // Other handlers.
    Scenario { name: "the handler panics, and the key is released", handler: Handler::Panics, ..FAILING },
    Scenario {
        name: "the handler panics, recorded as a failure",
        handler: Handler::Panics,
        ..FAILING_FOR_GOOD
    },
    Scenario {
        name: "a response in two chunks",
        size: Size::Huge,
        requests: &[Claim, PartWritten, PartWritten, Complete],
        ..PLAIN
    },
    Scenario { name: "short of time", is_short_of_time: true, baseline: Baseline::Any, ..FIRST },
    // A record exists already.
    Scenario { name: "a duplicate", prior: Prior::Completed, baseline: Baseline::Prior, ..PLAIN },
    Scenario {
        name: "a duplicate, with the response in a chunk",
        prior: Prior::CompletedInParts,
        requests: &[Claim, PartRead],
        baseline: Baseline::Prior,
        ..PLAIN
    },
    Scenario {
        name: "a duplicate, whose response wasn't kept",
        prior: Prior::NotRetained,
        baseline: Baseline::NotRetained,
        ..PLAIN
    },
    Scenario { name: "a duplicate of a failure", prior: Prior::Failed, baseline: Baseline::Prior, ..PLAIN },
    Scenario { name: "a duplicate in progress", prior: Prior::Live, baseline: Baseline::InProgress, ..PLAIN },
    Scenario {
        name: "another request, same key, after a completion",
        prior: Prior::Completed,
        is_another_request: true,
        baseline: Baseline::Mismatch,
        ..PLAIN
    },
    Scenario {
        name: "another request, same key, during a claim",
        prior: Prior::Live,
        is_another_request: true,
        baseline: Baseline::Mismatch,
        ..PLAIN
    },
    Scenario { name: "another request, same key, after a release", is_another_request: true, ..RECLAIM },
    Scenario { name: "an expired outcome", prior: Prior::Expired, ..RECLAIM },
    Scenario { name: "a claim both stale and expired", prior: Prior::StaleAndExpired, ..TAKEOVER },
    Scenario {
        name: "a stale claim, and the handler fails",
        requests: &[Claim, TakeOver, Release],
        prior: Prior::Stale,
        ..FAILING
    },
    // At most once.
    Scenario { name: "at most once", at_most_once: true, ..FIRST },
    Scenario {
        name: "at most once, the handler fails",
        at_most_once: true,
        requests: &[Claim, Fail],
        ..FAILING
    },
    Scenario {
        name: "at most once, the handler panics",
        at_most_once: true,
        handler: Handler::Panics,
        requests: &[Claim, Fail],
        ..FAILING
    },
    Scenario {
        name: "at most once, a stale claim",
        at_most_once: true,
        prior: Prior::Stale,
        baseline: Baseline::OutcomeUnknown,
        ..PLAIN
    },
    Scenario { name: "at most once, a released key", at_most_once: true, ..RECLAIM },
    Scenario {
        name: "at most once, fenced by a running successor",
        at_most_once: true,
        rival: Some((Complete, Rival::AtWork)),
        baseline: Baseline::InProgress,
        ..FENCED
    },
    // A rival writes before the settlement.
    Scenario {
        name: "fenced by a successor whose response is in a chunk",
        rival: Some((Complete, Rival::CompletesInParts)),
        requests: &[Claim, Complete, PartRead],
        ..FENCED
    },
    Scenario { name: "fenced by a successor that failed", rival: Some((Complete, Rival::Fails)), ..FENCED },
    Scenario {
        name: "fenced by a running successor",
        rival: Some((Complete, Rival::AtWork)),
        baseline: Baseline::InProgress,
        ..FENCED
    },
    Scenario {
        name: "fenced by a successor that released the key",
        rival: Some((Complete, Rival::Releases)),
        requests: &[Claim, Complete, Reclaim, Complete],
        baseline: Baseline::Own,
        ..FENCED
    },
    // The refusal has no item, as from a server that never sends one, so the store reads the record.
    Scenario {
        name: "the record is gone at the completion",
        rival: Some((Complete, Rival::Gone)),
        requests: &[Claim, Complete, Look, Claim, Complete],
        baseline: Baseline::Own,
        ..FENCED
    },
    Scenario {
        name: "the record is gone at the completion, with the response in a chunk",
        rival: Some((Complete, Rival::Gone)),
        requests: &[Claim, PartWritten, Complete, Look, Claim, Complete],
        ..LARGE
    },
    Scenario {
        name: "a permanent failure, fenced by a successor that completed",
        rival: Some((Fail, Rival::Completes)),
        baseline: Baseline::Rival,
        ..FAILING_FOR_GOOD
    },
    Scenario {
        name: "a permanent failure, and the record is gone",
        rival: Some((Fail, Rival::Gone)),
        requests: &[Claim, Fail, Look, Claim, Fail],
        ..FAILING_FOR_GOOD
    },
    Scenario { name: "a release, fenced by a successor", rival: Some((Release, Rival::AtWork)), ..FAILING },
    // A rival writes before the compare-and-set.
    Scenario {
        name: "a reclaim lost to a running delivery",
        rival: Some((Reclaim, Rival::AtWork)),
        requests: &[Claim, Reclaim],
        baseline: Baseline::InProgress,
        ..RECLAIM
    },
    Scenario {
        name: "a reclaim lost to a delivery that released the key",
        rival: Some((Reclaim, Rival::Releases)),
        requests: &[Claim, Reclaim, Reclaim, Complete],
        ..RECLAIM
    },
    Scenario {
        name: "the record is gone at the reclaim",
        rival: Some((Reclaim, Rival::Gone)),
        requests: &[Claim, Reclaim, Look, Claim, Complete],
        ..RECLAIM
    },
    Scenario {
        name: "a takeover lost to a delivery that completed",
        rival: Some((TakeOver, Rival::Completes)),
        requests: &[Claim, TakeOver],
        baseline: Baseline::Rival,
        ..TAKEOVER
    },
    Scenario {
        name: "the record is gone at the takeover",
        rival: Some((TakeOver, Rival::Gone)),
        requests: &[Claim, TakeOver, Look, Claim, Complete],
        ..TAKEOVER
    },
    // The fault in `lead` makes the library read the record.
    Scenario {
        name: "a claim whose answer is lost",
        lead: &[(0, CutAfter)],
        requests: &[Claim, Look, Complete],
        ..FIRST
    },
    Scenario {
        name: "a claim that wasn't applied",
        lead: &[(0, CutBefore)],
        requests: &[Claim, Look, Claim, Complete],
        ..FIRST
    },
    Scenario {
        name: "a reclaim whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, Reclaim, Look, Complete],
        ..RECLAIM
    },
    Scenario {
        name: "a takeover whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, TakeOver, Look, Complete],
        ..TAKEOVER
    },
    Scenario {
        name: "a completion whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, Complete, Look],
        ..FIRST
    },
    Scenario {
        name: "a completion that wasn't applied",
        lead: &[(1, ErrorBefore)],
        requests: &[Claim, Complete, Look, Complete],
        ..FIRST
    },
    Scenario {
        name: "a completion whose answer is lost, with the response in a chunk",
        lead: &[(2, CutAfter)],
        requests: &[Claim, PartWritten, Complete, Look],
        ..LARGE
    },
    Scenario {
        name: "a permanent failure whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, Fail, Look],
        ..FAILING_FOR_GOOD
    },
    Scenario {
        name: "a release whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, Release, Look],
        ..FAILING
    },
    Scenario {
        name: "at most once, a completion whose answer is lost",
        lead: &[(1, CutAfter)],
        requests: &[Claim, Complete, Look],
        at_most_once: true,
        ..FIRST
    },
];
