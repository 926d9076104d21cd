//! What the stores' encodings share: which records need an expiry, and the text of `response_encoding`, which is
//! `omitted` or `ENCODING[/CHUNKS][;LABELS]`.
//!
//! A version of this library that doesn't know a part of the text refuses the record, because it couldn't interpret the
//! response's bytes.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    outcome::{Labels, Outcome, Place, StoredResponse},
    record::{Record, Status},
};

const OMITTED: &str = "omitted";

/// Whether `record` lacks the expiry that its status requires. Only a STARTED record may have none.
pub(super) fn lacks_expiry(record: &Record) -> bool {
    record.expires_at.is_none() && record.status() != Status::Started
}

/// How a response is stored. Its bytes, length and digest aren't included, since they have their own fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The response wasn't stored.
    Omitted,
    Kept {
        /// See [`StoredResponse::deflated`].
        deflated: bool,
        /// How many chunks hold the response; `None` if it's in the record.
        chunks: Option<u32>,
        /// See [`StoredResponse::labels`].
        labels: Option<Arc<String>>,
    },
}

impl Form {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let Outcome::Retained(response) = outcome else { return Self::Omitted };
        Self::Kept {
            deflated: response.deflated,
            chunks: match response.place {
                Place::Inline(_) => None,
                Place::Chunks(count) => Some(count),
            },
            labels: response.labels.clone(),
        }
    }

    /// Parses a text that [`text`](Self::text) wrote. Returns `None` for any other text.
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
        let deflated = match how {
            "identity" => false,
            "deflate" => true,
            _ => return None,
        };
        if let Some(labels) = labels {
            Labels::parse(labels)?;
        }
        Some(Self::Kept { deflated, chunks, labels: labels.map(|labels| Arc::new(labels.into())) })
    }

    pub(super) fn text(&self) -> String {
        let Self::Kept { deflated, chunks, labels } = self else { return OMITTED.to_owned() };
        let mut text = if *deflated { "deflate" } else { "identity" }.to_owned();
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

    /// Builds the outcome. `measures` reads the response's length and digest from `fields`. `kept` reads the
    /// response's bytes, if they're in the record.
    ///
    /// # Errors
    ///
    /// The errors of the closures.
    pub(super) fn outcome<F, E>(
        self,
        fields: &mut F,
        measures: impl FnOnce(&mut F) -> Result<(u64, [u8; 32]), E>,
        kept: impl FnOnce(&mut F) -> Result<Bytes, E>,
    ) -> Result<Outcome, E> {
        let Self::Kept { deflated, chunks, labels } = self else { return Ok(Outcome::Omitted) };
        let (length, sha256) = measures(fields)?;
        let place = match chunks {
            Some(count) => Place::Chunks(count),
            None => Place::Inline(kept(fields)?),
        };
        Ok(Outcome::Retained(StoredResponse { deflated, length, sha256, labels, place }))
    }
}

/// Parses a number as this library writes it. A plain `parse` would also accept a sign and leading zeros.
fn parse_count(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|count: &u32| count.to_string() == digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(deflated: bool, chunks: Option<u32>) -> Form {
        Form::Kept { deflated, chunks, labels: None }
    }

    #[test]
    fn response_encodings_round_trip() {
        let labelled = |labels: &str| Form::Kept {
            deflated: true,
            chunks: Some(3),
            labels: Some(Arc::new(labels.into())),
        };
        for (text, form) in [
            ("omitted", Form::Omitted),
            ("identity", kept(false, None)),
            ("deflate", kept(true, None)),
            ("identity/1", kept(false, Some(1))),
            ("deflate/4294967295", kept(true, Some(u32::MAX))),
            ("deflate/3;format=cbor", labelled("format=cbor")),
            ("deflate/3;format=cbor;key=a;key=b", labelled("format=cbor;key=a;key=b")),
        ] {
            assert_eq!(Form::parse(text), Some(form.clone()), "{text}");
            assert_eq!(form.text(), text);
        }
    }

    #[test]
    fn unknown_response_encodings_are_refused() {
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
