//! User settings and their defaults, which are safe for payments.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// What becomes of a claim whose executor ended without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The next delivery takes the stale claim over and runs the handler again.
    #[default]
    AtLeastOnce,
    /// Once the handler has started, it never starts again. If it ends without an answer, every later delivery gets
    /// [`ErrorKind::OutcomeUnknown`] until an operator settles the record; errors and panics are recorded as final failures.
    ///
    /// Two things give the key back, so that the handler does start again: an operator's release, and a handler that
    /// returns this library's own retryable error, such as the one of a nested step that is in progress. Only put effects
    /// before such a step that may happen again, or make each a step of its own.
    ///
    /// A claim has no expiry until it's settled, so that neither a TTL nor a sweep removes what is unknown: the table keeps
    /// one record for each crash until somebody settles it. `idempotency list --unresolved` counts them.
    ///
    /// Settings that would break this are refused: unprotected runs ([`OnStoreFailure::RunUnprotected`]) when the engine is built,
    /// and [`claim_free`](crate::Idempotency::claim_free) and `begin_in` where they are called. Change a function from
    /// [`AtLeastOnce`](Self::AtLeastOnce) only once its stale claims are settled: those it made before have an expiry.
    AtMostOnce,
}

/// What becomes of the claim when the handler returns an error or panics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnHandlerError {
    /// The key is given back: the next delivery runs the handler again.
    #[default]
    Release,
    /// The failure is recorded as the operation's outcome, and replayed.
    Record,
}

/// What to do with a delivery of an operation that another delivery is still running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnInProgress {
    /// Refuse with [`ErrorKind::InProgress`].
    #[default]
    Refuse,
    /// Ask again, at growing intervals of up to a second, for so long, and then refuse; but for at most half of the time that
    /// the invocation has left, so that a handler whose key becomes free has the other half. Each question is one request,
    /// and Lambda bills the wait.
    Wait(Duration),
}

/// What to do when the store cannot be asked for the claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Refuse with [`ErrorKind::Unavailable`]; the handler does not run.
    #[default]
    Refuse,
    /// Run the handler without protection, and count it. Every duplicate then runs as well.
    RunUnprotected,
}

/// What to do with a delivery that has no idempotency key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MissingKey {
    /// Refuse with [`ErrorKind::MissingKey`]; the handler does not run.
    #[default]
    Refuse,
    /// Run the handler without protection.
    RunUnprotected,
}

