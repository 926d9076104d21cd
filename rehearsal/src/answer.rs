//! The response to a delivery.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde_json::Value;

use super::runtime_api::Posted;

/// The response to one delivery, or the reason why there's none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A response in the shape that API Gateway and ALB expect.
    Http(HttpAnswer),
    /// Any other response.
    Payload(Vec<u8>),
    /// A batch's answer: the records to redeliver, by their identifiers.
    Batch(Vec<String>),
    /// A function error.
    Error {
        /// Its type.
        kind: String,
        /// Its message.
        message: String,
    },
    /// The process ended without a response.
    Died(String),
    /// No response within this time. The rehearsal then killed the process, as Lambda does at the deadline.
    TimedOut(Duration),
}

/// The parts of an HTTP-shaped response that the rehearsal checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u64,
    /// The headers, with their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as the response has it: base64 isn't decoded.
    pub body: String,
}

impl Answer {
    /// Converts the answer that the function posted.
    pub(crate) fn from_posted(posted: Posted) -> Self {
        match posted {
            Posted::Error(kind, message) => Self::Error { kind, message },
            Posted::Response(bytes) => Self::from_response(&bytes),
        }
    }

    /// Reads a function's response.
    pub fn from_response(response: &[u8]) -> Self {
        HttpAnswer::parse(response).map_or_else(|| Self::Payload(response.to_vec()), Self::Http)
    }

    /// Converts a payload with `batchItemFailures` to a batch's answer. Other answers stay unchanged.
    pub(crate) fn of_batch(self) -> Self {
        let Self::Payload(bytes) = &self else { return self };
        let json: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let Some(failures) = json.get("batchItemFailures").and_then(Value::as_array) else { return self };
        let name = |failure: &Value| failure["itemIdentifier"].as_str().unwrap_or_default().to_owned();
        Self::Batch(failures.iter().map(name).collect())
    }

    /// Whether the answer says that the outcome of an earlier run is unknown: a problem with the code
    /// `outcome-unknown`, the function error `Idempotency.OutcomeUnknown`, or a batch that returns a record for
    /// redelivery.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Http(http) => http.problem_code().as_deref() == Some("outcome-unknown"),
            Self::Error { kind, .. } => kind == "Idempotency.OutcomeUnknown",
            // A batch's answer doesn't say why it returns a record.
            Self::Batch(returned) => !returned.is_empty(),
            _ => false,
        }
    }

    /// Returns the HTTP response, if the answer is one.
    pub fn http(&self) -> Option<&HttpAnswer> {
        match self {
            Self::Http(http) => Some(http),
            _ => None,
        }
    }

    /// Whether the function succeeded. For HTTP that's a status from 200 to 399, for a batch a list without records.
    pub fn is_success(&self) -> bool {
        match self {
            Self::Http(http) => (200..400).contains(&http.status),
            Self::Payload(_) => true,
            Self::Batch(returned) => returned.is_empty(),
            Self::Error { .. } | Self::Died(_) | Self::TimedOut(_) => false,
        }
    }

    /// Whether the delivery was refused because another attempt is running: 409 with Retry-After, the function error
    /// `Idempotency.InProgress`, or a batch that returns a record for redelivery.
    pub fn is_in_progress(&self) -> bool {
        match self {
            Self::Http(http) => http.status == 409 && http.retry_after().is_some(),
            Self::Error { kind, .. } => kind == "Idempotency.InProgress",
            // A batch's answer doesn't say why it returns a record.
            Self::Batch(returned) => !returned.is_empty(),
            _ => false,
        }
    }

    /// Whether the answer is marked as a replay.
    pub fn is_marked_replay(&self) -> bool {
        self.http().is_some_and(|http| http.header("idempotent-replayed") == Some("true"))
    }

    /// Whether both answers have the same outcome. For HTTP that's the same status and body. Headers don't count,
    /// because some describe the delivery, such as `Idempotent-Replayed`. Other answers must be equal.
    pub fn same_outcome(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(one), Self::Http(other)) => (one.status, &one.body) == (other.status, &other.body),
            (one, other) => one == other,
        }
    }
}

