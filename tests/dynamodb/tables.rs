//! Creating and checking tables, and the errors if a table is missing or its key differs from the configuration.

use std::{error::Error, net::SocketAddr, time::Duration};

use aws_sdk_dynamodb::{
    Client,
    config::retry::RetryConfig,
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ProvisionedThroughput,
        ScalarAttributeType, TimeToLiveSpecification, TimeToLiveStatus,
    },
};
use lambda_idempotency::{
    StoredKey,
    store::{Store, StoreError, StoreErrorKind, TableProblem, dynamodb::DynamoDbStore},
};
use testkit::puts;

use super::{
    emulator::{TABLE, Table, builder, client, config, emulator, patient},
    fixtures::{SETTLED_UNTIL, key, lock, owner, release, settle},
    wire::{Reply, Wire},
};

/// Creates a table whose key has these attributes, partition key first.
async fn other_table(keys: &[(&str, ScalarAttributeType)]) -> SocketAddr {
    let address = emulator().await;
    let mut request =
        client(address).create_table().table_name(TABLE).billing_mode(BillingMode::PayPerRequest);
    for ((name, scalar), role) in keys.iter().zip([KeyType::Hash, KeyType::Range]) {
        request = request
            .attribute_definitions(
                AttributeDefinition::builder()
                    .attribute_name(*name)
                    .attribute_type(scalar.clone())
                    .build()
                    .unwrap(),
            )
            .key_schema(KeySchemaElement::builder().attribute_name(*name).key_type(role).build().unwrap());
    }
    request.send().await.unwrap();
    address
}

