//! A function's HTTP response: reads it from the function's answer, and writes it as a stream.
//!
//! REST APIs, HTTP APIs, function URLs, load balancers and VPC Lattice take JSON with `statusCode`, `headers` and
//! `body`. A streamed response begins with the same JSON without `body`. Eight zero bytes and the body follow.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use lambda_http::{Body, request::LambdaRequest};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    function::{Payload, Posted},
    recorded::{STREAM_TYPE, is_streamed},
    upstream::MAX_BUFFERED,
};

/// The bytes between the head and the body of a streamed response.
const SEPARATOR: [u8; 8] = [0; 8];
/// How many bytes of a stream API Gateway reads to find the separator ("Set up a Lambda proxy integration with payload
/// response streaming in API Gateway", API Gateway developer guide).
pub(crate) const LONGEST_HEAD: usize = 16 * 1024;

/// Whether an answer with these headers is a streamed HTTP response.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|name| name == STREAM_TYPE)
}

/// How a request's front end reads the function's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontEnd {
    /// A REST API, which reads the head of a stream of any type.
    RestApi,
    /// A function URL. A stream is the body, unless its type says that it begins with a head.
    FunctionUrl,
    /// An HTTP API, which buffers streams.
    HttpApi,
    /// A load balancer, which buffers streams.
    LoadBalancer,
    /// VPC Lattice, which buffers streams.
    Other,
}

impl FrontEnd {
    /// The request's front end.
    pub(super) fn of(request: &LambdaRequest) -> Self {
        match request {
            LambdaRequest::ApiGatewayV1(_) => Self::RestApi,
            LambdaRequest::ApiGatewayV2(request) => match request.request_context.domain_name.as_deref() {
                Some(name) if name.contains(".lambda-url.") => Self::FunctionUrl,
                _ => Self::HttpApi,
            },
            LambdaRequest::Alb(_) => Self::LoadBalancer,
            _ => Self::Other,
        }
    }

    /// The largest answer that the front end delivers if it isn't a stream, in bytes.
    pub(super) fn most_bytes(self) -> usize {
        match self {
            // "Use Lambda functions as targets of an Application Load Balancer", user guide.
            Self::LoadBalancer => 1024 * 1024,
            Self::RestApi | Self::FunctionUrl | Self::HttpApi | Self::Other => MAX_BUFFERED,
        }
    }

    /// Whether the front end passes a stream on. The other front ends buffer the stream, and read it as JSON.
    pub(super) fn streams(self) -> bool {
        matches!(self, Self::RestApi | Self::FunctionUrl)
    }

    /// Whether JSON without a status is a response. In payload format 2.0 it is, except in a stream to a function URL.
    fn infers(self, is_streamed: bool) -> bool {
        match self {
            Self::HttpApi => true,
            Self::FunctionUrl => !is_streamed,
            Self::RestApi | Self::LoadBalancer | Self::Other => false,
        }
    }
}

/// Finds the end of a stream's head, part by part.
#[derive(Debug)]
pub(crate) struct Head {
    /// Whether the stream's type says that it has a head.
    is_certain: bool,
    /// The length of the head so far.
    length: usize,
    /// Whether the head's JSON has begun.
    has_begun: bool,
    /// How many zero bytes the parts so far end with, up to the separator's length.
    zeros: usize,
    /// The length of the body so far, once the head has ended.
    body: Option<usize>,
}

impl Head {
    /// Begins a stream with these headers.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self { is_certain: is_stream(headers), length: 0, has_begun: false, zeros: 0, body: None }
    }

    /// Reads the next part. Returns the length of the body so far, this part included, or `None` if the head hasn't
    /// ended. Once it's certain that the stream has no head, the whole stream counts as the body.
    pub(crate) fn body_after(&mut self, part: &[u8]) -> Option<usize> {
        let mut rest = part;
        while self.body.is_none() {
            let (byte, behind) = rest.split_first()?;
            self.length += 1;
            self.has_begun |= *byte == b'{';
            self.zeros = if *byte == 0 { self.zeros + 1 } else { 0 };
            let is_json = self.has_begun || byte.is_ascii_whitespace();
            self.body = match self.is_certain || is_json && self.length <= LONGEST_HEAD {
                true => (self.zeros == SEPARATOR.len()).then_some(0),
                false => Some(self.length),
            };
            rest = behind;
        }
        self.body = self.body.map(|length| length.saturating_add(rest.len()));
        self.body
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'e> {
    status_code: Value,
    #[serde(default)]
    headers: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    multi_value_headers: Option<BTreeMap<String, Vec<Value>>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
    #[serde(borrow, default)]
    body: Option<Cow<'e, str>>,
    #[serde(default)]
    is_base64_encoded: Option<bool>,
}

