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
            "keyless: MissingKey: it has no idempotency key".into(),
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
