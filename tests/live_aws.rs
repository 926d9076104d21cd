//! The conformance suite, random operations and races on a real DynamoDB table. These tests are opt-in, since they need
//! credentials and cost a few cents (some ten thousand small writes).
//!
//! ```sh
//! IDEMPOTENCY_LIVE_TABLE=idempotency-live cargo test --features live-aws --test live_aws
//! ```
//!
//! The tests create the table if it's missing (on demand, TTL on `expires_at`), and don't delete it. Its items expire
//! after a day or two. The AWS SDK finds the credentials and the Region as usual. The credentials must allow
//! `dynamodb:CreateTable`, `DescribeTable`, `UpdateTimeToLive`, `DescribeTimeToLive`, `PutItem`, `UpdateItem` and
//! `GetItem` on the table.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::sync::Arc;

use lambda_idempotency::{
    conformance,
    store::{Store, dynamodb::DynamoDbStore},
};
use testkit::random::fresh_seed;

const TABLE: &str = "IDEMPOTENCY_LIVE_TABLE";

async fn store() -> Arc<dyn Store> {
    let Ok(table) = std::env::var(TABLE) else {
        panic!("{TABLE} isn't set; set it to the name of the table to test on");
    };
    let store = DynamoDbStore::builder(table).build().await.unwrap();
    store.create_table().await.unwrap();
    Arc::new(store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_table_conforms() {
    conformance::check(&*store().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_tables_answer_like_the_model() {
    let seed = fresh_seed();
    eprintln!("seed {seed}");
    conformance::differential(&*store().await, seed, 2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_claims_have_one_winner() {
    conformance::check_contention(&[store().await, store().await], 64, 20).await;
}
