//! What of a request must match when its key is used again, and how its body is read for that.

use std::{any::Any, borrow::Cow};

use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use lambda_http::RequestExt;

use crate::{fingerprint::Fingerprint, lambda::http::problem::Problem};

/// The largest body that is read, in bytes: API Gateway's own limit ("Quotas", API Gateway developer
/// guide).
const MAX_BODY: usize = 10 * 1024 * 1024;

/// The request's fingerprint, and its body as it was.
///
/// # Errors
///
/// The answer for a body that is too large or breaks off.
pub(super) async fn fingerprinted<B>(parts: &Parts, body: B) -> Result<(Fingerprint, B), Problem>
where
    B: http_body::Body + From<Vec<u8>> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Lambda hands over whole bodies, as text or as bytes, and a handler may tell the two apart.
    if let Some(whole) = (&body as &dyn Any).downcast_ref::<lambda_http::Body>() {
        if whole.len() > MAX_BODY {
            return Err(Problem::BODY_TOO_LARGE);
        }
        return Ok((fingerprint(parts, whole), body));
    }
    let bytes = match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(Problem::BODY_TOO_LARGE),
        Err(_) => return Err(Problem::BODY_UNREADABLE),
    };
    Ok((fingerprint(parts, &bytes), Vec::from(bytes).into()))
}

fn fingerprint(parts: &Parts, body: &[u8]) -> Fingerprint {
    let path = match parts.extensions.raw_http_path() {
        "" => parts.uri.path(),
        raw => raw,
    };
    let mut builder = Fingerprint::builder("http").part("method", parts.method.as_str()).part("path", path);
    for (name, value) in normalised_query(parts.uri.query().unwrap_or_default()) {
        builder = builder.part("name", name).part("value", value);
    }
    builder.json_or_bytes("body", body).finish()
}

/// A name and its value, decoded.
type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The query's pairs, decoded, in the order of their names; values of one name keep theirs.
fn normalised_query(query: &str) -> Vec<Pair<'_>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<_> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (percent_decoded(name), percent_decoded(value)))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

/// As a form is decoded; a `%` that no two digits follow stands for itself.
fn percent_decoded(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let digit = |at: usize| bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, uri: &str, body: &[u8]) -> Fingerprint {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        fingerprint(&parts, body)
    }

    #[test]
    fn method_path_query_and_body_count() {
        let base = of("POST", "/a?x=1", b"{}");
        assert_eq!(base, of("POST", "/a?x=1", b" { } "));
        for other in [of("PATCH", "/a?x=1", b"{}"), of("POST", "/a/?x=1", b"{}"), of("POST", "/a?x=2", b"{}")]
        {
            assert_ne!(base, other);
        }
        assert_ne!(base, of("POST", "/a?x=1", b"[]"));
        assert_ne!(of("POST", "/a", b""), of("POST", "/a", b"{}"));
    }

    #[test]
    fn the_order_of_names_does_not_count_but_that_of_values_does() {
        assert_eq!(of("POST", "/?a=1&b=2", b""), of("POST", "/?b=2&a=1", b""));
        assert_ne!(of("POST", "/?a=1&a=2", b""), of("POST", "/?a=2&a=1", b""));
        assert_eq!(of("POST", "/?a=x%20y", b""), of("POST", "/?a=x+y", b""));
        assert_ne!(of("POST", "/?a=1%26b=2", b""), of("POST", "/?a=1&b=2", b""));
        assert_ne!(of("POST", "/?ab=", b""), of("POST", "/?a=b", b""));
    }

    #[test]
    fn odd_percent_signs_stand_for_themselves() {
        for (text, decoded) in [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("a%41", "aA"), ("%%41", "%A")] {
            assert_eq!(*percent_decoded(text), *decoded.as_bytes());
        }
    }
}
