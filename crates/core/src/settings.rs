//! User settings and their defaults, which are safe for payments.

use std::{str::FromStr, time::Duration};

use crate::error::{Error, ErrorKind};

/// How to handle a claim whose executor ended without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The next delivery takes the stale claim over and runs the handler again. Exception: a claim that a version of the
    /// function made under [`AtMostOnce`](Self::AtMostOnce) is never taken over, and the delivery gets
    /// [`ErrorKind::OutcomeUnknown`].
    #[default]
    AtLeastOnce,
    /// Once the handler has started, it never starts again. If it ends without an answer, every later
    /// delivery gets [`ErrorKind::OutcomeUnknown`] until an operator settles the record. Errors and panics
    /// are recorded as permanent failures.
    ///
    /// The exception is a released key: the handler can then start again. The key is released by an operator, by your
    /// own call of [`Claim::release`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Claim.html#method.release), by an HTTP response with [`Recording::Release`], or
    /// because the handler returns a nested step's refusal; see [`Settings::on_handler_error`]. The next run may repeat
    /// the effects from before the nested step. So before a nested step, put only effects that may be repeated, or make
    /// each effect a separate step.
    ///
    /// A claim has no expiry until it's settled, so that neither a TTL nor a sweep removes a record with an
    /// unknown outcome. The table keeps one record for each crash until an operator settles the record.
    /// `idempotency list --unresolved` lists these records. The record says that its claim runs at most once. So a version
    /// of the function that runs at least once, such as the one before a deployment that's rolled back, never takes it
    /// over, and gets [`ErrorKind::OutcomeUnknown`] too.
    ///
    /// The library refuses what would allow a second run: unprotected runs ([`Settings::fail_open`]) when you build the
    /// [`Idempotency`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html), and [`optimistic`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html#method.optimistic) and `begin_in` when you
    /// call them.
    ///
    /// Settle a function's stale claims before you change the function from [`AtLeastOnce`](Self::AtLeastOnce). Those
    /// claims have an expiry, so a TTL or a sweep can remove them, and the handler can then start again. When you change
    /// a function to `AtLeastOnce`, its unresolved claims stay unresolved. `idempotency run-again --function NAME`
    /// lets their next deliveries run; [`Resolution::RunAgain`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/enum.Resolution.html#variant.RunAgain) does so in code.
    AtMostOnce,
}

/// Whether a result is recorded as the operation's outcome.
///
/// For a handler's error, [`Settings::on_handler_error`] decides. An HTTP response can have a `Recording` as an
/// extension, which decides in place of the response's status.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use http::Response;
/// use lambda_idempotency::settings::Recording;
///
/// // A 500 after the money has moved: final, and not to be retried.
/// let mut response = Response::builder().status(500).body(()).unwrap();
/// response.extensions_mut().insert(Recording::Record);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recording {
    /// The result isn't recorded. The key is released, so that the next delivery runs the handler again. Under
    /// at-most-once, use this only for a response that's given before any effect. `ReleaseRejections` sets it on the
    /// responses of a layer that rejects requests before they reach the handler.
    #[default]
    Release,
    /// The result is the operation's outcome: it's recorded and replayed.
    Record,
}

/// Whether idempotency is in force. The environment variable `IDEMPOTENCY_MODE` can set it.
///
/// [`Off`](Self::Off) and [`Shadow`](Self::Shadow) protect nothing: every duplicate runs the handler again. So
/// the library logs a warning when an [`Idempotency`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html) is built, and counts each delivery as
/// [`NotEnforced`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/metrics/enum.Metric.html#variant.NotEnforced). With `IDEMPOTENCY_REQUIRED=1` in the environment, it
/// refuses both modes, unless the environment has `IDEMPOTENCY_MODE=off!`. [`guide::operations`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/guide/operations/index.html) says what each wrapper does in each mode.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use lambda_idempotency::settings::Mode;
///
/// assert_eq!("shadow".parse::<Mode>()?, Mode::Shadow);
/// assert_eq!(Mode::default(), Mode::Enforce);
/// assert!("Off".parse::<Mode>().is_err());
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One operation, one outcome.
    #[default]
    Enforce,
    /// The handler always runs, and the caller gets its answer. Beside the handler, the library claims the key and
    /// records the outcome in a namespace that [`Enforce`](Self::Enforce) never reads. The event `shadow`, and the
    /// metrics whose names begin with `idempotency_shadow`, report what `Enforce` would have done. The store adds at
    /// most 100 milliseconds to a delivery, and its failures are counted and otherwise ignored.
    Shadow,
    /// The handler always runs. Records are neither read nor written. Writes that the handler stages are still
    /// committed, in one transaction.
    Off,
}

