//! The layer's own responses: problem details (RFC 9457) with a stable code.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use lambda_http::Body;
use serde::Serialize;

use super::{headers, key::Origin};
use crate::{
    error::{Error, ErrorKind},
    internal::ErrorExt as _,
    run::refusal::DEFAULT_RETRY,
};

/// The page that the problems' `type`s point to, unless [`HttpLayer::documentation`](super::HttpLayer::documentation)
/// names another.
pub(super) const PAGE: &str =
    "https://docs.rs/lambda-idempotency/latest/lambda_idempotency/guide/idempotency_specification/index.html";

/// The layer's headers that an API's CORS configuration has to expose, so that code in a browser can read them.
pub const EXPOSED_HEADERS: [HeaderName; 3] = [headers::REPLAYED, header::RETRY_AFTER, header::LINK];

/// A response that the layer gives in place of the handler's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// 400: a key is required, and there is none.
    KeyMissing,
    /// 400: the key is malformed, empty, too long, sent twice, or not in the configured format.
    KeyInvalid,
    /// 403: a verified caller is required, and there is none.
    CallerMissing,
    /// 500: the request carries credentials, or the front end verified them, but their owner can't be identified.
    CallerUnknown,
    /// 403: [`HttpLayer::replay_if`](super::HttpLayer::replay_if) doesn't let the caller have the recorded response.
    ReplayForbidden,
    /// 422: the key was used with another request.
    KeyReused,
    /// 409: the operation is still running.
    InProgress,
    /// 409: it's unknown whether the operation took effect. There are three possible causes:
    ///
    /// - Under at-most-once, an earlier run ended without an answer.
    /// - Idempotency isn't enforced, and the handler's writes are in doubt.
    /// - The front end can't deliver the response, and the operation isn't known to be recorded.
    OutcomeUnknown,
    /// 409: the operation is done, but its response wasn't retained, or this front end can't deliver it.
    NotRetained,
    /// 409: a condition on the handler's writes failed, and nothing was written.
    Declined,
    /// 500: the operation failed permanently, in this run or an earlier one.
    OperationFailed,
    /// 500: the record can't be read.
    RecordUnreadable,
    /// 500: the API's own code misuses the layer, for example by wrapping one handler twice; the log has the
    /// details.
    Misconfigured,
    /// 503: the store is unavailable, or no time is left.
    StoreUnavailable,
    /// 413: the body is over the limit.
    BodyTooLarge,
    /// 400: the body breaks off.
    BodyUnreadable,
    /// 400: the event can't be read; see [`run`](super::run).
    RequestUnreadable,
}

