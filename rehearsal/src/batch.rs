//! A batch of orders, as SQS or Kafka delivers it, and parsers for its response and for the function's log lines.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{answer::Answer, event::Event, function::Function};
use crate::problem::{Problem, Result};

/// The number of messages in a batch.
pub(crate) const MESSAGES: usize = 100;
/// The number of orders in a batch. The batch's last messages repeat earlier orders.
pub(crate) const ORDERS: usize = 90;
/// The number of partitions that a batch of Kafka's records comes from.
pub(crate) const PARTITIONS: usize = 3;

/// The example function that ships orders, and two messages, which are the templates for its batches.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) function: Function,
    /// The same function as a worker for Kafka in stream mode, and in queue mode.
    pub(crate) of_stream: Function,
    pub(crate) of_share_group: Function,
    first: Value,
    again: Value,
}

impl Orders {
    /// Reads the messages in `folder`.
    pub(crate) fn new(function: Function, folder: &Path) -> Result<Self> {
        let message = |file: &str| {
            let path = folder.join(file);
            let message = Event::read(&path)?.pointer("/Records/0").cloned();
            message.ok_or_else(|| Problem::new(format!("the event file {} has no message", path.display())))
        };
        let of_kafka = |mode| function.clone().with_variable("ORDERS_FROM", mode);
        let (of_stream, of_share_group) = (of_kafka("kafka"), of_kafka("kafka-queue"));
        let (first, again) = (message("sqs.json")?, message("sqs-again.json")?);
        Ok(Self { function, of_stream, of_share_group, first, again })
    }
}

/// A batch of 100 messages for 90 orders, or of 90 records of Kafka.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The first delivery.
    pub(crate) first: Event,
    /// The redelivery of the whole batch.
    pub(crate) again: Event,
    /// The number of each message's order, by message id, or by the record's partition and offset, as in `orders-0@15`.
    order_of: BTreeMap<String, usize>,
}

impl Batch {
    /// Builds a batch. Each order's id is `name` and a number.
    pub(crate) fn new(orders: &Orders, name: &str) -> Self {
        let messages = (0..MESSAGES).map(|nth| (format!("{name}-message-{nth}"), nth % ORDERS));
        let order_of: BTreeMap<String, usize> = messages.collect();
        let event = |message: &Value| {
            let records: Vec<_> =
                order_of.iter().map(|(id, order)| record(message, name, id, *order)).collect();
            Event::new(json!({ "Records": records }))
        };
        Self { first: event(&orders.first), again: event(&orders.again), order_of }
    }

    /// Builds a batch of Kafka, with one record for each order. A redelivery is the same event.
    pub(crate) fn of_kafka(name: &str) -> Self {
        let place = |order: usize| format!("orders-{}@{}", order % PARTITIONS, order / PARTITIONS);
        let order_of: BTreeMap<String, usize> = (0..ORDERS).map(|order| (place(order), order)).collect();
        let first = Event::new(kafka(name, 0..ORDERS));
        Self { again: first.clone(), first, order_of }
    }

    /// The event that redelivers the records of a batch of Kafka that the answer lists.
    pub(crate) fn of_returned(&self, answer: &Answer) -> Event {
        let Answer::Payload(payload) = answer else { return self.again.clone() };
        let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
        let named = payload["batchItemFailures"].as_array().into_iter().flatten();
        let returned: BTreeSet<String> =
            named.filter_map(|named| identifier(&named["itemIdentifier"])).collect();
        let mut event = self.again.pointer("").cloned().unwrap_or_default();
        for (partition, records) in event["records"].as_object_mut().into_iter().flatten() {
            if let Some(records) = records.as_array_mut() {
                records.retain(|record| returned.contains(&format!("{partition}@{}", record["offset"])));
            }
        }
        Event::new(event)
    }

    /// Counts the messages that the response asks to redeliver, and their orders.
    ///
    /// # Errors
    ///
    /// If the answer isn't a response to this batch, or returns only some of an order's messages. The error describes
    /// the fault.
    pub(crate) fn returned(&self, answer: &Answer) -> Result<Returned, String> {
        let no_answer = || format!("expected a list of the messages to redeliver, got {answer}");
        let Answer::Payload(payload) = answer else { return Err(no_answer()) };
        let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
        let named = payload["batchItemFailures"].as_array().ok_or_else(no_answer)?;
        let mut orders = BTreeSet::new();
        for id in named.iter().map(|named| identifier(&named["itemIdentifier"]).unwrap_or_default()) {
            orders.insert(*self.order_of.get(&id).ok_or_else(|| format!("the batch has no message `{id}`"))?);
        }
        let of_those = self.order_of.values().filter(|order| orders.contains(*order)).count();
        if of_those != named.len() {
            return Err(format!(
                "the answer returns {} messages, but their orders have {of_those} messages; it must return all \
                 messages of an order, or none",
                named.len()
            ));
        }
        Ok(Returned { messages: named.len(), orders: orders.len() })
    }
}

/// A record's identifier in an answer: a text, or for Kafka a partition and an offset.
fn identifier(item: &Value) -> Option<String> {
    let place = || Some(format!("{}@{}", item["partition"].as_str()?, item["offset"].as_u64()?));
    item.as_str().map(str::to_owned).or_else(place)
}

