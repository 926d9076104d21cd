//! Converts a function's answer into its recorded form, and back.
//!
//! JSON is recorded unchanged, so that a Rust function with the same key can read it. Anything else, such as binary
//! data, a stream, or JSON with white space around it, is recorded in an envelope that keeps its bytes and its type.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::value::RawValue;

use crate::{
    function::{Payload, Posted},
    upstream::{Chunked, RESPONSE_MODE, full, json_headers},
};

/// The type of a streamed HTTP response.
pub(crate) const STREAM_TYPE: &str = "application/vnd.awslambda.http-integration-response";

/// The envelope's field. JSON that begins like an envelope is itself put into an envelope.
const ENVELOPE: &str = "lambda-idempotency-layer";

/// Room for an envelope's fields and its content type, in bytes. If a content type needs more room, the answer may be
/// too large to record.
const ENVELOPE_ROOM: usize = 64 * 1024;

const STREAMING: HeaderValue = HeaderValue::from_static("streaming");

/// The part of an answer that's recorded.
#[derive(Debug)]
pub(crate) struct Recordable {
    /// The answer's body. `None` if it's too large to record.
    bytes: Option<Bytes>,
    content_type: Option<String>,
    is_streamed: bool,
}

#[derive(Deserialize, Serialize)]
struct Envelope {
    #[serde(rename = "lambda-idempotency-layer")]
    content: Content,
}

#[derive(Deserialize, Serialize)]
struct Content {
    content_type: Option<String>,
    streamed: bool,
    base64: String,
}

impl Recordable {
    /// The part of `posted` to record. If the body has more than `most` bytes, the body is left out.
    pub(crate) fn of(posted: &Posted, most: usize) -> Self {
        let content_type = posted.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let bytes = match &posted.body {
            Payload::Whole(bytes) | Payload::Broken(bytes, _) => Some(bytes.clone()),
            Payload::Endless(..) => None,
        };
        let bytes = bytes.filter(|_| !posted.is_larger_than(most));
        Self {
            bytes,
            content_type: content_type.map(str::to_owned),
            is_streamed: is_streamed(&posted.headers),
        }
    }

    /// The answer as JSON that can be recorded unchanged. `None` if it needs an envelope.
    fn plain(&self) -> Option<&RawValue> {
        let bytes = self.bytes.as_ref()?;
        let is_json = self.content_type.as_deref().is_none_or(|name| name.starts_with("application/json"));
        if self.is_streamed || !is_json || begins_like_an_envelope(bytes) {
            return None;
        }
        let json: &RawValue = serde_json::from_slice(bytes).ok()?;
        // `RawValue` would lose white space around the JSON.
        (json.get().len() == bytes.len()).then_some(json)
    }
}

impl Serialize for Recordable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(json) = self.plain() {
            return json.serialize(serializer);
        }
        // On this error, the library records that the operation is done, without its answer.
        let bytes = self.bytes.as_ref().ok_or_else(|| S::Error::custom("too large to record"))?;
        let content = Content {
            content_type: self.content_type.clone(),
            streamed: self.is_streamed,
            base64: STANDARD.encode(bytes),
        };
        Envelope { content }.serialize(serializer)
    }
}

/// Returns the limit for the recorded form of answers with up to `most` bytes. Base64 turns three bytes into four.
pub(crate) fn limit(most: usize) -> usize {
    match most {
        // The user chose to record no answers.
        0 => 0,
        most => most.div_ceil(3).saturating_mul(4).saturating_add(ENVELOPE_ROOM),
    }
}

/// Whether the function streams its response. Go's client (`aws-lambda-go` 1.55.1) sends only the type of a streamed
/// HTTP response, and no mode.
pub(crate) fn is_streamed(headers: &HeaderMap) -> bool {
    match headers.get(RESPONSE_MODE) {
        Some(mode) => mode.as_bytes().eq_ignore_ascii_case(STREAMING.as_bytes()),
        None => headers.get(header::CONTENT_TYPE).is_some_and(|name| name == STREAM_TYPE),
    }
}

