//! The query of a request, as the front end received it.

use std::borrow::Cow;

use http::request::Parts;
use lambda_http::{RequestExt, aws_lambda_events::query_map::QueryMap};

/// A name and its value, decoded.
pub(super) type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The query's pairs, decoded and sorted by name; values of one name keep their order.
///
/// `lambda_http` puts the URI together from text: in the path `/2026#17`, it takes the query for a part of the fragment,
/// and the URI loses both. So an event's query comes from its own fields. For format 2.0, `lambda_http` parses
/// `rawQueryString`, which has every value. For all other front ends, it uses the multi-value map, if there's one.
pub(super) fn compared(parts: &Parts) -> Vec<Pair<'_>> {
    let of_uri = || pairs(parts.uri.query().unwrap_or_default());
    let mut found: Vec<Pair<'_>> = match parts.extensions.request_context_ref() {
        None => of_uri().collect(),
        Some(_) => {
            let of_event =
                parts.extensions.query_string_parameters_ref().into_iter().flat_map(QueryMap::iter);
            of_event.map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect()
        }
    };
    // `lambda_http` puts the same character into the map for all bytes that aren't UTF-8. The URI still has the bytes.
    let is_lossy = |text: &[u8]| text.windows(REPLACED.len()).any(|bytes| bytes == REPLACED);
    if found.iter().any(|(name, value)| is_lossy(name) || is_lossy(value)) {
        found.extend(of_uri());
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// The character that stands for bytes that aren't UTF-8.
const REPLACED: &[u8] = "\u{fffd}".as_bytes();

/// A query's pairs, decoded.
fn pairs(query: &str) -> impl Iterator<Item = Pair<'_>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (percent_decoded(name), percent_decoded(value)))
}

/// Decodes `%` and `+` as in a form. A `%` without two hex digits after it is literal.
pub(super) fn percent_decoded(text: &str) -> Cow<'_, [u8]> {
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

    #[test]
    fn stray_percent_signs_are_literal() {
        for (text, decoded) in [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("a%41", "aA"), ("%%41", "%A")] {
            assert_eq!(*percent_decoded(text), *decoded.as_bytes());
        }
    }
}
