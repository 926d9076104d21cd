//! The library's choices as settings: which outcomes are recorded, how keys and problems look, and what's compared.

use std::{
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use lambda_idempotency::{Idempotency, KeyFields, store::memory::MemoryStore};
use lambda_idempotency_rehearsal::database::Database;
use lambda_idempotency_verification_real::wire::HttpWay;
use lambda_runtime::Context;
use serde_json::{Value, json};
use testkit::{
    front_ends::{POST, Sent, UUID, event, set_header},
    unpaused::unpaused,
};

use super::{
    bench::{Function, Lambda, Posted, posted},
    http_events::{created, header, status},
    process::{on_table, table},
    settings::{Then, delivered, requests},
};
use Then::{Refuses, Replays, Runs};

#[tokio::test]
async fn chosen_statuses_are_recorded() {
    for (setting, code, is_recorded) in [
        (None, 404, false),
        (None, 422, true),
        (Some("404"), 404, true),
        (Some("404"), 403, false),
        (Some("404"), 201, true),
        (Some("4xx,!404"), 404, false),
        (Some("4xx,!404"), 403, true),
        (Some("!422"), 422, false),
        (Some("503"), 503, true),
        (Some("5xx"), 503, true),
        (Some("2xx,!3xx"), 303, false),
    ] {
        let lambda = Lambda::start().await;
        let settings: Vec<_> = [("IDEMPOTENCY_KEY", "header")]
            .into_iter()
            .chain(setting.map(|statuses| ("IDEMPOTENCY_RECORD_WHEN", statuses)))
            .collect();
        let function = Function::start(&lambda, &settings).await;
        let own = json!({ "statusCode": code, "body": "own" }).to_string();
        let request = event("http-api", POST).to_string();
        assert!(delivered(&lambda, &function, &request, &own).await.0);
        let (runs, again) = delivered(&lambda, &function, &request, &own).await;
        assert_eq!((runs, status(&again)), (!is_recorded, code), "{setting:?}");
    }
}

#[tokio::test]
async fn problems_have_chosen_statuses_and_page() {
    const PAGE: &str = "https://api.example/keys";
    let mut broken = event("function-url", POST);
    broken["isBase64Encoded"] = true.into();
    broken["body"] = "not base64!".into();
    for (request, usual, chosen, code) in [
        (event("function-url", Sent { body: "{}", ..POST }), 422, 409, "key-reused"),
        (event("function-url", Sent { key: Some(""), ..POST }), 400, 400, "key-invalid"),
        (broken, 400, 406, "request-unreadable"),
    ] {
        let settings = [
            ("IDEMPOTENCY_STATUS", "key-reused=409, request-unreadable=406"),
            ("IDEMPOTENCY_DOCUMENTATION", PAGE),
        ];
        for (settings, expected, page) in
            [(&settings[..0], usual, "https://docs.rs/"), (&settings[..], chosen, PAGE)]
        {
            let lambda = Lambda::start().await;
            let function =
                Function::start(&lambda, &[&[("IDEMPOTENCY_KEY", "header")], settings].concat()).await;
            let first = event("function-url", POST).to_string();
            delivered(&lambda, &function, &first, &created().to_string()).await;
            let (runs, problem) = delivered(&lambda, &function, &request.to_string(), "never").await;
            assert_eq!((runs, status(&problem)), (false, expected), "{problem:?}");
            let body: Value = serde_json::from_str(problem.json()["body"].as_str().unwrap()).unwrap();
            let described = body["type"].as_str().unwrap();
            assert!(described.starts_with(page) && described.ends_with(code), "{problem:?}");
            assert!(header(&problem, "link").unwrap().starts_with(&format!("<{page}")), "{problem:?}");
        }
    }
}

/// A request with its key in this header.
fn keyed_by(name: &str, key: &str) -> Value {
    let mut request = event("http-api", Sent { key: None, ..POST });
    set_header(&mut request, name, Some(key));
    request
}

#[tokio::test]
async fn keys_have_chosen_headers_and_formats() {
    let token = |key| keyed_by("x-request-token", key);
    let alias = ("IDEMPOTENCY_KEY_ALIAS", "x-request-token, x-other");
    requests(&[], &[(token("1"), Runs), (token("1"), Runs)]).await;
    let both = {
        let mut both = token("1");
        set_header(&mut both, "idempotency-key", Some("2"));
        both
    };
    let all = [
        (token("1"), Runs),
        (token("1"), Replays),
        (keyed_by("x-other", "1"), Replays),
        (keyed_by("idempotency-key", "1"), Replays),
        (both, Refuses(400)),
    ];
    requests(&[alias], &all).await;
    let key = |key| keyed_by("idempotency-key", key);
    for (format, valid, invalid) in [
        ("uuid", UUID, "order-17"),
        ("quoted", "\"order-17\"", "order-17"),
        ("shortest:8", "order-17", "order-1"),
        ("quoted, shortest:8", "\"order-17\"", "\"order-1\""),
    ] {
        let all = [(key(invalid), Refuses(400)), (key(valid), Runs), (key(valid), Replays)];
        requests(&[("IDEMPOTENCY_KEY_FORMAT", format)], &all).await;
    }
}

#[tokio::test]
async fn renamed_function_keeps_its_history() {
    let (_database, wire) = table().await;
    let endpoint = wire.endpoint();
    for (settings, expected) in [
        (&[("AWS_LAMBDA_FUNCTION_NAME", "orders")][..], true),
        (&[("AWS_LAMBDA_FUNCTION_NAME", "shop-orders-1A2B"), ("IDEMPOTENCY_FUNCTION", "orders")], false),
        (&[("AWS_LAMBDA_FUNCTION_NAME", "shop-orders-1A2B")], true),
    ] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[&on_table(&endpoint)[..], settings].concat()).await;
        let (runs, answer) = delivered(&lambda, &function, r#"{"id": 1}"#, "\"done\"").await;
        assert_eq!((runs, answer.text().as_str()), (expected, "\"done\""), "{settings:?}");
    }
}

