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
fn expressions_keep_their_text() {
    assert_eq!(Expression::new("order.id").unwrap().as_str(), "order.id");
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
    assert_eq!(find("a", r#"{"a": null}"#).unwrap(), None, "JMESPath treats null like an absent field");
}

#[test]
fn numbers_keep_the_text_they_had() {
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
fn filters_compare_numbers_numerically() {
    let json =
        r#"{"lines": [{"cents": 10.50, "id": "a"}, {"cents": 1e3, "id": "b"}, {"cents": 2, "id": "c"}]}"#;
    finds("lines[?cents > `5`].id", json, r#"["a","b"]"#);
    finds("sum(lines[].cents)", json, "1012.5");
    finds("max(lines[].cents)", json, "1e3");
}

#[test]
fn numbers_equal_as_floats_stay_distinct() {
    let json = r#"{"a": 18446744073709551617, "b": 18446744073709551618, "c": 7, "d": [10.5, 10.50], "e": 1.0, "f": 1}"#;
    finds("[c, a, b]", json, "[7,18446744073709551617,18446744073709551618]");
    finds("d", json, "[10.5,10.50]");
    finds("[e, f]", json, "[1.0,1]");
    finds(
        "[max(d), sort(d), d[?@ == `10.5`], not_null(x, b)]",
        json,
        "[10.50,[10.5,10.50],[10.5,10.50],18446744073709551618]",
    );
    finds("to_string(a)", json, r#""18446744073709551617""#);
    finds(
        "join('#', [to_string(b), to_string(d[1]), to_string(c), to_string('x')])",
        json,
        r##""18446744073709551618#10.50#7#x""##,
    );
    finds("to_string(d)", json, r#""[10.5,10.50]""#);
}

#[test]
fn to_number_is_exact() {
    let json =
        r#"{"a": "18446744073709551617", "b": "18446744073709551618", "c": "1.50", "no": "x", "list": [1]}"#;
    finds(
        "[to_number(a), to_number(b), to_number(c)]",
        json,
        "[18446744073709551617,18446744073709551618,1.50]",
    );
    finds("[to_number(no), to_number(list), to_number(`2`)]", json, "[null,null,2]");
    let others = r#"{"bool": "true", "list": "[1]", "text": "\"1\""}"#;
    finds("[to_number(bool), to_number(list), to_number(text)]", others, "[null,null,null]");
}

/// New values may be at the addresses of a failed read's values. The new values must not get that read's texts.
#[test]
fn failed_reads_leave_no_stale_texts() {
    for number in ["1", "7", "8"] {
        let json = format!(r#"{{"a": "[1.5,2.5,3.5,4.5 x", "b": "{number}", "items": [1, 2]}}"#);
        finds("[to_number(a), to_number(b)]", &json, &format!("[null,{number}]"));
        finds("[to_number(a), length(items)]", &json, "[null,2]");
    }
}

/// A number that the expression doesn't select doesn't change the result, even if it equals the calculated sum.
#[test]
fn unselected_fields_do_not_affect_results() {
    for other in ["10.000", "1e1", "9.1"] {
        finds(
            "sum(lines[].c)",
            &format!(r#"{{"lines": [{{"c": 4}}, {{"c": 6}}], "elapsed": {other}}}"#),
            "10.0",
        );
    }
}

#[test]
fn duplicate_names_are_refused() {
    assert_eq!(find("a", r#"{"a": 1, "a": 2}"#).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn encoded_fields_are_decoded() {
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
fn undecodable_fields_fail_without_being_quoted() {
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
fn decompressed_size_is_limited() {
    let compressed = |text: &[u8]| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text).unwrap();
        BASE64_STANDARD.encode(gzip.finish().unwrap())
    };
    let of = |bytes: usize, times: usize| {
        let bomb = serde_json::json!({ "b": vec![compressed(&vec![b'1'; bytes]); times] }).to_string();
        find("length(b[].base64_gzip(@))", &bomb)
    };
    assert_eq!(of(15 << 20, 1).unwrap().as_deref(), Some("1"));
    assert!(of(17 << 20, 1).is_err());
    assert!(of(4 << 20, 5).is_err(), "the limit covers everything that a search decodes");

    // A value takes many times the bytes of its text, so the number of values is limited too.
    let numbers = format!("[{}1]", "1,".repeat(300_000));
    assert!(find("length(@)", &numbers).is_err());
    let nested = serde_json::json!({ "b": compressed(numbers.as_bytes()) }).to_string();
    assert!(find("json(base64_gzip(b))[0]", &nested).is_err());
    finds("length(@)", &format!("[{}1]", "1,".repeat(200_000)), "200001");
}

#[test]
fn invalid_expressions_are_refused_when_built() {
    for (wrong, said) in [
        ("a.", "isn't a JMESPath"),
        ("a b", "isn't a JMESPath"),
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

#[test]
fn numbers_parsed_as_objects_are_refused() {
    let filter = |number: &str| format!("lines[?price == `{number}`].id");
    // With `arbitrary_precision`, the parser reads `10.5` as this object.
    let read = format!(r#"{{"{NUMBER}": "10.5"}}"#);
    let error = Expression::new(&filter(&read)).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("arbitrary_precision"), "{error}");
    assert!(Expression::new(&filter("10")).is_ok());
}
