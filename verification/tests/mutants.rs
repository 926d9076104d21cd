//! Tests the model checker itself: it must catch every deliberately broken protocol.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use lambda_idempotency_verification::{
    configuration::Configuration,
    explore::{Limits, explore},
    mutants,
    under_test::Shipping,
};

/// More states than it takes to catch any mutant. Exploring this many takes well under a minute.
const LIMITS: Limits = Limits { states: 5_000_000, memory: usize::MAX, go_on: false };

#[test]
fn every_mutant_breaks_its_invariant() {
    let mutants = mutants::all();
    assert!(mutants.len() >= 150, "only {} mutants are left", mutants.len());
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = explore(mutant, &(mutant.space)(), LIMITS);
                    let caught: Vec<_> =
                        report.violations.iter().map(|violation| violation.invariant).collect();
                    if !caught.contains(&mutant.caught_by) {
                        let told = format!("{}: broke {caught:?}, not {:?}", mutant.name, mutant.caught_by);
                        survivors.lock().unwrap().push(told);
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

#[test]
fn mutant_names_are_unique() {
    let all: Vec<_> = mutants::all().into_iter().chain(mutants::implied()).collect();
    let names: HashSet<_> = all.iter().map(|mutant| mutant.name).collect();
    assert_eq!(names.len(), all.len());
}

/// The base of the mutants, which changes nothing, breaks no invariant and reaches the same marks as the shipping
/// protocol. It may have more states, since a mutant's state holds more than the machine's.
#[test]
fn unmutated_base_breaks_no_invariant() {
    let space = Configuration {
        times: lambda_idempotency_verification::configuration::ticks(4),
        ..Configuration::default()
    };
    let mutated = explore(&mutants::none(), &space, Limits::default());
    let shipping = explore(&Shipping, &space, Limits::default());
    assert!(mutated.violations.is_empty());
    assert_eq!(mutated.coverage, shipping.coverage);
    assert!(
        mutated.states >= shipping.states,
        "the base explored {} states, fewer than the shipping protocol's {}",
        mutated.states,
        shipping.states
    );
}
