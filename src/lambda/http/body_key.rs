//! Takes the key of a request that has no key header: from the request's body, or from the API's closure.

use std::{any::Any, error::Error as StdError, fmt, sync::Arc};

use ::http::{header, request::Parts};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::value::RawValue;

use super::{
    BoxError, HttpLayer,
    key::{Origin, Predicate},
    problem::{Problem, ProblemKind},
    websocket,
};
use crate::{
    error::{Error, ErrorKind},
    internal::KeyFieldsExt as _,
    key::Key,
    key_fields::KeyFields,
    observe,
    run::shadow,
};

type Derive = dyn Fn(&Parts, &[u8]) -> Result<Option<Key>, Error> + Send + Sync;

/// The source of a key for requests without the header.
#[derive(Clone)]
pub(super) enum KeySource {
    /// [`HttpLayer::key_fields`].
    Fields(KeyFields),
    /// [`HttpLayer::key`].
    Closure(Arc<Derive>),
}

impl KeySource {
    /// The request's key, if it has one.
    fn key_of(&self, request: &Parts, body: &[u8]) -> Result<Option<Key>, Error> {
        let fields = match self {
            Self::Closure(key) => return key(request, body),
            Self::Fields(fields) => fields,
        };
        // If the content type isn't JSON, the body decides: some clients send JSON as `text/plain`, for example. A form
        // or a file has no fields, and so no key.
        let is_json = || serde_json::from_slice::<&RawValue>(body).is_ok();
        if body.trim_ascii().is_empty() || !(may_be_json(request) || is_json()) {
            return Ok(None);
        }
        fields.key_of(body)
    }

    /// The field that the client has to correct when there's no valid key, for the problem's `field`.
    fn field_to_correct(&self, body: &[u8]) -> Option<String> {
        match self {
            Self::Closure(_) => None,
            Self::Fields(fields) => fields.field_to_correct(body).map(|field| field.as_str().to_owned()),
        }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fields(fields) => fields.fmt(f),
            Self::Closure(_) => f.write_str("Closure"),
        }
    }
}

/// A request's body, and its key if it has one.
pub(super) struct Keyed<B> {
    pub(super) key: Option<(Key, Origin)>,
    pub(super) body: Payload<B>,
}

/// A request's body. The layer reads it once: for the key, or else for the fingerprint.
pub(super) enum Payload<B> {
    Unread(B),
    /// A body of Lambda's own type. It's complete, and stays in the form in which it arrived: text or bytes.
    Whole(B),
    Read(Bytes),
}

impl<B> Payload<B>
where
    B: http_body::Body + From<Vec<u8>> + 'static,
    B::Error: Into<BoxError>,
{
    /// Reads the body, unless it was read before.
    ///
    /// # Errors
    ///
    /// The problem for a body that is too large or breaks off.
    pub(super) async fn read(self, most: usize) -> Result<Self, ProblemKind> {
        let Self::Unread(body) = self else { return Ok(self) };
        // Lambda passes complete bodies, as text or as bytes. A handler may treat the two differently, so the body
        // keeps its form.
        if let Some(whole) = whole(&body) {
            return if whole.len() > most { Err(ProblemKind::BodyTooLarge) } else { Ok(Self::Whole(body)) };
        }
        match Limited::new(body, most).collect().await {
            Ok(collected) => Ok(Self::Read(collected.to_bytes())),
            Err(error) if is_over_limit(&*error) => Err(ProblemKind::BodyTooLarge),
            Err(_) => Err(ProblemKind::BodyUnreadable),
        }
    }

    /// The body's bytes. Empty if the body isn't of Lambda's own type and hasn't been read.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Unread(body) | Self::Whole(body) => whole(body).unwrap_or_default(),
            Self::Read(bytes) => bytes,
        }
    }

    /// The body, for the handler.
    pub(super) fn into_body(self) -> B {
        match self {
            Self::Unread(body) | Self::Whole(body) => body,
            Self::Read(bytes) => Vec::from(bytes).into(),
        }
    }
}

/// Whether the body is over this layer's limit or over the limit of a layer outside, which wraps its error.
fn is_over_limit(error: &(dyn StdError + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_over_limit)
}

/// The bytes of a body of Lambda's own type.
fn whole<B: 'static>(body: &B) -> Option<&[u8]> {
    (body as &dyn Any).downcast_ref::<lambda_http::Body>().map(|body| &**body)
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Returns the request's body and its key. The key is from the header, or else from the API's own source. There's
    /// no key if the request has none, or isn't protected.
    ///
    /// # Errors
    ///
    /// The problem, if a required key is missing, or the key or the body can't be read.
    pub(super) async fn keyed<B>(&self, parts: &Parts, body: B) -> Result<Keyed<B>, Problem>
    where
        B: http_body::Body + From<Vec<u8>> + 'static,
        B::Error: Into<BoxError>,
    {
        let body = Payload::Unread(body);
        let passes = |passes: &Predicate| passes(parts);
        if !self.config.methods.contains(websocket::method(parts))
            || self.config.passes.as_ref().is_some_and(passes)
        {
            return Ok(Keyed { key: None, body });
        }
        let of_header = match self.config.keys.read(&parts.headers) {
            Ok(key) => key,
            Err(error) => return self.keyless(&error, Origin::Header, None, body),
        };
        let (key, body) = match (of_header, &self.config.key) {
            (Some(key), _) => (Some((key, Origin::Header)), body),
            (None, None) => (None, body),
            (None, Some(source)) => {
                let body = body.read(self.most_body()).await?;
                match source.key_of(parts, body.bytes()) {
                    Ok(key) => (key.map(|key| (key, Origin::Request)), body),
                    Err(error) => {
                        let field = source.field_to_correct(body.bytes());
                        return self.keyless(&unusable(error), Origin::Request, field, body);
                    }
                }
            }
        };
        if key.is_none() && self.config.required.as_ref().is_some_and(|is_required| is_required(parts)) {
            return match &self.config.key {
                None => self.keyless(
                    &missing("the request has no Idempotency-Key header"),
                    Origin::Header,
                    None,
                    body,
                ),
                Some(source) => {
                    let field = source.field_to_correct(body.bytes());
                    self.keyless(&missing("the request has no key"), Origin::Request, field, body)
                }
            };
        }
        Ok(Keyed { key, body })
    }

    /// Passes on a request without a usable key if idempotency isn't enforced.
    ///
    /// # Errors
    ///
    /// The problem, if idempotency is enforced.
    fn keyless<B>(
        &self,
        error: &Error,
        origin: Origin,
        field: Option<String>,
        body: Payload<B>,
    ) -> Result<Keyed<B>, Problem> {
        if shadow::lets_pass(self.idempotency.driver(), error.kind().as_str()) {
            return Ok(Keyed { key: None, body });
        }
        observe::refused_unasked(error);
        Err(Problem::from(error).of(origin).about(field))
    }
}

fn missing(message: &'static str) -> Error {
    Error::new(ErrorKind::MissingKey, message)
}

/// Turns the error for an invalid body into one for an invalid key: the mistake is the client's, not the API's.
fn unusable(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid => Error::new(ErrorKind::InvalidKey, error.to_string()),
        _ => error,
    }
}

/// Whether the content type is JSON (RFC 6839, section 3.1), or missing.
pub(super) fn may_be_json(parts: &Parts) -> bool {
    let Some(content_type) = parts.headers.get(header::CONTENT_TYPE) else { return true };
    let essence = content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    matches!(essence.as_str(), "application/json" | "text/json") || essence.ends_with("+json")
}
