mod properties;

use serde_json::value::RawValue;

use super::*;

fn json(text: &str) -> Fingerprint {
    Fingerprint::of_json(text.as_bytes()).unwrap()
}

#[test]
fn fingerprints_are_pinned() {
    // Computed with a Python script (`json.loads` and `hashlib`) from the rules in the docs of `Fingerprint`.
    // Changing a digest breaks every record that users have: add a new version of the rules, don't edit this one.
    let every_kind = r#"{"to":"\u0061nna \ud83d\ude00","amount":10.50,"id":18446744073709551616,"lines":[{"n":1e2,"ok":true},[],null],"a":1,"a":2,"\u00e9":false,"Z":-0}"#;
    for (text, digest) in [
        ("null", "01d57859d6122d6ae8f6161b5722d05ee2391403a04a2ab8363b6490c958d165"),
        ("{}", "67223e3230ad55c54c99c37087a664812545a5c0c2f6643cf108cb61f48d793b"),
        (r#""\ud800""#, "47c0adfb739ffa684bd758264ff4d949746ee3e22586ea444b80ff38d89ee455"),
        (every_kind, "bc7f0355bee234d1a3fb7f02e7edb3823c17ce767d670e4c5837587e1c476615"),
    ] {
        assert_eq!(json(text).to_string(), format!("1:{digest}"), "{text}");
    }
    assert_eq!(
        Fingerprint::of_bytes(b"{}").to_string(),
        "1:94f1598fe175a6f5d9deca6e68ceae3290478e32bc898363e1675f1e037c4fea"
    );
    assert_eq!(
        Fingerprint::builder("http").part("method", "POST").json_or_bytes("body", "{ }").finish().to_string(),
        "1:9ef7bd9c1c2ac3de8d7460dd8d5849b52b823213ee4b4853e9527463d429e911"
    );
}

#[test]
fn insignificant_differences_keep_the_fingerprint() {
    for (one, other) in [
        (r#"{"a":1,"b":[2,{"c":3,"d":4}]}"#, " {\n\t\"b\" : [ 2 ,{\"d\":4, \"c\":3} ] ,\r\"a\":1 } "),
        (r#""a/\u00e9\u0022\ud83d\uDE00\n""#, "\"\\u0061\\/é\\\"😀\\u000A\""),
        (r#""\b\f\n\r\t\"\\\/""#, r#""\u0008\u000c\u000A\u000d\u0009\u0022\u005c\u002f""#),
        (r#"{"\u0061":1}"#, r#"{"a":1}"#),
        (r#"{"b":0,"a":1,"a":2}"#, r#"{"a":1,"b":0,"a":2}"#),
        (r#""\ud800x""#, r#""\uD800\u0078""#),
    ] {
        assert_eq!(json(one), json(other), "{one} {other}");
    }
}

#[test]
fn significant_differences_change_the_fingerprint() {
    let all = [
        "1",
        "1.0",
        "1e0",
        "1E0",
        "10",
        "-1",
        "0",
        "-0",
        "\"1\"",
        "[1]",
        "[[1]]",
        "[]",
        "{}",
        "[{}]",
        "[[]]",
        "null",
        "\"null\"",
        "true",
        "false",
        "\"\"",
        "[\"\"]",
        "[null]",
        "[null,null]",
        "100",
        "1e2",
        "18446744073709551615",
        "18446744073709551616",
        "9007199254740992",
        "9007199254740993",
        "0.1",
        "0.10000000000000001",
        "1e999",
        r#"{"a":1,"a":2}"#,
        r#"{"a":2,"a":1}"#,
        r#"{"a":1}"#,
        r#"{"a":2}"#,
        r#"{"a":{"a":1}}"#,
        r#"{"a":1,"b":2}"#,
        r#"{"a":2,"b":1}"#,
        r#"["a",1,"b",2]"#,
        r#"[["a",1],["b",2]]"#,
        r#"{"":""}"#,
        "[1,2]",
        "[2,1]",
        "[12]",
        "[1,[2]]",
        "[[1],2]",
        "[[1,2]]",
        r#"["a","b"]"#,
        r#"["ab"]"#,
        r#"["ab",""]"#,
        r#""\ud800""#,
        r#""\ud801""#,
        r#""\udc00""#,
        r#""\ud83d\ude00""#,
        r#""\ude00\ud83d""#,
        r#""\ufffd""#,
        r#""\\ud800""#,
        r#""é""#,
        "\"e\u{301}\"",
    ];
    for (at, one) in all.iter().enumerate() {
        for other in &all[..at] {
            assert_ne!(json(one), json(other), "{one} {other}");
        }
    }
}

#[test]
fn invalid_json_is_refused_without_showing_it() {
    let not_utf8 = [b'"', 0xff, b'"'];
    for text in [
        &b""[..],
        b" ",
        b"secret",
        b"{\"secret\":",
        b"[\"secret\",]",
        b"{\"secret\"}",
        b"01",
        b"1.",
        b"nul",
        b"1 2",
        b"\"\\x\"",
        b"\"\\u12g4\"",
        b"\"\n\"",
        b"\xef\xbb\xbf1",
        b"'secret'",
        b"NaN",
        &not_utf8,
    ] {
        let error = Fingerprint::of_json(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!format!("{error:?} {error}").contains("secret"), "{error:?}");
    }
}

#[test]
fn nesting_limit_matches_serde_json() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = |depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        for depth in [126, 127, 128, 129] {
            let accepted = Fingerprint::of_json(nested(depth).as_bytes());
            assert_eq!(accepted.is_ok(), serde_json::from_str::<serde_json::Value>(&nested(depth)).is_ok());
        }
        let error = Fingerprint::of_json(nested(100_000).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("more than 127 deep"), "{error}");
    }
    let wide = format!("[{}]", vec!["[[]]"; 1000].join(","));
    assert!(Fingerprint::of_json(wide.as_bytes()).is_ok());
}

#[test]
fn values_and_their_json_share_a_fingerprint() {
    let map = std::collections::HashMap::from([("b", 1), ("a", 2)]);
    assert_eq!(Fingerprint::of(&map).unwrap(), json(r#"{"a":2,"b":1}"#));
    assert_eq!(Fingerprint::of("text").unwrap(), json(r#""text""#));
    assert_eq!(Fingerprint::of(&u64::MAX).unwrap(), json("18446744073709551615"));
    let kept: Box<RawValue> = serde_json::from_str("1e2").unwrap();
    assert_eq!(Fingerprint::of(&kept).unwrap(), json("1e2"));
}

#[test]
fn unserialisable_values_are_refused_without_showing_them() {
    struct Secret;
    impl Serialize for Secret {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("secret"))
        }
    }
    let error = Fingerprint::of(&Secret).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!format!("{error:?}").contains("secret"));
    // A handler may call this function itself, so the error doesn't say whether anything ran.
    assert!(error.to_string().contains("no fingerprint") && !error.to_string().contains("ran"), "{error}");
}

#[test]
fn kinds_and_parts_do_not_collide() {
    let parts = || Fingerprint::builder("p");
    let all = [
        json("{}"),
        Fingerprint::of_bytes(b"{}"),
        Fingerprint::of_bytes(b""),
        parts().finish(),
        Fingerprint::builder("").finish(),
        parts().part("a", "{}").finish(),
        parts().json_or_bytes("a", "{}").finish(),
        parts().json_or_bytes("a", "{").finish(),
        parts().part("", "a{}").finish(),
        parts().part("a{}", "").finish(),
        parts().part("a", "").part("b", "").finish(),
        parts().part("b", "").part("a", "").finish(),
        parts().part("ab", "").part("", "").finish(),
        Fingerprint::builder("pa").part("", "{}").finish(),
    ];
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(parts().part("a", "x y").finish(), parts().json_or_bytes("a", "x y").finish());
}

#[test]
fn fingerprints_round_trip_and_debug_is_short() {
    let fingerprint = json("1");
    assert_eq!(Fingerprint::from_stored(&fingerprint.to_string()), Some(fingerprint));
    assert_eq!(Fingerprint::from_stored(&fingerprint.to_string().replace("1:", "2:")), None);
    assert_eq!(Fingerprint::from_stored("1:00"), None);
    assert!(!format!("{fingerprint:?}").contains(&fingerprint.to_string()));
}
