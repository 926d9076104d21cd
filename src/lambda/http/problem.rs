//! The layer's own answers: problem details (RFC 9457) with a stable code.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use lambda_http::Body;
use serde::Serialize;

use crate::error::{Error, ErrorKind};

/// One kind of answer. Its `type` is `urn:lambda-idempotency:problem:<code>`; the codes are listed in
/// [the module's docs](crate::lambda::http).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: &'static str,
    retryable: bool,
    retry_after: Option<Duration>,
}

#[derive(Serialize)]
struct Details<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
}

impl Problem {
    const fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: &'static str,
        retryable: bool,
    ) -> Self {
        Self { status, code, title, detail, retryable, retry_after: None }
    }

    pub(super) const BODY_TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body-too-large",
        "The request body is too large",
        "The body is larger than this API compares for idempotency. Nothing was done.",
        false,
    );

    pub(super) const BODY_UNREADABLE: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "body-unreadable",
        "The request body could not be read",
        "The body ended before it was complete. Nothing was done; send the request again.",
        true,
    );

    pub(super) const FAILED: Self = Self::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "operation-failed",
        "The operation failed",
        "The operation behind this Idempotency-Key failed for good; it is not run again.",
        false,
    );

    /// The answer to `error`, which says no more than the caller may know.
    pub(super) fn for_error(error: &Error) -> Self {
        let problem = match error.kind() {
            ErrorKind::MissingKey => Self::new(
                StatusCode::BAD_REQUEST,
                "key-missing",
                "Idempotency-Key is missing",
                "This operation needs an Idempotency-Key header, unique to the operation. Nothing was done.",
                false,
            ),
            ErrorKind::InvalidKey => Self::new(
                StatusCode::BAD_REQUEST,
                "key-invalid",
                "Idempotency-Key is malformed",
                "Send one Idempotency-Key of 1 to 255 visible ASCII characters. Nothing was done.",
                false,
            ),
            ErrorKind::Mismatch => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "Idempotency-Key is already used",
                "This Idempotency-Key was used with another request. Use a new key for a new operation.",
                false,
            ),
            ErrorKind::InProgress | ErrorKind::Fenced => Self::new(
                StatusCode::CONFLICT,
                "in-progress",
                "A request is outstanding for this Idempotency-Key",
                "The operation is still running. Send the same request again after Retry-After.",
                true,
            ),
            ErrorKind::OutcomeUnknown => Self::new(
                StatusCode::CONFLICT,
                "outcome-unknown",
                "The operation's outcome is unknown",
                "An earlier attempt ended without an answer and is not repeated. Find out what became of it.",
                false,
            ),
            ErrorKind::NotRetained => Self::new(
                StatusCode::CONFLICT,
                "not-retained",
                "The operation is done, but its response was not kept",
                "The operation succeeded and is not repeated. Fetch its result another way.",
                false,
            ),
            ErrorKind::Corrupt => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "record-unreadable",
                "The stored outcome cannot be read",
                "The record of this operation cannot be read. Nothing was done.",
                false,
            ),
            ErrorKind::Unavailable | ErrorKind::Unrecorded | ErrorKind::Invalid => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "Idempotency cannot be assured just now",
                "The store of outcomes cannot be used. Nothing was done; send the same request again later.",
                true,
            ),
        };
        let retry_after = problem.retryable.then(|| error.retry_after().unwrap_or(Duration::from_secs(1)));
        Self { retry_after, ..problem }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let details = Details {
            r#type: format!("urn:lambda-idempotency:problem:{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: self.detail,
            code: self.code,
            retryable: self.retryable,
        };
        // Seven plain fields always serialise; were they not to, the status still says it.
        let body = serde_json::to_string(&details).unwrap_or_default();
        let mut response = Response::new(Body::Text(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(retry_after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(retry_after)));
        }
        response
    }
}

/// At least one second, and else no more than the lease has left.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_status_and_code() {
        for (kind, status, code) in [
            (ErrorKind::MissingKey, 400, "key-missing"),
            (ErrorKind::InvalidKey, 400, "key-invalid"),
            (ErrorKind::Mismatch, 422, "key-reused"),
            (ErrorKind::InProgress, 409, "in-progress"),
            (ErrorKind::Fenced, 409, "in-progress"),
            (ErrorKind::OutcomeUnknown, 409, "outcome-unknown"),
            (ErrorKind::NotRetained, 409, "not-retained"),
            (ErrorKind::Unavailable, 503, "store-unavailable"),
            (ErrorKind::Invalid, 503, "store-unavailable"),
            (ErrorKind::Corrupt, 500, "record-unreadable"),
        ] {
            let error = Error::new(kind, "secret detail");
            let response = Problem::for_error(&error).into_response();
            assert_eq!(response.status().as_u16(), status, "{kind:?}");
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["code"], code);
            assert_eq!(body["status"], status);
            assert_eq!(body["type"], format!("urn:lambda-idempotency:problem:{code}"));
            assert!(!body.to_string().contains("secret"));
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.headers()["cache-control"], "no-store");
            assert_eq!(response.headers().contains_key("retry-after"), body["retryable"] == true, "{kind:?}");
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_and_at_least_one() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(2999)), 2);
    }
}
