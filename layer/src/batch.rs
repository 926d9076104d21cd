//! Batches: the library claims each record, and the function gets the records that must run.

mod together;

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use lambda_idempotency::{
    Error, ErrorKind, Failure, Key,
    lambda::batch::{Batch, DynamoDbRecord, KafkaRecord, KinesisRecord, SqsMessage},
    settings::Mode,
};
use lambda_runtime::LambdaEvent;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tower::{Service, ServiceExt as _};

use crate::{
    answer::{Answer, INTERNAL, raw},
    config::{BatchAnswer, BatchMode},
    event::{ClaimField, Event, Kind, with_field},
    turn::Protection,
};
use together::{Ends, Together};

/// A concurrency that lets the library claim all records of a batch at the same time: the size of the largest batch.
const ALL: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// One record, as the function gets it.
pub(super) struct Handed {
    identifier: String,
    json: String,
    /// Whether `json` is the record as Lambda delivered it.
    is_original: bool,
}

/// Protects a batch of SQS messages.
pub(crate) async fn sqs(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    let together = Together::new(protection, event);
    let (rules, function) = (Arc::clone(protection), Arc::clone(&together));
    let key = move |message: &SqsMessage| key(&rules, Kind::Sqs, message, || message.message_key());
    let batch = protection
        .idempotency
        .sqs(key, move |message: SqsMessage| run(Arc::clone(&function), handed(message.raw(), &function)));
    handle(protection, event, &together, batch, Kind::Sqs).await
}

/// Protects a batch of Kinesis records.
pub(crate) async fn kinesis(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    let together = Together::new(protection, event);
    let (rules, function) = (Arc::clone(protection), Arc::clone(&together));
    let key = move |record: &KinesisRecord| key(&rules, Kind::Kinesis, record, || record.sequence_key());
    let batch = protection.idempotency.kinesis(key, move |record: KinesisRecord| {
        run(Arc::clone(&function), handed(record.raw(), &function))
    });
    let batch = if mode(protection) == BatchMode::Each { batch.in_order() } else { batch };
    handle(protection, event, &together, batch, Kind::Kinesis).await
}

/// Protects a batch of a DynamoDB stream's records.
pub(crate) async fn dynamodb(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    let together = Together::new(protection, event);
    let (rules, function) = (Arc::clone(protection), Arc::clone(&together));
    let key = move |record: &DynamoDbRecord| key(&rules, Kind::DynamoDb, record, || record.event_key());
    let batch = protection.idempotency.dynamodb_stream(key, move |record: DynamoDbRecord| {
        run(Arc::clone(&function), handed(record.raw(), &function))
    });
    let batch = if mode(protection) == BatchMode::Each { batch.in_order() } else { batch };
    handle(protection, event, &together, batch, Kind::DynamoDb).await
}

/// Protects a batch of Kafka's records.
pub(crate) async fn kafka(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    let together = Together::new(protection, event);
    let (rules, function) = (Arc::clone(protection), Arc::clone(&together));
    let key = move |record: &KafkaRecord| key(&rules, Kind::Kafka, record, || record.offset_key());
    let batch = protection
        .idempotency
        .kafka(key, move |record: KafkaRecord| run(Arc::clone(&function), handed(record.raw(), &function)));
    // The layer itself fails the invocation, with the function's own error if there is one.
    let batch = batch.partial_answers();
    let batch = match mode(protection) {
        _ if protection.rules.is_kafka_queue => batch.unordered(),
        BatchMode::Each => batch,
        BatchMode::Whole => batch.together(),
    };
    handle(protection, event, &together, batch, Kind::Kafka).await
}

/// How the batch is handed to the function. In shadow mode, it's one event, as without the layer.
fn mode(protection: &Protection) -> BatchMode {
    match protection.rules.settings.mode {
        Mode::Enforce => protection.rules.batch,
        _ => BatchMode::Whole,
    }
}

fn key(
    protection: &Protection,
    kind: Kind,
    content: impl AsRef<[u8]>,
    own: impl FnOnce() -> Result<Key, Error>,
) -> Result<Option<Key>, Error> {
    protection.rules.key.of_record(kind, content.as_ref(), own)
}

