//! [`KeyFields`]: builds a key from fields of an event.

use std::borrow::Cow;
use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::{Key, MAX_KEY_BYTES},
    selector::{Selector, names_something},
};

/// The fields of an event that its key is built from.
///
/// # Naming a field
///
/// A field is named by a JSON Pointer (RFC 6901), such as `/order/id`, or, with the feature `jmespath`, by a
/// JMESPath expression, such as `order.id` or `json(body).order.id`. A name that's empty or begins with `/` is a
/// pointer; any other name is an expression. The layers' `fingerprint_fields` accept the same names.
///
/// Values are exact: an id above 2^53 or an amount of `10.50` isn't rounded. Besides the
/// [specification's](https://jmespath.org/specification.html) functions, JMESPath has three more here, which decode
/// fields of queue and stream events. Each also has a name with `powertools_` in front:
///
/// | function | decodes a string to |
/// |---|---|
/// | `json` | the JSON that it holds |
/// | `base64` | the text that it holds in Base64 |
/// | `base64_gzip` | the text that it holds in Base64, compressed with gzip |
///
/// JMESPath doesn't distinguish an absent field from `null`. Selected values are exact, and so are `to_string` and
/// `to_number`. But JMESPath compares and calculates in 64-bit floats, and treats nearly equal numbers as equal: a
/// filter can't tell two successive integers above 2^51 apart, and `sum` and similar functions round. So compare ids in
/// a filter only if they're strings.
///
/// A JMESPath search reads and decodes at most 16 MiB and creates at most 262,144 values, since each value takes
/// many times the memory of its text. Beyond these limits, the search fails. A JSON Pointer has no such limit, and
/// needs no extra memory.
///
/// # From fields to a key
///
/// - A string counts as its content, a number or a boolean as its text. `0` and `false` are keys, and the
///   string `"7"` is the same key as the number `7`.
/// - An array or an object becomes a [`Fingerprint`], whose stored form is the key. So does a string that has control
///   characters, is longer than a key may be, or looks like a fingerprint itself. Several fields become one
///   fingerprint, in which an absent field counts as null.
/// - An absent field, null or a blank string is a **missing key**, and never a key that events share. Several
///   fields, an array or an object are a missing key too, if every value in them is absent, null or blank.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use lambda_idempotency::KeyFields;
///
/// let order = KeyFields::new(["/order/id"])?;
/// let key = order.key_of(br#"{"order": {"id": "order-17"}}"#)?;
/// assert_eq!(key.unwrap().as_str(), "order-17");
/// assert!(order.key_of(br#"{"order": {"id": null}}"#)?.is_none());
///
/// let line = KeyFields::new(["/order/id", "/line"])?;
/// assert_eq!(line.key_of(br#"{"order": {"id": "order-17"}, "line": 2}"#)?.unwrap().as_str().len(), 66);
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyFields {
    fields: Vec<Selector>,
    /// The first `required` fields must have a value.
    required: usize,
    /// The fields that must match when the key is used again; `None` means the event's payload.
    compared: Option<Vec<Selector>>,
    /// The event's source, if the key needs it because the fields don't contain it.
    source: Option<String>,
    /// The rest of a key that this library names.
    known: Option<Arc<Known>>,
}

/// A key that this library names.
#[derive(Debug)]
struct Known {
    /// The name of its function in [`keys`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/keys/index.html).
    name: &'static str,
    /// The list whose only element the key identifies.
    list: Option<Selector>,
    /// The key of the same source's events where they have another form, for events that lack this key's fields.
    otherwise: Option<KeyFields>,
}

