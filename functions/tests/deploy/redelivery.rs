//! Tests that the queues of `template.yaml` and of the layer's example suit their functions, and that a record is kept
//! for as long as a queue may redeliver the record's event.

use std::{collections::BTreeSet, fs, sync::LazyLock, time::Duration};

use lambda_idempotency::store::dynamodb::DynamoDbStore;
use lambda_idempotency_rehearsal::database::Database;
use serde_json::{Value, json};
use testkit::emulator;

use super::stage::{Delivers as _, Running, TABLE, database, project};

/// How long SQS keeps a message if the queue doesn't set it: 4 days.
const DEFAULT_MESSAGE_RETENTION: u64 = 4 * DAY;
const DAY: u64 = 24 * 60 * 60;

/// The functions of `template.yaml` whose events a queue keeps, each with an event that its handler accepts.
const EVENTS: [(&str, &str); 3] =
    [("orders", "orders/sqs"), ("receipts", "receipts/event-bridge"), ("refunds", "refunds/invoke")];

/// The templates without the tags of their intrinsic functions: `!Ref X` reads as `X`.
pub(crate) static TEMPLATES: LazyLock<[Template; 2]> =
    LazyLock::new(|| ["template.yaml", "layer/example/template.yaml"].map(Template::read));

pub(crate) struct Template {
    pub(crate) name: &'static str,
    value: Value,
}

/// A queue that triggers a function.
pub(crate) struct Source<'a> {
    /// The function's logical id.
    pub(crate) function: &'a str,
    /// The queue's logical id.
    pub(crate) id: &'a str,
    pub(crate) queue: &'a Value,
    dead_letters: &'a Value,
}

impl Template {
    fn read(name: &'static str) -> Self {
        let text = fs::read_to_string(project().join(name)).unwrap();
        Self { name, value: serde_saphyr::from_str(&text).unwrap() }
    }

    /// The properties of the resources of a type, by their logical ids.
    pub(crate) fn resources(&self, kind: &'static str) -> impl Iterator<Item = (&str, &Value)> {
        let resources = self.value["Resources"].as_object().unwrap().iter();
        resources
            .filter(move |(_, resource)| resource["Type"] == kind)
            .map(|(id, resource)| (id.as_str(), &resource["Properties"]))
    }

    /// The properties of the functions that write records: all except the outbox, which reads the table's stream.
    pub(crate) fn idempotent_functions(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.resources("AWS::Serverless::Function").filter(|(id, _)| *id != "OutboxFunction")
    }

    /// The event sources for which a function's answer lists failed records, each with the function's logical id.
    pub(crate) fn batch_sources(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.resources("AWS::Serverless::Function")
            .flat_map(|(id, function)| events_of(function).map(move |event| (id, event)))
            .filter(|(_, event)| matches!(event["Type"].as_str(), Some("SQS" | "Kinesis" | "DynamoDB")))
    }

    /// The queues that trigger functions.
    pub(crate) fn queues(&self) -> Vec<Source<'_>> {
        let sources = self.batch_sources().filter(|(_, event)| event["Type"] == "SQS");
        let queues = sources.map(|(function, event)| {
            let (id, queue) = self.target(&event["Properties"]["Queue"]);
            let (_, dead_letters) = self.target(&queue["RedrivePolicy"]["deadLetterTargetArn"]);
            Source { function, id, queue, dead_letters }
        });
        queues.collect()
    }

    /// The logical id and the properties of the resource that `reference` names by its ARN.
    fn target<'a>(&'a self, reference: &'a Value) -> (&'a str, &'a Value) {
        let id = reference.as_str().expect("an ARN").trim_end_matches(".Arn");
        (id, &self.value["Resources"][id]["Properties"])
    }

    /// For how many seconds the function may get an event again: as long as its queues can keep the event. The time in
    /// the dead-letter queue counts, since an operator may move the event back. `None` if no queue keeps the function's
    /// events.
    fn redelivery(&self, id: &str, function: &Value) -> Option<u64> {
        let queues = self.queues().into_iter().filter(|source| source.function == id);
        let messages = queues.map(|source| kept(source.queue) + kept(source.dead_letters));
        let invoke = &function["EventInvokeConfig"];
        let failed = invoke["DestinationConfig"]["OnFailure"].get("Destination");
        let failed = failed.map(|queue| {
            let ages = events_of(function).map(|event| &event["Properties"]["RetryPolicy"]).chain([invoke]);
            let ages = ages.filter_map(|retries| retries["MaximumEventAgeInSeconds"].as_u64());
            ages.sum::<u64>() + kept(self.target(queue).1)
        });
        messages.chain(failed).max()
    }
}

/// A function's events.
fn events_of(function: &Value) -> impl Iterator<Item = &Value> {
    function["Events"].as_object().into_iter().flat_map(|events| events.values())
}

/// For how many seconds a queue keeps a message.
fn kept(queue: &Value) -> u64 {
    queue["MessageRetentionPeriod"].as_u64().unwrap_or(DEFAULT_MESSAGE_RETENTION)
}

