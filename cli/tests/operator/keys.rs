//! The commands derive the same ids as the wrappers.

use lambda_http::{
    Body, Request, RequestExt as _, Response,
    tower::{Layer as _, ServiceExt as _, service_fn},
};
use lambda_idempotency::{Key, KeyFields, StoredKey, current};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json, value::RawValue};

use super::bench::{Bench, CALLER, KEY};

/// Deletes the table's only record, and returns its id.
async fn made(bench: &Bench) -> StoredKey {
    let mut page = bench.store.scan(None).await.unwrap();
    let (key, record) = page.records.remove(0);
    record.unwrap();
    assert!(page.records.is_empty());
    let id = aws_sdk_dynamodb::types::AttributeValue::S(key.to_string());
    bench.client.delete_item().table_name(super::bench::TABLE).key("id", id).send().await.unwrap();
    key
}

/// The id that `inspect` looks for with these options.
async fn derived(bench: &Bench, via: &str, options: &[&str]) -> String {
    let scope = ["inspect", KEY, "--function", "payments", "--via", via, "--json"];
    let answer = bench.run(&[&scope[..], options].concat()).await;
    assert_eq!(answer.code, 0, "not found: {answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

async fn http(bench: &Bench, operation: Option<&str>, authorizer: Value, tenant: Option<&str>) {
    let mut layer = bench.function().http();
    if let Some(operation) = operation {
        layer = layer.operation(operation).unwrap();
    }
    let mut event = json!({
        "version": "2.0", "routeKey": "$default", "rawPath": "/", "rawQueryString": "",
        "headers": { "idempotency-key": KEY },
        "requestContext": {
            "accountId": "1", "apiId": "a", "domainName": "d", "domainPrefix": "p", "requestId": "r",
            "routeKey": "$default", "stage": "$default", "time": "t", "timeEpoch": 1,
            "http": { "method": "POST", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "::1", "userAgent": "x" },
        },
        "body": "{}", "isBase64Encoded": false,
    });
    let place = if authorizer.get("clientCert").is_some() { "authentication" } else { "authorizer" };
    event["requestContext"][place] = authorizer;
    let mut context = Context::default();
    context.tenant_id = tenant.map(str::to_owned);
    let request = lambda_http::request::from_str(&event.to_string()).unwrap().with_lambda_context(context);
    let handler = service_fn(|request: Request| async move {
        assert!(request.extensions().get::<lambda_idempotency::ClaimHandle>().is_some());
        Ok::<_, std::convert::Infallible>(Response::new(Body::Empty))
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_keys_match_for_every_caller() {
    let bench = Bench::new().await;
    let anonymous = Value::Null;
    let jwt = json!({ "jwt": { "claims": { "iss": "https://login", "sub": CALLER }, "scopes": null } });
    let role = format!("AROA{CALLER}");
    let iam = json!({ "iam": { "callerId": format!("{role}:session"), "userId": "u" } });
    let pool = json!({ "amr": ["authenticated"], "identityId": CALLER });
    let cognito = json!({ "iam": { "callerId": format!("{role}:session"), "cognitoIdentity": pool } });
    let principal = json!({ "lambda": { "principalId": CALLER } });
    let issuerless = json!({ "jwt": { "claims": { "sub": CALLER }, "scopes": null } });
    let cert = json!({ "clientCert": { "issuerDN": "CN=ca", "subjectDN": CALLER, "validity": {} } });
    for (operation, authorizer, tenant, options) in [
        (None, &anonymous, None, &[][..]),
        (Some("refund"), &anonymous, None, &["--operation", "refund"]),
        (None, &jwt, None, &["--jwt-issuer", "https://login", "--jwt-subject", CALLER]),
        (None, &iam, None, &["--iam", &role]),
        (None, &iam, None, &["--iam", &format!("{role}:another")]),
        (None, &cognito, None, &["--cognito-identity", CALLER]),
        (None, &principal, None, &["--principal", CALLER, "--api", "a/$default"]),
        (None, &principal, Some("t"), &["--principal", CALLER, "--api", "a/$default", "--tenant", "t"]),
        (None, &issuerless, None, &["--jwt-subject", CALLER, "--api", "a/$default"]),
        (
            None,
            &cert,
            None,
            &["--certificate-issuer", "CN=ca", "--certificate-subject", CALLER, "--api", "a/$default"],
        ),
        (None, &anonymous, Some("t"), &["--tenant", "t"]),
    ] {
        http(&bench, operation, authorizer.clone(), tenant).await;
        assert_eq!(derived(&bench, "http", options).await, made(&bench).await.as_str(), "{options:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn event_and_run_keys_match() {
    let bench = Bench::new().await;
    for (tenant, options) in [(None, &[][..]), (Some("t"), &["--tenant", "t"])] {
        let mut context = Context::default();
        context.tenant_id = tenant.map(str::to_owned);
        let raw = RawValue::from_string(json!({ "id": KEY }).to_string()).unwrap();
        let handler = service_fn(|_: LambdaEvent<Value>| async {
            assert!(current().is_some());
            Ok::<_, lambda_runtime::Error>("done")
        });
        let layer = bench.function().events(|event: &Value| Key::new(event["id"].as_str().unwrap()));
        layer.layer(handler).oneshot(LambdaEvent::new(raw, context)).await.unwrap();
        assert_eq!(derived(&bench, "event", options).await, made(&bench).await.as_str());
    }
    let charge = bench.function().operation("charge").unwrap();
    let mut context = Context::default();
    context.tenant_id = Some("t".to_owned());
    let of_tenant = bench.function().for_context(&context).operation("charge").unwrap();
    for (operation, options) in [
        (charge.clone(), &["--operation", "charge"][..]),
        (charge.for_caller(CALLER).unwrap(), &["--operation", "charge", "--for-caller", CALLER]),
        (of_tenant.clone(), &["--operation", "charge", "--tenant", "t"]),
        (
            of_tenant.for_caller(CALLER).unwrap(),
            &["--operation", "charge", "--for-caller", CALLER, "--tenant", "t"],
        ),
    ] {
        let key = Key::new(KEY).unwrap();
        operation.run(key, &1, || async { Ok::<_, std::io::Error>(2) }).await.unwrap();
        assert_eq!(derived(&bench, "run", options).await, made(&bench).await.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_body_keys_match() {
    let bench = Bench::new().await;
    let layer = bench.function().http().key_fields(KeyFields::new(["/id"]).unwrap());
    let handler = service_fn(|_: Request| async { Ok::<_, std::convert::Infallible>("paid") });
    let body = Body::Text(json!({ "id": KEY }).to_string());
    layer.layer(handler).oneshot(lambda_http::http::Request::post("/").body(body).unwrap()).await.unwrap();
    assert_eq!(derived(&bench, "http-body", &[]).await, made(&bench).await.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn options_unused_by_the_wrapper_are_refused() {
    let bench = Bench::empty().await;
    for (via, option) in [("event", "--iam"), ("run", "--principal"), ("http", "--for-caller")] {
        let scope = ["inspect", KEY, "--function", "f", "--operation", "o", "--via", via];
        let answer = bench.run(&[&scope[..], &[option, CALLER]].concat()).await;
        answer.is_bad_input(&[option]);
    }
    let unnamed = bench.run(&["inspect", KEY, "--function", "f", "--via", "run"]).await;
    unnamed.is_bad_input(&["--operation"]);
    bench
        .run(&["inspect", KEY, "--function", "f/g", "--via", "run", "--operation", "o"])
        .await
        .is_bad_input(&["function name"]);
    bench
        .run(&["inspect", " ", "--function", "f", "--via", "run", "--operation", "o"])
        .await
        .is_bad_input(&["blank"]);
    let local = ["inspect", KEY, "--function", "f", "--via", "http", "--principal", CALLER];
    bench.run(&local).await.is_bad_input(&["unique only within its API", "--api"]);
    bench.run(&["inspect", KEY]).await.is_bad_input(&["isn't a record's id", "--function"]);
    for incomplete in [&["--function", "f"][..], &["--via", "run"], &["--tenant", "t"]] {
        assert_eq!(bench.run(&[&["inspect", "k"], incomplete].concat()).await.code, 2);
    }
}
