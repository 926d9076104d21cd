//! What a user deploys, as it would be deployed: every event is answered as its name says by the function that it is
//! for, and the template fits the functions.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

#[path = "deploy/events.rs"]
mod events;
#[path = "deploy/stage.rs"]
mod stage;
#[path = "deploy/template.rs"]
mod template;
