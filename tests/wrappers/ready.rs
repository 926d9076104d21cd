//! If a handler isn't ready, its layer reports the handler's error, and doesn't call the handler.

use std::{
    future::Ready,
    marker::PhantomData,
    task::{self, Poll},
};

use lambda_http::{Body, Request, Response, request::LambdaRequest};
use lambda_idempotency::{
    Idempotency, Key, RunError,
    lambda::http::{ReleaseRejections, guarded, guarded_streaming},
    store::memory::MemoryStore,
};
use lambda_runtime::{LambdaEvent, tower::ServiceExt};
use serde_json::{Value, value::RawValue};
use tower::{Layer, Service, layer::util::Identity};

use crate::recording;

/// A handler whose response type is `A`, and whose `poll_ready` always fails.
struct Closed<A>(PhantomData<fn() -> A>);

impl<A> Clone for Closed<A> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<A, T> Service<T> for Closed<A> {
    type Response = A;
    type Error = lambda_runtime::Error;
    type Future = Ready<Result<A, Self::Error>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Err("closed".into()))
    }

    fn call(&mut self, _: T) -> Self::Future {
        panic!("a handler that isn't ready must not be called")
    }
}

fn requests() -> Closed<Response<Body>> {
    Closed(PhantomData)
}

#[tokio::test]
async fn handlers_that_are_not_ready_are_reported() {
    recording::begin();
    let idempotency = Idempotency::builder(MemoryStore::new()).function("shop").build().unwrap();
    let mut http = idempotency.http().layer(requests());
    let error = ServiceExt::<Request>::ready(&mut http).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "closed");

    let mut streaming = idempotency.http().streaming().layer(requests());
    let error = ServiceExt::<Request>::ready(&mut streaming).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "closed");

    let mut guard = guarded(requests());
    let error = ServiceExt::<LambdaEvent<LambdaRequest>>::ready(&mut guard).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "closed");

    let mut guard = guarded_streaming(requests());
    let error = ServiceExt::<LambdaEvent<LambdaRequest>>::ready(&mut guard).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "closed");

    let mut marked = ReleaseRejections::of(Identity::new()).layer(requests());
    let error = ServiceExt::<Request>::ready(&mut marked).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "closed");

    let key = |event: &Value| event["id"].as_str().map(Key::new).transpose();
    let mut events = idempotency.events(key).layer(Closed::<Value>(PhantomData));
    let ready = ServiceExt::<LambdaEvent<Box<RawValue>>>::ready(&mut events).await.map(|_| ());
    let Err(RunError::Handler(error)) = ready else { panic!("{ready:?}") };
    assert_eq!(error.to_string(), "closed");
}