/// Returns the error of each of the store's operations.
async fn errors(store: &DynamoDbStore) -> Vec<StoreError> {
    let parts = store.chunks().unwrap();
    vec![
        store.put(&key(), &puts::claim(lock())).await.unwrap_err(),
        store.put(&key(), &settle(release(false))).await.unwrap_err(),
        store.read(&key()).await.unwrap_err(),
        parts
            .write_chunks(&key(), owner(1), &bytes::Bytes::from_static(b"x"), SETTLED_UNTIL)
            .await
            .unwrap_err(),
        parts.read_chunks(&key(), owner(1), 1, 10).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn tables_are_created_completely_and_once() {
    for sort_key in [None, Some("sk")] {
        let address = emulator().await;
        let store = match sort_key {
            Some(name) => builder(address).sort_key(name),
            None => builder(address),
        }
        .build()
        .await
        .unwrap();
        assert_eq!(store.check_table().await.unwrap(), [TableProblem::Missing]);
        assert!(store.create_table().await.unwrap());
        assert_eq!(store.check_table().await.unwrap(), []);
        assert!(!store.create_table().await.unwrap());

        let client = client(address);
        let table = client.describe_table().table_name(TABLE).send().await.unwrap().table.unwrap();
        assert_eq!(table.key_schema().len(), 1 + usize::from(sort_key.is_some()));
        assert_eq!(table.billing_mode_summary().unwrap().billing_mode(), Some(&BillingMode::PayPerRequest));
        let ttl = client.describe_time_to_live().table_name(TABLE).send().await.unwrap();
        let ttl = ttl.time_to_live_description.unwrap();
        assert_eq!(ttl.attribute_name(), Some("expires_at"));
        assert!(matches!(
            ttl.time_to_live_status(),
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        ));
    }
}

#[tokio::test]
async fn concurrent_creations_make_one_table() {
    let address = emulator().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        tasks.spawn(async move { builder(address).build().await.unwrap().create_table().await.unwrap() });
    }
    let made = tasks.join_all().await;
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
}

#[tokio::test]
async fn creation_enables_ttl_unless_on_another_attribute() {
    let address = other_table(&[("id", ScalarAttributeType::S)]).await;
    let store = builder(address).build().await.unwrap();
    let problem = TableProblem::NoTimeToLive { attribute: "expires_at".into() };
    assert_eq!(store.check_table().await.unwrap(), [problem]);
    assert!(!store.create_table().await.unwrap());
    assert_eq!(store.check_table().await.unwrap(), []);

    let address = other_table(&[("id", ScalarAttributeType::S)]).await;
    let specification =
        TimeToLiveSpecification::builder().enabled(true).attribute_name("ttl").build().unwrap();
    client(address)
        .update_time_to_live()
        .table_name(TABLE)
        .time_to_live_specification(specification)
        .send()
        .await
        .unwrap();
    let store = builder(address).build().await.unwrap();
    let [problem] = store.check_table().await.unwrap().try_into().unwrap();
    let text = "the table's TTL is on the attribute `ttl`, but the records expire by `expires_at`";
    assert_eq!(problem.to_string(), text);
    let error = store.create_table().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert_eq!(error.to_string(), format!("table `idempotency` can't be used: {text}"));
}

#[tokio::test]
async fn missing_table_errors_suggest_a_fix() {
    let address = emulator().await;
    let store = builder(address).build().await.unwrap();
    for error in errors(&store).await {
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(!error.is_maybe_applied());
        assert_eq!(
            error.to_string(),
            format!(
                "there is no table `idempotency` in eu-west-1 at http://{address}; create it with `idempotency table \
                 create --table idempotency`, or set IDEMPOTENCY_TABLE to an existing table"
            )
        );
        let source = error.source().unwrap().to_string();
        assert!(source.starts_with("ResourceNotFoundException: "), "{source}");
    }
}

/// The table's keys, the configured sort key, and the text that the error contains.
type Case<'a> = (&'a [(&'a str, ScalarAttributeType)], Option<&'a str>, &'a str);

#[tokio::test]
async fn tables_with_other_keys_are_reported() {
    use ScalarAttributeType::{N, S};
    let cases: [Case<'_>; 5] = [
        (
            &[("pk", S)],
            None,
            "the table has the key `pk` (S, HASH), but the configuration says `id` (S, HASH)",
        ),
        (
            &[("id", N)],
            None,
            "the table has the key `id` (N, HASH), but the configuration says `id` (S, HASH)",
        ),
        (
            &[("id", S), ("sk", S)],
            None,
            "the table has the key `id` (S, HASH) and `sk` (S, RANGE), but the configuration says `id` (S, HASH)",
        ),
        (
            &[("id", S), ("sk", N)],
            Some("sk"),
            "the table has the key `id` (S, HASH) and `sk` (N, RANGE), but the configuration says `id` (S, HASH) and \
             `sk` (S, RANGE)",
        ),
        (
            &[("id", S)],
            Some("sk"),
            "the table has the key `id` (S, HASH), but the configuration says `id` (S, HASH) and `sk` (S, RANGE)",
        ),
    ];
    for (keys, sort_key, told) in cases {
        let address = other_table(keys).await;
        let store = match sort_key {
            Some(name) => builder(address).sort_key(name),
            None => builder(address),
        }
        .build()
        .await
        .unwrap();
        let unfit = format!(
            "table `idempotency` can't be used: {told}; a table's key can't be changed: set `attributes` and \
             `sort_key` to this table's (--attributes, --sort-key), or use another table"
        );
        let mut failed = 0;
        for error in errors(&store).await {
            failed += 1;
            assert_eq!(error.kind(), StoreErrorKind::Rejected, "{error}");
            assert!(!error.is_maybe_applied());
            assert_eq!(error.to_string(), unfit);
            let source = error.source().unwrap().to_string();
            assert!(source.starts_with("ValidationException: "), "{source}");
        }
        assert_eq!(failed, 5);
        let error = store.read(&key()).await.unwrap_err();
        assert_eq!(error.to_string(), unfit);
        let error = store.create_table().await.unwrap_err();
        assert_eq!(error.to_string(), unfit);
        // The table has no TTL either, but `create_table` couldn't switch it on.
        let [problem] = store.check_table().await.unwrap().try_into().unwrap();
        assert_eq!(problem.to_string(), told);
    }
}

#[tokio::test]
async fn sort_keys_are_checked_before_claiming() {
    let address = other_table(&[("id", ScalarAttributeType::S), ("sk", ScalarAttributeType::S)]).await;
    let wire = Wire::new(Some(address), |_, _| Reply::Forward).await;
    let store = builder(wire.address).sort_key("sk").build().await.unwrap();
    for _ in 0..2 {
        let _ = store.put(&key(), &puts::claim(lock())).await.unwrap();
    }
    assert_eq!(wire.requests(), ["GetItem", "PutItem", "PutItem"]);
}

/// Returns a store with the sort key `sk`, for a table with these keys. The wire throttles the store's first request.
async fn throttled_once(keys: &[(&str, ScalarAttributeType)]) -> (Wire, DynamoDbStore) {
    let address = other_table(keys).await;
    let wire =
        Wire::new(Some(address), |nth, _| if nth == 0 { Reply::throttled() } else { Reply::Forward }).await;
    let once = config(wire.address).retry_config(RetryConfig::disabled()).build();
    let builder = patient(DynamoDbStore::builder(TABLE).client(Client::from_conf(once)));
    (wire, builder.sort_key("sk").build().await.unwrap())
}

/// A throttled check doesn't show the table's sort key, so the claim isn't sent. The next claim repeats the check.
#[tokio::test]
async fn unanswered_sort_key_checks_are_repeated() {
    let keys = [("id", ScalarAttributeType::S), ("sk", ScalarAttributeType::S)];
    let (wire, store) = throttled_once(&keys).await;
    let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    for _ in 0..2 {
        let _ = store.put(&key(), &puts::claim(lock())).await.unwrap();
    }
    assert_eq!(wire.requests(), ["GetItem", "GetItem", "PutItem", "PutItem"]);
}

/// The table has no sort key. It would accept the claim, with `sk` as an ordinary attribute. But it would reject the
/// completion, and the handler would have run.
#[tokio::test]
async fn unanswered_sort_key_checks_write_nothing() {
    let (wire, store) = throttled_once(&[("id", ScalarAttributeType::S)]).await;
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Rejected] {
        let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (kind, false), "{error}");
    }
    assert_eq!(wire.requests(), ["GetItem", "GetItem", "DescribeTable"]);
}

#[tokio::test]
async fn errors_name_expected_key_without_describe_permission() {
    let address = other_table(&[("pk", ScalarAttributeType::S)]).await;
    let wire = Wire::new(Some(address), |_, operation| match operation {
        "DescribeTable" => Reply::error(400, "AccessDeniedException", "not authorized to DescribeTable"),
        _ => Reply::Forward,
    })
    .await;
    let store = builder(wire.address).build().await.unwrap();
    let error = store.put(&key(), &puts::claim(lock())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert_eq!(
        error.to_string(),
        "DynamoDB rejected the request to table `idempotency` as invalid; the configured key is `id` (S, HASH), but \
         the table's own key couldn't be read; compare the two, or allow dynamodb:DescribeTable"
    );
    // The first text is the embedded emulator's, the second DynamoDB Local's.
    let words = error.source().unwrap().to_string();
    assert!(words.contains("Missing the key pk") || words.contains("required keys was not given"), "{words}");
    assert_eq!(wire.requests(), ["PutItem", "DescribeTable"]);
}

/// If the role isn't allowed to describe the table, or to create it, the store returns an error. It doesn't guess
/// whether the table exists.
#[tokio::test]
async fn refused_table_requests_are_errors() {
    for refused in ["DescribeTable", "CreateTable"] {
        let wire = Wire::new(Some(emulator().await), move |_, operation| match operation == refused {
            true => Reply::error(400, "AccessDeniedException", "not authorized"),
            false => Reply::Forward,
        })
        .await;
        let store = builder(wire.address).build().await.unwrap();
        let error = store.create_table().await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false));
        assert_eq!(wire.requests().last().unwrap(), refused);
    }
}