impl ProblemKind {
    /// All kinds, for code that finds a kind by its [`code`](Self::code).
    ///
    /// ```
    /// use lambda_idempotency::lambda::http::ProblemKind;
    ///
    /// let kind = ProblemKind::ALL.iter().find(|kind| kind.code() == "in-progress");
    /// assert_eq!(kind, Some(&ProblemKind::InProgress));
    /// ```
    pub const ALL: &'static [Self] = &[
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::CallerMissing,
        Self::CallerUnknown,
        Self::ReplayForbidden,
        Self::KeyReused,
        Self::InProgress,
        Self::OutcomeUnknown,
        Self::NotRetained,
        Self::Declined,
        Self::OperationFailed,
        Self::RecordUnreadable,
        Self::Misconfigured,
        Self::StoreUnavailable,
        Self::BodyTooLarge,
        Self::BodyUnreadable,
        Self::RequestUnreadable,
    ];

    /// The problem's code, stable across versions. Clients tell problems apart by their codes.
    pub const fn code(self) -> &'static str {
        match self {
            Self::KeyMissing => "key-missing",
            Self::KeyInvalid => "key-invalid",
            Self::CallerMissing => "caller-missing",
            Self::CallerUnknown => "caller-unknown",
            Self::ReplayForbidden => "replay-forbidden",
            Self::KeyReused => "key-reused",
            Self::InProgress => "in-progress",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::NotRetained => "not-retained",
            Self::Declined => "declined",
            Self::OperationFailed => "operation-failed",
            Self::RecordUnreadable => "record-unreadable",
            Self::Misconfigured => "misconfigured",
            Self::StoreUnavailable => "store-unavailable",
            Self::BodyTooLarge => "body-too-large",
            Self::BodyUnreadable => "body-unreadable",
            Self::RequestUnreadable => "request-unreadable",
        }
    }

    /// The problem's status, unless [`HttpLayer::status`](super::HttpLayer::status) sets another.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyUnreadable | Self::RequestUnreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::CallerMissing | Self::ReplayForbidden => StatusCode::FORBIDDEN,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InProgress | Self::OutcomeUnknown | Self::NotRetained | Self::Declined => {
                StatusCode::CONFLICT
            }
            Self::CallerUnknown | Self::OperationFailed | Self::RecordUnreadable | Self::Misconfigured => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        }
    }

    /// Whether a retry of the same request may succeed.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::InProgress | Self::StoreUnavailable | Self::BodyUnreadable)
    }

    /// The kind's title and detail. These texts don't reveal more than the caller may know.
    const fn title_and_detail(self) -> (&'static str, &'static str) {
        match self {
            Self::KeyMissing => (
                "Idempotency-Key is missing",
                "This operation needs an Idempotency-Key header, unique to the operation. Nothing was done.",
            ),
            Self::KeyInvalid => (
                "Idempotency-Key is malformed",
                "Send one Idempotency-Key of 1 to 255 visible ASCII characters, in the form that this API documents. \
                 Nothing was done.",
            ),
            Self::CallerMissing => (
                "The caller is unknown",
                "An Idempotency-Key belongs to its caller, and this request's caller isn't verified. Nothing was done.",
            ),
            Self::CallerUnknown => (
                "The API can't tell whose Idempotency-Key this is",
                "The request carries credentials, but the API isn't configured to identify their owner. Nothing was \
                 done.",
            ),
            Self::ReplayForbidden => (
                "The recorded answer isn't for this caller",
                "The operation has run, but you aren't allowed to get its answer. This request did nothing.",
            ),
            Self::KeyReused => (
                "Idempotency-Key is already used",
                "This Idempotency-Key was used with another request. Use a new key for a new operation.",
            ),
            Self::InProgress => (
                "A request is outstanding for this Idempotency-Key",
                "The operation is still running. Send the same request again after Retry-After.",
            ),
            Self::OutcomeUnknown => (
                "The operation's outcome is unknown",
                "An attempt ended without a known outcome. Check whether it took effect before you send the request \
                 again.",
            ),
            Self::NotRetained => (
                "The operation is done, but its response wasn't kept",
                "The operation has ended, whatever its status was, and isn't repeated. Fetch its result another way.",
            ),
            Self::Declined => (
                "The operation's conditions aren't met",
                "The data that the operation depends on has changed or doesn't meet its conditions. Nothing was done.",
            ),
            Self::OperationFailed => (
                "The operation failed",
                "The operation behind this Idempotency-Key failed permanently; it isn't run again.",
            ),
            Self::RecordUnreadable => (
                "The stored outcome can't be read",
                "The record of this operation can't be read, so it's unknown whether the operation was done. Tell the \
                 API's owner.",
            ),
            Self::Misconfigured => {
                ("The API is misconfigured", "The API's code needs a fix. Nothing was done.")
            }
            Self::StoreUnavailable => (
                "Idempotency can't be guaranteed right now",
                "The store of outcomes is unavailable. Nothing was done; send the same request again later.",
            ),
            Self::BodyTooLarge => (
                "The request body is too large",
                "The body is larger than this API accepts for idempotent requests. Nothing was done.",
            ),
            Self::RequestUnreadable => (
                "The request couldn't be read",
                "Its body isn't valid Base64, or its host, path or query is malformed. Nothing was done.",
            ),
            Self::BodyUnreadable => (
                "The request body couldn't be read",
                "The body ended before it was complete. Nothing was done; send the request again.",
            ),
        }
    }
}

