use bytes::Bytes;
use hyper::{Request, StatusCode};
use serde_json::json;

use super::*;
use crate::{database::Database, http};

const SOON: Duration = Duration::from_secs(5);

struct Bench {
    database: Database,
    wire: Wire,
}

async fn bench() -> Bench {
    let database = Database::embedded().await.unwrap();
    let tables = Tables { idempotency: "records".into(), payments: "payments".into() };
    database.create_idempotency_table("records").await.unwrap();
    database.create_payments_table("payments").await.unwrap();
    let wire = Wire::start(database.endpoint().clone(), tables).await.unwrap();
    Bench { database, wire }
}

/// Sends a request as an SDK would. An error means that the connection was cut.
async fn call(to: String, operation: &'static str, request: Value) -> Result<StatusCode, String> {
    let request = Request::post("/")
        .header("host", "dynamodb")
        .header("content-type", "application/x-amz-json-1.0")
        .header("x-amz-target", format!("DynamoDB_20120810.{operation}"))
        .header("x-amz-date", "20261120T000000Z")
        .header("amz-sdk-request", "attempt=1; max=3")
        .header(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=A/20261120/r/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
        )
        .body(Bytes::from(request.to_string()))
        .unwrap();
    http::send(&to.parse().unwrap(), request).await.map(|response| response.status())
}

fn claim(id: &str) -> Value {
    json!({
        "TableName": "records",
        "Item": { "id": { "S": id }, "status": { "S": "STARTED" }, "owner": { "S": "me" } },
        "ConditionExpression": "attribute_not_exists(id)",
    })
}

#[tokio::test]
async fn requests_are_counted_with_their_outcomes() {
    let Bench { wire, database: _database } = bench().await;
    let mark = wire.mark();
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim("a")).await, Ok(StatusCode::OK));
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim("a")).await, Ok(StatusCode::BAD_REQUEST));
    let payment = json!({ "TableName": "payments", "Item": { "payment_id": { "S": "p" } } });
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", payment).await, Ok(StatusCode::OK));

    let seen = wire.since(mark);
    let meanings: Vec<_> = seen.iter().map(|one| (one.meaning, one.to_store, one.applied())).collect();
    assert_eq!(
        meanings,
        [(Meaning::Claim, true, true), (Meaning::Claim, true, false), (Meaning::Payment, false, true)]
    );
    assert_eq!(seen[0].id.as_deref(), Some("a"));
    assert!(seen.iter().all(|one| one.first_attempt));
    assert_eq!(wire.since(wire.mark()).len(), 0);
}

#[tokio::test]
async fn held_request_arrives_after_its_release() {
    let Bench { database, wire } = bench().await;
    let mut hold = wire.hold(Point::Before(Call::Claim));
    let sent = tokio::spawn(call(wire.proxy.endpoint(), "PutItem", claim("a")));
    assert!(hold.reached(SOON).await);
    assert!(database.record("records", "a").await.unwrap().is_null(), "a held request must not be applied");
    assert!(wire.since(0).is_empty());

    assert!(hold.release());
    assert_eq!(sent.await.unwrap(), Ok(StatusCode::OK));
    assert!(!database.record("records", "a").await.unwrap().is_null());
    assert!(wire.since(0)[0].applied());
}

#[tokio::test]
async fn held_request_is_dropped_with_its_connection() {
    let Bench { database, wire } = bench().await;
    let mut hold = wire.hold(Point::Before(Call::Claim));
    let sent = tokio::spawn(call(wire.proxy.endpoint(), "PutItem", claim("a")));
    assert!(hold.reached(SOON).await);
    sent.abort();
    assert!(sent.await.is_err());
    clock::pause(Duration::from_millis(100)).await;
    assert!(!hold.release(), "the sender of this held request is gone");
    assert!(database.record("records", "a").await.unwrap().is_null());
}

#[tokio::test]
async fn request_with_lost_response_is_applied() {
    let Bench { database, wire } = bench().await;
    wire.lose_answer(Call::Claim);
    assert!(wire.fault_is_pending());
    assert!(
        call(wire.proxy.endpoint(), "PutItem", claim("a")).await.is_err(),
        "the wire must cut the connection"
    );
    assert!(!wire.fault_is_pending());
    assert!(!database.record("records", "a").await.unwrap().is_null(), "DynamoDB must apply the claim");
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim("a")).await, Ok(StatusCode::BAD_REQUEST));
}

