//! Typed events: a tower layer in front of a `lambda_runtime` handler.
//!
//! ```no_run
//! use lambda_idempotency::{Idempotency, Key, lambda::run};
//! use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
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
//! When a key is used again, the payload must be the same. By default, the payload is the part of the event that a
//! retry repeats, without the fields that the delivery adds. [`EventLayer::fingerprint_fields`] compares other fields
//! instead, or with `[""]` the whole event.
//!
//! | event | compared | not compared |
//! |---|---|---|
//! | API Gateway, function URL, load balancer, VPC Lattice (event structure V2) | method, path, query, body, sender | request id, times, traces, other headers |
//! | VPC Lattice (event structure V1, the API's default) | method, path, query, body, sender | traces, other headers |
//! | AppSync | field, arguments, source, stash, previous result, user | headers, variables, selection set, the token's other claims |
//! | EventBridge | source, account, detail type, resources, detail | id, time, `replay-name` |
//! | a schedule (EventBridge, or its scheduler) | as for EventBridge, and the time | id |
//! | SNS | topic, subject, message | message id, attributes, times, signature |
//! | SQS | queue, body | message id, attributes, receipt handle, receive count, times |
//! | Kinesis | stream, data; an aggregate of the Kinesis Producer Library counts as one record | partition key, sequence number, times |
//! | DynamoDB Streams | table, change, keys, old and new image | event id, sequence number, times |
//! | S3 | change, bucket, object, and data such as `glacierEventData` | request id, times, sender's address |
//! | [`keys::event_bridge`](super::keys::event_bridge), [`scheduler`](super::keys::scheduler), [`sns`](super::keys::sns), [`s3`](super::keys::s3) | the fields that their pages list | everything else |
//! | any other, such as DocumentDB's change streams, for which there is no worker | the whole event | |
//! | a batch's record ([`batch`](super::batch)), by a mapping or by EventBridge Pipes | as above for its source, but the source itself is in the key | as above |
//! | a batch's record with a key from [`keys`](super::keys), or with [`Batch::fingerprint_fields`](super::batch::Batch::fingerprint_fields) | the fields that the key's page lists, or the chosen ones | everything else |
//! | a request ([`Idempotency::http`]) | method, path, query, body; the caller is in the key | headers |
//!
//! A body or message is compared as JSON if it's JSON, so white space and the order of names don't matter. If an
//! event has several records, all of them are compared. Message attributes aren't compared, since tracing adds to
//! them: if they decide what the function does, put them into the key.
//!
//! The sender is the caller that the front end verified, without the parts that a refreshed token or another session of
//! a role changes. If the front end verified no caller, these are compared instead: everything that an authorizer
//! passed on, all headers that carry a credential, all cookies except a load balancer's, and a WebSocket's connection.
//! If it verified a role or a certificate, behind which several people may stand, the headers that carry a credential
//! and the cookies are compared too, without the role's own signature.
//! Some names, such as a Lambda authorizer's principal, may mean someone else in another API. For these, the API and
//! the stage are part of the sender. A request from another sender is a mismatch, and never gets the first sender's
//! answer. A retry can be such a mismatch too: if a WebSocket client without a verified name has connected again, or if
//! the retry goes through another stage. If such retries are duplicates for you, name the fields to compare with
//! [`EventLayer::fingerprint_fields`]. To give each sender its own keys, put the sender into [`KeyFields`], or use
//! [`Idempotency::http`], whose keys belong to their caller.
//!
//! In VPC Lattice's first event structure, the sender is the principal that VPC Lattice verified, and every credential in
//! the headers except the principal's own signature and session token. `lambda_http`, and so [`Idempotency::http`],
//! reads only the second structure. AppSync's user is the issuer and subject, the Cognito identity, or the IAM user.
//! For a request with an API key or a Lambda authorizer, the whole identity and all credentials in the headers are
//! compared.
//!
//! Fields that the source itself doesn't send are compared too. For example, a state machine passes on an event, and
//! adds a field in each step: calls that differ in that field aren't duplicates. If a retry changes such a field, for
//! example `State.RetryCount` of Step Functions, name only the other fields with [`EventLayer::fingerprint_fields`].
//! With a key from [`keys`](super::keys), only the fields that the key's page lists are compared. So two steps of a
//! state machine that get the same AWS event could count as duplicates. In a state machine, use your own key with
//! the state's name in it.
//!
//! If an event has a field twice, its `Records` are empty, or its parts can't be read, the whole event is compared.

#[cfg(all(feature = "admin", feature = "http"))]
mod locate;
mod payload;
mod replays;

use std::{
    any::type_name,
    fmt,
    sync::Arc,
    task::{self, Poll},
};