/// Builds the event of Kafka with these orders.
fn kafka(name: &str, orders: std::ops::Range<usize>) -> Value {
    let mut lists = serde_json::Map::new();
    for order in orders {
        let (partition, offset) = (order % PARTITIONS, order / PARTITIONS);
        let value =
            json!({ "order_id": format!("{name}-{order}"), "article": "cup", "quantity": 1 }).to_string();
        let list = lists.entry(format!("orders-{partition}")).or_insert_with(|| json!([]));
        list.as_array_mut().into_iter().for_each(|list| {
            list.push(json!({
                "topic": "orders", "partition": partition, "offset": offset, "timestamp": 1_795_166_332_015_u64,
                "timestampType": "CREATE_TIME", "key": null, "value": BASE64_STANDARD.encode(&value), "headers": [],
            }));
        });
    }
    json!({
        "eventSource": "aws:kafka",
        "eventSourceArn": "arn:aws:kafka:eu-central-1:123456789012:cluster/shop/5b1e7c30-94d2-4f6a-8a1b-3c0d9e72f485-4",
        "bootstrapServers": "b-1.shop.k7x2qd.c4.kafka.eu-central-1.amazonaws.com:9098",
        "records": lists,
    })
}

/// Builds the message `id` for an order.
fn record(message: &Value, name: &str, id: &str, order: usize) -> Value {
    let mut record = message.clone();
    record["messageId"] = id.into();
    let order = json!({ "order_id": format!("{name}-{order}"), "article": "cup", "quantity": 1 });
    record["body"] = order.to_string().into();
    // Remove the checksum: it no longer matches the body, and nothing reads it.
    record.as_object_mut().map(|fields| fields.remove("md5OfBody"));
    record
}

/// How many messages a batch's response asks to redeliver, and to how many orders they belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) messages: usize,
    pub(crate) orders: usize,
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.messages, self.orders) {
            (0, _) => f.write_str("all done"),
            (messages, orders) => write!(f, "{messages} returned, of {orders} orders"),
        }
    }
}

/// An order that was shipped, as the handler logs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shipped {
    /// The parcel's id, the same in each attempt to ship one order.
    pub(crate) parcel: String,
    /// The number of the attempt. 1 is the first claim; every later attempt is a takeover.
    pub(crate) attempt: u32,
}

impl Shipped {
    /// Parses the log line of a run.
    pub(crate) fn read(line: &str) -> Result<Self> {
        let field = |name: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.map(|value| value.trim_matches('"'))
        };
        let attempt = field("attempt").and_then(|attempt| attempt.parse().ok());
        match (field("parcel"), attempt) {
            (Some(parcel), Some(attempt)) => Ok(Self { parcel: parcel.to_owned(), attempt }),
            _ => Err(Problem::new(format!("a log line of `orders` lacks the parcel or the attempt: {line}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/orders");
        Batch::new(&Orders::new(Function::at("orders"), &folder).unwrap(), "step")
    }

    fn naming(ids: &[&str]) -> Answer {
        let named: Vec<_> = ids.iter().map(|id| json!({ "itemIdentifier": id })).collect();
        Answer::Payload(json!({ "batchItemFailures": named }).to_string().into())
    }

    #[test]
    fn redelivery_repeats_batch_with_its_duplicates() {
        let batch = batch();
        let of = |event: &Event, field: &str| -> Vec<String> {
            let records = event.pointer("/Records").unwrap().as_array().unwrap().clone();
            records.iter().map(|record| record.pointer(field).unwrap().to_string()).collect()
        };
        for same in ["/messageId", "/body"] {
            assert_eq!(of(&batch.first, same), of(&batch.again, same));
        }
        assert_ne!(of(&batch.first, "/receiptHandle"), of(&batch.again, "/receiptHandle"));
        assert_eq!(of(&batch.first, "/messageId").iter().collect::<BTreeSet<_>>().len(), MESSAGES);
        assert_eq!(of(&batch.first, "/body").iter().collect::<BTreeSet<_>>().len(), ORDERS);
    }

    #[test]
    fn response_must_return_whole_orders() {
        let batch = batch();
        assert_eq!(batch.returned(&naming(&[])), Ok(Returned::default()));
        let both = naming(&["step-message-3", "step-message-93", "step-message-50"]);
        let returned = batch.returned(&both).unwrap();
        assert_eq!(returned, Returned { messages: 3, orders: 2 });
        assert_eq!(returned.to_string(), "3 returned, of 2 orders");
        for (answer, fault) in [
            (naming(&["step-message-3"]), "the answer returns 1 messages, but their orders have 2 messages"),
            (naming(&["another"]), "the batch has no message `another`"),
            (Answer::Payload(b"{}".to_vec()), "a list of the messages to redeliver"),
            (Answer::Died("killed".into()), "a list of the messages to redeliver"),
        ] {
            let told = batch.returned(&answer).unwrap_err();
            assert!(told.contains(fault), "{told}");
        }
    }

    #[test]
    fn log_line_gives_parcel_and_attempt() {
        let line =
            r#"INFO Lambda runtime invoke{requestId="1"}: orders: shipping an order parcel="6f-1" attempt=2"#;
        assert_eq!(Shipped::read(line).unwrap(), Shipped { parcel: "6f-1".into(), attempt: 2 });
        assert!(Shipped::read("shipping an order").is_err());
    }
}
