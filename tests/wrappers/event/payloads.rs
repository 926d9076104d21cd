//! The fields that are compared by default: each source's payload, without the fields that differ in each delivery.

use lambda_idempotency::{Replay, lambda::event::EventLayer};
use serde_json::{Value, json};

use super::*;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns for each front end its name, the event of a client's request, and the event of the client's retry.
fn front_ends() -> Vec<(&'static str, Value, Value)> {
    macro_rules! pair {
        ($name:literal) => {
            (
                $name,
                parsed(include_str!(concat!("../../../events/payments/", $name, ".json"))),
                parsed(include_str!(concat!("../../../events/payments/", $name, "-again.json"))),
            )
        };
    }
    let mut all = vec![pair!("http-api"), pair!("rest-api"), pair!("function-url"), pair!("alb")];
    for (_, _, again) in &mut all {
        again["headers"]["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into();
        again["headers"]["user-agent"] = "shop/2.5".into();
    }
    all
}

/// Wraps an event as a delivery, and adds the secrets of its HTTP request: key, tokens, caller and body. The event's
/// other texts, such as paths and names of sources, aren't secret.
fn sent(event: &Value) -> LambdaEvent<Box<RawValue>> {
    recording::secrets(|secrets| secrets.add_http(event));
    LambdaEvent::new(serde_json::value::to_raw_value(event).unwrap(), Context::default())
}

/// Returns the order's id, which is in the body, as the key.
fn by_order(event: &Value) -> Result<Key, Error> {
    Key::new(parsed(event["body"].as_str().unwrap())["order_id"].as_str().unwrap())
}

struct Function {
    layer: EventLayer<Value>,
    runs: Runs,
}

impl Function {
    fn new(layer: EventLayer<Value>) -> Self {
        Self { layer, runs: Runs::default() }
    }

    /// Delivers the event. Returns the number of runs so far, or the kind of the library's error.
    async fn runs_after(&self, event: &Value) -> Result<usize, ErrorKind> {
        let runs = self.runs.clone();
        let handler = service_fn(move |_: LambdaEvent<Value>| {
            let nth = runs.next();
            async move { Ok::<_, lambda_runtime::Error>(json!({ "nth": nth })) }
        });
        let answer = self.layer.layer(handler).oneshot(sent(event)).await;
        match kind_of(&answer) {
            Some(kind) => Err(kind),
            None => answer.map(|_| self.runs.count()).map_err(|error| panic!("{error:?}")),
        }
    }
}

#[tokio::test]
async fn client_retries_replay_on_every_front_end() {
    for (name, first, again) in front_ends() {
        let function = Function::new(idempotency().events(by_order));
        assert_eq!(function.runs_after(&first).await, Ok(1));
        assert_eq!(function.runs_after(&again).await, Ok(1), "{name}");
        let mut formatted = again.clone();
        let body = parsed(again["body"].as_str().unwrap());
        formatted["body"] = serde_json::to_string_pretty(&body).unwrap().into();
        assert_eq!(function.runs_after(&formatted).await, Ok(1), "{name}");

        let whole = Function::new(idempotency().events(by_order).fingerprint_fields([""]).unwrap());
        assert_eq!(whole.runs_after(&first).await, Ok(1));
        assert_eq!(whole.runs_after(&again).await, Err(ErrorKind::Mismatch), "{name}: compares all fields");
    }
}

#[tokio::test]
async fn client_retries_with_body_keys_are_replayed() {
    for (name, first, again) in front_ends() {
        let by_fields = KeyFields::new(["json(body).order_id"]).unwrap();
        let function = Function::new(idempotency().events_by(by_fields));
        for event in [&first, &again] {
            assert_eq!(function.runs_after(event).await, Ok(1), "{name}");
        }
    }
}

#[tokio::test]
async fn other_requests_are_mismatches() {
    for (name, first, again) in front_ends() {
        let function = Function::new(idempotency().events(by_order));
        function.runs_after(&first).await.unwrap();
        // Returns the retry unchanged if this front end's event has no such field.
        let with = |pointer: &str, value: &str| {
            let mut other = again.clone();
            if let Some(place) = other.pointer_mut(pointer) {
                *place = value.into();
            }
            other
        };
        let body = first["body"].as_str().unwrap().replace("1250", "1251");
        let mut signed = again.clone();
        signed["headers"]["Authorization"] = "Bearer c4n4ry-another-callers-token".into();
        let of_another = match name {
            "rest-api" => with("/requestContext/identity/caller", "AROA2FQX7T5ZK4ANOTHER:checkout-7f3a"),
            "alb" => signed.clone(),
            _ => with("/requestContext/authorizer/iam/callerId", "AROA2FQX7T5ZK4ANOTHER:checkout-7f3a"),
        };
        let mut queried = again.clone();
        queried["queryStringParameters"] = json!({"dry": "run"});
        for other in [
            with("/body", &body),
            with("/path", "/refunds"),
            with("/rawPath", "/refunds"),
            with("/httpMethod", "PATCH"),
            with("/requestContext/http/method", "PATCH"),
            of_another,
            queried,
        ] {
            let expected = if other == again { Ok(1) } else { Err(ErrorKind::Mismatch) };
            assert_eq!(function.runs_after(&other).await, expected, "{name}: {other}");
        }
        // Several people may stand behind a role, so another token beside it is another sender's.
        assert_eq!(function.runs_after(&signed).await, Err(ErrorKind::Mismatch), "{name}");
    }
}

#[tokio::test]
async fn unverified_senders_differ_by_token_or_cookie() {
    let (_, mut first, mut again) = front_ends().pop().unwrap();
    first["headers"]["cookie"] = "session=c4n4ry-session-a; AWSALB=c4n4ry-one".into();
    again["headers"]["cookie"] = "AWSALB=c4n4ry-two; session=c4n4ry-session-a".into();
    let function = Function::new(idempotency().events(by_order));
    for event in [&first, &again] {
        assert_eq!(function.runs_after(event).await, Ok(1));
    }
    again["headers"]["cookie"] = "session=c4n4ry-session-b".into();
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
    // A JWT with an issuer and no subject names no caller, so the token is compared.
    let (_, mut first, mut again) = front_ends().remove(0);
    for event in [&mut first, &mut again] {
        event["requestContext"]["authorizer"] = json!({"jwt": {"claims": {"iss": "https://c4n4ry-login"}}});
        event["headers"]["authorization"] = "Bearer c4n4ry-first-token".into();
    }
    let function = Function::new(idempotency().events(by_order));
    for event in [&first, &again] {
        assert_eq!(function.runs_after(event).await, Ok(1));
    }
    again["headers"]["authorization"] = "Bearer c4n4ry-second-token".into();
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
}

/// The signature of a role, and the token of a user that an authorizer verified, differ in each attempt.
#[tokio::test]
async fn verified_senders_may_refresh_their_credentials() {
    let jwt = json!({"jwt": {"claims": {"iss": "https://c4n4ry-login", "sub": "c4n4ry-user"}}});
    let signed = "AWS4-HMAC-SHA256 Credential=c4n4ry, SignedHeaders=host, Signature=c4n4ry";
    for (place, begin, authorizer) in [(0, "Bearer c4n4ry", Some(jwt)), (0, signed, None), (1, signed, None)]
    {
        let (name, mut first, mut again) = front_ends().remove(place);
        for (event, n) in [(&mut first, 1), (&mut again, 2)] {
            if let Some(authorizer) = &authorizer {
                event["requestContext"]["authorizer"] = authorizer.clone();
            }
            event["headers"]["Authorization"] = format!("{begin}{n}").into();
            event["headers"]["X-Amz-Security-Token"] = format!("c4n4ry-session-{n}").into();
        }
        let function = Function::new(idempotency().events(by_order));
        for event in [&first, &again] {
            assert_eq!(function.runs_after(event).await, Ok(1), "{name}, {begin}");
        }
    }
}

/// The users of an identity pool share a role.
#[tokio::test]
async fn roles_of_identity_pools_identify_no_sender() {
    let (_, mut first, mut again) = front_ends().remove(0);
    for (event, n) in [(&mut first, 1), (&mut again, 2)] {
        event["requestContext"]["authorizer"] = json!({"iam": {"callerId": "AROA1:CognitoIdentityCredentials", "accessKey": format!("c4n4ry{n}")}});
    }
    let function = Function::new(idempotency().events(by_order));
    assert_eq!(function.runs_after(&first).await, Ok(1));
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
}

#[tokio::test]
async fn authorizer_contexts_without_principal_are_compared() {
    let (_, mut first, mut again) = front_ends().remove(1);
    for (event, latency) in [(&mut first, 3), (&mut again, 9)] {
        event["requestContext"]["identity"] = json!({"sourceIp": "203.0.113.24", "userArn": ""});
        event["requestContext"]["authorizer"] = json!({"shop": "c4n4ry-shop", "integrationLatency": latency});
    }
    let function = Function::new(idempotency().events(by_order));
    for event in [&first, &again] {
        assert_eq!(function.runs_after(event).await, Ok(1));
    }
    again["requestContext"]["authorizer"]["shop"] = "c4n4ry-another".into();
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
}

/// If a producer sends the same payload twice, the two events differ only in fields of their delivery, such as ids and
/// times. So the second event gets the recorded answer. Another payload under the same key is a mismatch.
#[tokio::test]
async fn repeated_payloads_of_every_source_are_replayed() {
    macro_rules! event {
        ($path:literal) => {
            parsed(include_str!(concat!("../../../events/", $path)))
        };
    }
    // An event, the path of its key, the paths of fields of the delivery, and the path of a field of the payload.
    let cases: [(Value, &str, &[&str], &str); 6] = [
        (
            event!("receipts/event-bridge.json"),
            "/detail/payment_id",
            &["/id", "/time"],
            "/detail/amount_cents",
        ),
        (
            event!("sources/sns.json"),
            "/Records/0/Sns/Message",
            &["/Records/0/Sns/MessageId", "/Records/0/Sns/Timestamp", "/Records/0/Sns/Signature"],
            "/Records/0/Sns/Subject",
        ),
        (
            event!("orders/sqs.json"),
            "/Records/0/body",
            &["/Records/0/messageId", "/Records/0/receiptHandle", "/Records/0/attributes/SentTimestamp"],
            "/Records/1/body",
        ),
        (
            event!("sources/kinesis.json"),
            "/Records/0/kinesis/partitionKey",
            &["/Records/0/kinesis/sequenceNumber", "/Records/0/eventID"],
            "/Records/0/kinesis/data",
        ),
        (
            event!("sources/dynamodb.json"),
            "/Records/0/dynamodb/Keys/order_id/S",
            &["/Records/0/dynamodb/SequenceNumber", "/Records/0/eventID"],
            "/Records/0/dynamodb/NewImage/quantity/N",
        ),
        (
            event!("sources/s3.json"),
            "/Records/0/s3/object/key",
            &["/Records/0/eventTime", "/Records/0/responseElements/x-amz-request-id"],
            "/Records/0/s3/object/eTag",
        ),
    ];
    for (first, key, delivery, payload) in cases {
        let function = Function::new(idempotency().events_by(KeyFields::new([key]).unwrap()));
        assert_eq!(function.runs_after(&first).await, Ok(1));
        let mut again = first.clone();
        for field in delivery {
            *again.pointer_mut(field).unwrap() = "another".into();
        }
        assert_eq!(function.runs_after(&again).await, Ok(1), "{key}");
        *again.pointer_mut(payload).unwrap() = "another".into();
        assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch), "{key}");
    }
}

