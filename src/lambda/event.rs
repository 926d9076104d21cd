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
//!
//! # What's compared
//!
//! When a key is used again, the payload must be the same: [`EventLayer::fingerprint_fields`] chooses other fields,
//! or with `[""]` the whole event. By default it's the part that a retry repeats, without what the delivery adds.
//!
//! | event | compared | not compared |
//! |---|---|---|
//! | API Gateway, function URL, load balancer, VPC Lattice | method, path, query, body, sender | request id, times, traces, other headers |
//! | EventBridge | source, account, detail type, resources, detail | id, time, `replay-name` |
//! | a schedule (EventBridge, or its scheduler) | the same, and the time | id |
//! | SNS | topic, subject, message | message id, attributes, times, signature |
//! | SQS | queue, body | message id, attributes, receipt handle, receive count, times |
//! | Kinesis | stream, data | partition key, sequence number, times |
//! | DynamoDB Streams | table, change, keys, old and new image | event id, sequence number, times |
//! | S3 | change, bucket, object | request id, times, sender's address |
//! | [`keys::event_bridge`](super::keys::event_bridge), [`scheduler`](super::keys::scheduler), [`sns`](super::keys::sns), [`s3`](super::keys::s3) | the fields that their pages name | everything else |
//! | any other | the whole event | |
//! | a batch's record ([`batch`](super::batch)) | the same part of this record; the source is in its key | the same |
//! | a request ([`Idempotency::http`]) | method, path, query, body; the caller is in its key | headers |
//!
//! A body or message is compared as JSON if it's JSON, so white space and the order of names don't matter. With
//! several records in an event, all of them count. Message attributes aren't compared, since tracing adds to them: if
//! they decide what the function does, put them into the key.
//!
//! The sender is the caller that the front end verified, without the parts that a refreshed token or another session
//! of a role changes. Without one, everything that an authorizer passed on counts, all headers that carry a
//! credential, and cookies other than a load balancer's. So another sender's request is a mismatch, and never gets
//! this one's answer. To give each sender its own keys, put the sender into [`KeyFields`], or use
//! [`Idempotency::http`], which does that.
//!
//! An event that has a field twice, or whose parts can't be read, counts as one of another source.

mod payload;
mod replays;

use std::{
    any::type_name,
    fmt,
    marker::PhantomData,
    task::{self, Poll},
};

use lambda_runtime::{Context, Diagnostic, LambdaEvent};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tower::{Layer, Service};

use crate::{
    error::{Error, ErrorKind, RecordedFailure, RunError, place},
    failure::{ErrorPolicy, OnError},
    fingerprint::{Fingerprint, FingerprintBuilder},
    future::BoxFuture,
    idempotency::Idempotency,
    key::{Key, StoredKey},
    key_fields::KeyFields,
    lambda::{take_ready, tenant},
    observe,
    run::{
        context::{OperationContext, within},
        protect::{Protected, Target, as_it_is, protect},
        replay::Replay,
        response::Verdict,
        shadow,
    },
    selector::{self, Selector},
    settings::MissingKey,
};
use replays::OnReplay;

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
    /// ([`EventLayer::fingerprint_fields`]). Default: [the event's payload](self#whats-compared).
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

/// See [`Idempotency::events`].
#[must_use]
pub struct EventLayer<T, F> {
    idempotency: Idempotency,
    key: F,
    missing_key: MissingKey,
    /// `None` means the payload.
    fingerprinted: Option<Vec<Selector>>,
    on_replay: OnReplay,
    event: PhantomData<fn(T)>,
}

impl<T, F> EventLayer<T, F> {
    pub(super) fn new(idempotency: &Idempotency, key: F) -> Self {
        Self {
            idempotency: idempotency.clone(),
            key,
            missing_key: MissingKey::default(),
            fingerprinted: None,
            on_replay: OnReplay::default(),
            event: PhantomData,
        }
    }

    /// Compares these fields of the event, each given as a [`Selector`], in place of [its
    /// payload](self#whats-compared). Use it for your own events that change in each delivery, for example by a
    /// trace id or a timestamp. A missing field is compared as absent. If an event has none of them, or one can't
    /// be looked up, the whole event is compared. The empty pointer, `""`, is the whole event.
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

