//! `why`: every sample event leads to the records that the library's wrappers made for it.

use std::{collections::BTreeSet, convert::Infallible, fs, path::Path};

use lambda_http::{
    Body, Request, Response,
    request::LambdaRequest,
    tower::{Layer as _, ServiceExt as _, service_fn},
};
use lambda_idempotency::{
    Failure, Idempotency, Key, KeyFields,
    lambda::{
        batch::{DynamoDbRecord, KafkaRecord, KinesisRecord, SqsMessage},
        event::EventLayer,
        http::guarded,
        keys,
    },
    settings::Mode,
};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json, value::RawValue};

use super::bench::{Answer, Bench, CALLER, File, KEY, TABLE, run_in};

const REQUEST: &str = "8f5b2c70-4d1e-4a93-b6c8-0e7d9a3f1b52";

/// The sample events, as `folder/name`.
fn samples() -> Vec<String> {
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events");
    let mut found = Vec::new();
    for folder in fs::read_dir(&events).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            let name = |name: std::ffi::OsString| name.into_string().unwrap();
            found.push(format!("{}/{}", name(folder.file_name()), name(file.file_name())));
        }
    }
    found.sort();
    found
}

fn path(sample: &str) -> String {
    format!("{}/../events/{sample}", env!("CARGO_MANIFEST_DIR"))
}

fn delivery(sample: &str) -> LambdaEvent<Box<RawValue>> {
    let mut context = Context::default();
    context.request_id = REQUEST.to_owned();
    LambdaEvent::new(serde_json::from_str(&fs::read_to_string(path(sample)).unwrap()).unwrap(), context)
}

async fn one(layer: EventLayer<Value>, sample: &str) {
    let handler = service_fn(async |_: LambdaEvent<Value>| Ok::<_, lambda_runtime::Error>("done"));
    let _ = layer.layer(handler).oneshot(delivery(sample)).await;
}

/// Delivers a sample to a function that's wrapped like the examples, and returns the options that `why` needs.
async fn deliver(idempotency: &Idempotency, sample: &str) -> &'static [&'static str] {
    let (folder, name) = sample.split_once('/').unwrap();
    let done = async |_| Ok::<_, Failure>("done");
    match folder {
        "payments" => {
            let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
            let service = guarded(idempotency.http().layer(handler));
            let event: LambdaRequest =
                serde_json::from_str(&fs::read_to_string(path(sample)).unwrap()).unwrap();
            let _ = service.oneshot(LambdaEvent::new(event, Context::default())).await;
            &[]
        }
        "orders" => {
            let worker = idempotency.sqs(|message: &SqsMessage| Key::from_json(message, "/order_id"), done);
            let _ = worker.operation("ship").unwrap().oneshot(delivery(sample)).await;
            &["--operation", "ship", "--key-field", "/order_id"]
        }
        "receipts" => {
            one(idempotency.events(|event: &Value| event["id"].as_str().map(Key::new).transpose()), sample)
                .await;
            &[]
        }
        "refunds" => {
            let key = |event: &Value| event["refund_id"].as_str().map(Key::new).transpose();
            one(idempotency.events(key), sample).await;
            &["--key-field", "/refund_id"]
        }
        _ => {
            let source = name.split(['-', '.']).next().unwrap();
            match source {
                "sns" => one(idempotency.events_by(keys::sns()), sample).await,
                "s3" => one(idempotency.events_by(keys::s3()), sample).await,
                "scheduler" => one(idempotency.events_by(keys::scheduler()), sample).await,
                "step" => one(idempotency.events_by(keys::step_functions()), sample).await,
                "async" => {
                    one(idempotency.events_by_request_id(), sample).await;
                    return &["--request-id", REQUEST];
                }
                "kinesis" => {
                    let worker =
                        idempotency.kinesis(KinesisRecord::sequence_key, async |_| Ok::<_, Failure>(()));
                    let _ = worker.oneshot(delivery(sample)).await;
                }
                "dynamodb" => {
                    let worker = idempotency
                        .dynamodb_stream(DynamoDbRecord::event_key, async |_| Ok::<_, Failure>(()));
                    let _ = worker.oneshot(delivery(sample)).await;
                }
                "kafka" => {
                    let worker = idempotency.kafka(KafkaRecord::offset_key, async |_| Ok::<_, Failure>(()));
                    let _ = worker.oneshot(delivery(sample)).await;
                }
                "activemq" | "rabbitmq" => {
                    each(idempotency, sample).await;
                    return &["--operation", "ship"];
                }
                other => panic!("{other}: add the wrapper for this source to the test"),
            }
            &[]
        }
    }
}

