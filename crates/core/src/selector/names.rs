//! Lists the names in a JSON object, for a message about a field that's absent.

use std::{borrow::Cow, collections::BTreeMap};

use serde::de::IgnoredAny;

/// The most names in one list.
const MOST: usize = 8;
/// The length of the longest name that's shown, in bytes.
const LONGEST: usize = 32;

/// Says which names a value has: `has "a" and "b"`. Contains no value. A name that doesn't look like a field's may come
/// from the sender, such as an account's number in a map of accounts, so it's only counted.
pub(super) fn listed(value: &str) -> String {
    match value.as_bytes().first() {
        Some(b'{') => {}
        Some(b'[') => return "is an array".to_owned(),
        _ => return "isn't an object".to_owned(),
    }
    let Ok(members) = serde_json::from_str::<BTreeMap<Cow<'_, str>, IgnoredAny>>(value) else {
        return "can't be read".to_owned();
    };
    if members.is_empty() {
        return "is an empty object".to_owned();
    }
    let shown: Vec<_> = members.keys().filter(|name| is_fields(name)).take(MOST).collect();
    let (more, mut parts) = (members.len() - shown.len(), Vec::new());
    parts.extend(shown.into_iter().map(|name| format!("`{name}`")));
    if more > 0 {
        parts.push(format!("{more} {}", if parts.is_empty() { "other names" } else { "more" }));
    }
    format!("has {}", parts.join(", "))
}

/// Whether a name looks like one that a program gave to a field.
fn is_fields(name: &str) -> bool {
    let is_of_field = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(is_of_field)
        && name.chars().filter(char::is_ascii_digit).count() <= 3
}

#[cfg(test)]
mod tests {
    use super::super::Selector;

    fn absence(field: &str, json: &str) -> String {
        Selector::new(field).unwrap().absence(json.as_bytes())
    }

    #[test]
    fn absent_fields_show_the_names_there() {
        let order = r#"{"order": {"number": 17, "cents": 5}, "id": "secret", "tags": ["secret"], "none": null, "blank": " "}"#;
        for (field, expected) in [
            ("/ID", "`/ID` is absent: the top level has `blank`, `id`, `none`, `order`, `tags`"),
            ("/order/id", "`/order/id` is absent: `/order` has `cents`, `number`"),
            ("/order/id/part", "`/order/id/part` is absent: `/order` has `cents`, `number`"),
            ("/id/part", "`/id/part` is absent: `/id` isn't an object"),
            ("/tags/id", "`/tags/id` is absent: `/tags` is an array"),
            ("/none", "`/none` is null"),
            ("/blank", "`/blank` is blank or empty"),
        ] {
            assert_eq!(absence(field, order), expected);
        }
        assert_eq!(absence("/id", "{}"), "`/id` is absent: the top level is an empty object");
        assert_eq!(absence("/id", "7"), "`/id` is absent: the top level isn't an object");
    }

    #[test]
    fn long_and_strange_names_are_only_counted() {
        let secrets =
            r#"{"4111111111111111": 1, "anna@example.com": 2, "tok_9f86d081884c7d659a2f": 3, "a b": 4}"#;
        assert_eq!(absence("/id", secrets), "`/id` is absent: the top level has 4 other names");
        let one = secrets.replace("a b", "amount");
        assert_eq!(absence("/id", &one), "`/id` is absent: the top level has `amount`, 3 more");
        let many: Vec<_> = ('a'..='z').map(|name| format!("\"{name}\": 1")).collect();
        let many = absence("/id", &format!("{{{}}}", many.join(", ")));
        assert_eq!(
            many,
            "`/id` is absent: the top level has `a`, `b`, `c`, `d`, `e`, `f`, `g`, `h`, 18 more"
        );
    }

    #[test]
    fn absent_expressions_show_the_top_level() {
        assert_eq!(absence("order.id", r#"{"id": 1}"#), "`order.id` is absent: the top level has `id`");
    }
}
