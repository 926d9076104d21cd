//! The names of the metrics, and the functions that report them through the `metrics` facade.

/// A number that the library reports through the [`metrics`](https://docs.rs/metrics) facade, to the recorder that
/// the function installs. Without the feature `metrics`, the library reports none.
///
/// No metric has labels: the recorder can add the function's name, and a label with the key would disclose the key.
///
/// ```
/// use lambda_idempotency::metrics::Metric;
///
/// assert_eq!(Metric::Fenced.name(), "idempotency_fenced");
/// assert!(Metric::ALL.contains(&Metric::ClaimLatency));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Metric {
    /// Counter: a key was claimed, so its handler runs; or a handler ran
    /// [optimistically](crate::Idempotency::optimistic) and wasn't cut off.
    Executed,
    /// Counter: a delivery claimed a key after an earlier attempt had ended without an answer. The delivery took over
    /// that attempt's stale claim, or reclaimed the key after a later attempt released it. It counts as
    /// [`Executed`](Self::Executed) too.
    Takeover,
    /// Counter: a [reconciler](crate::Operation::reconcile) found the outcome of an earlier attempt that had ended without
    /// an answer, and the handler didn't run. It counts as [`Takeover`](Self::Takeover) too.
    Reconciled,
    /// Counter: a reconciler didn't find out yet whether an earlier attempt had its effect.
    Unanswered,
    /// Counter: the answer to a claim was lost, and the record's owner showed that the claim had succeeded.
    ClaimRecovered,
    /// Counter: a duplicate was answered from the record.
    Replayed,
    /// Counter: the local cache answered without a request. It counts as [`Replayed`](Self::Replayed) or
    /// [`Mismatch`](Self::Mismatch) too.
    LocalCacheHit,
    /// Counter: a duplicate was refused, because another claim is live.
    InProgress,
    /// Counter: a key was reused for another request.
    Mismatch,
    /// Counter: a delivery was refused, because at most one run is allowed and an earlier run ended without an answer.
    OutcomeUnknown,
    /// Counter: a duplicate learned that the operation is done, but its response wasn't kept.
    NotRetained,
    /// Counter: a request had no key, but needs one.
    MissingKey,
    /// Counter: a request's key isn't valid.
    InvalidKey,
    /// Counter: a request had a key but no verified caller, which the layer requires.
    CallerMissing,
    /// Counter: a keyed request carried credentials, but its caller is unknown.
    CallerUnknown,
    /// Counter: the store failed before the claim, or an outcome couldn't be read from the store. Either nothing ran,
    /// or the handler ran without protection, which counts as [`Unprotected`](Self::Unprotected) too.
    StoreUnavailable,
    /// Counter: the invocation had too little time left to claim anything, and nothing ran.
    NoTimeLeft,
    /// Counter: a delivery was refused, because the record or its outcome was unreadable.
    Corrupt,
    /// Counter: a delivery was refused, because a request to the library or to the store was invalid.
    Invalid,
    /// Counter: an outcome was recorded, of a success or of a permanent failure.
    Recorded,
    /// Counter: a key was released, because its handler failed or never began.
    Released,
    /// Counter: an operator settled a record.
    Resolved,
    /// Counter: a run lost its claim. Another delivery took over after the lease had expired, an operator settled the
    /// record, or the record is gone or unreadable.
    Fenced,
    /// Counter: a handler ran, and its outcome isn't known to be stored.
    Unrecorded,
    /// Counter: an outcome was recorded without its response.
    ResponseOmitted,
    /// Counter: an attempt to commit a handler's writes failed, because a condition of the writes failed. That attempt
    /// applied neither the writes nor the outcome.
    Declined,
    /// Counter: the last attempt to commit a handler's writes failed for another reason than a condition, and applied
    /// neither the writes nor the outcome.
    NotCommitted,
    /// Counter: it's unknown whether a handler's writes and its outcome were applied.
    Unresolved,
    /// Counter: a claim's lease was extended.
    LeaseExtended,
    /// Counter: an extension of a claim's lease was tried, and isn't known to be applied.
    LeaseNotExtended,
    /// Counter: a claim was dropped without being settled, or its release isn't known to be applied.
    Abandoned,
    /// Counter: a handler was cut off, because its lease or its invocation was about to end, or its claim was lost.
    CutOff,
    /// Counter: a handler panicked.
    Panicked,
    /// Counter: a handler ran without protection, as the settings allow.
    Unprotected,
    /// Counter: a delivery wasn't protected, because the mode is `off` or `shadow`.
    NotEnforced,
    /// Counter: in shadow mode, `enforce` would have answered from the record.
    ShadowReplayed,
    /// Counter: in shadow mode, `enforce` would have answered from the record, and the handler's new answer differs
    /// from the recorded one. It counts as [`ShadowReplayed`](Self::ShadowReplayed) too.
    ShadowDiffered,
    /// Counter: in shadow mode, `enforce` would have refused, because another claim is live.
    ShadowInProgress,
    /// Counter: in shadow mode, `enforce` would have refused a key that was used for another request.
    ShadowMismatch,
    /// Counter: in shadow mode, `enforce` would have refused a request without a key.
    ShadowMissingKey,
    /// Counter: in shadow mode, `enforce` would have refused for another reason. The log event `shadow` names the
    /// reason.
    ShadowRefused,
    /// Counter: in shadow mode, `enforce` would have taken over a stale claim, and run the handler again.
    ShadowTakeover,
    /// Counter: in shadow mode, the store failed or was too slow, so it's unknown what `enforce` would have done.
    ShadowUnknown,
    /// Counter: every record of a batch was returned for redelivery. A batch isn't counted if other deliveries are
    /// processing all its records. If `fail_if_all_fail` is set, the invocation fails, so Lambda's `Errors` counts it
    /// too. Otherwise, `Errors` doesn't count it.
    AllFailed,
    /// Histogram, in milliseconds: how long claiming took, whether or not it succeeded.
    ClaimLatency,
    /// Histogram, in milliseconds: how long settling took, whether or not it succeeded.
    SettleLatency,
}

