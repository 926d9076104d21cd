//! Decides which of a response's headers are recorded and replayed.

use http::{HeaderMap, HeaderName, header};

/// Marks a replay.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Headers that belong to one exchange and not to the operation: headers for one hop (RFC 9110, section 7.6.1), headers
/// that are generated for each message, credentials and sessions, tracing, and headers that a front end adds. They have
/// the same order as in the specification.
const DROPPED: [HeaderName; 28] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::AGE,
    header::CONTENT_LENGTH,
    header::DATE,
    header::VIA,
    HeaderName::from_static("clear-site-data"),
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    header::SET_COOKIE,
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("traceresponse"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-amz-apigw-id"),
    HeaderName::from_static("x-amz-cf-id"),
    HeaderName::from_static("x-amz-cf-pop"),
    HeaderName::from_static("x-amzn-requestid"),
    HeaderName::from_static("x-amzn-trace-id"),
    HeaderName::from_static("x-cache"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
    REPLAYED,
];

/// Headers with these prefixes are dropped too: rate limits, which belong to a caller, and CORS permissions, which
/// belong to a browser's origin.
const DROPPED_PREFIXES: [&str; 3] = ["access-control-", "ratelimit", "x-ratelimit-"];

/// Decides whether a header is replayed: by the API's setting, or else by the lists of dropped headers.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderRules(Vec<(HeaderName, bool)>);

impl HeaderRules {
    pub(super) fn set(&mut self, name: HeaderName, is_replayed: bool) {
        self.0.push((name, is_replayed));
    }

    /// The headers to record, in their order. Headers that `Connection` lists belong to one hop, and are left out.
    pub(super) fn recorded<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a http::HeaderValue)> {
        headers.iter().filter(|(name, _)| match self.0.iter().rev().find(|(of, _)| of == *name) {
            Some((_, is_replayed)) => *is_replayed,
            None => !is_dropped(name) && !is_of_one_hop(headers, name),
        })
    }
}

fn is_dropped(name: &HeaderName) -> bool {
    DROPPED.contains(name) || DROPPED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
}

fn is_of_one_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|option| option.trim().eq_ignore_ascii_case(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specification_lists_dropped_headers() {
        let page = include_str!("../../guide/idempotency_specification.md");
        let (_, list) = page.split_once("A replay leaves out").unwrap();
        let (list, _) = list.split_once("\n\n").unwrap();
        let listed: Vec<_> = list.split('`').skip(1).step_by(2).map(str::to_ascii_lowercase).collect();
        let prefixes = DROPPED_PREFIXES.iter().map(|prefix| format!("{prefix}*"));
        let expected: Vec<_> = DROPPED.iter().map(ToString::to_string).chain(prefixes).collect();
        assert_eq!(listed, expected);
    }
}
