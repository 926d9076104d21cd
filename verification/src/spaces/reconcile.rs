//! The spaces with a reconciler.

use lambda_idempotency::settings::Execution;

use crate::{
    configuration::{Configuration, DAY, Host, Reconciler, Remote, TICK, ticks},
    model::Verdict,
};

/// Two executors that ask. The lease is a tick, and so is the time in which an effect may arrive. So by the later clock, a
/// claim at tick 0 may be asked for from tick 3 on.
pub(crate) fn asking() -> Configuration {
    Configuration {
        name: "reconcile, clocks M apart",
        reconciler: Some(Reconciler::HONEST),
        times: ticks(5),
        verdicts: &[Verdict::Complete, Verdict::Fail, Verdict::Release, Verdict::Interrupt],
        ..Configuration::default()
    }
}

const ENDS: &[Verdict] = &[Verdict::Complete, Verdict::Interrupt];
const REPEATED: &[Verdict] = &[Verdict::Complete, Verdict::Release, Verdict::Panic];

/// Effects that must be asked for before the handler runs again.
pub(super) fn reconcile() -> Vec<Configuration> {
    let few = || Configuration { verdicts: ENDS, ..asking() };
    let once = || Configuration { execution: Execution::AtMostOnce, ..few() };
    let by = |remote| Some(Reconciler { remote, ..Reconciler::HONEST });
    let reruns = |remote| Some(Reconciler { reruns_when_absent: true, remote, ..Reconciler::HONEST });
    let mixed = Some(Reconciler { is_mixed: true, ..Reconciler::HONEST });
    vec![
        asking(),
        Configuration {
            name: "reconcile, one clock, 2 faults",
            clocks: vec![0, 0],
            times: ticks(4),
            faults: 2,
            verdicts: &[Verdict::Complete],
            ..few()
        },
        Configuration { name: "reconcile, leases extended", extensions: 1, ..few() },
        Configuration {
            name: "reconcile, 2 attempts, no fault",
            attempts: 2,
            faults: 0,
            verdicts: REPEATED,
            ..asking()
        },
        Configuration {
            name: "reconcile, 1 executor, 3 attempts",
            clocks: vec![0],
            executors: 1,
            attempts: 3,
            times: ticks(6),
            permanent_faults: true,
            verdicts: REPEATED,
            ..asking()
        },
        Configuration { faults: 0, ..to_the_millisecond() },
        Configuration { name: "reconcile, at most once", extensions: 1, times: ticks(4), ..once() },
        Configuration {
            name: "reconcile, at most once, reruns",
            reconciler: reruns(Remote::Honest),
            ..once()
        },
        Configuration {
            name: "reconcile, a mixed fleet, panics",
            reconciler: mixed,
            attempts: 2,
            faults: 0,
            verdicts: REPEATED,
            ..few()
        },
        Configuration {
            name: "reconcile, a mixed fleet, deaths",
            reconciler: mixed,
            attempts: 2,
            faults: 0,
            times: ticks(6),
            ..few()
        },
        Configuration {
            name: "reconcile, at most once, then at least once",
            reconciler: reruns(Remote::Honest),
            is_mixed: true,
            ..once()
        },
        Configuration { name: "reconcile, killed at the deadline", host: Host::Kills, ..few() },
        Configuration {
            name: "reconcile, another request, an operator",
            requests: 2,
            operations: 1,
            faults: 0,
            ..few()
        },
        Configuration {
            name: "reconcile, late effects",
            reconciler: by(Remote::Late),
            attempts: 2,
            faults: 0,
            ..few()
        },
        Configuration {
            name: "reconcile, wrong answers",
            reconciler: by(Remote::Lying),
            attempts: 2,
            faults: 0,
            ..few()
        },
        Configuration {
            name: "reconcile, at most once, late effects",
            reconciler: by(Remote::Late),
            ..once()
        },
        Configuration {
            name: "reconcile, at most once, reruns, wrong answers",
            reconciler: reruns(Remote::Lying),
            ..once()
        },
        Configuration {
            name: "reconcile, at most once, wrong answers",
            reconciler: by(Remote::Lying),
            attempts: 2,
            faults: 0,
            ..once()
        },
    ]
}

/// The long form's larger spaces.
pub(super) fn long() -> Vec<Configuration> {
    let few = || Configuration { verdicts: ENDS, ..asking() };
    let two_by_two = || Configuration { attempts: 2, ..few() };
    let reconciler = |change: fn(&mut Reconciler)| {
        let mut reconciler = Reconciler::HONEST;
        change(&mut reconciler);
        Some(reconciler)
    };
    vec![
        Configuration { name: "reconcile, 2 attempts, clocks M apart", ..two_by_two() },
        Configuration { name: "reconcile, 2 executors, 3 faults", faults: 3, ..few() },
        Configuration {
            name: "reconcile, 3 executors",
            clocks: vec![0, TICK, 0],
            executors: 3,
            faults: 0,
            verdicts: &[Verdict::Complete, Verdict::Release, Verdict::Interrupt],
            ..few()
        },
        Configuration {
            name: "reconcile, 1 executor, 3 attempts, 2 faults",
            clocks: vec![0],
            executors: 1,
            attempts: 3,
            times: ticks(7),
            faults: 2,
            permanent_faults: true,
            verdicts: REPEATED,
            ..asking()
        },
        Configuration {
            name: "reconcile, leases extended, 2 attempts",
            extensions: 1,
            verdicts: &[Verdict::Complete],
            faults: 0,
            ..two_by_two()
        },
        Configuration {
            name: "reconcile, at most once, reruns, 2 attempts",
            execution: Execution::AtMostOnce,
            reconciler: reconciler(|it| it.reruns_when_absent = true),
            ..two_by_two()
        },
        Configuration {
            name: "reconcile, a mixed fleet, deaths, 2 attempts",
            reconciler: reconciler(|it| it.is_mixed = true),
            verdicts: &[Verdict::Interrupt],
            ..two_by_two()
        },
        Configuration {
            name: "reconcile, another request, an operator, 1 fault",
            requests: 2,
            operations: 1,
            ..few()
        },
        Configuration { name: "reconcile, to the millisecond, 1 fault", ..to_the_millisecond() },
        Configuration {
            name: "reconcile, wrong answers, 2 attempts",
            reconciler: reconciler(|it| it.remote = Remote::Lying),
            verdicts: &[Verdict::Complete],
            ..two_by_two()
        },
    ]
}

/// Real durations, with moments just before and just after the boundaries, a millisecond apart.
fn to_the_millisecond() -> Configuration {
    let (start, lease, margin, arrives_within) = (1, 60_000, 2000, 30_000);
    let stale = start + lease;
    Configuration {
        name: "reconcile, to the millisecond",
        clocks: vec![0, margin],
        lease,
        skew_margin: margin,
        retention: DAY,
        reconciler: Some(Reconciler { arrives_within, ..Reconciler::HONEST }),
        times: vec![
            start,
            stale - 1,
            stale,
            stale + arrives_within - 1,
            stale + arrives_within,
            stale + arrives_within + 1,
            stale + arrives_within + margin,
            stale + arrives_within + margin + 1,
            stale + DAY,
        ],
        verdicts: &[Verdict::Complete, Verdict::Interrupt],
        ..Configuration::default()
    }
}
