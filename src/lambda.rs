//! The wrappers: tower layers in front of a handler of `lambda_runtime` or `lambda_http`.
//!
//! Each wrapper translates an event into a key and a fingerprint, and a response into bytes and back. The library's
//! core has the rules about claims.
//!
//! # When a key is free again
//!
//! If a claim isn't settled, for example because the process died, its key is free once the invocation's deadline, the
//! [`lease_grace`](crate::settings::Settings::lease_grace) and the [`skew_margin`](crate::settings::Settings::skew_margin) have
//! passed: 4 seconds after the deadline, by default. Until then, duplicates get
//! [`InProgress`](crate::ErrorKind::InProgress). If the deadline is unknown, the key is free when
//! [`lease_fallback`](crate::settings::Settings::lease_fallback) and the margin have passed: 62 seconds after the
//! claim. A [`lease_extension`](crate::settings::Settings::lease_extension) shortens the wait in both cases. Batches of
//! streams have [short leases](batch#a-crash) by default.
//!
//! # Run a function
//!
//! [`run`] starts a function, and [`http::run`] one behind an HTTP API. Both report this library's errors to Lambda with
//! their types, such as `Idempotency.InProgress`, also if the handler passes a step's error on with `?`.
//!
//! # Lambda Managed Instances
//!
//! On Managed Instances, Lambda sends several invocations at once to one process. Start the service with
//! `run_concurrent` of `lambda_runtime` or `lambda_http`, and enable that crate's feature `concurrency-tokio`. Put
//! [`typed`] outermost, so that errors keep their types as under [`run`].
//! Every wrapper is `Clone + Send + 'static`, as `run_concurrent` requires. In an on-demand function,
//! `run_concurrent` does the same as `run`. With `run`, the process takes one invocation at a time, whatever
//! `AWS_LAMBDA_MAX_CONCURRENCY` is.
//!
//! ```no_run
//! # use lambda_idempotency::{Idempotency, Key, lambda};
//! # use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
//! # async fn refund(event: LambdaEvent<String>) -> Result<String, Error> { Ok(event.payload) }
//! # async fn main_of(idempotency: Idempotency) -> Result<(), Error> {
//! let layer = idempotency.events(|refund_id: &String| Key::new(refund_id));
//! let service = ServiceBuilder::new().map_err(lambda::typed).layer(layer).service(service_fn(refund));
//! lambda_runtime::run_concurrent(service).await
//! # }
//! ```
//!
//! At the deadline, the caller gets an error, and the library drops the handler's future. The process keeps running,
//! and so do spawned tasks, `spawn_blocking`, and a handler that blocks its thread. A duplicate can run beside them
//! once the key is free. AWS reports that code can keep running after a timeout in on-demand functions too
//! ([aws-lambda-rust-runtime#1155](https://github.com/aws/aws-lambda-rust-runtime/issues/1155)). Lambda rejects a late
//! response with 410, which the runtime logs. A response that was recorded in time is still replayed to the next
//! delivery.

pub mod batch;
#[cfg(all(feature = "admin", feature = "http"))]
mod describe;
pub mod event;
#[cfg(feature = "http")]
pub mod http;
mod identity;
pub mod keys;
#[cfg(all(feature = "admin", feature = "http"))]
mod locate;
mod source;
mod start;

use std::sync::Arc;

use lambda_runtime::Context;
use serde_json::value::RawValue;

pub(crate) use crate::internal::diagnostic::diagnosed;
use crate::{
    idempotency::Idempotency, internal::KeyFieldsExt as _, invocation::Invocation, key::Key,
    key_fields::KeyFields, observe, time::Timestamp,
};
#[cfg(all(feature = "admin", feature = "http"))]
pub use describe::{Description, Located};
use event::{EventLayer, IntoKey, KeyFrom};
pub use start::{run, typed};

impl Idempotency {
    /// Returns a clone of this `Idempotency` for the invocation that `context` describes. Use it in handlers that call
    /// [`run`](crate::Operation::run) or [`begin`](crate::Operation::begin) without a layer around them. In a function
    /// with tenant isolation, the context's tenant becomes part of the keys.
    ///
    /// Call this method at the handler's entry: the library measures the invocation's time from this call, and checks
    /// here whether the context's deadline is valid.
    #[must_use]
    pub fn for_context(&self, context: &Context) -> Self {
        self.for_invocation(self.entered(context))
    }

