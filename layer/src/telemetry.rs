//! Logs and metrics, both on standard output: the metrics in CloudWatch's embedded metric format.

use std::{env, io};

use lambda_idempotency::{ErrorKind, metrics::Metric};
use metrics_cloudwatch_embedded::{Builder, Collector};

/// The CloudWatch namespace. The project's template uses the same namespace for Rust functions.
const NAMESPACE: &str = "LambdaIdempotency";
/// The layer's own counters. The library adds its metrics to the same recorder.
const INTERNAL_ERROR: &str = "idempotency_layer_internal_error";
const LATE_ANSWER: &str = "idempotency_layer_late_answer";
const DIMENSION: &str = "FunctionName";

/// The metrics, if they're switched on.
#[derive(Clone, Copy, Default)]
pub(crate) struct Telemetry {
    collector: Option<&'static Collector>,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Starts counting if the metrics are switched on.
    pub(crate) fn start_if(is_on: bool) -> Self {
        if is_on { Self::start() } else { Self::default() }
    }

    /// Starts counting, if this is the first call in the process. Later calls log a warning, and return a value that
    /// writes nothing.
    fn start() -> Self {
        let function = env::var("AWS_LAMBDA_FUNCTION_NAME").unwrap_or_else(|_| "local".into());
        let collector =
            Builder::new().cloudwatch_namespace(NAMESPACE).with_dimension(DIMENSION, function).init();
        match collector {
            Ok(collector) => {
                lambda_idempotency::metrics::describe_metrics();
                Self { collector: Some(collector) }
            }
            Err(error) => {
                tracing::warn!(%error, "couldn't start the metrics");
                Self::default()
            }
        }
    }

    /// Counts an internal error of the layer.
    pub(crate) fn internal_error(self) {
        metrics::counter!(INTERNAL_ERROR).increment(1);
    }

    /// Counts an answer that Lambda rejected, since the invocation had timed out.
    pub(crate) fn late_answer(self) {
        metrics::counter!(LATE_ANSWER).increment(1);
    }

    /// Counts an event that the layer refused without the library.
    pub(crate) fn refused(self, kind: ErrorKind) {
        let metric = match kind {
            ErrorKind::MissingKey => Metric::MissingKey,
            _ => Metric::Invalid,
        };
        metrics::counter!(metric.name()).increment(1);
    }

    /// Counts an event that the function runs without protection.
    pub(crate) fn unprotected(self) {
        metrics::counter!(Metric::Unprotected.name()).increment(1);
    }

    /// Counts an event in the mode `off` or of a runtime that isn't behind the layer, a sandbox of such a runtime whose
    /// events the layer didn't see, or a start in the mode `off!`.
    pub(crate) fn not_enforced(self) {
        metrics::counter!(Metric::NotEnforced.name()).increment(1);
    }

    /// Counts an answer of the function that isn't known to be recorded and sent when the program ends.
    pub(crate) fn unrecorded(self) {
        metrics::counter!(Metric::Unrecorded.name()).increment(1);
    }

    /// Writes the metrics counted since the last call.
    pub(crate) fn flush(self) {
        let Some(collector) = self.collector else { return };
        if let Err(error) = collector.flush(io::stdout().lock()) {
            tracing::warn!(%error, "couldn't write the metrics");
        }
    }
}
