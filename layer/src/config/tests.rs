use std::{collections::HashMap, time::Duration};

use lambda_idempotency::store::memory::MemoryStore;

use super::{table, *};

const WORKING: &[(&str, &str)] =
    &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_KEY", "/id"), ("AWS_LAMBDA_FUNCTION_NAME", "f")];

fn read_with(settings: &[(&str, &str)], file: Option<&str>) -> Result<Config, String> {
    let all: HashMap<String, String> =
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let names: Vec<_> = all.keys().cloned().collect();
    Config::read(names.into_iter(), &|name| all.get(name).cloned(), |_| {
        file.map(str::to_owned).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    })
}

/// The rules of these settings, with the key `/id`.
pub(crate) fn read(settings: &[(&str, &str)]) -> Result<Rules, String> {
    let settings = [WORKING, settings].concat();
    Ok(read_with(&settings, None)?.rules)
}

#[test]
fn every_setting_is_read() {
    let rules = read(&[
        ("IDEMPOTENCY_RETENTION", "7d"),
        ("IDEMPOTENCY_LEASE", "30s"),
        ("IDEMPOTENCY_MAX_RESPONSE", "1000"),
        ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:20s"),
        ("IDEMPOTENCY_ON_ERROR", "release:Timeout, Throttled"),
        ("IDEMPOTENCY_ON_MISSING_KEY", "pass"),
        ("IDEMPOTENCY_ON_STORE_FAILURE", "pass"),
        ("IDEMPOTENCY_ON_INTERNAL_ERROR", "pass"),
        ("IDEMPOTENCY_EXECUTION", "at-least-once"),
        ("IDEMPOTENCY_MODE", "enforce"),
        ("IDEMPOTENCY_EVENT", "http"),
        ("IDEMPOTENCY_BATCH", "each"),
        ("IDEMPOTENCY_BATCH_ANSWER", "fail"),
        ("IDEMPOTENCY_METHODS", "POST,PUT"),
        ("IDEMPOTENCY_CALLERS", "shared"),
        ("IDEMPOTENCY_COMPARE", "/a, /b"),
        ("IDEMPOTENCY_OPERATION", "charge"),
        ("IDEMPOTENCY_CLAIM_FIELD", "context:claim"),
        ("IDEMPOTENCY_STREAMING", "true"),
        ("IDEMPOTENCY_FUNCTION", "shop"),
        ("IDEMPOTENCY_RECORD_WHEN", "4xx,!422"),
        ("IDEMPOTENCY_LOCAL_CACHE", "65536"),
        ("IDEMPOTENCY_LOCAL_CACHE_RECORDS", "10"),
        ("IDEMPOTENCY_LEASE_GRACE", "3s"),
        ("IDEMPOTENCY_LEASE_FALLBACK", "50s"),
        ("IDEMPOTENCY_SKEW_MARGIN", "4s"),
        ("IDEMPOTENCY_ANSWER_RESERVE", "500ms"),
        ("IDEMPOTENCY_SETTLE_WITHIN", "5s"),
        ("IDEMPOTENCY_BATCH_RESERVE", "2s"),
        ("IDEMPOTENCY_CORS", "https://a.example, http://localhost:3000"),
        ("AWS_LAMBDA_MAX_CONCURRENCY", "10"),
    ])
    .unwrap();
    assert_eq!(rules.settings.retention, Duration::from_secs(7 * 24 * 60 * 60));
    assert_eq!(rules.settings.lease_extension, Some(Duration::from_secs(30)));
    assert_eq!(rules.max_response, 1000);
    assert_eq!(rules.settings.wait_in_progress, Duration::from_secs(20));
    assert!(rules.settings.fail_open);
    assert!(!rules.settings.cut_off && rules.passes_internal_errors && rules.streams);
    assert!(rules.on_error.records("Invalid") && !rules.on_error.records("Throttled"));
    assert_eq!(rules.passes_unkeyed, Some(true));
    assert_eq!(
        (rules.kind, rules.batch, rules.batch_answer),
        (Some(Kind::Http), BatchMode::Each, Some(BatchAnswer::Fail))
    );
    assert_eq!(rules.function.as_deref(), Some("shop"));
    let [bad, reused, other] = [400, 422, 500].map(|status| StatusCode::from_u16(status).unwrap());
    assert_eq!([bad, reused, other].map(|status| rules.records(status)), [Some(true), Some(false), None]);
    let Settings { local_cache, local_cache_records, .. } = rules.settings;
    assert_eq!((local_cache, local_cache_records), (65536, Some(10)));
    let Settings { lease_grace, lease_fallback, skew_margin, answer_reserve, settle_within, .. } =
        rules.settings;
    let times = [lease_grace, lease_fallback, skew_margin, answer_reserve, settle_within];
    assert_eq!(times.map(|time| time.as_millis()), [3000, 50_000, 4000, 500, 5000]);
    assert_eq!(rules.batch_reserve, Some(Duration::from_secs(2)));
    assert_eq!(rules.cors, ["https://a.example", "http://localhost:3000"]);
    assert!(matches!(rules.callers, Callers::Shared) && rules.concurrency == 10);
    assert_eq!(rules.compare.unwrap(), ["/a", "/b"]);
    assert_eq!(rules.operation.as_deref(), Some("charge"));
    assert_eq!(rules.claim_field, Some(ClaimField::Context("claim".into())));
}