impl Metric {
    /// All metrics.
    pub const ALL: &[Self] = &[
        Self::Executed,
        Self::Takeover,
        Self::Reconciled,
        Self::Unanswered,
        Self::ClaimRecovered,
        Self::Replayed,
        Self::LocalCacheHit,
        Self::InProgress,
        Self::Mismatch,
        Self::OutcomeUnknown,
        Self::NotRetained,
        Self::MissingKey,
        Self::InvalidKey,
        Self::CallerMissing,
        Self::CallerUnknown,
        Self::StoreUnavailable,
        Self::NoTimeLeft,
        Self::Corrupt,
        Self::Invalid,
        Self::Recorded,
        Self::Released,
        Self::Resolved,
        Self::Fenced,
        Self::Unrecorded,
        Self::ResponseOmitted,
        Self::Declined,
        Self::NotCommitted,
        Self::Unresolved,
        Self::LeaseExtended,
        Self::LeaseNotExtended,
        Self::Abandoned,
        Self::CutOff,
        Self::Panicked,
        Self::Unprotected,
        Self::NotEnforced,
        Self::ShadowReplayed,
        Self::ShadowDiffered,
        Self::ShadowInProgress,
        Self::ShadowMismatch,
        Self::ShadowMissingKey,
        Self::ShadowRefused,
        Self::ShadowTakeover,
        Self::ShadowUnknown,
        Self::AllFailed,
        Self::ClaimLatency,
        Self::SettleLatency,
    ];

