//! A function's HTTP response: reads it from the function's answer, and writes it as a stream.
//!
//! REST APIs, HTTP APIs, function URLs, load balancers and VPC Lattice take JSON with `statusCode`, `headers` and
//! `body`. A streamed response begins with the same JSON without `body`. Eight zero bytes and the body follow.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use lambda_http::Body;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    function::{Payload, Posted},
    recorded::is_streamed,
};

/// The type of a streamed HTTP response.
pub(crate) const STREAM_TYPE: &str = "application/vnd.awslambda.http-integration-response";
/// The bytes between the head and the body of a streamed response.
const SEPARATOR: [u8; 8] = [0; 8];

/// Whether an answer with these headers is a streamed HTTP response.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|name| name == STREAM_TYPE)
}

/// Finds the end of a streamed response's head, part by part.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// How many zero bytes the parts so far end with, up to the separator's length.
    zeros: usize,
    /// The length of the body so far, once the head has ended.
    body: Option<usize>,
}

impl Head {
    /// Returns the length of the body after this part. `None` if the head hasn't ended.
    pub(crate) fn body_after(&mut self, part: &[u8]) -> Option<usize> {
        let mut rest = part;
        while self.body.is_none() {
            let (byte, behind) = rest.split_first()?;
            self.zeros = if *byte == 0 { self.zeros + 1 } else { 0 };
            self.body = (self.zeros == SEPARATOR.len()).then_some(0);
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

/// The response that the front end makes from the function's answer. With `infers`, JSON without a status becomes the
/// body. A malformed answer becomes a 502, as at the front end.
pub(super) fn response(posted: &Posted, infers: bool) -> Response<Body> {
    let begun;
    let bytes: &[u8] = match &posted.body {
        Payload::Whole(bytes) | Payload::Broken(bytes, _) => bytes,
        Payload::Endless(parts, _) => {
            begun = parts.concat();
            &begun
        }
    };
    let read = match (is_stream(&posted.headers), &posted.body) {
        (true, _) => of_stream(bytes),
        // It's too large for Lambda, or a stream that's too large to record. The function has run, so it counts as an
        // outcome that can't be recorded.
        (false, Payload::Endless(..)) => Some(Response::new(Body::Binary(bytes.to_vec()))),
        (false, _) if is_streamed(&posted.headers) => {
            of_envelope(bytes).or_else(|| Some(raw(bytes, posted.headers.get(header::CONTENT_TYPE))))
        }
        (false, _) => of_envelope(bytes).or_else(|| infers.then(|| inferred(bytes)).flatten()),
    };
    read.unwrap_or_else(|| {
        let mut malformed = Response::new(Body::Empty);
        *malformed.status_mut() = StatusCode::BAD_GATEWAY;
        malformed
    })
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

    fn of(body: &[u8], content_type: &'static str, infers: bool) -> Response<Body> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let body = Payload::Whole(Bytes::copy_from_slice(body));
        response(&Posted { is_error: false, headers, body, reply: oneshot::channel().0 }, infers)
    }

    #[test]
    fn envelopes_are_read_like_front_ends_read_them() {
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
    fn malformed_responses_are_bad_gateways() {
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
