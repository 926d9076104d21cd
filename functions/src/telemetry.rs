//! What the example functions tell about themselves: logs, and metrics in CloudWatch's embedded metric format, both
//! on standard output, from where Lambda takes them to CloudWatch.
//!
//! The logs are JSON where the function's log format is JSON (`AWS_LAMBDA_LOG_FORMAT`, which Lambda sets).

use std::io;

use lambda_runtime::{Error, tracing};
use metrics_cloudwatch_embedded::{Builder, Collector};

/// The CloudWatch namespace of the metrics; the dashboard and the alarms of `template.yaml` look there.
pub const NAMESPACE: &str = "LambdaIdempotency";

/// The dimension that tells functions apart.
pub const DIMENSION: &str = "FunctionName";

/// The function's metrics. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Telemetry {
    collector: &'static Collector,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Begins to log and to count. Call it once, first of all.
    ///
    /// # Errors
    ///
    /// If another recorder of metrics is installed already.
    pub fn start() -> Result<Self, Error> {
        tracing::init_default_subscriber();
        let function = std::env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| "local".into());
        let collector =
            Builder::new().cloudwatch_namespace(NAMESPACE).with_dimension(DIMENSION, function).init()?;
        lambda_idempotency::describe_metrics();
        Ok(Self { collector })
    }

    /// Writes what has been counted, and passes the answer on: for `ServiceBuilder::map_result`, so that the metrics
    /// are out before the answer is, after which the sandbox may freeze.
    pub fn flush_before<T>(self) -> impl FnOnce(T) -> T + Clone {
        move |answer| {
            self.flush();
            answer
        }
    }

    /// Writes what has been counted since the last time.
    pub fn flush(self) {
        if let Err(error) = self.collector.flush(io::stdout().lock()) {
            tracing::warn!(%error, "the metrics could not be written");
        }
    }
}
