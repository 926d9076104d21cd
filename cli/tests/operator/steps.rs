//! `why` for the records of a handler's steps, and for a key whose field is absent.

use lambda_idempotency::{Failure, Idempotency, Key, settings::Mode};
use lambda_runtime::Context;
use serde_json::{Value, json};

use super::bench::{Answer, Bench, File, TABLE};

const REQUEST: &str = "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e14";

/// Runs the steps of one trip. The step `pay` fails permanently.
async fn book(bench: &Bench, mode: Mode, trip: &str) -> Idempotency {
    let builder = Idempotency::builder(bench.store.clone()).function("trips").mode(mode);
    let mut context = Context::default();
    context.request_id = REQUEST.to_owned();
    let idempotency = builder.build().unwrap().for_context(&context);
    for step in ["hotel", "flight", "pay"] {
        let work = async || match step {
            "pay" => Err(Failure::permanent("NothingToPay", "the trip costs nothing")),
            step => Ok(format!("{step} booked")),
        };
        let _ = idempotency.operation(step).unwrap().run(Key::new(trip).unwrap(), &trip, work).await;
    }
    idempotency
}

fn parts(answer: &Answer) -> Vec<(String, Value)> {
    let json = answer.json();
    let operations = json["operations"].as_array().unwrap().iter();
    let part = |operation: &Value| {
        (operation["part"].as_str().unwrap_or_default().to_owned(), operation["record"]["status"].clone())
    };
    operations.map(part).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_are_found_from_the_event() {
    let bench = Bench::new().await;
    book(&bench, Mode::Enforce, "17").await;
    let event = File::with("trip", json!({ "trip": { "id": 17, "city": "Rome" } }).to_string());
    let why = ["why", "--event", event.path(), "--function", "trips"];
    let steps = ["--step", "hotel=/trip/id", "--step", "flight=/trip/id", "--step", "pay=/trip/id"];
    let found = bench.run(&[&why[..], &steps, &["--json"]].concat()).await;
    assert_eq!(found.code, 0, "{found:?}");
    let expected =
        [("the step hotel", "COMPLETED"), ("the step flight", "COMPLETED"), ("the step pay", "FAILED")];
    assert_eq!(parts(&found), expected.map(|(part, status)| (part.to_owned(), json!(status))));
    let text = bench.run(&[&why[..], &steps].concat()).await;
    for words in [
        "the step hotel:\ntrips/run:hotel#",
        "COMPLETED, live",
        "`why` can't tell whether this event is the same request",
        "idempotency release 'trips/run:pay#",
    ] {
        assert!(text.out.contains(words), "{words:?} isn't in {text:?}");
    }
    // A step that hasn't run.
    let other = bench.run(&[&why[..], &["--step", "car=/trip/id"]].concat()).await;
    assert!(other.code == 1 && other.out.contains("There's no record under this id"), "{other:?}");
    // The handler's own record, and its step's.
    let both = bench.run(&[&why[..], &["--key-field", "/trip/id", "--json"], &steps[..2]].concat()).await;
    assert_eq!(
        parts(&both),
        [(String::new(), Value::Null), ("the step hotel".to_owned(), json!("COMPLETED"))]
    );
    for wrong in ["hotel", "=/trip/id", "hotel="] {
        let refused = bench.run(&[&why[..], &["--step", wrong]].concat()).await;
        assert!(refused.code == 2 && refused.err.contains("hotel=/trip_id"), "{refused:?}");
    }
    let field = bench.run(&[&why[..], &["--step", "hotel=trip.id", "--json"]].concat()).await;
    assert_eq!(parts(&field), parts(&found)[..1]);
    let closure = bench.run(&why).await;
    closure.is_bad_input(&["--step NAME=FIELD"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_messages_are_found() {
    let bench = Bench::new().await;
    book(&bench, Mode::Enforce, "17").await;
    let message = |id: &str, body: Value| {
        json!({ "messageId": id, "receiptHandle": "h", "body": body.to_string(), "attributes": {},
                "messageAttributes": {}, "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders" })
    };
    let messages = [message("m1", json!({ "trip": "17" })), message("m2", json!({ "trip": "18" }))];
    let event = File::with("messages", json!({ "Records": messages }).to_string());
    let why = ["why", "--event", event.path(), "--function", "trips", "--json"];
    let found = bench.run(&[&why[..], &["--step", "hotel=/trip"]].concat()).await;
    let of = |part: &str, status: Value| (part.to_owned(), status);
    assert_eq!(
        parts(&found),
        [of("the step hotel of m1", json!("COMPLETED")), of("the step hotel of m2", Value::Null)]
    );
    bench.run(&[&why[..], &["--step", "hotel=/TRIP"]].concat()).await.is_bad_input(&["`/TRIP`", "`trip`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn invocations_are_found_by_request_id() {
    let bench = Bench::new().await;
    book(&bench, Mode::Enforce, "17").await;
    // Another invocation's record.
    let (other, _) = bench.claim("run:hotel", 60).await;
    let found = bench.run(&["why", "--request-id", REQUEST]).await;
    assert_eq!(found.code, 0, "{found:?}");
    for words in [
        "Read all its 4 records. DynamoDB bills this as a Scan of the whole table.",
        "trips/run:hotel#",
        "trips/run:flight#",
        "trips/run:pay#",
        "COMPLETED, live",
    ] {
        assert!(found.out.contains(words), "{words:?} isn't in {found:?}");
    }
    assert!(!found.out.contains(other.as_str()), "{found:?}");
    let json = bench.run(&["why", "--request-id", REQUEST, "--json"]).await.json();
    assert_eq!((&json["searched"], json["operations"].as_array().unwrap().len()), (&json!(4), 3));
    let none = bench.run(&["why", "--request-id", REQUEST, "--function", "others"]).await;
    assert!(none.code == 1 && none.out.contains("No record's last claim is this invocation's."), "{none:?}");
    let both = bench.run(&["why", "17", "--request-id", REQUEST]).await;
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_key_fields_are_named() {
    let bench = Bench::new().await;
    let secret = json!({ "id": "secret-1", "amount": 5, "secret@example.com": 1, "order": { "number": 7 } });
    let event = File::with("absent", secret.to_string());
    let message = json!({ "messageId": "m1", "receiptHandle": "h", "body": secret.to_string(), "attributes": {},
        "messageAttributes": {}, "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-central-1:1:orders" });
    let batch = File::with("absent-batch", json!({ "Records": [message] }).to_string());
    let http = json!({
        "version": "2.0", "rawPath": "/payments", "rawQueryString": "", "headers": { "content-type": "application/json" },
        "requestContext": { "accountId": "1", "apiId": "a", "domainName": "d.example.com", "requestId": "r", "stage": "$default",
            "http": { "method": "POST", "path": "/payments", "sourceIp": "192.0.2.1", "protocol": "HTTP/1.1", "userAgent": "u" },
            "time": "22/Nov/2026:20:41:07 +0000", "timeEpoch": 1_795_379_667_000_u64, "routeKey": "$default" },
        "body": secret.to_string(), "isBase64Encoded": false,
    });
    let request = File::with("absent-request", http.to_string());
    let names = "the top level has `amount`, `id`, `order`, 1 more";
    for (file, options, words) in [
        (&event, &["--key-field", "/ID"][..], names),
        (&event, &["--key-field", "/order/id"], "`/order` has `number`"),
        (&event, &["--step", "hotel=/ID"], names),
        (&event, &["--via", "run", "--operation", "hotel", "--key-field", "/ID"], names),
        (&batch, &["--key-field", "/ID"], names),
        (&batch, &["--step", "hotel=/ID"], names),
        (&request, &["--key-field", "/ID"], names),
        (&request, &["--step", "hotel=/ID"], names),
    ] {
        let why = ["why", "--event", file.path(), "--function", "steps"];
        let answer = bench.run(&[&why[..], options].concat()).await;
        let said = format!("{}{}", answer.out, answer.err);
        let field = if words == names { "`/ID` is absent" } else { "`/order/id` is absent" };
        assert!(answer.code != 0 && said.contains(field) && said.contains(words), "{options:?}: {answer:?}");
    }
    let json = bench
        .run(&["why", "--event", batch.path(), "--function", "steps", "--key-field", "/ID", "--json"])
        .await;
    let why = format!("`/ID` is absent: {names}");
    assert_eq!(json.json()["reasons"], json!([{ "part": "m1", "why": why }]), "{TABLE}");
}
