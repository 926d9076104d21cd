//! [`Selector`]: names a field of a JSON text, and finds its value exactly as it was sent.

#[cfg(feature = "jmespath")]
mod expression;
/// Without the feature `jmespath`, no expression parses.
#[cfg(not(feature = "jmespath"))]
mod expression {
    use crate::error::{Error, ErrorKind};

    #[derive(Clone)]
    pub(super) enum Expression {}

    impl Expression {
        pub(super) fn new(text: &str) -> Result<Self, Error> {
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "`{text}` isn't a JSON Pointer; write it as `/order/id`, or enable the feature `jmespath` for \
                     expressions"
                ),
            ))
        }

        pub(super) fn as_str(&self) -> &str {
            match *self {}
        }

        pub(super) fn find(&self, _: &[u8]) -> Result<Option<String>, Error> {
            match *self {}
        }
    }
}
mod names;
mod pointer;

use std::{borrow::Cow, fmt};

use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind, place};
use crate::fingerprint::{Fingerprint, FingerprintBuilder};
use expression::Expression;
use pointer::Pointer;

/// Names a field of a JSON text; [`KeyFields`](crate::KeyFields) has the rules.
///
/// The result is JSON, with numbers as they were sent: an id above 2^53 or an amount of `10.50` isn't rounded.
#[derive(Clone)]
pub struct Selector(Kind);

#[derive(Clone)]
enum Kind {
    Pointer(Pointer),
    Expression(Expression),
}

impl Selector {
    /// Parses `text` into a selector.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it's neither a valid JSON Pointer nor a valid JMESPath expression, or calls
    /// an unknown function.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() || text.starts_with('/') {
            return Pointer::new(text).map(Kind::Pointer).map(Self);
        }
        Expression::new(text).map(Kind::Expression).map(Self)
    }

    /// The text that the selector was parsed from.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Kind::Pointer(pointer) => pointer.as_str(),
            Kind::Expression(expression) => expression.as_str(),
        }
    }

    /// Says why the field has no value in `json`: it's null or blank, or it's absent and `json` has other names in its
    /// place. Contains no value, and no name that may be one.
    pub fn absence(&self, json: &[u8]) -> String {
        let name = self.as_str();
        if self.find(json).is_ok_and(|found| found.is_some_and(|found| found != "null")) {
            return format!("`{name}` is blank or empty");
        }
        let Ok(raw) = serde_json::from_slice::<&RawValue>(json) else { return format!("`{name}` is absent") };
        let (parent, value) = match &self.0 {
            Kind::Pointer(pointer) => match pointer.deepest(raw) {
                Ok((_, _, true)) => return format!("`{name}` is null"),
                Ok((parent, value, false)) => (parent, value),
                Err(_) => return format!("`{name}` is absent"),
            },
            Kind::Expression(_) => ("", raw.get()),
        };
        let place = if parent.is_empty() { "the top level".to_owned() } else { format!("`{parent}`") };
        format!("`{name}` is absent: {place} {}", names::listed(value))
    }

    /// Finds the field's value in `json`, as JSON; `None` if the field is absent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `json` isn't JSON, a name on a pointer's path can't be read or appears
    /// twice, a JMESPath function can't use its argument, or the search exceeds its limits. The error
    /// contains none of the text.
    pub fn find<'j>(&self, json: &'j [u8]) -> Result<Option<Cow<'j, str>>, Error> {
        match &self.0 {
            Kind::Pointer(pointer) => {
                let json: &RawValue = serde_json::from_slice(json).map_err(|error| not_json(&error))?;
                let found = pointer.find(json).map_err(|_| {
                    let problem = "a name on its path can't be read or appears twice";
                    Error::new(
                        ErrorKind::Invalid,
                        format!("`{}` can't be looked up: {problem}", pointer.as_str()),
                    )
                })?;
                Ok(found.map(Cow::Borrowed))
            }
            Kind::Expression(expression) => Ok(expression.find(json)?.map(Cow::Owned)),
        }
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({})", self.as_str())
    }
}

/// A field, and its value if the field is present.
pub type Found<'a> = (&'a Selector, Option<Cow<'a, str>>);

/// Parses the fields to compare; there must be at least one.
pub fn some_of<'a>(fields: impl IntoIterator<Item = &'a str>) -> Result<Vec<Selector>, Error> {
    let fields = fields.into_iter().map(Selector::new).collect::<Result<Vec<_>, _>>()?;
    if fields.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "no field is selected for comparison; name at least one"));
    }
    Ok(fields)
}

