//! Right handlers that use the key that the docs recommend for their source. Their effects repeat the whole event, as far
//! as its sender wrote it, and their two events differ in nothing but their content.

use lambda_idempotency::{
    Failure, Idempotency, Key, KeyFields, current,
    lambda::{
        batch::{DynamoDbRecord, KafkaRecord, KinesisRecord, SqsMessage},
        keys,
    },
};
use lambda_idempotency_testing::{Bench, Event, FrontEnd, Function, HttpRequest, Ledger};
use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
use serde_json::{Value, json, value::RawValue};

use crate::{
    drive::Handler,
    world::{Body, Request, Response},
};

async fn effect(ledger: &Ledger, detail: String) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("effect");
    Ok(ledger.call("effect", Some(&key), detail).await?)
}

/// Returns a worker for messages with this key.
fn worker(bench: &Bench, key: fn(&SqsMessage) -> Result<Key, lambda_idempotency::Error>) -> Function {
    let ledger = bench.ledger();
    let handle = move |message: SqsMessage| {
        let ledger = ledger.clone();
        async move { effect(&ledger, message.body().to_owned()).await.map_err(Failure::transient) }
    };
    Function::lambda::<_, Box<RawValue>>(bench.idempotency().sqs(key, handle))
}

fn by_message(bench: &Bench) -> Function {
    worker(bench, |message| message.message_key())
}

fn by_notification(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |message: SqsMessage| {
        let ledger = ledger.clone();
        async move { effect(&ledger, message.body().to_owned()).await.map_err(Failure::transient) }
    };
    let key = |message: &SqsMessage| {
        let notification = keys::sns().key_of(message.as_ref())?;
        Ok::<_, lambda_idempotency::Error>(notification)
    };
    Function::lambda::<_, Box<RawValue>>(bench.idempotency().sqs(key, handle))
}

/// Returns a function for events with this key. Its effect repeats the field at this pointer.
fn typed(bench: &Bench, key: KeyFields, content: &'static str) -> Function {
    let ledger = bench.ledger();
    let handle = service_fn(move |event: LambdaEvent<Value>| {
        let ledger = ledger.clone();
        async move {
            let content = event.payload.pointer(content).map(Value::to_string);
            effect(&ledger, content.unwrap_or_default()).await
        }
    });
    let layer = bench.idempotency().events_by::<Value>(key);
    Function::lambda::<_, Box<RawValue>>(ServiceBuilder::new().layer(layer).service(handle))
}

fn by_request(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = service_fn(move |event: LambdaEvent<Value>| {
        let ledger = ledger.clone();
        async move { effect(&ledger, event.payload.to_string()).await }
    });
    let layer = bench.idempotency().events_by_request_id::<Value>();
    Function::lambda::<_, Box<RawValue>>(ServiceBuilder::new().layer(layer).service(handle))
}

fn kinesis(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |record: KinesisRecord| {
        let ledger = ledger.clone();
        async move {
            let data = String::from_utf8_lossy(record.data()).into_owned();
            effect(&ledger, data).await.map_err(Failure::transient)
        }
    };
    let worker = bench.idempotency().kinesis(|record| record.sequence_key(), handle);
    Function::lambda::<_, Box<RawValue>>(worker.in_order())
}

fn table_stream(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |record: DynamoDbRecord| {
        let ledger = ledger.clone();
        async move { effect(&ledger, format!("{:?}", record.event_key())).await.map_err(Failure::transient) }
    };
    Function::lambda::<_, Box<RawValue>>(
        bench.idempotency().dynamodb_stream(|record| record.event_key(), handle),
    )
}

fn partitions(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |record: KafkaRecord| {
        let ledger = ledger.clone();
        async move {
            let value = String::from_utf8_lossy(record.value().unwrap_or_default()).into_owned();
            effect(&ledger, value).await.map_err(Failure::transient)
        }
    };
    Function::lambda::<_, Box<RawValue>>(bench.idempotency().kafka(|record| record.offset_key(), handle))
}

/// Runs each message of a broker's event as its own operation.
async fn each(event: Value, idempotency: Idempotency, ledger: Ledger) -> Result<usize, Error> {
    let mut count = 0;
    for (queue, messages) in event["rmqMessagesByQueue"].as_object().into_iter().flatten() {
        for message in messages.as_array().into_iter().flatten() {
            let data = message["data"].clone();
            let broker = event["eventSourceArn"].as_str().unwrap_or_default();
            let key = keys::mq_message(broker, queue).key_of(message.to_string().as_bytes())?;
            let handle = || effect(&ledger, data.to_string());
            let _: String = idempotency.operation("record")?.run(key.ok_or("no key")?, &data, handle).await?;
            count += 1;
        }
    }
    Ok(count)
}

fn broker(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |event: Value| each(event, idempotency.clone(), ledger.clone()))
}

fn kafka(offset: u64, value: &str) -> Event {
    let record =
        json!({ "topic": "orders", "partition": 0, "offset": offset, "timestamp": 1, "value": value });
    let arn = "arn:aws:kafka:eu-west-1:1:cluster/orders/b7";
    Event::of(
        &json!({ "eventSource": "aws:kafka", "eventSourceArn": arn, "records": { "orders-0": [record] } }),
    )
}

fn mq(id: &str, data: &str) -> Event {
    let message = json!({ "basicProperties": { "messageId": id }, "redelivered": false, "data": data });
    let arn = "arn:aws:mq:eu-west-1:1:broker:shop:b-7";
    Event::of(
        &json!({ "eventSource": "aws:rmq", "eventSourceArn": arn, "rmqMessagesByQueue": { "ship::/": [message] } }),
    )
}

