//! The peer's protocol in the same net: its known weaknesses must be found, and ours not be among them.

use lambda_idempotency_safety_net::{
    configuration::{Configuration, ticks},
    explore::{Limits, Report, explore},
    invariants::Invariant,
    peer::{self, Powertools},
    under_test::Shipping,
};

#[test]
fn powertools_weaknesses_are_found() {
    let [ordinary, managed, apart] = peer::spaces().map(short);
    for space in [&ordinary, &managed, &apart] {
        let report = explore(&Powertools, space, Limits { go_on: true, ..Limits::default() });
        for weakness in [
            // An own claim, sent twice by the SDK, is refused as a stranger's.
            Invariant::OwnRecognised,
            // A late completion overwrites what the successor has claimed or recorded.
            Invariant::OwnerSettles,
            Invariant::OutcomeKept,
            // A late failure deletes the successor's record.
            Invariant::OwnerReleases,
            // And then a third handler runs beside the second.
            Invariant::OneInsideLease,
        ] {
            assert!(found(&report, weakness), "{}: {weakness}", space.name);
        }
    }
}

#[test]
fn this_protocol_has_none_of_them() {
    for space in peer::spaces().map(short) {
        let report = explore(&Shipping, &space, Limits { go_on: true, ..Limits::default() });
        assert!(report.violations.is_empty(), "{}: {:?}", space.name, report.violations);
        assert!(report.is_complete);
    }
}

/// Three moments are enough for what is looked for.
fn short(space: Configuration) -> Configuration {
    Configuration { times: ticks(3), ..space }
}

fn found(report: &Report, invariant: Invariant) -> bool {
    report.violations.iter().any(|violation| violation.invariant == invariant)
}
