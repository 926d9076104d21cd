//! The bounds of an exploration: how many executors, with which clocks, at which moments, with which faults.

use std::time::Duration;

use lambda_idempotency::{
    Fingerprint,
    protocol::{Limits, Plan, Reconcile, Rules},
    settings::Execution,
    store::{Outcome, Owner, StoredResponse},
    time::Timestamp,
};

use crate::{
    invariants::Invariant,
    model::{
        Delivery, ExploredState, Late, MAX_DELIVERIES, MAX_LATE, MAX_MADE, MAX_SLOTS, Made, NOBODY,
        Operation, Slot, Verdict,
    },
};

/// A day in milliseconds: the protocol's minimum for a lock's retention.
pub const DAY: i64 = 24 * 60 * 60 * 1000;
/// The step of the even grid of moments: half a day, so that a lock's minimum retention is two steps.
pub const TICK: i64 = DAY / 2;

/// The true time at which every exploration begins, in milliseconds. It's a whole number of days, so that
/// every tick is a whole second.
const BEGINNING: i64 = 20_776 * DAY;

/// Whether the platform ends an invocation at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The platform ends the invocation, as ordinary Lambda does: a little after the deadline, but within the
    /// lease's grace.
    Kills,
    /// The platform lets the invocation continue, as Lambda Managed Instances do. The library checks before
    /// each poll whether to cut the handler off.
    LetsRun,
}

/// How an executor processes a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// The executor claims the key, and runs its handler under the claim.
    Claim,
    /// The executor reads the record, runs its handler without a claim, and stores the outcome with a
    /// conclusion.
    Look,
    /// The executor runs its handler at once, without a claim and without reading the record.
    Blind,
    /// The executor locks the key in its caller's transaction, reads the record, and runs its handler. It puts the
    /// outcome into that transaction and commits it. A space with this flow has neither [`Look`](Self::Look) nor
    /// [`Blind`](Self::Blind).
    Inside,
}

/// How the remote system answers, when an operation with a reconciler asks for the effect of an earlier attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remote {
    /// An effect arrives within the time that the reconciler waits, and the answer is true.
    Honest,
    /// The answer is true when it's given, but an effect may arrive after it.
    Late,
    /// The answer may be wrong.
    Lying,
}

/// How the functions ask the remote system for the effect of an attempt that ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconciler {
    /// How long an effect may be on its way, in milliseconds.
    pub arrives_within: i64,
    /// Whether the handler may run again under at-most-once if the effect didn't happen.
    pub reruns_when_absent: bool,
    /// How the remote system answers.
    pub remote: Remote,
    /// Whether every second delivery goes to a version of the function without a reconciler.
    pub is_mixed: bool,
}

impl Reconciler {
    /// A reconciler that waits one tick, with an honest remote system.
    pub const HONEST: Self =
        Self { arrives_within: TICK, reruns_when_absent: false, remote: Remote::Honest, is_mixed: false };
}

/// One space to explore. All numbers of type `i64` are milliseconds. Moments are counted from the beginning.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The space's name in reports.
    pub name: &'static str,
    /// How far each clock is ahead of true time. Executor `n` begins with clock `n`.
    pub clocks: Vec<i64>,
    /// How many executors there are: they use the first clocks of the list.
    pub executors: usize,
    /// How many deliveries each executor may take.
    pub attempts: u8,
    /// The moments of true time at which something can happen.
    pub times: Vec<i64>,
    /// The length of a lease, counted from the delivery.
    pub lease: i64,
    /// The last part of a lease, during which it's too late to start a handler.
    pub reserve: i64,
    /// The clock skew that the protocol allows for.
    pub skew_margin: i64,
    /// How long a settled record is replayed.
    pub retention: i64,
    /// Whether the platform ends an invocation at its deadline.
    pub host: Host,
    /// Whether handlers run at least once or at most once, which decides how a stale claim is treated.
    pub execution: Execution,
    /// Whether every second delivery goes to a version of the function with the other execution, as during a
    /// deployment or after a rollback.
    pub is_mixed: bool,
    /// How attempts that ended without an answer are reconciled, if they are. Such a space has claims only, and its clocks
    /// don't jump.
    pub reconciler: Option<Reconciler>,
    /// How many different requests use the key: 1 or 2.
    pub requests: u8,
    /// How an executor may process a delivery.
    pub flows: &'static [Flow],
    /// How a handler may end.
    pub verdicts: &'static [Verdict],
    /// How many faults one path may have; `u8::MAX` for no limit.
    pub faults: u8,
    /// How many writes may be in flight after their senders gave up: at most [`MAX_LATE`].
    pub in_flight: u8,
    /// How often, on one path, an executor's clock may jump to another clock in `clocks`.
    pub jumps: u8,
    /// How often, on one path, an operator may decide. Operators only change a settled record, or a claim that's stale by
    /// true time. They never decide while the handler of the record's holder runs. They follow the machine, and their
    /// writes and reads meet faults like an executor's.
    pub operations: u8,
    /// How often, on one path, a lease may be extended while its handler runs. An extended lease has the length of
    /// the first one, counted from the request for the extension.
    pub extensions: u8,
    /// How often, on one path, a condition on a handler's own writes may fail.
    pub declines: u8,
    /// How long the store remembers a transaction's token.
    pub token_window: i64,
    /// Whether the store may also reject a request, refuse a response permanently, or hold a record that can't be
    /// read.
    pub permanent_faults: bool,
    /// How often a settlement is retried.
    pub max_retries: u8,
    /// How long a settlement is retried.
    pub settle_within: Duration,
}