/// With `ResultPath`, a Step Functions state machine can add fields anywhere in an event before it passes the event on.
/// Two calls that differ only in such a field come from different steps, so the second is a mismatch.
#[tokio::test]
async fn fields_that_no_source_sends_are_compared() {
    macro_rules! event {
        ($path:literal) => {
            parsed(include_str!(concat!("../../../events/", $path)))
        };
    }
    // An event, and the paths of the objects that get another field.
    let cases: [(Value, &[&str]); 7] = [
        (event!("receipts/event-bridge.json"), &[""]),
        (event!("payments/rest-api.json"), &[""]),
        (event!("sources/sns.json"), &["", "/Records/0", "/Records/0/Sns"]),
        (event!("orders/sqs.json"), &["", "/Records/1"]),
        (event!("sources/kinesis.json"), &["", "/Records/1", "/Records/0/kinesis"]),
        (event!("sources/dynamodb.json"), &["", "/Records/1", "/Records/0/dynamodb"]),
        (event!("sources/s3.json"), &["", "/Records/0", "/Records/0/s3", "/Records/0/s3/bucket"]),
    ];
    for (sent, places) in cases {
        for place in places {
            let function = Function::new(idempotency().events(|_: &Value| Key::new("order-17")));
            let with = |phase: &str| {
                let mut event = sent.clone();
                event.pointer_mut(place).unwrap()["phase"] = phase.into();
                event
            };
            for _ in 0..2 {
                assert_eq!(function.runs_after(&with("reserve")).await, Ok(1), "{place} of {sent}");
            }
            for other in [with("capture"), sent.clone()] {
                let result = function.runs_after(&other).await;
                assert_eq!(result, Err(ErrorKind::Mismatch), "{place} of {sent}");
            }
        }
    }
}