    /// The metric's name, stable across versions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Executed => "idempotency_executed",
            Self::Takeover => "idempotency_takeover",
            Self::Reconciled => "idempotency_reconciled",
            Self::Unanswered => "idempotency_unanswered",
            Self::ClaimRecovered => "idempotency_claim_recovered",
            Self::Replayed => "idempotency_replayed",
            Self::LocalCacheHit => "idempotency_local_cache_hit",
            Self::InProgress => "idempotency_in_progress",
            Self::Mismatch => "idempotency_mismatch",
            Self::OutcomeUnknown => "idempotency_outcome_unknown",
            Self::NotRetained => "idempotency_not_retained",
            Self::MissingKey => "idempotency_missing_key",
            Self::InvalidKey => "idempotency_invalid_key",
            Self::CallerMissing => "idempotency_caller_missing",
            Self::CallerUnknown => "idempotency_caller_unknown",
            Self::StoreUnavailable => "idempotency_store_unavailable",
            Self::NoTimeLeft => "idempotency_no_time_left",
            Self::Corrupt => "idempotency_corrupt",
            Self::Invalid => "idempotency_invalid",
            Self::Recorded => "idempotency_recorded",
            Self::Released => "idempotency_released",
            Self::Resolved => "idempotency_resolved",
            Self::Fenced => "idempotency_fenced",
            Self::Unrecorded => "idempotency_unrecorded",
            Self::ResponseOmitted => "idempotency_response_omitted",
            Self::Declined => "idempotency_declined",
            Self::NotCommitted => "idempotency_not_committed",
            Self::Unresolved => "idempotency_unresolved",
            Self::LeaseExtended => "idempotency_lease_extended",
            Self::LeaseNotExtended => "idempotency_lease_not_extended",
            Self::Abandoned => "idempotency_abandoned",
            Self::CutOff => "idempotency_cut_off",
            Self::Panicked => "idempotency_panicked",
            Self::Unprotected => "idempotency_unprotected",
            Self::NotEnforced => "idempotency_not_enforced",
            Self::ShadowReplayed => "idempotency_shadow_replayed",
            Self::ShadowDiffered => "idempotency_shadow_differed",
            Self::ShadowInProgress => "idempotency_shadow_in_progress",
            Self::ShadowMismatch => "idempotency_shadow_mismatch",
            Self::ShadowMissingKey => "idempotency_shadow_missing_key",
            Self::ShadowRefused => "idempotency_shadow_refused",
            Self::ShadowTakeover => "idempotency_shadow_takeover",
            Self::ShadowUnknown => "idempotency_shadow_unknown",
            Self::AllFailed => "idempotency_all_failed",
            Self::ClaimLatency => "idempotency_claim_latency",
            Self::SettleLatency => "idempotency_settle_latency",
        }
    }

    /// Whether this metric is a histogram of milliseconds rather than a counter.
    pub const fn is_latency(self) -> bool {
        matches!(self, Self::ClaimLatency | Self::SettleLatency)
    }
}

#[cfg(feature = "metrics")]
mod facade {
    use std::time::Duration;

    use super::Metric;

    /// Tells the recorder the unit of each [`Metric`]. Call it once, after the recorder is installed.
    pub fn describe_metrics() {
        for metric in Metric::ALL {
            if metric.is_latency() {
                metrics::describe_histogram!(metric.name(), metrics::Unit::Milliseconds, "");
            } else {
                metrics::describe_counter!(metric.name(), metrics::Unit::Count, "");
            }
        }
    }

    pub(crate) fn count(metric: Metric) {
        metrics::counter!(metric.name()).increment(1);
    }

    pub(crate) fn measure(metric: Metric, took: Duration) {
        metrics::histogram!(metric.name()).record(took.as_secs_f64() * 1000.0);
    }
}
/// Without the feature `metrics`, nothing is counted.
#[cfg(not(feature = "metrics"))]
mod facade {
    use std::time::Duration;

    use super::Metric;

    pub(crate) const fn count(_: Metric) {}

    pub(crate) const fn measure(_: Metric, _: Duration) {}
}

#[cfg(feature = "metrics")]
pub use facade::describe_metrics;
pub(crate) use facade::{count, measure};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn metric_names_are_distinct_and_listed() {
        let names: HashSet<_> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), Metric::ALL.len());
        // Each variant has a name in the source.
        let named = include_str!("metrics.rs").matches(" => \"idempotency_").count();
        assert_eq!(Metric::ALL.len(), named);
    }

    #[test]
    fn only_latencies_are_histograms() {
        let latencies: Vec<_> = Metric::ALL.iter().copied().filter(|metric| metric.is_latency()).collect();
        assert_eq!(latencies, [Metric::ClaimLatency, Metric::SettleLatency]);
    }
}