impl Default for Configuration {
    /// Two executors, on an even grid of moments. Their clocks are as far apart as the skew margin allows. The lease
    /// is one tick, and so is the skew margin. If the executor with true time claims the key at tick 0, the lock is
    /// stale from tick 2 on by the other clock, which is ahead. The lock is kept for two ticks after its lease, so by
    /// that clock it has also expired from tick 4 on.
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
            is_mixed: false,
            reconciler: None,
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
            // A limit would put an instant into every machine's state, and so split equal states into many.
            // `max_retries` bounds the retries too.
            settle_within: Duration::MAX,
        }
    }
}

/// The first `count` moments of the even grid.
pub fn ticks(count: i64) -> Vec<i64> {
    (0..count).map(|n| n * TICK).collect()
}

impl Configuration {
    /// Whether executors without a claim run in their callers' transactions.
    pub fn is_inside(&self) -> bool {
        self.flows.contains(&Flow::Inside)
    }

    /// Whether all clocks, true time included, agree up to the skew margin. The protocol's promises about time
    /// hold only then.
    pub fn clocks_agree(&self) -> bool {
        let all = || self.clocks.iter().copied().chain([0]);
        let apart = all().max().unwrap_or(0) - all().min().unwrap_or(0);
        apart <= self.skew_margin
    }

    /// True time at this moment.
    pub fn moment(&self, time: u8) -> Timestamp {
        at(self.times.get(usize::from(time)).copied().unwrap_or(i64::MAX / 2))
    }

    /// How many slots a state has: one for each executor, and a last one for an operator, if there are operators.
    pub fn slots(&self) -> usize {
        self.executors + usize::from(self.operations > 0)
    }

    /// The time that this clock shows at this moment.
    pub fn clock(&self, time: u8, clock: u8) -> Timestamp {
        let ahead = self.clocks.get(usize::from(clock)).copied().unwrap_or(0);
        at(self.times.get(usize::from(time)).copied().unwrap_or(i64::MAX / 2) + ahead)
    }

    /// Plans a delivery under `owner` that arrives at `now` by its executor's clock. Without `has_time`, the
    /// deadline is `now`.
    pub fn plan(&self, owner: Owner, request: u8, now: Timestamp, has_time: bool) -> Plan {
        let deadline = if has_time { self.lease - self.reserve } else { 0 };
        let start_by = now.saturating_add(millis(deadline));
        let delivery = drawn_by(owner).0;
        Plan {
            rules: Rules {
                execution: self.execution_of(delivery),
                reconcile: self.reconciler_of(delivery).map(|reconciler| Reconcile {
                    arrives_within: millis(reconciler.arrives_within),
                    reruns_when_absent: reconciler.reruns_when_absent,
                }),
                ..self.rules()
            },
            owner,
            fingerprint: fingerprint(request),
            limits: self.limits(start_by.saturating_add(millis(self.reserve))),
            request_id: None,
            trace: None,
        }
    }

    /// The lease is the only deadline: calls take no time here, and only faults end them early.
    fn limits(&self, lease_until: Timestamp) -> Limits {
        Limits {
            lease_grace: millis(self.reserve),
            max_retries: Some(self.max_retries),
            ..Limits::unknown(lease_until, self.settle_within)
        }
    }

    /// Whether this delivery's function runs at least once or at most once.
    pub fn execution_of(&self, delivery: u8) -> Execution {
        let is_other = self.is_mixed && delivery != NOBODY && delivery % 2 == 1;
        match self.execution {
            execution if !is_other => execution,
            Execution::AtLeastOnce => Execution::AtMostOnce,
            Execution::AtMostOnce => Execution::AtLeastOnce,
        }
    }

    /// The reconciler of this delivery's function, if it has one. An operator has none.
    pub fn reconciler_of(&self, delivery: u8) -> Option<Reconciler> {
        let reconciler = self.reconciler.filter(|_| delivery != NOBODY)?;
        (!reconciler.is_mixed || delivery.is_multiple_of(2)).then_some(reconciler)
    }

