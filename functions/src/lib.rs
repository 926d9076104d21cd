//! Code that the example functions share.

mod telemetry;

use std::time::Duration;

pub use telemetry::{DIMENSION, NAMESPACE, Telemetry};

/// How long the functions that queues feed keep a record: 18 days. A dead-letter queue keeps a message for 14 days, and
/// the queue that an operator moves it back to for 4 more. Without its record, the operation would run again.
pub const RETENTION: Duration = Duration::from_secs(18 * 24 * 60 * 60);