impl Mode {
    /// The mode's name in `IDEMPOTENCY_MODE`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for anything but `enforce`, `shadow` and `off`.
    fn from_str(name: &str) -> Result<Self, Error> {
        let modes = [Self::Enforce, Self::Shadow, Self::Off];
        modes.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("{name:?} isn't a mode; use enforce, shadow or off"))
        })
    }
}

/// All settings, each with a default. A setting has the same name as the builder's method for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long a settled record is replayed. Default: 24 hours; at most ten years. Must be longer than the time for
    /// which callers and queues keep retrying.
    pub retention: Duration,
    /// The maximum difference between two executors' clocks. Default: 2 seconds; at most an hour.
    pub skew_margin: Duration,
    /// How long the lease lasts after the invocation's deadline. Default: 2 seconds; at most an hour. The
    /// library cuts an async handler off at the deadline, on every platform, since code can run on after a
    /// timeout (aws/aws-lambda-rust-runtime#1155). It can't cut off code that blocks its thread, or tasks that the
    /// handler spawns, also with `spawn_blocking`: give them their own time limit.
    pub lease_grace: Duration,
    /// The lease's length if the deadline is unknown. Default: 60 seconds; at most a day. The handler is cut
    /// off before the lease ends.
    pub lease_fallback: Duration,
    /// The length of a short lease that's extended while the handler runs, whenever a third of this length has
    /// passed. Default: none. Without this setting, the lease lasts until the deadline, or for
    /// [`lease_fallback`](Self::lease_fallback) if the deadline is unknown. For records of Kinesis and DynamoDB
    /// Streams, the default is 15 seconds.
    ///
    /// Use it for long work, or work of unknown length: in a container, for long PostgreSQL work, on Lambda
    /// Managed Instances, or in a function with a long timeout. If the process dies, its key is free after
    /// this length and the skew margin instead of after the deadline. Each extension costs one request. An
    /// extended lease never goes past a known deadline plus the grace. If a lease can't be extended, the library
    /// cuts the handler off before the lease ends. If another claim took over, it cuts the handler off at once.
    /// The library checks the time when it polls the handler's future. So if a handler blocks its thread, the library
    /// can neither extend the lease nor cut the handler off.
    ///
    /// At least three times [`lease_grace`](Self::lease_grace), so that an extension can fail and be retried;
    /// at most a day.
    pub lease_extension: Option<Duration>,
    /// How long before the invocation's deadline the library stops waiting for the store, so that an answer still
    /// reaches the caller. Default: 250 milliseconds. If a handler returns later, the library still makes one attempt
    /// to record its outcome. That attempt must end before the last fifth of the reserve begins.
    ///
    /// Raise it if more has to happen after the handler, such as flushing telemetry. In a function with a
    /// timeout of 1 second, the default takes a quarter of the handler's time.
    pub answer_reserve: Duration,
    /// How long the library retries recording an outcome while the store fails. The retries end
    /// [`answer_reserve`](Self::answer_reserve) before the deadline at the latest. Default: 30 seconds. Lambda bills
    /// this time; an outcome that isn't recorded means a second run.
    pub settle_within: Duration,
    /// Whether the library drops a handler that's still running when its time runs out. Default: yes.
    ///
    /// Set it to `false` where dropping the handler's future stops nothing, because the work runs in another
    /// process. The library then waits for the result, and records even a late one, unless another claim has taken
    /// over. Your code must answer the caller in time, and drop the future of work that never ends. A batch worker
    /// waits for running handlers too, so Lambda may end the invocation at its deadline.
    pub cut_off: bool,
    /// How to handle a stale claim. Default: take it over.
    pub execution: Execution,
    /// How to settle the claim when the handler returns an error or panics. Default: release it, so that the next
    /// delivery runs the handler again.
    ///
    /// A failure isn't recorded if it may be the consequence of a step that was *refused*: a nested operation that
    /// failed with this library's own [retryable](crate::Error::is_retryable) error, because another delivery runs it or
    /// the store is down, for example, or that failed because the store rejected its request.
    ///
    /// - At least once, a handler that fails, panics or answers with a 5xx status releases its key if the last attempt
    ///   of any of its steps in this run was refused, whatever the handler made of the refusal. A step that succeeds in
    ///   a later attempt doesn't count. [`Failure::permanent`](crate::Failure::permanent) is recorded even so, and so is
    ///   an HTTP response with [`Recording::Record`].
    /// - At most once, a handler's error releases the key only if it's a refusal, or has one as a
    ///   [`source`](std::error::Error::source). Every other failure is recorded, even a text that was made of a refusal.
    ///   The library sees the sources of a boxed error, such as `lambda_runtime::Error`, and of a
    ///   [`Failure`](crate::Failure). In any other error, it sees the refusals that the error's `Display` shows.
    ///
    /// A task that the handler spawns must [pass the invocation on](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Invocation.html#method.current), or its steps aren't
    /// the run's.
    pub on_handler_error: Recording,
    /// How long a duplicate waits while another delivery runs the operation. After that, the duplicate is refused
    /// with [`ErrorKind::InProgress`]. Default: zero.
    ///
    /// The duplicate polls at growing intervals of up to a second. It waits for at most half of the remaining time, so
    /// that the handler has the other half if the key becomes free. The remaining time ends at the invocation's
    /// deadline or the front end's timeout, whichever is earlier. Each poll is one request, and Lambda bills the wait.
    pub wait_in_progress: Duration,
    /// Whether the handler runs without protection if the store fails before the claim. By default, it doesn't: the
    /// delivery is refused with [`ErrorKind::Unavailable`].
    ///
    /// Even with this setting, the delivery is refused if
    ///
    /// - another delivery of the key waits or runs in this process, or the key has run or was answered here before;
    /// - the store has answered any request of this process since the claim began: then it's slow, not down;
    /// - no time is left when the store has failed.
    ///
    /// What's left: each process may run a key once, so duplicates in other processes, and after a restart, run too.
    /// So do keys that the process has forgotten: it remembers the last 16,384. A claim that got no answer may still be
    /// applied, and an earlier process may have recorded an outcome that can't be read now. The library counts each
    /// unprotected run.
    pub fail_open: bool,
    /// The largest response that's kept, in bytes. Default: 8 MiB, which is over Lambda's own limit of 6 MB
    /// ("Lambda quotas", AWS Lambda developer guide). A larger response is recorded as not retained.
    /// Over HTTP, so is a response that the front end can't deliver, such as one over 1 MB behind a load balancer.
    ///
    /// 0 keeps no response and no failure's details: for jobs whose answer no caller needs. A duplicate then gets
    /// [`ErrorKind::NotRetained`], or the success that you choose with
    /// [`HttpLayer::on_not_retained`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/http/struct.HttpLayer.html#method.on_not_retained) or
    /// [`EventLayer::on_not_retained`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/event/struct.EventLayer.html#method.on_not_retained). In a batch, such a duplicate
    /// counts as a success, unless the operation failed permanently.
    pub max_response: usize,
    /// How many bytes of settled records this process keeps in memory, to answer duplicates without a request.
    /// Default: 0, off. Any other value must be at least 64 KiB. A few MiB hold many records.
    ///
    /// The cache is useful if the same process sees the same key again, for example when a client retries and Lambda
    /// reuses the warm process. All clones and all concurrent invocations share one cache. It holds only outcomes that
    /// this process read from the store, or whose recording the store has confirmed. An entry's size includes its key,
    /// fingerprint, response and bookkeeping, and the payload of an [operation](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html) if that has at most 4 KiB of JSON,
    /// so that an equal payload isn't hashed again. The least recently used entry is evicted first. An outcome that would
    /// fill more than an eighth of the cache, or that wasn't retained, isn't cached.
    ///
    /// The library checks a cached entry like a record from the store: another fingerprint is a
    /// [`Mismatch`](crate::ErrorKind::Mismatch). From the record's expiry on, the library asks the store. Before the expiry,
    /// no executor whose clock is within [`skew_margin`](Self::skew_margin) can have replaced the record. Until its expiry, an
    /// entry answers even when the store is down.
    ///
    /// The cache doesn't notice the following, and replays the entry until the record expires:
    ///
    /// - An operator's write from another process, such as `idempotency release` on a completed record, or an
    ///   operator's write whose answer was lost. After such a write, wait for the expiry, restart the function (by a
    ///   new deployment), or have it call [`Idempotency::clear_local_cache`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html#method.clear_local_cache). A [`resolve`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html#method.resolve) by
    ///   this `Idempotency` or a clone of it removes the entry.
    /// - A record that was removed by hand, or a table that was restored from a backup.
    /// - A clock of this process that's behind by more than the skew margin: the entry may then be replayed
    ///   after another process has seen the record expire and replaced it.
    ///
    /// Many processes start from one SnapStart snapshot, with the same memory, so the snapshot's cache must be empty.
    /// If the environment announces a snapshot (`AWS_LAMBDA_INITIALIZATION_TYPE` is `snap-start`), the library caches
    /// only operations with a known [`Invocation`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Invocation.html). No invocation is known before the snapshot is
    /// taken. After a restore from any other snapshot, call [`Idempotency::clear_local_cache`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Idempotency.html#method.clear_local_cache).
    pub local_cache: usize,
    /// How many settled records the local cache keeps at most, beside its limit in bytes. Default: as many as fit.
    pub local_cache_records: Option<usize>,
    /// How long an effect can still be on its way after the lease of the attempt that sent it. Default: 30 seconds. At most
    /// 12 hours.
    ///
    /// Only for operations with a [reconciler](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.reconcile):
    /// no question is asked before that time has passed. Until then, a delivery is refused with [`ErrorKind::InProgress`].
    /// Set it to the remote system's own limit: an effect that arrives later may happen twice.
    pub effects_arrive_within: Duration,
    /// Whether the handler may run again under at-most-once execution if a reconciler's answer is that the effect didn't
    /// happen. Default: no. Only the effect itself or its final failure then settle the operation, and every other answer
    /// leaves its outcome unknown. If you set this and the answer is wrong, the effect happens twice.
    pub rerun_when_absent: bool,
    /// Whether idempotency is in force. Default: [`Mode::Enforce`].
    pub mode: Mode,
}