#[tokio::test]
async fn fault_hits_only_its_request() {
    let Bench { wire, database: _database } = bench().await;
    let mut hold = wire.hold(Point::Before(Call::Complete));
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim("a")).await, Ok(StatusCode::OK));
    assert!(!hold.reached(Duration::from_millis(50)).await);
    assert!(wire.fault_is_pending());
}

#[tokio::test]
async fn hold_lets_earlier_requests_pass() {
    let Bench { wire, database: _database } = bench().await;
    let mut hold = wire.hold_after(2, Point::Before(Call::Claim));
    for id in ["a", "b"] {
        assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim(id)).await, Ok(StatusCode::OK));
    }
    let sent = tokio::spawn(call(wire.proxy.endpoint(), "PutItem", claim("c")));
    assert!(hold.reached(SOON).await);
    assert!(hold.release());
    assert_eq!(sent.await.unwrap(), Ok(StatusCode::OK));
}

/// The hold is planned first, but due at the third claim. The lost response is due at the first claim.
#[tokio::test]
async fn each_fault_counts_requests_separately() {
    let Bench { database, wire } = bench().await;
    let mut third = wire.hold_after(2, Point::Before(Call::Claim));
    wire.lose_answer(Call::Claim);
    assert!(
        call(wire.proxy.endpoint(), "PutItem", claim("a")).await.is_err(),
        "the wire must cut the connection"
    );
    assert_eq!(call(wire.proxy.endpoint(), "PutItem", claim("b")).await, Ok(StatusCode::OK));
    let sent = tokio::spawn(call(wire.proxy.endpoint(), "PutItem", claim("c")));
    assert!(third.reached(SOON).await);
    assert!(database.record("records", "c").await.unwrap().is_null(), "a held request must not be applied");
    assert!(third.release());
    assert_eq!(sent.await.unwrap(), Ok(StatusCode::OK));
}

#[tokio::test]
async fn unreachable_item_fails_until_recovery() {
    let Bench { database, wire } = bench().await;
    wire.fail_every(2);
    let put = async |id| call(wire.proxy.endpoint(), "PutItem", claim(id)).await;
    assert_eq!(put("a").await, Ok(StatusCode::OK));
    for _ in 0..2 {
        assert_eq!(put("b").await, Ok(StatusCode::INTERNAL_SERVER_ERROR));
    }
    let look = json!({ "TableName": "records", "Key": { "id": { "S": "b" } } });
    assert_eq!(call(wire.proxy.endpoint(), "GetItem", look).await, Ok(StatusCode::INTERNAL_SERVER_ERROR));
    assert_eq!(put("a").await, Ok(StatusCode::BAD_REQUEST), "the condition of the second claim must fail");
    assert_eq!(put("c").await, Ok(StatusCode::OK));
    assert!(database.record("records", "b").await.unwrap().is_null(), "a failed request must not arrive");

    wire.recover();
    assert_eq!(put("b").await, Ok(StatusCode::OK));
}

#[test]
fn tables_are_found_in_every_kind_of_request() {
    let update = json!({ "Update": { "TableName": "records" } });
    assert_eq!(tables_of(&json!({ "TransactItems": [update] })), ["records"]);
    assert_eq!(tables_of(&json!({ "RequestItems": { "records": [] } })), ["records"]);
    assert_eq!(tables_of(&json!({ "TableName": "records" })), ["records"]);
}

/// However many requests come before.
#[tokio::test]
async fn fault_waits_for_its_meaning() {
    let Bench { wire, database: _database } = bench().await;
    let send = |operation, request| call(wire.proxy.endpoint(), operation, request);
    wire.proxy.break_from(Meaning::Claim, 2, HttpWay::ErrorBefore);
    let look = || json!({ "TableName": "records", "Key": { "id": { "S": "a" } }, "ConsistentRead": true });
    for _ in 0..3 {
        assert_eq!(send("GetItem", look()).await, Ok(StatusCode::OK));
    }
    for _ in 0..2 {
        assert_eq!(send("PutItem", claim("a")).await, Ok(StatusCode::INTERNAL_SERVER_ERROR));
    }
    assert_eq!(send("PutItem", claim("a")).await, Ok(StatusCode::OK));
    assert!(!wire.proxy.has_unused_fault());
    wire.proxy.break_from(Meaning::Claim, 1, HttpWay::ErrorBefore);
    assert!(wire.proxy.has_unused_fault());
    wire.proxy.heal();
    assert_eq!(send("PutItem", claim("b")).await, Ok(StatusCode::OK));
}