/// Requests about tables take longer than those about items, so they have their own timeouts.
#[tokio::test]
async fn table_requests_have_their_own_timeouts() {
    let table = Table::new().await;
    let short = Duration::from_millis(100);
    let wire = Wire::new(Some(table.address), move |_, _| Reply::ForwardLate(5 * short)).await;
    let store =
        builder(wire.address).attempt_timeout(short).operation_timeout(2 * short).build().await.unwrap();
    assert_eq!(store.read(&key()).await.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(store.check_table().await.unwrap(), []);
}

#[tokio::test]
async fn disabled_ttl_counts_as_missing() {
    let table = Table::new().await;
    for (attribute, status, fits) in [
        ("expires_at", "ENABLED", true),
        ("expires_at", "ENABLING", true),
        ("expires_at", "DISABLING", false),
        ("other", "DISABLED", false),
    ] {
        let wire = Wire::new(Some(table.address), move |_, operation| match operation {
            "DescribeTimeToLive" => Reply::Answer(
                200,
                format!(
                    r#"{{"TimeToLiveDescription":{{"TimeToLiveStatus":"{status}","AttributeName":"{attribute}"}}}}"#
                ),
            ),
            _ => Reply::Forward,
        })
        .await;
        let store = builder(wire.address).build().await.unwrap();
        let expected = (!fits).then(|| TableProblem::NoTimeToLive { attribute: "expires_at".into() });
        assert_eq!(store.check_table().await.unwrap(), Vec::from_iter(expected), "{attribute} {status}");
    }
}

#[tokio::test]
async fn invalid_request_errors_keep_dynamodbs_message() {
    let table = Table::new().await;
    let empty = StoredKey::from_stored("");
    let error = table.store.put(&empty, &puts::claim(lock())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().starts_with("DynamoDB rejected the request to table `idempotency`"), "{error}");
    assert!(error.source().unwrap().to_string().starts_with("ValidationException: "));
}

#[tokio::test]
async fn table_check_describes_each_problem() {
    let described = |status: &str, more: &str| {
        Reply::Answer(
            200,
            format!(
                r#"{{"Table":{{"TableName":"idempotency","TableStatus":"{status}",
                "AttributeDefinitions":[{{"AttributeName":"id","AttributeType":"S"}}],
                "KeySchema":[{{"AttributeName":"id","KeyType":"HASH"}}],
                "BillingModeSummary":{{"BillingMode":"PAY_PER_REQUEST"}}{more}}}}}"#
            ),
        )
    };
    let replicas = r#","Replicas":[{"RegionName":"us-east-1"},{"RegionName":"eu-west-1"}]"#;
    let strong = format!(r#"{replicas},"MultiRegionConsistency":"STRONG""#);
    for (reply, told) in [
        (described("ACTIVE", ""), vec![]),
        (described("UPDATING", ""), vec![]),
        (described("CREATING", ""), vec!["the table is CREATING, not ACTIVE"]),
        (
            described("ACTIVE", &strong),
            vec![
                "the table is a global table in us-east-1, eu-west-1 with strong consistency, which has neither TTL nor \
                 transactions: expired records stay, and handlers can't stage writes",
            ],
        ),
        (
            described("ACTIVE", replicas),
            vec![
                "the table is replicated to us-east-1, eu-west-1 with eventual consistency: two Regions can \
                 both claim a key, and one Region's outcome can overwrite the other's",
            ],
        ),
    ] {
        let is_consistent = told.iter().any(|told| told.contains("strong consistency"));
        let wire = Wire::new(None, move |_, operation| match operation {
            // A strongly consistent table has no TTL, and the check doesn't ask for it.
            "DescribeTimeToLive" if is_consistent => Reply::error(400, "ValidationException", "no TTL here"),
            "DescribeTimeToLive" => Reply::Answer(
                200,
                r#"{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"expires_at"}}"#
                    .into(),
            ),
            _ => reply.clone(),
        })
        .await;
        let store = builder(wire.address).build().await.unwrap();
        let problems = store.check_table().await.unwrap();
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), told);
    }
}

