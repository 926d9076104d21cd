//! Checks the table of `guide/callers.md`: the scope of the key, for each front end and credential.

use lambda_http::http::HeaderName;
use lambda_idempotency::lambda::http::{Caller, verified_caller};

use super::*;

/// Which requests with the same key are duplicates.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scope {
    /// The requests of the same caller, in every API and stage.
    Everywhere,
    /// The requests of the same caller in the same API and stage.
    OneApi,
    /// None, because the layer refuses such requests.
    Refused,
    /// All requests without credentials, whoever sends them.
    Anonymous,
}

use Scope::{Anonymous, Everywhere, OneApi, Refused};

/// A row of the guide's table: front end, credential, and the guide's text about the scope. Then come the scope, and a
/// function that puts a person's credential into an event. The function's arguments are the event, the person, and the
/// number of the person's session or token.
struct Row(&'static str, &'static str, &'static str, Scope, fn(&mut Value, &str, u8));

const REST: &str = "REST API";
const HTTP: &str = "HTTP API";
const HTTP_1: &str = "HTTP API, format 1.0";
const URL: &str = "function URL";
const ALB: &str = "load balancer";
const LATTICE: &str = "VPC Lattice";

const REFUSED: &str = "refused: 500 `caller-unknown`";
const ANONYMOUS: &str = "the anonymous namespace";
const PRINCIPAL: &str = "principal, without its session";
const BEARER: &str = "IAM, and `Authorization` without a signature";
const SESSION: &str = "IAM and a session cookie";
const POOL: &str = "Cognito identity pool, no identity id";

const ROWS: &[Row] = &[
    Row(REST, "Lambda authorizer", "`principalId`, API, stage", OneApi, |event, who, n| {
        context(event)["authorizer"] = json!({"principalId": who, "integrationLatency": n});
    }),
    Row(REST, "Cognito user pool", "`iss`, `sub`", Everywhere, |event, who, n| {
        context(event)["authorizer"] =
            json!({"claims": {"iss": "https://pool", "sub": who, "iat": n.to_string()}});
    }),
    Row(REST, "IAM", PRINCIPAL, Everywhere, caller),
    Row(REST, "IAM and a usage plan's API key", PRINCIPAL, Everywhere, |event, who, n| {
        caller(event, who, n);
        header(event, "x-api-key", "c4n4ry-app");
        context(event)["identity"]["apiKey"] = "c4n4ry-app".into();
        context(event)["identity"]["apiKeyId"] = "the app's".into();
    }),
    Row(REST, BEARER, REFUSED, Refused, |event, who, n| {
        caller(event, "proxy", n);
        bearer(event, who, n);
    }),
    Row(REST, SESSION, REFUSED, Refused, |event, who, n| {
        caller(event, "proxy", n);
        session(event, who);
    }),
    Row(REST, "Cognito identity pool", "identity id", Everywhere, |event, who, n| {
        context(event)["identity"]["caller"] = format!("AROA1:session-{n}").into();
        context(event)["identity"]["cognitoIdentityId"] = who.into();
    }),
    Row(REST, POOL, REFUSED, Refused, |event, _, _| {
        context(event)["identity"]["caller"] = "AROA1:CognitoIdentityCredentials".into();
    }),
    Row(REST, "mutual TLS", "certificate's issuer and subject, API, stage", OneApi, |event, who, n| {
        context(event)["identity"]["clientCert"] = certificate(who, n);
    }),
    Row(REST, "mutual TLS and `Authorization`", REFUSED, Refused, |event, who, n| {
        context(event)["identity"]["clientCert"] = certificate("proxy", n);
        bearer(event, who, n);
    }),
    Row(REST, "API key", "key's id, API, stage", OneApi, |event, who, _| {
        header(event, "x-api-key", who);
        context(event)["identity"]["apiKey"] = who.into();
        context(event)["identity"]["apiKeyId"] = format!("id of {who}").into();
    }),
    Row(REST, "API key and `Authorization`, no authorizer", REFUSED, Refused, |event, who, n| {
        context(event)["identity"]["apiKeyId"] = "the app's".into();
        bearer(event, who, n);
    }),
    Row(REST, "authorizer without `principalId`", REFUSED, Refused, |event, who, _| {
        context(event)["authorizer"] = json!({"plan": who});
    }),
    Row(REST, "`Authorization` and no authorizer", REFUSED, Refused, bearer),
    Row(REST, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
    Row(HTTP, "JWT authorizer", "`iss`, `sub`", Everywhere, |event, who, n| {
        bearer(event, who, n);
        context(event)["authorizer"] =
            jwt(json!({"iss": "https://issuer", "sub": who, "iat": n.to_string()}));
    }),
    Row(HTTP, "JWT authorizer, token without `iss`", "`sub`, API, stage", OneApi, |event, who, _| {
        context(event)["authorizer"] = jwt(json!({"sub": who}));
    }),
    Row(HTTP, "Lambda authorizer", "`principalId`, API, stage", OneApi, |event, who, _| {
        context(event)["authorizer"] = json!({"lambda": {"principalId": who}});
    }),
    Row(HTTP, "IAM", PRINCIPAL, Everywhere, iam),
    Row(HTTP, BEARER, REFUSED, Refused, iam_and_bearer),
    Row(HTTP, SESSION, REFUSED, Refused, iam_and_session),
    Row(HTTP, "Cognito identity pool", "identity id", Everywhere, |event, who, n| {
        let cognito = json!({"amr": ["authenticated"], "identityId": who});
        context(event)["authorizer"] =
            json!({"iam": {"callerId": format!("AROA1:{n}"), "cognitoIdentity": cognito}});
    }),
    Row(HTTP, POOL, REFUSED, Refused, iam_of_pool),
    Row(HTTP, "mutual TLS", "certificate's issuer and subject, API, stage", OneApi, |event, who, n| {
        context(event)["authentication"] = json!({"clientCert": certificate(who, n)});
        header(event, "x-amzn-mtls-clientcert-subject", &format!("CN={who}"));
    }),
    Row(HTTP, "mutual TLS and `Authorization`", REFUSED, Refused, |event, who, n| {
        context(event)["authentication"] = json!({"clientCert": certificate("proxy", n)});
        bearer(event, who, n);
    }),
    Row(HTTP, "authorizer without `principalId` or `sub`", REFUSED, Refused, |event, who, _| {
        context(event)["authorizer"] = json!({"lambda": {"plan": who}});
    }),
    Row(HTTP, "`Authorization` and no authorizer", REFUSED, Refused, bearer),
    Row(HTTP, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
    Row(HTTP_1, "JWT authorizer", "`iss`, `sub`", Everywhere, |event, who, n| {
        bearer(event, who, n);
        context(event)["authorizer"] =
            json!({"claims": {"iss": "https://issuer", "sub": who, "iat": n.to_string()}, "scopes": null});
    }),
    Row(HTTP_1, "Lambda authorizer", "`principalId`, API, stage", OneApi, |event, who, _| {
        context(event)["authorizer"] = json!({"principalId": who});
    }),
    Row(HTTP_1, "IAM", PRINCIPAL, Everywhere, caller),
    Row(HTTP_1, BEARER, REFUSED, Refused, |event, who, n| {
        caller(event, "proxy", n);
        bearer(event, who, n);
    }),
    Row(HTTP_1, "authorizer without `principalId` or `sub`", REFUSED, Refused, |event, who, _| {
        context(event)["authorizer"] = json!({"claims": null, "scopes": null, "plan": who});
    }),
    Row(HTTP_1, "`Authorization` and no authorizer", REFUSED, Refused, bearer),
    Row(HTTP_1, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
    Row(URL, "IAM", PRINCIPAL, Everywhere, iam),
    Row(URL, BEARER, REFUSED, Refused, iam_and_bearer),
    Row(URL, SESSION, REFUSED, Refused, iam_and_session),
    Row(URL, POOL, REFUSED, Refused, iam_of_pool),
    Row(URL, "`Authorization` and auth type `NONE`", REFUSED, Refused, bearer),
    Row(URL, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
    Row(ALB, "OpenID Connect login", REFUSED, Refused, |event, who, _| {
        header(event, "x-amzn-oidc-data", who)
    }),
    Row(ALB, "mutual TLS", REFUSED, Refused, |event, who, _| {
        header(event, "x-amzn-mtls-clientcert-subject", who)
    }),
    Row(ALB, "`Authorization`", REFUSED, Refused, bearer),
    Row(ALB, "session cookie", REFUSED, Refused, |event, who, _| {
        header(event, "cookie", &format!("session={who}"))
    }),
    Row(ALB, "stickiness cookie", ANONYMOUS, Anonymous, |event, who, _| {
        header(event, "cookie", &format!("AWSALB={who}"))
    }),
    Row(ALB, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
    Row(LATTICE, "IAM", PRINCIPAL, Everywhere, |event, who, n| {
        signature(event, n);
        lattice(event, &format!("{who}/session-{n}"));
    }),
    Row(LATTICE, BEARER, REFUSED, Refused, |event, who, n| {
        lattice(event, "proxy/session");
        bearer(event, who, n);
    }),
    Row(LATTICE, SESSION, REFUSED, Refused, |event, who, n| {
        signature(event, n);
        lattice(event, "proxy/session");
        session(event, who);
    }),
    Row(LATTICE, "Cognito identity pool", REFUSED, Refused, |event, _, n| {
        signature(event, n);
        lattice(event, "shop/CognitoIdentityCredentials");
    }),
    Row(LATTICE, "another type of identity", REFUSED, Refused, |event, who, _| {
        context(event)["identity"]["type"] = "AWS_NEW".into();
        context(event)["identity"]["principal"] = who.into();
    }),
    Row(LATTICE, "`Authorization` and auth type `NONE`", REFUSED, Refused, bearer),
    Row(LATTICE, "none", ANONYMOUS, Anonymous, |_, _, _| {}),
];

fn context(event: &mut Value) -> &mut Value {
    &mut event["requestContext"]
}

fn jwt(claims: Value) -> Value {
    json!({"jwt": {"claims": claims, "scopes": null}})
}

fn iam(event: &mut Value, who: &str, n: u8) {
    signature(event, n);
    context(event)["authorizer"] = json!({"iam": {"callerId": format!("AROA{who}:{n}"), "userId": "u"}});
}

fn iam_and_bearer(event: &mut Value, who: &str, n: u8) {
    iam(event, "proxy", n);
    bearer(event, who, n);
}

fn iam_and_session(event: &mut Value, who: &str, n: u8) {
    iam(event, "proxy", n);
    session(event, who);
}

fn iam_of_pool(event: &mut Value, _: &str, _: u8) {
    context(event)["authorizer"] =
        json!({"iam": {"callerId": "AROA1:CognitoIdentityCredentials", "cognitoIdentity": null}});
}

fn caller(event: &mut Value, who: &str, n: u8) {
    signature(event, n);
    context(event)["identity"]["caller"] = format!("AROA{who}:session-{n}").into();
}

fn lattice(event: &mut Value, session: &str) {
    context(event)["identity"]["type"] = "AWS_IAM".into();
    context(event)["identity"]["principal"] = format!("arn:aws:sts::1:assumed-role/{session}").into();
}

/// Signs the request with temporary credentials.
fn signature(event: &mut Value, n: u8) {
    let signed = "Credential=c4n4ry-id/20261120/eu-central-1/execute-api/aws4_request, SignedHeaders=host";
    header(event, "authorization", &format!("AWS4-HMAC-SHA256 {signed}, Signature=c4n4ry{n}"));
    header(event, "x-amz-security-token", &format!("c4n4ry-token-{n}"));
}

fn session(event: &mut Value, who: &str) {
    header(event, "cookie", &format!("AWSALB=c4n4ry; session={who}"));
}

fn bearer(event: &mut Value, who: &str, n: u8) {
    header(event, "authorization", &format!("Bearer {who}-{n}"));
}

/// Returns a certificate for `who`. When the certificate is renewed, `n` changes.
fn certificate(who: &str, n: u8) -> Value {
    json!({
        "clientCertPem": format!("c4n4ry pem {n}"), "issuerDN": "CN=c4n4ry-ca", "subjectDN": format!("CN={who}"),
        "serialNumber": format!("a1:{n}"), "validity": {"notBefore": "May 28 12:30:02 2019 GMT", "notAfter": "Aug  5 09:36:04 2021 GMT"}
    })
}

fn header(event: &mut Value, name: &str, value: &str) {
    recording::secrets(|secrets| secrets.add(value));
    // VPC Lattice sends a list of values for each header.
    if event["version"] == "2.0" && event["path"].is_string() {
        event["headers"][name] = json!([value]);
    } else {
        crate::front_ends::set_header(event, name, Some(value));
    }
}

/// Returns the front end's event without a verified caller.
fn event(front_end: &str) -> Value {
    let text = match front_end {
        REST => include_str!("../../../events/payments/rest-api.json"),
        HTTP => include_str!("../../../events/payments/http-api.json"),
        HTTP_1 => include_str!("http-api-1.0.json"),
        URL => include_str!("../../../events/payments/function-url.json"),
        ALB => include_str!("../../../events/payments/alb.json"),
        _ => include_str!("vpc-lattice.json"),
    };
    let mut event: Value = serde_json::from_str(text).unwrap();
    if front_end == REST {
        context(&mut event)["identity"] = json!({"sourceIp": "203.0.113.24"});
    } else if front_end == HTTP || front_end == URL {
        context(&mut event).as_object_mut().unwrap().remove("authorizer");
    }
    event
}

impl Row {
    fn event(&self, who: &str, session: u8) -> Value {
        let mut event = event(self.0);
        (self.4)(&mut event, who, session);
        recording::secrets(|secrets| {
            secrets.add(who);
            secrets.add_http(&event);
        });
        event
    }

    fn name(&self) -> String {
        format!("{}, {}", self.0, self.1)
    }
}

fn request(event: &Value) -> Request {
    lambda_http::request::from_str(&event.to_string()).unwrap()
}

const ALICE: &str = "c4n4ry-alice";
const BOB: &str = "c4n4ry-bob";

#[tokio::test]
async fn every_caller_has_its_own_keys() {
    for row in ROWS {
        let runs = Runs::default();
        let service = idempotency().http().layer(handler(&runs));
        let send = async |event: Value| service.clone().oneshot(request(&event)).await.unwrap();
        if row.3 == Refused {
            let answer = send(row.event(ALICE, 1)).await;
            assert_eq!((code(&answer).as_str(), runs.count()), ("caller-unknown", 0), "{}", row.name());
            continue;
        }
        assert_eq!(send(row.event(ALICE, 1)).await.status(), 201, "{}", row.name());
        assert!(is_replay(&send(row.event(ALICE, 2)).await), "{}: a new token or session", row.name());
        let bob = send(row.event(BOB, 1)).await;
        assert_eq!(is_replay(&bob), row.3 == Anonymous, "{}: another caller", row.name());
    }
}

/// Puts each kind of credential beside each caller that may be several people. Two people must never share a record.
#[tokio::test]
async fn people_behind_one_machine_share_nothing() {
    let headers = [
        ("authorization", "Bearer "),
        ("authorization", "AWS4-HMAC-SHA256 Credential=c4n4ry, Signature=a,Bearer "),
        ("proxy-authorization", "Basic "),
        ("x-forwarded-authorization", "Bearer "),
        ("x-api-key", ""),
        ("x-auth-token", ""),
        ("x-goog-iap-jwt-assertion", ""),
        ("x-forwarded-client-cert", "Subject="),
        ("x-amzn-mtls-clientcert-subject", "CN=another-"),
        ("x-amzn-oidc-identity", ""),
        ("cookie", "AWSALB=c4n4ry; session="),
        ("x-shop-member", ""),
    ];
    let machines = ["IAM", "IAM and a usage plan's API key", "mutual TLS", "API key"];
    let layer = idempotency().http().credential_headers([HeaderName::from_static("x-shop-member")]);
    let mut leaks = Vec::new();
    let rows = ROWS.iter().filter(|row| row.3 != Refused && machines.contains(&row.1));
    for (row, (name, value)) in rows.flat_map(|row| headers.map(|header| (row, header))) {
        if (row.1, name) == ("API key", "x-api-key") {
            continue;
        }
        let runs = Runs::default();
        let service = layer.layer(handler(&runs));
        for who in [ALICE, BOB] {
            let mut event = row.event("proxy", 1);
            header(&mut event, name, &format!("{value}{who}"));
            let answer = service.clone().oneshot(request(&event)).await.unwrap();
            if is_replay(&answer) || answer.status() == 201 {
                leaks.push(format!("{}: {name}: {value}", row.name()));
            }
        }
    }
    assert!(leaks.is_empty(), "{} leaks: {leaks:#?}", leaks.len());
}

#[tokio::test]
async fn api_scoped_callers_differ_between_apis() {
    for row in ROWS.iter().filter(|row| [Everywhere, OneApi].contains(&row.3)) {
        for api_name in [None, Some("payments")] {
            let runs = Runs::default();
            let layer = idempotency().http();
            let layer = api_name.iter().fold(layer, |layer, name| layer.api_name(*name));
            let service = layer.layer(handler(&runs));
            let mut elsewhere = row.event(ALICE, 1);
            context(&mut elsewhere)["apiId"] = "otherapi".into();
            service.clone().oneshot(request(&row.event(ALICE, 1))).await.unwrap();
            let other = service.oneshot(request(&elsewhere)).await.unwrap();
            assert_eq!(other.status(), 201, "{}", row.name());
            let is_same = row.3 == Everywhere || api_name.is_some();
            assert_eq!(is_replay(&other), is_same, "{}, {api_name:?}", row.name());
        }
    }
}

/// Sends the same request to another stage, and under another base path of a custom domain.
#[tokio::test]
async fn named_apis_keep_callers_across_stages() {
    for row in ROWS.iter().filter(|row| row.3 == OneApi) {
        let staged = |stage: &str, base: &str| {
            let mut event = row.event(ALICE, 1);
            context(&mut event)["stage"] = stage.into();
            context(&mut event)["path"] = format!("{base}/payments").into();
            if row.0 == HTTP {
                event["rawPath"] = format!("/{stage}/payments").into();
            } else {
                event["path"] = format!("{base}/payments").into();
            }
            request(&event)
        };
        for (layer, is_same) in
            [(idempotency().http().api_name("payments"), true), (idempotency().http(), false)]
        {
            let runs = Runs::default();
            let service = layer.layer(handler(&runs));
            service.clone().oneshot(staged("blue", "")).await.unwrap();
            let moved = service.clone().oneshot(staged("green", "/v1")).await.unwrap();
            assert_eq!(is_replay(&moved), is_same, "{}", row.name());
            assert_eq!(runs.count(), if is_same { 1 } else { 2 });
        }
    }
}

/// A request with the same key and resource, but with other path parameters, is a mismatch.
#[tokio::test]
async fn named_apis_still_compare_paths() {
    let row = &ROWS[0];
    let runs = Runs::default();
    let service = idempotency().http().api_name("payments").layer(handler(&runs));
    let of = |id: &str| {
        let mut event = row.event(ALICE, 1);
        context(&mut event)["resourcePath"] = "/payments/{id}".into();
        event["path"] = format!("/payments/{id}").into();
        event["pathParameters"] = json!({"id": id});
        request(&event)
    };
    assert_eq!(service.clone().oneshot(of("1")).await.unwrap().status(), 201);
    assert!(is_replay(&service.clone().oneshot(of("1")).await.unwrap()));
    assert_eq!(service.oneshot(of("2")).await.unwrap().status(), 422);
}

#[tokio::test]
async fn replay_if_gets_the_verified_caller() {
    let row = ROWS.iter().find(|row| row.0 == HTTP && row.1 == "JWT authorizer").unwrap();
    let (parts, _) = request(&row.event(ALICE, 1)).into_parts();
    let alice = Caller::Jwt { issuer: "https://issuer".into(), subject: ALICE.into() };
    assert_eq!(verified_caller(&parts).unwrap(), Some(alice.clone()));

    let runs = Runs::default();
    let layer = idempotency().http().replay_if(move |_, caller| {
        let is_alice = caller.as_ref() == Some(&alice);
        async move { is_alice }
    });
    let service = layer.layer(handler(&runs));
    for (who, status) in [(ALICE, 201), (BOB, 201), (ALICE, 201), (BOB, 403)] {
        let answer = service.clone().oneshot(request(&row.event(who, 1))).await.unwrap();
        assert_eq!(answer.status(), status, "{who}");
    }
    let (parts, _) = request(&event(HTTP)).into_parts();
    assert_eq!(verified_caller(&parts).unwrap(), None);
}

#[test]
fn the_guide_lists_every_caller() {
    let guide = include_str!("../../../src/guide/callers.md");
    let rows: Vec<_> =
        guide.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| front end")).collect();
    let expected: Vec<_> = ROWS.iter().map(|row| format!("| {} | {} | {} |", row.0, row.1, row.2)).collect();
    assert_eq!(rows, expected);
}
