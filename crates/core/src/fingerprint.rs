//! [`Fingerprint`]: a hash of the parts of a request that must match when its key is used again.
//!
//! ```
//! # extern crate lambda_idempotency_core as lambda_idempotency;
//! use lambda_idempotency::Fingerprint;
//!
//! let sent = Fingerprint::of_json(br#"{"amount": 10, "to": "\u0061nna"}"#)?;
//! assert_eq!(sent, Fingerprint::of_json(br#"{"to":"anna","amount":10}"#)?);
//! assert_ne!(sent, Fingerprint::of_json(br#"{"to":"anna","amount":10.0}"#)?);
//! # Ok::<(), lambda_idempotency::Error>(())
//! ```

mod json;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, ErrorKind},
    finite,
    key::{Hex, parse_hex, update_prefixed},
};

/// The SHA-256 of the parts of a request that must match when its key is used again. The rules for the hash have a
/// version.
///
/// # The rules of version 1
///
/// The digest covers the text `lambda-idempotency fingerprint v1`, one letter for the kind of request (`J`
/// for JSON, `B` for bytes, `P` for parts), then the request. Lengths are eight bytes, big-endian. The rules
/// are pinned: a change is a new version, never an edit.
///
/// - **JSON**: one value, which is a tag and its content. `n`, `t` and `f` are null, true and false, without
///   content. `#` is a number: the length of its text, and its text as it was sent. `"` is a string: the
///   length of its content, and its content in UTF-8 with escapes decoded. `[` and `{` are an array and an
///   object: the SHA-256 of their concatenated values. An object's values are its members, sorted by the
///   bytes of their keys, each as its key (a string) and its value. Keys that occur twice keep their order;
///   none is dropped.
/// - **Bytes**: their length, and the bytes.
/// - **Parts**: the length of the purpose and the purpose, such as `http`; then every part as its tag, the
///   length of its label, its label, and its content. `b` is bytes: their length, and the bytes. `j` is JSON:
///   the digest of its own fingerprint.
///
/// A string may hold half of a surrogate pair (`"\ud800"`), which UTF-8 can't represent. It's encoded as the
/// three bytes that UTF-8's scheme yields for its code point (WTF-8). No other string contains these bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    digest: [u8; 32],
}

impl Fingerprint {
    /// The fingerprint with this digest, made by the rules of version 1.
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self { digest }
    }

    /// The digest.
    pub(crate) const fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Parses a fingerprint that [`Display`](fmt::Display) has shown: `1:` and 64 hexadecimal digits.
    pub fn from_stored(text: &str) -> Option<Self> {
        text.strip_prefix("1:").and_then(parse_hex).map(Self::from_digest)
    }

    /// The stored form in bytes: the version of the rules, and the digest.
    pub(crate) fn to_bytes(self) -> [u8; 33] {
        let mut bytes = [1; 33];
        bytes[1..].copy_from_slice(&self.digest);
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has made. Returns `None` for a version that this release doesn't know.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let digest = bytes.strip_prefix(&[1])?;
        digest.try_into().ok().map(Self::from_digest)
    }

    /// Fingerprints a JSON text. The order of an object's keys, white space and how strings are escaped don't
    /// matter. Everything else does.
    ///
    /// Numbers count by their exact text: `1`, `1.0` and `1e0` are three different values. Parsing them as
    /// numbers would round large ones, and two different ids would match.
    ///
    /// The function hashes the text in one pass. The result doesn't depend on which `serde_json` features the rest of
    /// the build enables.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `text` isn't JSON, or is nested more than 127 deep, which is as deep as
    /// `serde_json` reads by default. The error gives the position, and contains none of the text.
    pub fn of_json(text: &[u8]) -> Result<Self, Error> {
        let mut hash = started(b'J');
        json::update(&mut hash, text)?;
        Ok(Self::from_hash(hash))
    }

    /// Fingerprints the JSON text that `value` serialises to.
    ///
    /// A value that was parsed from the request lacks the fields that its type ignores. If you have the
    /// request's text, [`of_json`](Self::of_json) compares all of it. An unordered collection such as a
    /// `HashSet` serialises in a new order every time: sort it first. (A map's order doesn't matter.)
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Fingerprint;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Order {
    ///     id: u64,
    /// }
    ///
    /// assert_eq!(Fingerprint::of(&Order { id: 7 })?, Fingerprint::of_json(br#"{ "id": 7 }"#)?);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `value` can't be serialised as JSON (a map whose keys aren't strings, for
    /// example), contains NaN or an infinity, which JSON would show as `null`, or is nested more than 127 deep.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let text = finite::to_json(value).map_err(|why| {
            Error::new(ErrorKind::Invalid, format!("the payload has no fingerprint: {why}"))
        })?;
        Self::of_written(&text)
    }

    /// Fingerprints a JSON text that [`finite::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn of_written(text: &str) -> Result<Self, Error> {
        let mut hash = started(b'J');
        json::update_valid(&mut hash, text)?;
        Ok(Self::from_hash(hash))
    }

    /// Fingerprints exactly these bytes. The result never equals the fingerprint of a JSON text, even if the bytes are
    /// that text.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::of_bytes(b"{}"), Fingerprint::of_bytes(b"{}"));
    /// assert_ne!(Fingerprint::of_bytes(b"{}"), Fingerprint::of_bytes(b"{ }"));
    /// ```
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut hash = started(b'B');
        update_prefixed(&mut hash, bytes);
        Self::from_hash(hash)
    }

    /// Begins a fingerprint of several labelled parts. The same parts with another purpose give another
    /// fingerprint.
    pub(crate) fn builder(purpose: &str) -> FingerprintBuilder {
        let mut hash = started(b'P');
        update_prefixed(&mut hash, purpose.as_bytes());
        FingerprintBuilder { hash }
    }

    fn from_hash(hash: Sha256) -> Self {
        Self::from_digest(hash.finalize().into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1:{}", Hex(&self.digest))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(1:{}…)", Hex(&self.digest[..4]))
    }
}

/// Builds a [`Fingerprint`] of several parts, each with a label. The order of the parts matters.
#[derive(Clone, Debug)]
#[must_use]
pub struct FingerprintBuilder {
    hash: Sha256,
}

impl FingerprintBuilder {
    /// Adds exactly these bytes.
    pub fn part(mut self, label: &str, bytes: impl AsRef<[u8]>) -> Self {
        self.open(b'b', label);
        update_prefixed(&mut self.hash, bytes.as_ref());
        self
    }

    /// Adds `body` as JSON like [`Fingerprint::of_json`] or, if that function refuses `body`, exactly its bytes. A body
    /// that is JSON never matches one that isn't.
    pub fn json_or_bytes(mut self, label: &str, body: impl AsRef<[u8]>) -> Self {
        match Fingerprint::of_json(body.as_ref()) {
            Ok(json) => {
                self.open(b'j', label);
                self.hash.update(json.digest);
                self
            }
            Err(_) => self.part(label, body),
        }
    }

    /// Returns the fingerprint of the parts.
    pub fn finish(self) -> Fingerprint {
        Fingerprint::from_hash(self.hash)
    }

    fn open(&mut self, tag: u8, label: &str) {
        self.hash.update([tag]);
        update_prefixed(&mut self.hash, label.as_bytes());
    }
}

/// Starts a hash with the rules' version and the kind of request.
fn started(what: u8) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(b"lambda-idempotency fingerprint v1");
    hash.update([what]);
    hash
}
