//! Code that the example functions share.

mod telemetry;

pub use telemetry::{DIMENSION, NAMESPACE, Telemetry};