/// The response that the front end makes from the function's answer, and whether it reads the answer as a stream. A
/// malformed answer becomes a 502, as at the front end.
pub(super) fn response(posted: &Posted, front_end: FrontEnd) -> (Response<Body>, bool) {
    let begun;
    let bytes: &[u8] = match &posted.body {
        Payload::Whole(bytes) | Payload::Broken(bytes, _) => bytes,
        Payload::Endless(parts, _) => {
            begun = parts.concat();
            &begun
        }
    };
    let (has_type, streams) = (is_stream(&posted.headers), is_streamed(&posted.headers));
    let headed = || (streams && front_end == FrontEnd::RestApi).then(|| of_stream(bytes)).flatten();
    let read = match (has_type, &posted.body) {
        // Node's client writes the head only before the first part of the body, so a response without a body has no
        // head. A function URL then answers 200 (middyjs/middy#1189).
        (true, _) if bytes.is_empty() => Some(Response::default()),
        (true, _) => of_stream(bytes),
        // The answer is too large for Lambda, or it's a stream that's too large to record. The function has run, so the
        // answer counts as a response with status 200, or with the status in its head. Its body is too large to record.
        (false, Payload::Endless(..)) => {
            Some(headed().unwrap_or_default().map(|_| Body::Binary(bytes.to_vec())))
        }
        (false, _) => {
            let infers = front_end.infers(streams);
            match of_envelope(bytes).or_else(|| infers.then(|| inferred(bytes)).flatten()) {
                Some(buffered) => return (buffered, false),
                None if streams => {
                    let content_type = posted.headers.get(header::CONTENT_TYPE);
                    Some(headed().unwrap_or_else(|| raw(bytes, content_type)))
                }
                None => None,
            }
        }
    };
    let response = read.unwrap_or_else(|| {
        let mut malformed = Response::new(Body::Empty);
        *malformed.status_mut() = StatusCode::BAD_GATEWAY;
        malformed
    });
    (response, streams && (has_type || front_end.streams()))
}

fn of_envelope(bytes: &[u8]) -> Option<Response<Body>> {
    let mut envelope: Envelope<'_> = json(bytes)?;
    let body = envelope.body.take();
    let body = match (body, envelope.is_base64_encoded) {
        (None, _) => Body::Empty,
        (Some(text), Some(true)) => Body::Binary(STANDARD.decode(text.as_bytes()).ok()?),
        (Some(text), _) => Body::Text(text.into_owned()),
    };
    with_head(envelope, body)
}

fn of_stream(bytes: &[u8]) -> Option<Response<Body>> {
    let end = bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)?;
    let head = bytes.get(..end)?;
    with_head(json(head)?, text_or_bytes(bytes.get(end + SEPARATOR.len()..)?))
}

/// Reads JSON. Unlike `serde_json::from_slice`, it also checks that the unknown fields are UTF-8, as JSON must be.
fn json<'j, T: Deserialize<'j>>(bytes: &'j [u8]) -> Option<T> {
    serde_json::from_str(std::str::from_utf8(bytes).ok()?).ok()
}

fn text_or_bytes(bytes: &[u8]) -> Body {
    String::from_utf8(bytes.to_vec()).map_or_else(|error| Body::Binary(error.into_bytes()), Body::Text)
}

/// The response that a function URL makes of a stream without a head: all of the stream is the body.
fn raw(bytes: &[u8], content_type: Option<&HeaderValue>) -> Response<Body> {
    let mut response = Response::new(text_or_bytes(bytes));
    if let Some(content_type) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type.clone());
    }
    response
}

