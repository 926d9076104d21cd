//! The user's expectations of a function: how often its handler may run, and the form of its events and answers.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::problem::{Problem, Result};

/// How often the handler may run for one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Expect {
    /// After a crash, the next delivery takes over, and the handler runs again.
    #[default]
    AtLeastOnce,
    /// After a crash, every delivery is refused with OutcomeUnknown until an operator settles the record.
    AtMostOnce,
}

/// The source of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// A standard queue.
    Sqs,
    /// A FIFO queue.
    Fifo,
    /// A Kinesis stream.
    Kinesis,
}

impl Source {
    const fn name(self) -> &'static str {
        match self {
            Self::Sqs | Self::Fifo => "aws:sqs",
            Self::Kinesis => "aws:kinesis",
        }
    }

    const fn queue(self) -> &'static str {
        match self {
            Self::Sqs => "arn:aws:sqs:eu-central-1:123456789012:rehearsal",
            Self::Fifo | Self::Kinesis => "arn:aws:sqs:eu-central-1:123456789012:rehearsal.fifo",
        }
    }

    /// Builds a batch of one record: the event's first record. For a queue, the event may also have no records: it then
    /// becomes the body of a message.
    ///
    /// # Errors
    ///
    /// If the event is from another source, or if it has no records and the source is a stream.
    pub(crate) fn batch_of(self, event: &Value) -> Result<Value> {
        let Some(record) = event.pointer("/Records/0") else {
            if self == Self::Kinesis {
                return Err(Problem::new("--batch kinesis needs an event with Records, as Kinesis sends it"));
            }
            let attributes = match self {
                Self::Fifo => json!({
                    "ApproximateReceiveCount": "1", "MessageGroupId": "rehearsal", "SequenceNumber": "1",
                    "MessageDeduplicationId": "rehearsal",
                }),
                Self::Sqs | Self::Kinesis => json!({ "ApproximateReceiveCount": "1" }),
            };
            return Ok(json!({ "Records": [{
                "messageId": "19dd0b57-b21e-4ac1-bd88-01bbb068cb78", "receiptHandle": "rehearsal",
                "body": event.to_string(), "attributes": attributes, "messageAttributes": {},
                "eventSource": "aws:sqs", "eventSourceARN": self.queue(), "awsRegion": "eu-central-1",
            }] }));
        };
        let from = source_of(event).unwrap_or("an unknown source");
        if from != self.name() {
            return Err(Problem::new(format!(
                "the event's records are from {from}, not from {}",
                self.name()
            )));
        }
        let arn = record.get("eventSourceARN").and_then(Value::as_str).unwrap_or_default();
        if self == Self::Fifo && !arn.ends_with(".fifo") {
            return Err(Problem::new("the event's queue isn't a FIFO queue: its ARN must end with `.fifo`"));
        }
        Ok(json!({ "Records": [record] }))
    }
}

fn source_of(event: &Value) -> Option<&str> {
    event.pointer("/Records/0/eventSource").or(event.get("eventSource")).and_then(Value::as_str)
}

/// Refuses a batch that is given without `--batch`. The rehearsal must know that the event is a batch, because the
/// answer to a batch doesn't say whether a record was run or replayed.
///
/// # Errors
///
/// If the event is a batch.
pub(crate) fn refuse_batch(event: &Value) -> Result<()> {
    match source_of(event) {
        Some("aws:sqs") => {
            Err(Problem::new("the event is a batch of SQS messages: add --batch sqs or --batch fifo"))
        }
        Some("aws:kinesis") => {
            Err(Problem::new("the event is a batch of Kinesis records: add --batch kinesis"))
        }
        Some("aws:dynamodb") => Err(Problem::new(
            "the rehearsal can't check workers of DynamoDB Streams: --batch has no value for this source",
        )),
        Some("aws:kafka" | "SelfManagedKafka" | "aws:SelfManagedKafka") => Err(Problem::new(
            "the rehearsal can't check workers of Kafka: --batch has no value for this source. The example functions' steps \
             18 and 19 show one",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_and_records_become_batches() {
        let order = json!({ "order_id": 17 });
        for (source, fifo) in [(Source::Sqs, false), (Source::Fifo, true)] {
            let batch = source.batch_of(&order).unwrap();
            assert_eq!(batch["Records"][0]["body"], order.to_string());
            assert_eq!(batch["Records"][0]["eventSourceARN"].as_str().unwrap().ends_with(".fifo"), fifo);
            assert_eq!(batch["Records"][0]["attributes"].get("MessageGroupId").is_some(), fifo);
        }
        let record =
            |source: &str, id: u8| json!({ "eventSource": source, "eventID": id, "eventSourceARN": "a" });
        let two = json!({ "Records": [record("aws:kinesis", 1), record("aws:kinesis", 2)] });
        let one = Source::Kinesis.batch_of(&two).unwrap();
        assert_eq!(one, json!({ "Records": [record("aws:kinesis", 1)] }));
    }

    #[test]
    fn unsuitable_events_are_refused() {
        let of =
            |source: &str| json!({ "Records": [{ "eventSource": source, "eventSourceARN": "arn:queue" }] });
        for (source, event, says) in [
            (Source::Kinesis, json!({}), "needs an event with Records"),
            (Source::Sqs, of("aws:kinesis"), "are from aws:kinesis, not from aws:sqs"),
            (Source::Fifo, of("aws:sqs"), "isn't a FIFO queue"),
        ] {
            let problem = source.batch_of(&event).unwrap_err().to_string();
            assert!(problem.contains(says), "{problem}");
        }
        for (source, says) in
            [("aws:sqs", "--batch sqs"), ("aws:kinesis", "--batch kinesis"), ("aws:dynamodb", "can't check")]
        {
            assert!(refuse_batch(&of(source)).unwrap_err().to_string().contains(says), "{source}");
        }
        let kafka = json!({ "eventSource": "aws:kafka", "records": {} });
        assert!(refuse_batch(&kafka).unwrap_err().to_string().contains("workers of Kafka"));
        assert!(refuse_batch(&json!({ "headers": {} })).is_ok());
    }
}