fn http(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = service_fn(move |request: Request| {
        let ledger = ledger.clone();
        async move {
            let body = String::from_utf8_lossy(request.body().as_ref()).into_owned();
            let receipt = effect(&ledger, body).await?;
            Ok::<_, Error>(Response::builder().status(201).body(Body::Text(receipt))?)
        }
    });
    Function::http(ServiceBuilder::new().layer(bench.idempotency().http().required(true)).service(handle))
}

fn request(front_end: FrontEnd, caller: &str) -> HttpRequest {
    let request = Event::request(front_end, "POST", "/payments").key("8e03978e-order-17");
    request.caller("https://login.example.com", caller)
}

/// Two callers use the same key. A load balancer verifies no caller, so its two requests have two keys.
fn payments(front_end: FrontEnd) -> Event {
    let (anna, otto) = (request(front_end, "anna"), request(front_end, "otto"));
    let otto = if front_end == FrontEnd::LoadBalancer { otto.key("8e03978e-order-18") } else { otto };
    let other = otto.json(&json!({ "cents": 1250 })).event();
    let conflicting = request(front_end, "anna").json(&json!({ "cents": 1300 })).event();
    let event = anna.json(&json!({ "cents": 1250 })).event();
    event.other(other.text()).conflicting(conflicting.text())
}

fn pair(one: &Event, other: &Event) -> Event {
    one.clone().other(other.text())
}

pub(crate) fn all() -> Vec<Handler> {
    let handler = |name, make: fn(&Bench) -> Function, event| Handler { name, make, event };
    let detail = |id: u64| json!({ "id": id, "cents": 1250 });
    let item = |id: &str| [json!({ "id": { "S": id } })];
    let entry = |execution: &str| {
        Event::of(
            &json!({ "execution": execution, "state": "Pay", "entered": "2026-11-20T09:00:00.120Z", "cents": 1 }),
        )
    };
    let notification = |id: &str, message: &str| {
        json!({ "Type": "Notification", "MessageId": id, "TopicArn": "arn:aws:sns:eu-central-1:1:orders",
            "Message": message, "Timestamp": "2026-11-20T09:15:44.120Z", "Signature": "EXAMPLE" })
        .to_string()
    };
    vec![
        handler(
            "r11_message_id",
            by_message,
            pair(&Event::sqs("orders", ["one", "two"]), &Event::sqs("orders", ["three"])),
        ),
        handler(
            "r12_message_id_fifo",
            by_message,
            pair(
                &Event::fifo("orders.fifo", [("a", "one"), ("a", "two")]),
                &Event::fifo("orders.fifo", [("a", "three")]),
            ),
        ),
        handler(
            "r13_notification",
            |bench| typed(bench, keys::sns(), "/Records/0/Sns/Message"),
            pair(&Event::sns("orders", "one"), &Event::sns("orders", "two")),
        ),
        handler(
            "r14_notification_through_a_queue",
            by_notification,
            pair(
                &Event::sqs("q", [notification("m-1", "one")]),
                &Event::sqs("q", [notification("m-2", "two")]),
            ),
        ),
        handler(
            "r15_event_bridge",
            |bench| typed(bench, keys::event_bridge(), ""),
            pair(
                &Event::event_bridge("shop", "Paid", &detail(17)),
                &Event::event_bridge("shop", "Paid", &detail(18)),
            ),
        ),
        handler(
            "r16_schedule",
            |bench| typed(bench, keys::scheduler(), ""),
            pair(
                &Event::schedule("sweep", "2026-11-20T09:00:00Z"),
                &Event::schedule("sweep", "2026-11-20T10:00:00Z"),
            ),
        ),
        handler(
            "r17_object",
            |bench| typed(bench, keys::s3(), ""),
            pair(&Event::s3("uploads", "one.pdf"), &Event::s3("uploads", "two.pdf")),
        ),
        handler(
            "r18_step_functions",
            |bench| typed(bench, keys::step_functions(), ""),
            pair(&entry("arn:aws:states:1"), &entry("arn:aws:states:2")),
        ),
        handler(
            "r19_kinesis",
            kinesis,
            pair(
                &Event::kinesis("orders", [("a", "one"), ("b", "two")]),
                &Event::kinesis("orders", [("a", "three")]),
            ),
        ),
        handler(
            "r20_table_stream",
            table_stream,
            pair(
                &Event::dynamodb_stream("orders", &["id"], item("order-17")),
                &Event::dynamodb_stream("orders", &["id"], item("order-18")),
            ),
        ),
        handler("r21_kafka", partitions, pair(&kafka(15, "MQ=="), &kafka(16, "Mg=="))),
        handler("r22_mq", broker, pair(&mq("3a7d0f59", "MQ=="), &mq("3a7d0f60", "Mg=="))),
        handler(
            "r23_request_id",
            by_request,
            pair(&Event::json(r#"{"order":17}"#), &Event::json(r#"{"order":18}"#)).invoked_asynchronously(),
        ),
        handler("r24_http_api", http, payments(FrontEnd::HttpApi)),
        handler("r25_rest_api", http, payments(FrontEnd::RestApi)),
        handler("r26_function_url", http, payments(FrontEnd::FunctionUrl)),
        handler("r27_load_balancer", http, payments(FrontEnd::LoadBalancer)),
    ]
}
