//! Runs Powertools' protocol and this library's in the model checker, which must find the known weaknesses of
//! Powertools' protocol, and none of them in this library's.

use lambda_idempotency_verification::{
    configuration::{Configuration, ticks},
    explore::{Limits, Report, explore},
    invariants::Invariant,
    powertools::{self, Powertools},
    under_test::Shipping,
};

#[test]
fn powertools_weaknesses_are_found() {
    let [ordinary, managed, apart] = powertools::spaces().map(short);
    for space in [&ordinary, &managed, &apart] {
        let report = explore(&Powertools, space, Limits { go_on: true, ..Limits::default() });
        for weakness in [
            // An executor's own claim, which the SDK sent twice, is refused as if it were another caller's.
            Invariant::OwnRecognised,
            // A late completion overwrites the successor's claim or record.
            Invariant::OwnerSettles,
            Invariant::OutcomeKept,
            // A late failure deletes the successor's record.
            Invariant::OwnerReleases,
            // After such a deletion, a third handler runs beside the second.
            Invariant::OneInsideLease,
        ] {
            assert!(found(&report, weakness), "{}: didn't find {weakness}", space.name);
        }
    }
}

#[test]
fn this_protocol_lacks_powertools_weaknesses() {
    for space in powertools::spaces().map(short) {
        let report = explore(&Shipping, &space, Limits { go_on: true, ..Limits::default() });
        assert!(report.violations.is_empty(), "{}: {:?}", space.name, report.violations);
        assert!(report.is_complete);
    }
}

/// Shortens a space to three moments, which are enough to find the weaknesses.
fn short(space: Configuration) -> Configuration {
    Configuration { times: ticks(3), ..space }
}

fn found(report: &Report, invariant: Invariant) -> bool {
    report.violations.iter().any(|violation| violation.invariant == invariant)
}
