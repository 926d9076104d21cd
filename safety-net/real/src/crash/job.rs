//! What the harness and the function under test agree on: the event, the environment, and the times.

use std::time::Duration;

use lambda_idempotency_cli::rehearse::event::Event;
use serde::{Deserialize, Serialize};

/// The function's name in the scope, and its binary's.
pub const FUNCTION: &str = "net-function";
/// Where DynamoDB listens.
pub const ENDPOINT: &str = "NET_ENDPOINT";
/// The table of records.
pub const TABLE: &str = "NET_TABLE";
/// The store that is no DynamoDB, as a URL.
pub const STORE: &str = "NET_STORE";
/// How the function has its effect.
pub const FORM: &str = "NET_FORM";
/// The table of effects, where they are in one.
pub const EFFECTS: &str = "NET_EFFECTS";
/// The folder of the ledger.
pub const LEDGER: &str = "NET_LEDGER";
/// The process's number, by which runs are told apart.
pub const PROCESS: &str = "NET_PROCESS";
/// The point to stand at, if any.
pub const STAND_AT: &str = "NET_STAND_AT";
/// The file that says that the process stands there.
pub const MARKER: &str = "NET_MARKER";
/// The way in which the function is broken, if it is.
pub const SABOTAGE: &str = "NET_SABOTAGE";

/// The function error of a handler that was told to fail.
pub const TOLD_TO_FAIL: &str = "Net.ToldToFail";

/// An ordinary invocation's time. All times are short, so that thousands of leases can be waited for.
pub const LIMIT: Duration = Duration::from_millis(300);
/// How much longer the lease lasts.
pub const GRACE: Duration = Duration::from_millis(100);
/// How long before an invocation's end the library stops asking the store.
pub const RESERVE: Duration = Duration::from_millis(20);
/// The skew margin: every process is on one machine, and has its clock.
pub const MARGIN: Duration = Duration::from_millis(50);

/// What an event asks for. All deliveries of a key carry the same one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The idempotency key.
    pub key: String,
    /// How long the handler takes before its effect, in ms.
    pub before_ms: u64,
    /// How long it takes after it.
    pub after_ms: u64,
    /// Whether the first attempt fails, before its effect: its claim is released.
    pub first_fails: bool,
}

impl Job {
    /// The event to deliver.
    pub fn event(&self) -> Event {
        Event::new(serde_json::json!(self))
    }
}
