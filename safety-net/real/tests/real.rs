//! Runs the bounded forms of the checks on real servers, sockets and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

#[path = "real/crash.rs"]
mod crash;
#[path = "real/time.rs"]
mod time;
#[path = "real/wire.rs"]
mod wire;

use lambda_idempotency_real_net::agreement::{self, Numbers};

#[tokio::test(flavor = "multi_thread")]
async fn every_store_agrees_with_the_model() {
    agreement::check(Numbers::BOUNDED, |agreement| eprintln!("{agreement}")).await.unwrap();
}
