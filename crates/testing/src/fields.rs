//! The fields of an event's JSON, and the same event with one of them changed.

mod source;

use std::sync::Arc;

use serde_json::Value;

/// The maximum number of an event's fields that get a variant.
pub(super) const MOST: usize = 80;

/// The event with one field changed.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// The field's JSON Pointer. If a string holds JSON, the pointer continues into that JSON.
    pub(super) field: String,
    pub(super) json: Arc<str>,
}

/// One step into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Name(String),
    Place(usize),
    /// The JSON inside a string.
    Inside,
}

/// Returns one variant of the event per field, with only that field changed. Fields of a JSON body come first.
pub(super) fn variants(json: &str) -> Vec<Variant> {
    let Ok(event) = serde_json::from_str::<Value>(json) else { return Vec::new() };
    let mut paths = paths(&event);
    // Fields of a JSON body come first: the sender sets them, not an AWS service.
    paths.sort_by_key(|path| !path.iter().any(|part| matches!(part, Part::Inside)));
    let changed = paths.into_iter().take(MOST).filter_map(|path| {
        let mut event = event.clone();
        change(&mut event, &path, json)?;
        Some(Variant { field: pointer(&path), json: event.to_string().into() })
    });
    changed.collect()
}

/// An event that the source could send as another event, with one field changed.
#[derive(Clone, Debug)]
pub(super) struct OtherEvent {
    pub(super) field: String,
    pub(super) json: Arc<str>,
    /// The same event with the ids of the first one, if the event has ids.
    pub(super) with_same_ids: Option<Arc<str>>,
}

/// Returns the variants that a source could send as another event: without the fields that the source sets, such as
/// times, and with other ids.
pub(super) fn other_events(json: &str) -> Vec<OtherEvent> {
    let Ok(event) = serde_json::from_str::<Value>(json) else { return Vec::new() };
    let mut paths = paths(&event);
    paths.sort_by_key(|path| !path.iter().any(|part| matches!(part, Part::Inside)));
    let content = paths.into_iter().take(MOST).filter(|path| source::is_content(&event, path));
    let changed = content.filter_map(|path| {
        let mut event = event.clone();
        change(&mut event, &path, json)?;
        let plain: Arc<str> = event.to_string().into();
        for id in source::ids(&event, &path) {
            change(&mut event, &id, json);
        }
        let whole: Arc<str> = event.to_string().into();
        let with_same_ids = (plain != whole).then_some(plain);
        Some(OtherEvent { field: pointer(&path), json: whole, with_same_ids })
    });
    changed.collect()
}

/// Returns how many fields have no variant, because the event has more than [`MOST`].
pub(super) fn left_out(json: &str) -> usize {
    serde_json::from_str(json).map_or(0, |event: Value| paths(&event).len().saturating_sub(MOST))
}

fn paths(event: &Value) -> Vec<Vec<Part>> {
    let mut paths = Vec::new();
    collect(event, &mut Vec::new(), &mut paths);
    paths
}

fn collect(value: &Value, path: &mut Vec<Part>, paths: &mut Vec<Vec<Part>>) {
    let mut below = |part: Part, value: &Value| {
        path.push(part);
        collect(value, path, paths);
        path.pop();
    };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| below(Part::Name(name.clone()), value))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, item)| below(Part::Place(place), item))
        }
        Value::String(text) => match inside(text) {
            Some(value) => below(Part::Inside, &value),
            None => paths.push(path.clone()),
        },
        Value::Number(_) | Value::Bool(_) => paths.push(path.clone()),
        Value::Null => {}
    }
}

fn inside(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(|value: &Value| value.is_object() || value.is_array())
}

fn change(value: &mut Value, path: &[Part], event: &str) -> Option<()> {
    match path {
        [] => {
            // In a batch, another record may already have the changed value. In that case, change the value again.
            let mut other = changed(value)?;
            for _ in 0..5 {
                if !event.contains(other.to_string().trim_matches('"')) {
                    break;
                }
                other = changed(&other)?;
            }
            *value = other;
        }
        [Part::Name(name), rest @ ..] => change(value.get_mut(name)?, rest, event)?,
        [Part::Place(place), rest @ ..] => change(value.get_mut(*place)?, rest, event)?,
        [Part::Inside, rest @ ..] => {
            let mut within = inside(value.as_str()?)?;
            change(&mut within, rest, event)?;
            *value = Value::String(within.to_string());
        }
    }
    Some(())
}

/// Returns another value of the same form. In a string, the last letter or digit changes.
fn changed(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Bool(is) => Value::Bool(!is),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number.checked_add(1)?),
            (_, Some(number)) => Value::from(number.checked_sub(1)?),
            _ => Value::from(number.as_f64()? + 1.0),
        },
        Value::String(text) => {
            let (at, last) = text.char_indices().rev().find(|(_, c)| c.is_ascii_alphanumeric())?;
            let other = match last {
                '0'..='8' | 'a'..='y' | 'A'..='Y' => char::from_u32(last as u32 + 1)?,
                '9' => '0',
                'z' => 'a',
                _ => 'A',
            };
            let mut text = text.clone();
            text.replace_range(at..=at, other.encode_utf8(&mut [0; 4]));
            Value::String(text)
        }
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    })
}

fn pointer(path: &[Part]) -> String {
    let mut text = String::new();
    for part in path {
        match part {
            Part::Name(name) => text.push_str(&format!("/{}", name.replace('~', "~0").replace('/', "~1"))),
            Part::Place(place) => text.push_str(&format!("/{place}")),
            Part::Inside => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_changed_once() {
        let event = r#"{"id":"a9","body":"{\"cents\":12}","is":true,"none":null,"list":[1.5]}"#;
        let all: Vec<String> =
            variants(event).iter().map(|one| format!("{} {}", one.field, one.json)).collect();
        assert_eq!(
            all,
            [
                r#"/body/cents {"body":"{\"cents\":13}","id":"a9","is":true,"list":[1.5],"none":null}"#,
                r#"/id {"body":"{\"cents\":12}","id":"a0","is":true,"list":[1.5],"none":null}"#,
                r#"/is {"body":"{\"cents\":12}","id":"a9","is":false,"list":[1.5],"none":null}"#,
                r#"/list/0 {"body":"{\"cents\":12}","id":"a9","is":true,"list":[2.5],"none":null}"#,
            ]
        );
    }
}