/// The last event of a tumbling window has a state and no records.
#[tokio::test]
async fn events_without_records_are_compared_whole() {
    let function = Function::new(idempotency().events(|_: &Value| Key::new("window-9")));
    let last = |sum: u8| json!({"Records": [], "state": {"sum": sum}, "isFinalInvokeForWindow": true});
    for _ in 0..2 {
        assert_eq!(function.runs_after(&last(1)).await, Ok(1));
    }
    for other in [last(2), json!({"Records": []})] {
        assert_eq!(function.runs_after(&other).await, Err(ErrorKind::Mismatch));
    }
}

/// Another API, or another stage of the API, may give a principal's name to someone else.
#[tokio::test]
async fn principals_of_other_apis_are_other_senders() {
    let certificate = json!({"issuerDN": "CN=c4n4ry-issuer", "subjectDN": "CN=c4n4ry-subject"});
    let cases = [
        ("authorizer", json!({"lambda": {"principalId": "c4n4ry-17"}}), true),
        ("authorizer", json!({"principalId": "c4n4ry-17"}), true),
        ("authorizer", json!({"shop": "c4n4ry-shop"}), true),
        ("authorizer", json!({"jwt": {"claims": {"sub": "c4n4ry-17"}}}), true),
        (
            "authorizer",
            json!({"jwt": {"claims": {"iss": "https://c4n4ry-login", "sub": "c4n4ry-17"}}}),
            false,
        ),
        ("authorizer", json!({"iam": {"callerId": "AROA2FQX7T5ZK4C4N4RY:c4n4ry-till"}}), false),
        ("authentication", json!({"clientCert": certificate}), true),
    ];
    for (field, sender, is_local) in cases {
        let (_, mut first, _) = front_ends().remove(0);
        first["requestContext"]["authorizer"] = Value::Null;
        first["requestContext"][field] = sender.clone();
        let function = Function::new(idempotency().events(by_order));
        for _ in 0..2 {
            assert_eq!(function.runs_after(&first).await, Ok(1), "{sender}");
        }
        let expected = if is_local { Err(ErrorKind::Mismatch) } else { Ok(1) };
        for (place, value) in [("apiId", "another"), ("stage", "test")] {
            let mut other = first.clone();
            other["requestContext"][place] = value.into();
            assert_eq!(function.runs_after(&other).await, expected, "{sender} in another {place}");
        }
    }
}

