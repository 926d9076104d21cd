//! The library's metrics in CloudWatch's embedded metric format. Run it with `cargo run --example metrics_cloudwatch`.
//!
//! Each flush writes one line of JSON to standard output. Lambda sends it to CloudWatch Logs, which makes the metrics. So
//! no request is needed, and no permission. Flush before each answer: the sandbox may freeze afterwards. The example
//! functions do so in `functions/src/telemetry.rs`, and the alarms and the dashboard of `template.yaml` read these metrics.

use std::{convert::Infallible, error::Error, io};

use lambda_idempotency::{Idempotency, Key, metrics::describe_metrics, store::memory::MemoryStore};
use metrics_cloudwatch_embedded::{Builder, Collector};

/// Pays an order, delivers it again, and delivers another order with its key.
async fn deliver(idempotency: &Idempotency) -> Result<(), Box<dyn Error>> {
    let pay = idempotency.operation("pay")?;
    let key = Key::new("order-17")?;
    for cents in [1250, 1250, 9900] {
        // The last delivery is refused: the key was used with another amount.
        let _ = pay.run(&key, &cents, async || Ok::<_, Infallible>("paid".to_owned())).await;
    }
    Ok(())
}

/// Installs the recorder, delivers, and writes the metrics.
async fn run(output: impl io::Write) -> Result<(), Box<dyn Error>> {
    let builder =
        Builder::new().cloudwatch_namespace("LambdaIdempotency").with_dimension("FunctionName", "payments");
    let collector: &'static Collector = builder.init().map_err(|error| error.to_string())?;
    describe_metrics();
    let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build()?;
    deliver(&idempotency).await?;
    collector.flush(output)?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run(io::stdout().lock()).await
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn metrics_are_one_line_of_the_format() {
        let mut output = Vec::new();
        run(&mut output).await.unwrap();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        let described = &line["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(described["Namespace"], "LambdaIdempotency");
        let is_dimension = described["Dimensions"].as_array().unwrap().iter();
        assert!(
            is_dimension.flat_map(|of| of.as_array().unwrap()).any(|name| name == "FunctionName"),
            "{line}"
        );
        assert_eq!(line["FunctionName"], "payments");
        for name in ["executed", "recorded", "replayed", "mismatch"] {
            let name = format!("idempotency_{name}");
            assert_eq!(line[&name], 1, "{line}");
            let unit = described["Metrics"].as_array().unwrap().iter().find(|of| of["Name"] == name.as_str());
            assert_eq!(unit.unwrap()["Unit"], "Count", "{line}");
        }
    }
}