#[test]
fn defaults_match_the_library() {
    let rules = read(&[]).unwrap();
    let default = Settings::default();
    assert_eq!(rules.settings.retention, default.retention);
    assert!(!rules.settings.fail_open);
    assert_eq!((rules.passes_unkeyed, rules.kind, rules.claim_field), (None, None, None));
    assert_eq!(rules.on_error, OnError::Release);
    assert!(!rules.passes_internal_errors);
}

#[test]
fn errors_name_the_invalid_setting() {
    for (name, value, says) in [
        ("IDEMPOTENCY_KEY", "id", "a JSON Pointer such as /orderId"),
        ("IDEMPOTENCY_KEY", "/id,line", "`line` isn't a JSON Pointer"),
        ("IDEMPOTENCY_KEY", "/a~2", "/a~2"),
        ("IDEMPOTENCY_KEY", "/id,,/b", "empty entry"),
        ("IDEMPOTENCY_KEY", "jmespath:a[", "a["),
        ("IDEMPOTENCY_COMPARE", "/a~2", "/a~2"),
        ("IDEMPOTENCY_RETENTION", "0s", "IDEMPOTENCY_RETENTION is zero"),
        ("IDEMPOTENCY_RETENTION", "24", "with its unit"),
        ("IDEMPOTENCY_RETENTION", "99999999999999999999d", "with its unit"),
        ("IDEMPOTENCY_RETENTION", "4000d", "at most"),
        ("IDEMPOTENCY_RETENTION", "-1h", "with its unit"),
        ("IDEMPOTENCY_LEASE", "1s", "IDEMPOTENCY_LEASE (1s) is less than"),
        ("IDEMPOTENCY_MAX_RESPONSE", "8MB", "a number of bytes"),
        ("IDEMPOTENCY_ON_IN_PROGRESS", "wait", "wait:20s"),
        ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:soon", "with its unit"),
        ("IDEMPOTENCY_ON_ERROR", "ignore", "release, record"),
        ("IDEMPOTENCY_ON_ERROR", "record:", "empty entry"),
        ("IDEMPOTENCY_ON_MISSING_KEY", "run", "refuse or pass"),
        ("IDEMPOTENCY_ON_STORE_FAILURE", "yes", "refuse or pass"),
        ("IDEMPOTENCY_ON_INTERNAL_ERROR", "1", "refuse or pass"),
        ("IDEMPOTENCY_EXECUTION", "exactly-once", "at-most-once"),
        ("IDEMPOTENCY_MODE", "on", "enforce, shadow, off or off!"),
        ("IDEMPOTENCY_MODE", "shadow!", "enforce, shadow, off or off!"),
        ("IDEMPOTENCY_EVENT", "sns", "dynamodb, kafka or kafka-queue"),
        ("IDEMPOTENCY_BATCH", "all", "whole or each"),
        ("IDEMPOTENCY_BATCH_ANSWER", "error", "report or fail"),
        ("IDEMPOTENCY_METHODS", "GET", "GET is never protected"),
        ("IDEMPOTENCY_METHODS", "post", "POST,PUT"),
        ("IDEMPOTENCY_CALLERS", "all", "verified, required, shared"),
        ("IDEMPOTENCY_IGNORE_COOKIES", "*", "names of cookies"),
        ("IDEMPOTENCY_IGNORE_COOKIES", "a=b", "names of cookies"),
        ("IDEMPOTENCY_IGNORE_COOKIES", "a,,b", "empty entry"),
        ("IDEMPOTENCY_CLAIM_FIELD", "context:", "context:NAME"),
        ("IDEMPOTENCY_STREAMING", "yes", "true or false"),
        ("IDEMPOTENCY_METRICS", "prometheus", "cloudwatch or none"),
        ("IDEMPOTENCY_PORT", "0", "a port's number"),
        ("IDEMPOTENCY_PORT", "99999", "a port's number"),
        ("IDEMPOTENCY_UPSTREAM", "127.0.0.1", "a host and a port"),
        ("IDEMPOTENCY_UPSTREAM", "http://127.0.0.1:9009", "a host and a port"),
        ("IDEMPOTENCY_UPSTREAM", "127.0.0.1:0", "a host and a port"),
        ("IDEMPOTENCY_UPSTREAM", "127.0.0.1:9415", "the layer's own address"),
        ("IDEMPOTENCY_RECORD_WHEN", "1xx", "classes such as 5xx"),
        ("IDEMPOTENCY_RECORD_WHEN", "404,!", "classes such as 5xx"),
        ("IDEMPOTENCY_REPLAY_HEADERS", "access-control-allow-origin", "CORS headers can't be named"),
        ("IDEMPOTENCY_ON_NOT_RETAINED", "done", "JSON such as"),
        ("IDEMPOTENCY_BATCH_FAILED", "ignore", "redeliver or acknowledge"),
        ("IDEMPOTENCY_BATCH_RESERVE", "1", "with its unit"),
        ("IDEMPOTENCY_CIPHER", "aes:key", "such as kms:alias/payments"),
        ("IDEMPOTENCY_LOCAL_CACHE", "1000", "IDEMPOTENCY_LOCAL_CACHE is 1000 bytes, which is too small"),
        ("IDEMPOTENCY_LOCAL_CACHE_RECORDS", "10", "but IDEMPOTENCY_LOCAL_CACHE is 0"),
        ("IDEMPOTENCY_LEASE_GRACE", "2h", "IDEMPOTENCY_LEASE_GRACE is 7200s"),
        ("IDEMPOTENCY_LEASE_FALLBACK", "1s", "IDEMPOTENCY_LEASE_FALLBACK (1s) isn't longer than"),
        ("IDEMPOTENCY_SKEW_MARGIN", "0s", "IDEMPOTENCY_SKEW_MARGIN is zero"),
        ("IDEMPOTENCY_KEY_ALIAS", "x request", "names of headers"),
        ("IDEMPOTENCY_KEY_FORMAT", "guid", "uuid, quoted, or shortest:"),
        ("IDEMPOTENCY_KEY_FORMAT", "shortest:0", "such as shortest:16"),
        ("IDEMPOTENCY_OPERATIONS", "/a", "such as /charges=charge"),
        (
            "IDEMPOTENCY_OPERATIONS",
            "charges=charge",
            "IDEMPOTENCY_OPERATIONS: \"charges\" isn't a valid path",
        ),
        ("IDEMPOTENCY_OPERATIONS", "/a=b:c", "IDEMPOTENCY_OPERATIONS: the operation's name"),
        ("IDEMPOTENCY_STATUS", "in-progres=202", "a problem's code"),
        ("IDEMPOTENCY_STATUS", "in-progress=100", "from 200 to 599"),
        ("IDEMPOTENCY_STATUS", "declined=410", "a problem's code"),
        ("IDEMPOTENCY_DOCUMENTATION", "/keys", "a URI with scheme and host"),
        ("IDEMPOTENCY_DOCUMENTATION", "https://a.example/#keys", "a URI with scheme and host"),
        ("IDEMPOTENCY_CORS", "*", "no *"),
        ("IDEMPOTENCY_CORS", "null", "origins as browsers send them"),
        ("IDEMPOTENCY_CORS", "https://a.example/", "no path"),
        ("IDEMPOTENCY_CORS", "https://a.example:443", "no usual port"),
        ("IDEMPOTENCY_CORS", "https://*.a.example", "no *"),
        ("IDEMPOTENCY_CORS", "https://A.example", "lower case"),
        ("IDEMPOTENCY_REQUIRED", "yes", "1 or 0"),
        ("IDEMPOTENCY_TABEL", "t", "did you mean IDEMPOTENCY_TABLE?"),
        ("IDEMPOTENCY_CALLER", "t", "did you mean IDEMPOTENCY_CALLERS?"),
        ("IDEMPOTENCY_TIMEOUT", "t", "the settings are IDEMPOTENCY_TABLE, IDEMPOTENCY_STORE"),
        ("IDEMPOTENCY_OPERATION", "a:b", "colon"),
        ("IDEMPOTENCY_TABLE", "t", "both"),
    ] {
        let problem = read(&[(name, value)])
            .and_then(|rules| rules.open_with(Arc::new(MemoryStore::new()), |builder| builder.function("f")))
            .expect_err(&format!("{name}={value}"));
        assert!(problem.contains(says), "{name}={value}: {problem}");
    }
}