/// Without the table, only a cached outcome can be replayed.
#[tokio::test]
async fn local_cache_answers_without_the_table() {
    for (event, own) in
        [(r#"{"id": 1}"#.to_owned(), "1".to_owned()), (event("alb", POST).to_string(), created().to_string())]
    {
        for (size, is_cached) in [("0", false), ("65536", true)] {
            let (lambda, (database, wire)) = (Lambda::start().await, table().await);
            let endpoint = wire.endpoint();
            let cache = [("IDEMPOTENCY_LOCAL_CACHE", size), ("IDEMPOTENCY_KEY", "/id")];
            let settings = [&on_table(&endpoint)[..], &cache].concat();
            let settings = match event.contains("httpMethod") {
                true => [&settings[..], &[("IDEMPOTENCY_KEY", "header")]].concat(),
                false => settings,
            };
            let function = Function::start(&lambda, &settings).await;
            assert!(delivered(&lambda, &function, &event, &own).await.0);
            drop((database, wire));
            let time = Duration::from_secs(2);
            let again = lambda.deliver_with(&event, time, &[]);
            function.gets_nothing_until(tokio::time::sleep(time)).await;
            let again = posted(again).await;
            let is_refused = again.is_error || status_of(&again) == Some(503);
            assert_eq!(is_refused, !is_cached, "{size}: {again:?}");
        }
    }
}

fn status_of(answer: &Posted) -> Option<u64> {
    answer.json()["statusCode"].as_u64()
}

#[tokio::test]
async fn chosen_parts_of_requests_are_compared() {
    let sent = |query, body| event("rest-api", Sent { query, body, ..POST });
    let first = || (sent("a=1&at=1", "{}"), Runs);
    let signed = sent("a=1&at=2", "{}");
    requests(&[], &[first(), (signed.clone(), Refuses(422))]).await;
    let all = [first(), (signed, Replays), (sent("a=2&at=1", "{}"), Refuses(422))];
    requests(&[("IDEMPOTENCY_IGNORE_QUERY", "at, X-Amz-*")], &all).await;

    let other = [first(), (sent("a=2", r#"{"n": 1}"#), Replays)];
    requests(&[("IDEMPOTENCY_COMPARE", "key-alone")], &other).await;

    let spaced = || sent("a=1&at=1", "{ }");
    requests(&[], &[first(), (spaced(), Replays)]).await;
    requests(&[("IDEMPOTENCY_COMPARE", "raw-body")], &[first(), (spaced(), Refuses(422))]).await;

    let of_version = |version| {
        let mut request = sent("a=1&at=1", "{}");
        set_header(&mut request, "x-api-version", version);
        request
    };
    let versions = || [(of_version(Some("1")), Runs), (of_version(Some("1")), Replays)];
    let [again, other] = [Replays, Refuses(422)].map(|then| (of_version(Some("2")), then));
    requests(&[], &versions().into_iter().chain([again]).collect::<Vec<_>>()).await;
    let all: Vec<_> = versions().into_iter().chain([other]).collect();
    requests(&[("IDEMPOTENCY_COMPARE_HEADERS", "x-api-version")], &all).await;
}

#[tokio::test]
async fn key_alone_suffices_for_events_and_records() {
    for (one, other, own) in [
        (r#"{"id": 1, "n": 1}"#.to_owned(), r#"{"id": 1, "n": 2}"#.to_owned(), "1"),
        (
            batch("orders", r#"{"id": 1, "n": 1}"#),
            batch("orders", r#"{"id": 1, "n": 2}"#),
            r#"{"batchItemFailures":[]}"#,
        ),
    ] {
        for (settings, is_same) in [(&[][..], false), (&[("IDEMPOTENCY_COMPARE", "key-alone")], true)] {
            let lambda = Lambda::start().await;
            let function =
                Function::start(&lambda, &[&[("IDEMPOTENCY_KEY", "/id")], settings].concat()).await;
            assert!(delivered(&lambda, &function, &one, own).await.0);
            let (runs, again) = delivered(&lambda, &function, &other, own).await;
            let is_replay = !again.is_error && again.text() == own;
            assert_eq!((runs, is_replay), (false, is_same), "{other}: {again:?}");
        }
    }
}

/// A request to this path of an API.
fn to(front_end: &str, path: &str) -> Value {
    let mut request = event(front_end, POST);
    match front_end {
        "rest-api" => {
            request["path"] = path.into();
            request["resource"] = path.into();
            request["requestContext"]["resourcePath"] = path.into();
            request["requestContext"]["path"] = format!("/prod{path}").into();
        }
        "alb" => request["path"] = path.into(),
        _ => {
            request["rawPath"] = format!("/v1{path}").into();
            request["requestContext"]["stage"] = "v1".into();
            request["requestContext"]["http"]["path"] = format!("/v1{path}").into();
        }
    }
    request
}

#[tokio::test]
async fn operation_of_each_path_has_keys() {
    for front_end in ["rest-api", "http-api", "alb"] {
        let sent = |path| to(front_end, path);
        let usual = [(sent("/charges"), Runs), (sent("/refunds/17"), Refuses(422))];
        requests(&[], &usual).await;
        let named = [
            (sent("/charges"), Runs),
            (sent("/refunds/17"), Runs),
            (sent("/charges"), Replays),
            (sent("/refunds/17"), Replays),
            (sent("/refunds/18"), Refuses(422)),
            (sent("/other"), Runs),
            (sent("/another"), Refuses(422)),
        ];
        let setting = ("IDEMPOTENCY_OPERATIONS", "/charges=charge, /refunds/{id}=refund");
        requests(&[setting], &named).await;
    }
}

#[tokio::test]
async fn replays_have_chosen_headers() {
    let lambda = Lambda::start().await;
    let settings = [
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_REPLAY_HEADERS", "set-cookie, !x-receipt"),
        ("IDEMPOTENCY_REPLAY_MARKER", "x-replayed"),
    ];
    let function = Function::start(&lambda, &settings).await;
    let request = event("alb", POST).to_string();
    delivered(&lambda, &function, &request, &created().to_string()).await;
    let (runs, replay) = delivered(&lambda, &function, &request, "never").await;
    let found =
        ["set-cookie", "x-receipt", "x-replayed", "idempotent-replayed"].map(|name| header(&replay, name));
    let expected = [Some("a=1"), None, Some("true"), None].map(|value| value.map(str::to_owned));
    assert_eq!((runs, found), (false, expected));
}

#[tokio::test]
async fn larger_bodies_are_refused() {
    let sent = |body| event("http-api", Sent { body, ..POST });
    let all = [(sent("12345678"), Runs), (sent("123456789"), Refuses(413))];
    requests(&[("IDEMPOTENCY_MAX_BODY", "8")], &all).await;
}

#[tokio::test]
async fn unretained_answers_have_a_substitute() {
    let own = created().to_string();
    for (key, event, own, expected) in [
        ("/id", r#"{"id": 1}"#.to_owned(), "\"a receipt\"".to_owned(), json!({ "ended": true })),
        ("header", event("http-api", POST).to_string(), own.clone(), json!(200)),
        ("header", event("function-url", POST).to_string(), own, json!(200)),
    ] {
        let lambda = Lambda::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", key),
            ("IDEMPOTENCY_MAX_RESPONSE", "0"),
            ("IDEMPOTENCY_ON_NOT_RETAINED", r#"{"ended": true}"#),
        ];
        let function = Function::start(&lambda, &settings).await;
        let (runs, first) = delivered(&lambda, &function, &event, &own).await;
        assert_eq!((runs, first.text()), (true, own.clone()), "the first caller gets the function's answer");
        let (runs, again) = delivered(&lambda, &function, &event, &own).await;
        let json = again.json();
        let found = if key == "header" { &json["statusCode"] } else { &json };
        assert_eq!((runs, again.is_error, found), (false, false, &expected), "{again:?}");
        assert!(again.text().contains("ended"), "{again:?}");
    }
}

/// An SQS message.
fn message(queue: &str, body: &str) -> Value {
    json!({
        "messageId": format!("of {queue}"), "eventSource": "aws:sqs", "body": body, "receiptHandle": "r",
        "eventSourceARN": format!("arn:aws:sqs:eu-west-1:1:{queue}"), "attributes": {}, "messageAttributes": {},
    })
}

/// An SQS batch with one message.
fn batch(queue: &str, body: &str) -> String {
    json!({ "Records": [message(queue, body)] }).to_string()
}

#[tokio::test]
async fn sources_of_one_name_share_keys() {
    for (settings, runs_again) in [(&[][..], true), (&[("IDEMPOTENCY_SOURCE_NAME", "orders")], false)] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[&[("IDEMPOTENCY_KEY", "/id")], settings].concat()).await;
        let (all_done, body) = (r#"{"batchItemFailures":[]}"#, r#"{"id": 1}"#);
        assert!(delivered(&lambda, &function, &batch("orders", body), all_done).await.0);
        let (runs, _) = delivered(&lambda, &function, &batch("orders-dlq", body), all_done).await;
        assert_eq!(runs, runs_again, "{settings:?}");
    }
}

#[tokio::test]
async fn records_with_recorded_errors_are_acknowledged() {
    for (settings, redelivers) in [(&[][..], true), (&[("IDEMPOTENCY_BATCH_FAILED", "acknowledge")], false)] {
        let lambda = Lambda::start().await;
        let usual = [("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_ON_ERROR", "record")];
        let function = Function::start(&lambda, &[&usual[..], settings].concat()).await;
        let waiting = lambda.deliver(batch("orders", r#"{"id": 1}"#));
        function.fail(&function.next().await, "Declined").await;
        let first = posted(waiting).await;
        assert_eq!(first.is_error, redelivers, "{first:?}");
        let (runs, again) = delivered(&lambda, &function, &batch("orders", r#"{"id": 1}"#), "never").await;
        let is_listed = again.text().contains("itemIdentifier");
        assert_eq!((runs, is_listed), (false, redelivers), "{again:?}");
    }
}

/// The lease of the event's record, as milliseconds since 1970.
async fn lease(database: &Database) -> u64 {
    let idempotency = Idempotency::builder(MemoryStore::new()).function("f").build().unwrap();
    let described = idempotency.events_by::<Value>(KeyFields::new(["/id"]).unwrap()).describe();
    let located = described.locate(br#"{"id": 1}"#, &Context::default(), None).unwrap();
    let record = database.record("records", located[0].key.as_str()).await.unwrap();
    record["lease_until"]["N"].as_str().unwrap_or_else(|| panic!("{record}")).parse().unwrap()
}

#[tokio::test]
async fn lease_has_the_chosen_length() {
    let no_deadline = [("lambda-runtime-deadline-ms", "")];
    let now = || {
        u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap()
    };
    for (setting, headers, expected) in [
        (("IDEMPOTENCY_LEASE_GRACE", "2s"), &[][..], 60 + 2),
        (("IDEMPOTENCY_LEASE_GRACE", "30s"), &[], 60 + 30),
        (("IDEMPOTENCY_LEASE_FALLBACK", "60s"), &no_deadline, 60),
        (("IDEMPOTENCY_LEASE_FALLBACK", "300s"), &no_deadline, 300),
    ] {
        let (lambda, (database, wire)) = (Lambda::start().await, table().await);
        let endpoint = wire.endpoint();
        let function = Function::start(&lambda, &[&on_table(&endpoint)[..], &[setting]].concat()).await;
        let begun = now();
        let _waiting = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(60), headers);
        function.next().await;
        let length = lease(&database).await.saturating_sub(begun);
        let expected = expected * 1000;
        assert!((expected..expected + 5000).contains(&length), "{setting:?}: {length} ms");
    }
}

/// The table rejects every write of an outcome. The layer then answers without it, in the end.
#[tokio::test]
async fn outcomes_are_retried_for_the_chosen_time() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let setting = [("IDEMPOTENCY_SETTLE_WITHIN", "1s")];
    let function = Function::start(&lambda, &[&on_table(&endpoint)[..], &setting].concat()).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    let next = function.next().await;
    wire.break_next(1000, HttpWay::ErrorBefore);
    let begun = Instant::now();
    function.respond(&next, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
    // The default is 30 s, and the deadline is a minute away.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// A principal of a Lambda authorizer belongs to its API, so without a name for the API, a new API has new callers.
#[tokio::test]
async fn apis_of_one_name_share_keys() {
    let of_api = |id: &str| {
        let mut request = event("http-api", POST);
        request["requestContext"]["authorizer"] = json!({ "lambda": { "principalId": "anna" } });
        request["requestContext"]["apiId"] = id.into();
        request
    };
    for (settings, then) in [(&[][..], Runs), (&[("IDEMPOTENCY_API_NAME", "shop")], Replays)] {
        let all = [(of_api("first"), Runs), (of_api("first"), Replays), (of_api("replaced"), then)];
        requests(settings, &all).await;
    }
}

/// A duplicate waits for the running delivery, but not longer than its front end.
#[tokio::test]
async fn duplicates_wait_as_long_as_the_front_end() {
    for (settings, expected) in [(&[][..], 9..20), (&[("IDEMPOTENCY_ANSWER_WITHIN", "2s")], 0..9)] {
        let lambda = Lambda::start().await;
        let usual = [("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:10s")];
        let function = Function::start(&lambda, &[&usual[..], settings].concat()).await;
        let request = event("function-url", POST).to_string();
        let _running = lambda.deliver(&request);
        function.next().await;
        let begun = Instant::now();
        let mut duplicate = pin!(posted(lambda.deliver(&request)));
        let refused = tokio::select! {
            refused = &mut duplicate => refused,
            next = function.next() => panic!("the function got {next:?}"),
        };
        let took = begun.elapsed().as_secs();
        assert_eq!(status(&refused), 409, "{settings:?}: {refused:?}");
        assert!(expected.contains(&took), "{settings:?}: {took} s");
    }
}

/// The lease ends at the deadline, 4 s after the delivery.
#[tokio::test]
async fn takeovers_wait_for_the_skew_margin() {
    for (margin, expected) in [("1ms", 4000..8900), ("5s", 8900..u128::MAX)] {
        let lambda = Lambda::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:20s"),
            ("IDEMPOTENCY_LEASE_GRACE", "1ms"),
            ("IDEMPOTENCY_SKEW_MARGIN", margin),
        ];
        let function = Function::start(&lambda, &settings).await;
        let begun = Instant::now();
        let _slow = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(4), &[]);
        function.next().await;
        let _successor = lambda.deliver(r#"{"id": 1}"#);
        function.next().await;
        let took = begun.elapsed().as_millis();
        assert!(expected.contains(&took), "{margin}: {took} ms");
    }
}

/// The table rejects every write of an outcome, for longer than the deadline is away.
#[tokio::test]
async fn store_has_no_time_within_the_reserve() {
    for (settings, expected) in [(&[][..], 6000..13000), (&[("IDEMPOTENCY_ANSWER_RESERVE", "6s")], 0..4500)] {
        let answered = async || {
            let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
            let endpoint = wire.endpoint();
            let function = Function::start(&lambda, &[&on_table(&endpoint)[..], settings].concat()).await;
            let waiting = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(8), &[]);
            let next = function.next().await;
            wire.break_next(1000, HttpWay::ErrorBefore);
            let begun = Instant::now();
            function.respond(&next, "1").await;
            assert_eq!(posted(waiting).await.text(), "1");
            begun.elapsed().as_millis()
        };
        let took = unpaused(answered, |took| expected.contains(took)).await;
        assert!(expected.contains(&took), "{settings:?}: {took} ms");
    }
}

/// The first record takes 22 s of the invocation's 30 s. The reserve is at most a sixth of the time, so the last 10 s
/// are twice the reserve.
#[tokio::test]
async fn records_are_claimed_before_the_reserve() {
    let messages: Vec<Value> =
        ["1", "2"].iter().map(|id| message(id, &json!({ "id": id }).to_string())).collect();
    let two = json!({ "Records": messages }).to_string();
    for (reserve, is_claimed) in [("100ms", true), ("1m", false)] {
        let lambda = Lambda::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", "/id"),
            ("IDEMPOTENCY_BATCH", "each"),
            ("IDEMPOTENCY_BATCH_RESERVE", reserve),
        ];
        let function = Function::start(&lambda, &settings).await;
        let mut answered = pin!(posted(lambda.deliver_with(&two, Duration::from_secs(30), &[])));
        let first = function.next().await;
        tokio::time::sleep(Duration::from_secs(22)).await;
        function.respond(&first, "1").await;
        let answer = tokio::select! {
            answer = &mut answered => answer,
            second = function.next() => {
                assert!(is_claimed, "{reserve}: {second:?}");
                function.respond(&second, "1").await;
                answered.await
            }
        };
        let returned = answer.text().contains("itemIdentifier");
        assert_eq!((answer.is_error, returned), (false, !is_claimed), "{reserve}: {answer:?}");
    }
}

/// Without the table, only a cached outcome can be replayed.
#[tokio::test]
async fn local_cache_keeps_the_chosen_number() {
    for (settings, first_is_cached) in [(&[][..], true), (&[("IDEMPOTENCY_LOCAL_CACHE_RECORDS", "1")], false)]
    {
        let (lambda, (database, wire)) = (Lambda::start().await, table().await);
        let endpoint = wire.endpoint();
        let cache = [("IDEMPOTENCY_LOCAL_CACHE", "65536")];
        let settings = [&on_table(&endpoint)[..], &cache, settings].concat();
        let function = Function::start(&lambda, &settings).await;
        for order in [r#"{"id": 1}"#, r#"{"id": 2}"#] {
            assert!(delivered(&lambda, &function, order, "1").await.0);
        }
        drop((database, wire));
        for (order, is_cached) in [(r#"{"id": 2}"#, true), (r#"{"id": 1}"#, first_is_cached)] {
            let time = Duration::from_secs(2);
            let again = lambda.deliver_with(order, time, &[]);
            function.gets_nothing_until(tokio::time::sleep(time)).await;
            assert_eq!(posted(again).await.is_error, !is_cached, "{settings:?}: {order}");
        }
    }
}