impl ProblemKind {
    /// The title and the detail for a request whose key doesn't come from the header. `None` means the texts of
    /// `title_and_detail`.
    const fn without_header(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::KeyMissing => (
                "The request doesn't identify an operation",
                "Send the body field that identifies the operation, or an Idempotency-Key header. Nothing was done.",
            ),
            Self::KeyInvalid => (
                "The field that identifies the operation can't be read",
                "Send a JSON body that has this field exactly once, with a readable value, or send an Idempotency-Key \
                 header. Nothing was done.",
            ),
            Self::KeyReused => (
                "The operation was already requested with other content",
                "An earlier request for the same operation had other content. This request did nothing.",
            ),
            Self::InProgress => (
                "A request for this operation is outstanding",
                "The operation is still running. Send the same request again after Retry-After.",
            ),
            Self::CallerMissing => (
                "The caller is unknown",
                "An operation belongs to its caller, and this request's caller isn't verified. Nothing was done.",
            ),
            Self::CallerUnknown => (
                "The API can't tell whose operation this is",
                "The request carries credentials, but the API isn't configured to identify their owner. Nothing was \
                 done.",
            ),
            Self::OperationFailed => {
                ("The operation failed", "The operation failed permanently; it isn't run again.")
            }
            _ => return None,
        })
    }
}

impl From<ErrorKind> for ProblemKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::MissingKey => Self::KeyMissing,
            ErrorKind::InvalidKey => Self::KeyInvalid,
            ErrorKind::Mismatch => Self::KeyReused,
            ErrorKind::InProgress | ErrorKind::Fenced => Self::InProgress,
            // `Unrecorded` gets here only if idempotency isn't enforced, and the handler's writes may have been
            // applied.
            ErrorKind::OutcomeUnknown | ErrorKind::Unrecorded => Self::OutcomeUnknown,
            ErrorKind::NotRetained => Self::NotRetained,
            ErrorKind::Declined => Self::Declined,
            ErrorKind::Corrupt => Self::RecordUnreadable,
            // `Unavailable` and `Invalid`. `AllFailed` occurs only in batches.
            _ => Self::StoreUnavailable,
        }
    }
}

/// A problem's own title and detail, in place of its kind's.
pub(super) type Texts = (&'static str, &'static str);

const NO_TIME_LEFT: Texts = (
    "No time is left to run the operation",
    "The request arrived too late to be handled before the time limit. Nothing was done; send the same request again \
     later.",
);

/// The longest wait to suggest. An error may contain the rest of the lease, but that's only an upper bound: most
/// operations end long before, and a retry costs one request.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// One of the layer's own responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    kind: ProblemKind,
    retry_after: Option<Duration>,
    /// Where the key is from, or where a missing key should be.
    origin: Origin,
    /// The field of the body to correct.
    field: Option<String>,
    /// The texts, if they differ from the kind's.
    texts: Option<Texts>,
}

impl Problem {
    fn new(kind: ProblemKind, retry_after: Option<Duration>) -> Self {
        Self { kind, retry_after, origin: Origin::Header, field: None, texts: None }
    }

    /// The same problem, with these texts.
    pub(super) fn saying(self, texts: Texts) -> Self {
        Self { texts: Some(texts), ..self }
    }

