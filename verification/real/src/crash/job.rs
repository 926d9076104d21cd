//! The event, the environment and the times that the harness and the function under test agree on.

use std::time::Duration;

use lambda_idempotency_rehearsal::event::Event;
use serde::{Deserialize, Serialize};

/// The function's name in the scope, and the name of its binary.
pub const FUNCTION: &str = "verification-function";
/// The environment variable with DynamoDB's endpoint.
pub const ENDPOINT: &str = "NET_ENDPOINT";
/// The environment variable with the name of the table of records.
pub const TABLE: &str = "NET_TABLE";
/// The environment variable with the URL of a store other than DynamoDB.
pub const STORE: &str = "NET_STORE";
/// The environment variable with the name of the [`Form`](super::form::Form).
pub const FORM: &str = "NET_FORM";
/// The environment variable with the name of the table of effects, if they're in a table.
pub const EFFECTS: &str = "NET_EFFECTS";
/// The environment variable with the folder of the ledger.
pub const LEDGER: &str = "NET_LEDGER";
/// The environment variable with the process's number. The names of the process's runs begin with this number.
pub const PROCESS: &str = "NET_PROCESS";
/// The environment variable with the point at which the process pauses, if any.
pub const STAND_AT: &str = "NET_STAND_AT";
/// The environment variable with the path of the file that exists while the process pauses.
pub const MARKER: &str = "NET_MARKER";
/// The environment variable with the sabotage of the function, if any.
pub const SABOTAGE: &str = "NET_SABOTAGE";

/// The environment variable with the address of the gateway, if the effects are there.
pub const GATEWAY: &str = "NET_GATEWAY";

/// The `errorType` of the handler's error if it doesn't know whether its charge happened.
pub const UNKNOWN: &str = "Test.Unknown";
/// The `errorType` of the handler's error if the event tells the first attempt to fail.
pub const TOLD_TO_FAIL: &str = "Test.ToldToFail";

/// The time limit of an ordinary invocation. All times are short, so that the check can wait for thousands of leases.
pub const LIMIT: Duration = Duration::from_millis(300);
/// The time limit of an invocation that asks a gateway and then charges there.
pub const ASKING_LIMIT: Duration = Duration::from_millis(600);
/// The time limit behind the layer. It's longer, because the layer uses the library's default reserve.
pub const LAYER_LIMIT: Duration = Duration::from_millis(1500);
/// How long the lease lasts beyond the invocation.
pub const GRACE: Duration = Duration::from_millis(100);
/// How long before an invocation's end the library stops calling the store.
pub const RESERVE: Duration = Duration::from_millis(20);
/// The skew margin. All processes run on one machine and share its clock.
pub const MARGIN: Duration = Duration::from_millis(50);

/// `effects_arrive_within`: no question is asked earlier than this after the end of an attempt's lease.
pub const ARRIVES: Duration = Duration::from_millis(1500);
/// How long the function waits for the gateway's answer to a charge.
pub const CHARGE_TIMEOUT: Duration = Duration::from_millis(200);

/// The event's field with the key, in the syntax of the layer's setting.
pub const KEY_FIELD: &str = "/key";
/// The field in which the layer puts its claim.
pub const CLAIM_FIELD: &str = "claim";

/// The content of an event. All deliveries of a key carry the same content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The idempotency key.
    pub key: String,
    /// How long the handler takes before its effect, in ms.
    pub before_ms: u64,
    /// How long the handler takes after its effect, in ms.
    pub after_ms: u64,
    /// Whether the first attempt fails before its effect. The failure releases the claim.
    pub first_fails: bool,
}

impl Job {
    /// The event to deliver.
    pub fn event(&self) -> Event {
        Event::new(serde_json::json!(self))
    }
}
