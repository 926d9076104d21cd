//! Why a store failed, and whether the write may have been applied anyway.

use std::{borrow::Cow, error::Error as StdError, fmt};

/// The maximum length of a server's message in an error, in bytes. The rest is cut off.
const MAX_MESSAGE_BYTES: usize = 500;

/// The category of a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store can't be reached, is throttled, or doesn't answer, or the credentials have expired.
    Unavailable,
    /// Another transaction is using the record. The write wasn't applied, unless the error is [marked as
    /// ambiguous](StoreError::is_maybe_applied).
    Conflict,
    /// The store rejects the request itself: the table doesn't exist or has another key schema, a permission is
    /// missing, or the credentials are wrong. It may accept the same request later.
    Rejected,
    /// The store never accepts this content, because it's too large for one record or has characters that the store
    /// can't hold. The library then settles without the response.
    Unstorable,
    /// The stored record can't be decoded.
    Corrupt,
}

/// A store's error. Its text and its sources never contain a key, payload or response.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    maybe_applied: bool,
    source: Option<Box<dyn StdError + Send + Sync + 'static>>,
}

impl StoreError {
    /// Creates a definite error of this kind: the write wasn't applied.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), maybe_applied: false, source: None }
    }

    /// Sets whether the error is ambiguous, which means that the write may have been applied anyway.
    #[must_use]
    pub fn maybe_applied(mut self, maybe_applied: bool) -> Self {
        self.maybe_applied = maybe_applied;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync + 'static>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the cause, for an error that repeats this error's sentence.
    pub(crate) fn into_source(self) -> Option<Box<dyn StdError + Send + Sync + 'static>> {
        self.source
    }

    /// The category of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write may have been applied anyway.
    pub fn is_maybe_applied(&self) -> bool {
        self.maybe_applied
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The text of the last error in the chain. The others only wrap it.
pub fn innermost(error: &(dyn StdError + 'static)) -> String {
    let last = std::iter::successors(Some(error), |&error| error.source()).last();
    last.unwrap_or(error).to_string()
}

/// A message's first line, cut to the maximum length. In a message about a wrong signature, the next lines
/// contain the request's canonical form, with the session token.
pub fn sentence(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let mut end = line.len().min(MAX_MESSAGE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_truncated_line() {
        assert_eq!(sentence("short"), "short");
        assert_eq!(
            sentence("the signature is wrong.\n\nx-amz-security-token:secret"),
            "the signature is wrong."
        );
        assert_eq!(sentence(&"é".repeat(400)).len(), 500);
        assert_eq!(sentence(&format!("x{}", "é".repeat(400))).len(), 499);
        assert_eq!(sentence(""), "");
    }
}
