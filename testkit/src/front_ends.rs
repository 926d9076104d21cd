//! Builds one request as each front end delivers it, in the shapes of the files in `events/payments`.

use serde_json::{Value, json};

/// Every front end, by its file name.
pub const FRONT_ENDS: [&str; 4] = ["http-api", "function-url", "rest-api", "alb"];

/// The default key.
pub const UUID: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

/// A client's signature. No log may contain it. Another credential beside a role is refused.
pub const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=c4n4ry-token/20261120/eu-central-1/lambda/aws4_request, \
                                 SignedHeaders=host, Signature=c4n4ry-signature";

/// A client's cookie. No log may contain it. It isn't a credential, since a load balancer's stickiness cookie has this
/// name.
pub const COOKIE: &str = "AWSALB=c4n4ry-session";

/// A request that a client sends.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its method.
    pub method: &'static str,
    /// Its `Idempotency-Key` header.
    pub key: Option<&'static str>,
    /// Its query, like `a=1&b=2`.
    pub query: &'static str,
    /// Its body.
    pub body: &'static str,
    /// The status that the handler should answer with. If it's empty, the handler chooses the status.
    pub status: &'static str,
    /// How many seconds the API's clock runs ahead of the system's. Empty means 0.
    pub ahead: &'static str,
    /// The session of the role that signed the request.
    pub session: &'static str,
    /// The role that signed the request.
    pub role: &'static str,
}

/// A first payment.
pub const POST: Sent = Sent {
    method: "POST",
    key: Some(UUID),
    query: "",
    body: r#"{"order_id":"c4n4ry-order","amount_cents":1250,"currency":"EUR"}"#,
    status: "",
    ahead: "",
    session: "c4n4ry-one",
    role: "C4N4RYSHOP",
};

/// Builds the event that `front_end` delivers for a request.
pub fn event(front_end: &str, sent: Sent) -> Value {
    let text = match front_end {
        "http-api" => include_str!("../../events/payments/http-api.json"),
        "function-url" => include_str!("../../events/payments/function-url.json"),
        "rest-api" => include_str!("../../events/payments/rest-api.json"),
        _ => include_str!("../../events/payments/alb.json"),
    };
    let mut event: Value = serde_json::from_str(text).unwrap();
    event["body"] = sent.body.into();
    let caller = format!("AROA{}:{}", sent.role, sent.session);
    let pairs = || sent.query.split('&').filter_map(|pair| pair.split_once('='));
    if front_end == "rest-api" || front_end == "alb" {
        event["httpMethod"] = sent.method.into();
        event["queryStringParameters"] = pairs().map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
        event["multiValueQueryStringParameters"] = pairs().map(|(k, v)| (k.to_owned(), json!([v]))).collect();
        event["requestContext"]["identity"]["caller"] = caller.into();
    } else {
        event["requestContext"]["http"]["method"] = sent.method.into();
        event["rawQueryString"] = sent.query.into();
        event["requestContext"]["authorizer"]["iam"]["callerId"] = caller.into();
    }
    let name = if front_end == "rest-api" { "Idempotency-Key" } else { "idempotency-key" };
    let asked = |value: &'static str| (!value.is_empty()).then_some(value);
    // A load balancer verifies no callers, so the layer refuses credentials there: see `http/callers.rs`.
    let proof = |credential: &'static str| (front_end != "alb").then_some(credential);
    for (name, value) in [
        (name, sent.key),
        ("status", asked(sent.status)),
        ("ahead", asked(sent.ahead)),
        ("authorization", proof(AUTHORIZATION)),
        ("cookie", proof(COOKIE)),
    ] {
        set_header(&mut event, name, value);
    }
    event
}

/// Sets or removes a header of the event.
pub fn set_header(event: &mut Value, name: &str, value: Option<&str>) {
    let values = value.map(|value| json!([value]));
    for (all, value) in [("headers", value.map(Value::from)), ("multiValueHeaders", values)] {
        let Some(headers) = event[all].as_object_mut() else { continue };
        match value {
            Some(value) => headers.insert(name.into(), value),
            None => headers.remove(name),
        };
    }
}
