//! Code that the example functions share.

mod telemetry;

use std::time::Duration;

pub use telemetry::{DIMENSION, NAMESPACE, Telemetry};

/// How long a function keeps a record if its events wait in queues: 18 days. A dead-letter queue keeps a message for 14
/// days. If an operator then moves the message back to its queue, the queue keeps it for 4 more days. If the record
/// expired earlier, the operation would run again.
pub const RETENTION: Duration = Duration::from_secs(18 * 24 * 60 * 60);
