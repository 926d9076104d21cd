//! Tests that `template.yaml` matches the functions and their needs. The SAM CLI checks whether the template is valid.
//! `redelivery.rs` and `alarms.rs` also test the template of the layer's example.

use std::{collections::BTreeSet, fs, sync::LazyLock};

use serde_json::{Value, json};

use super::stage::{functions, project};

/// The function that publishes the outcomes that the others record.
const OUTBOX: &str = "outbox";

/// The template without the tags of its intrinsic functions: `!Ref X` reads as `X`.
static TEMPLATE: LazyLock<Value> = LazyLock::new(|| {
    let text = fs::read_to_string(project().join("template.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
});

const TABLE_ACTIONS: [&str; 3] = ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"];

/// The resources of a type, by their logical ids.
fn resources(kind: &str) -> impl Iterator<Item = (&'static str, &'static Value)> {
    let resources = TEMPLATE["Resources"].as_object().unwrap().iter();
    resources
        .filter(move |(_, resource)| resource["Type"] == kind)
        .map(|(id, resource)| (id.as_str(), resource))
}

/// The functions, with their logical ids, binaries and properties.
fn template_functions() -> Vec<(&'static str, &'static str, &'static Value)> {
    let functions = resources("AWS::Serverless::Function").map(|(id, function)| {
        let binary = function["Metadata"]["BuildProperties"]["Binary"].as_str().expect("a binary");
        (id, binary, &function["Properties"])
    });
    functions.collect()
}

/// The functions that write records: all except `outbox`, which reads the table's stream.
fn idempotent_functions() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    template_functions().into_iter().filter(|(_, binary, _)| *binary != OUTBOX)
}

#[test]
fn every_function_has_its_binary() {
    for (id, function) in resources("AWS::Serverless::Function") {
        assert_eq!(function["Metadata"]["BuildMethod"], "rust-cargolambda", "{id}");
    }
    let built: Vec<_> = template_functions().into_iter().map(|(_, binary, _)| binary).collect();
    let unique = BTreeSet::from_iter(built.iter().copied());
    assert_eq!(unique.len(), built.len(), "{built:?}");
    assert_eq!(unique, functions().chain([OUTBOX]).collect());
}

#[test]
fn release_profiles_unwind_on_panic() {
    for manifest in ["Cargo.toml", "template/Cargo.toml"] {
        let text = fs::read_to_string(project().join(manifest)).unwrap();
        let (_, release) = text.split_once("\n[profile.release]\n").expect(manifest);
        let release = release.split("\n[").next().unwrap_or_default();
        assert!(release.lines().any(|line| line == r#"panic = "unwind""#), "{manifest}");
    }
}

#[test]
fn every_event_file_has_a_trigger() {
    for (id, binary, properties) in idempotent_functions() {
        let triggers: BTreeSet<_> = properties["Events"]
            .as_object()
            .map(|events| events.values().map(|event| event["Type"].as_str().unwrap()).collect())
            .unwrap_or_default();
        for file in fs::read_dir(project().join("events").join(binary)).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let has_it = match file.split(['-', '.']).next().unwrap() {
                "http" => triggers.contains("HttpApi"),
                "rest" => triggers.contains("Api"),
                "function" => properties["FunctionUrlConfig"]["AuthType"] == "AWS_IAM",
                "alb" => targets_of_load_balancers().any(|target| *target == format!("{id}.Arn")),
                "sqs" => triggers.contains("SQS"),
                "event" => triggers.contains("EventBridgeRule"),
                "invoke" => properties["EventInvokeConfig"].is_object(),
                _ => false,
            };
            assert!(has_it, "{id} has no trigger that sends {file}");
        }
    }
}

fn targets_of_load_balancers() -> impl Iterator<Item = &'static Value> {
    let groups = resources("AWS::ElasticLoadBalancingV2::TargetGroup");
    groups
        .flat_map(|(_, group)| group["Properties"]["Targets"].as_array().unwrap())
        .map(|target| &target["Id"])
}

#[test]
fn functions_have_minimal_table_permissions() {
    for (id, _, properties) in idempotent_functions() {
        let mut on_records = BTreeSet::new();
        for statement in statements(properties) {
            let actions =
                statement["Action"].as_array().unwrap().iter().map(|action| action.as_str().unwrap());
            match statement["Resource"].as_str().unwrap() {
                "IdempotencyTable.Arn" => on_records.extend(actions),
                "PaymentsTable.Arn" => {
                    assert_eq!((id, actions.clone().count()), ("PaymentsFunction", 2));
                }
                other => panic!("{id} has permissions on {other}"),
            }
        }
        assert_eq!(on_records, TABLE_ACTIONS.into_iter().collect(), "{id}");
    }
}

/// A function's own permissions.
fn statements(properties: &'static Value) -> impl Iterator<Item = &'static Value> {
    let policies = properties["Policies"].as_array().unwrap().iter();
    policies.flat_map(|policy| policy["Statement"].as_array().expect("the function's own statements"))
}

#[test]
fn outbox_reads_the_stream_in_order() {
    let (_, _, outbox) = template_functions().into_iter().find(|(_, binary, _)| *binary == OUTBOX).unwrap();
    // SAM itself adds the permissions for the stream and the queue.
    let granted: Vec<_> = statements(outbox).collect();
    let publish = json!({"Effect": "Allow", "Action": ["events:PutEvents"], "Resource": "OperationsBus.Arn"});
    assert_eq!(granted, [&publish]);
    assert_eq!(outbox["Environment"]["Variables"], json!({"EVENT_BUS": "OperationsBus"}));

    let records = &TEMPLATE["Resources"]["IdempotencyTable"]["Properties"];
    assert_eq!(records["StreamSpecification"], json!({"StreamViewType": "NEW_AND_OLD_IMAGES"}));
    let stream = &outbox["Events"]["Ended"]["Properties"];
    assert_eq!(stream["Stream"], "IdempotencyTable.StreamArn");
    // The function reads the stream from its beginning, so that a deployment misses no change.
    assert_eq!(stream["StartingPosition"], "TRIM_HORIZON");
    assert_eq!(stream["BisectBatchOnFunctionError"], true);
    assert_eq!(stream["DestinationConfig"]["OnFailure"]["Destination"], "UnpublishedQueue.Arn");
    assert!(
        stream["MaximumRecordAgeInSeconds"].as_u64().unwrap() < 24 * 60 * 60,
        "a stream drops its records after 24 hours"
    );
    // With a limit on retries, Lambda would give up while EventBridge fails. Without a parallelization factor, Lambda
    // reads one batch of a shard at a time. A tumbling window would delay the events.
    for name in ["MaximumRetryAttempts", "ParallelizationFactor", "TumblingWindowInSeconds"] {
        assert!(stream.get(name).is_none(), "{name}");
    }
    let filter = stream["FilterCriteria"]["Filters"][0]["Pattern"].as_str().unwrap();
    let filter: Value = serde_json::from_str(filter).unwrap();
    assert_eq!(
        filter,
        json!({"eventName": ["INSERT", "MODIFY"]}),
        "a narrower filter drops changes that the function must report"
    );

    let alarms = ["OutboxLateAlarm", "UnpublishedAlarm"];
    let watched = alarms.map(|alarm| &TEMPLATE["Resources"][alarm]["Properties"]["MetricName"]);
    assert_eq!(watched, ["IteratorAge", "ApproximateNumberOfMessagesVisible"]);
}

#[test]
fn tables_are_retained_and_records_expire() {
    let tables: Vec<_> = resources("AWS::DynamoDB::Table").collect();
    assert_eq!(tables.len(), 2);
    for (id, table) in tables {
        assert_eq!(
            (&table["DeletionPolicy"], &table["UpdateReplacePolicy"]),
            (&json!("Retain"), &json!("Retain"))
        );
        let properties = &table["Properties"];
        assert_eq!(properties["BillingMode"], "PAY_PER_REQUEST", "{id}");
        assert_eq!(
            properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"], true,
            "{id}"
        );
        assert_eq!(properties["SSESpecification"]["SSEEnabled"], true, "{id}");
    }
    let records = &TEMPLATE["Resources"]["IdempotencyTable"]["Properties"];
    assert_eq!(records["TimeToLiveSpecification"], json!({"AttributeName": "expires_at", "Enabled": true}));
    assert_eq!(records["KeySchema"], json!([{"AttributeName": "id", "KeyType": "HASH"}]));
    assert_eq!(records["AttributeDefinitions"], json!([{"AttributeName": "id", "AttributeType": "S"}]));
    assert_eq!(
        TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]["IDEMPOTENCY_TABLE"],
        "IdempotencyTable"
    );
}

#[test]
fn unknown_outcome_alarm_names_operator_commands() {
    let alarm = &TEMPLATE["Resources"]["OutcomeUnknownAlarm"]["Properties"];
    let description = alarm["AlarmDescription"].as_str().unwrap();
    for command in ["list --unresolved", "inspect KEY", "complete KEY", "release KEY"] {
        assert!(description.contains(&format!("`idempotency {command}`")), "{command}: {description}");
    }
    // CloudWatch rejects descriptions that are longer than 1,024 characters.
    assert!(description.len() <= 1024, "{}", description.len());
}

#[test]
fn template_offers_its_deployment_parameters() {
    let parameters = TEMPLATE["Parameters"].as_object().unwrap();
    for name in ["Architecture", "ReservedConcurrency", "LogRetentionDays", "AlarmTopicArn"] {
        assert!(parameters.contains_key(name), "{name}");
    }
    assert_eq!(parameters["Architecture"]["AllowedValues"], json!(["arm64", "x86_64"]));
    let logs = resources("AWS::Logs::LogGroup");
    assert!(logs.into_iter().all(|(_, group)| group["Properties"]["RetentionInDays"] == "LogRetentionDays"));
    for (id, binary, properties) in template_functions() {
        assert_eq!(properties["LoggingConfig"]["LogFormat"], "JSON", "{id}");
        // A record's id begins with the function's name, so the template sets a fixed name. A name that CloudFormation
        // generates could change.
        assert_eq!(properties["FunctionName"], format!("${{AWS::StackName}}-{binary}"));
    }
}
