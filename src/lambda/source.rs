//! Reads the fields of a delivered record, and its source.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Returns the part of a source's ARN that stays the same.
///
/// Scopes and fingerprints contain this part. A Kinesis consumer's ARN changes when someone registers the consumer
/// again, and a table's stream gets another ARN when someone enables it again. So the part leaves out the consumer and
/// the table's stream. It keeps everything else: a stream or table can have any name, such as `stream` or `consumer`.
pub(super) fn stable(arn: &str) -> &str {
    let mut parts = arn.splitn(6, ':');
    let (Some("arn"), Some(_), Some(service)) = (parts.next(), parts.next(), parts.next()) else {
        return arn;
    };
    // Skips the region and the account, which may be empty.
    let Some(resource) = parts.nth(2) else { return arn };
    let (kind, part) = match service {
        "kinesis" => ("stream", "consumer"),
        "dynamodb" => ("table", "stream"),
        _ => return arn,
    };
    let mut segments = resource.splitn(4, '/');
    match (segments.next(), segments.next(), segments.next(), segments.next()) {
        (Some(of), Some(_), Some(after), Some(rest)) if of == kind && after == part => {
            &arn[..arn.len() - rest.len() - part.len() - "//".len()]
        }
        _ => arn,
    }
}

/// A field's text. Null, a number and every other value count as absent, so that an odd value of a field that the
/// library doesn't need never makes a record unreadable.
#[derive(Debug, Default)]
pub(super) struct Text<'r>(pub(super) Option<Cow<'r, str>>);

impl Text<'_> {
    pub(super) fn into_string(self) -> String {
        self.0.map(Cow::into_owned).unwrap_or_default()
    }
}

impl<'de: 'r, 'r> Deserialize<'de> for Text<'r> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyText)
    }
}

struct AnyText;

impl<'de> Visitor<'de> for AnyText {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Text(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Text(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Text(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Text(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Text(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sent: A) -> Result<Self::Value, A::Error> {
        while sent.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut sent: A) -> Result<Self::Value, A::Error> {
        while sent.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Text(None))
    }
}

/// An object's fields, in the order in which they were sent. A name may occur twice.
#[derive(Default)]
pub(super) struct Fields<'e>(pub(super) Vec<(String, &'e RawValue)>);

impl<'e> Fields<'e> {
    /// The fields of the object `raw`; empty if it isn't an object.
    pub(super) fn of(raw: &'e RawValue) -> Self {
        serde_json::from_str(raw.get()).unwrap_or_default()
    }

    /// The value of the field with this name. `None` if the name occurs twice, since nobody knows which value counts.
    pub(super) fn get(&self, name: &str) -> Option<&'e RawValue> {
        let mut named = self.0.iter().filter(|(known, _)| known == name);
        named.next().filter(|_| named.next().is_none()).map(|(_, value)| *value)
    }

    /// The field's text, if it has one.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'e, str>> {
        serde_json::from_str::<Text<'e>>(self.get(name)?.get()).ok()?.0
    }
}

impl<'e> Deserialize<'e> for Fields<'e> {
    fn deserialize<D: Deserializer<'e>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AllFields)
    }
}

struct AllFields;

impl<'e> Visitor<'e> for AllFields {
    type Value = Fields<'e>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'e>>(self, mut sent: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = sent.next_entry::<String, &'e RawValue>()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of resources: AWS allows letters, digits, `_`, `-` and `.`, and so the ARN's own words.
    const NAMES: [&str; 8] =
        ["orders", "stream", "consumer", "table", "cluster", "a.stream-b_c", "arn", "index"];

    #[test]
    fn sources_keep_their_whole_names() {
        let mut all = std::collections::BTreeSet::new();
        for partition in ["aws", "aws-cn", "aws-us-gov"] {
            for name in NAMES {
                let of =
                    |service: &str, kind: &str| format!("arn:{partition}:{service}:eu-west-1:1:{kind}{name}");
                let (stream, table) = (of("kinesis", "stream/"), of("dynamodb", "table/"));
                assert_eq!(stable(&format!("{stream}/consumer/fast:1795000000")), stream);
                assert_eq!(stable(&format!("{table}/stream/2026-11-01T08:00:00.000")), table);
                let global = format!("arn:{partition}:dynamodb::1:global-table/{name}");
                let cluster = format!("{}/b7a3-2", of("kafka", "cluster/"));
                for whole in [
                    stream,
                    table,
                    global,
                    cluster,
                    of("sqs", ""),
                    of("mq", "broker:"),
                    of("rds", "cluster:"),
                ] {
                    assert_eq!(stable(&whole), whole);
                    assert!(all.insert(whole));
                }
            }
        }
        for whole in [
            "",
            "orders/stream/1",
            "arn:aws:kinesis",
            "arn:aws:kinesis:eu-west-1:1:stream/orders/consumer",
            "arn:aws:dynamodb:eu-west-1:1:table/orders/index/stream/2026",
            "arn:aws:sqs:eu-west-1:1:a/stream/b",
        ] {
            assert_eq!(stable(whole), whole);
        }
    }

    #[test]
    fn odd_values_count_as_absent_texts() {
        for (json, text) in [
            (r#""a\u0062""#, Some("ab")),
            ("17", None),
            ("-1", None),
            ("49590338271490256608559692538361571095921575989136588898", None),
            ("1.5", None),
            ("null", None),
            ("true", None),
            (r#"[1, ["a"]]"#, None),
            (r#"{"a": {"b": 1}}"#, None),
        ] {
            assert_eq!(serde_json::from_str::<Text<'_>>(json).unwrap().0.as_deref(), text, "{json}");
        }
        let fields: Fields<'_> = serde_json::from_str(r#"{"a": 1, "b": "x", "a": 2}"#).unwrap();
        assert_eq!((fields.text("a"), fields.text("b").as_deref()), (None, Some("x")));
    }
}
