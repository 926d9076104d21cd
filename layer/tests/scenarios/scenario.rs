//! The types that make up a scenario. `table.rs` has the scenarios.

use lambda_idempotency_verification_real::wire::{HttpWay, Meaning, When};
use serde_json::{Value, json};
use testkit::front_ends::{self, POST, Sent};

use crate::{runtime::Runtime, sandbox::Mode};

/// A scenario: deliveries, faults, and the expected results.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// The layer's settings, in addition to its table.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// The function's entry point.
    pub(crate) handler: &'static str,
    /// The invocation's timeout in seconds.
    pub(crate) timeout: u64,
    pub(crate) steps: Vec<Step>,
    /// For each key, given by its suffix, the expected number of runs and the expected number of effects.
    pub(crate) totals: Vec<(&'static str, Count, Count)>,
    /// The keys in the order in which their effects must happen. `None` allows any order.
    pub(crate) order: Option<&'static [&'static str]>,
    /// How many requests the store must get. `None` allows any number.
    pub(crate) requests: Option<usize>,
    /// A text that the layer or the function must write to its output.
    pub(crate) writes: Option<&'static str>,
    pub(crate) only: Only,
    /// Whether the scenario is in the short form of the table.
    pub(crate) is_short: bool,
}

/// How often something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Exactly(usize),
    /// At least the first, at most the second.
    Between(usize, usize),
}

impl Count {
    pub(crate) fn holds(self, found: usize) -> bool {
        match self {
            Self::Exactly(count) => found == count,
            Self::Between(least, most) => (least..=most).contains(&found),
        }
    }
}

/// The runtimes and modes in which a scenario is possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Only {
    pub(crate) mode: Option<Mode>,
    pub(crate) needs_streaming: bool,
    pub(crate) needs_concurrency: bool,
    pub(crate) runtimes: Option<&'static [Runtime]>,
    pub(crate) except: Option<(Runtime, Mode)>,
}

impl Only {
    pub(crate) fn allows(&self, runtime: Runtime, mode: Mode) -> bool {
        self.mode.is_none_or(|only| only == mode)
            && self.except != Some((runtime, mode))
            && (!self.needs_streaming || runtime.streams())
            && (!self.needs_concurrency || runtime.is_concurrent() || mode == Mode::OnDemand)
            && self.runtimes.is_none_or(|only| only.contains(&runtime))
    }
}

/// One step of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Delivers an event, and waits for the answer.
    Send(Event, Then),
    /// Repeats a delivery, for at most 30 seconds, while it's refused as in progress, or times out because the function
    /// is still starting. Then checks the last answer.
    Until(Event, Then),
    /// Delivers an event this many times concurrently. One delivery runs; the others replay, or are refused as in
    /// progress.
    AtOnce(usize, Event),
    /// Delivers an event, and continues with the next step without waiting for the answer.
    Start(Event),
    /// Waits for the answer of the started delivery.
    Finish(Then),
    /// `Break(MEANING, BROKEN, WAY)` lets requests to the store through until one has this meaning, then breaks BROKEN
    /// requests in this way, from that one on.
    Break(Meaning, usize, HttpWay),
    Heal,
    /// Forwards the requests that the proxy has held back until this moment.
    Deliver(When),
    /// Waits until a request of the scenario with this meaning has come to the store, or was broken on its way.
    Arrives(Meaning),
    /// Waits until the function has had an effect with the play's key.
    Effect,
    Pause(u64),
    KillLayer,
    KillFunction,
    /// Stops the sandboxes, and continues in a new one.
    Restart,
}

