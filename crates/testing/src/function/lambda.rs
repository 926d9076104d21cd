//! Services for `lambda_runtime` and `lambda_http`, as [`Function`]s.

use std::{fmt, future::poll_fn, sync::Arc};

use lambda_idempotency_core::internal::diagnostic::diagnosed;
use serde::{Serialize, de::DeserializeOwned};

use super::{Answer, Entry, Function, HAS_CONTEXT, Refusal, encoded, unreadable};

impl Function {
    /// Wraps a service for [`lambda::run`](lambda_idempotency::lambda::run): the layer for typed events, the worker for
    /// a batch, or a handler. Its errors have the types that `lambda::run` reports. Feature `http`.
    pub fn lambda<S, T>(service: S) -> Self
    where
        S: tower::Service<lambda_runtime::LambdaEvent<T>> + Clone + Send + 'static,
        S::Response: Serialize + Send,
        S::Error: Into<lambda_runtime::Diagnostic> + fmt::Debug + Send + 'static,
        S::Future: Send + 'static,
        T: DeserializeOwned + Send + 'static,
    {
        Self::of(move |event: Arc<str>, entry| {
            let mut service = service.clone();
            Box::pin(HAS_CONTEXT.scope(false, async move {
                let payload = match serde_json::from_str(&event) {
                    Ok(payload) => payload,
                    Err(error) => return Answer::of(Err(unreadable(&error))),
                };
                if let Err(error) = poll_fn(|context| service.poll_ready(context)).await {
                    return Answer::of(Err(Refusal::reported(error)));
                }
                let answered = service.call(lambda_runtime::LambdaEvent::new(payload, entry.context())).await;
                Answer::of(answered.map_err(Refusal::reported).and_then(|response| encoded(&response)))
            }))
        })
    }

    /// Wraps a service for [`lambda::http::run`](lambda_idempotency::lambda::http::run) or `lambda_http::run`: the layer
    /// over a handler, or an axum `Router`. Feature `http`.
    pub fn http<S>(service: S) -> Self
    where
        S: tower::Service<lambda_http::Request> + Clone + Send + 'static,
        S::Response: lambda_http::IntoResponse + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<lambda_runtime::Diagnostic> + fmt::Debug + Send + 'static,
    {
        let mut inner = Self::lambda(lambda_idempotency::lambda::http::guarded(service));
        Self::of(move |event, entry| {
            let running = (inner.call)(event, entry);
            Box::pin(async move { Answer { is_http: true, ..running.await } })
        })
    }
}

impl Entry {
    fn context(&self) -> lambda_runtime::Context {
        let mut context = lambda_runtime::Context::default();
        context.request_id.clone_from(&self.request_id);
        context.deadline = self.deadline.as_millis();
        context.invoked_function_arn =
            "arn:aws:lambda:eu-central-1:123456789012:function:under-test".to_owned();
        context
    }
}

impl Refusal {
    fn reported(error: impl Into<lambda_runtime::Diagnostic> + fmt::Debug + 'static) -> Self {
        let lambda_runtime::Diagnostic { error_type, error_message } = diagnosed(error).0;
        Self { error_type, message: error_message }
    }
}
