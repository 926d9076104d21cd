//! The text of `response_encoding`, which is the same in every store: `omitted`, or
//! `ENCODING[/CHUNKS][;format=NAME][;key=ID]`.
//!
//! A release that doesn't know a part of it can't read the text at all, so it refuses the record instead of
//! replaying bytes that it can't interpret.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    format::is_format_name,
    outcome::{Encoding, Outcome, Place, StoredResponse},
};

const OMITTED: &str = "omitted";
const FORMAT: &str = ";format=";
const KEY: &str = ";key=";

/// The longest id of a key, in bytes. An ARN of KMS has under 100.
const MAX_KEY_ID: usize = 512;
/// How a response is kept, without the bytes and the numbers that have their own field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The response wasn't kept.
    Omitted,
    Kept {
        encoding: Encoding,
        /// How many chunks hold it; `None` if it's in the record.
        chunks: Option<u32>,
        format: Option<Arc<str>>,
        key_id: Option<Arc<str>>,
    },
}

impl Form {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let Outcome::Retained(response) = outcome else { return Self::Omitted };
        Self::Kept {
            encoding: response.encoding,
            chunks: match response.place {
                Place::Inline(_) => None,
                Place::Chunks(count) => Some(count),
            },
            format: response.format.clone(),
            key_id: response.key_id.clone(),
        }
    }

    /// Parses only texts that [`text`](Self::text) writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == OMITTED {
            return Some(Self::Omitted);
        }
        let (text, key_id) = split_at_mark(text, KEY);
        let (text, format) = split_at_mark(text, FORMAT);
        let (how, chunks) = match text.split_once('/') {
            Some((how, count)) => (how, Some(parse_count(count)?)),
            None => (text, None),
        };
        let encoding = match how {
            "identity" => Encoding::Identity,
            "deflate" => Encoding::Deflate,
            _ => return None,
        };
        if !(format.is_none_or(is_format_name) && key_id.is_none_or(is_key_id)) {
            return None;
        }
        Some(Self::Kept { encoding, chunks, format: format.map(Into::into), key_id: key_id.map(Into::into) })
    }

    pub(super) fn text(&self) -> String {
        let Self::Kept { encoding, chunks, format, key_id } = self else { return OMITTED.to_owned() };
        let mut text = match encoding {
            Encoding::Identity => "identity",
            Encoding::Deflate => "deflate",
        }
        .to_owned();
        if let Some(count) = chunks {
            text.push('/');
            text.push_str(&count.to_string());
        }
        for (mark, value) in [(FORMAT, format), (KEY, key_id)] {
            if let Some(value) = value {
                text.push_str(mark);
                text.push_str(value);
            }
        }
        text
    }

    /// The outcome of this form. `fields` reads the response's length and digest, and `kept` its bytes in the
    /// record, if they're there.
    ///
    /// # Errors
    ///
    /// Those of the closures.
    pub(super) fn outcome<F, E>(
        self,
        fields: &mut F,
        measures: impl FnOnce(&mut F) -> Result<(u64, [u8; 32]), E>,
        kept: impl FnOnce(&mut F) -> Result<Bytes, E>,
    ) -> Result<Outcome, E> {
        let Self::Kept { encoding, chunks, format, key_id } = self else { return Ok(Outcome::Omitted) };
        let (length, sha256) = measures(fields)?;
        let place = match chunks {
            Some(count) => Place::Chunks(count),
            None => Place::Inline(kept(fields)?),
        };
        Ok(Outcome::Retained(StoredResponse { encoding, length, sha256, format, key_id, place }))
    }
}

/// Whether a key's id can be stored: 1 to 512 visible ASCII characters.
pub(crate) fn is_key_id(id: &str) -> bool {
    (1..=MAX_KEY_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn split_at_mark<'a>(text: &'a str, mark: &str) -> (&'a str, Option<&'a str>) {
    match text.split_once(mark) {
        Some((text, value)) => (text, Some(value)),
        None => (text, None),
    }
}

/// A number in the one form that this library writes: `parse` would accept a sign and leading zeros too.
fn parse_count(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|count: &u32| count.to_string() == digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(encoding: Encoding, chunks: Option<u32>) -> Form {
        Form::Kept { encoding, chunks, format: None, key_id: None }
    }

    #[test]
    fn forms_round_trip() {
        let full = |format: Option<&str>, key_id: Option<&str>| Form::Kept {
            encoding: Encoding::Deflate,
            chunks: Some(3),
            format: format.map(Into::into),
            key_id: key_id.map(Into::into),
        };
        for (text, form) in [
            ("omitted", Form::Omitted),
            ("identity", kept(Encoding::Identity, None)),
            ("deflate", kept(Encoding::Deflate, None)),
            ("identity/1", kept(Encoding::Identity, Some(1))),
            ("deflate/4294967295", kept(Encoding::Deflate, Some(u32::MAX))),
            ("deflate/3;format=cbor", full(Some("cbor"), None)),
            (
                "deflate/3;key=arn:aws:kms:eu-west-1:1:key/a;key=b",
                full(None, Some("arn:aws:kms:eu-west-1:1:key/a;key=b")),
            ),
            ("deflate/3;format=cbor;key=k1", full(Some("cbor"), Some("k1"))),
        ] {
            assert_eq!(Form::parse(text), Some(form.clone()), "{text}");
            assert_eq!(form.text(), text);
        }
    }

    #[test]
    fn unknown_forms_are_refused() {
        for text in [
            "",
            "gzip",
            "identity/",
            "identity/-1",
            "identity/+1",
            "identity/01",
            "deflate/4294967296",
            "/1",
            "identity;",
            "identity;format=",
            "identity;format=CBOR",
            "identity;key=",
            "identity;key=a b",
            "omitted;key=k",
            "identity;format=a;format=b",
            "identity;codec=x",
        ] {
            assert_eq!(Form::parse(text), None, "{text}");
        }
        assert_eq!(Form::parse(&format!("identity;key={}", "k".repeat(513))), None);
    }
}
