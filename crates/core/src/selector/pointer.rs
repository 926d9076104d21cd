//! JSON Pointer (RFC 6901), over JSON as it was sent: the result is text, so its numbers are unchanged.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind};

/// A valid JSON Pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer(String);

impl Pointer {
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a nonempty `pointer` doesn't begin with `/`, or if a `~` isn't followed by `0` or `1`.
    pub(super) fn new(pointer: &str) -> Result<Self, Error> {
        let is_escaped = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if (pointer.is_empty() || pointer.starts_with('/')) && is_escaped {
            Ok(Self(pointer.to_owned()))
        } else {
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "`{pointer}` isn't a JSON Pointer; write it as `/order/id`, with ~0 for ~ and ~1 for /"
                ),
            ))
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Finds the value in `json` that this pointer names, if there is one.
    ///
    /// # Errors
    ///
    /// If a name on the path can't be read, or appears twice.
    pub(super) fn find<'j>(&self, json: &'j RawValue) -> Result<Option<&'j str>, serde_json::Error> {
        let (_, at, is_all) = self.deepest(json)?;
        Ok(is_all.then_some(at))
    }

    /// Follows the path as far as `json` has it. Returns that part of the path, its value, and whether it's the whole path.
    ///
    /// # Errors
    ///
    /// Same as [`find`](Self::find).
    pub(super) fn deepest<'j>(&self, json: &'j RawValue) -> Result<(&str, &'j str, bool), serde_json::Error> {
        let (mut at, mut length) = (json, 0);
        for token in self.0.split('/').skip(1) {
            let step = token.len() + 1;
            let token = token.replace("~1", "/").replace("~0", "~");
            let mut reader = serde_json::Deserializer::from_str(at.get());
            let found = match at.get().as_bytes().first() {
                Some(b'{') => Member(&token).deserialize(&mut reader)?,
                Some(b'[') => match index(&token) {
                    Some(nth) => Element(nth).deserialize(&mut reader)?,
                    None => None,
                },
                _ => None,
            };
            let Some(found) = found else { return Ok((&self.0[..length], at.get(), false)) };
            (at, length) = (found, length + step);
        }
        Ok((&self.0, at.get(), true))
    }
}

/// Finds an object's member with this name.
struct Member<'n>(&'n str);

impl<'j> DeserializeSeed<'j> for Member<'_> {
    type Value = Option<&'j RawValue>;

    fn deserialize<D: Deserializer<'j>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'j> Visitor<'j> for Member<'_> {
    type Value = Option<&'j RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'j>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = members.next_key()? {
            if name != self.0 {
                members.next_value::<IgnoredAny>()?;
            } else if found.replace(members.next_value()?).is_some() {
                // If a name appears twice, parsers disagree on which value counts.
                return Err(A::Error::custom("a name appears twice"));
            }
        }
        Ok(found)
    }
}

/// A member's name. It's an owned string if the name has an escape, since the decoded name isn't a slice of the
/// text.
#[derive(serde::Deserialize)]
struct Name<'j>(#[serde(borrow)] Cow<'j, str>);

/// Finds an array's element at this index.
struct Element(usize);

impl<'j> DeserializeSeed<'j> for Element {
    type Value = Option<&'j RawValue>;

    fn deserialize<D: Deserializer<'j>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'j> Visitor<'j> for Element {
    type Value = Option<&'j RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = elements.next_element()?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// Parses an array index: digits without a leading zero.
fn index(token: &str) -> Option<usize> {
    let is_number =
        token == "0" || !token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| token.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'j>(pointer: &str, json: &'j str) -> Option<&'j str> {
        Pointer::new(pointer).unwrap().find(serde_json::from_str(json).unwrap()).unwrap()
    }

    /// The document and the pointers of RFC 6901, section 5.
    #[test]
    fn rfc_examples_resolve() {
        let json = r#"{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
            "k\"l": 6, " ": 7, "m~n": 8}"#;
        assert_eq!(find("", json), Some(json));
        for (pointer, found) in [
            ("/foo", r#"["bar", "baz"]"#),
            ("/foo/0", "\"bar\""),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(find(pointer, json), Some(found), "{pointer}");
        }
    }

    #[test]
    fn absent_values_are_not_found() {
        for (pointer, json) in [
            ("/a", "{}"),
            ("/a/b", r#"{"a": 1}"#),
            ("/0", "[]"),
            ("/01", "[1, 2]"),
            ("/-", "[1]"),
            ("/+0", "[1]"),
            ("/99999999999999999999", "[1]"),
        ] {
            assert_eq!(find(pointer, json), None, "{pointer} in {json}");
        }
    }

    #[test]
    fn unreadable_json_is_not_absent() {
        for (pointer, json) in [
            ("/amount/cents", r#"{"amount": {"\ud800": 0, "cents": 5}}"#),
            ("/cents", r#"{"cents": 5, "cents": 500}"#),
            ("/cents", r#"{"cents": 5, "\u0063ents": 500}"#),
        ] {
            let found = Pointer::new(pointer).unwrap();
            assert!(found.find(serde_json::from_str(json).unwrap()).is_err(), "{pointer} in {json}");
        }
        assert_eq!(find("/cents", r#"{"a": 1, "a": 2, "cents": 5}"#), Some("5"), "`a` isn't on the path");
    }

    #[test]
    fn numbers_keep_their_text() {
        assert_eq!(find("/n", r#"{"n": 18446744073709551617.10}"#), Some("18446744073709551617.10"));
    }

    #[test]
    fn invalid_pointers_are_refused() {
        for wrong in ["a", "a/b", "/~", "/~2", "/a~"] {
            assert_eq!(Pointer::new(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
