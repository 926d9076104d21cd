//! The [`Fingerprint`]: what must match when a key is used again.
//!
//! ```
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

/// The SHA-256 of the request that must match when a key is used again, and the version of the rules
/// that it was made by.
///
/// # The rules of version 1
///
/// The digest is over the text `lambda-idempotency fingerprint v1`, one letter for what the request is
/// (`J` for JSON, `B` for bytes, `P` for parts), and the request behind it. Lengths are eight bytes, the
/// highest first. They are pinned: a change is a new version, never an edit.
///
/// - **JSON**: one value, which is a tag and what belongs to it. `n`, `t` and `f` are null, true and
///   false, and have nothing. `#` is a number: the length of its text, and its text as it was sent. `"`
///   is a string: the length of its content, and its content in UTF-8, its escapes decoded. `[` and `{`
///   are an array and an object: the SHA-256 of its values one behind the other; an object's are its
///   members in the order of their keys' bytes, each as its key (a string) and its value. Keys that occur twice keep
///   their order among themselves; none is dropped.
/// - **Bytes**: their length, and the bytes.
/// - **Parts**: the length of the purpose and the purpose; then every part as its tag, the length of its
///   label, its label, and what belongs to it. `b` is bytes: their length, and the bytes. `j` is JSON:
///   the digest of its own fingerprint.
///
/// A string may hold half of a surrogate pair (`"\ud800"`), which no UTF-8 can say. It is taken as the
/// three bytes that UTF-8's scheme has for its number (WTF-8), which no other string contains.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    digest: [u8; 32],
}

impl Fingerprint {
    /// The fingerprint with this digest, made by the rules of version 1.
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self { digest }
    }

    /// The fingerprint that was stored as `text`: `1:` and 64 hexadecimal digits.
    pub fn from_stored(text: &str) -> Option<Self> {
        text.strip_prefix("1:").and_then(parse_hex).map(Self::from_digest)
    }

    /// The fingerprint of a JSON text: the order of an object's keys, white space and the way in which a
    /// string is escaped do not matter; all else does.
    ///
    /// Numbers count by their exact text: `1`, `1.0` and `1e0` are three. To read them as numbers would
    /// round large ones, and two different ids would be one.
    ///
    /// It takes one pass over the text, and does not depend on which features of `serde_json` the rest
    /// of the build switches on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `text` is not JSON, or is nested more than 127 deep, which is as deep as
    /// `serde_json` reads by default. The error says where, and holds nothing of the text.
    pub fn of_json(text: &[u8]) -> Result<Self, Error> {
        let mut hash = started(b'J');
        json::update(&mut hash, text)?;
        Ok(Self::from_hash(hash))
    }

    /// The fingerprint of what `value` serialises to: that JSON text's own.
    ///
    /// A value that was read from the request has lost what its type leaves out; where the request's own
    /// text is at hand, [`of_json`](Self::of_json) compares all of it. What has no order, such as a
    /// `HashSet`, serialises to an array in a new order every time: sort it first. (A map's order does
    /// not matter.)
    ///
    /// ```
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
    /// [`ErrorKind::Invalid`] if `value` cannot be serialised as JSON, such as a map whose keys are not
    /// strings, holds NaN or an infinity, which JSON would show as `null`, or is nested more than 127 deep.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let text = finite::to_json(value).map_err(|why| {
            Error::new(ErrorKind::Invalid, format!("the payload has no fingerprint: {why}; nothing ran"))
        })?;
        let mut hash = started(b'J');
        json::update_valid(&mut hash, &text)?;
        Ok(Self::from_hash(hash))
    }

    /// The fingerprint of exactly these bytes. It never equals a JSON text's, not even of the same text.
    ///
    /// ```
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

    /// Begins a fingerprint of several labelled parts. The same parts for another purpose have another
    /// fingerprint.
    pub fn builder(purpose: &str) -> FingerprintBuilder {
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

/// Makes a [`Fingerprint`] of several parts, each with its label; their order counts.
///
/// ```
/// use lambda_idempotency::Fingerprint;
///
/// let request = |body: &[u8]| {
///     Fingerprint::builder("http").part("method", "POST").part("path", "/payments").json_or_bytes("body", body).finish()
/// };
/// assert_eq!(request(br#"{"a":1,"b":2}"#), request(br#"{ "b": 2, "a": 1 }"#));
/// assert_ne!(request(b"not JSON"), request(b"not  JSON"));
/// ```
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

    /// Adds `body` as [`Fingerprint::of_json`] takes it, or, if that refuses it, exactly its bytes. A
    /// body that is JSON never matches one that is not.
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

    /// The fingerprint of the parts.
    pub fn finish(self) -> Fingerprint {
        Fingerprint::from_hash(self.hash)
    }

    fn open(&mut self, tag: u8, label: &str) {
        self.hash.update([tag]);
        update_prefixed(&mut self.hash, label.as_bytes());
    }
}

/// A hash that has taken the version of the rules and what is to come.
fn started(what: u8) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(b"lambda-idempotency fingerprint v1");
    hash.update([what]);
    hash
}
