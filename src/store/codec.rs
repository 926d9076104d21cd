//! The text of `response_encoding`, which is the same in every store: `omitted`, or
//! `ENCODING[/CHUNKS][;LABELS]`.
//!
//! A release that doesn't know a part of it can't read the text, so it refuses the record instead of
//! replaying bytes that it can't interpret.

use std::sync::Arc;

use bytes::Bytes;

use crate::outcome::{Encoding, Labels, Outcome, Place, StoredResponse};

const OMITTED: &str = "omitted";
/// How a response is kept, without the bytes and the numbers that have their own field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The response wasn't kept.
    Omitted,
    Kept {
        encoding: Encoding,
        /// How many chunks hold it; `None` if it's in the record.
        chunks: Option<u32>,
        /// See [`StoredResponse::labels`].
        labels: Option<Arc<String>>,
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
            labels: response.labels.clone(),
        }
    }

    /// Parses only texts that [`text`](Self::text) writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == OMITTED {
            return Some(Self::Omitted);
        }
        let (text, labels) = match text.split_once(';') {
            Some((text, labels)) => (text, Some(labels)),
            None => (text, None),
        };
        let (how, chunks) = match text.split_once('/') {
            Some((how, count)) => (how, Some(parse_count(count)?)),
            None => (text, None),
        };
        let encoding = match how {
            "identity" => Encoding::Identity,
            "deflate" => Encoding::Deflate,
            _ => return None,
        };
        if let Some(labels) = labels {
            Labels::parse(labels)?;
        }
        Some(Self::Kept { encoding, chunks, labels: labels.map(|labels| Arc::new(labels.into())) })
    }

    pub(super) fn text(&self) -> String {
        let Self::Kept { encoding, chunks, labels } = self else { return OMITTED.to_owned() };
        let mut text = match encoding {
            Encoding::Identity => "identity",
            Encoding::Deflate => "deflate",
        }
        .to_owned();
        if let Some(count) = chunks {
            text.push('/');
            text.push_str(&count.to_string());
        }
        if let Some(labels) = labels {
            text.push(';');
            text.push_str(labels);
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
        let Self::Kept { encoding, chunks, labels } = self else { return Ok(Outcome::Omitted) };
        let (length, sha256) = measures(fields)?;
        let place = match chunks {
            Some(count) => Place::Chunks(count),
            None => Place::Inline(kept(fields)?),
        };
        Ok(Outcome::Retained(StoredResponse { encoding, length, sha256, labels, place }))
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
        Form::Kept { encoding, chunks, labels: None }
    }

    #[test]
    fn forms_round_trip() {
        let labelled = |labels: &str| Form::Kept {
            encoding: Encoding::Deflate,
            chunks: Some(3),
            labels: Some(Arc::new(labels.into())),
        };
        for (text, form) in [
            ("omitted", Form::Omitted),
            ("identity", kept(Encoding::Identity, None)),
            ("deflate", kept(Encoding::Deflate, None)),
            ("identity/1", kept(Encoding::Identity, Some(1))),
            ("deflate/4294967295", kept(Encoding::Deflate, Some(u32::MAX))),
            ("deflate/3;format=cbor", labelled("format=cbor")),
            ("deflate/3;format=cbor;key=a;key=b", labelled("format=cbor;key=a;key=b")),
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
