//! Tracks the result of each attempt inside one call of the SDK.
//!
//! The SDK retries internally, and only reports the last attempt. Suppose that DynamoDB applies a write but answers
//! with a 500, and then throttles the retry: the reported error looks as if the write was never applied. So an
//! interceptor examines every attempt. The client registers it once: an interceptor per call would make the SDK merge
//! two configurations for every request.
//!
//! The interceptor passes its findings to the call through a task-local value.

use std::{cell::Cell, error::Error as StdError, future::Future, io};

use aws_sdk_dynamodb::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        endpoint::Endpoint,
        interceptors::{FinalizerInterceptorContextMut, FinalizerInterceptorContextRef},
    },
    error::{BoxError, ProvideErrorMetadata},
    operation::{
        get_item::GetItemError, put_item::PutItemError, transact_write_items::TransactWriteItemsError,
        update_item::UpdateItemError,
    },
};

use aws_smithy_runtime_api::client::orchestrator::OrchestratorError;

tokio::task_local! {
    static ATTEMPTS: Attempts;
}

/// The [`Findings`] so far, while the call runs.
#[derive(Default)]
struct Attempts {
    seen: Cell<bool>,
    maybe_applied: Cell<bool>,
    last_unsent: Cell<bool>,
    endpoint: Cell<Option<String>>,
}

/// What the interceptor saw of a call's failed attempts.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Whether the interceptor saw a failed attempt.
    pub(super) seen: bool,
    /// Whether a failed attempt may have been applied.
    pub(super) maybe_applied: bool,
    /// Whether the last failed attempt never reached a connection.
    pub(super) last_unsent: bool,
    /// The endpoint of the last failed attempt.
    pub(super) endpoint: Option<String>,
}

/// Awaits `call`, and returns its output and the findings about its attempts.
///
/// # Cancel safety
///
/// Cancel-safe if `call` is.
pub(super) fn observed<F: Future>(call: F) -> impl Future<Output = (F::Output, Findings)> {
    // A call of the SDK is a future of about 18 KB. Boxed here, it's moved only once. Unboxed, it would move together
    // with every future that contains it.
    let call = Box::pin(call);
    ATTEMPTS.scope(Attempts::default(), async move {
        let output = call.await;
        let findings = ATTEMPTS.with(|attempts| Findings {
            seen: attempts.seen.get(),
            maybe_applied: attempts.maybe_applied.get(),
            last_unsent: attempts.last_unsent.get(),
            endpoint: attempts.endpoint.take(),
        });
        (output, findings)
    })
}

/// The interceptor that examines every failed attempt.
#[derive(Debug)]
pub(super) struct AttemptObserver;

impl Intercept for AttemptObserver {
    fn name(&self) -> &'static str {
        "lambda-idempotency attempt observer"
    }

    /// DynamoDB always answers with a JSON object. An answer of success without a body comes from something in between,
    /// which may have passed the request on or not: DynamoDB's own answer was lost. The SDK would read such an answer as
    /// a write that was applied, or as a read that found nothing.
    fn modify_before_attempt_completion(
        &self,
        context: &mut FinalizerInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let is_lost = matches!(context.output_or_error(), Some(Ok(_)))
            && context
                .response()
                .is_some_and(|response| response.body().bytes().is_some_and(<[u8]>::is_empty));
        if let Some(answer) = context.output_or_error_mut().filter(|_| is_lost) {
            *answer = Err(OrchestratorError::response("the answer's body is empty".into()));
        }
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // A successful attempt, which is the hot path, ends here.
        if matches!(context.output_or_error(), Some(Ok(_))) {
            return Ok(());
        }
        // Before sending the request over a connection, the SDK takes the request out of the context. If it's still
        // there, the attempt failed earlier, for instance because there are no credentials.
        let unsent = context.request().is_some();
        let definite = unsent || had_no_listener(context) || is_refusal_of_the_service(context);
        // A request outside `observed`, such as the one in `explained`, has nowhere to keep its findings.
        let _ = ATTEMPTS.try_with(|attempts| {
            attempts.seen.set(true);
            attempts.maybe_applied.set(attempts.maybe_applied.get() || !definite);
            attempts.last_unsent.set(unsent);
            attempts.endpoint.set(config.load::<Endpoint>().map(|endpoint| shown(endpoint.url())));
        });
        Ok(())
    }
}

/// Whether the connection was refused, so that no server read the request. Any other connection error may occur
/// after the request was sent.
fn had_no_listener(context: &FinalizerInterceptorContextRef<'_>) -> bool {
    matches!(context.output_or_error(), Some(Err(error)) if
        error.as_connector_error().is_some_and(|error| was_refused(error)))
}

pub(super) fn was_refused(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Whether DynamoDB itself rejected the request: a status of 400 to 499 with a readable error code. A status without
/// an error code may come from a proxy that timed out.
fn is_refusal_of_the_service(context: &FinalizerInterceptorContextRef<'_>) -> bool {
    context.response().is_some_and(|response| response.status().is_client_error())
        && matches!(context.output_or_error(), Some(Err(error)) if
        error.as_operation_error().is_some_and(|error| {
            has_code(error.downcast_ref::<PutItemError>())
                || has_code(error.downcast_ref::<UpdateItemError>())
                || has_code(error.downcast_ref::<GetItemError>())
                || has_code(error.downcast_ref::<TransactWriteItemsError>())
        }))
}

fn has_code(error: Option<&impl ProvideErrorMetadata>) -> bool {
    error.and_then(ProvideErrorMetadata::code).is_some()
}

/// An endpoint's scheme, host and port. The rest of a URL may contain a password.
pub(super) fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_endpoints_hide_secrets() {
        assert_eq!(
            shown("https://dynamodb.eu-west-1.amazonaws.com"),
            "https://dynamodb.eu-west-1.amazonaws.com"
        );
        assert_eq!(shown("http://user:secret@localhost:8000/path?token=secret"), "http://localhost:8000");
        assert_eq!(shown("localhost:8000"), "localhost:8000");
    }

    #[test]
    fn refused_connections_are_found_in_error_chains() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let wrapped = aws_sdk_dynamodb::error::ConnectorError::io(Box::new(refused));
        assert!(was_refused(&wrapped));
        assert!(!was_refused(&aws_sdk_dynamodb::error::ConnectorError::io(Box::new(reset))));
    }
}
