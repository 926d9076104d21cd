//! Typed events: a tower layer in front of a `lambda_runtime` handler.
//!
//! ```no_run
//! use lambda_idempotency::{Idempotency, Key};
//! use lambda_runtime::{Error, LambdaEvent, run, service_fn, tower::ServiceBuilder};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced {
//!     id: String,
//! }
//!
//! async fn handle(event: LambdaEvent<OrderPlaced>) -> Result<String, Error> {
//!     Ok(format!("order {} is on its way", event.payload.id))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! let idempotency = Idempotency::builder(store).build()?;
//! run(ServiceBuilder::new()
//!     .layer(idempotency.events(|order: &OrderPlaced| Key::new(&order.id)))
//!     .service(service_fn(handle)))
//! .await
//! # }
//! ```

use std::{
    any::type_name,
    fmt,
    marker::PhantomData,
    task::{self, Poll},
};

use lambda_runtime::{Context, Diagnostic, LambdaEvent};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tower::{Layer, Service};

use crate::{
    engine::{Idempotency, Protected, Target, Verdict, as_it_is},
    error::{Error, ErrorKind, RecordedFailure, RunError, place},
    fingerprint::{Fingerprint, FingerprintBuilder},
    future::BoxFuture,
    invocation::{OperationContext, within},
    key::{Key, StoredKey},
    key_fields::KeyFields,
    lambda::{take_ready, tenant},
    observe,
    policy::{MissingKey, OnHandlerError},
    selector::{self, Selector},
};

/// The return type of a key closure. `None` is a missing key, and never a key that events share.
pub trait IntoKey {
    /// The key, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// If there is a key, but it isn't valid.
    fn into_key(self) -> Result<Option<Key>, Error>;
}

impl IntoKey for Key {
    fn into_key(self) -> Result<Option<Key>, Error> {
        Ok(Some(self))
    }
}

impl IntoKey for Option<Key> {
    fn into_key(self) -> Result<Option<Key>, Error> {
        Ok(self)
    }
}

impl<K: IntoKey> IntoKey for Result<K, Error> {
    fn into_key(self) -> Result<Option<Key>, Error> {
        self?.into_key()
    }
}

/// The source of an event's key: a closure over the typed event, [`KeyFields`] of its JSON, or the invocation's
/// [`RequestId`](super::keys::RequestId).
pub trait EventKey<T>: Clone + Send + Sync + 'static {
    /// The event's key, if it has one.
    ///
    /// # Errors
    ///
    /// If there is a key, but it isn't valid, or if the event can't be searched for it.
    fn key_of(&self, event: &T, raw: &RawValue, context: &Context) -> Result<Option<Key>, Error>;

    /// The fields of the event that must match when its key is used again, unless the layer sets others
    /// ([`EventLayer::fingerprint_fields`]). Default: the whole event.
    fn compared(&self) -> Option<&[Selector]> {
        None
    }
}

impl<T, F, K> EventKey<T> for F
where
    F: Fn(&T) -> K + Clone + Send + Sync + 'static,
    K: IntoKey,
{
    fn key_of(&self, event: &T, _: &RawValue, _: &Context) -> Result<Option<Key>, Error> {
        self(event).into_key()
    }
}

impl<T> EventKey<T> for KeyFields {
    fn key_of(&self, _: &T, raw: &RawValue, _: &Context) -> Result<Option<Key>, Error> {
        KeyFields::key_of(self, raw.get().as_bytes())
    }

    fn compared(&self) -> Option<&[Selector]> {
        KeyFields::compared(self)
    }
}

impl Idempotency {
    /// A tower layer that makes a handler of typed events idempotent.
    ///
    /// `key` returns the key of the operation that an event asks for. The fingerprint is the whole event as it
    /// was sent, including unknown fields and exact numbers. The layered service takes raw JSON and returns raw
    /// JSON, so a replay is the recorded response byte for byte.
    pub fn events<T, F, K>(&self, key: F) -> EventLayer<T, F>
    where
        F: Fn(&T) -> K,
        K: IntoKey,
    {
        EventLayer::new(self, key)
    }