/// Runs each record as its own operation, as a function does if the library has no worker for the event's source.
async fn each(idempotency: &Idempotency, sample: &str) {
    let event: Value = serde_json::from_str(&fs::read_to_string(path(sample)).unwrap()).unwrap();
    let fields = |queue: &str| keys::mq_message(event["eventSourceArn"].as_str().unwrap(), queue);
    let lists = ["messages", "rmqMessagesByQueue"].into_iter().find_map(|name| event.get(name)).unwrap();
    let records: Vec<(&str, &Value)> = match lists {
        Value::Object(lists) => {
            let of = lists.iter().flat_map(|(name, list)| {
                list.as_array().unwrap().iter().map(move |record| (name.as_str(), record))
            });
            of.collect()
        }
        list => list.as_array().unwrap().iter().map(|message| ("orders", message)).collect(),
    };
    let ship = idempotency.operation("ship").unwrap();
    for (queue, record) in records {
        let key = fields(queue).key_of(record.to_string().as_bytes()).unwrap().unwrap();
        let _ = ship.run(key, record, || async { Ok::<_, std::io::Error>(()) }).await;
    }
}

/// The ids of this function's records.
async fn made(bench: &Bench, function: &str) -> BTreeSet<String> {
    let (mut made, mut from) = (BTreeSet::new(), None);
    loop {
        let page = bench.store.scan(from).await.unwrap();
        let of_function = page.records.iter().map(|(key, _)| key.to_string());
        made.extend(of_function.filter(|key| key.starts_with(&format!("{function}/"))));
        from = page.next;
        if from.is_none() {
            return made;
        }
    }
}

