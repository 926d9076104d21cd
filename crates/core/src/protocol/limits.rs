//! The time limits of one operation.

use std::time::Duration;

use crate::time::Timestamp;

/// The shortest limit of a settling call and of an extension, unless the operation's own limit is sooner: a healthy
/// store answers in a fraction of it, even over a new connection.
pub(super) const SHORTEST_CALL: Duration = Duration::from_millis(250);
/// A call isn't worth sending with less time than this, since no store answers sooner.
pub(super) const SHORTEST_ANSWER: Duration = Duration::from_millis(10);
/// The limit of a call that's sent although its own limit has passed, because its result is worth a short wait: twice
/// `SHORTEST_CALL`, since there's no second try.
pub const LATE_CALL: Duration = Duration::from_millis(500);

/// The time limits of one operation. They're computed once, from the settings, the invocation and the front end. Each
/// limit is over as soon as the wall clock or the monotonic clock reaches it.
///
/// | limit | until then | reason |
/// |---|---|---|
/// | `lease_until` | the claim holds the key: until `lease_grace` after the deadline, or for a fixed time | the key of a dead process becomes free |
/// | `cut_off` | the handler is polled: until `lease_grace` before the lease ends, and at most until the deadline or the batch's own cut-off | no handler runs beside its successor |
/// | `start_by` | the handler may start: until `cut_off`, and until `reserve` before the deadline | what starts later can't be answered |
/// | `ask_by` | claims and first reads are sent | time is left to release the claim, or under `fail_open` for the handler |
/// | `answer_by` | all other calls are sent: until `reserve` before the deadline, or while the front end waits | the answer still reaches the caller |
/// | `last_call` | a settlement that begins after `answer_by` has its one call: until a fifth of `reserve` before the deadline | a late outcome is worth a part of the reserve |
/// | `settle_by` | a settlement is retried: for `settle_within`, and at most until `answer_by` | Lambda bills the retries |
/// | `prepare_by` | a settlement's response is encrypted and its chunks are written: half of the time until `settle_by` | the settlement has the other half |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// When the lease ends that the claim begins with.
    pub lease_until: Timestamp,
    /// The limit of the claims and reads that decide whether the handler runs. `None` means no limit.
    pub ask_by: Option<Timestamp>,
    /// The limit of all other calls except extensions, and when the caller needs its answer. `None` means no limit.
    pub answer_by: Option<Timestamp>,
    /// When the platform ends the invocation, if that's known.
    pub deadline: Option<Timestamp>,
    /// The latest cut-off of the handler: the deadline, or earlier in a batch. `None` means that only the lease counts.
    pub latest_cut_off: Option<Timestamp>,
    /// The length of the leases, if they're extended while the handler runs.
    pub lease_extension: Option<Duration>,
    /// The time between a handler's cut-off and its lease's end.
    pub lease_grace: Duration,
    /// Calls to the store end this long before the deadline.
    pub reserve: Duration,
    /// How long a settlement is retried while the store fails.
    pub settle_within: Duration,
    /// Whether a running handler is cut off. If not, `last_call` doesn't apply: a handler may return after the deadline,
    /// and its result is recorded too.
    pub cuts_off: bool,
    /// The maximum number of retries of a settlement. `None` means that only the time ends them. Only the model checker
    /// sets a number, since its space must be finite.
    pub max_retries: Option<u8>,
}

impl Limits {
    /// A settlement's last call ends this part of the reserve before the deadline: a fifth, so that the answer can still
    /// be sent.
    pub const HARD_FLOOR: u32 = 5;

    /// The limits of an operation whose deadline is unknown.
    pub const fn unknown(lease_until: Timestamp, settle_within: Duration) -> Self {
        Self {
            lease_until,
            ask_by: None,
            answer_by: None,
            deadline: None,
            latest_cut_off: None,
            lease_extension: None,
            lease_grace: Duration::ZERO,
            reserve: Duration::ZERO,
            settle_within,
            cuts_off: true,
            max_retries: None,
        }
    }

    /// Returns the end of a lease of this length that begins, or is extended, at `now`.
    pub fn lease_from(&self, now: Timestamp, length: Duration) -> Timestamp {
        let latest = self.deadline.map(|deadline| deadline.saturating_add(self.lease_grace));
        earlier(now.saturating_add(length), latest)
    }

    /// Returns when the handler is cut off under a lease that ends at `lease_until`.
    pub fn cut_off(&self, lease_until: Timestamp) -> Timestamp {
        earlier(lease_until.saturating_sub(self.lease_grace), self.latest_cut_off)
    }

    /// Returns when it's too late to start the handler under a lease that ends at `lease_until`.
    pub fn start_by(&self, lease_until: Timestamp) -> Timestamp {
        earlier(self.cut_off(lease_until), self.before_deadline(self.reserve))
    }

    /// When the one call of a settlement must end that begins after `answer_by`. `None` means no limit.
    pub fn last_call(&self) -> Option<Timestamp> {
        self.before_deadline(self.reserve / Self::HARD_FLOOR).filter(|_| self.cuts_off)
    }

    /// Returns when a settlement that begins at `now` stops being retried.
    pub fn settle_by(&self, now: Timestamp) -> Timestamp {
        earlier(now.saturating_add(self.settle_within), self.answer_by)
    }

    /// Returns when the preparation of a settlement, such as writing its chunks, must end if it begins at `now`.
    ///
    /// If at most the reserve is left until the answer is due, the front end may have stopped waiting long before the
    /// deadline, but its client's retry needs the response. So the preparation gets half of the time until `last_call`.
    /// If `last_call` is `None`, nothing limits the settlement, and the preparation gets half of the reserve.
    pub fn prepare_by(&self, now: Timestamp) -> Timestamp {
        let left = match self.answer_by {
            Some(answer_by) if now.until(answer_by) <= self.reserve => {
                let left = self.last_call().map_or(self.reserve, |last| now.until(last));
                left.min(self.settle_within)
            }
            _ => now.until(self.settle_by(now)),
        };
        now.saturating_add(left / 2)
    }

    fn before_deadline(&self, reserve: Duration) -> Option<Timestamp> {
        Some(self.deadline?.saturating_sub(reserve))
    }
}

/// The earlier of two times, if there's a second one.
fn earlier(time: Timestamp, limit: Option<Timestamp>) -> Timestamp {
    limit.map_or(time, |limit| limit.min(time))
}
