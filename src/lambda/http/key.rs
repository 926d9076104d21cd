//! Reads the `Idempotency-Key` header: a Structured Field String (RFC 9651, section 3.3.3), or the bare token
//! that clients send in practice.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, request::Parts};

use crate::{
    error::{Error, ErrorKind},
    key::{Key, quoted},
};

/// A test of a request, such as whether it needs a key.
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The part of a request that a key comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// The header.
    #[default]
    Header,
    /// The API's own key source: fields of the body, or a closure.
    Request,
}

impl Origin {
    /// The entry point's name in the scope. Each origin has its own entry point, so the key `17` from a header and the
    /// key `17` from a body identify two operations.
    pub(super) fn via(self) -> &'static str {
        match self {
            Self::Header => "http",
            Self::Request => "http-body",
        }
    }
}

/// The headers that hold keys, and the keys' form.
#[derive(Clone, Debug)]
pub(super) struct KeyRules {
    /// The header, and its aliases.
    pub(super) names: Vec<HeaderName>,
    /// Whether a key must be a quoted string. If it must, a bare token is refused.
    pub(super) quoted: bool,
    /// Whether a key must be a UUID.
    pub(super) uuid: bool,
    /// The smallest number of characters that a key may have.
    pub(super) shortest: usize,
}

impl Default for KeyRules {
    fn default() -> Self {
        Self {
            names: vec![HeaderName::from_static("idempotency-key")],
            quoted: false,
            uuid: false,
            shortest: 0,
        }
    }
}

impl KeyRules {
    /// The key in `headers`, if there is one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if there are two keys, or the key is malformed, empty, blank, too short or too long. A
    /// request with an unreadable key must never be treated like a request without a key.
    pub(super) fn read(&self, headers: &HeaderMap) -> Result<Option<Key>, Error> {
        let mut found: Option<Key> = None;
        for name in &self.names {
            let Some(key) = self.read_one(headers, name)? else { continue };
            match &found {
                Some(other) if *other != key => {
                    return Err(invalid(name, "has a different key than another header; send only one key"));
                }
                _ => found = Some(key),
            }
        }
        Ok(found)
    }

    fn read_one(&self, headers: &HeaderMap, name: &HeaderName) -> Result<Option<Key>, Error> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(invalid(name, "appears more than once; send it once"));
        }
        let text = parse(value, self.quoted).map_err(|why| invalid(name, why))?;
        if text.len() < self.shortest {
            return Err(invalid(name, "has a shorter key than this API accepts; send a longer one"));
        }
        if self.uuid && !is_uuid(&text) {
            return Err(invalid(name, "isn't a UUID"));
        }
        Key::new(text).map(Some)
    }
}

fn parse(value: &HeaderValue, only_quoted: bool) -> Result<String, &'static str> {
    let text = value.to_str().map_err(|_| "has bytes that aren't visible ASCII")?;
    let text = text.trim_matches(|c| c == ' ' || c == '\t');
    match text.strip_prefix('"') {
        Some(rest) => quoted(rest),
        None if only_quoted => Err("isn't a quoted string"),
        None if text.chars().all(is_bare) => Ok(text.to_owned()),
        None => Err("isn't a quoted string or a bare token; send exactly one key, in quotes"),
    }
}

/// Whether a bare key may contain `c`: visible ASCII, except the characters that have a meaning in the header's syntax.
fn is_bare(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '"' | ',' | ';' | '\\')
}

/// Whether this is a UUID as RFC 9562 writes it (section 4), in upper or lower case.
fn is_uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let mut groups = text.split('-');
    lengths.into_iter().all(|length| {
        groups
            .next()
            .is_some_and(|group| group.len() == length && group.bytes().all(|b| b.is_ascii_hexdigit()))
    }) && groups.next().is_none()
}