impl KeyFields {
    /// Builds keys from [these fields](Self#naming-a-field). Their order counts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a field's name is neither a valid JSON Pointer nor a valid JMESPath expression, or
    /// calls an unknown function, or there are no fields.
    pub fn new<'a>(fields: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let fields = fields.into_iter().map(Selector::new).collect::<Result<Vec<_>, _>>()?;
        if fields.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the key has no fields; name at least one"));
        }
        Ok(Self { fields, required: 0, compared: None, source: None, known: None })
    }

    /// Treats the key as missing if any of its fields is absent, null or blank. By default, the key is missing only if
    /// all of its fields are.
    #[must_use]
    pub fn all_required(self) -> Self {
        Self { required: self.fields.len(), ..self }
    }

    /// Builds keys from fields that this library itself names by JSON Pointers: required ones, then optional ones. The
    /// key's function in [`keys`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/keys/index.html) has this name.
    pub(crate) fn known(name: &'static str, required: &[&'static str], optional: &[&'static str]) -> Self {
        let fields = required.iter().chain(optional);
        let fields = fields.filter_map(|field| Selector::new(field).ok()).collect();
        let known = Known { name, list: None, otherwise: None };
        Self { fields, required: required.len(), compared: None, source: None, known: Some(Arc::new(known)) }
    }

    /// Refuses events in which this list has several elements, since the key identifies only the first one. If an event
    /// lacks the key's fields, its key comes from `otherwise`.
    pub(crate) fn of_only(self, list: &'static str, otherwise: Option<Self>) -> Self {
        let name = self.name().unwrap_or_default();
        let known = Known { name, list: Selector::new(list).ok(), otherwise };
        Self { known: Some(Arc::new(known)), ..self }
    }

    /// The name of the key's function in [`keys`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/keys/index.html), if this library names the key.
    pub(crate) fn name(&self) -> Option<&'static str> {
        self.known.as_ref().map(|known| known.name)
    }

    /// Compares only these fields, for a source whose deliveries of one event differ in other fields.
    pub(crate) fn comparing(self, fields: &[&'static str]) -> Self {
        Self { compared: crate::selector::some_of(fields.iter().copied()).ok(), ..self }
    }

    /// Adds the event's source to the key, so that two sources share no keys.
    pub(crate) fn of_source(self, source: String) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Treats the key as missing if one of its first `count` fields is missing.
    pub(crate) fn requiring(self, count: usize) -> Self {
        Self { required: count.min(self.fields.len()), ..self }
    }

    /// The number of fields that must have a value. They're the first ones.
    pub(crate) fn required(&self) -> usize {
        self.required
    }

    /// Like [`comparing`](Self::comparing), but for names that may be invalid.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a field's name isn't valid.
    pub(crate) fn comparing_these<'a>(
        self,
        fields: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        Ok(Self { compared: Some(crate::selector::some_of(fields)?), ..self })
    }

    /// The fields that must match when the key is used again; `None` means the event's payload.
    pub(crate) fn compared(&self) -> Option<&[Selector]> {
        self.compared.as_deref()
    }

    /// The names of the fields, as the caller gave them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(Selector::as_str)
    }

    /// The first field that can't be looked up, or else the first that's absent or blank.
    pub(crate) fn field_to_correct(&self, json: &[u8]) -> Option<&Selector> {
        let found: Vec<_> = self.fields.iter().map(|field| (field, field.find(json))).collect();
        let unreadable = found.iter().find(|(_, found)| found.is_err());
        let is_there = |found: &Result<Option<Cow<'_, str>>, _>| {
            found.as_ref().is_ok_and(|value| value.as_deref().is_some_and(names_something))
        };
        let absent = || found.iter().find(|(_, found)| !is_there(found));
        unreadable.or_else(absent).map(|(field, _)| *field)
    }

    /// Reads the key from `json`, if it has one. A key from [`keys`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/keys/index.html) brings the fields that its page
    /// lists as compared: a [batch](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/batch/index.html) whose closure returns the key compares these fields of `json`,
    /// in place of the whole record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `json` isn't JSON, a name on a pointer's path can't be read or appears twice, a
    /// JMESPath function can't use its argument, or the search exceeds its limits. Also for a key from
    /// [`keys`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/lambda/keys/index.html) that identifies one element of a list, if the list has several. The error doesn't
    /// quote `json`.
    pub fn key_of(&self, json: &[u8]) -> Result<Option<Key>, Error> {
        return Ok(self.found_in(json)?.map(|(key, fields)| match fields.fingerprint_of(json) {
            Some(compared) => key.comparing(compared.digest()),
            None => key,
        }));
    }

    /// Says why `json` has no key: which of its fields are absent, null or blank, and which names are there instead.
    pub(crate) fn absence(&self, json: &[u8]) -> String {
        let needed = &self.fields[..if self.required == 0 { self.fields.len() } else { self.required }];
        let is_there = |field: &Selector| {
            field.find(json).is_ok_and(|value| value.as_deref().is_some_and(names_something))
        };
        let absent = needed.iter().filter(|field| !is_there(field)).take(3);
        let why = absent.map(|field| field.absence(json)).collect::<Vec<_>>();
        if why.is_empty() { "its fields are absent".to_owned() } else { why.join("; ") }
    }

    /// Reads the key from `json`, with the fields that gave it.
    pub(crate) fn found_in(&self, json: &[u8]) -> Result<Option<(Key, &Self)>, Error> {
        self.check_list(json)?;
        let otherwise = self.known.as_ref().and_then(|known| known.otherwise.as_ref());
        match (self.own_key_of(json)?, otherwise) {
            (Some(key), _) => Ok(Some((key, self))),
            (None, Some(otherwise)) => otherwise.found_in(json),
            (None, None) => Ok(None),
        }
    }

    /// Checks that the list whose element the key identifies has only one.
    fn check_list(&self, json: &[u8]) -> Result<(), Error> {
        let Some((list, known)) = self.known.as_ref().and_then(|known| known.list.as_ref().zip(Some(known)))
        else {
            return Ok(());
        };
        let found = list.find(json)?;
        let elements =
            found.and_then(|found| serde_json::from_str::<Vec<serde::de::IgnoredAny>>(&found).ok());
        match elements.map_or(0, |elements| elements.len()) {
            0 | 1 => Ok(()),
            count => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "`{}` has {count} elements, but the key of `{}` identifies only one, so the others would get lost. \
                     Make each element its own operation. If the elements are a queue's messages, handle them as a \
                     batch",
                    list.as_str(),
                    known.name
                ),
            )),
        }
    }

    /// The fingerprint of the fields that must match when the key is used again. `None` if that's the whole payload.
    fn fingerprint_of(&self, json: &[u8]) -> Option<Fingerprint> {
        crate::selector::fingerprint_of(self.compared()?, json, "fields")
    }

    fn own_key_of(&self, json: &[u8]) -> Result<Option<Key>, Error> {
        let found = self.fields.iter().map(|field| field.find(json)).collect::<Result<Vec<_>, _>>()?;
        let is_there = |value: &Option<Cow<'_, str>>| value.as_deref().is_some_and(names_something);
        if !found.iter().any(is_there) || !found.iter().take(self.required).all(is_there) {
            return Ok(None);
        }
        if let ([Some(value)], None) = (found.as_slice(), &self.source) {
            // A string that looks like a digest could equal another value's digest, so it's hashed too.
            let text = text_of(value).filter(|text| Fingerprint::from_stored(text).is_none());
            return Ok(Some(match text.map(Key::new) {
                Some(Ok(key)) => key,
                _ => digest(Fingerprint::of_json(value.as_bytes())?)?,
            }));
        }
        let begun = match &self.source {
            Some(source) => Fingerprint::builder("key of a source").part("source", source),
            None => Fingerprint::builder("key"),
        };
        let whole = found
            .iter()
            .fold(begun, |whole, value| whole.json_or_bytes("field", value.as_deref().unwrap_or("null")));
        digest(whole.finish()).map(Some)
    }
}

