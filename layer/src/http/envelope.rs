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

use crate::function::{Payload, Posted};

/// The type of a streamed HTTP response.
pub(super) const STREAM_TYPE: &str = "application/vnd.awslambda.http-integration-response";
/// The bytes between the head and the body of a streamed response.
const SEPARATOR: [u8; 8] = [0; 8];

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

/// The response that the front end makes from the function's answer. With `infers`, it takes any JSON as a body.
/// A malformed answer is a 502, which is what the client gets.
pub(super) fn response(posted: &Posted, infers: bool) -> Response<Body> {
    let begun;
    let bytes: &[u8] = match &posted.body {
        Payload::Whole(bytes) | Payload::Broken(bytes, _) => bytes,
        Payload::Endless(parts, _) => {
            begun = parts.concat();
            &begun
        }
    };
    let is_stream = posted.headers.get(header::CONTENT_TYPE).is_some_and(|name| name == STREAM_TYPE);
    let read = match is_stream {
        true => of_stream(bytes),
        false => of_envelope(bytes).or_else(|| infers.then(|| inferred(bytes)).flatten()),
    };
    read.unwrap_or_else(|| {
        let mut malformed = Response::new(Body::Empty);
        *malformed.status_mut() = StatusCode::BAD_GATEWAY;
        malformed
    })
}

fn of_envelope(bytes: &[u8]) -> Option<Response<Body>> {
    let mut envelope: Envelope<'_> = serde_json::from_slice(bytes).ok()?;
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
    let body = bytes.get(end + SEPARATOR.len()..)?.to_vec();
    let body = String::from_utf8(body).map_or_else(|error| Body::Binary(error.into_bytes()), Body::Text);
    with_head(serde_json::from_slice(head).ok()?, body)
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
        // A REST API merges both maps. A function that sends both repeats each value, so only one of them is taken.
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
        ] {
            assert_eq!(of(body, "application/json", false).status(), 502, "{body:?}");
        }
        assert_eq!(of(br#"{"statusCode": 200, "body": 1}"#, "application/json", true).status(), 502);
        assert_eq!(of(b"no separator", STREAM_TYPE, true).status(), 502);
    }

    #[test]
    fn payload_two_infers_a_response() {
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
