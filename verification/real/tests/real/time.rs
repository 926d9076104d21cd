//! Tests that the checks for outages and deadlines can fail. The checks themselves aren't run here: their quick forms
//! are the commands `verification-real outages --quick` and `verification-real deadlines --quick`.

use std::time::Duration;

use lambda_idempotency_verification_real::{
    deadlines,
    outages::{self, Trouble},
    site::Kind,
};
use testkit::random::fresh_seed;

#[tokio::test(flavor = "multi_thread")]
async fn short_settle_within_loses_outcomes() {
    let impatient = Some(Duration::from_millis(100));
    let extent = outages::Extent { operations: 20, seed: fresh_seed(), settle_within: impatient };
    for figures in outages::check(&[Trouble::DynamoDbThrottled], extent).await.unwrap() {
        eprintln!("{}\n{figures}", outages::Figures::head());
        assert!(figures.lost > 0 && !figures.is_sound(), "{figures:?}");
        assert!(figures.effects > figures.operations, "no handler ran again: {figures:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invocations_without_known_deadline_are_killed() {
    let extent = deadlines::Extent { of_each: 2, seed: fresh_seed(), knows_deadlines: false };
    for report in deadlines::check(&[Kind::DynamoDb], extent).await.unwrap() {
        eprintln!("{report}");
        assert!(report.killed() > 0 && !report.is_sound());
    }
}
