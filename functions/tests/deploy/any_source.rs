//! Runs this test program as a Lambda function: a worker for the source that the variable `SOURCE` names, wrapped as
//! the documentation says for that source. A deployed example has only one source.

use std::{
    env,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use aws_lambda_events::{encodings::Base64Data, eventbridge::EventBridgeEvent, s3::S3Event, sns::SnsEvent};
use example_functions::Telemetry;
use lambda_idempotency::{
    Failure, Idempotency, KeyFields, RunError,
    lambda::{
        batch::{DynamoDbRecord, KafkaRecord, KinesisRecord},
        event::EventLayer,
        keys,
    },
};
use lambda_runtime::{
    Error, LambdaEvent, run,
    tower::{ServiceBuilder, service_fn},
    tracing,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// The line that the handler logs when it runs.
pub(crate) const MARK: &str = "a source's handler runs";

/// Numbers the runs of this process, so that two answers are equal only if one is a replay.
static RUNS: AtomicUsize = AtomicUsize::new(1);
/// Whether an order has named the carrier `closed`. Only the first such order fails.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The command that starts this program as a function for `source`.
pub(crate) fn command(source: &str) -> String {
    let program = env::current_exe().unwrap();
    format!(
        "env SOURCE={source} {} --ignored --nocapture --exact any_source::as_a_function",
        program.display()
    )
}

#[tokio::test]
#[ignore = "not a test: other tests start it as a function"]
async fn as_a_function() {
    if env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        serve(&env::var("SOURCE").unwrap()).await.unwrap();
    }
}

async fn serve(source: &str) -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::from_env().await?;
    let worker = ServiceBuilder::new().map_result(telemetry.flush_before());
    match source {
        "sns" => one(idempotency.events_by::<SnsEvent>(keys::sns()), telemetry).await,
        "s3" => one(idempotency.events_by::<S3Event>(keys::s3()), telemetry).await,
        "scheduler" => one(idempotency.events_by::<EventBridgeEvent>(keys::scheduler()), telemetry).await,
        "step-functions" => one(idempotency.events_by::<Value>(keys::step_functions()), telemetry).await,
        "async-invoke" => one(idempotency.events_by_request_id::<Value>(), telemetry).await,
        "kinesis" => run(worker.service(idempotency.kinesis(KinesisRecord::sequence_key, ship_record))).await,
        "dynamodb" => {
            run(worker.service(idempotency.dynamodb_stream(DynamoDbRecord::event_key, ship_change))).await
        }
        "kafka" => run(worker.service(idempotency.kafka(KafkaRecord::offset_key, ship_kafka))).await,
        "activemq" | "rabbitmq" => each(&idempotency, telemetry).await,
        other => Err(format!("there's no worker for {other}").into()),
    }
}

/// Runs a function whose event is one operation.
async fn one<T>(layer: EventLayer<T>, telemetry: Telemetry) -> Result<(), Error>
where
    T: DeserializeOwned + Send + 'static,
{
    let worker = ServiceBuilder::new()
        .map_result(telemetry.flush_before())
        .layer(layer)
        .service(service_fn(async |_: LambdaEvent<T>| Ok::<_, Error>(ship(&Value::Null)?)));
    run(worker).await
}

/// Runs a function for a source that has no worker in the library. Each record of an event is its own operation, and
/// the operations run one after the other. The first failure fails the event, and the source redelivers the whole
/// event.
async fn each(idempotency: &Idempotency, telemetry: Telemetry) -> Result<(), Error> {
    let handle = async |event: LambdaEvent<Value>| {
        let ship_parcel = idempotency.for_context(&event.context).operation("ship")?;
        let mut parcels = Vec::new();
        for (queue, record) in records(&event.payload) {
            let fields = of_queue(&event.payload, queue).ok_or_else(|| lacks("source"))?;
            let key = fields.key_of(record.to_string().as_bytes())?.ok_or_else(|| lacks("key fields"))?;
            // The payload is only this field, since other fields of the record contain details of the delivery.
            let payload = record.get("data").ok_or_else(|| lacks("payload"))?;
            let parcel: String = ship_parcel.run(key, payload, async || ship(&decoded(payload)?)).await?;
            parcels.push(parcel);
        }
        Ok::<_, RunError<Error>>(parcels)
    };
    run(ServiceBuilder::new().map_result(telemetry.flush_before()).service(service_fn(handle))).await
}

fn of_queue(event: &Value, queue: &str) -> Option<KeyFields> {
    Some(keys::mq_message(event["eventSourceArn"].as_str()?, queue))
}

fn lacks(what: &str) -> RunError<Error> {
    RunError::Handler(format!("the record has no {what}").into())
}

/// Returns an event's records, each with its partition or queue. For Kafka, these are the records of all partitions;
/// for ActiveMQ, the messages; for RabbitMQ, the messages of all queues.
pub(crate) fn records(event: &Value) -> Vec<(&str, &Value)> {
    let lists = ["records", "messages", "rmqMessagesByQueue"].into_iter().find_map(|name| event.get(name));
    match lists {
        Some(Value::Object(lists)) => lists.iter().flat_map(of_queue_or_partition).collect(),
        Some(Value::Array(list)) => list.iter().map(|message| (destination(message), message)).collect(),
        _ => Vec::new(),
    }
}

fn of_queue_or_partition<'e>((name, list): (&'e String, &'e Value)) -> Vec<(&'e str, &'e Value)> {
    list.as_array().into_iter().flatten().map(|record| (name.as_str(), record)).collect()
}

/// The queue of an ActiveMQ message.
fn destination(message: &Value) -> &str {
    message["destination"]["physicalName"].as_str().unwrap_or_default()
}

fn decoded(payload: &Value) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&Base64Data::deserialize(payload)?.0)
}

async fn ship_record(record: KinesisRecord) -> Result<String, Failure> {
    Ok(ship(&record.json()?)?)
}

async fn ship_kafka(record: KafkaRecord) -> Result<String, Failure> {
    Ok(ship(&record.json()?)?)
}

async fn ship_change(record: DynamoDbRecord) -> Result<String, Failure> {
    let change: Value = serde_json::from_str(record.change().get())?;
    let carrier = &change["NewImage"]["carrier"]["S"];
    Ok(ship(&serde_json::json!({ "carrier": carrier }))?)
}

/// The handler, which is the same for every source.
fn ship(order: &Value) -> Result<String, Error> {
    tracing::info!("{MARK}");
    if order["carrier"] == "closed" && !WAS_CLOSED.swap(true, Ordering::SeqCst) {
        return Err("no carrier takes parcels".into());
    }
    Ok(format!("parcel {}", RUNS.fetch_add(1, Ordering::SeqCst)))
}