/// The longest lease that's allowed, and a deadline further in the future counts as unknown. If a process dies, its
/// lease blocks the key until the lease ends. No invocation lasts longer than 15 minutes ("Lambda quotas", AWS Lambda
/// developer guide), but other operations may.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time until a reconciler's question is asked, or asked again: half of the time for which a STARTED record
/// outlives its lease at least, so that no sweeper removes a record that's still to be asked for.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(12 * 60 * 60);
/// The longest margin that's allowed. Clocks on AWS are within milliseconds of each other ("Amazon Time Sync
/// Service", EC2 user guide).
const LONGEST_MARGIN: Duration = Duration::from_secs(60 * 60);
/// Ten years: longer than any queue, archive or person keeps retrying.
const LONGEST_RETENTION: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A smaller local cache would keep almost nothing, so a smaller size is probably in the wrong unit.
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
            cut_off: true,
            execution: Execution::default(),
            on_handler_error: Recording::default(),
            wait_in_progress: Duration::ZERO,
            fail_open: false,
            max_response: 8 * 1024 * 1024,
            local_cache: 0,
            local_cache_records: None,
            effects_arrive_within: Duration::from_secs(30),
            rerun_when_absent: false,
            mode: Mode::default(),
        }
    }
}

impl Settings {
    /// Returns the policy for a handler's failure. Under at-most-once, the failure is always recorded.
    pub(crate) fn effective_on_handler_error(&self) -> Recording {
        match self.execution {
            Execution::AtLeastOnce => self.on_handler_error,
            Execution::AtMostOnce => Recording::Record,
        }
    }

