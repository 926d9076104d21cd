//! What is explored: how many executors, whose clocks, on which moments, with which troubles.

use std::time::Duration;

use lambda_idempotency::{
    Execution, Fingerprint, Outcome, Owner, StoredResponse, Timestamp,
    protocol::{Limits, Plan, Rules},
};

use crate::model::Verdict;

/// The longest that a world's list of executors may be.
pub const MAX_SLOTS: usize = 3;
/// The longest that a world's list of deliveries may be.
pub const MAX_DELIVERIES: usize = 6;
/// How many writes may be on their way after their sender gave up on them.
pub const MAX_LATE: usize = 2;
/// How many transactions the store knows by their tokens: one of each executor, and those that may come late.
pub const MAX_MADE: usize = MAX_SLOTS + MAX_LATE;

/// A day in milliseconds: the library's own lower bound of a lock's retention.
pub const DAY: i64 = 24 * 60 * 60 * 1000;
/// The coarse grid's step: half a day, so that a lock's retention is two of them.
pub const TICK: i64 = DAY / 2;

/// The true time at which every exploration begins: a whole day, so that whole seconds fall on it.
const BEGINNING: i64 = 20_776 * DAY;

/// Whether the platform ends an invocation at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// As ordinary Lambda does: a little late, but within the grace that the lease has.
    Kills,
    /// As Lambda Managed Instances do not: the engine cuts the handler off, before each poll.
    LetsRun,
}

/// How an executor goes about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// It claims the key, and runs its handler under the claim.
    Claim,
    /// It looks whether there is an outcome, runs its handler without a claim, and concludes.
    Look,
    /// It runs its handler at once, without a look.
    Blind,
}

/// One space to explore. Times are in milliseconds after the beginning.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What it is called in reports.
    pub name: &'static str,
    /// The clocks there are, by how far each is ahead of true time. Executor `n` begins with clock `n`.
    pub clocks: Vec<i64>,
    /// How many executors there are: the first so many clocks are theirs.
    pub executors: usize,
    /// How many deliveries each executor may take.
    pub attempts: u8,
    /// The moments of true time.
    pub times: Vec<i64>,
    /// How long a lease is, counted from the delivery.
    pub lease: i64,
    /// How long before the lease's end it is too late to start.
    pub reserve: i64,
    /// How far apart the protocol believes the clocks to be at most.
    pub skew_margin: i64,
    /// How long a settled record counts.
    pub retention: i64,
    /// Who ends a handler in time.
    pub host: Host,
    /// What becomes of a stale claim.
    pub execution: Execution,
    /// How many different requests use the key: 1 or 2.
    pub requests: u8,
    /// How an executor may go about a delivery.
    pub flows: &'static [Flow],
    /// How a handler may end.
    pub verdicts: &'static [Verdict],
    /// How many faults there may be on one path; `u8::MAX` is no limit.
    pub faults: u8,
    /// How many writes may be in flight with nobody waiting for them: at most [`MAX_LATE`].
    pub in_flight: u8,
    /// How often a clock may jump to another of the list.
    pub jumps: u8,
    /// How often an operator may decide on a write: on a settled record, or on one whose claim is stale by true time.
    pub operations: u8,
    /// How often a lease may be extended, while its handler runs: by as much as it had at first, counted from then.
    pub extensions: u8,
    /// How often a condition of a handler's own writes may fail.
    pub declines: u8,
    /// How long the store knows a transaction by its token.
    pub token_window: i64,
    /// Whether the store may also refuse a request as such, or never take its content, or hold a record that nobody can
    /// read.
    pub permanent_faults: bool,
    /// How often a settlement is retried.
    pub max_retries: u8,
    /// For how long it is retried.
    pub settle_within: Duration,
}