/// The event to deliver. Its key is the play's key with a suffix, which the scenario gives. A play is one run of a
/// scenario.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// `{"id": KEY, "do": STEPS}`
    Plain(&'static str, &'static str),
    /// `Plain` with more fields, given as JSON.
    With(&'static str, &'static str, &'static str),
    /// `Plain` with this many bytes of padding.
    Padded(&'static str, &'static str, usize),
    /// A request at this front end, with this `Idempotency-Key`, if any. In the header, `KEY` stands for the play's
    /// key. The body is the JSON of `Plain`, with this suffix and these steps.
    Http(&'static str, Option<&'static str>, &'static str, &'static str),
    /// A batch of this source with these records, each given as its key and its steps.
    Batch(Source, &'static [(&'static str, &'static str)]),
    /// A plain event with a client context, a tenant and a Cognito identity.
    Identified(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Sqs,
    Fifo,
    Kinesis,
    DynamoDb,
}

/// The expected answer to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// A response of a new run: no earlier response in this play came from the same run.
    Runs,
    /// A response of a new run. The response contains this text.
    RunsWith(&'static str),
    /// A response of the function, from a new run or an earlier run.
    Answers,
    /// The response of the key's latest run, byte for byte.
    Replays,
    /// The function's own error, of this type.
    Throws(&'static str),
    /// An error from the layer, of this type.
    Refuses(&'static str),
    /// Any error.
    Fails,
    TimesOut,
    /// The process exited or was killed.
    Dies,
    /// An HTTP response of a new run, with this status.
    Responds(u16),
    /// The HTTP response of the key's latest run, marked as a replay.
    RespondsAgain(u16),
    /// The layer's own HTTP response, with this status and, unless the name is empty, with a header of this name.
    Declines(u16, &'static str),
    /// These records failed, and no others.
    Fail(&'static [&'static str]),
    /// Any answer is accepted.
    Anything,
}

impl Event {
    /// The suffix under which the play remembers the answer to this event.
    pub(crate) fn suffix(&self) -> &'static str {
        match self {
            Self::Plain(suffix, _)
            | Self::With(suffix, ..)
            | Self::Padded(suffix, ..)
            | Self::Http(_, _, suffix, _)
            | Self::Identified(suffix, _) => suffix,
            Self::Batch(..) => "",
        }
    }

    /// The headers of the invocation.
    pub(crate) fn headers(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            // {"custom":{"shop":"north"}}
            Self::Identified(..) => &[
                ("x-amz-client-context", "eyJjdXN0b20iOnsic2hvcCI6Im5vcnRoIn19"),
                ("x-amz-tenant-id", "tenant-7"),
                (
                    "x-amz-cognito-identity",
                    r#"{"cognitoIdentityId":"person-9","cognitoIdentityPoolId":"pool"}"#,
                ),
            ],
            _ => &[],
        }
    }

    /// The event's bytes in the play with this key.
    pub(crate) fn bytes(&self, play: &str) -> Vec<u8> {
        self.json(play).to_string().into_bytes()
    }

    fn json(&self, play: &str) -> Value {
        match self {
            Self::Plain(suffix, steps) | Self::Identified(suffix, steps) => plain(play, suffix, steps),
            Self::With(suffix, steps, fields) => {
                let mut event = plain(play, suffix, steps);
                let fields: Value = serde_json::from_str(&fields.replace("KEY", play)).unwrap();
                for (name, value) in fields.as_object().unwrap() {
                    event[name] = value.clone();
                }
                event
            }
            Self::Padded(suffix, steps, bytes) => {
                let mut event = plain(play, suffix, steps);
                event["pad"] = "x".repeat(*bytes).into();
                event
            }
            Self::Http(front_end, key, suffix, steps) => {
                let mut event = front_ends::event(front_end, Sent { key: None, ..POST });
                event["body"] = plain(play, suffix, steps).to_string().into();
                let name = if *front_end == "rest-api" { "Idempotency-Key" } else { "idempotency-key" };
                let key = key.map(|key| key.replace("KEY", play));
                front_ends::set_header(&mut event, name, key.as_deref());
                event
            }
            Self::Batch(source, records) => {
                let records = records.iter().enumerate();
                json!({ "Records": records.map(|(at, (key, steps))| source.record(play, at, key, steps)).collect::<Vec<_>>() })
            }
        }
    }
}

fn plain(play: &str, suffix: &str, steps: &str) -> Value {
    // The suffixes `a` and `a~2` give two messages with the same key.
    let suffix = suffix.split('~').next().unwrap_or_default();
    json!({ "id": format!("{play}{suffix}"), "do": steps })
}

impl Source {
    /// The record's identifier in a partial batch failure.
    pub(crate) fn name_of(self, play: &str, key: &str) -> String {
        match self {
            Self::Sqs | Self::Fifo => format!("message-{play}{key}"),
            // A sequence number has only digits.
            Self::Kinesis | Self::DynamoDb => {
                let number =
                    |text: &str| text.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
                format!("4959{:020}", number(&format!("{play}{key}")))
            }
        }
    }

    fn record(self, play: &str, at: usize, key: &str, steps: &str) -> Value {
        let (order, name) = (plain(play, key, steps), self.name_of(play, key));
        match self {
            Self::Sqs | Self::Fifo => {
                let mut record = json!({
                    "messageId": name,
                    "receiptHandle": format!("handle-{at}"),
                    "body": order.to_string(),
                    "attributes": {
                        "ApproximateReceiveCount": "1",
                        "SentTimestamp": "1545082649183",
                        "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                        "ApproximateFirstReceiveTimestamp": "1545082649185",
                    },
                    "messageAttributes": {},
                    "md5OfBody": "00000000000000000000000000000000",
                    "eventSource": "aws:sqs",
                    "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders",
                    "awsRegion": "eu-central-1",
                });
                if self == Self::Fifo {
                    record["eventSourceARN"] = "arn:aws:sqs:eu-central-1:123456789012:orders.fifo".into();
                    record["attributes"]["MessageGroupId"] = format!("{play}-group").into();
                    record["attributes"]["MessageDeduplicationId"] = name.into();
                    record["attributes"]["SequenceNumber"] = format!("1884{at:016}").into();
                }
                record
            }
            Self::Kinesis => json!({
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": "1",
                    "sequenceNumber": name,
                    "data": base64(order.to_string().as_bytes()),
                    "approximateArrivalTimestamp": 1_545_084_650.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": format!("shardId-000000000006:{name}"),
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
                "awsRegion": "eu-central-1",
                "eventSourceARN": "arn:aws:kinesis:eu-central-1:123456789012:stream/orders",
            }),
            Self::DynamoDb => json!({
                "eventID": format!("event-{name}"),
                "eventName": "INSERT",
                "eventVersion": "1.1",
                "eventSource": "aws:dynamodb",
                "awsRegion": "eu-central-1",
                "dynamodb": {
                    "ApproximateCreationDateTime": 1_479_499_740,
                    "Keys": { "shop": { "S": play } },
                    "NewImage": { "id": { "S": order["id"] }, "do": { "S": order["do"] } },
                    "SequenceNumber": name,
                    "SizeBytes": 59,
                    "StreamViewType": "NEW_AND_OLD_IMAGES",
                },
                "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/orders/stream/2024-06-10T19:26:16.525",
            }),
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