    /// Whether idempotency is in force.
    pub(crate) fn is_enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }

    /// Refuses `what` under at-most-once, since it would allow a second run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] under at-most-once.
    pub(crate) fn refuse_at_most_once(&self, what: &str) -> Result<(), Error> {
        match self.execution {
            Execution::AtLeastOnce => Ok(()),
            Execution::AtMostOnce => invalid(format!(
                "under at-most-once, {what} is refused, since nothing prevents it from running again; use a claim, or \
                 AtLeastOnce"
            )),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a duration that's zero or out of bounds, a lease that leaves no time to
    /// run, a local cache that's too small, a limit for a cache that doesn't exist, or at-most-once with
    /// unprotected runs.
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
            ("effects_arrive_within", self.effects_arrive_within, LONGEST_WAIT),
        ];
        if let Some((name, duration, longest)) =
            bounded.iter().find(|(_, duration, longest)| duration > longest)
        {
            return invalid(format!(
                "{name} is {duration:?}, but at most {longest:?} is allowed; is the unit right?"
            ));
        }
        if self.lease_fallback <= self.lease_grace {
            return invalid(format!(
                "lease_fallback ({:?}) isn't longer than lease_grace ({:?}), which leaves the handler no time",
                self.lease_fallback, self.lease_grace
            ));
        }
        if let Some(length) =
            self.lease_extension.filter(|length| *length < self.lease_grace.saturating_mul(3))
        {
            return invalid(format!(
                "lease_extension ({length:?}) is less than three times lease_grace ({:?}), which leaves no time to \
                 retry a failed extension",
                self.lease_grace
            ));
        }
        if self.execution == Execution::AtMostOnce && self.fail_open {
            return invalid(
                "under at-most-once, no handler runs without a claim: set fail_open to false, or use AtLeastOnce"
                    .to_owned(),
            );
        }
        if (1..SMALLEST_LOCAL_CACHE).contains(&self.local_cache) {
            return invalid(format!(
                "local_cache is {} bytes, which is too small; use at least {SMALLEST_LOCAL_CACHE}, or 0 for none",
                self.local_cache
            ));
        }
        match self.local_cache_records {
            Some(0) => invalid("local_cache_records is 0; for no cache, set local_cache to 0".to_owned()),
            Some(_) if self.local_cache == 0 => invalid(
                "local_cache_records is set, but local_cache is 0, so there's no cache; set local_cache too"
                    .to_owned(),
            ),
            Some(_) | None => Ok(()),
        }
    }
}

