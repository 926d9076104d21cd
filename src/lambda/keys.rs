//! Keys for the events of AWS's own sources, and the duplicates that each key catches.
//!
//! | source | key | the same for | different for |
//! |---|---|---|---|
//! | EventBridge | [`event_bridge`] | every delivery of one event | an event that its producer put twice |
//! | EventBridge Scheduler | [`scheduler`] | every delivery of one scheduled time | the next scheduled time |
//! | SNS | [`sns`] | every delivery of one message | a message that was published twice |
//! | S3 | [`s3`] | every notification of one PUT or DELETE of an object | the object written again, even with the same bytes |
//! | Step Functions | [`step_functions`] | every retry of one entry into the state | the state entered again, in a loop or a redrive |
//! | an asynchronous invoke | [`events_by_request_id`](crate::Idempotency::events_by_request_id) | Lambda's own retries | an invoke that its caller repeats |
//! | SQS | [`SqsMessage::message_key`](super::batch::SqsMessage::message_key) | every delivery of one message | a message that was sent twice, or redriven from a dead-letter queue |
//! | Kinesis | [`KinesisRecord::sequence_key`](super::batch::KinesisRecord::sequence_key) | every delivery of one record | a record that its producer put twice |
//! | DynamoDB Streams | [`DynamoDbRecord::event_key`](super::batch::DynamoDbRecord::event_key) | every delivery of one change | the next write of the item |
//! | Kafka | [`KafkaRecord::offset_key`](super::batch::KafkaRecord::offset_key) | every delivery of one record | a record that its producer sent twice |
//! | Amazon MQ | [`mq_message`] | every delivery of one message from one queue | a message that was sent twice, or its copy in another queue |
//!
//! If a sender may send twice, use a field of its payload, such as the order's id.
//!
//! DocumentDB's change streams have no key here, and no worker. Make each change its own operation with
//! [`run`](crate::Operation::run), and use the change's `_id` as the key.
//!
//! # Through a queue
//!
//! The events of EventBridge, its scheduler, SNS and S3 may come through a queue or a stream. A message's body is then
//! the source's event, and its key comes from the same function. The key brings the fields that are compared. So a
//! second copy of one notification is a duplicate, although some of its other fields differ: S3 sends a notification
//! twice with another time and request id, a replay from an archive adds `replay-name`, and SNS signs each delivery.
//!
//! ```
//! # use lambda_idempotency::{Failure, Idempotency, lambda::batch::SqsMessage, store::memory::MemoryStore};
//! use lambda_idempotency::lambda::keys;
//!
//! # async fn index(_: SqsMessage) -> Result<(), Failure> { Ok(()) }
//! # let idempotency = Idempotency::builder(MemoryStore::new()).function("uploads").build()?;
//! let worker = idempotency.sqs(|message| keys::s3().key_of(message.as_ref()), index);
//! # Ok::<(), lambda_idempotency::Error>(())
//! ```
//!
//! # A single event
//!
//! ```no_run
//! use lambda_idempotency::{Idempotency, lambda::{keys, run}};
//! use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
//! use serde_json::Value;
//!
//! async fn handle(_event: LambdaEvent<Value>) -> Result<(), Error> {
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! let idempotency = Idempotency::builder(store).build()?;
//! let layer = idempotency.events_by::<Value>(keys::sns());
//! run(ServiceBuilder::new().layer(layer).service(service_fn(handle))).await
//! # }
//! ```

use crate::internal::KeyFieldsExt as _;

use crate::{key::joined, key_fields::KeyFields};

/// An EventBridge event's id (`id`).
///
/// A duplicate must have the same source, account, detail type, resources and detail. A replay from an archive adds a
/// field, `replay-name` ("Archiving and replaying events", EventBridge user guide), which isn't compared.
pub fn event_bridge() -> KeyFields {
    KeyFields::known("event_bridge", &["/id"], &[]).comparing(&[
        "/source",
        "/account",
        "/detail-type",
        "/resources",
        "/detail",
    ])
}

