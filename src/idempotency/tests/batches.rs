//! The log events for the records that a batch returns for redelivery.

use lambda_runtime::{Context, LambdaEvent};
use serde_json::{json, value::RawValue};
use tower::Service as _;

use super::*;
use crate::{Failure, lambda::batch::SqsMessage};

/// Returns the id, kind and detail that the library logs for each returned record.
async fn returned(bench: &Bench, required: bool, bodies: &[&str]) -> Vec<String> {
    let keyed = |message: &SqsMessage| match message.body() {
        body if body.starts_with("keyless") => Ok(None),
        _ => message.message_key().map(Some),
    };
    let handler = async |message: SqsMessage| match message.body().trim_start_matches("keyless ") {
        "own" => Err(Failure::from(Key::new("").unwrap_err())),
        "other" => Err(Failure::from(std::io::Error::other("secret"))),
        "final" => Err(Failure::permanent("Final", "secret")),
        _ => Ok(()),
    };
    let mut worker = bench.idempotency.sqs(keyed, handler).required(required);
    let records = bodies.iter().map(|body| {
        json!({
            "messageId": body.replace(' ', "-"), "receiptHandle": "handle", "body": body, "attributes": {},
            "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
        })
    });
    let event = json!({ "Records": records.collect::<Vec<_>>() }).to_string();
    let event = LambdaEvent::new(RawValue::from_string(event).unwrap(), Context::default());
    let events = bench.recorded(async { worker.call(event).await.unwrap() }).await;
    let of_record = |event: &String| {
        let field = |name: &str| {
            let at = event.find(&format!(" {name}="))? + name.len() + 3;
            event[at..].split('"').next().map(str::to_owned)
        };
        let is_of_record = event.contains(r#"event="returned""#);
        is_of_record.then(|| ["record", "kind", "detail"].map(|name| field(name).unwrap()).join(": "))
    };
    events.iter().filter_map(of_record).collect()
}

#[tokio::test(start_paused = true)]
async fn returned_records_are_logged_with_a_reason() {
    let bench = Bench::new();
    let bodies = ["done", "own", "other", "final", "keyless"];
    let permanently = "it failed permanently; its handler doesn't run again";
    let mut logged = returned(&bench, true, &bodies).await;
    logged.sort();
    assert_eq!(
        logged,
        [
            format!("final: Failed: {permanently}"),
            "keyless: MissingKey: it has no idempotency key: the closure returned none, and its content isn't JSON"
                .into(),
            "other: HandlerError: std::io::error::Error".into(),
            "own: HandlerError: the idempotency key is empty; send 1 to 255 bytes".into(),
        ]
    );
    let unstored = "it failed permanently, but the failure isn't stored";
    let mut logged = returned(&bench, false, &["keyless final", "keyless other"]).await;
    logged.sort();
    assert_eq!(
        logged,
        [
            format!("keyless-final: Unrecorded: {unstored}"),
            "keyless-other: HandlerError: std::io::error::Error".into(),
        ]
    );
    // The reason is in an earlier event, `store_unavailable` or `refused`.
    bench.store.script([Meets(Fault::Refuse); 50]);
    assert_eq!(returned(&bench, true, &["refused"]).await, ["refused: Invalid: "]);
    bench.store.end_script();
}

/// The wall clock is set back while the first record's handler runs. Nothing new begins too late.
#[tokio::test(start_paused = true)]
async fn set_back_clock_begins_no_late_record() {
    let bench = Bench::new().ahead();
    let (set_back, counted) = (bench.clone(), bench.clone());
    let handler = move |_: SqsMessage| {
        let (set_back, counted) = (set_back.clone(), counted.clone());
        async move {
            counted.count_run();
            tokio::time::sleep(Duration::from_secs(5)).await;
            set_back.set_back(Duration::from_secs(if counted.runs() == 1 { 3600 } else { 0 }));
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(())
        }
    };
    let mut worker = bench
        .idempotency
        .sqs(|message| message.message_key().map(Some), handler)
        .concurrency(1.try_into().unwrap())
        .reserve(Duration::from_secs(3));
    let records = ["one", "two", "three"].map(|id| {
        json!({
            "messageId": id, "receiptHandle": "handle", "body": id, "attributes": {},
            "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
        })
    });
    let mut context = Context::default();
    context.deadline = bench.now().saturating_add(Duration::from_secs(20)).as_millis();
    let event = RawValue::from_string(json!({ "Records": records }).to_string()).unwrap();
    let answer = worker.call(LambdaEvent::new(event, context)).await.unwrap();
    assert!(!answer.get().contains("one") && answer.get().contains("three"), "{answer}");
    assert_eq!(bench.runs(), 1);
}