fn invalid(message: String) -> Result<(), Error> {
    Err(Error::new(ErrorKind::Invalid, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_are_valid() {
        Settings::default().validate().unwrap();
    }

    #[test]
    fn zero_duration_error_names_the_setting() {
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
    fn longest_retention_is_allowed() {
        let retained = |retention| Settings { retention, ..Settings::default() }.validate().is_ok();
        assert!(retained(LONGEST_RETENTION));
        assert!(!retained(LONGEST_RETENTION + Duration::from_millis(1)));
    }

    #[test]
    fn extensions_leave_time_for_a_retry() {
        let extended =
            |length| Settings { lease_extension: Some(length), ..Settings::default() }.validate().is_ok();
        let shortest = Settings::default().lease_grace * 3;
        assert!(extended(shortest));
        assert!(!extended(shortest - Duration::from_millis(1)));
        assert!(!extended(shortest / 2));
    }

    #[test]
    fn lease_must_leave_time_to_run() {
        let mut settings = Settings::default();
        settings.lease_fallback = settings.lease_grace;
        assert!(settings.validate().is_err());
    }

    #[test]
    fn tiny_local_caches_are_refused() {
        assert_eq!(Settings::default().local_cache, 0);
        for (bytes, is_valid) in [(0, true), (1, false), (65_535, false), (65_536, true), (usize::MAX, true)]
        {
            let settings = Settings { local_cache: bytes, ..Settings::default() };
            assert_eq!(settings.validate().is_ok(), is_valid, "{bytes}");
        }
    }

    #[test]
    fn record_limits_need_a_cache() {
        for (bytes, records, is_valid) in [(65_536, 1, true), (65_536, 0, false), (0, 1, false)] {
            let settings =
                Settings { local_cache: bytes, local_cache_records: Some(records), ..Settings::default() };
            assert_eq!(settings.validate().is_ok(), is_valid, "{bytes} {records}");
        }
    }
}
