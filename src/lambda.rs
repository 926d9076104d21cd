//! The wrappers: tower layers in front of a handler of `lambda_runtime` or `lambda_http`.
//!
//! An adapter translates: an event into a key and a fingerprint, a response into bytes and back. It has
//! no rule about claims.

pub mod batch;
pub mod event;
#[cfg(feature = "http")]
pub mod http;
pub mod keys;

use lambda_runtime::{Context, Diagnostic};

use crate::{
    engine::Idempotency,
    error::{Error, RunError},
    fingerprint::FingerprintBuilder,
    invocation::Invocation,
    observe, selector,
    time::Timestamp,
};

impl Idempotency {
    /// The same engine for the invocation that `context` describes, which enters now: for handlers
    /// that use [`run`](Self::run) or [`begin`](Self::begin) without a layer around them.
    ///
    /// Call it at the handler's entry: whether the context's deadline makes sense is decided then.
    #[must_use]
    pub fn for_context(&self, context: &Context) -> Self {
        self.for_invocation(self.entered(context))
    }

    pub(crate) fn entered(&self, context: &Context) -> Invocation {
        let deadline = Timestamp::from_millis(context.deadline);
        let invocation = Invocation::entered(self.engine().clock.now(), deadline, &context.request_id);
        if invocation.deadline().is_none() {
            self.engine().unknown_deadline.call_once(|| observe::unknown_deadline(&self.engine().settings));
        }
        invocation
    }
}

/// The service that was made ready, which is the one to call; a clone takes its place.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

/// Who asks, as far as the context says: the tenant of a function with tenant isolation.
pub(crate) fn tenant(context: &Context) -> Option<&str> {
    context.tenant_id.as_deref().filter(|tenant| !tenant.is_empty())
}

impl From<Error> for Diagnostic {
    /// The type is `Idempotency.` and the [`ErrorKind`](crate::ErrorKind)'s name: stable, for Step
    /// Functions and callers to match on.
    fn from(error: Error) -> Self {
        Self {
            error_type: format!("Idempotency.{}", error.kind().as_str()),
            error_message: error.to_string(),
        }
    }
}

impl<E: Into<Diagnostic>> From<RunError<E>> for Diagnostic {
    fn from(error: RunError<E>) -> Self {
        match error {
            RunError::Handler(error) => error.into(),
            RunError::Recorded(failure) => {
                Self { error_type: failure.error_type, error_message: failure.error_message }
            }
            RunError::Idempotency(error) => error.into(),
        }
    }
}

impl FingerprintBuilder {
    /// Adds a field that was selected, or that it is not there.
    fn field(self, (field, found): selector::Found<'_>) -> Self {
        match found {
            Some(found) => self.part("field", field.as_str()).json_or_bytes("value", found.as_bytes()),
            None => self.part("absent", field.as_str()),
        }
    }
}
