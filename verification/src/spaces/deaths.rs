//! The spaces with handlers that die.

use lambda_idempotency::settings::Execution;

use crate::{
    configuration::{Configuration, Host, TICK, ticks},
    model::Verdict,
};

/// T9: handlers that die with their process, and the deliveries that follow. The lease is longer than a tick, so that
/// moments remain between the short lease's end and the long one's.
pub(super) fn deaths() -> Vec<Configuration> {
    const WITH_DEATH: &[Verdict] = &[Verdict::Complete, Verdict::Interrupt];
    let two = || Configuration {
        lease: 2 * TICK,
        times: ticks(5),
        verdicts: WITH_DEATH,
        ..Configuration::default()
    };
    vec![
        Configuration { name: "deaths, clocks M apart", ..two() },
        Configuration {
            name: "deaths, one clock, 2 faults",
            clocks: vec![0, 0],
            faults: 2,
            times: ticks(4),
            ..two()
        },
        Configuration { name: "deaths, 2 attempts, no fault", attempts: 2, faults: 0, ..two() },
        Configuration { name: "deaths, leases extended", extensions: 1, times: ticks(4), ..two() },
        Configuration {
            name: "deaths, at most once",
            execution: Execution::AtMostOnce,
            times: ticks(4),
            ..two()
        },
        Configuration {
            name: "deaths, at least once, then at most once",
            is_mixed: true,
            times: ticks(4),
            ..two()
        },
        Configuration { name: "deaths, killed at the deadline", host: Host::Kills, times: ticks(4), ..two() },
        Configuration {
            name: "deaths, another request, an operator",
            requests: 2,
            operations: 1,
            faults: 0,
            lease: TICK,
            ..two()
        },
    ]
}
