//! The fingerprint of a request: the parts that must match when its key is used again.

use std::borrow::Cow;

use http::request::Parts;
use lambda_http::{RequestExt, aws_lambda_events::query_map::QueryMap, request::RequestContext};

use super::{body_key::may_be_json, config::Config};
use crate::{
    fingerprint::{Fingerprint, FingerprintBuilder},
    selector,
};

/// The fingerprint of a request with this body.
pub(super) fn fingerprint(config: &Config, parts: &Parts, body: &[u8]) -> Fingerprint {
    let builder = Fingerprint::builder("http").part("method", parts.method.as_str());
    let mut builder =
        if config.api_name.is_some() { portable_path(builder, parts) } else { path(builder, parts) };
    for (name, value) in normalised_query(parts.uri.query().unwrap_or_default()) {
        builder = builder.part("name", name).part("value", value);
    }
    for name in &config.fingerprinted_headers {
        for value in parts.headers.get_all(name) {
            builder = builder.part("header", name.as_str()).part("value", value.as_bytes());
        }
    }
    match config.fingerprinted_fields.as_deref().and_then(|fields| selector::found_in(fields, body)) {
        Some(found) => found.into_iter().fold(builder, FingerprintBuilder::field).finish(),
        None if config.raw_body || !may_be_json(parts) => builder.part("body", body).finish(),
        None => builder.json_or_bytes("body", body).finish(),
    }
}

fn path(builder: FingerprintBuilder, parts: &Parts) -> FingerprintBuilder {
    builder.part(
        "path",
        match parts.extensions.raw_http_path() {
            "" => parts.uri.path(),
            raw => raw,
        },
    )
}

/// Adds the path in a form that is the same in every stage, and for REST APIs under every base path of a custom domain.
/// An HTTP API's path begins with the stage, unless the stage is `$default`. A REST API's path begins with the base
/// path, so its resource and parameters are used instead.
fn portable_path(builder: FingerprintBuilder, parts: &Parts) -> FingerprintBuilder {
    match parts.extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV1(context)) => {
            let Some(resource) = &context.resource_path else { return path(builder, parts) };
            let parameters = parts.extensions.path_parameters_ref();
            let mut parameters: Vec<_> = parameters.into_iter().flat_map(QueryMap::iter).collect();
            parameters.sort_unstable();
            let builder = builder.part("resource", resource);
            parameters
                .into_iter()
                .fold(builder, |builder, (name, value)| builder.part("parameter", name).part("value", value))
        }
        Some(RequestContext::ApiGatewayV2(context)) => {
            let raw = parts.extensions.raw_http_path();
            let stage = context.stage.as_deref().unwrap_or_default();
            let rest = raw.strip_prefix('/').and_then(|raw| raw.strip_prefix(stage));
            match rest.filter(|rest| !stage.is_empty() && (rest.is_empty() || rest.starts_with('/'))) {
                Some(rest) => builder.part("path", rest),
                None => path(builder, parts),
            }
        }
        _ => path(builder, parts),
    }
}

/// A name and its value, decoded.
type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The query's pairs, decoded and sorted by name; values of one name keep their order.
fn normalised_query(query: &str) -> Vec<Pair<'_>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<_> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (percent_decoded(name), percent_decoded(value)))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

