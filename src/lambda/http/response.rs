//! Converts a response to recorded bytes, and back: version 1 of the format.
//!
//! The format is one line of JSON (`{"v":1,"status":201,"kind":"text","headers":[["content-type","text/plain"]]}`), a
//! line feed, and the body's bytes. The list of headers keeps their order and repetitions. Header values are written
//! with one character per byte (ISO 8859-1), so that every value is replayed exactly.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use lambda_http::{Body, request::RequestContext};
use serde::{Deserialize, Serialize};

use super::headers::{HeaderRules, REPLAYED};
use crate::{
    error::{Error, ErrorKind},
    observe,
};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Head {
    v: u32,
    status: u16,
    kind: Kind,
    headers: Vec<(String, String)>,
}

/// The body's kind: the front end gets text and bytes in different forms.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Empty,
    Text,
    Binary,
}

/// The response as bytes to record; `None` if this version doesn't know the body's kind.
pub(super) fn encode(response: &Response<Body>, rules: &HeaderRules) -> Option<Bytes> {
    let kind = match response.body() {
        Body::Empty => Kind::Empty,
        Body::Text(_) => Kind::Text,
        Body::Binary(_) => Kind::Binary,
        _ => return None,
    };
    let headers = rules.recorded(response.headers());
    let head = Head {
        v: VERSION,
        status: response.status().as_u16(),
        kind,
        headers: headers.map(|(name, value)| (name.as_str().to_owned(), as_text(value))).collect(),
    };
    let mut bytes = serde_json::to_vec(&head).ok()?;
    bytes.push(b'\n');
    bytes.extend_from_slice(response.body());
    Some(bytes.into())
}

/// Returns the bytes that the HTTP layer records and replays for `response`, for code that settles an operation outside
/// the layer with [`Idempotency::resolve`](crate::Idempotency::resolve). A body of type `String` is replayed as
/// text, a body of type `Vec<u8>` as binary. Behind `lambda_http::run`, a binary body also needs a content type that
/// isn't text, such as `application/octet-stream`; behind [`run`](super::run), it doesn't need one if the layer is the
/// outermost service. Headers that belong to one exchange, such as `Date` and `Set-Cookie`, are left out.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if this version doesn't know the body's kind.
///
/// ```
/// use lambda_http::http::Response;
/// use lambda_idempotency::lambda::http::{recorded, replayed};
///
/// let bytes = recorded(Response::builder().status(201).body("{\"paid\":true}".to_owned()).unwrap())?;
/// assert_eq!(replayed(&bytes)?.status(), 201);
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
pub fn recorded(response: Response<impl Into<Body>>) -> Result<Bytes, Error> {
    encode(&response.map(Into::into), &HeaderRules::default())
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "the body is neither empty, text nor binary"))
}

/// The response that the HTTP layer replays from these recorded bytes.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if the bytes aren't a recorded response of this version.
pub fn replayed(recorded: &[u8]) -> Result<Response<Body>, Error> {
    decode(recorded, &REPLAYED)
}

/// The recorded response, with `marker` as the header that marks a replay.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if the bytes aren't a recorded response of this version.
pub(super) fn decode(bytes: &[u8], marker: &HeaderName) -> Result<Response<Body>, Error> {
    decoded(bytes, marker).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "the recorded bytes aren't an HTTP response of version 1")
    })
}

fn decoded(bytes: &[u8], marker: &HeaderName) -> Option<Response<Body>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    let head: Head = serde_json::from_slice(head).ok()?;
    if head.v != VERSION {
        return None;
    }
    let body = match head.kind {
        Kind::Empty => Body::Empty,
        Kind::Text => Body::Text(String::from_utf8(body.to_vec()).ok()?),
        Kind::Binary => Body::Binary(body.to_vec()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    let headers: &mut HeaderMap = response.headers_mut();
    for (name, value) in head.headers {
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, as_value(&value)?);
    }
    headers.insert(marker, HeaderValue::from_static("true"));
    Some(response)
}

/// Whether `lambda_http` writes only one value per header name and drops the others. As of 1.3.2 it does so for
/// events of payload format 2.0, of load balancers, and of VPC Lattice.
pub(super) fn needs_joining(context: Option<&RequestContext>) -> bool {
    matches!(
        context,
        Some(RequestContext::ApiGatewayV2(_) | RequestContext::Alb(_) | RequestContext::VpcLattice(_))
    )
}

/// An upper bound for the size of the JSON that `lambda_http` makes of the response, in bytes. Binary bodies are in
/// base64. Each header counts twice, since a load balancer gets it both as a single value and in a list.
pub(super) fn delivered_bytes(response: &Response<Body>) -> usize {
    /// The JSON's field names, the status code and the status text.
    const ENVELOPE: usize = 256;
    let body = match response.body() {
        Body::Text(text) => escaped_bytes(text.as_bytes()),
        Body::Binary(bytes) => bytes.len().div_ceil(3) * 4,
        _ => 0,
    };
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + escaped_bytes(value.as_bytes()) + 8
    };
    ENVELOPE + body + 2 * response.headers().iter().map(header).sum::<usize>()
}

/// Whether an event can carry these headers: it's JSON, so their values have to be UTF-8.
pub(super) fn is_text(headers: &HeaderMap) -> bool {
    headers.iter().all(|(name, value)| is_utf8(name, value))
}

pub(super) fn is_utf8(_: &HeaderName, value: &HeaderValue) -> bool {
    std::str::from_utf8(value.as_bytes()).is_ok()
}