    /// A tower layer that implements the `Idempotency-Key` header; see [the module](crate::lambda::http).
    #[cfg(feature = "http")]
    pub fn http(&self) -> http::HttpLayer {
        http::HttpLayer::new(self)
    }

    /// A tower layer that makes a handler of typed events idempotent.
    ///
    /// `key` returns the key of the operation that an event asks for. A later event with the same key must have the
    /// same payload. In the events of AWS's sources, the payload is [the part that a retry
    /// repeats](crate::lambda::event#whats-compared). In all other events, the payload is the whole event as sent,
    /// including unknown fields and exact numbers. The layered service takes raw JSON and returns raw
    /// JSON, so a replay is the recorded response byte for byte. [`EventLayer`]'s page shows a function that returns the
    /// service.
    pub fn events<T, K: IntoKey>(&self, key: impl Fn(&T) -> K + Send + Sync + 'static) -> EventLayer<T> {
        EventLayer::new(self, Arc::new(move |event, _, _| key(event).into_key()))
    }

    /// Like [`events`](Self::events), but takes the key from fields of the event's JSON. Name your own fields, or use
    /// [`keys`] for AWS's sources. The keys in that module also define which fields must match.
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
    /// let layer = idempotency.events_by::<Order>(KeyFields::new(["/customer", "/order/number"])?);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn events_by<T>(&self, key: KeyFields) -> EventLayer<T> {
        let (compared, fields) = (key.compared().map(<[_]>::to_vec), key.clone());
        let key = move |_: &T, raw: &RawValue, _: &Context| {
            let found = key.found_in(raw.get().as_bytes())?;
            Ok(found.map(|(key, _)| key))
        };
        EventLayer::new(self, Arc::new(key)).comparing(compared).keyed_from(KeyFrom::Fields(fields))
    }

    /// Like [`events`](Self::events), but with the invocation's request id as the key. Lambda's retries of an
    /// asynchronous invocation have the same request id.
    ///
    /// A caller who can choose the request id chooses the key. Lambda accepts a caller's id
    /// ([aws-lambda-dotnet#2508](https://github.com/aws/aws-lambda-dotnet/pull/2508)), so anyone with permission to
    /// invoke the function can get another request's recorded response by repeating its id and payload, or block a
    /// request by using its id first. If callers don't trust each other, take a key from the payload, and put the
    /// caller's identity into that key.
    pub fn events_by_request_id<T>(&self) -> EventLayer<T> {
        let key = |_: &T, _: &RawValue, context: &Context| {
            (!context.request_id.is_empty()).then(|| Key::new(&context.request_id)).transpose()
        };
        EventLayer::new(self, Arc::new(key)).keyed_from(KeyFrom::RequestId)
    }

    pub(crate) fn entered(&self, context: &Context) -> Invocation {
        let deadline = Timestamp::from_millis(context.deadline);
        let invocation = Invocation::entered(self.driver().now(), deadline, &context.request_id)
            .of_tenant(tenant(context))
            .beginning(self.driver().clock());
        if invocation.deadline().is_none() {
            let once = &self.driver().shared.unknown_deadline;
            once.call_once(|| observe::unknown_deadline(self.settings()));
        }
        invocation
    }
}

/// The service `S` behind a layer of this library: [`EventLayer`], [`HttpLayer`](http::HttpLayer), or
/// [`ReleaseRejections`](http::ReleaseRejections). For `ReleaseRejections`, `S` is the wrapped layer's service.
#[derive(Clone, Debug)]
pub struct Idempotent<S, L> {
    inner: S,
    layer: L,
}

/// Takes the service, and leaves a clone in its place. Only the taken service was polled ready and may be called.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

/// Returns the invocation's tenant. Only functions with tenant isolation have tenants.
pub(crate) fn tenant(context: &Context) -> Option<&str> {
    context.tenant_id.as_deref().filter(|tenant| !tenant.is_empty())
}