/// Decodes `%` and `+` as in a form. A `%` without two hex digits after it is literal.
pub(super) fn percent_decoded(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(bytes);
    }
    let digit = |at: usize| bytes.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Selector;

    fn of(method: &str, uri: &str, body: &[u8]) -> Fingerprint {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        fingerprint(&Config::default(), &parts, body)
    }

    #[test]
    fn only_whole_path_segments_count_as_stage() {
        let of = |stage: &str, path: &str| {
            let event = serde_json::json!({
                "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "", "headers": {},
                "requestContext": {
                    "accountId": "1", "apiId": "a", "domainName": "d", "domainPrefix": "p", "requestId": "r",
                    "routeKey": "$default", "stage": stage, "time": "t", "timeEpoch": 1,
                    "http": {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": "::1",
                             "userAgent": "x"}
                },
                "isBase64Encoded": false
            });
            let (parts, _) = lambda_http::request::from_str(&event.to_string()).unwrap().into_parts();
            fingerprint(&Config { api_name: Some("shop".into()), ..Config::default() }, &parts, b"")
        };
        assert_eq!(of("v1", "/v1/payments"), of("v2", "/v2/payments"));
        assert_eq!(of("v1", "/v1"), of("v2", "/v2"));
        assert_ne!(of("v1", "/v10/payments"), of("v2", "/v20/payments"));
    }

    #[test]
    fn only_selected_fields_are_compared() {
        let fields = ["/id", "/amount"].map(|pointer| Selector::new(pointer).unwrap());
        let config = Config { fingerprinted_fields: Some(fields.into()), ..Config::default() };
        let of = |body: &str| {
            let (parts, ()) = http::Request::post("/").body(()).unwrap().into_parts();
            fingerprint(&config, &parts, body.as_bytes())
        };
        let base = of(r#"{"id": "1", "amount": {"cents": 5, "currency": "EUR"}, "at": 1}"#);
        assert_eq!(base, of(r#"{"at": 2, "amount": {"currency":"EUR","cents":5}, "id": "1"}"#));
        for other in [
            r#"{"id": 1, "amount": {"cents": 5, "currency": "EUR"}}"#,
            r#"{"id": "1", "amount": {"cents": 6, "currency": "EUR"}}"#,
            r#"{"id": "1"}"#,
            r#"{"id": "1", "amount": null}"#,
            "{}",
        ] {
            assert_ne!(base, of(other), "{other}");
        }
        assert_ne!(of(r#"{"id": 1}"#), of(r#"{"id": 1, "amount": null}"#), "absent isn't null");
        for (one, other) in [("no JSON", "no JSON either"), ("5", "6"), (r#"{"a": 1}"#, r#"{"a": 2}"#)] {
            assert_ne!(of(one), of(other), "the whole body is compared if no field is found");
        }
    }

    #[cfg(feature = "jmespath")]
    #[test]
    fn jmespath_selects_fields_too() {
        let fields = ["/id", "lines[].cents", "json(note).by"].map(|field| Selector::new(field).unwrap());
        let config = Config { fingerprinted_fields: Some(fields.into()), ..Config::default() };
        let of = |body: &str| {
            let (parts, ()) = http::Request::post("/").body(()).unwrap().into_parts();
            fingerprint(&config, &parts, body.as_bytes())
        };
        let base = of(r#"{"id": 1, "lines": [{"cents": 1.50, "at": 1}], "note": "{\"by\": \"a\"}"}"#);
        assert_eq!(base, of(r#"{"note": "{\"by\":\"a\",\"at\":2}", "lines": [{"cents": 1.50}], "id": 1}"#));
        assert_ne!(base, of(r#"{"id": 1, "lines": [{"cents": 1.5, "at": 1}], "note": "{\"by\": \"a\"}"}"#));
        assert_ne!(base, of(r#"{"id": 1, "lines": [{"cents": 1.50, "at": 1}], "note": "{\"by\": \"b\"}"}"#));
        for fields in [["[order_id, amount]"], ["lines[].amount"]] {
            let fields = fields.map(|field| Selector::new(field).unwrap());
            let config = Config { fingerprinted_fields: Some(fields.into()), ..Config::default() };
            let of = |body: &str| {
                let (parts, ()) = http::Request::post("/").body(()).unwrap().into_parts();
                fingerprint(&config, &parts, body.as_bytes())
            };
            let [one, other] =
                [1, 2].map(|id| of(&format!(r#"{{"orderId": {id}, "lines": [{{"cents": {id}}}]}}"#)));
            assert_ne!(one, other, "the whole body is compared if an expression matches nothing");
        }
        let undecodable = |at: u8| of(&format!(r#"{{"id": 1, "note": "secret", "at": {at}}}"#));
        assert_ne!(
            undecodable(1),
            undecodable(2),
            "the whole body is compared if a field can't be looked up"
        );
    }

    #[test]
    fn only_selected_headers_are_compared() {
        let version = http::HeaderName::from_static("api-version");
        let asked = Config { fingerprinted_headers: vec![version.clone()], ..Config::default() };
        let of = |config: &Config, value: Option<&str>| {
            let mut request = http::Request::post("/").header("traceparent", value.unwrap_or("none"));
            if let Some(value) = value {
                request = request.header(version.clone(), value);
            }
            fingerprint(config, &request.body(()).unwrap().into_parts().0, b"")
        };
        let none = Config::default();
        assert_eq!(of(&none, Some("1")), of(&none, Some("2")));
        assert_eq!(of(&none, Some("1")), of(&asked, None));
        assert_ne!(of(&asked, Some("1")), of(&asked, Some("2")));
        assert_ne!(of(&asked, Some("1")), of(&asked, None));
    }

    #[test]
    fn method_path_query_and_body_are_compared() {
        let base = of("POST", "/a?x=1", b"{}");
        assert_eq!(base, of("POST", "/a?x=1", b" { } "));
        for other in [of("PATCH", "/a?x=1", b"{}"), of("POST", "/a/?x=1", b"{}"), of("POST", "/a?x=2", b"{}")]
        {
            assert_ne!(base, other);
        }
        assert_ne!(base, of("POST", "/a?x=1", b"[]"));
        assert_ne!(of("POST", "/a", b""), of("POST", "/a", b"{}"));
    }

    #[test]
    fn query_order_matters_only_for_repeated_names() {
        assert_eq!(of("POST", "/?a=1&b=2", b""), of("POST", "/?b=2&a=1", b""));
        assert_ne!(of("POST", "/?a=1&a=2", b""), of("POST", "/?a=2&a=1", b""));
        assert_eq!(of("POST", "/?a=x%20y", b""), of("POST", "/?a=x+y", b""));
        assert_ne!(of("POST", "/?a=1%26b=2", b""), of("POST", "/?a=1&b=2", b""));
        assert_ne!(of("POST", "/?ab=", b""), of("POST", "/?a=b", b""));
    }

    #[test]
    fn stray_percent_signs_are_literal() {
        for (text, decoded) in [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("a%41", "aA"), ("%%41", "%A")] {
            assert_eq!(*percent_decoded(text), *decoded.as_bytes());
        }
    }
}
