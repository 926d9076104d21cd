//! An axum API that checks its own tokens in an outer layer. The idempotency layer takes the caller from the outer
//! layer.
//!
//! The order matters. The idempotency layer answers a replay without calling its inner layers, so only an outer layer
//! sees every request.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use lambda_idempotency::{Idempotency, lambda::http, store::memory::MemoryStore};

/// The caller of a request. Only [`authenticate`] sets it.
#[derive(Clone)]
struct Account {
    id: String,
}

/// Maps tokens to accounts. Your API may verify a token's signature instead.
type Tokens = Arc<HashMap<String, Account>>;

async fn authenticate(State(tokens): State<Tokens>, mut request: Request, next: Next) -> Response {
    let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let account = header.and_then(|text| text.strip_prefix("Bearer ")).and_then(|token| tokens.get(token));
    let Some(account) = account.cloned() else { return StatusCode::UNAUTHORIZED.into_response() };
    request.extensions_mut().insert(account);
    next.run(request).await
}

async fn create_payment(Extension(account): Extension<Account>) -> (StatusCode, String) {
    (StatusCode::CREATED, format!("a payment of {}", account.id))
}

fn app(idempotency: &Idempotency, tokens: Tokens) -> Router {
    let layer = idempotency
        .http()
        .caller(|request| Ok(request.extensions.get::<Account>().map(|account| account.id.clone())))
        .require_caller(true);
    Router::new()
        .route("/payments", post(create_payment))
        .layer(layer)
        .layer(middleware::from_fn_with_state(tokens, authenticate)) // added last, so it's outermost
}

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    // In a Lambda function, use `Idempotency::from_env().await?`.
    let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build()?;
    let tokens = HashMap::from([("a token".to_owned(), Account { id: "account 17".into() })]);
    http::run(app(&idempotency, Arc::new(tokens))).await
}
