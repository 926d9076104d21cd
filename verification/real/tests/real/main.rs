//! Runs the bounded forms of the checks on real servers, sockets and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod arguments;
mod crash;
mod time;
mod wire;

use lambda_idempotency_verification_real::{
    agreement::{self, Numbers},
    site::Kind,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_store_agrees_with_the_model() {
    let installed: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.is_installed()).collect();
    agreement::check(&installed, Numbers::BOUNDED, |agreement| eprintln!("{agreement}")).await.unwrap();
}