impl Key {
    /// Reads the key from a field of `json`, if the field is there. [`KeyFields`] has the rules, and takes several
    /// fields. To read many texts, build a [`KeyFields`] once.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::Key;
    ///
    /// let key = Key::from_json(r#"{"order_id": 17}"#, "/order_id")?;
    /// assert_eq!(key, Some(Key::new("17")?));
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`], as for [`KeyFields::new`] and [`KeyFields::key_of`].
    pub fn from_json(json: impl AsRef<[u8]>, field: &str) -> Result<Option<Self>, Error> {
        KeyFields::new([field])?.key_of(json.as_ref())
    }
}

fn digest(fingerprint: Fingerprint) -> Result<Key, Error> {
    Key::new(fingerprint.to_string())
}

/// The text of a string, number or boolean, unless it's certainly too long for a key.
fn text_of(value: &str) -> Option<String> {
    match value.as_bytes().first()? {
        b'{' | b'[' => None,
        // One byte of content takes at most six bytes when it's escaped.
        b'"' if value.len() > 6 * MAX_KEY_BYTES + 2 => None,
        b'"' => serde_json::from_str(value).ok(),
        _ => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparing_selects_the_compared_fields() {
        let fields = KeyFields::known("known", &["/id"], &[]);
        assert!(fields.compared().is_none(), "`None` means the payload");
        let fields = fields.comparing(&["/detail", "/source"]);
        let compared = fields.compared().unwrap().iter().map(Selector::as_str).collect::<Vec<_>>();
        assert_eq!(compared, ["/detail", "/source"]);
    }

    #[test]
    fn changing_one_setting_keeps_the_others() {
        let fields = KeyFields::known("known", &["/id", "/part"], &[]).of_source("queue".into());
        assert_eq!(fields.clone().requiring(1).required(), 1);
        assert_eq!(fields.clone().requiring(9).required(), 2, "there are only two fields");
        let compared = fields.requiring(0).comparing_these(["/amount"]).unwrap();
        assert_eq!((compared.required(), compared.compared().unwrap()[0].as_str()), (0, "/amount"));
        assert_eq!(compared.source.as_deref(), Some("queue"));
    }

    #[test]
    fn longest_escaped_key_is_read() {
        let escaped = |count: usize| format!("\"{}\"", "\\u0041".repeat(count));
        assert_eq!(text_of(&escaped(MAX_KEY_BYTES)), Some("A".repeat(MAX_KEY_BYTES)));
        assert_eq!(text_of(&escaped(MAX_KEY_BYTES + 1)), None);
    }

    fn key(fields: &[&str], json: &str) -> Option<String> {
        let key = KeyFields::new(fields.iter().copied()).unwrap().key_of(json.as_bytes()).unwrap();
        key.map(|key| key.as_str().to_owned())
    }

    #[test]
    fn scalars_keep_their_text() {
        for (json, text) in [
            (r#"{"a": "order-17"}"#, "order-17"),
            (r#"{"a": "caf\u00e9"}"#, "café"),
            (r#"{"a": 0}"#, "0"),
            (r#"{"a": -1.50}"#, "-1.50"),
            (r#"{"a": 18446744073709551617}"#, "18446744073709551617"),
            (r#"{"a": false}"#, "false"),
            (r#"{"a": "7"}"#, "7"),
            (r#"{"a": 7}"#, "7"),
            (r#"{"a": " x "}"#, " x "),
        ] {
            assert_eq!(key(&["/a"], json).as_deref(), Some(text), "{json}");
        }
    }

    #[test]
    fn absent_fields_leave_the_key_missing() {
        for json in [
            "{}",
            r#"{"a": null}"#,
            r#"{"a": ""}"#,
            r#"{"a": " \t\n"}"#,
            r#"{"a": []}"#,
            r#"{"a": {}}"#,
            r#"{"a": [null, "", {"b": null}, [ ]]}"#,
            r#"{"a": { "b" : null } }"#,
            r#"{"b": 1}"#,
        ] {
            assert_eq!(key(&["/a"], json), None, "{json}");
            assert_eq!(key(&["/a", "/a", "/c"], json), None, "{json}");
        }
        let all = KeyFields::new(["/a", "/b"]).unwrap().all_required();
        assert!(all.key_of(br#"{"a": 1, "b": " "}"#).unwrap().is_none());
        assert!(all.key_of(br#"{"a": 1, "b": 0}"#).unwrap().is_some());
        assert_eq!(KeyFields::new([]).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn keys_of_several_fields_are_distinct() {
        let jsons = [
            r#"{"a": "1", "b": "2"}"#,
            r#"{"a": "2", "b": "1"}"#,
            r#"{"a": "12"}"#,
            r#"{"b": "12"}"#,
            r#"{"a": "1,2"}"#,
            r#"{"a": 1, "b": "2"}"#,
            r#"{"a": 1.0, "b": "2"}"#,
            r#"{"a": ["1", "2"]}"#,
            r#"{"a": 0}"#,
            r#"{"a": false}"#,
        ];
        let keys: std::collections::HashSet<_> =
            jsons.iter().map(|json| key(&["/a", "/b"], json).unwrap()).collect();
        assert_eq!(keys.len(), jsons.len());
        assert!(keys.iter().all(|key| key.len() == 66));
        assert_eq!(
            key(&["/a", "/b"], r#"{"a": "1", "b": null}"#),
            key(&["/a", "/b"], r#"{"a": "1"}"#),
            "an absent field counts as null"
        );
        assert_eq!(
            key(&["/a"], r#"{"a": {"x": 1, "y": [2]}}"#),
            key(&["/a"], r#"{"a": {"y":[2],"x":1}}"#),
            "the order of an object's names doesn't matter"
        );
    }

    #[test]
    fn long_or_unprintable_keys_become_digests() {
        let of = |text: &str| key(&["/a"], &serde_json::json!({ "a": text }).to_string()).unwrap();
        assert_eq!(of(&"x".repeat(255)).len(), 255);
        for text in ["x".repeat(256), "x".repeat(10_000), "a\u{0}b".into(), "\u{1f600}".repeat(64)] {
            assert_eq!(of(&text).len(), 66, "{} bytes", text.len());
        }
        assert_ne!(of(&"x".repeat(256)), of(&"x".repeat(257)));
        assert_ne!(of("a\u{0}"), of("a\u{1}"));
        let digest = of(&"x".repeat(256));
        assert_ne!(of(&digest), digest, "a digest that's sent as text gets another key");
    }

    #[test]
    fn invalid_json_is_an_error() {
        let error = Key::from_json("secret", "/a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!format!("{error:?}").contains("secret"));
        assert_eq!(Key::from_json("{}", "a~").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn list_result_becomes_one_key() {
        let both = r#"{"body": "{\"order\": 7, \"line\": 1.50}"}"#;
        let expression = ["json(body).[order, line]"];
        assert_eq!(key(&expression, both).unwrap().len(), 66);
        assert_ne!(key(&expression, both), key(&expression, &both.replace("1.50", "1.5")));
        assert_eq!(key(&expression, r#"{"body": "{\"other\": 7}"}"#), None);
    }
}
