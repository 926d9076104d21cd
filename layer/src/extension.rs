//! The Extensions API: Lambda starts the program before the runtime, and tells it when to end.

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;

use crate::upstream::{AnyBody, BoxError, ERROR_TYPE, Upstream, empty, error_report, full};

const VERSION: &str = "/2020-01-01/extension";
/// The extension's name. Lambda requires that it's the name of the program's file in the folder `extensions`.
const NAME: &str = "idempotency";
const EXTENSION_ID: &str = "lambda-extension-identifier";

/// A registered extension.
#[derive(Debug)]
pub(crate) struct Extension {
    id: HeaderValue,
    upstream: Upstream,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Next {
    event_type: String,
    /// `spindown`, `timeout` or `failure`.
    shutdown_reason: Option<String>,
}

impl Extension {
    /// Registers the extension for the event SHUTDOWN, and for INVOKE too if it `hears_invocations`.
    ///
    /// Usually, the extension needs no INVOKE event, since the proxy sees each invocation itself. On Managed Instances,
    /// Lambda offers only SHUTDOWN.
    ///
    /// # Errors
    ///
    /// If Lambda refuses.
    pub(crate) async fn register(upstream: Upstream, hears_invocations: bool) -> Result<Self, BoxError> {
        let events: &[u8] = match hears_invocations {
            true => b"{\"events\":[\"INVOKE\",\"SHUTDOWN\"]}",
            false => b"{\"events\":[\"SHUTDOWN\"]}",
        };
        let request = Request::post(format!("{VERSION}/register"))
            .header("lambda-extension-name", NAME)
            .header("content-type", "application/json")
            .body(full(events))?;
        let response = upstream.pass(request).await?;
        let id = response.headers().get(EXTENSION_ID).cloned();
        match (response.status().is_success(), id) {
            (true, Some(id)) => Ok(Self { id, upstream }),
            _ => Err(format!("Lambda refused to register the extension: {}", response.status()).into()),
        }
    }

    /// Waits for the end of the sandbox, and calls `invoked` for each event INVOKE until then. Returns true for a normal
    /// end (`spindown`), and false after a timeout or a failure.
    ///
    /// # Errors
    ///
    /// If Lambda doesn't answer.
    pub(crate) async fn ended(&self, invoked: impl Fn()) -> Result<bool, BoxError> {
        loop {
            let request = Request::get(format!("{VERSION}/event/next")).header(EXTENSION_ID, &self.id);
            let response = self.upstream.pass(request.body(empty())?).await?;
            let status = response.status();
            let next: Result<Next, _> = serde_json::from_slice(&whole(response).await?);
            match next {
                Ok(next) if next.event_type == "SHUTDOWN" => {
                    return Ok(next.shutdown_reason.as_deref() == Some("spindown"));
                }
                Ok(next) if next.event_type == "INVOKE" => invoked(),
                Ok(_) if status.is_success() => {}
                _ => return Err(format!("Lambda didn't send the extension's next event: {status}").into()),
            }
        }
    }

    /// Reports that the extension can't start, and why.
    ///
    /// # Errors
    ///
    /// If Lambda doesn't answer.
    pub(crate) async fn cannot_start(&self, why: &str) -> Result<(), BoxError> {
        const TYPE: &str = "Idempotency.Invalid";
        let request: Request<AnyBody> = Request::post(format!("{VERSION}/init/error"))
            .header(EXTENSION_ID, &self.id)
            .header("lambda-extension-function-error-type", TYPE)
            .header(ERROR_TYPE, TYPE)
            .body(full(error_report(TYPE, why)))?;
        self.upstream.pass(request).await.map(drop)
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, BoxError> {
    Ok(response.into_body().collect().await?.to_bytes())
}