#[tokio::test]
async fn provisioned_capacity_is_only_a_note() {
    let address = emulator().await;
    let attribute =
        AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let throughput = ProvisionedThroughput::builder().read_capacity_units(1).write_capacity_units(1);
    client(address)
        .create_table()
        .table_name(TABLE)
        .attribute_definitions(attribute.build().unwrap())
        .key_schema(key.build().unwrap())
        .provisioned_throughput(throughput.build().unwrap())
        .send()
        .await
        .unwrap();
    let store = builder(address).build().await.unwrap();
    assert!(!store.create_table().await.unwrap());
    let problems = store.check_table().await.unwrap();
    assert_eq!(problems, [TableProblem::Provisioned]);
    assert!(problems[0].is_note() && !TableProblem::Missing.is_note());
}

#[tokio::test]
async fn tables_in_creation_are_awaited() {
    let address = emulator().await;
    let creating = r#"{"Table":{"TableName":"idempotency","TableStatus":"CREATING"}}"#;
    let wire = Wire::new(Some(address), move |nth, operation| match (nth, operation) {
        (2 | 3, "DescribeTable") => Reply::Answer(200, creating.into()),
        // The answer is lost, and the SDK's next attempt finds the table that the first one created.
        (1, "CreateTable") => Reply::ForwardThenClose,
        _ => Reply::Forward,
    })
    .await;
    let store = builder(wire.address).build().await.unwrap();
    let made = store.create_table().await.unwrap();
    assert!(!made);
    assert_eq!(store.check_table().await.unwrap(), []);
    assert_eq!(wire.requests().iter().filter(|operation| *operation == "CreateTable").count(), 2);
}
