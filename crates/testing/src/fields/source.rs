//! The fields of AWS's events: those with the sender's content, and those that the source sets.

use serde_json::Value;

use super::{Part, inside, pointer};

/// An event or a record of a known source.
struct Envelope {
    /// The fields with the sender's content. If it's empty, all fields except `own` are content.
    content: &'static [&'static str],
    /// The fields that the source sets, although a field of `content` contains them.
    own: &'static [&'static str],
    /// The fields that identify the event or the record.
    ids: &'static [&'static str],
}

const SQS: Envelope = Envelope {
    content: &["/body", "/messageAttributes", "/attributes/MessageGroupId"],
    own: &[],
    ids: &["/messageId", "/attributes/MessageDeduplicationId", "/attributes/SequenceNumber"],
};
const SNS: Envelope = Envelope {
    content: &["/Sns/Message", "/Sns/Subject", "/Sns/MessageAttributes", "/Sns/TopicArn"],
    own: &[],
    ids: &["/Sns/MessageId"],
};
/// An SNS message in another source's body.
const NOTIFICATION: Envelope = Envelope {
    content: &["/Message", "/Subject", "/MessageAttributes", "/TopicArn"],
    own: &[],
    ids: &["/MessageId"],
};
const S3: Envelope = Envelope {
    content: &["/eventName", "/s3/bucket/name", "/s3/object"],
    own: &["/s3/object/sequencer"],
    ids: &["/s3/object/sequencer"],
};
const KINESIS: Envelope = Envelope {
    content: &["/kinesis/data", "/kinesis/partitionKey"],
    own: &[],
    ids: &["/kinesis/sequenceNumber", "/eventID"],
};
const DYNAMODB: Envelope = Envelope {
    content: &["/dynamodb/NewImage", "/dynamodb/OldImage", "/dynamodb/Keys", "/eventName"],
    own: &[],
    ids: &["/eventID", "/dynamodb/SequenceNumber"],
};
const EVENT_BRIDGE: Envelope = Envelope {
    content: &["/detail", "/detail-type", "/source", "/resources", "/account"],
    own: &[],
    ids: &["/id"],
};
/// The scheduled time identifies the event.
const SCHEDULE: Envelope = Envelope { content: &["/detail", "/resources", "/time"], own: &[], ids: &["/id"] };
const REQUEST: Envelope = Envelope {
    content: &[],
    own: &[
        "/requestContext/requestId",
        "/requestContext/extendedRequestId",
        "/requestContext/time",
        "/requestContext/timeEpoch",
        "/requestContext/requestTime",
        "/requestContext/requestTimeEpoch",
        "/headers/x-amzn-trace-id",
        "/multiValueHeaders/x-amzn-trace-id",
    ],
    ids: &[],
};

/// Returns the place of the innermost envelope around this path, and the envelope.
fn envelope(event: &Value, path: &[Part]) -> Option<(usize, Envelope)> {
    let (mut value, mut found) = (event.clone(), None);
    for at in 0..=path.len() {
        found = kind(&value).map(|envelope| (at, envelope)).or(found);
        let Some(part) = path.get(at) else { break };
        value = match part {
            Part::Name(name) => value.get_mut(name)?.take(),
            Part::Place(place) => value.get_mut(*place)?.take(),
            Part::Inside => inside(value.as_str()?)?,
        };
    }
    found
}

fn kind(value: &Value) -> Option<Envelope> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    Some(match text("eventSource").or_else(|| text("EventSource")) {
        Some("aws:sqs") => SQS,
        Some("aws:sns") => SNS,
        Some("aws:s3") => S3,
        Some("aws:kinesis") => KINESIS,
        Some("aws:dynamodb") => DYNAMODB,
        _ if value.get("TopicArn").is_some() && value.get("MessageId").is_some() => NOTIFICATION,
        _ if text("source") == Some("aws.scheduler") => SCHEDULE,
        _ if value.get("detail-type").is_some() && value.get("detail").is_some() => EVENT_BRIDGE,
        _ if value.get("requestContext").is_some_and(Value::is_object) => REQUEST,
        _ => return None,
    })
}

fn is_below(field: &str, of: &str) -> bool {
    field.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether the sender sets the field at this path, and not the event's source.
pub(super) fn is_content(event: &Value, path: &[Part]) -> bool {
    let Some((at, Envelope { content, own, .. })) = envelope(event, path) else { return true };
    let field = pointer(&path[at..]);
    (content.is_empty() || content.iter().any(|of| is_below(&field, of)))
        && !own.iter().any(|of| is_below(&field, of))
}

/// Returns the paths of the ids that another event has, of which only the field at this path differs. An envelope in
/// another envelope's body has its own ids.
pub(super) fn ids(event: &Value, path: &[Part]) -> Vec<Vec<Part>> {
    let (mut ids, mut end) = (Vec::new(), path.len());
    while let Some((at, envelope)) = envelope(event, &path[..end]) {
        for id in envelope.ids {
            let names = id.split('/').skip(1).map(|name| Part::Name(name.to_owned()));
            ids.push(path[..at].iter().cloned().chain(names).collect());
        }
        match at.checked_sub(1) {
            Some(before) => end = before,
            None => break,
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use crate::{Event, fields::other_events};

    fn fields(event: &Event) -> Vec<String> {
        other_events(event.text()).into_iter().map(|variant| variant.field).collect()
    }

    #[test]
    fn only_content_is_changed_with_its_ids() {
        let event = Event::sqs("orders", [r#"{"id":"order-17"}"#]);
        let [variant] = &other_events(event.text())[..] else { panic!("{event:?}") };
        assert_eq!(variant.field, "/Records/0/body/id");
        assert!(variant.json.contains("order-18"));
        let id = |text: &str| {
            serde_json::from_str::<serde_json::Value>(text).unwrap()["Records"][0]["messageId"].clone()
        };
        assert_ne!(id(&variant.json), id(event.text()));
        let through_a_queue = Event::sqs(
            "orders",
            [r#"{"TopicArn":"t","MessageId":"m","Message":"{\"id\":1}","Timestamp":"9"}"#],
        );
        assert_eq!(fields(&through_a_queue), ["/Records/0/body/Message/id", "/Records/0/body/TopicArn"]);
    }

    #[test]
    fn times_of_a_schedule_are_content() {
        assert!(fields(&Event::schedule("sweep", "2026-11-20T09:00:00Z")).contains(&"/time".to_owned()));
        let event = Event::event_bridge("shop", "Order", &serde_json::json!({ "id": 17 }));
        assert_eq!(fields(&event), ["/account", "/detail/id", "/detail-type", "/source"]);
    }
}
