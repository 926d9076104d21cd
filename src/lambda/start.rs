//! Runs a function, and keeps the types of this library's errors.

use std::{fmt, future::ready};

use bytes::Bytes;
use futures_util::Stream;
use lambda_runtime::{
    BoxFuture, Diagnostic, IntoFunctionResponse, LambdaEvent, Runtime, SnapStartResource,
    layers::TracingLayer,
};
use serde::{Deserialize, Serialize};
use tower::{Service, ServiceExt as _};

use crate::{idempotency::Idempotency, lambda::diagnosed, run::driver::Shared};

/// Runs a function as `lambda_runtime::run` does, and reports this library's errors to Lambda with their own types.
///
/// A handler passes on a step's error with `?`, which turns it into a box, such as `lambda_runtime::Error`.
/// `lambda_runtime::run` reports the box's type, `&alloc::boxed::Box<dyn …>`. With this function, Lambda reports the
/// step's type, such as `Idempotency.InProgress`, on which a state machine's `Retry` or a caller can match:
///
/// | the handler's error is, or has as a [source](std::error::Error::source) | Lambda reports |
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
/// Under SnapStart, each [`Idempotency`] that the process has built closes its store's connections and empties its local
/// cache: before the snapshot, and again after the restore. See [`guide::operations`](crate::guide::operations#snapstart).
///
/// For `run_concurrent`, or for a `Runtime` with your own layers, use [`typed`]. HTTP functions start with
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
    let mut runtime = Runtime::new(service.map_err(typed)).layer(TracingLayer::new());
    for shared in Shared::snapshotted() {
        runtime = runtime.register_snapstart_resource(shared);
    }
    runtime.run().await
}

/// Under SnapStart, closes the store's connections and empties the local cache, before the snapshot and after the
/// restore. [`lambda::run`](run) and [`http::run`](super::http::run) register every `Idempotency` themselves. Under another
/// starter, register it:
///
/// ```no_run
/// # use lambda_idempotency::Idempotency;
/// # use lambda_runtime::{Error, LambdaEvent, Runtime, service_fn};
/// # async fn refund(event: LambdaEvent<String>) -> Result<String, Error> { Ok(event.payload) }
/// # async fn main_of(idempotency: Idempotency) -> Result<(), Error> {
/// let runtime = Runtime::new(service_fn(refund));
/// runtime.register_snapstart_resource(std::sync::Arc::new(idempotency.clone())).run().await
/// # }
/// ```
impl SnapStartResource for Idempotency {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), lambda_runtime::Error>> {
        self.driver().shared.before_snapshot()
    }

    fn after_restore(&self) -> BoxFuture<'_, Result<(), lambda_runtime::Error>> {
        self.driver().shared.after_restore()
    }
}

impl SnapStartResource for Shared {
    fn before_snapshot(&self) -> BoxFuture<'_, Result<(), lambda_runtime::Error>> {
        self.forget();
        Box::pin(ready(Ok(())))
    }

    fn after_restore(&self) -> BoxFuture<'_, Result<(), lambda_runtime::Error>> {
        self.forget();
        Box::pin(ready(Ok(())))
    }
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

#[cfg(test)]
mod tests {
    use std::{any::type_name, error::Error as StdError};

    use super::*;
    use crate::{Error, Failure, Key, RecordedFailure, RunError};

    type Boxed = Box<dyn StdError + Send + Sync>;

    fn own() -> Error {
        Key::new("").unwrap_err()
    }

    fn type_of<E: Into<Diagnostic> + fmt::Debug + 'static>(error: E) -> String {
        let own: Diagnostic = typed(error).into();
        own.error_type
    }

    /// An error that has another as its source, and a list of errors that are neither sources nor shown.
    #[derive(Debug)]
    struct Context(Option<Boxed>, #[expect(dead_code, reason = "only `Debug` reads it")] Vec<Error>);

    impl fmt::Display for Context {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("booking the hotel")
        }
    }

    impl StdError for Context {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.0.as_ref().map(|source| &**source as _)
        }
    }

    impl From<Context> for Diagnostic {
        fn from(error: Context) -> Self {
            Boxed::from(error).into()
        }
    }

    fn within(source: impl Into<Boxed>) -> Context {
        Context(Some(source.into()), Vec::new())
    }

    #[test]
    fn library_errors_are_found_at_any_depth() {
        let step = || RunError::<Boxed>::from(own());
        let found = [
            type_of(own()),
            type_of(step()),
            type_of(Boxed::from(within(within(step())))),
            type_of(RunError::<Boxed>::Handler(within(step()).into())),
            type_of(Boxed::from(RunError::<Boxed>::Handler(within(step()).into()))),
            type_of(Failure::from(within(step()))),
            type_of(Failure::transient(within(step()))),
            type_of(RunError::Handler(Failure::from(within(step())))),
            type_of(Boxed::from(RunError::Handler(Failure::from(within(step()))))),
            type_of(Boxed::from(std::io::Error::other(own()))),
            type_of(Box::<dyn StdError>::from(within(own()))),
            type_of(anyhow::Error::from(within(own())).context("the trip").context("Rome")),
            type_of(RunError::Handler(anyhow::Error::from(own()).context("the trip"))),
        ];
        assert_eq!(found, ["Idempotency.InvalidKey"; 13].map(str::to_owned));
    }

    #[test]
    fn recorded_failures_keep_their_type_in_boxes() {
        let declined = || RecordedFailure::new("CardDeclined", "the bank said no");
        let step = || RunError::<Failure>::Recorded(declined());
        let unstored = || RunError::Handler(Failure::permanent("CardDeclined", "the bank said no"));
        let found = [
            type_of(step()),
            type_of(Boxed::from(step())),
            type_of(Boxed::from(within(step()))),
            type_of(anyhow::Error::from(step()).context("the trip")),
            type_of(Boxed::from(within(unstored()))),
            type_of(Failure::from(step())),
        ];
        assert_eq!(found, ["CardDeclined"; 6].map(str::to_owned));
    }

    #[test]
    fn outermost_error_decides_the_type() {
        let inner = Error::new(crate::ErrorKind::Unavailable, "the store is down");
        let outer = Error::new(crate::ErrorKind::Fenced, "taken over").with_source(within(inner));
        assert_eq!(type_of(Boxed::from(within(outer))), "Idempotency.Fenced");
    }

    #[test]
    fn errors_that_are_only_listed_change_nothing() {
        let listed = || Context(None, vec![own()]);
        let boxed = || format!("&{}", type_name::<Boxed>());
        assert_eq!(type_of(Boxed::from(listed())), boxed());
        assert_eq!(type_of(listed()), boxed());
        assert_eq!(type_of(own().to_string()), "&alloc::string::String");
        let chosen = Diagnostic { error_type: "NoTrip".to_owned(), error_message: own().to_string() };
        assert_eq!(type_of(chosen), "NoTrip");
        assert_eq!(type_of(std::io::Error::other("down")), "&std::io::error::Error");
    }

    #[test]
    fn log_shows_the_handler_s_error() {
        assert_eq!(format!("{:?}", typed("down")), "\"down\"");
    }
}
