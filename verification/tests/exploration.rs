//! Explores every state of the bounded slice, on the code that ships.

use std::time::Duration;

use lambda_idempotency_verification::{
    configuration::Configuration,
    coverage::Coverage,
    explore::{Limits, Report, explore, explore_all},
    report, spaces,
    under_test::Shipping,
};

/// No invariant breaks in any state, each space is explored completely, and every mark is reached.
#[test]
fn invariants_hold_in_every_bounded_state() {
    let limits = Limits { go_on: true, ..Limits::default() };
    let spaces = spaces::bounded();
    let reports = explore_all(&Shipping, &spaces, limits, 2, &|| Duration::ZERO, &|_| {});
    let mut reached = Coverage::NONE;
    for report in &reports {
        assert!(report.violations.is_empty(), "{}", told(report));
        assert!(report.is_complete, "{}: the exploration was cut off", report.name);
        reached.add(report.coverage);
        // A space may leave out an invariant only if it breaks there.
        let exempt = spaces.iter().find(|space| space.name == report.name).unwrap().exempt();
        for invariant in exempt {
            let breaks = report.exempted.iter().any(|broken| broken == *invariant);
            assert!(breaks, "{}: {invariant} is left out, but holds", report.name);
        }
    }
    assert_eq!(reached.missing().next(), None, "{}", report::coverage(reached));
    let states: usize = reports.iter().map(|report| report.states).sum();
    assert!(states > 20_000_000, "the bounded form explores too few states: {states}");
}

/// The same exploration gives the same result, so anyone can check a figure in a report.
#[test]
fn an_exploration_is_repeatable() {
    let space = Configuration {
        times: lambda_idempotency_verification::configuration::ticks(3),
        ..Configuration::default()
    };
    let figures = |report: Report| (report.states, report.transitions, report.depth, report.longest_run);
    let [once, twice] = [(); 2].map(|()| figures(explore(&Shipping, &space, Limits::default())));
    assert_eq!(once, twice);
}

/// `verification explore --record` finds a report's space by its name.
#[test]
fn space_names_are_unique() {
    let spaces = spaces::long();
    let mut names: Vec<_> = spaces.iter().map(|space| space.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), spaces.len());
}

/// A cut-off exploration proves nothing, so its report must say that it's incomplete.
#[test]
fn cut_off_explorations_are_reported() {
    let limits = Limits { states: 1000, ..Limits::default() };
    let report = explore(&Shipping, &Configuration::default(), limits);
    assert!(!report.is_complete);
    assert!(report.states <= 1001);
}

fn told(report: &Report) -> String {
    let violations = report.violations.iter();
    violations
        .map(|violation| format!("{}: {}\n{}", report.name, violation.invariant.promise(), violation.trace))
        .collect()
}