use lambda_runtime::{Context, Diagnostic, LambdaEvent};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use tower::{Layer, Service};

use crate::{
    error::{Error, ErrorKind, RecordedFailure, RunError, place},
    failure::{ErrorPolicy, OnError},
    fingerprint::Fingerprint,
    future::BoxFuture,
    idempotency::Idempotency,
    internal::KeyFieldsExt as _,
    key::{Key, StoredKey},
    key_fields::KeyFields,
    lambda::{Idempotent, diagnosed, take_ready, tenant},
    observe,
    run::{
        context::{OperationContext, within},
        protect::{Protected, Target, as_it_is, protect},
        replay::Replay,
        response::Verdict,
        shadow,
    },
    selector::{self, Selector},
    span::OperationSpan,
};
use replays::OnReplay;

/// The return type of a key closure. `None` means that the event has no key. Two events without a key never count as
/// the same operation.
pub trait IntoKey {
    /// The key, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// An error if there is a key, but it isn't valid.
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

/// Reads the key from an event, its JSON, or the invocation.
pub(super) type KeyOf<T> = Arc<dyn Fn(&T, &RawValue, &Context) -> Result<Option<Key>, Error> + Send + Sync>;

/// Where a layer's keys come from, for its description. A closure can't be described.
#[derive(Clone, Debug, Default)]
pub(super) enum KeyFrom {
    #[default]
    Closure,
    RequestId,
    Fields(KeyFields),
}

/// The layer for typed events: see [`Idempotency::events`].
///
/// A function can return the layered service. `main` and the tests can then use the same one. The service takes raw JSON
/// and returns raw JSON, and its error is a [`RunError`] of the handler's error:
///
/// ```
/// use lambda_idempotency::{Idempotency, Key, RunError, store::memory::MemoryStore};
/// use lambda_runtime::{Context, Error, LambdaEvent, Service, service_fn};
/// use lambda_runtime::tower::{Layer as _, ServiceExt as _};
/// use serde_json::value::RawValue;
///
/// type Json = Box<RawValue>;
///
/// async fn pay(order: LambdaEvent<String>) -> Result<String, Error> {
///     Ok(format!("paid {}", order.payload))
/// }
///
/// fn service(
///     idempotency: &Idempotency,
/// ) -> impl Service<LambdaEvent<Json>, Response = Json, Error = RunError<Error>, Future: Send> + Clone + Send + use<> {
///     idempotency.events(|order: &String| Key::new(order)).layer(service_fn(pay))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
/// let event = LambdaEvent::new(RawValue::from_string(r#""order-17""#.to_owned())?, Context::default());
/// let answer = service(&idempotency).oneshot(event).await?; // in `main`: `lambda::run(service(&idempotency))`
/// assert_eq!(answer.get(), r#""paid order-17""#);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct EventLayer<T> {
    idempotency: Idempotency,
    key: KeyOf<T>,
    key_from: KeyFrom,
    required: bool,
    /// The fields to compare. `None` means the payload.
    fingerprinted: Option<Vec<Selector>>,
    on_replay: OnReplay,
    not_retained: Option<Value>,
}

impl<T> EventLayer<T> {
    pub(super) fn new(idempotency: &Idempotency, key: KeyOf<T>) -> Self {
        Self {
            idempotency: idempotency.clone(),
            key,
            key_from: KeyFrom::default(),
            required: true,
            fingerprinted: None,
            on_replay: OnReplay::default(),
            not_retained: None,
        }
    }

    pub(super) fn keyed_from(self, key_from: KeyFrom) -> Self {
        Self { key_from, ..self }
    }

    pub(super) fn comparing(self, fields: Option<Vec<Selector>>) -> Self {
        Self { fingerprinted: fields, ..self }
    }

    /// Compares these fields of the event, [named](crate::KeyFields#naming-a-field) as for a key, in place of [its
    /// payload](self#whats-compared). Use it for your own events that change in each delivery, for example by a
    /// trace id or a timestamp. An absent field matches only an absent field. If no field has a value, or a field can't
    /// be looked up, the whole event is compared. The empty pointer, `""`, names the whole event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a field's name isn't valid, or `fields` is empty.
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

    /// Calls a closure with each replay. The closure returns fields, and the layer appends those whose names the answer
    /// doesn't have yet. Recorded failures and answers that aren't JSON objects get no fields. The record doesn't
    /// change.
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

