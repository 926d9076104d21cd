//! Adds fields to the replays of a handler of typed events.

use std::{fmt, sync::Arc};

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, value::RawValue};

use crate::run::replay::Replay;

/// A field to add.
type Field = (&'static str, Value);

type Add = dyn Fn(&Replay) -> Vec<Field> + Send + Sync;

/// The closure that [`EventLayer::on_replay`](super::EventLayer::on_replay) sets.
#[derive(Clone, Default)]
pub(super) struct OnReplay(Option<Arc<Add>>);

impl OnReplay {
    pub(super) fn new<A>(add: impl Fn(&Replay) -> A + Send + Sync + 'static) -> Self
    where
        A: IntoIterator<Item = Field>,
    {
        Self(Some(Arc::new(move |replay| add(replay).into_iter().collect())))
    }

    /// Calls the closure for a recorded failure. The fields that the closure returns are dropped, since failures get no
    /// fields.
    pub(super) fn failed(&self, replay: &Replay) {
        if let Some(add) = &self.0 {
            add(replay);
        }
    }

    /// Returns the recorded answer, with the fields that the closure adds.
    pub(super) fn answered(&self, replay: &Replay, answer: Box<RawValue>) -> Box<RawValue> {
        match &self.0 {
            Some(add) => with_fields(answer, add(replay)),
            None => answer,
        }
    }
}

impl fmt::Debug for OnReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "set" } else { "none" })
    }
}

/// Appends the fields that the answer doesn't have yet. The text of the answer's own fields doesn't change. An answer
/// that isn't a JSON object is returned unchanged.
fn with_fields(answer: Box<RawValue>, fields: Vec<Field>) -> Box<RawValue> {
    if fields.is_empty() {
        return answer;
    }
    let text = answer.get();
    let names = serde_json::Deserializer::from_str(text).deserialize_map(Names);
    let (Ok(mut names), Some(begun)) = (names, text.strip_suffix('}')) else { return answer };
    let mut whole = begun.to_owned();
    for (name, value) in fields {
        if names.iter().any(|known| known == name) {
            continue;
        }
        let comma = if names.is_empty() { "" } else { "," };
        whole.push_str(&format!("{comma}{}:{value}", Value::from(name)));
        names.push(name.to_owned());
    }
    whole.push('}');
    RawValue::from_string(whole).unwrap_or(answer)
}

/// The names of an object's fields.
struct Names;

impl<'j> Visitor<'j> for Names {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'j>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = fields.next_key::<String>()? {
            fields.next_value::<IgnoredAny>()?;
            names.push(name);
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_added_without_changing_others() {
        for (answer, expected) in [
            ("{}", r#"{"again":true,"n":1}"#),
            ("{ }", r#"{ "again":true,"n":1}"#),
            (
                r#"{"id": 18446744073709551617, "cents": 1.50}"#,
                r#"{"id": 18446744073709551617, "cents": 1.50,"again":true,"n":1}"#,
            ),
            (r#"{"again":"the handler's","a":{}}"#, r#"{"again":"the handler's","a":{},"n":1}"#),
            (r#"{"\u006e":0}"#, r#"{"\u006e":0,"again":true}"#),
            (r#""}""#, r#""}""#),
            ("[{}]", "[{}]"),
            ("null", "null"),
        ] {
            let answer = RawValue::from_string(answer.to_owned()).unwrap();
            let fields = vec![("again", true.into()), ("n", 1.into()), ("n", 2.into())];
            assert_eq!(with_fields(answer, fields).get(), expected);
        }
    }
}