/// Without `ReportBatchItemFailures`, Lambda ignores the list of failures: SQS deletes the failed messages, and a
/// stream continues after the failed records.
#[test]
fn batch_sources_report_item_failures() {
    for template in TEMPLATES.iter() {
        assert!(template.batch_sources().count() > 0, "{}", template.name);
        for (id, event) in template.batch_sources() {
            assert_eq!(
                event["Properties"]["FunctionResponseTypes"],
                json!(["ReportBatchItemFailures"]),
                "{id}"
            );
        }
        let mappings = template.resources("AWS::Lambda::EventSourceMapping").count();
        assert_eq!(
            mappings, 0,
            "move the event sources into the functions' `Events`: this test doesn't check separate \
            event source mappings"
        );
    }
}

#[test]
fn visibility_timeout_is_six_function_timeouts() {
    for template in TEMPLATES.iter() {
        let queues = template.queues();
        assert_eq!(queues.len(), 1, "{}", template.name);
        for source in queues {
            let (_, function) =
                template.idempotent_functions().find(|(id, _)| *id == source.function).expect("a function");
            let timeout = function["Timeout"].as_u64().expect("the function's own timeout");
            assert_eq!(source.queue["VisibilityTimeout"].as_u64(), Some(6 * timeout), "{}", source.function);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_outlive_every_redelivery() {
    let [template, _] = &*TEMPLATES;
    let mut played = BTreeSet::new();
    for (id, function) in template.idempotent_functions() {
        let Some(redelivery) = template.redelivery(id, function) else { continue };
        let (_, name) = function["FunctionName"].as_str().unwrap().rsplit_once('-').expect("a name");
        let (name, event) = EVENTS.into_iter().find(|(known, _)| *known == name).expect("an event for it");
        let database = database().await;
        Running::start(name, &database).await.deliver(event).await;
        let retention = shortest_retention(&database).await;
        assert!(
            retention >= Duration::from_secs(redelivery),
            "{name} keeps a record for {retention:?}, but a queue may redeliver its event for {redelivery} s"
        );
        played.insert(name);
    }
    assert_eq!(played, EVENTS.into_iter().map(|(name, _)| name).collect());
}

/// The shortest time from a record's claim to its expiry.
async fn shortest_retention(database: &Database) -> Duration {
    let client = emulator::client(&database.endpoint().to_string());
    let store = DynamoDbStore::builder(TABLE).client(client).build().await.unwrap();
    let page = store.scan(None).await.unwrap();
    let retentions = page.records.into_iter().map(|(_, record)| {
        let record = record.unwrap();
        record.lock_acquired_at.until(record.expires_at.expect("an expiry"))
    });
    retentions.min().expect("a record")
}

#[test]
fn layer_records_outlive_every_redelivery() {
    let [_, template] = &*TEMPLATES;
    let mut queues = 0;
    for (id, function) in template.idempotent_functions() {
        let Some(redelivery) = template.redelivery(id, function) else { continue };
        let retention = function["Environment"]["Variables"]["IDEMPOTENCY_RETENTION"].as_str();
        let days = retention.and_then(|retention| retention.strip_suffix('d')).expect("a retention in days");
        assert!(
            days.parse::<u64>().unwrap() * DAY >= redelivery,
            "{id} keeps a record for {days} days, but a queue may redeliver its event for {redelivery} s"
        );
        queues += 1;
    }
    assert_eq!(queues, 1);
}

/// SAM builds the layer for one architecture, and `sam deploy` sets the functions' architecture. If the two differ,
/// every function fails to initialize.
#[test]
fn readme_builds_and_deploys_one_architecture() {
    let readme = fs::read_to_string(project().join("layer/example/README.md")).unwrap();
    let commands: Vec<_> = readme
        .lines()
        .filter(|line| line.starts_with("sam build") || line.starts_with("sam deploy"))
        .collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        assert!(command.contains("--parameter-overrides Architecture=$ARCHITECTURE"), "{command}");
    }
}

#[test]
fn tables_are_protected_from_deletion() {
    for name in ["template.yaml", "layer/example/template.yaml", "template/template.yaml"] {
        // As text, since `template/template.yaml` has cargo-lambda's placeholders.
        let text = fs::read_to_string(project().join(name)).unwrap();
        let count = |wanted: &str| text.lines().filter(|line| line.trim() == wanted).count();
        let tables = count("Type: AWS::DynamoDB::Table");
        assert!(tables > 0, "{name}");
        assert_eq!(count("DeletionProtectionEnabled: true"), tables, "{name}");
        // CloudFormation can't delete a protected table. With a policy other than `Retain`, deletions and rollbacks
        // would fail.
        assert_eq!(count("DeletionPolicy: Retain"), tables, "{name}");
        assert_eq!(count("UpdateReplacePolicy: Retain"), tables, "{name}");
    }
}
