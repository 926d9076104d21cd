//! The explored spaces: the bounded slice that every test run explores, and the long form.

mod deaths;
mod inside;
pub(crate) mod reconcile;

use lambda_idempotency::settings::Execution;

use crate::{
    configuration::{Configuration, DAY, Flow, Host, TICK, millis, ticks},
    model::Verdict,
};

const COMPLETE_OR_RELEASE: &[Verdict] = &[Verdict::Complete, Verdict::Release];
const COMMIT_OR_RELEASE: &[Verdict] = &[Verdict::Commit, Verdict::Release];
const COMMIT: &[Verdict] = &[Verdict::Commit];
const WITH_PANIC: &[Verdict] = &[Verdict::Complete, Verdict::Release, Verdict::Panic];

/// Two versions of the function, one of which runs at most once: a deployment, and its rollback.
pub(crate) fn mixed(name: &'static str, first: Execution) -> Configuration {
    Configuration {
        name,
        execution: first,
        is_mixed: true,
        times: ticks(5),
        verdicts: COMPLETE_OR_RELEASE,
        ..Configuration::default()
    }
}

/// The bounded slice, which every test run explores.
pub fn bounded() -> Vec<Configuration> {
    vec![
        Configuration { name: "2 executors, clocks M apart", ..Configuration::default() },
        Configuration {
            name: "2 executors, one clock, 2 faults",
            clocks: vec![0, 0],
            times: ticks(4),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, killed at the deadline, 2 faults",
            host: Host::Kills,
            times: ticks(5),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration { name: "at most once", execution: Execution::AtMostOnce, ..Configuration::default() },
        mixed("at most once, then at least once", Execution::AtMostOnce),
        mixed("at least once, then at most once", Execution::AtLeastOnce),
        Configuration {
            name: "an operator, twice, no fault",
            operations: 2,
            times: ticks(5),
            faults: 0,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "an operator, at most once",
            execution: Execution::AtMostOnce,
            operations: 1,
            times: ticks(5),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        // An interruption may restore the lease that an operator saw before an extension.
        Configuration {
            name: "an operator, 1 executor, leases extended, 2 faults",
            clocks: vec![0],
            executors: 1,
            operations: 1,
            extensions: 1,
            faults: 2,
            permanent_faults: true,
            times: ticks(4),
            verdicts: &[Verdict::Complete, Verdict::Release, Verdict::Interrupt],
            ..Configuration::default()
        },
        Configuration {
            name: "another request under the key",
            requests: 2,
            times: ticks(5),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "permanent faults too, 2 faults",
            permanent_faults: true,
            times: ticks(4),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "1 executor, 2 attempts, 4 faults",
            clocks: vec![0],
            executors: 1,
            attempts: 2,
            times: ticks(3),
            faults: 4,
            permanent_faults: true,
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, 2 attempts, no fault",
            attempts: 2,
            times: ticks(5),
            faults: 0,
            ..Configuration::default()
        },
        Configuration {
            name: "3 executors",
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(3),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "clocks that jump",
            jumps: 1,
            times: ticks(4),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "a clock beyond M, ahead",
            clocks: vec![0, 3 * TICK],
            times: ticks(5),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "a clock beyond M, behind",
            clocks: vec![0, -3 * TICK],
            times: ticks(4),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration { faults: 0, ..to_the_millisecond() },
        short_retention(),
        Configuration {
            name: "a retention of a day and a half",
            retention: 3 * TICK,
            times: ticks(7),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
    ]
    .into_iter()
    .chain(interruptions())
    .chain(deaths::deaths())
    .chain(retries())
    .chain(extensions())
    .chain(transactions())
    .chain(without_claims())
    .chain(inside::inside())
    .chain(reconcile::reconcile())
    .collect()
}

/// Handlers that panic, and the deliveries that follow.
fn interruptions() -> Vec<Configuration> {
    let two = || Configuration { attempts: 2, verdicts: WITH_PANIC, ..Configuration::default() };
    vec![
        Configuration { name: "panics, 2 attempts, no fault", faults: 0, times: ticks(5), ..two() },
        Configuration { name: "panics, one clock, 2 attempts", clocks: vec![0, 0], times: ticks(3), ..two() },
        Configuration {
            name: "panics, an operator, another request",
            attempts: 1,
            operations: 1,
            requests: 2,
            times: ticks(4),
            ..two()
        },
    ]
}

/// Settlements that are retried two or three times, in some spaces with a limit on the time.
fn retries() -> Vec<Configuration> {
    let one = || Configuration {
        clocks: vec![0],
        executors: 1,
        times: ticks(3),
        max_retries: 2,
        faults: 6,
        verdicts: COMPLETE_OR_RELEASE,
        ..Configuration::default()
    };
    vec![
        Configuration { name: "3 retries, 1 executor, 7 faults", max_retries: 3, faults: 7, ..one() },
        Configuration {
            name: "retries for a tick, 1 executor, 6 faults",
            max_retries: 3,
            settle_within: millis(TICK),
            times: ticks(4),
            ..one()
        },
        Configuration {
            name: "transactions, 2 retries, 1 executor, 6 faults",
            declines: 1,
            verdicts: COMMIT_OR_RELEASE,
            ..one()
        },
        Configuration {
            name: "without claims, 2 retries, 1 executor, 6 faults",
            flows: &[Flow::Look],
            declines: 1,
            verdicts: COMMIT_OR_RELEASE,
            ..one()
        },
        Configuration {
            name: "2 executors, 2 retries, 2 faults",
            clocks: vec![0, TICK],
            executors: 2,
            faults: 2,
            settle_within: millis(2 * TICK),
            times: ticks(4),
            ..one()
        },
    ]
}

/// T7: lease extensions.
fn extensions() -> Vec<Configuration> {
    let one = || Configuration {
        extensions: 1,
        times: ticks(4),
        verdicts: COMPLETE_OR_RELEASE,
        ..Configuration::default()
    };
    vec![
        Configuration { name: "leases extended twice", extensions: 2, ..one() },
        Configuration {
            name: "leases extended, one clock, 2 faults",
            clocks: vec![0, 0],
            faults: 2,
            verdicts: &[Verdict::Complete],
            ..one()
        },
        Configuration { name: "leases extended, an operator", operations: 1, ..one() },
        Configuration {
            name: "leases extended, transactions, permanent faults",
            permanent_faults: true,
            verdicts: COMMIT,
            ..one()
        },
    ]
}

/// T8: transactions.
fn transactions() -> Vec<Configuration> {
    let two = || Configuration {
        declines: 1,
        times: ticks(5),
        verdicts: COMMIT_OR_RELEASE,
        ..Configuration::default()
    };
    vec![
        Configuration { name: "transactions, clocks M apart", ..two() },
        Configuration {
            name: "transactions, at most once",
            execution: Execution::AtMostOnce,
            token_window: TICK,
            ..two()
        },
        Configuration {
            name: "transactions, one clock, 2 faults",
            clocks: vec![0, 0],
            times: ticks(4),
            faults: 2,
            ..two()
        },
        Configuration {
            name: "transactions, 1 executor, 2 attempts, 4 faults",
            clocks: vec![0],
            executors: 1,
            attempts: 2,
            times: ticks(3),
            faults: 4,
            permanent_faults: true,
            verdicts: &[Verdict::Commit, Verdict::Complete, Verdict::Fail, Verdict::Release],
            ..two()
        },
        Configuration {
            name: "transactions, 1 executor, 10 faults",
            clocks: vec![0],
            executors: 1,
            times: ticks(2),
            faults: 10,
            verdicts: COMMIT,
            ..two()
        },
    ]
}

/// Handlers that run without a claim.
fn without_claims() -> Vec<Configuration> {
    let two = || Configuration {
        flows: &[Flow::Look],
        declines: 1,
        times: ticks(5),
        verdicts: COMMIT_OR_RELEASE,
        ..Configuration::default()
    };
    vec![
        Configuration {
            name: "without claims, clocks M apart, 2 attempts",
            attempts: 2,
            times: ticks(4),
            ..two()
        },
        Configuration {
            name: "without claims or reads, permanent faults, 2 faults",
            flows: &[Flow::Look, Flow::Blind],
            faults: 2,
            permanent_faults: true,
            times: ticks(3),
            verdicts: &[Verdict::Commit, Verdict::Complete, Verdict::Fail],
            ..two()
        },
        Configuration {
            name: "with and without claims",
            flows: &[Flow::Claim, Flow::Look, Flow::Blind],
            times: ticks(4),
            token_window: TICK,
            verdicts: &[Verdict::Commit, Verdict::Complete],
            ..two()
        },
        Configuration {
            name: "with and without claims, at most once, an operator",
            flows: &[Flow::Claim, Flow::Look],
            execution: Execution::AtMostOnce,
            operations: 1,
            declines: 0,
            times: ticks(4),
            verdicts: COMMIT,
            ..two()
        },
        Configuration {
            name: "with and without claims, another request",
            flows: &[Flow::Claim, Flow::Look],
            requests: 2,
            declines: 0,
            verdicts: COMMIT,
            ..two()
        },
        Configuration {
            name: "without claims, 3 executors",
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(3),
            verdicts: COMMIT,
            ..two()
        },
        Configuration { name: "without claims, a clock beyond M, ahead", clocks: vec![0, 3 * TICK], ..two() },
    ]
}

/// The long form: the bounded slice, and every space that takes minutes.
pub fn long() -> Vec<Configuration> {
    let two_by_two = || Configuration { attempts: 2, times: ticks(5), ..Configuration::default() };
    let large = vec![
        Configuration {
            name: "2 executors, 4 moments, any number of faults",
            times: ticks(4),
            faults: u8::MAX,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "1 executor, 2 attempts, any number of faults",
            clocks: vec![0],
            executors: 1,
            attempts: 2,
            times: ticks(4),
            faults: u8::MAX,
            permanent_faults: true,
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, 2 attempts, 2 moments, 3 faults",
            times: ticks(2),
            faults: 3,
            verdicts: COMPLETE_OR_RELEASE,
            ..two_by_two()
        },
        Configuration { name: "2 executors, 2 attempts, clocks M apart", ..two_by_two() },
        Configuration {
            name: "2 executors, 2 attempts, 3 moments, 2 faults",
            times: ticks(3),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "2 executors, 2 attempts, killed at the deadline, 2 faults",
            host: Host::Kills,
            times: ticks(4),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "2 executors, 2 attempts, at most once",
            execution: Execution::AtMostOnce,
            ..two_by_two()
        },
        Configuration {
            name: "2 executors, 2 attempts, another request, 3 moments",
            requests: 2,
            times: ticks(3),
            verdicts: COMPLETE_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "2 executors, 3 faults",
            faults: 3,
            times: ticks(5),
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, longer leases, 8 moments",
            lease: 2 * TICK,
            times: ticks(8),
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, permanent faults too, 3 faults",
            permanent_faults: true,
            faults: 3,
            times: ticks(4),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "3 executors, clocks M apart, 5 moments",
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(5),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "3 executors, 3 moments, 2 faults",
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(3),
            faults: 2,
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "clocks that jump twice",
            jumps: 2,
            times: ticks(6),
            ..Configuration::default()
        },
        Configuration {
            name: "2 executors, 2 attempts, a clock beyond M, ahead",
            clocks: vec![0, 3 * TICK],
            times: ticks(4),
            verdicts: COMPLETE_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "a clock beyond M, behind, 6 moments",
            clocks: vec![0, -3 * TICK],
            ..Configuration::default()
        },
        Configuration { name: "to the millisecond, 1 fault", ..to_the_millisecond() },
        Configuration {
            name: "leases extended twice, longer, 8 moments",
            extensions: 2,
            lease: 2 * TICK,
            times: ticks(8),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "leases extended, 2 attempts, transactions",
            extensions: 1,
            declines: 1,
            times: ticks(4),
            verdicts: COMMIT_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "transactions, 2 attempts, clocks M apart, tokens kept for a tick",
            declines: 1,
            token_window: TICK,
            verdicts: COMMIT_OR_RELEASE,
            ..two_by_two()
        },
        Configuration {
            name: "transactions, 3 faults",
            declines: 1,
            faults: 3,
            times: ticks(4),
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "transactions, a clock beyond M, behind",
            clocks: vec![0, -3 * TICK],
            declines: 1,
            times: ticks(5),
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "transactions, killed at the deadline, 2 faults",
            host: Host::Kills,
            declines: 1,
            times: ticks(5),
            faults: 2,
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "without claims, 2 declines, 3 faults",
            flows: &[Flow::Look],
            declines: 2,
            faults: 3,
            times: ticks(4),
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "without claims, 3 executors, 4 moments",
            flows: &[Flow::Look, Flow::Blind],
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(4),
            verdicts: COMMIT,
            ..Configuration::default()
        },
        Configuration {
            name: "with and without claims, leases extended, 2 faults",
            flows: &[Flow::Claim, Flow::Look],
            extensions: 1,
            declines: 1,
            faults: 2,
            times: ticks(4),
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "panics, clocks M apart, 2 attempts",
            attempts: 2,
            times: ticks(4),
            verdicts: WITH_PANIC,
            ..Configuration::default()
        },
        Configuration {
            name: "panics, 3 executors",
            clocks: vec![0, TICK, 0],
            executors: 3,
            times: ticks(4),
            faults: 0,
            verdicts: WITH_PANIC,
            ..Configuration::default()
        },
        Configuration {
            name: "2 retries, 2 executors, 3 faults",
            max_retries: 2,
            faults: 3,
            times: ticks(4),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "3 retries for two ticks, 2 executors, permanent faults too, 2 faults",
            max_retries: 3,
            settle_within: millis(2 * TICK),
            permanent_faults: true,
            faults: 2,
            times: ticks(5),
            verdicts: COMPLETE_OR_RELEASE,
            ..Configuration::default()
        },
        Configuration {
            name: "transactions, 2 retries, 2 executors, 3 faults",
            max_retries: 2,
            declines: 1,
            faults: 3,
            times: ticks(3),
            verdicts: COMMIT_OR_RELEASE,
            ..Configuration::default()
        },
    ];
    // The largest spaces come first. Otherwise one worker could explore a large space at the end, with all others idle.
    large.into_iter().chain(reconcile::long()).chain(bounded()).collect()
}

/// A retention of 18 hours, so that a lock, which is kept for at least a day, outlasts it. The grid's step is a quarter
/// of a day. The lease, the skew margin and the distance between the clocks are each half of the default.
fn short_retention() -> Configuration {
    let step = TICK / 2;
    Configuration {
        name: "a retention of less than a day",
        clocks: vec![0, step],
        lease: step,
        skew_margin: step,
        retention: 3 * step,
        times: (0..7).map(|n| n * step).collect(),
        verdicts: COMPLETE_OR_RELEASE,
        ..Configuration::default()
    }
}

/// Real durations, with moments just before and just after the boundaries, a millisecond apart.
pub fn to_the_millisecond() -> Configuration {
    let (start, lease, margin) = (1, 60_000, 2000);
    let stale = start + lease;
    // The lease's end, rounded up to a whole second like every expiry, plus a day.
    let expired = 61_000 + DAY;
    Configuration {
        name: "to the millisecond",
        clocks: vec![0, margin],
        lease,
        skew_margin: margin,
        retention: DAY,
        times: vec![
            start,
            start + lease - 2001,
            start + lease - 2000,
            stale,
            stale + 1,
            stale + margin,
            expired,
            expired + 1,
        ],
        ..Configuration::default()
    }
}