/// Whether an answer with these headers is JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|name| name.as_bytes().starts_with(b"application/json"))
}

fn begins_like_an_envelope(json: &[u8]) -> bool {
    let start = json.trim_ascii_start().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let start = start.and_then(|start| start.strip_prefix(b"\""));
    // The name can be written with escapes, so a name that begins with an escape counts as an envelope's.
    start.is_some_and(|name| name.starts_with(ENVELOPE.as_bytes()) || name.starts_with(b"\\"))
}

/// The headers and the body of a recorded answer, to post them again.
pub(crate) fn replayed(recorded: Box<RawValue>) -> (HeaderMap, crate::upstream::AnyBody) {
    if begins_like_an_envelope(recorded.get().as_bytes())
        && let Ok(Envelope { content }) = serde_json::from_str(recorded.get())
        && let Ok(bytes) = STANDARD.decode(&content.base64)
    {
        let content_type = content.content_type.and_then(|name| HeaderValue::from_str(&name).ok());
        return (headers_of(content_type, content.streamed), body_of(bytes.into(), content.streamed));
    }
    (json_headers(), full(String::from(Box::<str>::from(recorded))))
}

/// The headers of an answer of this type.
pub(crate) fn headers_of(content_type: Option<HeaderValue>, is_streamed: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    if is_streamed {
        headers.insert(RESPONSE_MODE, STREAMING);
    }
    headers
}

/// The body of an answer, which is sent in chunks if it's a stream.
pub(crate) fn body_of(bytes: Bytes, is_streamed: bool) -> crate::upstream::AnyBody {
    if is_streamed { Chunked::body([bytes], None, None) } else { full(bytes) }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn recordable(bytes: &'static [u8], content_type: &str, is_streamed: bool) -> Recordable {
        Recordable { bytes: Some(bytes.into()), content_type: Some(content_type.into()), is_streamed }
    }

    fn is_plain(answer: &Recordable) -> bool {
        serde_json::to_vec(answer).unwrap() == answer.bytes.clone().unwrap()
    }

    async fn round_trip(answer: &Recordable) {
        let recorded = serde_json::value::to_raw_value(answer).unwrap();
        let (headers, body) = replayed(recorded);
        assert_eq!(body.collect().await.unwrap().to_bytes(), answer.bytes.clone().unwrap());
        assert_eq!(is_streamed(&headers), answer.is_streamed);
        assert_eq!(headers[header::CONTENT_TYPE], answer.content_type.clone().unwrap());
    }

    #[tokio::test]
    async fn every_answer_replays_byte_for_byte() {
        let json = "application/json";
        for bytes in [&b"{\"n\":1.50}"[..], b"null", b"\"text\"", b"{ }", b"{\"\": 1}"] {
            let answer = recordable(bytes, json, false);
            assert!(is_plain(&answer), "{bytes:?}");
            round_trip(&answer).await;
        }
        for bytes in [
            &b"{\"n\":1}\n"[..],
            b" 1",
            b"",
            b"no JSON",
            b"\xff\x00",
            b"{\"lambda-idempotency-layer\":{\"content_type\":null,\"streamed\":false,\"base64\":\"\"}}",
            b"{\"\\u006cambda-idempotency-layer\":1}",
        ] {
            let answer = recordable(bytes, json, false);
            assert!(!is_plain(&answer), "{bytes:?}");
            round_trip(&answer).await;
        }
        round_trip(&recordable(b"1", "text/plain", false)).await;
        // The limit allows the largest answer, even if each character of its content type is escaped.
        let largest = recordable(&[b'"'; 1000], &"\"".repeat(4096), true);
        assert!(serde_json::to_vec(&largest).unwrap().len() <= limit(1000));
        round_trip(&recordable(b"1", "application/vnd.awslambda.http-integration-response", true)).await;
    }

    #[test]
    fn oversized_answers_cannot_be_recorded() {
        let answer = Recordable { bytes: None, content_type: None, is_streamed: true };
        assert!(serde_json::to_vec(&answer).is_err());
    }
}
