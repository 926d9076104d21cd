//! Tests that every file in `events/` has the shape that its trigger sends.

use std::fs;

use aws_lambda_events::{
    activemq::ActiveMqEvent, dynamodb, eventbridge::EventBridgeEvent, kafka::KafkaEvent,
    kinesis::KinesisEvent, rabbitmq::RabbitMqEvent, s3::S3Event, sns::SnsEvent, sqs::SqsEvent,
};
use lambda_http::aws_lambda_events::{
    alb::AlbTargetGroupRequest,
    apigw::{ApiGatewayProxyRequest, ApiGatewayV2httpRequest},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{events::all_told, stage::project};

/// Parses each event with the types of AWS's own crates, which check more fields than the functions read.
#[test]
fn event_files_match_their_triggers() {
    for (folder, event) in all_told() {
        if let Err(problem) = shape(event, &file(folder, event)) {
            panic!("events/{folder}/{event}.json: {problem}");
        }
    }
}

fn file(folder: &str, event: &str) -> String {
    fs::read_to_string(project().join("events").join(folder).join(format!("{event}.json"))).unwrap()
}

fn shape(event: &str, text: &str) -> Result<(), String> {
    match event.split('-').next().unwrap() {
        "http" | "function" | "rest" | "alb" => shape_of_http(event, text),
        "sqs" => shape_of_sqs(text),
        "event" => {
            let event: EventBridgeEvent = read(text)?;
            is(event.source == "shop.payments" && event.time.is_some(), "event of EventBridge")
        }
        _ => shape_of_source(event, text),
    }
}

fn is(it: bool, what: &str) -> Result<(), String> {
    if it { Ok(()) } else { Err(format!("expected: {what}")) }
}

fn shape_of_http(event: &str, text: &str) -> Result<(), String> {
    let is_at = |domain: Option<String>, what: &str| {
        is(domain.is_some_and(|name| name.contains(what)), &format!("domain name with `{what}`"))
    };
    match event.split('-').next().unwrap() {
        "http" => {
            let event: ApiGatewayV2httpRequest = read(text)?;
            is_at(event.request_context.domain_name, ".execute-api.")?;
        }
        "function" => {
            let event: ApiGatewayV2httpRequest = read(text)?;
            is_at(event.request_context.domain_name, ".lambda-url.")?;
        }
        "rest" => is_at(read::<ApiGatewayProxyRequest>(text)?.request_context.domain_name, ".execute-api.")?,
        _ => {
            let event: AlbTargetGroupRequest = read(text)?;
            is(event.request_context.elb.target_group_arn.is_some(), "request of a target group")?;
        }
    }
    // Parse again with `lambda_http`, as the functions do. The types above come first because their errors name a
    // missing field.
    lambda_http::request::from_str(text).map(drop).map_err(|error| error.to_string())
}

fn shape_of_sqs(text: &str) -> Result<(), String> {
    let messages = read::<SqsEvent>(text)?.records;
    is(!messages.is_empty(), "batch with a message")?;
    is(messages.iter().all(|message| message.message_id.is_some()), "batch of messages with ids")?;
    is(messages.iter().all(|message| message.body.is_some()), "batch of messages with bodies")
}

/// Checks an event of the source that the event's name begins with. AWS's crates have no type for a source that isn't
/// listed here: its events are the caller's own JSON, so any valid JSON passes.
fn shape_of_source(event: &str, text: &str) -> Result<(), String> {
    match event.split('-').next().unwrap() {
        "sns" => {
            let event: SnsEvent = read_in_full(text)?;
            is(event.records.len() == 1 && event.records[0].event_source == "aws:sns", "message of SNS")
        }
        "s3" => {
            let event: S3Event = read_in_full(text)?;
            is(event.records.len() == 1, "notification of one change")?;
            is(event.records[0].event_source.as_deref() == Some("aws:s3"), "notification of S3")
        }
        "kinesis" => {
            let records = read_in_full::<KinesisEvent>(text)?.records;
            let is_right = records.iter().all(|record| record.event_source.as_deref() == Some("aws:kinesis"));
            is(!records.is_empty() && is_right, "batch of Kinesis")
        }
        "dynamodb" => {
            let records = read_in_full::<dynamodb::Event>(text)?.records;
            let is_right =
                records.iter().all(|record| record.event_source.as_deref() == Some("aws:dynamodb"));
            is(!records.is_empty() && is_right, "batch of a DynamoDB stream")
        }
        "kafka" => {
            let event: KafkaEvent = read_in_full(text)?;
            let is_right = event.records.iter().all(|(name, records)| {
                records.iter().all(|of| *name == format!("{}-{}", of.topic.as_deref().unwrap(), of.partition))
            });
            is(!event.records.is_empty() && is_right, "batch of Kafka, by topic and partition")
        }
        "activemq" => {
            let event: ActiveMqEvent = read_in_full(text)?;
            is(event.event_source.as_deref() == Some("aws:mq"), "batch of ActiveMQ")
        }
        "rabbitmq" => {
            let event: RabbitMqEvent = read_in_full(text)?;
            is(event.event_source.as_deref() == Some("aws:rmq"), "batch of RabbitMQ")
        }
        "scheduler" => {
            let event: EventBridgeEvent = read_in_full(text)?;
            is(event.source == "aws.scheduler" && event.time.is_some(), "event of EventBridge Scheduler")
        }
        _ => read::<Value>(text).map(drop),
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Reads the event, and refuses a field that the type doesn't know, since the field is invented or misspelt.
fn read_in_full<T: DeserializeOwned + Serialize + std::fmt::Debug>(text: &str) -> Result<T, String> {
    let event: T = read(text)?;
    let known = serde_json::to_value(&event).map_err(|error| error.to_string())?;
    if let Some(field) = unknown("", &read(text)?, &known) {
        return Err(format!("unknown field `{field}`"));
    }
    // With the feature `catch-all-fields`, which the library enables, a type keeps unknown fields in `other`.
    match format!("{event:?}").split_once("other: {\"") {
        Some((_, rest)) => Err(format!("unknown field `{}`", rest.split('"').next().unwrap_or_default())),
        None => Ok(event),
    }
}

/// The path of the first field in `json` that `known` lacks.
fn unknown(path: &str, json: &Value, known: &Value) -> Option<String> {
    match (json, known) {
        (Value::Object(fields), Value::Object(known)) => fields.iter().find_map(|(name, value)| {
            let path = format!("{path}/{name}");
            match known.get(name) {
                Some(known) => unknown(&path, value, known),
                None => Some(path),
            }
        }),
        (Value::Array(values), Value::Array(known)) => {
            let mut both = values.iter().zip(known).enumerate();
            both.find_map(|(nth, (value, known))| unknown(&format!("{path}/{nth}"), value, known))
        }
        _ => None,
    }
}

#[test]
fn missing_field_in_event_file_is_named() {
    for (folder, event, field) in [
        ("payments", "http-api", "requestContext"),
        ("payments", "function-url", "requestContext"),
        ("payments", "rest-api", "requestContext"),
        ("payments", "alb", "requestContext"),
        ("orders", "sqs", "Records"),
        ("receipts", "event-bridge", "detail-type"),
        ("sources", "sns", "Records"),
        ("sources", "activemq", "messages"),
        ("sources", "scheduler", "detail"),
    ] {
        let mut json: Value = serde_json::from_str(&file(folder, event)).unwrap();
        json.as_object_mut().unwrap().remove(field).unwrap();
        let told = shape(event, &json.to_string()).unwrap_err();
        assert!(told.contains(&format!("missing field `{field}`")), "{event}: {told}");
    }
}

#[test]
fn unknown_field_is_reported() {
    let mut json: Value = serde_json::from_str(&file("sources", "s3")).unwrap();
    json["Records"][0]["s3"]["object"]["version"] = "1".into();
    assert_eq!(shape("s3", &json.to_string()).unwrap_err(), "unknown field `version`");
}
