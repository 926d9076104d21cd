//! The key of one operation, which is drawn at random or stored by the caller, and the header that carries the key.

use http::{Extensions, HeaderMap};
use reqwest::{
    Request,
    header::{HeaderName, HeaderValue},
};

use lambda_idempotency_core::{Error, ErrorKind, Key, internal::key::quoted};

/// A key that this middleware drew and put into a request's extensions. This type distinguishes it from a caller's key.
#[derive(Clone)]
struct Drawn(Key);

/// Removes a drawn key from `extensions`, because its operation has an outcome. If the key stayed, another operation
/// with the same extensions would get that outcome. A caller's key stays.
pub(super) fn forget_drawn(extensions: &mut Extensions) {
    if let Some(Drawn(drawn)) = extensions.remove::<Drawn>()
        && extensions.get::<Key>() == Some(&drawn)
    {
        extensions.remove::<Key>();
    }
}

/// A key that a header can carry: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sendable(Key);

impl Sendable {
    /// Checks that a header can carry this key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if the key contains anything but printable ASCII.
    pub(super) fn new(key: Key) -> Result<Self, Error> {
        match key.as_str().bytes().position(|byte| !matches!(byte, b' '..=b'~')) {
            Some(at) => Err(invalid(format!(
                "the idempotency key has a character at byte {at} that a header can't carry; use printable ASCII"
            ))),
            None => Ok(Self(key)),
        }
    }

    pub(super) fn into_key(self) -> Key {
        self.0
    }

    /// Returns the key of `request`: from its header, from `extensions`, or a new one.
    ///
    /// If the key isn't from the header, this puts it into the header and into `extensions`. A middleware before this
    /// one may send its own copy of the request again. With the same extensions, the copy gets the same key, so it's
    /// the same operation. A drawn key stays in the extensions until its operation has an outcome that's never retried.
    pub(super) fn of(
        request: &mut Request,
        name: &HeaderName,
        is_bare: bool,
        extensions: &mut Extensions,
    ) -> Result<Self, Error> {
        let given = extensions.get::<Key>().cloned().map(Self::new).transpose()?;
        if let Some(sent) = Self::read(request.headers(), name)? {
            if given.is_some_and(|given| given != sent) {
                return Err(invalid(format!(
                    "the request's {name} header and the key in its extensions differ; send only one"
                )));
            }
            if let Some(value) = request.headers_mut().get_mut(name) {
                value.set_sensitive(true);
            }
            return Ok(sent);
        }
        let is_drawn = given.is_none();
        let key = given.map_or_else(|| Key::draw().and_then(Self::new), Ok)?;
        request.headers_mut().insert(name, key.to_header(is_bare)?);
        if is_drawn {
            extensions.insert(Drawn(key.0.clone()));
        }
        extensions.insert(key.0.clone());
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
            None => Key::new(text).and_then(Self::new).map(Some),
            Some(Ok(key)) => Key::new(key).and_then(Self::new).map(Some),
            Some(Err(why)) => Err(invalid(format!("the {name} header {why}"))),
        }
    }

    /// The header's value: a Structured Field String (RFC 9651, section 3.3.3), or the bare key. It's marked as
    /// sensitive.
    fn to_header(&self, is_bare: bool) -> Result<HeaderValue, Error> {
        let value = if is_bare {
            self.bare()?.to_owned()
        } else {
            format!("\"{}\"", self.0.as_str().replace('\\', r"\\").replace('"', r#"\""#))
        };
        let value = HeaderValue::try_from(value);
        let mut value = value.map_err(|_| invalid("the idempotency key doesn't fit into a header".into()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// The key without quotes, if a server would read the same key from it.
    fn bare(&self) -> Result<&str, Error> {
        let text = self.0.as_str();
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

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidKey, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<Sendable>, Error> {
        let name = HeaderName::from_static("idempotency-key");
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_str(value).unwrap());
        }
        Sendable::read(&headers, &name)
    }

    fn sendable(key: &str) -> Result<Sendable, Error> {
        Key::new(key).and_then(Sendable::new)
    }

    #[test]
    fn generated_keys_are_distinct_version_4_uuids() {
        let [one, two] = [(); 2].map(|()| Key::draw().unwrap());
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
            assert_eq!(sendable(bad).err().unwrap().kind(), ErrorKind::InvalidKey, "{bad:?}");
        }
        assert!(sendable(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn keys_round_trip_through_headers() {
        for text in ["order-17", "a b", r#"a "b" \ c"#, r"\", "a,b;c=1", "~!"] {
            let key = sendable(text).unwrap();
            for is_bare in [false, true] {
                let header = key.to_header(is_bare).unwrap();
                assert!(header.is_sensitive());
                assert_eq!(read(&[header.to_str().unwrap()]).unwrap().as_ref(), Some(&key), "{text}");
            }
        }
        for text in [" a", "a ", "\"a", "\"a\""] {
            let key = sendable(text).unwrap();
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
        let key = sendable("secret-17").unwrap();
        let shown = format!("{key:?} {:?}", key.to_header(true).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}