impl HttpAnswer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let status = value.get("statusCode")?.as_u64()?;
        let mut headers = BTreeMap::new();
        for (name, values) in value.get("multiValueHeaders").and_then(Value::as_object).into_iter().flatten()
        {
            let all = values.as_array().into_iter().flatten().filter_map(Value::as_str);
            headers.insert(name.to_ascii_lowercase(), all.collect::<Vec<_>>().join(", "));
        }
        for (name, one) in value.get("headers").and_then(Value::as_object).into_iter().flatten() {
            headers.insert(name.to_ascii_lowercase(), one.as_str().unwrap_or_default().to_owned());
        }
        let body = value.get("body").and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Self { status, headers, body })
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// How many seconds to wait before retrying.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after")?.parse().ok()
    }

    /// The stable code of a problem+json body.
    pub fn problem_code(&self) -> Option<String> {
        if !self.header("content-type")?.starts_with("application/problem+json") {
            return None;
        }
        let body: Value = serde_json::from_str(&self.body).ok()?;
        body.get("code")?.as_str().map(str::to_owned)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(http) => {
                write!(f, "{}", http.status)?;
                if self.is_marked_replay() {
                    write!(f, ", replayed")?;
                }
                if let Some(code) = http.problem_code() {
                    write!(f, " {code}")?;
                }
                http.retry_after().map_or(Ok(()), |seconds| write!(f, ", retry after {seconds} s"))
            }
            Self::Payload(bytes) => write!(f, "a response of {} B", bytes.len()),
            Self::Batch(returned) if returned.is_empty() => write!(f, "all done"),
            Self::Batch(returned) => write!(f, "{} returned", returned.len()),
            Self::Error { kind, .. } => write!(f, "function error {kind}"),
            Self::Died(how) => write!(f, "no answer: {how}"),
            Self::TimedOut(limit) => write!(f, "no answer in {} s", limit.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn http(value: &Value) -> Answer {
        Answer::from_posted(Posted::Response(Bytes::from(value.to_string())))
    }

    #[test]
    fn http_answers_parse_with_any_header_case() {
        let answer = http(&json!({
            "statusCode": 201,
            "headers": { "Idempotent-Replayed": "true" },
            "multiValueHeaders": { "Retry-After": ["7"] },
            "body": "{}",
        }));
        assert!(answer.is_success() && answer.is_marked_replay());
        assert_eq!(answer.http().unwrap().retry_after(), Some(7));
        assert_eq!(answer.to_string(), "201, replayed, retry after 7 s");
    }

    #[test]
    fn in_progress_refusal_needs_retry_after() {
        let refused = json!({ "statusCode": 409, "headers": { "retry-after": "4" }, "body": "" });
        assert!(http(&refused).is_in_progress());
        assert!(!http(&json!({ "statusCode": 409, "headers": {}, "body": "" })).is_in_progress());
        let error = |kind: &str| Answer::from_posted(Posted::Error(kind.into(), "m".into()));
        assert!(error("Idempotency.InProgress").is_in_progress());
        assert!(!error("Idempotency.Mismatch").is_in_progress());
    }

    #[test]
    fn problem_answer_shows_its_code() {
        let answer = http(&json!({
            "statusCode": 422,
            "headers": { "content-type": "application/problem+json" },
            "body": "{\"code\":\"key-reused\"}",
        }));
        assert!(!answer.is_success());
        assert_eq!(answer.to_string(), "422 key-reused");
    }

    #[test]
    fn outcomes_compare_by_status_and_body() {
        let of = |status: u64, body: &str, note: &str| {
            http(&json!({ "statusCode": status, "headers": { "note": note }, "body": body }))
        };
        assert!(of(201, "a", "1").same_outcome(&of(201, "a", "2")));
        assert!(!of(201, "a", "1").same_outcome(&of(201, "b", "1")));
        assert!(!of(201, "a", "1").same_outcome(&of(200, "a", "1")));
        assert!(!Answer::Payload(b"1".to_vec()).same_outcome(&Answer::Payload(b"2".to_vec())));
    }
}
