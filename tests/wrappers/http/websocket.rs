//! A WebSocket API's events.

use lambda_idempotency::{KeyFields, lambda::http::HttpLayer};

use super::*;

/// An event of this type, as API Gateway sends it to a route's function. The ids of the delivery are `nth`'s own.
fn event(kind: &str, connection: &str, nth: usize, body: &str) -> Value {
    recording::secrets(|secrets| secrets.add_body(body));
    json!({
        "requestContext": {
            "routeKey": "pay", "messageId": format!("m-{nth}"), "eventType": kind,
            "extendedRequestId": format!("e-{nth}"), "requestTime": "20/Nov/2026:09:17:04 +0000",
            "messageDirection": "IN", "stage": "production", "connectedAt": 1_795_166_213_712_u64,
            "requestTimeEpoch": 1_795_166_224_000_u64, "identity": {"sourceIp": "203.0.113.24"},
            "requestId": format!("r-{nth}"), "connectionId": connection, "apiId": "jzla12ar9e",
            "domainName": "jzla12ar9e.execute-api.eu-west-1.amazonaws.com",
        },
        "body": body, "isBase64Encoded": false
    })
}

const PAY: &str = r#"{"action":"pay","order_id":"c4n4ry-1001","amount_cents":1250}"#;

fn message(connection: &str, nth: usize) -> Value {
    event("MESSAGE", connection, nth, PAY)
}

fn layer() -> HttpLayer {
    idempotency().http().key_fields(KeyFields::new(["/order_id"]).unwrap())
}

/// Returns the statuses, and how often the handler ran.
async fn statuses(layer: HttpLayer, events: &[Value]) -> (Vec<u16>, usize) {
    let runs = Runs::default();
    let service = layer.layer(handler(&runs));
    let mut statuses = Vec::new();
    for event in events {
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        statuses.push(service.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    (statuses, runs.count())
}

#[tokio::test]
async fn repeated_messages_run_once() {
    assert_eq!(statuses(layer(), &[message("a", 1), message("a", 2)]).await, (vec![201, 201], 1));
    let more = event("MESSAGE", "a", 2, &PAY.replace("1250", "9"));
    assert_eq!(statuses(layer(), &[message("a", 1), more]).await, (vec![201, 422], 1));
    let mut other_route = message("a", 2);
    other_route["requestContext"]["routeKey"] = "refund".into();
    assert_eq!(statuses(layer(), &[message("a", 1), other_route]).await, (vec![201, 422], 1));
}

/// The handler may know the sender by the connection, so another connection may be someone else's.
#[tokio::test]
async fn other_connections_never_get_the_response() {
    let both = [message("a", 1), message("b", 2)];
    assert_eq!(statuses(layer(), &both).await, (vec![201, 422], 1));
    assert_eq!(statuses(layer().shared_namespace(), &both).await, (vec![201, 201], 1));
    let of = |name: &'static str| layer().caller(move |_| Ok(Some(name.to_owned())));
    assert_eq!(statuses(of("alice"), &both).await, (vec![201, 201], 1), "a named sender connects again");
    let by = |mut event: Value, user: &str| {
        event["requestContext"]["authorizer"] = json!({"principalId": user});
        event
    };
    let named = [by(message("a", 1), "c4n4ry-alice"), by(message("b", 2), "c4n4ry-alice")];
    assert_eq!(statuses(layer(), &named).await, (vec![201, 201], 1));
    let two = [by(message("a", 1), "c4n4ry-alice"), by(message("a", 2), "c4n4ry-bob")];
    assert_eq!(statuses(layer(), &two).await, (vec![201, 201], 2));
}

#[tokio::test]
async fn messages_without_required_keys_are_refused() {
    let keyless = event("MESSAGE", "a", 1, r#"{"action":"pay"}"#);
    let required = || idempotency().http().required(true);
    assert_eq!(statuses(required(), std::slice::from_ref(&keyless)).await, (vec![400], 0));
    assert_eq!(statuses(layer().required(true), std::slice::from_ref(&keyless)).await, (vec![400], 0));
    assert_eq!(statuses(layer(), &[keyless.clone(), keyless]).await, (vec![201, 201], 2));
    assert_eq!(statuses(layer().require_caller(true), &[message("a", 1)]).await, (vec![403], 0));
}

#[tokio::test]
async fn connections_pass_through() {
    for kind in ["CONNECT", "DISCONNECT"] {
        let events = [event(kind, "a", 1, PAY), event(kind, "a", 2, PAY)];
        assert_eq!(statuses(layer().required(true), &events).await, (vec![201, 201], 2), "{kind}");
    }
}
