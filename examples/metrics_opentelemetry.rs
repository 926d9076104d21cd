//! The library's metrics through OpenTelemetry. Run it with `cargo run --example metrics_opentelemetry`.
//!
//! Here the exporter keeps the metrics in memory, and `main` prints them. In a function, it's `opentelemetry-otlp`'s,
//! which sends them to the collector of a Lambda layer on `localhost`. Flush before each answer: the sandbox may freeze
//! afterwards, and a timer doesn't run while it's frozen.

use std::{collections::BTreeMap, convert::Infallible, error::Error};

use lambda_idempotency::{Idempotency, Key, metrics::describe_metrics, store::memory::MemoryStore};
use metrics_exporter_opentelemetry::Recorder;
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter,
    data::{AggregatedMetrics, MetricData, ResourceMetrics},
};

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

/// The counters by their names, and how often each histogram got a value.
fn counted(exported: &[ResourceMetrics]) -> BTreeMap<String, u64> {
    let metrics = exported.iter().flat_map(ResourceMetrics::scope_metrics).flat_map(|scope| scope.metrics());
    let count = metrics.map(|metric| {
        let count = match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                sum.data_points().map(|point| point.value()).sum()
            }
            AggregatedMetrics::F64(MetricData::Histogram(all)) => {
                all.data_points().map(|point| point.count()).sum()
            }
            _ => 0,
        };
        (metric.name().to_owned(), count)
    });
    count.collect()
}

#[expect(clippy::print_stdout, reason = "it's the example's output")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = InMemoryMetricExporter::default();
    let ours = exporter.clone();
    let recorder =
        Recorder::builder("payments").with_meter_provider(|builder| builder.with_periodic_exporter(ours));
    let (provider, _) = recorder.install()?;
    describe_metrics();

    let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build()?;
    deliver(&idempotency).await?;
    provider.force_flush()?;
    for (name, count) in counted(&exporter.get_finished_metrics()?) {
        println!("{name} {count}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn metrics_reach_the_exporter() {
        let exporter = InMemoryMetricExporter::default();
        let ours = exporter.clone();
        let recorder =
            Recorder::builder("test").with_meter_provider(|builder| builder.with_periodic_exporter(ours));
        let (provider, recorder) = recorder.build();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build().unwrap();
        deliver(&idempotency).await.unwrap();
        provider.force_flush().unwrap();
        let counted = counted(&exporter.get_finished_metrics().unwrap());
        for (name, count) in [
            ("executed", 1),
            ("recorded", 1),
            ("replayed", 1),
            ("mismatch", 1),
            ("claim_latency", 3),
            ("settle_latency", 1),
        ] {
            assert_eq!(counted.get(&format!("idempotency_{name}")), Some(&count), "{name}: {counted:?}");
        }
    }
}
