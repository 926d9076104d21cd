//! The event, the environment and the times that the harness and the function under test agree on.

use std::time::Duration;

use lambda_idempotency_rehearsal::event::Event;
use serde::{Deserialize, Serialize};

/// The function's name in the scope, and the name of its binary.
pub const FUNCTION: &str = "verification-function";
/// DynamoDB's endpoint.
pub const ENDPOINT: &str = "NET_ENDPOINT";
/// The table of records.
pub const TABLE: &str = "NET_TABLE";
/// The URL of a store other than DynamoDB.
pub const STORE: &str = "NET_STORE";
/// How the function has its effect.
pub const FORM: &str = "NET_FORM";
/// The table of effects, if they're in a table.
pub const EFFECTS: &str = "NET_EFFECTS";
/// The folder of the ledger.
pub const LEDGER: &str = "NET_LEDGER";
/// The process's number, which identifies its runs.
pub const PROCESS: &str = "NET_PROCESS";
/// The point at which to pause, if any.
pub const STAND_AT: &str = "NET_STAND_AT";
/// The file that says that the process pauses there.
pub const MARKER: &str = "NET_MARKER";
/// The way in which the function is broken, if any.
pub const SABOTAGE: &str = "NET_SABOTAGE";

/// The function error of a handler that the event told to fail.
pub const TOLD_TO_FAIL: &str = "Net.ToldToFail";

/// An ordinary invocation's time. All times are short, so that the check can wait for thousands of leases.
pub const LIMIT: Duration = Duration::from_millis(300);
/// The same behind the layer, whose reserve at the end is the library's default.
pub const LAYER_LIMIT: Duration = Duration::from_millis(1500);
/// How much longer than the invocation the lease lasts.
pub const GRACE: Duration = Duration::from_millis(100);
/// How long before an invocation's end the library stops calling the store.
pub const RESERVE: Duration = Duration::from_millis(20);
/// The skew margin. All processes run on one machine and share its clock.
pub const MARGIN: Duration = Duration::from_millis(50);

/// The field of an event with the key, for the layer.
pub const KEY_FIELD: &str = "/key";
/// The field in which the layer puts its claim.
pub const CLAIM_FIELD: &str = "claim";

/// The content of an event. All deliveries of a key carry the same one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The idempotency key.
    pub key: String,
    /// How long the handler takes before its effect, in ms.
    pub before_ms: u64,
    /// How long the handler takes after its effect, in ms.
    pub after_ms: u64,
    /// Whether the first attempt fails before its effect, which releases its claim.
    pub first_fails: bool,
}

impl Job {
    /// The event to deliver.
    pub fn event(&self) -> Event {
        Event::new(serde_json::json!(self))
    }
}
