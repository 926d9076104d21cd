//! Logs and metrics of the example functions. Both go to standard output, and Lambda sends them to CloudWatch.
//!
//! The metrics are in CloudWatch's embedded metric format. The logs are JSON if the function's log format is JSON
//! (`AWS_LAMBDA_LOG_FORMAT`, which Lambda sets).

use std::io;

use lambda_runtime::{Error, tracing};
use metrics_cloudwatch_embedded::{Builder, Collector};

/// The CloudWatch namespace of the metrics. The dashboard and the alarms of `template.yaml` use it.
pub const NAMESPACE: &str = "LambdaIdempotency";

/// The dimension that identifies a function.
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
    /// Starts logging and counting. Call it once, before anything else.
    ///
    /// # Errors
    ///
    /// If another metrics recorder is installed already.
    pub fn start() -> Result<Self, Error> {
        tracing::init_default_subscriber();
        let function = std::env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| "local".into());
        let collector =
            Builder::new().cloudwatch_namespace(NAMESPACE).with_dimension(DIMENSION, function).init()?;
        lambda_idempotency::metrics::describe_metrics();
        Ok(Self { collector })
    }

    /// Returns a function for `ServiceBuilder::map_result` that writes the metrics and then passes the answer on. The
    /// metrics come first, since the sandbox may freeze once the answer is sent.
    pub fn flush_before<T>(self) -> impl FnOnce(T) -> T + Clone {
        move |answer| {
            self.flush();
            answer
        }
    }

    /// Writes the metrics counted since the last call.
    pub fn flush(self) {
        if let Err(error) = self.collector.flush(io::stdout().lock()) {
            tracing::warn!(%error, "couldn't write the metrics");
        }
    }
}