/// Removes the values that Lambda wouldn't deliver, and logs their headers' names.
pub(super) fn keep_delivered(headers: &mut HeaderMap, is_delivered: fn(&HeaderName, &HeaderValue) -> bool) {
    if headers.iter().all(|(name, value)| is_delivered(name, value)) {
        return;
    }
    let mut name = None;
    for (first, value) in std::mem::take(headers) {
        // The iterator names only the first of several values of one header.
        name = first.or(name);
        let Some(name) = &name else { continue };
        if is_delivered(name, &value) {
            headers.append(name, value);
        } else {
            observe::header_dropped(name.as_str());
        }
    }
}

/// The length of a text as a JSON string, without the quotes.
fn escaped_bytes(text: &[u8]) -> usize {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.iter().map(escaped).sum()
}

/// Joins the values of each name into one (RFC 9110, section 5.3), except for `Set-Cookie`, which can't be
/// joined.
pub(super) fn join(headers: &mut HeaderMap) {
    let repeated: Vec<_> = headers
        .keys()
        .filter(|name| *name != header::SET_COOKIE && headers.get_all(*name).iter().nth(1).is_some())
        .cloned()
        .collect();
    for name in repeated {
        let values: Vec<_> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&values.join(&b", "[..])) {
            headers.insert(name, joined);
        }
    }
}

fn as_text(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}

fn as_value(text: &str) -> Option<HeaderValue> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    HeaderValue::from_bytes(&bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(body: Body) -> Response<Body> {
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::CREATED;
        let headers = response.headers_mut();
        headers.append("content-type", HeaderValue::from_static("application/json"));
        headers.append("link", HeaderValue::from_static("</a>"));
        headers.append("link", HeaderValue::from_static("</b>"));
        headers.append("x-latin", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        response
    }

    #[test]
    fn responses_round_trip_exactly() {
        for body in [
            Body::Empty,
            Body::Text("{\"a\":1}\nsecond line".into()),
            Body::Text(String::new()),
            Body::Binary(vec![0, 10, 255]),
        ] {
            let original = response(body);
            let mut replay = decode(&encode(&original, &HeaderRules::default()).unwrap(), &REPLAYED).unwrap();
            assert_eq!(replay.headers_mut().remove(REPLAYED).unwrap(), "true");
            assert_eq!(replay.status(), original.status());
            assert_eq!(replay.body(), original.body());
            assert_eq!(replay.headers(), original.headers());
        }
    }

    #[test]
    fn per_exchange_headers_are_not_recorded() {
        let mut original = response(Body::Empty);
        for name in
            ["date", "content-length", "set-cookie", "access-control-allow-origin", "idempotent-replayed"]
        {
            original.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        let replay = decode(&encode(&original, &HeaderRules::default()).unwrap(), &REPLAYED).unwrap();
        assert_eq!(replay.headers()["idempotent-replayed"], "true", "the library replaces the value");
        for name in ["date", "content-length", "set-cookie", "access-control-allow-origin"] {
            assert!(!replay.headers().contains_key(name), "{name}");
        }
    }

    #[test]
    fn repeated_headers_except_cookies_are_joined() {
        let mut headers = response(Body::Empty).into_parts().0.headers;
        for cookie in ["a=1", "b=2"] {
            headers.append(header::SET_COOKIE, HeaderValue::from_static(cookie));
        }
        join(&mut headers);
        assert_eq!(headers.get_all("link").iter().collect::<Vec<_>>(), ["</a>, </b>"]);
        assert_eq!(headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
        assert_eq!(headers["x-latin"], HeaderValue::from_bytes(b"caf\xe9").unwrap());
    }

    #[test]
    fn body_sizes_include_escaping_and_base64() {
        let text: String = (0..0x250).filter_map(char::from_u32).collect();
        assert_eq!(escaped_bytes(text.as_bytes()) + 2, serde_json::to_string(&text).unwrap().len());
        let of = |body| delivered_bytes(&Response::new(body));
        assert_eq!(of(Body::Binary(vec![0; 3001])) - of(Body::Empty), 4004);
        assert_eq!(of(Body::Text("\"".into())) - of(Body::Empty), 2);
        // A header is written twice, each time with quotes, a colon, a comma and an array's brackets.
        let mut with_header = Response::new(Body::Empty);
        with_header.headers_mut().insert("etag", HeaderValue::from_static("\"v1\""));
        assert_eq!(delivered_bytes(&with_header) - of(Body::Empty), 2 * (4 + 6 + 8));
        assert_eq!(of(Body::Empty), 256);
    }

    #[test]
    fn recorded_bytes_replay_the_same_response() {
        let bytes = recorded(response(Body::Empty).map(|_| "paid".to_owned())).unwrap();
        let replay = replayed(&bytes).unwrap();
        assert_eq!((replay.status(), replay.body()), (StatusCode::CREATED, &Body::Text("paid".into())));
        assert_eq!(replay.headers()["idempotent-replayed"], "true");
    }

    #[test]
    fn recorded_response_format_is_pinned() {
        let bytes = encode(&response(Body::Text("hi".into())), &HeaderRules::default()).unwrap();
        let golden = "{\"v\":1,\"status\":201,\"kind\":\"text\",\"headers\":[[\"content-type\",\"application/json\"],\
             [\"link\",\"</a>\"],[\"link\",\"</b>\"],[\"x-latin\",\"caf\u{e9}\"]]}\nhi";
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), golden);
    }

    #[test]
    fn unknown_recorded_formats_are_corrupt() {
        let good = encode(&response(Body::Text("hi".into())), &HeaderRules::default()).unwrap();
        let newer = String::from_utf8(good.to_vec()).unwrap().replacen("\"v\":1", "\"v\":2", 1);
        for bytes in [&b""[..], b"\n", b"{}\n", b"null", newer.as_bytes(), &good[..10]] {
            assert_eq!(decode(bytes, &REPLAYED).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
