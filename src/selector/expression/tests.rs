use std::io::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};

use super::*;

fn find(expression: &str, json: &str) -> Result<Option<String>, Error> {
    Expression::new(expression).unwrap().find(json.as_bytes())
}

#[track_caller]
fn finds(expression: &str, json: &str, found: &str) {
    assert_eq!(find(expression, json).unwrap().as_deref(), Some(found), "{expression} in {json}");
}

#[test]
fn fields_lists_and_objects_are_found() {
    let json = r#"{"a": {"b": ["x", {"c": true}]}, "é\n": "\u00e9\n", "items": [{"id": 1}, {"id": 2}]}"#;
    finds("a.b[0]", json, "\"x\"");
    finds("a.b[1].c", json, "true");
    finds("a", json, r#"{"b":["x",{"c":true}]}"#);
    finds("items[].id", json, "[1,2]");
    finds("[a.b[0], items[-1].id]", json, r#"["x",2]"#);
    finds("{name: a.b[0], none: nothing}", json, r#"{"name":"x","none":null}"#);
    finds(r#""é\n""#, json, r#""é\n""#);
    for absent in ["nothing", "a.nothing.more", "items[5]", "a[0]"] {
        assert_eq!(find(absent, json).unwrap(), None, "{absent}");
    }
    assert_eq!(find("a", r#"{"a": null}"#).unwrap(), None, "JMESPath has no word for absent");
}

#[test]
fn numbers_are_found_as_they_were_sent() {
    for number in [
        "0",
        "-0",
        "-0.0",
        "1",
        "1.0",
        "1.00",
        "1e0",
        "10.50",
        "9007199254740993",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551617",
        "-9223372036854775809",
        "0.1",
        "1E+2",
        "1e-400",
        "3.141592653589793238462643383279",
    ] {
        finds("n", &format!(r#"{{"n": {number}, "text": "7.70"}}"#), number);
        finds("[[n]]", &format!(r#"{{"n": {number}}}"#), &format!("[[{number}]]"));
        let twice = format!(r#"{{"n": {number}, "m": [{number}]}}"#);
        finds("{n: n, m: m}", &twice, &format!(r#"{{"m":[{number}],"n":{number}}}"#));
    }
}

#[test]
fn a_filter_compares_numbers_as_numbers() {
    let json =
        r#"{"lines": [{"cents": 10.50, "id": "a"}, {"cents": 1e3, "id": "b"}, {"cents": 2, "id": "c"}]}"#;
    finds("lines[?cents > `5`].id", json, r#"["a","b"]"#);
    finds("sum(lines[].cents)", json, "1012.5");
    finds("max(lines[].cents)", json, "1e3");
}

#[test]
fn two_numbers_that_are_one_float_are_not_told_apart_by_a_guess() {
    let json = r#"{"a": 18446744073709551617, "b": 18446744073709551618, "c": 7}"#;
    for expression in ["a", "b", "[c, a]"] {
        let error = find(expression, json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("JSON Pointer") && !error.to_string().contains("1844"), "{error}");
    }
    finds("c", json, "7");
    finds("[a, b]", r#"{"a": 1.0, "b": 1}"#, "[1.0,1]");
}

#[test]
fn what_a_field_holds_is_decoded() {
    let inner = r#"{"id": 18446744073709551617, "at": 1.50}"#;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(inner.as_bytes()).unwrap();
    let event = serde_json::json!({
        "body": inner,
        "data": BASE64_STANDARD.encode(inner),
        "unpadded": BASE64_STANDARD.encode(inner).trim_end_matches('='),
        "logs": BASE64_STANDARD.encode(gzip.finish().unwrap()),
    });
    let event = event.to_string();
    for decode in [
        "json(body)",
        "powertools_json(body)",
        "json(base64(data))",
        "json(base64(unpadded))",
        "json(base64_gzip(logs))",
    ] {
        finds(&format!("{decode}.id"), &event, "18446744073709551617");
        finds(&format!("[{decode}.at]"), &event, "[1.50]");
    }
    finds("powertools_json(powertools_base64(data)).at", &event, "1.50");
    finds("powertools_json(powertools_base64_gzip(logs)).at", &event, "1.50");
}

#[test]
fn what_cannot_be_decoded_fails_and_is_not_quoted() {
    let json = r#"{"secret": "secret 1", "bytes": "/w==", "number": 5}"#;
    for expression in [
        "json(secret)",
        "base64(secret)",
        "base64_gzip(bytes)",
        "base64(bytes)",
        "json(number)",
        "json(nothing)",
        "abs(secret)",
        "json(@)",
    ] {
        let error = find(expression, json).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!format!("{error} {error:?}").contains("secret 1"), "{error:?}");
    }
    for text in ["", "secret", "{\"a\": 1", "[1e999]", "\"\\ud800\""] {
        assert_eq!(find("a", text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
    }
}

#[test]
fn a_small_text_that_becomes_too_large_fails() {
    let of = |bytes: usize| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&vec![b'1'; bytes]).unwrap();
        let bomb = serde_json::json!({ "b": BASE64_STANDARD.encode(gzip.finish().unwrap()) }).to_string();
        find("length(base64_gzip(b))", &bomb)
    };
    assert_eq!(of(16 * 1024 * 1024).unwrap().as_deref(), Some("16777216"));
    assert!(of(16 * 1024 * 1024 + 1).is_err());
}

#[test]
fn what_is_no_expression_is_refused_when_it_is_made() {
    for (wrong, said) in [
        ("a.", "no JMESPath"),
        ("a b", "no JMESPath"),
        ("jsn(body)", "jsn"),
        ("a[?jsn(@)]", "jsn"),
        ("a[*].[b, jsn(c)]", "jsn"),
        ("{a: !jsn(b)}", "jsn"),
        ("sort_by(a, &jsn(b))", "jsn"),
        ("a || b && jsn(c) == `1`", "jsn"),
    ] {
        let error = Expression::new(wrong).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(said), "{error}");
    }
}