    /// Like [`events`](Self::events), but with a key that isn't a closure: fields of the event's JSON, or a key
    /// from [`keys`](super::keys) for one of AWS's own sources.
    ///
    /// ```
    /// use lambda_idempotency::{Idempotency, KeyFields};
    /// # use lambda_idempotency::store::memory::MemoryStore;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     cents: u64,
    /// }
    ///
    /// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let layer = idempotency.events_by::<Order, _>(KeyFields::new(["/customer", "/order/number"])?);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn events_by<T, F: EventKey<T>>(&self, key: F) -> EventLayer<T, F> {
        EventLayer::new(self, key)
    }
}

/// See [`Idempotency::events`].
#[must_use]
pub struct EventLayer<T, F> {
    idempotency: Idempotency,
    key: F,
    missing_key: MissingKey,
    /// `None` means the whole event.
    fingerprinted: Option<Vec<Selector>>,
    event: PhantomData<fn(T)>,
}

impl<T, F> EventLayer<T, F> {
    fn new(idempotency: &Idempotency, key: F) -> Self {
        Self {
            idempotency: idempotency.clone(),
            key,
            missing_key: MissingKey::default(),
            fingerprinted: None,
            event: PhantomData,
        }
    }

    /// Compares only these fields of the event, each given as a [`Selector`], in place of the whole event. Use
    /// it for events that change in each delivery, for example by a trace id or a timestamp. A missing field is
    /// compared as absent. If an event has none of them, or one can't be looked up, the whole event is
    /// compared.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if one isn't a valid selector, or there are none.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[derive(serde::Deserialize)]
    /// # struct Order { id: String }
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let layer =
    ///     idempotency.events(|order: &Order| Key::new(&order.id)).fingerprint_fields(["/id", "/amount"])?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn fingerprint_fields<'a>(
        mut self,
        fields: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        self.fingerprinted = Some(selector::some_of(fields)?);
        Ok(self)
    }

    /// Names the operation. If a function has more than one such layer, give each its own name, or they share
    /// keys. Default: [`Builder::operation`](crate::Builder::operation)'s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or contains anything but ASCII letters, digits,
    /// `-`, `_` and `.`.
    pub fn operation(mut self, name: impl AsRef<str>) -> Result<Self, Error> {
        self.idempotency = self.idempotency.named(name.as_ref())?;
        Ok(self)
    }

    /// Sets what happens to an event that has no key. Default: refuse it.
    pub fn missing_key(mut self, policy: MissingKey) -> Self {
        self.missing_key = policy;
        self
    }
}

impl<T, F: Clone> Clone for EventLayer<T, F> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            key: self.key.clone(),
            missing_key: self.missing_key,
            fingerprinted: self.fingerprinted.clone(),
            event: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for EventLayer<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLayer")
            .field("event", &type_name::<T>())
            .field("missing_key", &self.missing_key)
            .field("fingerprinted", &self.fingerprinted)
            .finish_non_exhaustive()
    }
}

impl<S, T, F: Clone> Layer<S> for EventLayer<T, F> {
    type Service = EventService<S, T, F>;

    fn layer(&self, inner: S) -> Self::Service {
        EventService { inner, layer: self.clone() }
    }
}

/// An idempotent handler of typed events; see [`Idempotency::events`].
#[derive(Debug)]
pub struct EventService<S, T, F> {
    inner: S,
    layer: EventLayer<T, F>,
}

impl<S: Clone, T, F: Clone> Clone for EventService<S, T, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, T, F, R> Service<LambdaEvent<Box<RawValue>>> for EventService<S, T, F>
where
    S: Service<LambdaEvent<T>, Response = R> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Diagnostic> + Send + 'static,
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    F: EventKey<T>,
{
    type Response = Box<RawValue>;
    type Error = RunError<S::Error>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(RunError::Handler)
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let inner = take_ready(&mut self.inner);
        let layer = self.layer.clone();
        Box::pin(async move { layer.handle(inner, event).await })
    }
}

