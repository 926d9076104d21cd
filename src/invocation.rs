//! The invocation that a handler runs in: its deadline, which is checked once, and how long its caller waits.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    internal::settings::LONGEST_LEASE,
    key::StoredKey,
    time::{Clock, Moment, Timestamp},
};

/// 2020-01-01: an earlier deadline counts as unknown.
const EARLIEST: Timestamp = Timestamp::from_secs(1_577_836_800);

/// The platform's information about one invocation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    deadline: Option<Timestamp>,
    request_id: Option<Arc<str>>,
    /// How long before the deadline a batch's work ends; see [`Stage`]. Zero outside a batch.
    batch_reserve: Duration,
    /// When the operation's handler is cut off, if that's before the deadline. Its steps are never cut off before it.
    cut_off: Option<Timestamp>,
    /// When the caller stops waiting for the answer, if that's before the deadline.
    caller_waits_until: Option<Timestamp>,
    /// The length of a lease that the library extends while the handler runs. Applies only if
    /// `Settings::lease_extension` isn't set.
    short_lease: Option<Duration>,
    /// The tenant that the invocation is for, in a function with tenant isolation.
    tenant: Option<Arc<str>>,
    /// When the invocation began, on both clocks. Set only if the deadline is known, because only then does the
    /// invocation end soon.
    began: Began,
    /// The refused steps of the run that the invocation was passed on from, for steps in tasks that the run spawns.
    refusals: Option<Refusals>,
}

/// The stages in which a batch's work ends. Each ends a part of the batch's reserve before the deadline: the number is the divisor.
/// Outside a batch, the reserve is zero.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Claiming keys, and waiting for other deliveries' outcomes. A handler that starts then has half of the reserve.
    Claims = 1,
    /// Running handlers under protection. Their records may still be settled.
    Handlers = 2,
    /// Retrying settlements. A record that's still being settled when the response is due would be redelivered, and run
    /// again. So settlement gives up earlier, and the record is acknowledged although its outcome isn't recorded.
    Settlements = 3,
    /// Everything that the response waits for.
    Response = 4,
    /// Hiding messages, while the response waits. It's harmless if a message isn't hidden: SQS only redelivers it earlier.
    Hiding = 8,
}

/// The steps of one run whose last attempt was refused, and may succeed later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    steps: Arc<Mutex<HashSet<StoredKey>>>,
    /// Those of the run around this one.
    outer: Option<Arc<Self>>,
}

/// What happened in a run doesn't distinguish its invocation from another.
impl PartialEq for Refusals {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Refusals {}

impl Refusals {
    /// Returns an empty `Refusals` for a new run, inside the run that has `outer`.
    pub(crate) fn inside(outer: Option<Self>) -> Self {
        Self { steps: Arc::default(), outer: outer.map(Arc::new) }
    }

    /// Whether the run is inside another run.
    pub(crate) fn is_nested(&self) -> bool {
        self.outer.is_some()
    }

    /// Notes whether the step's last attempt was refused. An attempt that's in progress isn't.
    pub(crate) fn note(&self, step: &StoredKey, is_refused: bool) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if is_refused {
            steps.insert(step.clone());
        } else {
            steps.remove(step);
        }
    }

    /// Whether the last attempt of any step was refused.
    pub(crate) fn is_any(&self) -> bool {
        !self.steps.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Notes that nothing was recorded for this run, which is the step `key` of the outer run. If one of the run's own
    /// steps was refused, that counts as a refusal of `key`.
    pub(crate) fn pass_on(&self, key: &StoredKey) {
        if let Some(outer) = self.outer.as_ref().filter(|_| self.is_any()) {
            outer.note(key, true);
        }
    }
}

/// When an invocation began. Two values of one invocation are equal, whether or not both have it.
#[derive(Clone, Copy, Default)]
struct Began(Option<Moment>);

impl PartialEq for Began {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Began {}

impl fmt::Debug for Invocation {
    /// Leaves out the tenant, which is as private as a caller.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation")
            .field("deadline", &self.deadline)
            .field("request_id", &self.request_id)
            .field("batch_reserve", &self.batch_reserve)
            .field("caller_waits_until", &self.caller_waits_until)
            .field("short_lease", &self.short_lease)
            .finish_non_exhaustive()
    }
}

impl Invocation {
    /// Creates an invocation with unknown deadline and ID.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Creates an invocation that starts at `now`.
    ///
    /// This function decides once whether the deadline is known. A deadline before 2020 counts as unknown:
    /// cargo-lambda's emulator sends a duration instead of a time, and a duration reads as a time in 1970. A deadline
    /// more than a day after `now` counts as unknown too: Lambda's longest timeout is 15 minutes, but AWS's emulator
    /// multiplies the timeout by a million in Managed Instances mode. Any other deadline in the past counts as known,
    /// and leaves the handler no time.
    pub fn entered(now: Timestamp, deadline: Timestamp, request_id: &str) -> Self {
        Self {
            deadline: (EARLIEST..=now.saturating_add(LONGEST_LEASE)).contains(&deadline).then_some(deadline),
            request_id: (!request_id.is_empty()).then(|| request_id.into()),
            ..Self::default()
        }
    }

    /// Notes that the invocation begins now, unless that's noted already.
    pub(crate) fn beginning(mut self, clock: &dyn Clock) -> Self {
        if self.deadline.is_some() && self.began.0.is_none() {
            self.began = Began(Some(Moment::now(clock)));
        }
        self
    }

    /// When the invocation began, if its deadline is known.
    pub(crate) fn began(&self) -> Option<Moment> {
        self.began.0
    }