    /// Calls this with each replay, and adds the fields that it returns to the answer, behind the answer's own. An
    /// answer that has a field of this name keeps its own. A recorded failure gets no fields, nor does an answer
    /// that isn't a JSON object. It never changes what's stored.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
    /// # #[derive(serde::Deserialize)]
    /// # struct Order { id: String }
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let layer = idempotency
    ///     .events(|order: &Order| Key::new(&order.id))
    ///     .on_replay(|replay| [("replayed", true.into()), ("attempt", replay.attempt().into())]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn on_replay<A>(mut self, add: impl Fn(&Replay) -> A + Send + Sync + 'static) -> Self
    where
        A: IntoIterator<Item = (&'static str, Value)>,
    {
        self.on_replay = OnReplay::new(add);
        self
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
            on_replay: self.on_replay.clone(),
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
            .field("on_replay", &self.on_replay)
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
        let keyed = key.and_then(|key| self.keyed(key, &raw, &context));
        let keyed = match keyed {
            Err(error) if shadow::lets_pass(self.idempotency.driver(), error.kind().as_str()) => None,
            keyed => keyed.inspect_err(observe::refused_unasked)?,
        };
        let Some((key, fingerprint)) = keyed else {
            observe::unprotected("missing key");
            let surroundings = OperationContext::unprotected(invocation);
            let call = within(surroundings, async { inner.call(LambdaEvent::new(payload, context)).await });
            let response = call.await.map_err(RunError::Handler)?;
            return Ok(encoded(&response)?);
        };
        let target = Target { key, fingerprint, invocation, cut_off: None, way: self.idempotency.way() };
        drop(raw);
        let handler = || inner.call(LambdaEvent::new(payload, context));
        match protect(self.idempotency.driver(), target, handler, judge, as_it_is).await? {
            Protected::Ran(result) | Protected::RanUnrecorded(result) => result,
            Protected::Replayed(replay) if replay.is_failure() => {
                self.on_replay.failed(&replay);
                Err(recorded_failure(replay.response()))
            }
            Protected::Replayed(replay) => {
                let answer = recorded_response(replay.response())?;
                Ok(self.on_replay.answered(&replay, answer))
            }
        }
    }

    /// The stored key and the fingerprint of an event with this key. `None` if it has none, and may run without.
    ///
    /// # Errors
    ///
    /// As [`allowed`](Self::allowed), and [`ErrorKind::Invalid`] for a tenant that's too long.
    fn keyed(
        &self,
        key: Option<Key>,
        raw: &RawValue,
        context: &Context,
    ) -> Result<Option<(StoredKey, Fingerprint)>, Error> {
        let Some(key) = self.allowed(key)? else { return Ok(None) };
        let mut scope = self.idempotency.scope("event")?;
        if let Some(tenant) = tenant(context) {
            scope = scope.with_caller(tenant)?;
        }
        Ok(Some((StoredKey::new(&scope, &key), self.fingerprint(raw)?)))
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
        let of_part = match compared {
            Some(fields) => selector::found_in(fields, json).map(|found| {
                found.into_iter().fold(Fingerprint::builder("event"), FingerprintBuilder::field).finish()
            }),
            None => payload::fingerprint(raw),
        };
        of_part.map_or_else(|| Fingerprint::of_json(json), Ok)
    }
}

fn judge<R: Serialize, E: Into<Diagnostic> + 'static>(
    result: Result<R, E>,
    policy: ErrorPolicy,
) -> (Verdict, Result<Box<RawValue>, RunError<E>>) {
    let error = match result {
        Ok(response) => {
            return match encoded(&response) {
                Ok(json) => (Verdict::Complete(json.get().as_bytes().to_vec().into()), Ok(json)),
                Err(error) => (Verdict::CompleteOmitted, Err(error.into())),
            };
        }
        Err(error) => error,
    };
    match policy.on(&error) {
        OnError::Release => (Verdict::Release, Err(RunError::Handler(error))),
        // Every delivery gets the recorded failure, including this one.
        OnError::Record(said) => {
            let failure = said.unwrap_or_else(|| {
                let Diagnostic { error_type, error_message } = error.into();
                RecordedFailure::new(error_type, error_message)
            });
            (Verdict::failure(&failure), Err(RunError::Recorded(failure)))
        }
    }
}

fn encoded<R: Serialize>(response: &R) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(response).map_err(|error| {
        Error::new(
            ErrorKind::Invalid,
            format!("the handler ran, but its response ({}) can't be written as JSON", type_name::<R>()),
        )
        .with_source(error)
    })
}

fn recorded_response(json: &[u8]) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(json)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "the recorded response isn't JSON; nothing ran"))
}

fn recorded_failure<E>(json: &[u8]) -> RunError<E> {
    match serde_json::from_slice(json) {
        Ok(failure) => RunError::Recorded(failure),
        Err(_) => Error::new(ErrorKind::Corrupt, "the recorded failure can't be read; nothing ran").into(),
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
        format!("the event doesn't parse as {}:{missing} {}; nothing ran", type_name::<T>(), place(error)),
    )
}