/// A WebSocket's messages carry no headers, so only the connection identifies an unnamed sender.
#[tokio::test]
async fn unnamed_websocket_senders_differ_by_connection() {
    let message = |connection: &str, message: &str, authorizer: Value| {
        json!({
            "requestContext": {
                "routeKey": "order", "eventType": "MESSAGE", "messageDirection": "IN", "apiId": "w5x6y7z8a9",
                "stage": "prod", "connectionId": connection, "messageId": message, "requestId": message,
                "authorizer": authorizer,
            },
            "body": r#"{"order_id":"c4n4ry-websocket-order"}"#,
            "isBase64Encoded": false,
        })
    };
    let named = json!({"principalId": "c4n4ry-17"});
    for (authorizer, of_another) in [(Value::Null, Err(ErrorKind::Mismatch)), (named, Ok(1))] {
        let function = Function::new(idempotency().events(by_order));
        for id in ["one", "two"] {
            let sent = message("connection-a", id, authorizer.clone());
            assert_eq!(function.runs_after(&sent).await, Ok(1), "{authorizer}");
        }
        let sent = message("connection-b", "three", authorizer.clone());
        assert_eq!(function.runs_after(&sent).await, of_another, "{authorizer}");
    }
}

#[tokio::test]
async fn repeated_s3_notifications_are_replayed() {
    let first = parsed(include_str!("../../../events/sources/s3.json"));
    let function = Function::new(idempotency().events_by(keys::s3()));
    let mut again = first.clone();
    again["Records"][0]["responseElements"]["x-amz-request-id"] = "another".into();
    for event in [&first, &again] {
        assert_eq!(function.runs_after(event).await, Ok(1));
    }
    again["Records"][0]["s3"]["object"]["size"] = 1.into();
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
}