    /// Answers a duplicate with this JSON when the operation is done but its answer wasn't kept, in place of
    /// [`ErrorKind::NotRetained`]. Use it for jobs whose answer no caller needs: with
    /// [`max_response`](crate::settings::Settings::max_response) 0, no answer is stored. A duplicate of a recorded
    /// failure still gets an error.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key};
    /// # #[derive(serde::Deserialize)]
    /// # struct Night { date: String }
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// let idempotency = Idempotency::builder(store).function("reports").settings(|s| s.max_response = 0).build()?;
    /// let layer = idempotency
    ///     .events(|night: &Night| Key::new(&night.date))
    ///     .on_not_retained(serde_json::json!({"done": true}));
    /// # let _ = layer;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn on_not_retained(mut self, answer: Value) -> Self {
        self.not_retained = Some(answer);
        self
    }

    /// Names the operation. If a function has more than one such layer, give each its own name, or they share
    /// keys. Default: the name from [`Builder::operation`](crate::Builder::operation).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or contains anything but ASCII letters, digits,
    /// `-`, `_` and `.`.
    pub fn operation(mut self, name: impl AsRef<str>) -> Result<Self, Error> {
        self.idempotency = self.idempotency.named(name.as_ref())?;
        Ok(self)
    }

    /// Whether an event needs a key. Default: yes; the layer refuses events without a key, with
    /// [`ErrorKind::MissingKey`]. If you pass false, such events run unprotected.
    pub fn required(mut self, is_required: bool) -> Self {
        self.required = is_required;
        self
    }
}

impl<T> Clone for EventLayer<T> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            key: Arc::clone(&self.key),
            key_from: self.key_from.clone(),
            required: self.required,
            fingerprinted: self.fingerprinted.clone(),
            on_replay: self.on_replay.clone(),
            not_retained: self.not_retained.clone(),
        }
    }
}

impl<T> fmt::Debug for EventLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLayer")
            .field("event", &type_name::<T>())
            .field("required", &self.required)
            .field("fingerprinted", &self.fingerprinted)
            .field("on_replay", &self.on_replay)
            .finish_non_exhaustive()
    }
}

impl<S, T> Layer<S> for EventLayer<T> {
    type Service = Idempotent<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent { inner, layer: self.clone() }
    }
}

impl<S, T, R> Service<LambdaEvent<Box<RawValue>>> for Idempotent<S, EventLayer<T>>
where
    S: Service<LambdaEvent<T>, Response = R> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Diagnostic> + fmt::Debug + Send + 'static,
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
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

impl<T: DeserializeOwned> EventLayer<T> {
    async fn handle<S, R>(
        &self,
        mut inner: S,
        event: LambdaEvent<Box<RawValue>>,
    ) -> Result<Box<RawValue>, RunError<S::Error>>
    where
        S: Service<LambdaEvent<T>, Response = R>,
        S::Error: Into<Diagnostic> + fmt::Debug + 'static,
        R: Serialize + 'static,
    {
        let LambdaEvent { payload: raw, context } = event;
        let invocation = self.idempotency.entered(&context);
        let payload: T = serde_json::from_str(raw.get())
            .map_err(|error| not_an_event::<T>(&error))
            .inspect_err(observe::refused_unasked)?;
        let key = (self.key)(&payload, &raw, &context);
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
        let way = self.idempotency.way();
        let span = OperationSpan::new(&key, || context.xray_trace_id.clone());
        let target =
            Target { span, key: key.clone(), fingerprint, invocation, cut_off: None, way, inside: None };
        drop(raw);
        let handler = || inner.call(LambdaEvent::new(payload, context));
        let protected = protect(self.idempotency.driver(), target, handler, judge, as_it_is).await;
        if let (Err(error), Some(answer)) = (&protected, &self.not_retained)
            && error.kind() == ErrorKind::NotRetained
            && !error.is_of_failure()
        {
            return Ok(encoded(answer)?);
        }
        let report = |error: &Error| observe::refused(&key, error, false);
        match protected? {
            Protected::Ran(result) | Protected::RanUnrecorded(result) => result,
            Protected::Replayed(replay) if replay.is_failure() => {
                self.on_replay.failed(&replay);
                Err(RunError::Recorded(recorded_failure(replay.response()).inspect_err(report)?))
            }
            Protected::Replayed(replay) => {
                let answer = recorded_response(replay.response()).inspect_err(report)?;
                Ok(self.on_replay.answered(&replay, answer))
            }
        }
    }

    /// Returns an event's stored key and its fingerprint; `None` if the event has no key and needs none.
    ///
    /// # Errors
    ///
    /// The errors of [`allowed`](Self::allowed), and [`ErrorKind::Invalid`] if the tenant is too long.
    fn keyed(
        &self,
        key: Option<Key>,
        raw: &RawValue,
        context: &Context,
    ) -> Result<Option<(StoredKey, Fingerprint)>, Error> {
        let Some(key) = self.allowed(key, raw)? else { return Ok(None) };
        let mut scope = self.idempotency.scope("event")?;
        if let Some(tenant) = tenant(context) {
            scope = scope.with_caller(tenant)?;
        }
        Ok(Some((StoredKey::new(&scope, &key), self.fingerprint(raw)?)))
    }