#[test]
fn key_must_fit_the_event() {
    for (event, key, fits) in [
        ("sqs", "header", false),
        ("sqs", "kinesis", false),
        ("fifo", "sqs", true),
        ("http", "eventbridge", false),
        ("sqs", "s3", true),
        ("http", "/id", true),
        ("event", "header", false),
        ("event", "request-id", true),
        ("kinesis", "/id", true),
    ] {
        let read = read(&[("IDEMPOTENCY_EVENT", event), ("IDEMPOTENCY_KEY", key)]);
        assert_eq!(read.is_ok(), fits, "{event} {key}: {read:?}");
    }
    let compare = read(&[("IDEMPOTENCY_EVENT", "sqs"), ("IDEMPOTENCY_COMPARE", "/a")]);
    assert_eq!(compare.unwrap().compare.unwrap(), ["/a"]);
}

#[test]
fn errors_name_the_contradictory_setting() {
    let at_most_once = ("IDEMPOTENCY_EXECUTION", "at-most-once");
    let context = ("IDEMPOTENCY_CLAIM_FIELD", "context:claim");
    for (settings, says) in [
        ([at_most_once, ("IDEMPOTENCY_ON_INTERNAL_ERROR", "pass")], "IDEMPOTENCY_ON_INTERNAL_ERROR"),
        ([at_most_once, ("IDEMPOTENCY_ON_STORE_FAILURE", "pass")], "IDEMPOTENCY_ON_STORE_FAILURE"),
        ([at_most_once, ("IDEMPOTENCY_RECORD_WHEN", "404")], "IDEMPOTENCY_RECORD_WHEN"),
        ([context, ("IDEMPOTENCY_EVENT", "sqs")], "IDEMPOTENCY_CLAIM_FIELD"),
        ([context, ("IDEMPOTENCY_EVENT", "kinesis")], "IDEMPOTENCY_CLAIM_FIELD"),
    ] {
        let problem = read(&settings).unwrap_err();
        assert!(problem.contains(says), "{settings:?}: {problem}");
    }
}

