//! Decides whether a response is final or the operation is retried: the table in [the module](crate).

use reqwest::StatusCode;
use serde_json::Value;

/// The code of a 409 that is transient.
const IN_PROGRESS: &str = "in-progress";

/// The parts of a response that decide about a retry.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) status: StatusCode,
    /// Whether the response is marked as a replay.
    pub(super) is_replay: bool,
    pub(super) has_retry_after: bool,
    pub(super) problem: Problem,
}

/// A problem's fields (RFC 9457, with the members that this library's server side writes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Problem {
    is_in_progress: bool,
    is_retryable: Option<bool>,
}

impl Problem {
    /// Reads the fields from a body. A body that can't be parsed has no fields.
    pub(super) fn parse(body: &[u8]) -> Self {
        let said: Value = serde_json::from_slice(body).unwrap_or_default();
        Self {
            is_in_progress: said.get("code").and_then(Value::as_str) == Some(IN_PROGRESS),
            is_retryable: said.get("retryable").and_then(Value::as_bool),
        }
    }
}

/// Whether a response with this status may call for a retry. If not, its body isn't read.
pub(super) fn may_be_sent_again(status: StatusCode) -> bool {
    // A server's timeout layer answers 408 after the handler began, and releases the key.
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::CONFLICT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// Whether the same request is retried.
pub(super) fn is_sent_again(shown: &Shown) -> bool {
    let Shown { status, is_replay, has_retry_after, problem } = shown;
    if *is_replay || !may_be_sent_again(*status) {
        return false;
    }
    match problem.is_retryable {
        Some(is_retryable) => is_retryable,
        None => *status != StatusCode::CONFLICT || problem.is_in_progress || *has_retry_after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(status: u16, retry_after: bool, problem: &str) -> bool {
        let status = StatusCode::from_u16(status).unwrap();
        let problem = Problem::parse(problem.as_bytes());
        is_sent_again(&Shown { status, is_replay: false, has_retry_after: retry_after, problem })
    }

    #[test]
    fn statuses_are_retried_as_documented() {
        for status in 100..=599 {
            let transient = matches!(status, 408 | 425 | 429 | 500..=599);
            assert_eq!(again(status, false, ""), transient, "{status}");
            assert_eq!(again(status, true, ""), transient || status == 409, "{status} with Retry-After");
            let yes = r#"{"code":"in-progress","retryable":true}"#;
            assert_eq!(again(status, true, yes), transient || status == 409, "{status}, marked retryable");
            assert!(!again(status, true, r#"{"code":"x","retryable":false}"#), "{status}, marked final");
        }
    }

    #[test]
    fn only_transient_conflicts_are_retried() {
        assert!(again(409, false, r#"{"code":"in-progress"}"#));
        assert!(again(409, false, r#"{"retryable":true}"#));
        assert!(again(409, true, r#"{"type":"https://other.example/busy"}"#));
        for other in [r#"{"code":"not-retained"}"#, r#"{"code":7,"retryable":"yes"}"#, "in-progress", "[]"] {
            assert!(!again(409, false, other), "{other}");
        }
    }

    #[test]
    fn replays_are_final() {
        for status in [408, 409, 429, 500, 503] {
            let status = StatusCode::from_u16(status).unwrap();
            let problem = Problem::default();
            assert!(!is_sent_again(&Shown { status, is_replay: true, has_retry_after: true, problem }));
        }
    }
}