/// Returns the record for the function. If `IDEMPOTENCY_CLAIM_FIELD` names a field, the record gets that field, with
/// the facts of its claim.
///
/// Call it inside the record's handler, where the record's claim is the current one.
fn handed(raw: &RawValue, function: &Together) -> Handed {
    let facts = lambda_idempotency::current().as_ref().map(crate::event::facts);
    let extended = match (function.claim_field(), facts) {
        (Some(ClaimField::Event(name)), Some(facts)) => with_field(raw.get().as_bytes(), name, &facts),
        _ => None,
    };
    let extended = extended.and_then(|json| String::from_utf8(json.into()).ok());
    Handed {
        identifier: identifier(raw, function.is_piped()),
        is_original: extended.is_none(),
        json: extended.unwrap_or_else(|| raw.get().to_owned()),
    }
}

async fn run(function: Arc<Together>, record: Handed) -> Result<(), Failure> {
    function.run(record).await
}

async fn handle<R>(
    protection: &Arc<Protection>,
    event: &Arc<Event>,
    together: &Arc<Together>,
    batch: Batch<R>,
    kind: Kind,
) -> Answer
where
    Batch<R>: Service<LambdaEvent<Box<RawValue>>, Response = Box<RawValue>, Error = Error>,
{
    let rules = &protection.rules;
    let Some(raw) = raw(event) else {
        return Answer::refused(protection, ErrorKind::Invalid, "the event isn't JSON; nothing ran");
    };
    let compared = match &rules.compare {
        Some(fields) => batch.fingerprint_fields(fields.iter().map(String::as_str)),
        None => Ok(batch),
    };
    let batch = match compared {
        Ok(batch) => batch,
        Err(error) => return Answer::error(error),
    };
    if let Some(ClaimField::Context(name)) = &rules.claim_field {
        let message = format!(
            "the event is a batch, whose records share one client context; set IDEMPOTENCY_CLAIM_FIELD to a field's \
             name, such as {name}: each record then gets that field"
        );
        return Answer::refused(protection, ErrorKind::Invalid, &message);
    }
    let _ends = Ends(Arc::clone(together));
    let progress = Arc::clone(together);
    let concurrency = match mode(protection) {
        BatchMode::Whole => ALL,
        BatchMode::Each => NonZeroUsize::new(rules.concurrency).unwrap_or(NonZeroUsize::MIN),
    };
    let batch = batch
        .required(!rules.passes_unkeyed.unwrap_or(false))
        .acknowledge_permanent_failures(rules.acknowledges_failures)
        .concurrency(concurrency)
        .on_progress(move |records, returned| progress.in_flight(records, returned));
    let batch = match &rules.source_name {
        Some(name) => batch.source_name(Arc::clone(name)),
        None => batch,
    };
    let batch = match rules.batch_reserve {
        Some(reserve) => batch.reserve(reserve),
        None => batch,
    };
    let calling = batch.oneshot(LambdaEvent::new(raw, event.context.clone()));
    event.claims();
    let answered = tokio::select! {
        answered = calling => Some(answered),
        () = together.compared() => None,
    };
    if let Some(own) = together.take_own() {
        return Answer::Own(Box::new(own));
    }
    let Some(answered) = answered else {
        return Answer::refusal(INTERNAL, "the function's answer was lost");
    };
    let answer = match answered {
        Ok(answer) => answer,
        Err(error) => return Answer::error(error),
    };
    let Ok(returned) = returned(&answer) else {
        let message =
            "the records to redeliver can't be read from the library's response; Lambda redelivers all";
        return Answer::refusal("Idempotency.BatchFailed", message);
    };
    let usual = if kind == Kind::Kafka { BatchAnswer::Fail } else { BatchAnswer::Report };
    let batch_answer = rules.batch_answer.unwrap_or(usual);
    let is_failed = match batch_answer {
        BatchAnswer::Report => all_failed(event, &returned, kind),
        BatchAnswer::Fail => !returned.is_empty(),
    };
    match (together.error().filter(|_| is_failed), batch_answer) {
        // Lambda gets the function's own error, as it would without the layer.
        (Some((headers, body)), _) => {
            Answer::Made { is_error: true, headers, body: crate::upstream::full(body) }
        }
        (None, BatchAnswer::Fail) if is_failed => {
            let message =
                format!("{} records of the batch failed; Lambda redelivers the whole batch", returned.len());
            Answer::refusal("Idempotency.BatchFailed", &message)
        }
        _ => Answer::json_of(&answer),
    }
}