    /// Accepts an event without a key if the layer doesn't require keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingKey`] if there is no key, but the layer requires one.
    fn allowed(&self, key: Option<Key>, raw: &RawValue) -> Result<Option<Key>, Error> {
        if key.is_some() || !self.required {
            return Ok(key);
        }
        let why = match &self.key_from {
            KeyFrom::Fields(fields) => fields.absence(raw.get().as_bytes()),
            KeyFrom::RequestId => "the invocation has no request id".to_owned(),
            KeyFrom::Closure => match own_type::<T>() {
                Some(name) => format!("the closure for {name} returned none"),
                None => "it has no value for the key".to_owned(),
            },
        };
        Err(Error::new(ErrorKind::MissingKey, format!("the event has no idempotency key: {why}")))
    }

    fn fingerprint(&self, raw: &RawValue) -> Result<Fingerprint, Error> {
        let json = raw.get().as_bytes();
        let of_part = match &self.fingerprinted {
            Some(fields) => selector::fingerprint_of(fields, json, "event"),
            None => payload::fingerprint(raw),
        };
        of_part.map_or_else(|| Fingerprint::of_json(json), Ok)
    }
}

fn judge<R: Serialize, E: Into<Diagnostic> + fmt::Debug + 'static>(
    result: Result<R, E>,
    policy: ErrorPolicy,
) -> (Verdict, Result<Box<RawValue>, RunError<E>>) {
    let error = match result {
        Ok(response) => {
            return match encoded(&response) {
                Ok(json) => (Verdict::complete(json.get().as_bytes().to_vec()), Ok(json)),
                Err(error) => (Verdict::CompleteOmitted, Err(error.into())),
            };
        }
        Err(error) => error,
    };
    match policy.on(&error) {
        OnError::Release => (Verdict::Release { interrupted: false }, Err(RunError::Handler(error))),
        OnError::Leave => (Verdict::Unanswered { until: None }, Err(RunError::Handler(error))),
        // This delivery gets the recorded failure too, like its duplicates.
        OnError::Record(Some(said)) => (Verdict::failure(&said), Err(RunError::Recorded(said))),
        OnError::Record(None) => {
            let (Diagnostic { error_type, error_message }, shown) = diagnosed(error);
            let failure = RecordedFailure::new(error_type, error_message);
            let verdict = if shown.is_refused_step {
                Verdict::Release { interrupted: false }
            } else {
                Verdict::failure(&failure)
            };
            (verdict, Err(RunError::Recorded(failure)))
        }
    }
}

fn encoded<R: Serialize>(response: &R) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(response).map_err(|error| {
        let shown = own_type::<R>().map(|name| format!(" ({name})")).unwrap_or_default();
        let message = format!("the handler ran, but its response{shown} can't be written as JSON");
        Error::new(ErrorKind::Invalid, message).with_source(error)
    })
}

fn recorded_response(json: &[u8]) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(json)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "the recorded response isn't JSON; inspect the record"))
}

fn recorded_failure(json: &[u8]) -> Result<RecordedFailure, Error> {
    serde_json::from_slice(json)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "can't read the stored failure; inspect the record"))
}

/// Says where parsing failed, and which field is missing. It leaves out the rest of the error's text, which may
/// quote the event.
fn not_an_event<T>(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    // A missing field's name is from the type, not from the event (`missing_field` in `serde::de::Error` takes
    // a `&'static str`).
    let field = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let missing = field.map(|field| format!(" it has no field `{field}`,")).unwrap_or_default();
    let wanted = own_type::<T>().unwrap_or("JSON");
    Error::new(
        ErrorKind::Invalid,
        format!("the event doesn't parse as {wanted}:{missing} {}; nothing ran", place(error)),
    )
}

/// The type's name for a message. `None` for a type that takes any JSON, whose name would tell the user nothing.
pub(super) fn own_type<T>() -> Option<&'static str> {
    Some(type_name::<T>()).filter(|name| is_own_type(name))
}

/// Whether a type's name tells the user something: it's neither a text, a box or raw JSON, nor a type of this library.
pub(super) fn is_own_type(name: &str) -> bool {
    let says_nothing = ["serde", "alloc::", "core::", "&", "lambda_idempotency"];
    !says_nothing.iter().any(|begin| name.starts_with(begin))
}
