//! The wrappers as a function uses them: events and requests in, answers out.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail where it stands")]

#[path = "wrappers/event.rs"]
mod event;
#[path = "wrappers/http.rs"]
mod http;
