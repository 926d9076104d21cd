//! Decides which of a response's headers are recorded and replayed.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::cors;

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

/// Returns the trace that came with a request: W3C's header, or else X-Ray's.
pub(super) fn incoming_trace(headers: &HeaderMap) -> Option<String> {
    let header = headers.get("traceparent").or_else(|| headers.get("x-amzn-trace-id"));
    header.and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Headers with these prefixes are dropped too: rate limits, which belong to a caller, and CORS permissions, which
/// belong to a browser's origin.
const DROPPED_PREFIXES: [&str; 3] = ["access-control-", "ratelimit", "x-ratelimit-"];

/// Decides whether a header is replayed: by the API's setting, or else by the lists of dropped headers.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderRules {
    set: Vec<(HeaderName, bool)>,
    /// Whether CORS headers are recorded, and replayed to the origins that they permit.
    cors: bool,
}

impl HeaderRules {
    pub(super) fn set(&mut self, name: HeaderName, is_replayed: bool) {
        self.set.push((name, is_replayed));
    }

    pub(super) fn set_cors(&mut self, is_replayed: bool) {
        self.cors = is_replayed;
    }

    /// The API's setting for this header.
    fn setting(&self, name: &HeaderName) -> Option<bool> {
        self.set.iter().rev().find(|(of, _)| of == name).map(|(_, is_replayed)| *is_replayed)
    }

    /// Removes the recorded CORS headers unless they permit this request's origin. A record can have such headers even
    /// if this layer doesn't record them: the Lambda layer may have made it, before the function moved to the library.
    pub(super) fn replay_to(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.cors && cors::permit(headers, origin) {
            return;
        }
        let is_dropped =
            |name: &&HeaderName| cors::is_cors(name.as_str()) && self.setting(name) != Some(true);
        let dropped: Vec<_> = headers.keys().filter(is_dropped).cloned().collect();
        for name in &dropped {
            headers.remove(name);
        }
        if self.cors {
            cors::vary_without_origin(headers);
        }
    }

    /// The headers to record, in their order. Headers that `Connection` lists belong to one hop, and are left out.
    pub(super) fn recorded<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        headers.iter().filter(|(name, _)| {
            let is_kept = || !is_dropped(name) || self.cors && cors::is_cors(name.as_str());
            self.setting(name).unwrap_or_else(|| is_kept() && !is_of_one_hop(headers, name))
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
    fn own_trace_precedes_front_ends() {
        let named = |headers: &[(&'static str, &'static str)]| {
            let named = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            incoming_trace(&named.collect())
        };
        let (own, front_ends) = (("traceparent", "00-a-b-01"), ("x-amzn-trace-id", "Root=1-a"));
        assert_eq!(named(&[front_ends, own]).as_deref(), Some("00-a-b-01"));
        assert_eq!(named(&[front_ends]).as_deref(), Some("Root=1-a"));
        assert_eq!(named(&[]), None);
    }

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
