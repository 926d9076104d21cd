//! Runs a function, and keeps the types of this library's errors.

use std::{any::type_name, error::Error as StdError, fmt};

use bytes::Bytes;
use futures_util::Stream;
use lambda_runtime::{Diagnostic, IntoFunctionResponse, LambdaEvent};
use serde::{Deserialize, Serialize};
use tower::{Service, ServiceExt as _};

use crate::{
    error::own::{self, Shown},
    failure::shown_in_any,
};

/// Runs a function as `lambda_runtime::run` does, and reports this library's errors to Lambda with their own types.
///
/// A handler passes on a step's error with `?`, which turns it into a box, such as `lambda_runtime::Error`.
/// `lambda_runtime::run` reports the box's type, `&alloc::boxed::Box<dyn …>`. With this function, Lambda reports the
/// step's type, such as `Idempotency.InProgress`, on which a state machine's `Retry` or a caller can match:
///
/// | the handler's error is, or has as a [source](StdError::source) | Lambda reports |
/// |---|---|
/// | this library's [`Error`](crate::Error), in [`RunError`](crate::RunError) too | `Idempotency.` and the [`ErrorKind`](crate::ErrorKind)'s name |
/// | [`RunError::Recorded`](crate::RunError::Recorded), such as a step's [`Failure::permanent`](crate::Failure::permanent) | the recorded failure's type |
/// | none of these, or a `Diagnostic` | the same as under `lambda_runtime::run` |
///
/// The outermost of these errors counts, and the message stays the handler's. The error may be a
/// `lambda_runtime::Error`, a [`Failure`](crate::Failure), an `anyhow::Error` (with `lambda_runtime`'s feature
/// `anyhow`), or any other type that `lambda_runtime` accepts. If your own error type chooses its name in its `From<_> for
/// Diagnostic`, that name stays. The type is lost if a handler makes a text of an error: pass on the error itself. Your
/// own error type in a box has to return this library's error as its `source()`, or write it in its `Display`.
///
/// For `run_concurrent`, or for a `Runtime` with layers of its own, use [`typed`]. HTTP functions start with
/// [`http::run`](super::http::run), which does the same.
///
/// # Errors
///
/// Same as `lambda_runtime::run`.
///
/// # Cancel safety
///
/// Dropping the future ends the function's loop and the current invocation.
///
/// ```no_run
/// use lambda_idempotency::{Idempotency, Key, lambda};
/// use lambda_runtime::{Error, LambdaEvent, service_fn};
///
/// async fn book(idempotency: &Idempotency, trip: LambdaEvent<String>) -> Result<String, Error> {
///     let hotel = idempotency.for_context(&trip.context).operation("hotel")?;
///     let booked = async || Ok::<_, Error>("room 12".to_owned());
///     Ok(hotel.run(Key::new(&trip.payload)?, &trip.payload, booked).await?)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// # let store = lambda_idempotency::store::memory::MemoryStore::new();
/// let idempotency = Idempotency::builder(store).build()?;
/// lambda::run(service_fn(|trip| book(&idempotency, trip))).await
/// # }
/// ```
pub async fn run<A, S, B, T, D, E>(service: S) -> Result<(), lambda_runtime::Error>
where
    S: Service<LambdaEvent<A>>,
    S::Response: IntoFunctionResponse<B, T>,
    S::Error: Into<Diagnostic> + fmt::Debug + 'static,
    A: for<'de> Deserialize<'de>,
    B: Serialize,
    T: Stream<Item = Result<D, E>> + Unpin + Send + 'static,
    D: Into<Bytes> + Send,
    E: Into<lambda_runtime::Error> + Send + fmt::Debug,
{
    lambda_runtime::run(service.map_err(typed)).await
}

/// Wraps a handler's error, so that Lambda reports the types that [`run`] reports. Use it where another function than
/// [`run`] starts yours.
///
/// Put it outermost: `ServiceBuilder`'s first line. `lambda_runtime` logs the wrapped error as it would log the
/// handler's.
///
/// ```no_run
/// use lambda_idempotency::{Idempotency, Key, lambda};
/// use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
///
/// # async fn refund(event: LambdaEvent<String>) -> Result<String, Error> { Ok(event.payload) }
/// # async fn main_of(idempotency: Idempotency) -> Result<(), Error> {
/// let layer = idempotency.events(|refund_id: &String| Key::new(refund_id));
/// let service = ServiceBuilder::new().map_err(lambda::typed).layer(layer).service(service_fn(refund));
/// lambda_runtime::run_concurrent(service).await
/// # }
/// ```
pub fn typed<E>(error: E) -> impl Into<Diagnostic> + fmt::Debug + use<E>
where
    E: Into<Diagnostic> + fmt::Debug + 'static,
{
    Typed(error)
}

/// A handler's error that keeps its own `Debug`, which `lambda_runtime` logs.
struct Typed<E>(E);

impl<E: fmt::Debug> fmt::Debug for Typed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Into<Diagnostic> + fmt::Debug + 'static> From<Typed<E>> for Diagnostic {
    fn from(Typed(error): Typed<E>) -> Self {
        diagnosed(error).0
    }
}

/// Converts a handler's error as [`run`] does. Also returns this library's errors in it.
pub(crate) fn diagnosed<E: Into<Diagnostic> + fmt::Debug + 'static>(error: E) -> (Diagnostic, Shown) {
    let found = shown_in_any(&error);
    // The conversion writes the error's text, which may show an error that isn't a source.
    let (mut diagnostic, written) = own::shown_while(|| error.into());
    let is_refused_step = found.is_refused_step || written.is_refused_step;
    let error_type = found.error_type.or(written.error_type);
    if let Some(own) = &error_type
        && !is_chosen::<E>(&diagnostic.error_type)
    {
        diagnostic.error_type.clone_from(own);
    }
    (diagnostic, Shown { error_type, is_refused_step })
}

/// Whether the handler chose the error's type. Otherwise it's the name of a Rust type that says nothing of the cause.
/// `lambda_runtime` reports the name of a reference to that type.
fn is_chosen<E>(error_type: &str) -> bool {
    let names =
        [type_name::<E>(), type_name::<Box<dyn StdError + Send + Sync>>(), type_name::<Box<dyn StdError>>()];
    !names.contains(&error_type.trim_start_matches('&'))
}