    /// How the remote system answers.
    pub fn remote(&self) -> Remote {
        self.reconciler.map_or(Remote::Honest, |reconciler| reconciler.remote)
    }

    /// The invariants that no protocol can keep in this space.
    pub fn exempt(&self) -> &'static [Invariant] {
        let Some(reconciler) = self.reconciler else { return &[] };
        let reruns = self.execution == Execution::AtLeastOnce || reconciler.reruns_when_absent;
        let is_mixed = reconciler.is_mixed && self.verdicts.contains(&Verdict::Panic);
        match reconciler.remote {
            // A function without a reconciler releases the key after a panic. The record doesn't say when that was, so the
            // next attempt asks at once, although the effect may still arrive.
            Remote::Honest if is_mixed => &[Invariant::AskedInTime, Invariant::OneEffect],
            Remote::Honest => &[],
            // An effect may always still arrive: when the question is asked, and when the handler starts.
            Remote::Late if reruns => &[Invariant::AskedInTime, Invariant::OneEffect],
            Remote::Late => &[Invariant::AskedInTime],
            // The handler starts because the remote system denies an effect that it has.
            Remote::Lying if reruns => &[Invariant::OneEffect],
            Remote::Lying => &[],
        }
    }

    /// The rules that the first delivery's executor follows, without its reconciler.
    pub fn rules(&self) -> Rules {
        Rules {
            skew_margin: millis(self.skew_margin),
            retention: millis(self.retention),
            execution: self.execution,
            reconcile: None,
        }
    }
}

/// The moment `millis` milliseconds after the beginning.
fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(BEGINNING + millis).unwrap_or(0))
}

/// Converts milliseconds to a duration. Negative values become zero.
pub fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// The time from the beginning until `time`, in milliseconds.
pub fn since_beginning(time: Timestamp) -> i64 {
    i64::try_from(time.as_millis()).map_or(i64::MAX, |millis| millis - BEGINNING)
}

/// The owner that a delivery draws. It encodes the number of the delivery and the number of the request.
pub fn owner(delivery: u8, request: u8) -> Owner {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (delivery + 1, request);
    Owner::from_bytes(bytes)
}

/// The owner that an operator draws. No delivery draws this owner, and each of an operator's writes has a
/// different owner. The response that an operator stores is the response of [`NOBODY`].
pub fn operator(operations_left: u8) -> Owner {
    let mut bytes = [0; 16];
    bytes[2] = operations_left;
    Owner::from_bytes(bytes)
}

/// Marks the operator's write that has this owner, in a set of such writes.
pub fn operation_of(owner: Owner) -> u8 {
    1u8.checked_shl(owner.as_bytes()[2].saturating_sub(1).into()).unwrap_or(0)
}

/// The delivery that drew `owner`, and its request.
pub fn drawn_by(owner: Owner) -> (u8, u8) {
    (owner.as_bytes()[0].wrapping_sub(1), owner.as_bytes()[1])
}

/// The fingerprint of a request.
pub fn fingerprint(request: u8) -> Fingerprint {
    Fingerprint::from_digest([request; 32])
}

/// The response of a delivery's handler. No two deliveries have the same response, so that a replay shows
/// which delivery it repeats. Each delivery's response with the handler's own writes also differs from its
/// response without them, and from one that its question found.
pub fn response(delivery: u8, verdict: Verdict) -> Outcome {
    let kind = match verdict {
        Verdict::Commit => 1,
        Verdict::Found | Verdict::FoundFailed => 2,
        _ => 0,
    };
    Outcome::Retained(StoredResponse::new(vec![delivery, kind].into()))
}

impl ExploredState {
    /// The initial state.
    pub fn new(configuration: &Configuration) -> Self {
        let mut slots = [Slot::default(); MAX_SLOTS];
        for (slot, clock) in slots.iter_mut().zip(0..).take(configuration.executors) {
            *slot = Slot { clock, attempts_left: configuration.attempts, ..Slot::default() };
            slot.awake();
        }
        let mut explored = Self {
            time: 0,
            record: 0,
            holder: NOBODY,
            operation: Operation::default(),
            has_run: false,
            highest_start: 0,
            faults_left: configuration.faults,
            jumps_left: configuration.jumps,
            operations_left: configuration.operations,
            extensions_left: configuration.extensions,
            declines_left: configuration.declines,
            is_resolved: false,
            unwritten: 0,
            has_effect: false,
            delivered: 0,
            slots,
            late: [Late::default(); MAX_LATE],
            made: [Made::default(); MAX_MADE],
            deliveries: [Delivery::default(); MAX_DELIVERIES],
        };
        explored.tidy(configuration.executors);
        explored
    }
}