/// The time is compared, since without it two events of one schedule would look like duplicates. The id isn't compared.
#[tokio::test]
async fn schedule_events_are_compared_by_time() {
    let first = parsed(include_str!("../../../events/sources/scheduler.json"));
    let function = Function::new(idempotency().events_by(KeyFields::new(["/resources/0"]).unwrap()));
    let mut again = first.clone();
    again["id"] = "another".into();
    for event in [&first, &again] {
        assert_eq!(function.runs_after(event).await, Ok(1));
    }
    again["time"] = "2026-11-21T09:00:00Z".into();
    assert_eq!(function.runs_after(&again).await, Err(ErrorKind::Mismatch));
}

#[tokio::test]
async fn hooks_add_fields_to_event_replays() {
    let idempotency = idempotency();
    let layer = || idempotency.events(key);
    let told = layer().on_replay(|replay: &Replay| [("again", true.into()), ("by", replay.attempt().into())]);
    let handler = |answer: Value| {
        service_fn(move |_: LambdaEvent<Order>| {
            let answer = answer.clone();
            async move { Ok::<_, lambda_runtime::Error>(answer) }
        })
    };
    for (id, answer, replay) in [
        ("a", json!({"nth": 1}), r#"{"nth":1,"again":true,"by":1}"#),
        ("b", json!({"by": "hand"}), r#"{"by":"hand","again":true}"#),
        ("c", json!("text"), r#""text""#),
    ] {
        let event = || event(&format!(r#"{{"id":"{id}"}}"#));
        let plain = answer.to_string();
        let first = told.layer(handler(answer.clone())).oneshot(event()).await.unwrap();
        assert_eq!(first.get(), plain, "the hook must not change a first run's answer");
        for _ in 0..2 {
            assert_eq!(told.layer(handler(Value::Null)).oneshot(event()).await.unwrap().get(), replay);
        }
        let stored = layer().layer(handler(Value::Null)).oneshot(event()).await.unwrap();
        assert_eq!(stored.get(), plain, "the record must not contain the hook's fields");
    }
}

#[tokio::test]
async fn event_hooks_see_recorded_failures() {
    let builder = Idempotency::builder(empty_store()).function("orders");
    let idempotency = builder.execution(Execution::AtMostOnce).build().unwrap();
    let (runs, seen) = (Runs::default(), Runs::default());
    let counted = seen.clone();
    let layer = idempotency.events(key).on_replay(move |replay| {
        assert!(replay.is_failure());
        counted.next();
        None
    });
    for replays in 0..2 {
        let error =
            layer.layer(handler(&runs)).oneshot(event(r#"{"id":"1","fail":true}"#)).await.unwrap_err();
        assert!(matches!(error, RunError::Recorded(_)), "{error:?}");
        assert_eq!((runs.count(), seen.count()), (1, replays));
    }
}

/// Delivers `first` and a retry, and then each of the others, which are mismatches. Each change is a pointer to a
/// field, and the field's value.
async fn only_retries_are_replayed(first: &Value, retry: &[(&str, Value)], others: &[(&str, Value)]) {
    let changed = |changes: &[(&str, Value)]| {
        let mut event = first.clone();
        for (pointer, value) in changes {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            event.pointer_mut(parent).unwrap()[name] = value.clone();
        }
        event
    };
    let function = Function::new(idempotency().events(|_: &Value| Key::new("order-17")));
    for event in [first.clone(), changed(retry)] {
        assert_eq!(function.runs_after(&event).await, Ok(1), "{event}");
    }
    for other in others {
        let event = changed(std::slice::from_ref(other));
        assert_eq!(function.runs_after(&event).await, Err(ErrorKind::Mismatch), "{event}");
    }
}

#[tokio::test]
async fn first_lattice_structure_is_compared_by_sender() {
    let mut request = json!({
        "raw_path": "/payments?dry=1", "method": "POST", "query_string_parameters": {"dry": "1"},
        "headers": {"content-type": "application/json", "x-amzn-trace-id": "Root=1-a", "x-forwarded-for": "10.0.2.100"},
        "body": r#"{"order": "c4n4ry-17"}"#, "is_base64_encoded": false,
    });
    let traced = [
        ("/headers/x-amzn-trace-id", "Root=1-b".into()),
        ("/headers/x-forwarded-for", "10.0.2.101".into()),
        ("/body", r#"{"order":"c4n4ry-17"}"#.into()),
    ];
    let others = [
        ("/raw_path", "/refunds?dry=1".into()),
        ("/method", "PUT".into()),
        ("/query_string_parameters", json!({})),
        ("/body", r#"{"order": "c4n4ry-18"}"#.into()),
        ("/is_base64_encoded", true.into()),
        ("/headers/authorization", "Bearer c4n4ry-another".into()),
        ("/headers/x-amzn-lattice-identity", "Principal=c4n4ry-another".into()),
        ("/step", "a state machine's".into()),
    ];
    only_retries_are_replayed(&request, &traced, &others).await;

    let identity = |session: &str| {
        format!("Principal=arn:aws:sts::1:assumed-role/shop/{session}; SessionName={session}; Type=AWS_IAM")
            .into()
    };
    let signed =
        |signature: &str| Value::from(format!("AWS4-HMAC-SHA256 Credential=c4n4ry, Signature={signature}"));
    request["headers"]["x-amzn-lattice-identity"] = identity("one");
    request["headers"]["authorization"] = signed("a");
    let another_session = [
        ("/headers/x-amzn-lattice-identity", identity("two")),
        ("/headers/authorization", signed("b")),
        ("/headers/x-amz-security-token", "c4n4ry-session".into()),
    ];
    let others = [
        ("/headers/x-amzn-lattice-identity", "Principal=arn:aws:sts::1:assumed-role/till/one".into()),
        ("/headers/authorization", "Bearer c4n4ry-another".into()),
        ("/headers/cookie", "session=c4n4ry-another".into()),
    ];
    only_retries_are_replayed(&request, &another_session, &others).await;
}

#[tokio::test]
async fn appsync_retries_are_replayed() {
    let request = |identity: Value| {
        json!({
            "arguments": {"input": {"clientMutationId": "7a1c", "order": "order-17"}}, "source": null, "prev": null,
            "stash": {}, "identity": identity,
            "request": {"headers": {"x-amzn-trace-id": "1", "x-api-key": "c4n4ry-key"}, "domainName": null},
            "info": {
                "fieldName": "placeOrder", "parentTypeName": "Mutation", "variables": {}, "selectionSetList": ["id"],
                "selectionSetGraphQL": "{ id }",
            },
        })
    };
    let pool = json!({
        "sub": "c4n4ry-sub", "issuer": "https://c4n4ry-login", "username": "c4n4ry-kim", "claims": {"iat": 1},
        "sourceIp": ["198.51.100.17"],
    });
    let iam = json!({"accountId": "1", "username": "AROAC4N4RY:one", "userArn": "arn:c4n4ry", "cognitoIdentityId": null});
    let traced = ("/request/headers/x-amzn-trace-id", Value::from("2"));
    let others = [
        ("/arguments/input/order", "order-18".into()),
        ("/info/fieldName", "cancelOrder".into()),
        ("/info/parentTypeName", "Query".into()),
        ("/source", json!({"id": 1})),
        ("/stash", json!({"id": 1})),
        ("/prev", json!({"result": 1})),
        ("/identity", json!({"sub": "c4n4ry-other", "issuer": "https://c4n4ry-login"})),
        ("/identity", Value::Null),
        ("/identity", json!({"accountId": "1", "username": "AROAC4N4RY2:one"})),
        ("/step", "a state machine's".into()),
    ];
    let refreshed = ("/identity/claims/iat", 2.into());
    only_retries_are_replayed(&request(pool), &[traced.clone(), refreshed], &others).await;
    let another_session = ("/identity/username", "AROAC4N4RY:two".into());
    only_retries_are_replayed(&request(iam), &[traced.clone(), another_session], &others).await;
    let of_another = ("/request/headers/x-api-key", "c4n4ry-another".into());
    let by_key: Vec<_> =
        others.into_iter().filter(|(_, value)| !value.is_null()).chain([of_another]).collect();
    only_retries_are_replayed(&request(Value::Null), &[traced], &by_key).await;
}