#[test]
fn batches_and_requests_have_default_keys() {
    let events = [("http", true), ("sqs", true), ("kinesis", true), ("kafka", true), ("event", false)];
    for (event, has_one) in events {
        let read = read_with(&[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_EVENT", event)], None);
        assert_eq!(read.is_ok(), has_one, "{event}");
    }
    let none = read_with(&[("IDEMPOTENCY_STORE", "memory:")], None).unwrap_err();
    assert!(none.contains("IDEMPOTENCY_KEY isn't set"), "{none}");
}

#[test]
fn file_problems_name_the_file() {
    let file = ("IDEMPOTENCY_CONFIG", "idempotency.json");
    let of = |text: Option<&str>| read_with(&[file], text).unwrap_err();
    assert!(of(None).contains("/var/task/idempotency.json can't be read"));
    for (text, says) in [
        ("[]", "isn't a JSON object"),
        ("{\"key\": \"/id\"", "line 1"),
        (r#"{"Key": "/id"}"#, "`Key` isn't a setting"),
        (r#"{"tabel": "x"}"#, "did you mean IDEMPOTENCY_TABLE?"),
        (r#"{"config": "x"}"#, "set the variable IDEMPOTENCY_CONFIG instead"),
        // The wrapper script tells the runtime the port, and reads only the variable.
        (r#"{"port": 9416}"#, "set the variable IDEMPOTENCY_PORT instead"),
        (r#"{"mode": "enforce", "key": "/id", "mode": "off"}"#, "`mode` appears twice"),
        (r#"{"key": {}}"#, "`key` must be a number, a boolean, a nonempty string, or a nonempty list"),
        (r#"{"key": ""}"#, "`key` must be a number, a boolean, a nonempty string, or a nonempty list"),
        (
            r#"{"key": "/id", "store": "memory:", "retention": "x"}"#,
            "`retention` in /var/task/idempotency.json",
        ),
    ] {
        let problem = of(Some(text));
        assert!(
            problem.contains(says) && problem.contains("/var/task/idempotency.json"),
            "{text}: {problem}"
        );
    }
    let root = ("LAMBDA_TASK_ROOT", "/elsewhere");
    assert!(read_with(&[file, root], None).unwrap_err().contains("/elsewhere/idempotency.json"));
    let both = read_with(&[file, ("IDEMPOTENCY_KEY", "/a")], Some(r#"{"key": "/id"}"#)).unwrap_err();
    assert!(both.contains("keep one"), "{both}");
    let good = read_with(
        &[file],
        Some(r#"{"key": ["/a", "/b"], "store": "memory:", "max_response": 5000, "streaming": true}"#),
    );
    let rules = good.unwrap().rules;
    assert_eq!((rules.max_response, rules.streams), (5000, true));
}

#[test]
fn enforced_protection_is_required_by_default() {
    for (mode, required, expected) in [
        ("enforce", "", true),
        ("enforce", "1", true),
        ("enforce", "0", false),
        ("shadow", "", false),
        ("off", "", false),
        ("off!", "", false),
    ] {
        let rules = read(&[("IDEMPOTENCY_MODE", mode), ("IDEMPOTENCY_REQUIRED", required)]).unwrap();
        assert_eq!(rules.is_required, expected, "{mode} {required}");
    }
    assert!(read(&[]).unwrap().is_required);
}

#[test]
fn mode_off_needs_no_store_or_key() {
    let off = [("IDEMPOTENCY_MODE", "off")];
    assert_eq!(read_with(&off, None).unwrap().rules.settings.mode, Mode::Off);
    assert!(
        read_with(&[off[0], ("IDEMPOTENCY_RETENTION", "x")], None).is_err(),
        "an invalid retention was ignored"
    );
}

/// Writes the page's tables if they differ, so a second run passes.
#[test]
fn settings_page_equals_the_table() {
    const BEGIN: &str = "<!-- These tables come from layer/src/config/table.rs. -->\n\n";
    const END: &str = "<!-- The tables end here. -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/settings.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (tables, after) = rest.split_once(END).unwrap();
    if tables != table::page() {
        std::fs::write(path, [before, BEGIN, &table::page(), END, after].concat()).unwrap();
        panic!("the tables of settings.md differed from the settings; the test has written them");
    }
}

#[test]
fn each_setting_appears_once() {
    let mut names: Vec<_> = table::all().map(|setting| setting.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[cfg(not(feature = "kms"))]
#[test]
fn encryption_needs_its_feature() {
    let problem = read(&[("IDEMPOTENCY_CIPHER", "kms:alias/payments")]).unwrap_err();
    assert!(problem.starts_with("IDEMPOTENCY_CIPHER: ") && problem.contains("--features kms"), "{problem}");
}

#[test]
fn missing_stores_are_named_with_their_builds() {
    for name in ["postgres", "redis"] {
        let error =
            format!("IDEMPOTENCY_STORE names a store that needs the feature `{name}`; enable the feature");
        let problem = store_problem(&error);
        assert!(
            problem.contains(&format!("--features {name}`")) && !problem.contains("the feature"),
            "{problem}"
        );
    }
    assert!(store_problem("no store is configured").contains("IDEMPOTENCY_TABLE"));
}

#[test]
fn jwt_settings_must_be_complete() {
    let jwt = ("IDEMPOTENCY_CALLERS", "jwt");
    let url = ("IDEMPOTENCY_JWT_KEYS", "https://login.example.com/keys");
    let issuer = ("IDEMPOTENCY_JWT_ISSUER", "https://login.example.com");
    let audience = ("IDEMPOTENCY_JWT_AUDIENCE", "a");
    assert!(matches!(read(&[jwt, url, issuer, audience]).unwrap().callers, Callers::Jwt(_)));
    for (settings, says) in [
        (&[jwt, issuer, audience][..], "IDEMPOTENCY_JWT_KEYS: isn't set"),
        (&[jwt, url, audience], "IDEMPOTENCY_JWT_ISSUER: isn't set"),
        (&[jwt, url, issuer], "IDEMPOTENCY_JWT_AUDIENCE: isn't set"),
        (&[url], "IDEMPOTENCY_JWT_KEYS: it has no effect"),
        (
            &[("IDEMPOTENCY_JWT_CLAIM", "email"), ("IDEMPOTENCY_CALLERS", "credential")],
            "IDEMPOTENCY_JWT_CLAIM",
        ),
    ] {
        let problem = read(settings).unwrap_err();
        assert!(problem.contains(says), "{settings:?}: {problem}");
    }
    for (name, value, says) in [
        ("IDEMPOTENCY_JWT_KEYS", "http://login.example.com/keys", "isn't encrypted"),
        ("IDEMPOTENCY_JWT_KEYS", "http://127.0.0.1.example.com/keys", "isn't encrypted"),
        ("IDEMPOTENCY_JWT_KEYS", "ftp://login.example.com/keys", "isn't the URL of a JWKS"),
        ("IDEMPOTENCY_JWT_KEYS", "https://user@login.example.com/keys", "isn't the URL of a JWKS"),
        ("IDEMPOTENCY_JWT_KEYS", "https://", "isn't the URL of a JWKS"),
        ("IDEMPOTENCY_JWT_KEYS", "keys.json", "keys.json: it can't be read"),
        ("IDEMPOTENCY_JWT_AUDIENCE", "a,,b", "empty entry"),
        ("IDEMPOTENCY_JWT_CLAIM", "jti", "names no caller"),
        ("IDEMPOTENCY_JWT_CLAIM", "aud", "names no caller"),
        ("IDEMPOTENCY_JWT_IN", "query:token", "cookie:NAME"),
        ("IDEMPOTENCY_JWT_IN", "cookie:", "cookie:NAME"),
        ("IDEMPOTENCY_JWT_IN", "header:a b", "header:NAME"),
    ] {
        let good = [jwt, url, issuer, audience].into_iter().filter(|(other, _)| *other != name);
        let all: Vec<_> = good.chain([(name, value)]).collect();
        let problem = read(&all).unwrap_err();
        assert!(problem.contains(name) && problem.contains(says), "{name}={value}: {problem}");
    }
}

#[test]
fn files_of_keys_are_checked_at_init() {
    let keys = |entry: &str| Some(format!("{{\"keys\":[{entry}]}}"));
    let all = [
        ("IDEMPOTENCY_STORE", "memory:"),
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_CALLERS", "jwt"),
        ("IDEMPOTENCY_JWT_KEYS", "keys.json"),
        ("IDEMPOTENCY_JWT_ISSUER", "i"),
        ("IDEMPOTENCY_JWT_AUDIENCE", "a"),
    ];
    for (file, says) in [
        (None, "it can't be read"),
        (Some("[]".to_owned()), "isn't a JWKS"),
        (keys(""), "no public key"),
        (keys(r#"{"kty":"oct","k":"c2VjcmV0"}"#), "no public key"),
        (keys(r#"{"kty":"RSA","n":"AQAB","e":"AQAB","use":"enc"}"#), "no public key"),
        (keys(r#"{"kty":"RSA","n":"AQAB","e":"AQAB","alg":"RSA-OAEP"}"#), "no public key"),
        (keys(r#"{"kty":"EC","crv":"P-521","x":"AQAB","y":"AQAB"}"#), "no public key"),
    ] {
        let problem = read_with(&all, file.as_deref()).unwrap_err();
        assert!(problem.contains("IDEMPOTENCY_JWT_KEYS: keys.json: ") && problem.contains(says), "{problem}");
    }
    let good = keys(r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#);
    assert!(read_with(&all, good.as_deref()).is_ok());
}
