//! Reads the `Idempotency-Key` header: a Structured Field String (RFC 9651, section 3.3.3), or the bare
//! token that clients really send.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// The key in `headers`, if there is one. `"k"` and `k` are one key.
///
/// # Errors
///
/// [`ErrorKind::InvalidKey`] if there is more than one, or it is malformed, empty, blank or too long: a
/// key that cannot be read must never become a request without one.
pub(super) fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Key>, Error> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(name, "is there more than once; send one"));
    }
    let text = parse(value).map_err(|why| invalid(name, why))?;
    Key::new(text).map(Some)
}

fn parse(value: &HeaderValue) -> Result<String, &'static str> {
    let text = value.to_str().map_err(|_| "has bytes that are not visible ASCII")?;
    let text = text.trim_matches(|c| c == ' ' || c == '\t');
    match text.strip_prefix('"') {
        Some(rest) => quoted(rest),
        None if text.chars().all(is_bare) => Ok(text.to_owned()),
        None => Err("is neither a quoted string nor a bare token; quote it, and send only one"),
    }
}

/// The rest of a Structured Field String, after its opening quote. Parameters are not taken: they would
/// look like part of the key and not be.
fn quoted(rest: &str) -> Result<String, &'static str> {
    let mut key = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err("has a backslash that escapes neither a quote nor a backslash"),
            },
            Some(c @ ' '..='~') => key.push(c),
            Some(_) => return Err("has a character that a quoted string may not have"),
            None => return Err("has no closing quote"),
        }
    }
    match chars.next() {
        None => Ok(key),
        Some(_) => Err("has something after the closing quote"),
    }
}

/// What a bare key may be made of: visible ASCII, but nothing that would be syntax.
fn is_bare(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '"' | ',' | ';' | '\\')
}

fn invalid(name: &HeaderName, why: &str) -> Error {
    Error::new(ErrorKind::InvalidKey, format!("the {name} header {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("idempotency-key");

    fn read_all(values: &[&[u8]]) -> Result<Option<String>, ErrorKind> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers, &NAME).map(|key| key.map(|key| key.as_str().to_owned())).map_err(|error| error.kind())
    }

    #[test]
    fn quoted_and_bare_are_one_key() {
        let uuid = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        assert_eq!(read_all(&[uuid.as_bytes()]), Ok(Some(uuid.into())));
        assert_eq!(read_all(&[format!("\"{uuid}\"").as_bytes()]), Ok(Some(uuid.into())));
        assert_eq!(read_all(&[br#""a \"b\" \\ c""#]), Ok(Some(r#"a "b" \ c"#.into())));
        assert_eq!(read_all(&[b"  k  "]), Ok(Some("k".into())));
        assert_eq!(read_all(&[]), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_never_ignored() {
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
}