/// The response that payload format 2.0 makes from JSON without a status.
fn inferred(bytes: &[u8]) -> Option<Response<Body>> {
    let json: &RawValue = serde_json::from_slice(bytes).ok()?;
    let has_status = serde_json::from_slice::<BTreeMap<Cow<'_, str>, &RawValue>>(bytes)
        .is_ok_and(|fields| fields.contains_key("statusCode"));
    if has_status {
        return None;
    }
    let text = serde_json::from_str::<String>(json.get()).unwrap_or_else(|_| json.get().to_owned());
    let mut response = Response::new(Body::Text(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}

fn with_head(envelope: Envelope<'_>, body: Body) -> Option<Response<Body>> {
    let status = match &envelope.status_code {
        Value::Number(number) => u16::try_from(number.as_u64()?).ok()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).ok()?;
    let headers = response.headers_mut();
    let several = envelope.multi_value_headers.unwrap_or_default();
    for (name, values) in &several {
        values.iter().for_each(|value| add(headers, name, value));
    }
    for (name, value) in envelope.headers.unwrap_or_default() {
        // A REST API merges `headers` and `multiValueHeaders`. Functions that send both repeat the values, so take each
        // name from only one of the maps.
        let is_there = several.keys().any(|other| other.eq_ignore_ascii_case(&name));
        if !is_there {
            add(headers, &name, &value);
        }
    }
    for cookie in envelope.cookies.unwrap_or_default() {
        add(headers, header::SET_COOKIE.as_str(), &Value::String(cookie));
    }
    Some(response)
}

fn add(headers: &mut HeaderMap, name: &str, value: &Value) {
    let text = match value {
        Value::String(text) => Cow::Borrowed(text.as_str()),
        Value::Number(number) => Cow::Owned(number.to_string()),
        Value::Bool(flag) => Cow::Owned(flag.to_string()),
        _ => return,
    };
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&text)) {
        headers.append(name, value);
    }
}

