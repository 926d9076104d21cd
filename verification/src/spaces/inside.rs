//! The spaces with handlers that run in their callers' transactions.

use crate::{
    configuration::{Configuration, Flow, ticks},
    model::Verdict,
};

/// Outcomes that are put into the caller's transaction, and commits whose answers are lost.
pub(crate) fn inside() -> Vec<Configuration> {
    let two = || Configuration {
        flows: &[Flow::Inside],
        times: ticks(4),
        verdicts: &[Verdict::Commit, Verdict::Release],
        ..Configuration::default()
    };
    vec![
        Configuration { name: "in callers' transactions, 2 attempts", attempts: 2, ..two() },
        Configuration {
            name: "in callers' transactions, one clock, 2 retries, 3 faults",
            clocks: vec![0, 0],
            max_retries: 2,
            faults: 3,
            permanent_faults: true,
            ..two()
        },
        Configuration {
            name: "in callers' transactions, and with claims, another request",
            flows: &[Flow::Claim, Flow::Inside],
            requests: 2,
            ..two()
        },
    ]
}