/// Plain settings, all with a default. The names are those of the builder's methods.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long a settled record is replayed. Default: 24 hours; at most ten years. Must be longer than callers and
    /// queues go on repeating.
    pub retention: Duration,
    /// How far apart the clocks of two executors may be. Default: 2 seconds; at most an hour.
    pub skew_margin: Duration,
    /// How much longer than the invocation's deadline the lease lasts. Default: 2 seconds; at most an hour. An async handler is cut off at
    /// the deadline, on every platform, since code can run on after a time-out (aws/aws-lambda-rust-runtime#1155). Code that
    /// blocks its thread, `spawn_blocking` and spawned tasks can't be cut off: their time has to end by itself.
    pub lease_grace: Duration,
    /// The lease where the deadline is not known. Default: 60 seconds; at most a day. The handler is cut off before.
    pub lease_fallback: Duration,
    /// The length of a short lease that is extended while the handler runs, a third of its length after it was made or
    /// extended last. Default: none; the lease then lasts until the deadline, or for [`lease_fallback`](Self::lease_fallback).
    /// Kinesis and DynamoDB Streams are the exception: without this setting, their records have 15 seconds.
    ///
    /// For work that is long, or whose end nobody knows: a container, long PostgreSQL work, Lambda Managed Instances, a
    /// function with a long time-out. When its process dies, its key is free after this length and the skew
    /// margin, and not only at its deadline. Each extension costs one request. It never goes past a deadline
    /// that is known, and its grace; the handler is cut off before a lease ends that could not be extended, and at once when
    /// its claim was taken over. The time is looked at when the handler's future is polled: work that blocks its
    /// thread can be neither kept nor cut off.
    ///
    /// At least three times [`lease_grace`](Self::lease_grace), so that a third of it may fail, and at most a day.
    pub lease_extension: Option<Duration>,
    /// How long before the invocation's deadline the library stops waiting for the store, so that a true answer still
    /// reaches the caller. Default: 250 milliseconds. A handler that returns later than that still gets one attempt to
    /// record its outcome, which ends a fifth of the reserve before the deadline.
    ///
    /// Raise it where more has to happen after the handler, such as flushing telemetry. On a function with a time-out of
    /// 1 second, it's a quarter of the handler's time.
    pub answer_reserve: Duration,
    /// How long an outcome is tried to be recorded while the store fails, or nothing less than the deadline and
    /// [`answer_reserve`](Self::answer_reserve) ends it before. Default: 30 seconds. Lambda bills this time; an outcome
    /// that isn't recorded means a second run.
    pub settle_within: Duration,
    /// What becomes of a stale claim. Default: it is taken over.
    pub execution: Execution,
    /// What becomes of the claim when the handler fails. Default: it is released.
    pub on_handler_error: OnHandlerError,
    /// What to do with a duplicate while the first delivery runs. Default: refuse.
    pub on_in_progress: OnInProgress,
    /// What to do when the store cannot be asked. Default: refuse.
    pub on_store_failure: OnStoreFailure,
    /// The largest response that is kept, in bytes. Default: 8 MiB, over Lambda's own limit of 6 MB
    /// ("Lambda quotas", AWS Lambda developer guide). A larger one is recorded as not retained. Over HTTP, so is one that
    /// the front end can't deliver, such as over 1 MB behind a load balancer.
    pub max_response: usize,
    /// How many bytes of settled records are kept in this process's memory, to answer duplicates without a request.
    /// Default: 0, none. At least 64 KiB otherwise. See [`Builder::local_cache`](crate::Builder::local_cache).
    pub local_cache: usize,
}

/// A lease blocks its key when its process has died. No invocation lasts longer than 15 minutes ("Lambda quotas", AWS
/// Lambda developer guide); an operation outside of one may.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// Clocks on AWS are within milliseconds of each other ("Amazon Time Sync Service", EC2 user guide).
const LONGEST_MARGIN: Duration = Duration::from_secs(60 * 60);
/// Longer than any queue, archive or person goes on repeating: ten years.
const LONGEST_RETENTION: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A smaller local cache would keep next to nothing, and is taken for a mistake in the unit.
const SMALLEST_LOCAL_CACHE: usize = 64 * 1024;

impl Default for Settings {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(24 * 60 * 60),
            skew_margin: Duration::from_secs(2),
            lease_grace: Duration::from_secs(2),
            lease_fallback: Duration::from_secs(60),
            lease_extension: None,
            answer_reserve: Duration::from_millis(250),
            settle_within: Duration::from_secs(30),
            execution: Execution::default(),
            on_handler_error: OnHandlerError::default(),
            on_in_progress: OnInProgress::default(),
            on_store_failure: OnStoreFailure::default(),
            max_response: 8 * 1024 * 1024,
            local_cache: 0,
        }
    }
}

