//! The fingerprint of a request: the parts that must match when its key is used again.

use http::request::Parts;

use super::{body_key::may_be_json, config::Config, path, query};
use crate::{
    fingerprint::{Fingerprint, FingerprintBuilder},
    internal::FingerprintExt as _,
    selector,
};

/// The fingerprint of a request with this body. `given` is the path from the closure of [`HttpLayer::path`], if any.
///
/// [`HttpLayer::path`]: super::HttpLayer::path
pub(super) fn fingerprint(config: &Config, parts: &Parts, given: Option<&str>, body: &[u8]) -> Fingerprint {
    let path = given.unwrap_or_else(|| match config.api_name {
        Some(_) => path::of_route(parts),
        None => path::whole(parts),
    });
    let builder = Fingerprint::builder("http").part("method", parts.method.as_str()).part("path", path);
    let pairs = query::compared(parts).into_iter().filter(|(name, _)| !config.ignores_query(name));
    let mut builder =
        pairs.fold(builder, |builder, (name, value)| builder.part("name", name).part("value", value));
    for name in &config.fingerprinted_headers {
        for value in parts.headers.get_all(name) {
            builder = builder.part("header", name.as_str()).part("value", value.as_bytes());
        }
    }
    compared_body(config, parts, body, builder)
}

/// Adds the body as the API compares it.
pub(super) fn compared_body(
    config: &Config,
    parts: &Parts,
    body: &[u8],
    builder: FingerprintBuilder,
) -> Fingerprint {
    match config.fingerprinted_fields.as_deref().and_then(|fields| selector::found_in(fields, body)) {
        Some(found) => found.into_iter().fold(builder, FingerprintBuilder::field).finish(),
        None if config.raw_body || !may_be_json(parts) => builder.part("body", body).finish(),
        None => builder.json_or_bytes("body", body).finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Selector;

    fn of(method: &str, uri: &str, body: &[u8]) -> Fingerprint {
        let (parts, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        fingerprint(&Config::default(), &parts, None, body)
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
            fingerprint(&Config { api_name: Some("shop".into()), ..Config::default() }, &parts, None, b"")
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
            fingerprint(&config, &parts, None, body.as_bytes())
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

    #[test]
    fn jmespath_selects_fields_too() {
        let fields = ["/id", "lines[].cents", "json(note).by"].map(|field| Selector::new(field).unwrap());
        let config = Config { fingerprinted_fields: Some(fields.into()), ..Config::default() };
        let of = |body: &str| {
            let (parts, ()) = http::Request::post("/").body(()).unwrap().into_parts();
            fingerprint(&config, &parts, None, body.as_bytes())
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
                fingerprint(&config, &parts, None, body.as_bytes())
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
            fingerprint(config, &request.body(()).unwrap().into_parts().0, None, b"")
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
}