fn invalid(name: &HeaderName, why: &str) -> Error {
    Error::new(ErrorKind::InvalidKey, format!("the {name} header {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(rules: &KeyRules, lines: &[(&'static str, &[u8])]) -> Result<Option<String>, ErrorKind> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        rules.read(&headers).map(|key| key.map(|key| key.as_str().to_owned())).map_err(|error| error.kind())
    }

    fn read_all(values: &[&[u8]]) -> Result<Option<String>, ErrorKind> {
        let lines: Vec<_> = values.iter().map(|value| ("idempotency-key", *value)).collect();
        read_as(&KeyRules::default(), &lines)
    }

    #[test]
    fn quoted_and_bare_keys_are_equal() {
        let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        assert_eq!(read_all(&[uuid.as_bytes()]), Ok(Some(uuid.into())));
        assert_eq!(read_all(&[format!("\"{uuid}\"").as_bytes()]), Ok(Some(uuid.into())));
        assert_eq!(read_all(&[br#""a \"b\" \\ c""#]), Ok(Some(r#"a "b" \ c"#.into())));
        assert_eq!(read_all(&[b"  k  "]), Ok(Some("k".into())));
        assert_eq!(read_all(&[]), Ok(None));
    }

    #[test]
    fn unreadable_keys_are_refused_and_never_ignored() {
        let long = [b'x'; 256];
        let malformed: [&[u8]; 16] = [
            b"",
            b"\"\"",
            b"\"   \"",
            b"a,b",
            b"\"a\", \"b\"",
            b"\"a",
            b"a\"",
            b"\"a\";v=1",
            b"a b",
            b"\"a\\n\"",
            b"\\",
            "\u{e9}".as_bytes(),
            b"\"\xff\"",
            b"\"a\tb\"",
            b"k;v=1",
            &long,
        ];
        for value in malformed {
            assert_eq!(read_all(&[value]), Err(ErrorKind::InvalidKey), "{}", value.escape_ascii());
        }
        assert_eq!(read_all(&[b"k", b"k"]), Err(ErrorKind::InvalidKey));
    }

    #[test]
    fn keys_are_case_sensitive() {
        assert_ne!(read_all(&[b"K"]), read_all(&[b"k"]));
    }

    /// The same cases as the HTTP working group's test vectors for strings: each character alone, each character
    /// escaped, and strings cut short.
    #[test]
    fn quoted_strings_are_structured_field_strings() {
        let parsed = |text: &str| quoted(text).ok();
        for byte in 0..=127_u8 {
            let c = char::from(byte);
            let plain = (0x20..0x7f).contains(&byte) && c != '"' && c != '\\';
            assert_eq!(parsed(&format!("{c}\"")).is_some(), plain, "{byte:#x}");
            let escapable = c == '"' || c == '\\';
            assert_eq!(parsed(&format!("\\{c}\"")), escapable.then(|| c.to_string()), "\\ {byte:#x}");
        }
        assert_eq!(parsed("foo bar\""), Some("foo bar".into()));
        assert_eq!(parsed("\""), Some(String::new()), "a valid string, but not a valid key");
        assert_eq!(parsed("   \""), Some("   ".into()), "a valid string, but not a valid key");
        assert_eq!(parsed("b\\\"a\\\\r\""), Some("b\"a\\r".into()));
        assert_eq!(parsed(&format!("{}\"", "foo ".repeat(64))), Some("foo ".repeat(64)));
        for cut in ["", "foo", "foo \\", "foo \\,\"", "foo \\\"", "f\u{fc}\u{fc}\"", "\\\t foo\"", "a\" b\""]
        {
            assert_eq!(parsed(cut), None, "{cut}");
        }
        assert_eq!(read_all(&[b"'foo'"]), Ok(Some("'foo'".into())), "single quotes belong to a bare token");
        assert_eq!(
            read_all(&[b"\"foo", b"bar\""]),
            Err(ErrorKind::InvalidKey),
            "two header lines are two keys"
        );
    }

    #[test]
    fn strict_mode_accepts_only_quoted_strings() {
        let strict = KeyRules { quoted: true, ..KeyRules::default() };
        let read = |value: &[u8]| read_as(&strict, &[("idempotency-key", value)]);
        assert_eq!(read(b"\"k\""), Ok(Some("k".into())));
        // Structured fields of other types: a token, an integer, a boolean, a byte sequence, a date, an empty field.
        for other in [&b"k"[..], b"123", b"?1", b":aGk=:", b"@1", b""] {
            assert_eq!(read(other), Err(ErrorKind::InvalidKey), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn key_formats_can_be_required() {
        let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        let read =
            |rules: &KeyRules, value: &str| read_as(rules, &[("idempotency-key", value.as_bytes())]).is_ok();
        let of_length = |shortest| KeyRules { shortest, ..KeyRules::default() };
        assert!(read(&of_length(36), uuid) && !read(&of_length(37), uuid));
        let uuids = KeyRules { uuid: true, ..KeyRules::default() };
        assert!(read(&uuids, uuid) && read(&uuids, &uuid.to_uppercase()));
        for no in ["8e03978e40d543ddbc936894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f932g", "k"] {
            assert!(!read(&uuids, no), "{no}");
        }
        assert!(!read(&uuids, &format!("{uuid}-")) && !read(&uuids, &uuid[1..]));
    }

    #[test]
    fn aliases_with_differing_keys_are_refused() {
        let mut rules = KeyRules::default();
        rules.names.push(HeaderName::from_static("x-idempotency-key"));
        let read = |lines: &[(&'static str, &[u8])]| read_as(&rules, lines);
        assert_eq!(read(&[("x-idempotency-key", b"k")]), Ok(Some("k".into())));
        assert_eq!(read(&[("idempotency-key", b"k"), ("x-idempotency-key", b"\"k\"")]), Ok(Some("k".into())));
        for other in [&b"l"[..], b"", b"K"] {
            let lines = [("idempotency-key", &b"k"[..]), ("x-idempotency-key", other)];
            assert_eq!(read(&lines), Err(ErrorKind::InvalidKey));
        }
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read_all(&[]), Ok(None), "no alias by default");
    }
}
