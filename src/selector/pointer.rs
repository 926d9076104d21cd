//! JSON Pointer (RFC 6901), on JSON as it was sent: what it points at is text, with its numbers as they were.

use std::{borrow::Cow, collections::HashMap};

use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind};

/// A JSON Pointer that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer(String);

impl Pointer {
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is neither empty nor begins with `/`, or has a `~` that escapes nothing.
    pub(super) fn new(pointer: &str) -> Result<Self, Error> {
        let is_escaped = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if (pointer.is_empty() || pointer.starts_with('/')) && is_escaped {
            Ok(Self(pointer.to_owned()))
        } else {
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "`{pointer}` is no JSON Pointer; write it as `/order/id`, with ~0 for ~ and ~1 for /"
                ),
            ))
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// What it points at in `json`, if there is such a thing.
    pub(super) fn find<'j>(&self, json: &'j RawValue) -> Option<&'j str> {
        let mut at = json;
        for token in self.0.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            at = match at.get().as_bytes().first()? {
                // A name with an escape in it is no slice of the text.
                b'{' => serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(at.get())
                    .ok()?
                    .remove(&*token)?,
                b'[' => *serde_json::from_str::<Vec<&RawValue>>(at.get()).ok()?.get(index(&token)?)?,
                _ => return None,
            };
        }
        Some(at.get())
    }
}

/// Digits without a zero in front.
fn index(token: &str) -> Option<usize> {
    let is_number =
        token == "0" || !token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| token.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'j>(pointer: &str, json: &'j str) -> Option<&'j str> {
        Pointer::new(pointer).unwrap().find(serde_json::from_str(json).unwrap())
    }

    /// The document and the pointers of RFC 6901, section 5.
    #[test]
    fn the_examples_of_the_rfc() {
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
    fn what_is_not_there_is_not_found() {
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
    fn numbers_stay_as_they_were() {
        assert_eq!(find("/n", r#"{"n": 18446744073709551617.10}"#), Some("18446744073709551617.10"));
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for wrong in ["a", "a/b", "/~", "/~2", "/a~"] {
            assert_eq!(Pointer::new(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