impl Default for Configuration {
    /// Two executors on an even grid, whose clocks are as far apart as they may be. The lease is a tick
    /// and so is the skew margin: by the clock that is ahead, a lock is stale from the second tick on. Its
    /// retention is two more, so from the fourth on it is expired too.
    fn default() -> Self {
        Self {
            name: "two",
            clocks: vec![0, TICK],
            executors: 2,
            attempts: 1,
            times: ticks(6),
            lease: TICK,
            reserve: 2000,
            skew_margin: TICK,
            retention: 2 * TICK,
            host: Host::LetsRun,
            execution: Execution::AtLeastOnce,
            requests: 1,
            flows: &[Flow::Claim],
            verdicts: &[Verdict::Complete, Verdict::Fail, Verdict::Release],
            faults: 1,
            in_flight: 2,
            jumps: 0,
            operations: 0,
            extensions: 0,
            declines: 0,
            token_window: 0,
            permanent_faults: false,
            max_retries: 1,
            // An instant in every machine's state would make many of one. How often is a bound as well.
            settle_within: Duration::MAX,
        }
    }
}

/// The first `count` moments of the even grid.
pub fn ticks(count: i64) -> Vec<i64> {
    (0..count).map(|n| n * TICK).collect()
}

impl Configuration {
    /// Whether all clocks, true time included, agree up to the skew margin. What the protocol promises
    /// of time holds only then.
    pub fn clocks_agree(&self) -> bool {
        let all = || self.clocks.iter().copied().chain([0]);
        let apart = all().max().unwrap_or(0) - all().min().unwrap_or(0);
        apart <= self.skew_margin
    }

    /// True time at the moment with this number.
    pub fn moment(&self, time: u8) -> Timestamp {
        at(self.times.get(usize::from(time)).copied().unwrap_or(i64::MAX / 2))
    }

    /// What the clock with this number shows at that moment.
    pub fn clock(&self, time: u8, clock: u8) -> Timestamp {
        let ahead = self.clocks.get(usize::from(clock)).copied().unwrap_or(0);
        at(self.times.get(usize::from(time)).copied().unwrap_or(i64::MAX / 2) + ahead)
    }

    /// The plan, under `owner`, of a delivery that comes in at `now` by its executor's clock. With no time left, its
    /// deadline is this very moment.
    pub fn plan(&self, owner: Owner, request: u8, now: Timestamp, has_time: bool) -> Plan {
        let deadline = if has_time { self.lease - self.reserve } else { 0 };
        let usable_until = now.saturating_add(millis(deadline));
        Plan {
            rules: self.rules(),
            owner,
            fingerprint: fingerprint(request),
            lease_until: usable_until.saturating_add(millis(self.reserve)),
            usable_until,
            limits: self.limits(),
            request_id: None,
        }
    }

    /// No deadline but the lease's: calls are over at once here, and what ends them is a fault.
    fn limits(&self) -> Limits {
        Limits { max_retries: self.max_retries, ..Limits::unknown(self.settle_within) }
    }

    /// The rules that every executor goes by.
    pub fn rules(&self) -> Rules {
        Rules {
            skew_margin: millis(self.skew_margin),
            retention: millis(self.retention),
            execution: self.execution,
        }
    }
}

/// The moment so many milliseconds after the beginning.
fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(BEGINNING + millis).unwrap_or(0))
}

/// A length of time; a negative one is none.
pub fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// How many milliseconds after the beginning `time` is.
pub fn since_beginning(time: Timestamp) -> i64 {
    i64::try_from(time.as_millis()).map_or(i64::MAX, |millis| millis - BEGINNING)
}

/// The owner of a delivery: its number, and the request's.
pub fn owner(delivery: u8, request: u8) -> Owner {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (delivery + 1, request);
    Owner::from_bytes(bytes)
}

/// The owner that an operator draws: no delivery's, and another every time. What is stored under it is the response of
/// [`NOBODY`](crate::model::NOBODY).
pub fn operator(operations_left: u8) -> Owner {
    let mut bytes = [0; 16];
    bytes[2] = operations_left;
    Owner::from_bytes(bytes)
}

/// The delivery that drew `owner`, and its request.
pub fn drawn_by(owner: Owner) -> (u8, u8) {
    (owner.as_bytes()[0].wrapping_sub(1), owner.as_bytes()[1])
}

/// The fingerprint of a request.
pub fn fingerprint(request: u8) -> Fingerprint {
    Fingerprint::from_digest([request; 32])
}

/// What the handler of a delivery answers: no two answer alike, so that a replay shows whose it is; and none answers
/// alike with writes of its own and without.
pub fn response(delivery: u8, verdict: Verdict) -> Outcome {
    Outcome::Retained(StoredResponse::new(vec![delivery, u8::from(verdict == Verdict::Commit)].into()))
}
