//! `table create` and `table check`.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ProvisionedThroughput, ScalarAttributeType,
};

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use super::bench::{Bench, TABLE, run_in};

/// Creates a table without TTL, and with this billing mode.
async fn other_table(bench: &Bench, id: &str, billing: BillingMode) {
    let attribute = AttributeDefinition::builder().attribute_name(id).attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name(id).key_type(KeyType::Hash);
    let throughput = ProvisionedThroughput::builder().read_capacity_units(1).write_capacity_units(1).build();
    let is_provisioned = billing == BillingMode::Provisioned;
    let request = bench
        .client
        .create_table()
        .table_name(TABLE)
        .attribute_definitions(attribute.build().unwrap())
        .key_schema(key.build().unwrap())
        .billing_mode(billing)
        .set_provisioned_throughput(is_provisioned.then(|| throughput.unwrap()));
    request.send().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn created_table_passes_the_check() {
    let bench = Bench::empty().await;
    let missing = bench.run(&["table", "check"]).await;
    assert_eq!(
        (missing.code, missing.out.as_str()),
        (2, "error: the table doesn't exist. fix: `idempotency table create`, or deploy template.yaml\n")
    );
    let made = bench.run(&["table", "create"]).await;
    assert_eq!(
        (made.code, made.out.as_str()),
        (0, "table `idempotency-tests` was created: it's billed on demand, and TTL is on\n")
    );
    let again = bench.run(&["table", "create"]).await;
    assert!(again.code == 0 && again.out.contains("already exists"), "{again:?}");
    assert!(again.out.contains("Nothing was changed"), "{again:?}");
    let fit = bench.run(&["table", "check"]).await;
    assert_eq!(
        (fit.code, fit.out.as_str()),
        (0, "table `idempotency-tests` is ok: its key is right, and TTL is on\n")
    );
    let again = bench.run(&["table", "create", "--json"]).await.json();
    assert_eq!((&again["created"], again["changed"].as_array().unwrap().len()), (&false.into(), 0));
    let fit = bench.run(&["table", "check", "--json"]).await.json();
    assert_eq!((&fit["ok"], fit["problems"].as_array().unwrap().len()), (&true.into(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_table_problem_has_a_fix() {
    let bench = Bench::empty().await;
    other_table(&bench, "id", BillingMode::Provisioned).await;
    let table = ["--table", TABLE, "--region", "eu-west-1"];
    let wrong = bench.run(&[&["table", "check"], &table[..]].concat()).await;
    assert_eq!(wrong.code, 2);
    assert_eq!(
        wrong.out,
        "error: the table has no TTL; enable it on the attribute `expires_at`. fix: `idempotency table \
         create --table idempotency-tests --region eu-west-1` switches it on\n\
         note: the table's capacity is provisioned: a burst beyond it is throttled, and those deliveries are refused; \
         switch to on-demand capacity, or scale the capacity with the load. fix: `aws dynamodb update-table \
         --billing-mode PAY_PER_REQUEST --table-name idempotency-tests --region eu-west-1`\n"
    );
    let json = bench.run(&["table", "check", "--json"]).await;
    let json = (json.code, json.json());
    assert_eq!((json.0, &json.1["ok"]), (2, &false.into()));
    assert_eq!(json.1["problems"][1]["is_note"], true);
    // The printed command fixes the error. The note stays.
    let created = bench.run(&[&["table", "create"], &table[..]].concat()).await;
    assert_eq!(
        (created.code, created.out.as_str()),
        (
            0,
            "table `idempotency-tests` already existed, and was changed: TTL was switched on, on the attribute \
             `expires_at`\n"
        )
    );
    let noted = bench.run(&["table", "check"]).await;
    assert_eq!((noted.code, noted.out.lines().count()), (0, 2), "{noted:?}");

    let bench = Bench::empty().await;
    other_table(&bench, "pk", BillingMode::PayPerRequest).await;
    let wrong = bench.run(&["table", "check"]).await;
    let keys =
        "error: the table has the key `pk` (S, HASH), but the configuration says `id` (S, HASH). fix: ";
    assert!(wrong.code == 2 && wrong.out.starts_with(keys), "{wrong:?}");
    // The table has no TTL either, but `table create` couldn't switch it on.
    assert_eq!(wrong.out.lines().count(), 1, "{wrong:?}");
    let refused = bench.run(&["table", "create"]).await;
    let words = ["can't be used", "`pk` (S, HASH)", "; a table's key can't be changed", "--attributes"];
    refused.is_bad_input(&words);
    for command in [&["list"][..], &["list", "--counts"], &["list", "--unresolved"]] {
        bench.run(command).await.is_bad_input(&words);
    }
}

/// Answers every request with this table, whose replicas no emulator has. Returns the address.
fn described(more: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 8192]);
            let length = stream.read(&mut request).unwrap_or(0);
            let is_ttl = String::from_utf8_lossy(&request[..length]).contains("DescribeTimeToLive");
            let body = match is_ttl {
                true => {
                    r#"{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"expires_at"}}"#
                        .to_owned()
                }
                false => format!(
                    r#"{{"Table":{{"TableName":"t","TableStatus":"ACTIVE","AttributeDefinitions":[{{"AttributeName":"id","AttributeType":"S"}}],"KeySchema":[{{"AttributeName":"id","KeyType":"HASH"}}],"BillingModeSummary":{{"BillingMode":"PAY_PER_REQUEST"}}{more}}}}}"#
                ),
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\nconnection: close";
            let _ = write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_declared_writer_region_is_accepted() {
    let eventual = described(r#","Replicas":[{"RegionName":"us-east-1"}]"#);
    let strong = described(
        r#","Replicas":[{"RegionName":"us-east-1"},{"RegionName":"us-west-2"}],"MultiRegionConsistency":"STRONG""#,
    );
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "eu-west-1")];
    for (endpoint, options, code, says) in [
        (&eventual, &[][..], 2, "error: the table is replicated to us-east-1 with eventual consistency"),
        (
            &eventual,
            &["--writer-region", "us-east-1"],
            2,
            "fix: let the functions use the replica in us-east-1",
        ),
        (&eventual, &["--writer-region", "eu-west-1"], 0, "note: the table is replicated to us-east-1"),
        (
            &eventual,
            &["--writer-region", "eu-west-1"],
            0,
            "`orders` is ok: its key is right, and TTL is on\n",
        ),
        (&strong, &[], 0, "`orders` is ok: its key is right\n"),
        (
            &strong,
            &[],
            0,
            "note: the table is a global table in us-east-1, us-west-2 with strong consistency",
        ),
    ] {
        let command =
            [&["table", "check", "--table", "orders", "--endpoint-url", endpoint.as_str()], options].concat();
        let answer = run_in(&keys, &command).await;
        assert!(answer.code == code && answer.out.contains(says), "{options:?}: {answer:?}");
    }
}
