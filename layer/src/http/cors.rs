//! The CORS headers of the layer's own answers. The function's answers have the function's own headers, and the library
//! decides which of these a replay keeps.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use lambda_idempotency::lambda::http::EXPOSED_HEADERS;
use serde::Deserialize;
use serde_json::Value;

use crate::{config::Rules, event::Event};

/// Lets the page that sent the request read the layer's own answer, if a setting names the page's origin.
pub(super) fn allow(rules: &Rules, event: &Event, answer: &mut HeaderMap) {
    if rules.cors.is_empty() {
        return;
    }
    answer.insert(header::VARY, HeaderValue::from_name(header::ORIGIN));
    let Some(origin) = listed_origin(rules, event) else { return };
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    // Without this header, a page that sends cookies couldn't read the answer. The answer has no data of the caller.
    answer.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    let [_, others @ ..] = EXPOSED_HEADERS;
    expose(answer, [rules.marker.clone()].into_iter().chain(others));
}

/// Lets the page read the marker of a replay, if the page may read the replay and a setting names the page's origin.
pub(super) fn expose_marker(rules: &Rules, event: &Event, replay: &mut HeaderMap) {
    if replay.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) && listed_origin(rules, event).is_some() {
        expose(replay, [rules.marker.clone()]);
    }
}

/// Adds these names to the headers that pages may read.
fn expose(headers: &mut HeaderMap, names: impl IntoIterator<Item = HeaderName>) {
    let lines = headers.get_all(header::ACCESS_CONTROL_EXPOSE_HEADERS).iter();
    let lines: Vec<_> = lines.filter_map(|line| line.to_str().ok()).filter(|line| !line.is_empty()).collect();
    let all: Vec<_> =
        lines.into_iter().map(str::to_owned).chain(names.into_iter().map(|name| name.to_string())).collect();
    if let Ok(all) = HeaderValue::try_from(all.join(", ")) {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, all);
    }
}

/// The origin of the page that sent the request, if a setting names it.
fn listed_origin(rules: &Rules, event: &Event) -> Option<HeaderValue> {
    if rules.cors.is_empty() {
        return None;
    }
    let origin = origin(&event.body)?;
    rules.cors.contains(&origin).then(|| HeaderValue::try_from(origin).ok()).flatten()
}

/// The origin in the event, which may be unreadable otherwise. `None` if there's none, or if there are several.
fn origin(event: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Headed {
        headers: Option<BTreeMap<String, Value>>,
        multi_value_headers: Option<BTreeMap<String, Value>>,
    }
    let Headed { headers, multi_value_headers } = serde_json::from_slice(event).ok()?;
    let fields = headers.into_iter().chain(multi_value_headers).flatten();
    let mut origins: Vec<_> = fields
        .filter(|(name, _)| name.eq_ignore_ascii_case("origin"))
        .flat_map(|(_, value)| match value {
            Value::Array(values) => values,
            value => vec![value],
        })
        .filter(|value| !value.is_null())
        .collect();
    origins.dedup();
    match origins.as_slice() {
        [Value::String(origin)] => Some(origin.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_found_in_every_form() {
        for (event, found) in [
            (r#"{"headers": {"Origin": "https://a"}}"#, Some("https://a")),
            (r#"{"headers": {"origin": ["https://a"]}}"#, Some("https://a")),
            (
                r#"{"headers": {"origin": "https://a"}, "multiValueHeaders": {"Origin": ["https://a"]}}"#,
                Some("https://a"),
            ),
            (r#"{"headers": null, "multiValueHeaders": {"origin": ["https://a"]}}"#, Some("https://a")),
            (r#"{"multiValueHeaders": {"origin": ["https://a", "https://b"]}}"#, None),
            (r#"{"headers": {"origin": "https://a"}, "multiValueHeaders": {"origin": ["https://b"]}}"#, None),
            (r#"{"headers": {"x-origin": "https://a"}}"#, None),
            (r#"{"headers": {"origin": null}}"#, None),
            ("[]", None),
        ] {
            assert_eq!(origin(event.as_bytes()).as_deref(), found, "{event}");
        }
    }

    #[test]
    fn exposed_headers_are_added() {
        let mut headers = HeaderMap::new();
        for line in ["x-a", "x-b"] {
            headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(line));
        }
        expose(&mut headers, [header::LINK]);
        let all: Vec<_> = headers.get_all(header::ACCESS_CONTROL_EXPOSE_HEADERS).iter().collect();
        assert_eq!(all, ["x-a, x-b, link"]);
    }
}