/// The schedule's ARN and the scheduled time: `resources` and `time` of the event that EventBridge Scheduler
/// sends if the target has no custom input. A duplicate must have the same ARN, time and detail. The event's id isn't
/// compared, since AWS doesn't document that it stays the same.
///
/// With a custom input, put `<aws.scheduler.schedule-arn>` and `<aws.scheduler.scheduled-time>` into fields of the
/// input, and use these fields as the key. Don't use `<aws.scheduler.execution-id>`, which differs in each attempt
/// ("Adding context attributes", EventBridge Scheduler user guide).
pub fn scheduler() -> KeyFields {
    KeyFields::known("scheduler", &["/resources/0", "/time"], &[])
        .comparing(&["/resources/0", "/time", "/detail"])
        .of_only("/resources", None)
}

/// An SNS message's id. SNS sends Lambda one message per event. A duplicate must have the same topic, subject,
/// message and attributes; fields about the delivery aren't compared.
///
/// The key is also there for a message that SNS sends to a queue without raw message delivery. See
/// [above](self#through-a-queue).
///
/// An event with several `Records` is refused, since the key identifies only one. Call
/// [`run`](crate::Operation::run) once for each record, with its `Sns.MessageId` as the key. An event without records
/// has no key.
pub fn sns() -> KeyFields {
    let through_a_queue = KeyFields::known("sns", &["/MessageId"], &[]).comparing(&[
        "/TopicArn",
        "/Subject",
        "/Message",
        "/MessageAttributes",
    ]);
    KeyFields::known("sns", &["/Records/0/Sns/MessageId"], &[])
        .comparing(&[
            "/Records/0/Sns/TopicArn",
            "/Records/0/Sns/Subject",
            "/Records/0/Sns/Message",
            "/Records/0/Sns/MessageAttributes",
        ])
        .of_only("/Records", Some(through_a_queue))
}

/// The change of an object: event name, bucket, key, version and sequencer. S3 sends one record per event.
///
/// A duplicate must have the same event name, bucket and object. The request's id and the event's time aren't compared.
///
/// S3 gives a sequencer only to PUTs and DELETEs ("Event message structure", S3 user guide). Other notifications,
/// such as those about tags, have no key here: use your own key for them. Neither has the test message that S3 sends
/// when somebody configures notifications.
///
/// An event with several `Records` is refused, since the key identifies only one. Call
/// [`run`](crate::Operation::run) once for each record, with its bucket, object key and sequencer as the key. An event
/// without records has no key.
pub fn s3() -> KeyFields {
    KeyFields::known(
        "s3",
        &[
            "/Records/0/eventName",
            "/Records/0/s3/bucket/name",
            "/Records/0/s3/object/key",
            "/Records/0/s3/object/sequencer",
        ],
        &["/Records/0/s3/object/versionId"],
    )
    .comparing(&["/Records/0/eventName", "/Records/0/s3/bucket/name", "/Records/0/s3/object"])
    .of_only("/Records", None)
}

/// An execution's entry into the state that calls the function: the fields `execution`, `state` and `entered`
/// of the payload, which the state machine fills from its context:
///
/// | field | with JSONata, the console's default | with JSONPath |
/// |---|---|---|
/// | `execution` | `"execution": "{% $states.context.Execution.Id %}"` | `"execution.$": "$$.Execution.Id"` |
/// | `state` | `"state": "{% $states.context.State.Name %}"` | `"state.$": "$$.State.Name"` |
/// | `entered` | `"entered": "{% $states.context.State.EnteredTime %}"` | `"entered.$": "$$.State.EnteredTime"` |
/// | `item`, in a Map | `"item": "{% $states.context.Map.Item.Index %}"` | `"item.$": "$$.Map.Item.Index"` |
///
/// With JSONata, these fields belong in the `Payload` of the state's `Arguments`; with JSONPath, in the `Payload` of
/// its `Parameters`.
///
/// The time `entered` is in milliseconds, and several iterations of a Map can enter the state in the same millisecond.
/// So in a Map, add `item`, which becomes part of the key. In a Map inside another Map's
/// `ItemProcessor`, this is the inner index only. Pass the outer index on with the inner Map's `ItemSelector`, and make
/// `item` from both indexes, or from an id that's unique to the item.
///
/// Step Functions may run an asynchronous Express workflow more than once ("Choosing workflow type", Step Functions
/// developer guide). The second run enters the state at another time, so its event has another key, and the handler
/// runs again. For such workflows, use a field of the workflow's input as the key.
pub fn step_functions() -> KeyFields {
    KeyFields::known("step_functions", &["/execution", "/state", "/entered"], &["/item"])
}