impl Settings {
    /// What really happens when the handler fails: at most once leaves no choice.
    pub(crate) fn effective_on_handler_error(&self) -> OnHandlerError {
        match self.execution {
            Execution::AtLeastOnce => self.on_handler_error,
            Execution::AtMostOnce => OnHandlerError::Record,
        }
    }

    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] at most once, which `what` would break.
    pub(crate) fn refuse_at_most_once(&self, what: &str) -> Result<(), Error> {
        match self.execution {
            Execution::AtLeastOnce => Ok(()),
            Execution::AtMostOnce => invalid(format!(
                "at most once, {what} is refused, since nothing keeps it from running again; use a claim, or AtLeastOnce"
            )),
        }
    }

    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a duration that is zero or out of bounds, a lease that leaves no time to run, a local cache that
    /// is too small to be of use, or at-most-once with unprotected runs.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let durations = [
            ("retention", self.retention),
            ("skew_margin", self.skew_margin),
            ("lease_grace", self.lease_grace),
            ("lease_fallback", self.lease_fallback),
        ];
        if let Some((name, _)) = durations.iter().find(|(_, duration)| duration.as_millis() == 0) {
            return invalid(format!("{name} is zero; give it at least a millisecond"));
        }
        let bounded = [
            ("retention", self.retention, LONGEST_RETENTION),
            ("skew_margin", self.skew_margin, LONGEST_MARGIN),
            ("lease_grace", self.lease_grace, LONGEST_MARGIN),
            ("lease_fallback", self.lease_fallback, LONGEST_LEASE),
            ("lease_extension", self.lease_extension.unwrap_or_default(), LONGEST_LEASE),
        ];
        if let Some((name, duration, longest)) =
            bounded.iter().find(|(_, duration, longest)| duration > longest)
        {
            return invalid(format!(
                "{name} is {duration:?}, and at most {longest:?} make sense; is the unit right?"
            ));
        }
        if self.lease_fallback <= self.lease_grace {
            return invalid(format!(
                "lease_fallback ({:?}) is not longer than lease_grace ({:?}), which leaves the handler no time",
                self.lease_fallback, self.lease_grace
            ));
        }
        if let Some(length) =
            self.lease_extension.filter(|length| *length < self.lease_grace.saturating_mul(3))
        {
            return invalid(format!(
                "lease_extension ({length:?}) is less than three times lease_grace ({:?}), which leaves no time for an \
                 extension to fail and to be tried again",
                self.lease_grace
            ));
        }
        if self.execution == Execution::AtMostOnce && self.on_store_failure == OnStoreFailure::RunUnprotected
        {
            return invalid(
                "at most once, a handler can't run without a claim: set on_store_failure to Refuse, or execution to \
                 AtLeastOnce"
                    .to_owned(),
            );
        }
        if (1..SMALLEST_LOCAL_CACHE).contains(&self.local_cache) {
            return invalid(format!(
                "local_cache is {} bytes, which keeps next to nothing; give it at least {SMALLEST_LOCAL_CACHE}, or 0 for none",
                self.local_cache
            ));
        }
        Ok(())
    }
}

fn invalid(message: String) -> Result<(), Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        Settings::default().validate().unwrap();
    }

    #[test]
    fn a_zero_duration_is_refused_by_name() {
        type Zero = fn(&mut Settings);
        let zeroed: [(&str, Zero); 4] = [
            ("retention", |s| s.retention = Duration::ZERO),
            ("skew_margin", |s| s.skew_margin = Duration::ZERO),
            ("lease_grace", |s| s.lease_grace = Duration::ZERO),
            ("lease_fallback", |s| s.lease_fallback = Duration::ZERO),
        ];
        for (name, zero) in zeroed {
            let mut settings = Settings::default();
            zero(&mut settings);
            let error = settings.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_lease_must_leave_time_to_run() {
        let mut settings = Settings::default();
        settings.lease_fallback = settings.lease_grace;
        assert!(settings.validate().is_err());
    }

    #[test]
    fn a_local_cache_is_off_or_of_a_size_that_keeps_something() {
        assert_eq!(Settings::default().local_cache, 0);
        for (bytes, is_valid) in [(0, true), (1, false), (65_535, false), (65_536, true), (usize::MAX, true)]
        {
            let settings = Settings { local_cache: bytes, ..Settings::default() };
            assert_eq!(settings.validate().is_ok(), is_valid, "{bytes}");
        }
    }
}