fn found(answer: &Answer) -> BTreeSet<String> {
    let json = answer.json();
    let operations = json["operations"].as_array().unwrap().iter();
    let found = operations.filter(|operation| !operation["record"].is_null());
    found.map(|operation| operation["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_event_leads_to_its_records() {
    let bench = Bench::new().await;
    let samples = samples();
    assert!(samples.len() >= 50, "{samples:?}");
    let mut without = Vec::new();
    for (nth, sample) in samples.iter().enumerate() {
        let function = format!("sample-{nth}");
        let idempotency = Idempotency::builder(bench.store.clone()).function(&function).build().unwrap();
        let options = deliver(&idempotency, sample).await;
        let made = made(&bench, &function).await;
        let path = path(sample);
        let why = ["why", "--event", &path, "--function", &function, "--json"];
        let answer = bench.run(&[&why[..], options].concat()).await;
        if made.is_empty() {
            assert_ne!(answer.code, 0, "{sample}: {answer:?}");
            without.push(sample.as_str());
            continue;
        }
        let json = answer.json();
        // Some messages of this batch have no key.
        let is_malformed = sample == "orders/sqs-malformed.json";
        assert_eq!(json["without_key"].as_array().unwrap().is_empty(), !is_malformed, "{sample}: {json}");
        assert_eq!(answer.code, i32::from(is_malformed), "{sample}: {answer:?}");
        assert_eq!(found(&answer), made, "{sample}");
        let operations = json["operations"].as_array().unwrap().iter();
        let payloads: Vec<_> = operations.map(|operation| operation["same_payload"].clone()).collect();
        assert!(payloads.iter().all(|same| *same == json!(true) || same.is_null()), "{sample}: {payloads:?}");
    }
    // The functions refuse these events, or run them without a key.
    assert_eq!(
        without,
        [
            "payments/http-api-get.json",
            "payments/http-api-malformed-key.json",
            "receipts/event-bridge-without-id.json",
            "refunds/invoke-without-key.json",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn why_shows_what_the_next_delivery_gets() {
    let bench = Bench::new().await;
    let idempotency = Idempotency::builder(bench.store.clone()).function("refunds").build().unwrap();
    deliver(&idempotency, "refunds/invoke.json").await;
    let why = async |sample: &str| {
        let path = path(sample);
        bench.run(&["why", "--event", &path, "--function", "refunds", "--key-field", "/refund_id"]).await
    };
    let same = why("refunds/invoke-again.json").await;
    for words in ["COMPLETED, live", "it gets the recorded response", "idempotency release 'refunds/event#"] {
        assert!(same.out.contains(words), "{words:?} isn't in {same:?}");
    }
    let other = why("refunds/invoke-conflicting.json").await;
    assert!(other.out.contains("another payload") && other.out.contains("Mismatch (HTTP 422)"), "{other:?}");
    let absent = bench
        .run(&[
            "why",
            "--event",
            &path("refunds/invoke.json"),
            "--function",
            "another",
            "--key-field",
            "/refund_id",
        ])
        .await;
    assert_eq!(absent.code, 1);
    assert!(
        absent.out.contains("There's no record under this id")
            && absent.out.contains("another function name")
    );
    let closure = bench.run(&["why", "--event", &path("refunds/invoke.json"), "--function", "refunds"]).await;
    closure.is_bad_input(&["--key-field"]);
    let nameless = bench.run(&["why", "--event", &path("refunds/invoke.json")]).await;
    nameless.is_bad_input(&["--function"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_claims_refuse_other_payloads() {
    let bench = Bench::new().await;
    bench.claim("event", -180).await;
    let file = std::env::temp_dir().join(format!("other-payload-{}.json", std::process::id()));
    fs::write(&file, json!({ "id": KEY }).to_string()).unwrap();
    let event = file.to_str().unwrap();
    let found = bench.run(&["why", "--event", event, "--function", "payments", "--key-field", "/id"]).await;
    fs::remove_file(&file).unwrap();
    for words in ["STARTED, stale", "another payload", "Mismatch (HTTP 422)"] {
        assert!(found.out.contains(words), "{words:?} isn't in {found:?}");
    }
    assert!(!found.out.contains("takes over the claim"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closure_errors_name_the_option_to_add() {
    let bench = Bench::empty().await;
    let file = std::env::temp_dir().join(format!("describe-closures-{}.json", std::process::id()));
    for (via, field, sample, option) in [
        ("http", json!({ "caller_from_closure": true }), "payments/http-api.json", "--resolved-caller TEXT"),
        ("sqs", json!({ "key_from": "closure" }), "orders/sqs.json", "--key-field FIELD"),
    ] {
        let mut description = json!({ "function": "payments", "via": via });
        description.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        fs::write(&file, description.to_string()).unwrap();
        let why = ["why", "--event", &path(sample), "--describe", file.to_str().unwrap()];
        bench.run(&why).await.is_bad_input(&[option]);
    }
    fs::remove_file(&file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_store_variables_are_refused() {
    let bench = Bench::new().await;
    let store = format!("dynamodb://{TABLE}?endpoint={}&region=eu-west-1", bench.endpoint());
    let description =
        json!({ "function": "refunds", "via": "event", "key_fields": ["/refund_id"], "store": store });
    let file = std::env::temp_dir().join(format!("describe-store-{}.json", std::process::id()));
    fs::write(&file, description.to_string()).unwrap();
    let event = path("refunds/invoke.json");
    let why = ["why", "--event", &event, "--describe", file.to_str().unwrap()];
    let with = async |store: &str| {
        let key = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
        run_in(&[&key[..], &[("IDEMPOTENCY_STORE", store)]].concat(), &why).await
    };
    let described = with("").await;
    assert!(described.code == 1 && described.out.contains("There's no record"), "{described:?}");
    with("mysql://h").await.is_bad_input(&["IDEMPOTENCY_STORE", "unknown scheme \"mysql\""]);
    with("dynamodb://").await.is_bad_input(&["IDEMPOTENCY_STORE doesn't name a table"]);
    fs::remove_file(&file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn described_store_and_environment_must_agree() {
    let bench = Bench::new().await;
    let idempotency = Idempotency::builder(bench.store.clone()).function("refunds").build().unwrap();
    deliver(&idempotency, "refunds/invoke.json").await;
    let store = format!("dynamodb://{TABLE}?endpoint={}&region=eu-west-1", bench.endpoint());
    let description =
        json!({ "function": "refunds", "via": "event", "key_fields": ["/refund_id"], "store": store });
    let file = std::env::temp_dir().join(format!("describe-place-{}.json", std::process::id()));
    fs::write(&file, description.to_string()).unwrap();
    let event = path("refunds/invoke.json");
    let why = ["why", "--event", &event, "--describe", file.to_str().unwrap()];
    let with = async |variable: (&str, &str), options: &[&str]| {
        let key = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
        run_in(&[&key[..], &[variable]].concat(), &[&why[..], options].concat()).await
    };
    let other = with(("IDEMPOTENCY_TABLE", "staging"), &[]).await;
    other.is_bad_input(&["dynamodb://staging", &format!("dynamodb://{TABLE}"), "--table NAME"]);
    // The environment names the same store, or none, or an option overrides the environment.
    for (variable, options) in [
        (("IDEMPOTENCY_STORE", store.as_str()), &[][..]),
        (("IDEMPOTENCY_TABLE", ""), &[]),
        (("IDEMPOTENCY_TABLE", "staging"), &["--store", &store]),
    ] {
        let found = with(variable, options).await;
        assert_eq!(found.code, 0, "{found:?}");
        assert!(found.out.starts_with(&format!("The store: dynamodb://{TABLE}?")), "{found:?}");
        let names_store = found.out.contains(&format!("--store 'dynamodb://{TABLE}?"));
        assert_eq!(names_store, variable.0 == "IDEMPOTENCY_TABLE", "{found:?}");
    }
    fs::remove_file(&file).unwrap();
}

/// The store's URL in a description has only the parameters that the function's environment sets. The operator's
/// environment and options may set more parameters, or fewer.
#[tokio::test(flavor = "multi_thread")]
async fn described_url_may_lack_parameters() {
    let bench = Bench::empty().await;
    let layout = ["--sort-key", "sk"];
    assert_eq!(bench.run(&[&["table", "create"], &layout[..]].concat()).await.code, 0);
    let file = |name: &str| std::env::temp_dir().join(format!("{name}-{}.json", std::process::id()));
    let (described, profile) = (file("describe-layout"), file("profile-layout"));
    fs::write(&profile, "[profile ops]\nregion = eu-west-1\n").unwrap();
    let (url, endpoint) = (format!("dynamodb://{TABLE}"), bench.endpoint());
    let of_profile = [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_PROFILE", "ops"),
        ("AWS_CONFIG_FILE", profile.to_str().unwrap()),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint.as_str()),
    ];
    let event = path("refunds/invoke.json");
    let why = ["why", "--event", &event, "--describe", described.to_str().unwrap()];
    for (store, variable, options) in [
        (url.clone(), ("IDEMPOTENCY_TABLE", TABLE.to_owned()), &layout[..]),
        (url.clone(), ("IDEMPOTENCY_STORE", format!("{url}?sort_key=sk")), &[]),
        (format!("{url}?region=eu-west-1"), ("IDEMPOTENCY_TABLE", TABLE.to_owned()), &layout[..]),
        (format!("{url}?endpoint={endpoint}"), ("IDEMPOTENCY_TABLE", TABLE.to_owned()), &layout[..]),
    ] {
        let description =
            json!({ "function": "refunds", "via": "event", "key_fields": ["/refund_id"], "store": store });
        fs::write(&described, description.to_string()).unwrap();
        let variable = [(variable.0, variable.1.as_str())];
        let absent = run_in(&[&of_profile[..], &variable].concat(), &[&why[..], options].concat()).await;
        assert!(absent.code == 1 && absent.out.contains("There's no record"), "{store}: {absent:?}");
    }
    fs::remove_file(&described).unwrap();
    fs::remove_file(&profile).unwrap();
}

/// The layer protects every kind of event, and its log has a description for each kind.
#[tokio::test(flavor = "multi_thread")]
async fn layers_log_describes_every_kind() {
    let bench = Bench::new().await;
    let idempotency = Idempotency::builder(bench.store.clone()).function("shop").build().unwrap();
    let done = async |_| Ok::<_, Failure>("done");
    let worker = idempotency.sqs(|message: &SqsMessage| Key::from_json(message, "/order_id"), done);
    let _ = worker.oneshot(delivery("orders/sqs.json")).await;
    one(idempotency.events_by(KeyFields::new(["/order_id"]).unwrap()), "orders/sqs.json").await;
    let wrappers = ["http", "sqs", "kinesis", "dynamodb", "kafka", "event"]
        .map(|via| json!({ "function": "shop", "via": via, "key_fields": ["/order_id"], "required_key_fields": 1 }));
    let line = json!({
        "timestamp": "2026-11-28T07:00:00Z", "level": "INFO", "message": "the idempotency layer starts",
        "event": "started", "version": "0.1.0", "wrappers": wrappers,
    });
    let file = std::env::temp_dir().join(format!("started-{}.json", std::process::id()));
    fs::write(&file, line.to_string()).unwrap();
    let event = path("orders/sqs.json");
    let found = bench.run(&["why", "--event", &event, "--describe", file.to_str().unwrap()]).await;
    assert!(
        found.code == 0 && found.out.contains("shop/sqs") && found.out.contains("COMPLETED"),
        "{found:?}"
    );
    fs::remove_file(&file).unwrap();
}

/// The layer's line says how a setting names the callers. A tool's name is in no event.
#[tokio::test(flavor = "multi_thread")]
async fn layers_callers_and_tools_are_found() {
    let bench = Bench::new().await;
    let shop = || Idempotency::builder(bench.store.clone()).function("shop");
    let text = |name: &str| json!(["field", ["x-user-id", name]]).to_string();
    let anna = text("anna");
    let layer = shop().build().unwrap().http().caller(move |_| Ok(Some(anna.clone())));
    let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
    let sample = "payments/http-api.json";
    let request: LambdaRequest = serde_json::from_str(&fs::read_to_string(path(sample)).unwrap()).unwrap();
    let _ = guarded(layer.layer(handler)).oneshot(LambdaEvent::new(request, Context::default())).await;
    let fields = || KeyFields::new(["/refund_id"]).unwrap();
    let by_tool = shop().build().unwrap().events_by(fields()).operation("refunds.pay___refund").unwrap();
    one(by_tool, "refunds/invoke.json").await;

    let wrappers = json!([
        { "function": "shop", "via": "http", "caller_from_closure": true },
        { "function": "shop", "via": "event", "operation": "refunds", "key_fields": ["/refund_id"] },
    ]);
    let line = |caller: Option<String>| {
        json!({ "event": "started", "version": "0.1.0", "wrappers": wrappers, "resolved_caller": caller })
            .to_string()
    };
    let (by_header, by_hash) =
        (File::with("by-header", line(Some(text("NAME")))), File::with("by-hash", line(None)));
    let why = async |sample: &str, file: &File, options: &[&str]| {
        let path = path(sample);
        bench.run(&[&["why", "--event", &path, "--describe", file.path()], options].concat()).await
    };
    let form = format!("--resolved-caller '{}'", text("NAME"));
    why(sample, &by_header, &[]).await.is_bad_input(&[&form, "why --request-id ID"]);
    why(sample, &by_hash, &[]).await.is_bad_input(&["hash of the credential", "why --request-id ID"]);
    let found = why(sample, &by_header, &["--resolved-caller", &text("anna")]).await;
    assert!(found.code == 0 && found.out.contains("shop/http"), "{found:?}");

    let plain = why("refunds/invoke.json", &by_header, &[]).await;
    assert!(plain.code == 1 && plain.out.contains("--tool NAME"), "{plain:?}");
    let tool = why("refunds/invoke.json", &by_header, &["--tool", "pay___refund"]).await;
    assert!(tool.code == 0 && tool.out.contains("COMPLETED"), "{tool:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn described_skew_margin_is_used() {
    let bench = Bench::new().await;
    bench.claim("event", -10).await;
    let file = |name: &str| std::env::temp_dir().join(format!("{name}-{}.json", std::process::id()));
    let (event, described) = (file("margin-event"), file("margin-described"));
    fs::write(&event, json!({ "id": KEY }).to_string()).unwrap();
    let description = json!({
        "function": "payments", "via": "event", "key_fields": ["/id"], "skew_margin_ms": 36_000_000,
    });
    fs::write(&described, description.to_string()).unwrap();
    let why = ["why", "--event", event.to_str().unwrap(), "--describe", described.to_str().unwrap()];
    let found = bench.run(&why).await;
    for words in ["within the skew margin", "idempotency release 'payments/event#", " --skew-margin 10h\n"] {
        assert!(found.out.contains(words), "{words:?} isn't in {found:?}");
    }
    let given = bench.run(&[&why[..], &["--skew-margin", "2s"]].concat()).await;
    assert!(given.out.contains("STARTED, stale"), "{given:?}");
    fs::remove_file(&event).unwrap();
    fs::remove_file(&described).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_a_key_are_listed() {
    let bench = Bench::new().await;
    let message = |id: &str, body: Value| {
        json!({ "messageId": id, "receiptHandle": "h", "body": body.to_string(), "attributes": {},
                "messageAttributes": {}, "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders" })
    };
    let event = json!({ "Records": [
        message("first", json!({ "order_id": KEY })),
        message("sec\u{1b}ond", json!({ "article": "spoon" })),
    ] });
    let worker = bench
        .function()
        .sqs(|message: &SqsMessage| Key::from_json(message, "/order_id"), async |_| Ok::<_, Failure>(()));
    let raw = RawValue::from_string(event.to_string()).unwrap();
    let _ = worker.oneshot(LambdaEvent::new(raw, Context::default())).await;
    let file = std::env::temp_dir().join(format!("unkeyed-{}.json", std::process::id()));
    fs::write(&file, event.to_string()).unwrap();
    let why =
        ["why", "--event", file.to_str().unwrap(), "--function", "payments", "--key-field", "/order_id"];
    let found = bench.run(&why).await;
    assert_eq!(found.code, 1, "{found:?}");
    for words in ["first:\n", "COMPLETED, live", "sec\\u{1b}ond: no valid key", "returned to its source"] {
        assert!(found.out.contains(words), "{words:?} isn't in {found:?}");
    }
    let json = bench.run(&[&why[..], &["--json"]].concat()).await.json();
    assert_eq!(json["without_key"], json!(["sec\u{1b}ond"]));
    // In shadow mode, the worker runs a message without a key, if it can read the message.
    let description = json!({
        "function": "payments", "via": "sqs", "key_fields": ["/order_id"], "mode": "shadow",
    });
    let described = file.with_extension("describe.json");
    fs::write(&described, description.to_string()).unwrap();
    let shadow = ["why", "--event", file.to_str().unwrap(), "--describe", described.to_str().unwrap()];
    let found = bench.run(&shadow).await;
    assert!(found.out.contains("without a record, unless the message can't be read."), "{found:?}");
    fs::remove_file(&described).unwrap();
    // A batch in which no message has a key.
    fs::write(&file, json!({ "Records": [event["Records"][1]] }).to_string()).unwrap();
    let found = bench.run(&why).await;
    assert_eq!(found.code, 1, "{found:?}");
    for words in ["no protected operation", "sec\\u{1b}ond: no valid key", "returned to its source"] {
        assert!(found.out.contains(words), "{words:?} isn't in {found:?}");
    }
    let json = bench.run(&[&why[..], &["--json"]].concat()).await.json();
    let why = "`/order_id` is absent: the top level has `article`";
    let reasons = json!([{ "part": "sec\u{1b}ond", "why": why }]);
    assert_eq!(json, json!({ "operations": [], "without_key": ["sec\u{1b}ond"], "reasons": reasons }));
    fs::remove_file(&file).unwrap();
}

/// A pipe of EventBridge Pipes delivers an array, and identifies a stream's records by their events' ids.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_pipes_are_found() {
    let bench = Bench::new().await;
    let record = |id: &str, data: &str| {
        json!({
            "eventID": format!("shard:{id}"), "sequenceNumber": id, "data": data, "eventSource": "aws:kinesis",
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/orders",
        })
    };
    // Data that isn't JSON, `{"order": 17}`, and `{}`, which has no key.
    let event =
        json!([record("a", "eJvcmRlciI6MTd9"), record("b", "eyJvcmRlciI6IDE3fQ=="), record("c", "e30=")]);
    let key = |record: &KinesisRecord| Key::from_json(record, "/order");
    let worker = bench.function().kinesis(key, async |_| Ok::<_, Failure>(()));
    let raw = RawValue::from_string(event.to_string()).unwrap();
    let _ = worker.oneshot(LambdaEvent::new(raw, Context::default())).await;
    let file = std::env::temp_dir().join(format!("piped-{}.json", std::process::id()));
    let why = ["why", "--event", file.to_str().unwrap(), "--function", "payments", "--key-field", "/order"];
    fs::write(&file, event.to_string()).unwrap();
    let found = bench.run(&[&why[..], &["--json"]].concat()).await.json();
    assert_eq!(found["operations"][0]["part"], "shard:b", "{found}");
    assert!(found["operations"][0]["record"].is_object(), "{found}");
    assert_eq!(found["without_key"], json!(["shard:a", "shard:c"]));
    fs::write(&file, json!({ "eventSource": "aws:kinesis", "kinesis": {} }).to_string()).unwrap();
    bench.run(&why).await.is_bad_input(&["a single record of `aws:kinesis` without its batch"]);
    fs::remove_file(&file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptions_replace_the_options() {
    let bench = Bench::new().await;
    let idempotency = Idempotency::builder(bench.store.clone()).function("shop").build().unwrap();
    let orders = idempotency
        .sqs(|message: &SqsMessage| Key::from_json(message, "/order_id"), async |_| Ok::<_, Failure>(()))
        .operation("ship")
        .unwrap();
    let refunds = idempotency.events_by::<Value>(KeyFields::new(["/refund_id"]).unwrap());
    let payments = idempotency.http();
    let all = json!([payments.describe(), orders.describe(), refunds.describe()]);
    let file = std::env::temp_dir().join(format!("describe-{}.json", std::process::id()));
    fs::write(&file, all.to_string()).unwrap();
    let described = file.to_str().unwrap();
    one(idempotency.events_by(KeyFields::new(["/refund_id"]).unwrap()), "refunds/invoke.json").await;
    let _ = orders.oneshot(delivery("orders/sqs.json")).await;
    let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
    let event: LambdaRequest =
        serde_json::from_str(&fs::read_to_string(path("payments/http-api.json")).unwrap()).unwrap();
    let _ = guarded(payments.layer(handler)).oneshot(LambdaEvent::new(event, Context::default())).await;
    let expected = made(&bench, "shop").await;
    let mut seen = BTreeSet::new();
    for (sample, options) in [
        ("refunds/invoke.json", &[][..]),
        ("payments/http-api.json", &[]),
        ("orders/sqs.json", &["--via", "sqs", "--key-field", "/order_id"]),
    ] {
        let path = path(sample);
        let why = ["why", "--event", &path, "--describe", described, "--json"];
        let answer = bench.run(&[&why[..], options].concat()).await;
        assert_eq!(answer.code, 0, "{sample}: {answer:?}");
        seen.extend(found(&answer));
    }
    assert_eq!(seen, expected);
    fs::remove_file(&file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_callers_and_shadow_mode_are_found() {
    let bench = Bench::new().await;
    let sample = "payments/http-api.json";
    let event = || serde_json::from_str::<LambdaRequest>(&fs::read_to_string(path(sample)).unwrap()).unwrap();
    for (function, mode) in [("enforced", Mode::Enforce), ("shadowed", Mode::Shadow)] {
        let idempotency =
            Idempotency::builder(bench.store.clone()).function(function).mode(mode).build().unwrap();
        let layer = idempotency.http().caller(|_| Ok(Some(CALLER.to_owned())));
        let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
        let service = guarded(layer.layer(handler));
        // Shadow mode gives up a claim that takes longer than 100 ms, and tries again with the next delivery.
        for _ in 0..50 {
            let event = LambdaEvent::new(event(), Context::default());
            let _ = service.clone().oneshot(event).await;
            if mode == Mode::Enforce || !made(&bench, function).await.is_empty() {
                break;
            }
        }
        let path = path(sample);
        let why = ["why", "--event", &path, "--function", function];
        let without = bench.run(&why).await;
        assert_eq!(without.code, 1, "{without:?}");
        let with = bench.run(&[&why[..], &["--resolved-caller", CALLER]].concat()).await;
        assert_eq!(with.code, 0, "{with:?}");
        assert_eq!(with.out.contains("a record of shadow mode"), mode == Mode::Shadow, "{with:?}");
    }
}

/// A record of Kafka is shown by its topic, partition and offset, which is also its key if the function uses
/// `offset_key`.
#[tokio::test(flavor = "multi_thread")]
async fn kafka_records_are_found_by_place() {
    let bench = Bench::new().await;
    let cluster = "arn:aws:kafka:eu-west-1:1:cluster/shop/b7-4";
    let record = |offset: u64, value: Value| json!({ "topic": "orders", "partition": 0, "offset": offset, "value": value });
    // `{"order": 17}`, `{}`, which has no key, and a tombstone.
    let records =
        [record(15, "eyJvcmRlciI6IDE3fQ==".into()), record(16, "e30=".into()), record(17, json!(null))];
    let event =
        json!({ "eventSource": "aws:kafka", "eventSourceArn": cluster, "records": { "orders-0": records } });
    let deliver = || LambdaEvent::new(RawValue::from_string(event.to_string()).unwrap(), Context::default());
    let by_order = |record: &KafkaRecord| Key::from_json(record, "/order");
    let _ =
        bench.function().kafka(by_order, async |_| Ok::<_, Failure>(())).unordered().oneshot(deliver()).await;
    let by_offset = bench.function().kafka(KafkaRecord::offset_key, async |_| Ok::<_, Failure>(()));
    by_offset.oneshot(deliver()).await.unwrap();

    let file = std::env::temp_dir().join(format!("kafka-{}.json", std::process::id()));
    fs::write(&file, event.to_string()).unwrap();
    let why = ["why", "--event", file.to_str().unwrap(), "--function", "payments", "--json"];
    let found = bench.run(&why).await.json();
    let parts: Vec<_> = found["operations"].as_array().unwrap().iter().map(|of| of["part"].clone()).collect();
    assert_eq!(parts, ["orders-0@15", "orders-0@16", "orders-0@17"], "{found}");
    assert!(found["operations"].as_array().unwrap().iter().all(|of| of["record"].is_object()), "{found}");
    let found = bench.run(&[&why[..], &["--key-field", "/order"]].concat()).await.json();
    assert_eq!(found["operations"][0]["part"], "orders-0@15", "{found}");
    assert!(found["operations"][0]["record"].is_object(), "{found}");
    assert_eq!(found["without_key"], json!(["orders-0@16", "orders-0@17"]));
    assert!(found["reasons"][1]["why"].as_str().unwrap().contains("is a tombstone"), "{found}");
    let scope = ["--function", "payments", "--via", "kafka", "--source", cluster];
    for command in ["inspect", "why"] {
        let found = bench.run(&[&[command, "orders-0@17"], &scope[..]].concat()).await;
        assert_eq!(found.code, 0, "{found:?}");
    }
    fs::remove_file(&file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_keys_are_derived() {
    let bench = Bench::new().await;
    let arn = "arn:aws:sqs:eu-central-1:123456789012:orders";
    let record = |id: &str| {
        json!({ "Records": [{ "messageId": id, "receiptHandle": "h", "body": "{}", "attributes": {},
                "messageAttributes": {}, "eventSource": "aws:sqs", "eventSourceARN": arn }] })
    };
    let raw = RawValue::from_string(record(KEY).to_string()).unwrap();
    let worker = bench.function().sqs(SqsMessage::message_key, async |_| Ok::<_, Failure>(()));
    let _ = worker.oneshot(LambdaEvent::new(raw, Context::default())).await;
    for command in ["inspect", "why"] {
        for via in ["sqs", "sqs-fifo"] {
            let found =
                bench.run(&[command, KEY, "--function", "payments", "--via", via, "--source", arn]).await;
            assert_eq!(found.code, 0, "{found:?}");
        }
    }
    let scope = ["inspect", KEY, "--function", "payments", "--via"];
    bench.run(&[&scope[..], &["kinesis"]].concat()).await.is_bad_input(&["--source"]);
    bench.run(&[&scope[..], &["http", "--source", arn]].concat()).await.is_bad_input(&["--source"]);
}