    /// Sets the tenant, which becomes part of the keys of the invocation's steps.
    pub(crate) fn of_tenant(self, tenant: Option<&str>) -> Self {
        Self { tenant: tenant.map(Arc::from), ..self }
    }

    /// Sets the reserve of a batch.
    pub(crate) fn with_batch_reserve(self, reserve: Duration) -> Self {
        Self { batch_reserve: reserve, ..self }
    }

    /// When this kind of work ends; `None` if the deadline is unknown.
    pub(crate) fn end_of(&self, stage: Stage) -> Option<Timestamp> {
        Some(self.deadline?.saturating_sub(self.batch_reserve / stage as u32))
    }

    /// Sets the time at which the handler is cut off, if that's before the deadline.
    pub(crate) fn cut_off_at(self, time: Option<Timestamp>) -> Self {
        Self { cut_off: time, ..self }
    }

    /// When the handler is cut off at the latest.
    pub(crate) fn cut_off(&self) -> Option<Timestamp> {
        self.cut_off.or(self.deadline)
    }

    /// Sets the time until which the caller waits for the answer.
    ///
    /// API Gateway gives up on an integration 29 seconds after a request came in, unless its timeout is configured
    /// otherwise ("Amazon API Gateway quotas", API Gateway developer guide). The HTTP layer sets this automatically;
    /// see `HttpLayer::answer_within`.
    #[must_use]
    pub fn with_caller_waiting_until(self, until: Timestamp) -> Self {
        Self { caller_waits_until: Some(until), ..self }
    }

    /// Sets the refused steps of the run that the invocation is passed on from.
    pub(crate) fn noting(self, refusals: Refusals) -> Self {
        Self { refusals: Some(refusals), ..self }
    }

    pub(crate) fn refusals(&self) -> Option<&Refusals> {
        self.refusals.as_ref()
    }

    /// Uses leases of this length, which are extended while the handler runs.
    pub(crate) fn with_short_leases(self, length: Duration) -> Self {
        Self { short_lease: Some(length), ..self }
    }

    /// Drops the length that `with_short_leases` set, for claims whose leases the library doesn't extend.
    pub(crate) fn without_short_leases(self) -> Self {
        Self { short_lease: None, ..self }
    }

    pub(crate) fn short_lease(&self) -> Option<Duration> {
        self.short_lease
    }

    /// The tenant that the invocation is for, in a function with tenant isolation. It's part of the keys.
    pub fn tenant(&self) -> Option<&Arc<str>> {
        self.tenant.as_ref()
    }

    /// When the caller stops waiting, unless it has already stopped at `now`.
    pub(crate) fn caller_waits_at(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.end_of(Stage::Settlements).into_iter().chain(self.caller_waits_until);
        ends.min().filter(|until| now < *until)
    }

    /// Whether the deadline or the request ID is known. Before the first invocation, both are unknown.
    pub(crate) fn is_known(&self) -> bool {
        self.deadline.is_some() || self.request_id.is_some()
    }

    /// When the platform ends the invocation, if that's known.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// The invocation's request ID, for people who search the logs.
    pub fn request_id(&self) -> Option<&Arc<str>> {
        self.request_id.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_deadline_is_unknown() {
        let now = Timestamp::from_millis(1_795_000_000_000);
        let deadline = |millis| Invocation::entered(now, Timestamp::from_millis(millis), "id").deadline();
        assert_eq!(deadline(0), None);
        assert_eq!(deadline(600_000), None, "a duration, as cargo-lambda sends it");
        assert_eq!(deadline(1_577_836_799_999), None);
        assert_eq!(
            deadline(1_795_000_000_000 + 86_400_001),
            None,
            "AWS's emulator: the timeout times a million"
        );
        for known in [1_577_836_800_000, 1_795_000_000_000, 1_795_000_000_001, 1_795_000_000_000 + 86_400_000]
        {
            assert_eq!(deadline(known), Some(Timestamp::from_millis(known)));
        }
    }

    #[test]
    fn request_id_makes_an_invocation_known() {
        let unknown = Invocation::unknown();
        assert_eq!((unknown.request_id(), unknown.is_known()), (None, false));
        let known = Invocation::entered(Timestamp::from_secs(1_795_000_000), Timestamp::default(), "id");
        assert_eq!((known.request_id().map(|id| &**id), known.is_known()), (Some("id"), true));
    }

    #[test]
    fn noted_beginning_keeps_invocations_equal() {
        let now = Timestamp::from_secs(1_795_000_000);
        let invocation = Invocation::entered(now, now.saturating_add(Duration::from_secs(10)), "id");
        let begun = invocation.clone().beginning(&crate::time::system_clock());
        assert!(begun.began().is_some() && begun == invocation);
        assert!(Invocation::unknown().beginning(&crate::time::system_clock()).began().is_none());
    }

    #[test]
    fn batch_ends_its_work_in_order() {
        let now = Timestamp::from_secs(1_795_000_000);
        let after = |millis| Some(now.saturating_add(Duration::from_millis(millis)));
        let batch = Invocation::entered(now, after(9000).unwrap(), "id")
            .with_batch_reserve(Duration::from_millis(1200));
        let ends = [Stage::Claims, Stage::Handlers, Stage::Settlements, Stage::Response, Stage::Hiding];
        assert_eq!(ends.map(|stage| batch.end_of(stage)), [7800, 8400, 8600, 8700, 8850].map(after));
        assert_eq!(batch.caller_waits_at(now), after(8600));
        let caller = batch.with_caller_waiting_until(after(8000).unwrap());
        assert_eq!(caller.caller_waits_at(now), after(8000));
        assert_eq!(caller.caller_waits_at(after(8000).unwrap()), None, "the caller has stopped waiting");
    }
}