/// Whether every record of the event is redelivered: if the response lists all messages of an SQS batch, all of Kafka's
/// records or all records of a pipe's batch, or the first record of a stream's batch.
fn all_failed(event: &Event, returned: &[String], kind: Kind) -> bool {
    let (records, is_piped) = (records(event), event.is_piped());
    match kind {
        Kind::Sqs | Kind::Kafka => returned.len() == records.len(),
        _ if is_piped => returned.len() == records.len(),
        _ => records.first().is_some_and(|first| returned.contains(&identifier(first, false))),
    }
}

/// The identifier by which the response lists a record: a message's id, a stream's sequence number or, if a pipe
/// delivered the record of a stream, its event id; for a record of Kafka, its place, as [`listed`] writes it. Empty if the
/// record has none.
pub(super) fn identifier(record: &RawValue, is_piped: bool) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        #[serde(rename = "messageId")]
        message: Option<String>,
        #[serde(rename = "eventID")]
        event: Value,
        kinesis: Option<Numbered>,
        dynamodb: Option<Numbered>,
        topic: Option<String>,
        partition: Value,
        offset: Value,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Numbered {
        #[serde(rename = "sequenceNumber", alias = "SequenceNumber")]
        number: Option<String>,
    }
    let Named { message, event, kinesis, dynamodb, topic, partition, offset } =
        serde_json::from_str(record.get()).unwrap_or_default();
    if let Some(topic) = topic {
        let number = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        return format!("{topic}-{}@{}", number(partition), number(offset));
    }
    let of_stream = match is_piped {
        true => event.as_str().map(str::to_owned),
        false => kinesis.or(dynamodb).and_then(|numbered| numbered.number),
    };
    message.or(of_stream).unwrap_or_default()
}

/// A record's identifier in a response: a text, or for a record of Kafka its partition and its offset, as in
/// `orders-0@15`.
pub(super) fn listed(identifier: &Value) -> Option<String> {
    let place = || {
        Some(format!("{}@{}", identifier.get("partition")?.as_str()?, identifier.get("offset")?.as_u64()?))
    };
    identifier.as_str().map(str::to_owned).or_else(place)
}

/// The identifiers of the failed records, from the library's response.
fn returned(answer: &RawValue) -> serde_json::Result<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        batch_item_failures: Vec<Item>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Item {
        item_identifier: Value,
    }
    let Named { batch_item_failures: items } = serde_json::from_str(answer.get())?;
    Ok(items.iter().filter_map(|item| listed(&item.item_identifier)).collect())
}

/// The records of a Kafka event, by their topics and partitions. `None` if the event is another one.
pub(super) fn partitions(event: &[u8]) -> Option<BTreeMap<String, Vec<&RawValue>>> {
    #[derive(Deserialize)]
    struct Batch<'e> {
        #[serde(borrow)]
        records: BTreeMap<String, Vec<&'e RawValue>>,
    }
    serde_json::from_slice::<Batch<'_>>(event).ok().map(|batch| batch.records)
}

/// The event's records.
pub(crate) fn records(event: &Event) -> Vec<&RawValue> {
    #[derive(Deserialize)]
    struct Batch<'e> {
        #[serde(rename = "Records", borrow)]
        records: Vec<&'e RawValue>,
    }
    let batch = || serde_json::from_slice::<Batch<'_>>(&event.body).map(|batch| batch.records);
    let of_kafka = || partitions(&event.body).map(|lists| lists.into_values().flatten().collect());
    event.piped().or_else(|| batch().ok()).or_else(of_kafka).unwrap_or_default()
}