/// An Amazon MQ message's broker, queue and id. The id is ActiveMQ's `messageID`, or the `basicProperties.messageId`
/// that a RabbitMQ publisher set. Each message of an event is its own operation: [`run`](crate::Operation::run) the
/// messages one by one.
///
/// `broker` is the event's `eventSourceArn`. `queue` is RabbitMQ's name in `rmqMessagesByQueue`, such as `orders::/`,
/// or the `destination.physicalName` of an ActiveMQ message. One function can read several queues and brokers. Two
/// queues can have copies of one message, with the same id, and two brokers can have different messages with the same
/// id. So the broker and the queue are part of the key.
///
/// Pass the message's `data` as the operation's payload, in place of the whole message. The message's fields
/// `redelivered` and `brokerOutTime` differ in each delivery.
///
/// ```
/// use lambda_idempotency::lambda::keys;
///
/// let broker = "arn:aws:mq:eu-west-1:1:broker:shop:b-7";
/// let message = br#"{"basicProperties": {"messageId": "3a7d0f59"}, "data": "MQ=="}"#;
/// let ship = keys::mq_message(broker, "ship::/").key_of(message)?;
/// assert_ne!(ship, keys::mq_message(broker, "bill::/").key_of(message)?);
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
pub fn mq_message(broker: impl AsRef<str>, queue: impl AsRef<str>) -> KeyFields {
    KeyFields::known("mq_message", &[], &["/messageID", "/basicProperties/messageId"])
        .of_source(joined(&[broker.as_ref(), queue.as_ref()]))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{internal::KeyExt as _, lambda::locate::named};

    fn key(fields: &KeyFields, json: &str) -> Option<String> {
        fields.key_of(json.as_bytes()).unwrap().map(|key| key.as_str().to_owned())
    }

    #[test]
    fn key_fields_of_all_sources_can_be_built() {
        let all = [event_bridge(), scheduler(), sns(), s3(), step_functions(), mq_message("b", "q")];
        assert_eq!(all.iter().map(|fields| fields.iter().count()).collect::<Vec<_>>(), [1, 2, 1, 5, 4, 2]);
    }

    #[test]
    fn events_with_equal_identifiers_share_keys() {
        let s3_event = |key: &str, sequencer: &str| {
            format!(
                r#"{{"Records": [{{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "responseElements": {{"x-amz-request-id": "{key}{sequencer}"}},
                    "s3": {{"bucket": {{"name": "b"}}, "object": {{"key": "{key}", "size": 1, "sequencer": "{sequencer}"}}}}}}]}}"#
            )
        };
        assert!(key(&s3(), &s3_event("k", "00A")).is_some());
        assert_eq!(
            key(&s3(), &s3_event("k", "00A")),
            key(&s3(), &s3_event("k", "00A").replace("size\": 1", "size\": 2"))
        );
        assert_ne!(key(&s3(), &s3_event("k", "00A")), key(&s3(), &s3_event("k", "00B")));
        assert_ne!(key(&s3(), &s3_event("k", "00A")), key(&s3(), &s3_event("k0", "0A")));

        let sns_event =
            r#"{"Records": [{"EventSource": "aws:sns", "Sns": {"MessageId": "95df01b4", "Message": "x"}}]}"#;
        assert_eq!(key(&sns(), sns_event).as_deref(), Some("95df01b4"));
        assert_eq!(key(&event_bridge(), r#"{"id": "53dc4d37", "detail": {}}"#).as_deref(), Some("53dc4d37"));

        let scheduled = |time: &str| {
            format!(
                r#"{{"id": "{time}", "time": "{time}", "resources": ["arn:aws:scheduler:x:1:schedule/default/s"]}}"#
            )
        };
        assert_ne!(key(&scheduler(), &scheduled("10:00")), key(&scheduler(), &scheduled("11:00")));
        let entered = |item: u8| {
            format!(r#"{{"execution": "arn:e", "state": "Charge", "entered": "10:00", "item": {item}}}"#)
        };
        assert_ne!(key(&step_functions(), &entered(0)), key(&step_functions(), &entered(1)));
        let tagged = s3_event("k", "00A").replace(r#", "sequencer": "00A""#, "");
        assert_eq!(key(&s3(), &tagged), None, "a change without a sequencer has no key");
        assert_eq!(key(&scheduler(), r#"{"time": "10:00"}"#), None);
        assert_eq!(
            key(&mq_message("b", "q"), r#"{"messageID": "ID:1"}"#),
            key(&mq_message("b", "q"), r#"{"messageID": "ID:1", "x": 1}"#)
        );
    }

    /// Each source's event, with its key.
    fn samples() -> [(KeyFields, &'static str); 5] {
        macro_rules! event {
            ($name:literal) => {
                include_str!(concat!("../../events/", $name, ".json"))
            };
        }
        [
            (event_bridge(), event!("receipts/event-bridge")),
            (scheduler(), event!("sources/scheduler")),
            (sns(), event!("sources/sns")),
            (s3(), event!("sources/s3")),
            (step_functions(), event!("sources/step-functions")),
        ]
    }

    /// Appends an element to each list in `json`, one list at a time.
    fn longer(json: &Value) -> Vec<Value> {
        let mut all = Vec::new();
        let fields: Vec<_> = match json {
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
            Value::Array(values) => {
                let mut longer = values.clone();
                longer.push(values.last().cloned().unwrap_or_else(|| "another".into()));
                all.push(longer.into());
                values.iter().enumerate().map(|(nth, value)| (nth.to_string(), value)).collect()
            }
            _ => return all,
        };
        for (name, value) in fields {
            for value in longer(value) {
                let mut whole = json.clone();
                *whole.pointer_mut(&format!("/{name}")).unwrap() = value;
                all.push(whole);
            }
        }
        all
    }

    #[test]
    fn keys_never_ignore_another_element() {
        let mut refused = Vec::new();
        for (fields, event) in samples() {
            let key =
                |event: &str| fields.key_of(event.as_bytes()).map(|key| key.map(|key| (key.compared(), key)));
            let one = key(event).unwrap().unwrap();
            for event in longer(&serde_json::from_str(event).unwrap()) {
                match key(&event.to_string()) {
                    // The whole payload is compared, or some fields of it.
                    Ok(Some((compared, _))) => assert!(compared.is_none() || compared != one.0, "{event}"),
                    Ok(None) => {}
                    Err(error) => {
                        assert!(error.to_string().contains("Make each element its own operation"), "{error}");
                        refused.extend(fields.name());
                    }
                }
            }
        }
        assert_eq!(refused, ["scheduler", "sns", "s3"]);
    }

    #[test]
    fn keys_are_found_by_name() {
        for (fields, event) in samples() {
            let found = named(fields.name().unwrap()).unwrap();
            assert_eq!(found.key_of(event.as_bytes()).unwrap(), fields.key_of(event.as_bytes()).unwrap());
        }
        assert!(named("mq_message").is_none());
    }

    #[test]
    fn sns_messages_have_one_key_on_both_ways() {
        let (fields, event) = &samples()[2];
        let parsed: Value = serde_json::from_str(event).unwrap();
        let envelope = parsed["Records"][0]["Sns"].to_string();
        assert_eq!(key(fields, &envelope), key(fields, event));
    }

    #[test]
    fn keys_differ_between_queues_and_between_brokers() {
        let message = r#"{"basicProperties": {"messageId": "3a7d0f59"}}"#;
        let of = |broker: &str, queue: &str| key(&mq_message(broker, queue), message).unwrap();
        assert_ne!(of("b", "ship::/"), of("b", "bill::/"));
        assert_ne!(of("b", "ship::/"), of("c", "ship::/"));
        assert_ne!(of("b", "cd"), of("bc", "d"));
        assert_eq!(key(&mq_message("b", "q"), r#"{"basicProperties": {"messageId": null}}"#), None);
    }

    #[test]
    fn events_without_identifiers_have_no_key() {
        for fields in [event_bridge(), scheduler(), sns(), s3(), step_functions(), mq_message("b", "q")] {
            assert_eq!(key(&fields, r#"{"Records": [], "detail": {"id": 1}}"#), None, "{fields:?}");
        }
    }
}
