//! Runs the bounded form of the wire check, and tests the check itself with stores that are broken on purpose.

use lambda_idempotency_verification_real::{
    site::Kind,
    wire::{self, Extent, Sabotage},
};
use testkit::random::fresh_seed;

async fn breaks(kind: Kind) {
    let mut reports = 0;
    wire::check(&[kind], Extent::bounded(fresh_seed()), |report| {
        eprintln!("{report}");
        assert!(report.violations().is_empty());
        assert!(report.coverage().missing().is_empty());
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
async fn every_sabotage_is_found() {
    let checks = Sabotage::ALL.map(|sabotage| tokio::spawn(wire::check_sabotaged(sabotage)));
    for (sabotage, check) in Sabotage::ALL.into_iter().zip(checks) {
        let report = check.await.unwrap().unwrap();
        assert!(!report.violations().is_empty(), "{sabotage:?} wasn't found:\n{report}");
        let found = report.violations().iter().flat_map(|told| told.lines());
        let found: Vec<_> = found.filter(|line| line.contains("VIOLATION")).collect();
        eprintln!("{sabotage:?}\n{}", found.join("\n"));
    }
}
