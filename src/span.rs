//! The span in which an operation runs, and the trace that it belongs to.
//!
//! OpenTelemetry's types change often, so they're in the package `lambda-idempotency-opentelemetry`, which connects
//! itself here.

use std::sync::{Arc, OnceLock};

use tracing::{Span, field::Empty};

use crate::{error::ErrorKind, key::StoredKey, observe::TARGET, record::Lock};

/// How spans belong to traces. Each function gets a span that a subscriber wants.
#[derive(Clone, Copy, Debug)]
pub struct Traces {
    /// Continues the trace that this `traceparent` or X-Ray header names, in a span that nothing has entered yet.
    pub continues: fn(&Span, &str),
    /// Returns the span's trace as a `traceparent`, if the trace is sampled.
    pub of: fn(&Span) -> Option<String>,
    /// Links the span to the one that this `traceparent` names.
    pub links: fn(&Span, &str),
}

static TRACES: OnceLock<Traces> = OnceLock::new();

/// Connects the spans of this process with `traces`. The first connection stays.
pub fn connect(traces: Traces) {
    let _ = TRACES.set(traces);
}

/// The trace of the calling code, to be kept in the record.
pub(crate) fn current_trace() -> Option<Arc<String>> {
    let traces = TRACES.get()?;
    let span = Span::current();
    if span.is_disabled() { None } else { (traces.of)(&span).map(Arc::new) }
}

/// An operation's span. While no subscriber wants it, it does nothing and allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct OperationSpan(Span);

impl OperationSpan {
    /// No span.
    pub(crate) const fn none() -> Self {
        Self(Span::none())
    }

    /// Returns the span of the operation `id`, inside the current span. `incoming` finds the `traceparent` or X-Ray header
    /// that came with the event.
    pub(crate) fn new(id: &StoredKey, incoming: impl FnOnce() -> Option<String>) -> Self {
        let span = tracing::info_span!(
            target: TARGET, "operation", %id, attempt = Empty, generation = Empty, outcome = Empty, kind = Empty
        );
        if let (Some(traces), false) = (TRACES.get(), span.is_disabled())
            && let Some(incoming) = incoming()
        {
            (traces.continues)(&span, &incoming);
        }
        Self(span)
    }

    pub(crate) fn span(&self) -> &Span {
        &self.0
    }

    /// The operation runs under this claim.
    pub(crate) fn claimed(&self, lock: &Lock) {
        self.0.record("attempt", lock.attempt).record("generation", lock.generation.get());
    }

    /// The operation is answered with the outcome that this attempt recorded, in the trace `trace`.
    pub(crate) fn replayed(&self, attempt: u32, generation: u64, trace: Option<&str>) {
        self.0.record("attempt", attempt).record("generation", generation);
        self.ended("replayed");
        if let (Some(traces), false, Some(trace)) = (TRACES.get(), self.0.is_disabled(), trace) {
            (traces.links)(&self.0, trace);
        }
    }

    pub(crate) fn refused(&self, kind: ErrorKind) {
        self.0.record("kind", kind.as_str());
        self.ended(if kind == ErrorKind::Unrecorded { "unrecorded" } else { "refused" });
    }

    /// The operation ended in this way. Called once.
    pub(crate) fn ended(&self, outcome: &'static str) {
        self.0.record("outcome", outcome);
    }
}
