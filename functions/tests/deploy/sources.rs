//! Delivers every source's events twice to a process whose handler is wrapped as the documentation says for that
//! source.

use std::{collections::BTreeSet, fs};

use aws_lambda_events::encodings::Base64Data;
use lambda_idempotency_rehearsal::{answer::Answer, event::Event};
use serde::Deserialize;
use serde_json::Value;

use super::{
    any_source,
    events::{Runs, come_back},
    secrets::Secrets,
    stage::{Delivers, Running, database, project},
};

/// The folder of the sources' events.
pub(crate) const FOLDER: &str = "sources";

/// The expected answer to an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// A response after this many runs. With zero runs, it equals the response to the event before.
    Ran(Runs),
    /// A batch's answer after this many runs, and the failed record that the answer reports, if any. The source
    /// redelivers the failed record and all later ones.
    Batch(Runs, Option<&'static str>),
    /// A function error after this many runs. The source redelivers the whole event.
    Failed(Runs),
}

use Expected::{Batch, Failed, Ran};

/// Each source's events, in the order of their delivery.
pub(crate) const STORY: &[(&str, &[(&str, Expected)])] = &[
    ("sns", &[("sns", Ran(1)), ("sns-again", Ran(0))]),
    ("s3", &[("s3", Ran(1)), ("s3-again", Ran(0))]),
    ("scheduler", &[("scheduler", Ran(1)), ("scheduler-again", Ran(0))]),
    ("step-functions", &[("step-functions", Ran(1)), ("step-functions-again", Ran(0))]),
    (
        "async-invoke",
        &[
            ("async-invoke", Ran(1)),
            ("async-invoke-again", Ran(0)),
            // The caller's retry has a new request id. Only a key from the caller could identify the retry.
            ("async-invoke-by-its-caller-again", Ran(1)),
        ],
    ),
    (
        "kinesis",
        &[
            ("kinesis", Batch(2, None)),
            ("kinesis-again", Batch(0, None)),
            ("kinesis-failing", Batch(3, Some("49667300000000000000000000000000000000000000000004000012"))),
            ("kinesis-failing-again", Batch(1, None)),
        ],
    ),
    (
        "dynamodb",
        &[
            ("dynamodb", Batch(2, None)),
            ("dynamodb-again", Batch(0, None)),
            ("dynamodb-failing", Batch(3, Some("4421584500000000017459756364"))),
            ("dynamodb-failing-again", Batch(1, None)),
        ],
    ),
    (
        "kafka",
        &[
            ("kafka", Batch(3, None)),
            ("kafka-again", Batch(0, None)),
            // The second record of a partition fails, and the other partition's record runs. On redelivery, only the
            // failed record runs.
            ("kafka-failing", Failed(3)),
            ("kafka-failing-again", Batch(1, None)),
            ("kafka-self-managed", Batch(1, None)),
        ],
    ),
    ("activemq", &[("activemq", Ran(2)), ("activemq-again", Ran(0))]),
    ("rabbitmq", &[("rabbitmq", Ran(2)), ("rabbitmq-again", Ran(0))]),
];

/// The id of the request that Lambda retries.
pub(crate) const REQUEST: &str = "8f5b2c70-4d1e-4a93-b6c8-0e7d9a3f1b52";

/// The names of all events.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STORY.iter().flat_map(|(_, story)| story.iter().map(|(event, _)| *event))
}

/// Reads the JSON of an event.
pub(crate) fn read(event: &str) -> Value {
    let path = project().join("events").join(FOLDER).join(format!("{event}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Delivers an event. The asynchronous invocation and Lambda's retry of it have one request id; any other event gets a
/// new one.
pub(crate) async fn deliver(to: &mut impl Delivers, name: &str, event: Value) -> Answer {
    let request_id = matches!(name, "async-invoke" | "async-invoke-again").then_some(REQUEST);
    to.deliver_event_as(request_id, &Event::new(event)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_every_source_run_once() {
    let database = database().await;
    for (source, story) in STORY {
        let mut running = Running::command(&any_source::command(source), any_source::MARK, &database).await;
        tell(story, &mut running).await;
    }
}

/// Delivers a story's events, and checks each answer.
pub(crate) async fn tell(story: &[(&str, Expected)], to: &mut impl Delivers) {
    let (mut ran, mut before) = (0, None);
    for (event, expected) in story {
        let answer = deliver(to, event, read(event)).await;
        let runs = to.marks().await - ran;
        ran += runs;
        let is_right = is_as(*expected, before.as_ref(), &answer, runs);
        assert!(
            is_right,
            "{event}: expected {expected:?}, got {runs} runs and {answer:?}; before: {before:?}"
        );
        before = Some(answer);
    }
}

fn is_as(expected: Expected, before: Option<&Answer>, answer: &Answer, runs: Runs) -> bool {
    match (expected, answer) {
        (Ran(0), Answer::Payload(_)) => runs == 0 && before == Some(answer),
        (Ran(expected), Answer::Payload(_)) => runs == expected && before != Some(answer),
        (Failed(expected), Answer::Error { .. }) => runs == expected,
        (Batch(expected, named), Answer::Payload(payload)) => {
            runs == expected && come_back(payload) == BTreeSet::from_iter(named.map(str::to_owned))
        }
        _ => false,
    }
}

/// Adds the parts of a source's event that belong to a key or a payload to the secrets. Sequence numbers aren't
/// secrets: logs may contain them.
pub(crate) fn note(secrets: &mut Secrets, source: &str, event: &Value) {
    let records = event["Records"].as_array().map(Vec::as_slice).unwrap_or_default();
    match source {
        "sns" => {
            secrets.add(records[0]["Sns"]["MessageId"].as_str().unwrap());
            secrets.add_body(records[0]["Sns"]["Message"].as_str().unwrap());
            secrets.add_texts(&records[0]["Sns"]["Subject"]);
        }
        "s3" => secrets.add_texts(&records[0]["s3"]),
        "scheduler" => ["id", "time", "resources"].iter().for_each(|field| secrets.add_texts(&event[field])),
        "kinesis" => records.iter().for_each(|record| {
            secrets.add_texts(&record["eventID"]);
            secrets.add_texts(&record["kinesis"]["partitionKey"]);
            note_data(secrets, &record["kinesis"]["data"]);
        }),
        "dynamodb" => records.iter().for_each(|record| {
            secrets.add_texts(&record["eventID"]);
            secrets.add_texts(&record["dynamodb"]["NewImage"]);
        }),
        "kafka" | "activemq" | "rabbitmq" => {
            any_source::records(event).into_iter().for_each(|(_, record)| {
                secrets.add_texts(&record["messageID"]);
                secrets.add_texts(&record["basicProperties"]["messageId"]);
                ["key", "value", "data"].iter().for_each(|field| note_data(secrets, &record[field]));
            })
        }
        _ => secrets.add_texts(event),
    }
}

/// Adds the decoded data to the secrets. The encoded form needn't be added, since the search for leaked secrets finds
/// a secret in any encoding.
fn note_data(secrets: &mut Secrets, data: &Value) {
    if data.is_string() {
        let decoded = Base64Data::deserialize(data).unwrap().0;
        secrets.add_body(std::str::from_utf8(&decoded).unwrap());
    }
}
