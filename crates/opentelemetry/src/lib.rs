//! Traces of the operations of [`lambda-idempotency`](https://docs.rs/lambda-idempotency), by OpenTelemetry.
//!
//! The library runs each operation, and each record of a batch, in a `tracing` span named `operation`, with the record's id
//! (which has no raw key), attempt, generation and outcome. Once [`connect`] is called,
//!
//! - the span continues the trace that came with the event: `traceparent` or `X-Amzn-Trace-Id` of an HTTP request,
//!   `traceparent` or `AWSTraceHeader` of an SQS message, `traceparent` of a Kafka record, and for other events the
//!   invocation's own. If the surrounding span is in another trace, the operation's span links to it. A trace that its
//!   sender didn't sample is only linked to: otherwise the event's sender could switch the operation's span off;
//! - a sampled run's trace is kept in its record, and **a replay's span links to the span of the run that made its answer**,
//!   in whichever process that was.
//!
//! ```
//! use opentelemetry::trace::TracerProvider as _;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use tracing_subscriber::layer::SubscriberExt as _;
//!
//! // In a function, with the exporter of `opentelemetry-otlp`.
//! let provider = SdkTracerProvider::builder().build();
//! let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("payments"));
//! let subscriber = tracing_subscriber::registry().with(layer);
//! // tracing::subscriber::set_global_default(subscriber)?;
//! lambda_idempotency_opentelemetry::connect();
//! # drop(subscriber);
//! ```
//!
//! # Cost
//!
//! No request. 60 bytes of each record whose run is sampled: the name `trace` and 55 characters. One unit of DynamoDB's
//! write capacity, 1 KB, then holds a response that's so much shorter. Without [`connect`], nothing.
//!
//! Flush the exporter before each answer: the sandbox may freeze afterwards.

use std::collections::HashMap;

use lambda_idempotency::span::Traces;
use opentelemetry::{
    Context,
    propagation::TextMapPropagator,
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_aws::trace::XrayPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Connects the library's spans with OpenTelemetry, for the whole process. Call it once, beside the set-up of your
/// subscriber, which has a layer of `tracing-opentelemetry`.
pub fn connect() {
    lambda_idempotency::span::connect(Traces { continues, of, links });
}

/// Returns the context that this `traceparent` or X-Ray header names. It's invalid if the header is malformed.
fn named(header: &str) -> SpanContext {
    let extracted = |propagator: &dyn TextMapPropagator, name: &str| {
        let carrier = HashMap::from([(name.to_owned(), header.to_owned())]);
        propagator.extract_with_context(&Context::new(), &carrier).span().span_context().clone()
    };
    if header.contains("Root=") {
        extracted(&XrayPropagator::new(), "x-amzn-trace-id")
    } else {
        extracted(&TraceContextPropagator::new(), "traceparent")
    }
}

fn continues(span: &Span, header: &str) {
    let incoming = named(header);
    let surrounding = Span::current().context().span().span_context().clone();
    if !incoming.is_valid() || incoming.trace_id() == surrounding.trace_id() {
        return;
    }
    if !incoming.is_sampled() {
        span.add_link(incoming);
        return;
    }
    // It fails without a layer of OpenTelemetry, and then there's nothing to do.
    if span.set_parent(Context::new().with_remote_span_context(incoming)).is_ok() {
        span.add_link(surrounding);
    }
}

fn of(span: &Span) -> Option<String> {
    let context = span.context();
    let context = context.span().span_context().clone();
    // W3C's form, version 00, of a sampled span ("Trace Context", section 3.2).
    let sampled = context.is_valid() && context.is_sampled();
    sampled.then(|| format!("00-{}-{}-01", context.trace_id(), context.span_id()))
}

fn links(span: &Span, traceparent: &str) {
    span.add_link(named(traceparent));
}
