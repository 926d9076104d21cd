//! The key of one operation: drawn at random, or stored by the caller.

use std::fmt;

use http::{Extensions, HeaderMap};
use reqwest::{
    Request,
    header::{HeaderName, HeaderValue},
};

use crate::{
    error::{Error, ErrorKind},
    key::{Key, quoted, uuid},
    record::random_bits,
};

/// The key of one operation, sent with each attempt: 1 to 255 bytes of printable ASCII, not only blanks.
///
/// Put it into a request with [`with_extension`](reqwest_middleware::RequestBuilder::with_extension). `Debug`
/// doesn't show it: anyone with the key and permission to call gets the operation's response.
///
/// ```
/// use lambda_idempotency::client::OperationKey;
///
/// let key = OperationKey::draw()?;
/// let stored = key.as_str().to_owned();
/// // After a crash:
/// assert_eq!(OperationKey::new(stored)?, key);
/// assert!(OperationKey::new("b\u{fc}cher").is_err());
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OperationKey(Key);

impl OperationKey {
    /// Draws a random UUID (version 4) for a new operation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system returns no random bits.
    pub fn draw() -> Result<Self, Error> {
        random_bits("an operation's key").and_then(|bits| Self::new(uuid(bits, 4)))
    }

    /// Validates `key`: one that was stored, or an existing identifier of the operation, such as an order's
    /// number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if it's empty, blank, over 255 bytes, or contains anything but printable
    /// ASCII.
    pub fn new(key: impl AsRef<str>) -> Result<Self, Error> {
        let key = Key::new(key)?;
        match key.as_str().bytes().position(|byte| !matches!(byte, b' '..=b'~')) {
            Some(at) => Err(invalid(format!(
                "the idempotency key has a character at byte {at} that a header can't carry; use printable ASCII"
            ))),
            None => Ok(Self(key)),
        }
    }

    /// The key as text. Store it, but don't log it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The key of `request`: from its header, from `extensions`, or a new one. The last two are put into both,
    /// so that a middleware before this one can send its own copy of the request again, with the same
    /// extensions, as the same operation.
    pub(super) fn of(
        request: &mut Request,
        name: &HeaderName,
        is_bare: bool,
        extensions: &mut Extensions,
    ) -> Result<Self, Error> {
        let given = extensions.get::<Self>();
        if let Some(sent) = Self::read(request.headers(), name)? {
            if given.is_some_and(|given| *given != sent) {
                return Err(invalid(format!(
                    "the request's {name} header and its OperationKey differ; send only one"
                )));
            }
            if let Some(value) = request.headers_mut().get_mut(name) {
                value.set_sensitive(true);
            }
            return Ok(sent);
        }
        let key = given.cloned().map_or_else(Self::draw, Ok)?;
        request.headers_mut().insert(name, key.to_header(is_bare)?);
        extensions.insert(key.clone());
        Ok(key)
    }

    /// The key in a header that the caller set: quoted, or bare.
    fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, Error> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(invalid(format!("the request has more than one {name} header; send only one")));
        }
        let text = value.to_str().map_err(|_| invalid(format!("the {name} header isn't printable ASCII")))?;
        let text = text.trim_matches([' ', '\t']);
        match text.strip_prefix('"').map(quoted) {
            None => Self::new(text).map(Some),
            Some(Ok(key)) => Self::new(key).map(Some),
            Some(Err(why)) => Err(invalid(format!("the {name} header {why}"))),
        }
    }

    /// The header's value: a Structured Field String (RFC 9651, section 3.3.3), or the bare key. It's marked as
    /// sensitive.
    fn to_header(&self, is_bare: bool) -> Result<HeaderValue, Error> {
        let value = if is_bare {
            self.bare()?.to_owned()
        } else {
            format!("\"{}\"", self.as_str().replace('\\', r"\\").replace('"', r#"\""#))
        };
        let value = HeaderValue::try_from(value);
        let mut value = value.map_err(|_| invalid("the idempotency key doesn't fit into a header".into()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl OperationKey {
    /// The key without quotes, if a server would read the same key from it.
    fn bare(&self) -> Result<&str, Error> {
        let text = self.as_str();
        if text.starts_with('"') || text.trim() != text {
            return Err(invalid(
                "the idempotency key begins with a quote, or begins or ends with a blank, which a bare header can't \
                 carry; use another key, or leave out `bare()`"
                    .into(),
            ));
        }
        Ok(text)
    }
}

impl fmt::Debug for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationKey(<{} bytes>)", self.as_str().len())
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidKey, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<OperationKey>, Error> {
        let name = HeaderName::from_static("idempotency-key");
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_str(value).unwrap());
        }
        OperationKey::read(&headers, &name)
    }

    #[test]
    fn generated_keys_are_distinct_version_4_uuids() {
        let [one, two] = [(); 2].map(|()| OperationKey::draw().unwrap());
        assert_ne!(one, two);
        for key in [one, two] {
            let groups: Vec<_> = key.as_str().split('-').collect();
            assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(groups.concat().bytes().all(|byte| byte.is_ascii_hexdigit()));
            assert!(groups[2].starts_with('4') && groups[3].starts_with(['8', '9', 'a', 'b']), "{groups:?}");
        }
    }

    #[test]
    fn keys_unfit_for_headers_are_refused() {
        for bad in ["", "   ", "a\nb", "a\tb", "b\u{fc}cher", "\u{7f}", &"x".repeat(256)] {
            assert_eq!(OperationKey::new(bad).unwrap_err().kind(), ErrorKind::InvalidKey, "{bad:?}");
        }
        assert!(OperationKey::new("x".repeat(255)).is_ok());
    }

    #[test]
    fn keys_round_trip_through_headers() {
        for text in ["order-17", "a b", r#"a "b" \ c"#, r"\", "a,b;c=1", "~!"] {
            let key = OperationKey::new(text).unwrap();
            for is_bare in [false, true] {
                let header = key.to_header(is_bare).unwrap();
                assert!(header.is_sensitive());
                assert_eq!(read(&[header.to_str().unwrap()]).unwrap().as_ref(), Some(&key), "{text}");
            }
        }
        for text in [" a", "a ", "\"a", "\"a\""] {
            let key = OperationKey::new(text).unwrap();
            assert_eq!(key.to_header(true).unwrap_err().kind(), ErrorKind::InvalidKey, "{text}");
            assert!(key.to_header(false).is_ok());
        }
    }

    #[test]
    fn existing_headers_are_read_quoted_or_bare() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["order-17"]).unwrap(), read(&["  \"order-17\""]).unwrap());
        for bad in [&[""][..], &["\"\""], &["\"open"], &["\"k\";v=1"], &["k", "k"]] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::InvalidKey, "{bad:?}");
        }
    }

    #[test]
    fn debug_hides_the_key() {
        let key = OperationKey::new("secret-17").unwrap();
        let shown = format!("{key:?} {:?}", key.to_header(true).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}
