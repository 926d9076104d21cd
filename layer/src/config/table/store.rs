//! The settings of the store, and of each operation's key and comparison.

use lambda_idempotency::KeyFields;

use super::Setting;
use crate::{
    config::{
        key::{self, KeyOf},
        value::{self, Wrong},
    },
    event::Kind,
};

/// A JMESPath expression that finds the same value in every event.
const NOTHING: &str = "`true`";

pub(super) const SETTINGS: &[Setting] = &[
    Setting::new(
        "TABLE",
        "the name of a DynamoDB table; or use `IDEMPOTENCY_STORE`",
        "a table's name",
        |draft, table| {
            draft.table = Some(table.to_owned());
            Ok(())
        },
    ),
    Setting::new(
        "STORE",
        "a store's URL, such as `dynamodb://TABLE?sort_key=sk`. PostgreSQL and Redis need a build with \
         `--features postgres,redis`, and `iam` too for the URLs' parameter `iam`",
        "a store's URL",
        |draft, url| {
            draft.store = Some(url.to_owned());
            Ok(())
        },
    ),
    Setting::new(
        "KEY",
        "[what makes two events one operation](README.md#the-key). It has a default only if `IDEMPOTENCY_EVENT` is \
         `http` (`header`) or a batch's source (the records' own ids)",
        key::ALLOWED,
        |draft, key| {
            draft.key = Some(KeyOf::parse(key)?);
            Ok(())
        },
    ),
    Setting::new(
        "COMPARE",
        "the event, without the fields that can differ between deliveries; or the fields that must match when a key \
         is used again: of the event, of an HTTP request's JSON body, or of each record's content. If none of them \
         has a value, the whole event or record counts. `raw-body`: HTTP bodies are compared byte for byte. \
         `key-alone`: nothing is compared, and a known key gets the recorded outcome **whatever else the event asks \
         for**",
        "JSON Pointers such as /amount with commas between them, raw-body or key-alone",
        |draft, fields| {
            match fields {
                "raw-body" => return draft.on_http(|layer| Ok(layer.fingerprint_raw_body(true))),
                "key-alone" => {
                    draft.rules.compare = Some(vec![NOTHING.to_owned()]);
                    return draft.on_http(|layer| Ok(layer.key_alone(true)));
                }
                _ => {}
            }
            let fields = value::list(fields)?;
            for field in &fields {
                KeyFields::new([field.as_str()]).map_err(|error| Wrong::Because(error.to_string()))?;
            }
            draft.rules.compare = Some(fields);
            Ok(())
        },
    ),
    Setting::new(
        "EVENT",
        "recognised from the event; or `event`, `http`, `sqs`, `fifo`, `kinesis`, `dynamodb`, `kafka`, `kafka-queue`",
        "event, http, sqs, fifo, kinesis, dynamodb, kafka or kafka-queue",
        |draft, kind| {
            draft.rules.is_kafka_queue = kind == "kafka-queue";
            draft.rules.kind = Some(match kind {
                "event" => Kind::Event,
                "http" => Kind::Http,
                "sqs" | "fifo" => Kind::Sqs,
                "kinesis" => Kind::Kinesis,
                "dynamodb" => Kind::DynamoDb,
                "kafka" | "kafka-queue" => Kind::Kafka,
                _ => return Err(Wrong::Value(kind.into())),
            });
            Ok(())
        },
    ),
    Setting::new(
        "FUNCTION",
        "the function's name; or the name that the records' ids begin with. A renamed function finds its records if \
         you set its former name. Two functions with one name share their operations",
        "a name",
        |draft, name| {
            draft.rules.function = Some(name.to_owned());
            Ok(())
        },
    ),
    Setting::new(
        "OPERATION",
        "none; a name that each record's id has in addition to the function's name. Needed if two aliases or \
         versions of the function do different things",
        "a name",
        |draft, name| {
            draft.rules.operation = Some(name.to_owned());
            Ok(())
        },
    ),
];
