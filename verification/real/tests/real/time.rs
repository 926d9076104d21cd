//! Tests that the check for deadlines can fail. The check itself isn't run here: its quick form is the command
//! `verification-real deadlines --quick`.

use lambda_idempotency_verification_real::{deadlines, site::Kind};
use testkit::random::fresh_seed;

#[tokio::test(flavor = "multi_thread")]
async fn invocations_without_known_deadline_are_killed() {
    let extent = deadlines::Extent { of_each: 2, seed: fresh_seed(), knows_deadlines: false };
    for report in deadlines::check(&[Kind::DynamoDb], extent).await.unwrap() {
        eprintln!("{report}");
        assert!(report.killed() > 0 && !report.is_sound());
    }
}