impl<T, F> EventLayer<T, F>
where
    T: DeserializeOwned,
    F: EventKey<T>,
{
    async fn handle<S, R>(
        &self,
        mut inner: S,
        event: LambdaEvent<Box<RawValue>>,
    ) -> Result<Box<RawValue>, RunError<S::Error>>
    where
        S: Service<LambdaEvent<T>, Response = R>,
        S::Error: Into<Diagnostic> + 'static,
        R: Serialize + 'static,
    {
        let LambdaEvent { payload: raw, context } = event;
        let invocation = self.idempotency.entered(&context);
        let payload: T = serde_json::from_str(raw.get())
            .map_err(|error| not_an_event::<T>(&error))
            .inspect_err(observe::refused_unasked)?;
        let key = self.key.key_of(&payload, &raw, &context);
        let key = key.and_then(|key| self.allowed(key)).inspect_err(observe::refused_unasked)?;
        let Some(key) = key else {
            observe::unprotected("missing key");
            let surroundings = OperationContext::unprotected(invocation);
            let call = within(surroundings, async { inner.call(LambdaEvent::new(payload, context)).await });
            let response = call.await.map_err(RunError::Handler)?;
            return Ok(encoded(&response)?);
        };
        let mut scope = self.idempotency.scope("event")?;
        if let Some(tenant) = tenant(&context) {
            scope = scope.with_caller(tenant)?;
        }
        let operation = Target {
            key: StoredKey::new(&scope, &key),
            fingerprint: self.fingerprint(&raw)?,
            invocation,
            cut_off: None,
            mode: self.idempotency.mode(),
        };
        drop(raw);
        let handler = || inner.call(LambdaEvent::new(payload, context));
        match self.idempotency.engine().protect(operation, handler, judge, as_it_is).await? {
            Protected::Ran(result) | Protected::RanUnrecorded(result) => result,
            Protected::Replayed(replay) if replay.is_failure() => Err(recorded_failure(replay.response())),
            Protected::Replayed(replay) => Ok(recorded_response(replay.response())?),
        }
    }

    /// # Errors
    ///
    /// [`ErrorKind::MissingKey`] if there is no key and the policy refuses that.
    fn allowed(&self, key: Option<Key>) -> Result<Option<Key>, Error> {
        match (key, self.missing_key) {
            (None, MissingKey::Refuse) => Err(Error::new(
                ErrorKind::MissingKey,
                format!("the event has no idempotency key; {} needs one", type_name::<T>()),
            )),
            (key, _) => Ok(key),
        }
    }

    fn fingerprint(&self, raw: &RawValue) -> Result<Fingerprint, Error> {
        let json = raw.get().as_bytes();
        let compared = self.fingerprinted.as_deref().or_else(|| self.key.compared());
        match compared.and_then(|fields| selector::found_in(fields, json)) {
            Some(found) => {
                Ok(found.into_iter().fold(Fingerprint::builder("event"), FingerprintBuilder::field).finish())
            }
            None => Fingerprint::of_json(json),
        }
    }
}

fn judge<R: Serialize, E: Into<Diagnostic>>(
    result: Result<R, E>,
    on_error: OnHandlerError,
) -> (Verdict, Result<Box<RawValue>, RunError<E>>) {
    match (result, on_error) {
        (Ok(response), _) => match encoded(&response) {
            Ok(json) => (Verdict::Complete(json.get().as_bytes().to_vec().into()), Ok(json)),
            Err(error) => (Verdict::CompleteOmitted, Err(error.into())),
        },
        (Err(error), OnHandlerError::Release) => (Verdict::Release, Err(RunError::Handler(error))),
        (Err(error), OnHandlerError::Record) => {
            let Diagnostic { error_type, error_message } = error.into();
            let failure = RecordedFailure::new(error_type, error_message);
            // Every delivery gets the recorded failure, including this one.
            (Verdict::failure(&failure), Err(RunError::Recorded(failure)))
        }
    }
}

fn encoded<R: Serialize>(response: &R) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(response).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("the handler ran, but its response ({}) cannot be written as JSON", type_name::<R>()),
        )
        .with_source(error)
    })
}

fn recorded_response(json: &[u8]) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(json)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "the recorded response is not JSON; nothing ran"))
}

fn recorded_failure<E>(json: &[u8]) -> RunError<E> {
    match serde_json::from_slice(json) {
        Ok(failure) => RunError::Recorded(failure),
        Err(_) => Error::new(ErrorKind::Corrupt, "the recorded failure cannot be read; nothing ran").into(),
    }
}

/// Says where parsing failed, and which field is missing. It leaves out the rest of the error's text, which may
/// quote the event.
fn not_an_event<T>(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    // A missing field's name is from the type, not from the event (`missing_field` in `serde::de::Error` takes
    // a `&'static str`).
    let field = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let missing = field.map(|field| format!(" it has no field `{field}`,")).unwrap_or_default();
    Error::new(
        ErrorKind::Invalid,
        format!("the event does not read as {}:{missing} {}; nothing ran", type_name::<T>(), place(error)),
    )
}