    /// The same problem, for a key from this origin.
    pub(super) fn of(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    fn title_and_detail(&self) -> Texts {
        if let Some(texts) = self.texts {
            return texts;
        }
        let of_header = self.kind.title_and_detail();
        match self.origin {
            Origin::Header => of_header,
            Origin::Request => self.kind.without_header().unwrap_or(of_header),
        }
    }

    pub(super) fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The same problem, with this field to correct.
    pub(super) fn about(self, field: Option<String>) -> Self {
        Self { field, ..self }
    }
}

impl From<ProblemKind> for Problem {
    fn from(kind: ProblemKind) -> Self {
        Self::new(kind, kind.is_retryable().then_some(DEFAULT_RETRY))
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let kind = match error.is_of_failure() {
            true => ProblemKind::OperationFailed,
            false if error.is_misuse() => ProblemKind::Misconfigured,
            false => ProblemKind::from(error.kind()),
        };
        let wait = || error.retry_after().unwrap_or(DEFAULT_RETRY).min(LONGEST_WAIT);
        let texts = error.is_out_of_time().then_some(NO_TIME_LEFT);
        Self { texts, ..Self::new(kind, kind.is_retryable().then(wait)) }
    }
}

#[derive(Serialize)]
struct Details<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// The API's own statuses and page for problems.
#[derive(Clone, Debug)]
pub(super) struct ProblemRules {
    /// The statuses that the API's code set. If a kind has several entries, the last one counts.
    pub(super) statuses: Vec<(ProblemKind, StatusCode)>,
    /// The page that explains the problems.
    pub(super) documentation: String,
}

impl Default for ProblemRules {
    fn default() -> Self {
        Self { statuses: Vec::new(), documentation: PAGE.into() }
    }
}

impl Problem {
    pub(super) fn into_response(self, rules: &ProblemRules) -> Response<Body> {
        let (title, detail) = self.title_and_detail();
        let Self { kind, retry_after, field, .. } = self;
        let code = kind.code();
        let said = rules.statuses.iter().rev().find(|(of, _)| *of == kind);
        let status = said.map_or(kind.status(), |(_, status)| *status);
        let page = &rules.documentation;
        let r#type = format!("{page}#{code}");
        let retryable = kind.is_retryable();
        let details = Details { r#type, title, status: status.as_u16(), detail, code, retryable, field };
        // Plain fields always serialise. If serialising failed, the body would be empty, but the status would be
        // right.
        let mut response = Response::new(Body::Text(serde_json::to_string(&details).unwrap_or_default()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let is_error = status.is_client_error() || status.is_server_error();
        let media_type = if is_error { "application/problem+json" } else { "application/json" };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(retry_after) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(retry_after)));
        }
        if let Ok(link) = HeaderValue::try_from(format!("<{page}>; rel=\"describedby\"; type=\"text/html\""))
        {
            headers.insert(header::LINK, link);
        }
        response
    }
}

/// Rounds down to whole seconds, so that the wait is no longer than the lease. Returns at least 1.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().max(1)
}