/// Returns the fields' values. `None` if a lookup fails. Also `None` if all values are absent or empty: otherwise, any
/// two texts that lack the fields would match.
pub fn found_in<'a>(fields: &'a [Selector], json: &'a [u8]) -> Option<Vec<Found<'a>>> {
    let found: Result<Vec<_>, _> =
        fields.iter().map(|field| field.find(json).map(|found| (field, found))).collect();
    found.ok().filter(|found| found.iter().flat_map(|(_, found)| found).any(|found| names_something(found)))
}

/// Returns the fingerprint of the fields in `json`. `None` if [`found_in`] finds none of them.
pub fn fingerprint_of(fields: &[Selector], json: &[u8], purpose: &str) -> Option<Fingerprint> {
    let begun = Fingerprint::builder(purpose);
    Some(found_in(fields, json)?.into_iter().fold(begun, FingerprintBuilder::field).finish())
}

impl FingerprintBuilder {
    /// Adds a selected field: its value, or the fact that it's absent.
    pub fn field(self, (field, found): Found<'_>) -> Self {
        match found {
            Some(found) => self.part("field", field.as_str()).json_or_bytes("value", found.as_bytes()),
            None => self.part("absent", field.as_str()),
        }
    }
}

/// Says which names the top level of `json` has. Contains no value, and no name that may be one.
pub fn names_in(json: &[u8]) -> String {
    match serde_json::from_slice::<&RawValue>(json) {
        Ok(raw) => format!("the top level {}", names::listed(raw.get())),
        Err(_) => "its content isn't JSON".to_owned(),
    }
}

/// Whether `value`, which is JSON, contains a number, a boolean or a nonblank string. Null and blank strings identify
/// nothing, and neither do arrays and objects that contain nothing else. The names in an object don't count. The scan
/// takes one pass and doesn't recurse, however deeply `value` is nested.
pub fn names_something(value: &str) -> bool {
    let bytes = value.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'-' | b'0'..=b'9' | b't' | b'f' => return true,
            b'"' => {
                let end = at + length_of_string(&bytes[at..]);
                let behind = bytes[end..].iter().find(|byte| !byte.is_ascii_whitespace());
                if behind != Some(&b':') && !is_blank(&value[at..end]) {
                    return true;
                }
                at = end;
            }
            // Part of `null`, or a character between values.
            _ => at += 1,
        }
    }
    false
}

/// Whether a JSON string contains only white space. A string that can't be decoded isn't blank.
fn is_blank(string: &str) -> bool {
    match string.contains('\\') {
        true => serde_json::from_str::<String>(string).is_ok_and(|text| text.trim().is_empty()),
        false => string.trim_matches('"').trim().is_empty(),
    }
}

/// The length of a JSON string from its opening quote to its closing one.
fn length_of_string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Reports only the position, since the error's own message may quote the JSON.
fn not_json(error: &serde_json::Error) -> Error {
    let place = place(error);
    Error::new(ErrorKind::Invalid, format!("no field can be selected, because the text isn't JSON: {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_differs_from_absent_fields() {
        let id = Selector::new("/id").unwrap();
        assert_eq!(id.find(b"{}").unwrap(), None);
        assert_eq!(id.find(br#"{"id": null}"#).unwrap().as_deref(), Some("null"));
        for text in ["", "secret", "{\"id\": secret}", "{\"id\": 1"] {
            let error = id.find(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
    }

    #[test]
    fn empty_values_are_recognised_in_one_pass() {
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(100_000), "]".repeat(100_000));
        for nothing in [
            "null",
            "\"\"",
            "\" \\t\\u0020\"",
            "[]",
            "{}",
            "[null, \"\", {\"a\": null, \"b\": [ ]}]",
            r#"{"7": null}"#,
            r#"{"true" : ""}"#,
            r#"{"a\"1": null}"#,
            &deep("null"),
            &deep(""),
        ] {
            assert!(!names_something(nothing), "{:.80}", nothing);
        }
        for something in [
            "0",
            "-1",
            "false",
            "true",
            "\"x\"",
            "[null, 0]",
            r#"{"a": {"b": false}}"#,
            r#"{"a": "b"}"#,
            r#"[" ", "\u0061"]"#,
            r#"{"a": "\ud800"}"#,
            &deep("1"),
            &deep("\"x\""),
        ] {
            assert!(names_something(something), "{:.80}", something);
        }
    }
}