/// The response as a stream: its head, the separator, and its body.
pub(super) fn streamed(response: &Response<Body>) -> Bytes {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut headers = BTreeMap::<&str, String>::new();
    for (name, value) in response.headers() {
        if name != header::SET_COOKIE {
            let values = headers.entry(name.as_str()).or_default();
            *values = if values.is_empty() { text(value) } else { format!("{values}, {}", text(value)) };
        }
    }
    let cookies: Vec<_> = response.headers().get_all(header::SET_COOKIE).iter().map(text).collect();
    let head = serde_json::json!({
        "statusCode": response.status().as_u16(),
        "headers": headers,
        "cookies": cookies,
    });
    [head.to_string().as_bytes(), &SEPARATOR, response.body()].concat().into()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::recorded::headers_of;

    fn read(body: &[u8], headers: HeaderMap, front_end: FrontEnd) -> (Response<Body>, bool) {
        let body = Payload::Whole(Bytes::copy_from_slice(body));
        response(&Posted { is_error: false, headers, body, reply: oneshot::channel().0 }, front_end)
    }

    fn of(body: &[u8], content_type: &'static str, infers: bool) -> Response<Body> {
        let headers = headers_of(Some(HeaderValue::from_static(content_type)), false);
        read(body, headers, if infers { FrontEnd::HttpApi } else { FrontEnd::Other }).0
    }

    /// The status and the body of a stream, and whether the front end reads it as a stream.
    fn stream_of(body: &[u8], content_type: &'static str, front_end: FrontEnd) -> (u16, Vec<u8>, bool) {
        let headers = headers_of(Some(HeaderValue::from_static(content_type)), true);
        let (response, is_stream) = read(body, headers, front_end);
        (response.status().as_u16(), response.body().to_vec(), is_stream)
    }

    #[test]
    fn layer_and_front_ends_read_envelopes_alike() {
        let read = of(
            br#"{"statusCode": "201", "headers": {"A": 1, "B": "x"}, "multiValueHeaders": {"b": ["y", "z"]},
                "cookies": ["c=1"], "body": "{\"n\":1}"}"#,
            "application/json",
            false,
        );
        assert_eq!(read.status(), 201);
        assert_eq!(read.headers()["a"], "1");
        assert_eq!(read.headers().get_all("b").iter().collect::<Vec<_>>(), ["y", "z"]);
        assert_eq!(read.headers()["set-cookie"], "c=1");
        assert_eq!(*read.body(), Body::Text("{\"n\":1}".into()));
        let binary =
            of(br#"{"statusCode":200,"body":"/wA=","isBase64Encoded":true}"#, "application/json", false);
        assert_eq!(*binary.body(), Body::Binary(vec![255, 0]));
    }

    #[test]
    fn malformed_responses_become_status_502() {
        for body in [
            &b"null"[..],
            b"\"text\"",
            b"{}",
            br#"{"statusCode": null}"#,
            br#"{"statusCode": 200, "body": {"n": 1}}"#,
            br#"{"statusCode": 200, "body": "!", "isBase64Encoded": true}"#,
            b"\xff",
            b"{\"statusCode\": 200, \"other\": \"\xff\"}",
        ] {
            assert_eq!(of(body, "application/json", false).status(), 502, "{body:?}");
        }
        assert_eq!(of(br#"{"statusCode": 200, "body": 1}"#, "application/json", true).status(), 502);
        assert_eq!(of(b"no separator", STREAM_TYPE, true).status(), 502);
    }

    #[test]
    fn payload_format_two_accepts_bare_json() {
        let json = of(br#"{"n": 1}"#, "application/json", true);
        assert_eq!((json.status().as_u16(), json.body()), (200, &Body::Text("{\"n\": 1}".into())));
        assert_eq!(*of(b"\"hi\"", "application/json", true).body(), Body::Text("hi".into()));
    }

    #[test]
    fn layer_and_front_ends_read_streams_alike() {
        use FrontEnd::{FunctionUrl, HttpApi, Other, RestApi};
        let whole = |body: &[u8], is_stream| (200, body.to_vec(), is_stream);
        let headed = b"{\"statusCode\":503}\0\0\0\0\0\0\0\0text";
        for (front_end, read) in [
            (RestApi, (503, b"text".to_vec(), true)),
            (FunctionUrl, whole(headed, true)),
            (HttpApi, whole(headed, false)),
            (Other, whole(headed, false)),
        ] {
            assert_eq!(stream_of(headed, "application/octet-stream", front_end), read, "{front_end:?}");
            let enveloped = stream_of(br#"{"statusCode":201,"body":"x"}"#, "application/json", front_end);
            assert_eq!(enveloped, (201, b"x".to_vec(), false), "{front_end:?}");
            let bare = stream_of(br#"{"n":1}"#, "application/json", front_end);
            let is_stream = matches!(front_end, RestApi | FunctionUrl);
            assert_eq!(bare, whole(br#"{"n":1}"#, is_stream), "{front_end:?}");
            assert_eq!(stream_of(b"", STREAM_TYPE, front_end), whole(b"", true), "{front_end:?}");
            assert_eq!(stream_of(b"{}", STREAM_TYPE, front_end).0, 502, "{front_end:?}");
        }
    }

    /// Reads these parts of a stream of this type. Returns the length of the body so far after each part.
    fn lengths(content_type: &'static str, parts: &[&[u8]]) -> Vec<Option<usize>> {
        let mut head = Head::of(&headers_of(Some(HeaderValue::from_static(content_type)), true));
        parts.iter().map(|part| head.body_after(part)).collect()
    }

    #[test]
    fn head_ends_at_the_separator() {
        let parts = [&b" {\"statusCode\":200}\0\0\0"[..], b"\0\0\0\0\0ab", b"\0\0\0\0\0\0\0\0"];
        for content_type in [STREAM_TYPE, "application/octet-stream"] {
            assert_eq!(lengths(content_type, &parts), [None, Some(2), Some(10)], "{content_type}");
        }
        let long = vec![b' '; LONGEST_HEAD];
        assert_eq!(lengths(STREAM_TYPE, &[b"text", &long]), [None, None]);
        assert_eq!(lengths("text/plain", &[b"text", &SEPARATOR]), [Some(4), Some(12)]);
        assert_eq!(
            lengths("text/plain", &[&long, b"{", &SEPARATOR]),
            [None, Some(LONGEST_HEAD + 1), Some(LONGEST_HEAD + 9)]
        );
    }

    #[test]
    fn streamed_responses_round_trip() {
        let original = of(
            br#"{"statusCode":201,"headers":{"x":"1"},"cookies":["a=1","b=2"],"body":"text"}"#,
            "application/json",
            false,
        );
        let again = of(&streamed(&original), STREAM_TYPE, false);
        assert_eq!(again.status(), 201);
        assert_eq!(again.headers(), original.headers());
        assert_eq!(again.body(), original.body());
    }
}