/// The problem's texts, for tools that look for records.
impl From<&Problem> for Error {
    fn from(problem: &Problem) -> Self {
        let kind = match problem.kind {
            ProblemKind::KeyMissing => ErrorKind::MissingKey,
            ProblemKind::KeyInvalid => ErrorKind::InvalidKey,
            _ => ErrorKind::Invalid,
        };
        let (title, detail) = problem.title_and_detail();
        Error::new(
            kind,
            format!("the layer refuses the request with `{}`: {title}. {detail}", problem.kind.code()),
        )
    }
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
            (ErrorKind::Unrecorded, 409, "outcome-unknown"),
            (ErrorKind::NotRetained, 409, "not-retained"),
            (ErrorKind::Declined, 409, "declined"),
            (ErrorKind::Unavailable, 503, "store-unavailable"),
            (ErrorKind::Invalid, 503, "store-unavailable"),
            (ErrorKind::Corrupt, 500, "record-unreadable"),
        ] {
            let error = Error::new(kind, "secret detail");
            let response = Problem::from(&error).into_response(&ProblemRules::default());
            assert_eq!(response.status().as_u16(), status, "{kind:?}");
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["code"], code);
            assert_eq!(body["status"], status);
            assert_eq!(body["type"], format!("{PAGE}#{code}"));
            assert!(!body.to_string().contains("secret"));
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.headers()["cache-control"], "no-store");
            assert_eq!(response.headers().contains_key("retry-after"), body["retryable"] == true, "{kind:?}");
        }
    }

    const PAGE_TEXT: &str = include_str!("../../guide/idempotency_specification.md");

    /// The beginning of a problem's row on the page.
    fn row(kind: ProblemKind) -> String {
        format!("| <a id=\"{0}\"></a>`{0}` | {1} |", kind.code(), kind.status().as_u16())
    }

    #[test]
    fn specification_lists_every_problem() {
        assert_eq!(ProblemKind::ALL.len(), ProblemKind::RequestUnreadable as usize + 1, "`ALL` lacks a kind");
        for &kind in ProblemKind::ALL {
            assert!(PAGE_TEXT.contains(&row(kind)), "{}", row(kind));
        }
    }

    #[test]
    fn specification_lists_retryable_problems() {
        for &kind in ProblemKind::ALL {
            let what_to_do = PAGE_TEXT.split_once(&row(kind)).unwrap().1.lines().next().unwrap();
            assert_eq!(what_to_do.contains("request again"), kind.is_retryable(), "{kind:?}: {what_to_do}");
            let is_to_be_corrected = matches!(kind.status().as_u16(), 400 | 403 | 413 | 422);
            assert!(
                !(is_to_be_corrected && kind.is_retryable()) || kind == ProblemKind::BodyUnreadable,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn retry_after_is_at_least_one_second() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(2999)), 2);
    }

    #[test]
    fn apis_may_override_statuses_and_page() {
        let rules = ProblemRules {
            statuses: vec![(ProblemKind::InProgress, StatusCode::ACCEPTED)],
            documentation: "https://api.example/idempotency".into(),
        };
        let response = Problem::from(&Error::new(ErrorKind::InProgress, "")).into_response(&rules);
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((response.status(), &body["status"]), (StatusCode::ACCEPTED, &202.into()));
        assert_eq!(response.headers()["content-type"], "application/json", "a 202 isn't a problem document");
        assert_eq!(body["type"], "https://api.example/idempotency#in-progress");
        let link = "<https://api.example/idempotency>; rel=\"describedby\"; type=\"text/html\"";
        assert_eq!(response.headers()["link"], link);
        let other = Problem::from(ProblemKind::KeyReused).into_response(&rules);
        assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    }

    fn shown(problem: Problem) -> (String, String) {
        let response = problem.into_response(&ProblemRules::default());
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        ["title", "detail"].map(|name| body[name].as_str().unwrap().to_owned()).into()
    }

    #[test]
    fn problem_texts_differ_by_kind_and_origin() {
        let mut seen = std::collections::HashSet::new();
        for &kind in ProblemKind::ALL {
            let of_header = shown(Problem::from(kind));
            let of_body = shown(Problem::from(kind).of(Origin::Request));
            for (title, detail) in [&of_header, &of_body] {
                assert!(title.contains(' ') && detail.ends_with('.'), "{kind:?}: {title:?}, {detail:?}");
            }
            // A client whose key is in the body doesn't know the header. Two kinds offer the header as another way.
            let offers_header = matches!(kind, ProblemKind::KeyMissing | ProblemKind::KeyInvalid);
            let (title, detail) = &of_body;
            assert!(!title.contains("Idempotency-Key"), "{kind:?}: {title:?}");
            assert_eq!(detail.contains("Idempotency-Key"), offers_header, "{kind:?}: {detail:?}");
            let names_header = format!("{of_header:?}").contains("Idempotency-Key");
            assert_eq!(of_header != of_body, names_header, "{kind:?}");
            assert!(seen.insert(of_header), "{kind:?}");
        }
    }

    /// If nothing was recorded, the next request runs the operation again.
    #[test]
    fn unknown_outcomes_do_not_promise_a_single_run() {
        let (title, detail) = shown(Problem::from(ProblemKind::OutcomeUnknown));
        assert!(detail.ends_with("Check whether it took effect before you send the request again."));
        assert!(!format!("{title} {detail}").contains("isn't repeated"));
    }

    #[test]
    fn missing_time_is_not_blamed_on_the_store() {
        let late = Error::out_of_time("k: no time is left before the invocation's deadline; nothing ran");
        let response = Problem::from(&late).into_response(&ProblemRules::default());
        assert_eq!((response.status().as_u16(), response.headers().contains_key("retry-after")), (503, true));
        let (title, detail) = shown(Problem::from(&late));
        assert!(!format!("{title} {detail}").contains("store"), "{title}: {detail}");
    }

    /// An operation whose 4xx response wasn't retained is recorded as done too.
    #[test]
    fn unretained_responses_do_not_promise_success() {
        let (_, detail) = shown(Problem::from(ProblemKind::NotRetained));
        assert!(!detail.contains("succeeded") && detail.contains("whatever its status was"), "{detail}");
    }

    #[test]
    fn problems_convert_to_errors() {
        for (kind, expected) in [
            (ProblemKind::KeyMissing, ErrorKind::MissingKey),
            (ProblemKind::KeyInvalid, ErrorKind::InvalidKey),
            (ProblemKind::CallerUnknown, ErrorKind::Invalid),
        ] {
            let error = Error::from(&Problem::from(kind));
            assert_eq!(error.kind(), expected);
            assert!(error.to_string().contains(kind.code()), "{error}");
        }
        let error = Error::from(&Problem::from(ProblemKind::KeyMissing).of(Origin::Request));
        assert!(error.to_string().contains("body field"), "{error}");
    }
}
