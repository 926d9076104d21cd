//! Runs the bounded form of the wire check, and tests the check itself with stores that are broken on purpose.

use std::time::Duration;

use lambda_idempotency_verification_real::{
    site::Kind,
    wire::{self, Extent, LongExtent, LongFault, Report, Sabotage},
};
use testkit::random::fresh_seed;

fn must_be_sound(report: &Report) {
    eprintln!("{report}");
    assert!(report.violations().is_empty());
    assert!(report.coverage().missing().is_empty());
}

async fn breaks(kind: Kind) {
    if !kind.is_installed() {
        return;
    }
    let mut reports = 0;
    wire::check(&[kind], Extent::bounded(fresh_seed()), |report| {
        must_be_sound(report);
        reports += 1;
    })
    .await
    .unwrap();
    assert!(reports > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dynamodb_wire_faults_are_survived_or_reported() {
    breaks(Kind::DynamoDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_wire_faults_are_survived_or_reported() {
    breaks(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_wire_faults_are_survived_or_reported() {
    breaks(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_survives_or_reports_wire_faults() {
    must_be_sound(&wire::check_layer(Extent::bounded(fresh_seed())).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sabotage_is_found() {
    let checks = Sabotage::ALL.map(|sabotage| tokio::spawn(wire::check_sabotaged(sabotage)));
    for (sabotage, check) in Sabotage::ALL.into_iter().zip(checks) {
        for report in check.await.unwrap().unwrap() {
            assert!(!report.violations().is_empty(), "{sabotage:?} wasn't found:\n{report}");
            let found = report.violations().iter().flat_map(|told| told.lines());
            let found: Vec<_> = found.filter(|line| line.contains("VIOLATION")).collect();
            eprintln!("{sabotage:?}\n{}", found.join("\n"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_recorded_through_long_faults() {
    let faults: Vec<_> = LongFault::ALL.into_iter().filter(|fault| fault.kind().is_installed()).collect();
    for report in wire::check_long(&faults, LongExtent::bounded(fresh_seed())).await.unwrap() {
        eprintln!("{report}");
        assert!(report.violations().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_settle_within_loses_outcomes() {
    let impatient = Some(Duration::from_millis(100));
    let extent = LongExtent { operations: 20, seed: fresh_seed(), settle_within: impatient };
    for report in wire::check_long(&[LongFault::DynamoDbThrottled], extent).await.unwrap() {
        let violations = report.violations().join("\n");
        assert!(violations.contains("the outcome wasn't stored, although there was time"), "{violations}");
        assert!(violations.contains("{Unrecorded, RanAgain}"), "no handler ran again: {violations}");
    }
}
