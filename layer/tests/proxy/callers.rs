//! Whose key a request's key is, if the function checks the credentials itself.

use serde_json::{Value, json};
use testkit::front_ends::{FRONT_ENDS, POST, event, set_header};

use super::{
    bench::{Function, INIT_ERROR, Lambda, program},
    http_events::created,
    process::{on_table, table},
    settings::{
        Then::{self, Refuses, Replays, Runs},
        delivered, requests,
    },
};

/// A request that no front end verified, with these headers.
pub(crate) fn sent(front_end: &str, headers: &[(&str, &str)]) -> Value {
    let mut request = event(front_end, POST);
    request["requestContext"]["authorizer"] = Value::Null;
    if front_end == "rest-api" {
        request["requestContext"]["authorizer"] = json!({});
        request["requestContext"]["identity"] = json!({ "sourceIp": "192.0.2.1" });
    }
    for name in ["authorization", "cookie"] {
        set_header(&mut request, name, None);
    }
    for (name, value) in headers {
        set_header(&mut request, name, Some(value));
    }
    request
}

/// Checks requests that differ only in these headers, one after the other.
async fn of_headers(settings: &[(&str, &str)], expected: &[(&[(&str, &str)], Then)]) {
    for front_end in FRONT_ENDS {
        let all: Vec<_> =
            expected.iter().map(|(headers, then)| (sent(front_end, headers), then.clone())).collect();
        requests(settings, &all).await;
    }
}

#[tokio::test]
async fn trusted_header_names_the_caller() {
    let callers = [("IDEMPOTENCY_CALLERS", "header:X-User-Id")];
    of_headers(
        &callers,
        &[
            (&[("x-user-id", "alice"), ("authorization", "Bearer 1")], Runs),
            (&[("x-user-id", "alice"), ("authorization", "Bearer 2"), ("cookie", "session=2")], Replays),
            (&[("x-user-id", "mallory"), ("authorization", "Bearer 1")], Runs),
            (&[("x-user-id", "mallory")], Replays),
            (&[("authorization", "Bearer 1")], Refuses(403)),
            (&[("x-user-id", " ")], Refuses(403)),
            (&[("x-user-id", "Bearer 1")], Refuses(403)),
            (&[("x-user-id", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")], Refuses(403)),
            (&[], Refuses(403)),
        ],
    )
    .await;
}

#[tokio::test]
async fn repeated_header_names_no_caller() {
    let mut twice = sent("rest-api", &[("x-user-id", "alice")]);
    twice["multiValueHeaders"]["x-user-id"] = json!(["mallory", "alice"]);
    let mut spelled = sent("rest-api", &[("x-user-id", "alice")]);
    spelled["multiValueHeaders"]["X-User-Id"] = json!(["mallory"]);
    spelled["headers"]["X-User-Id"] = json!("mallory");
    let all = [(twice, Refuses(403)), (spelled, Refuses(403))];
    requests(&[("IDEMPOTENCY_CALLERS", "header:x-user-id")], &all).await;
}

/// A request whose Lambda authorizer returned this context, and no `principalId`.
fn authorized(context: Value) -> Value {
    let mut request = sent("http-api", &[("authorization", "Bearer 1")]);
    request["requestContext"]["authorizer"] = json!({ "lambda": context });
    request
}

#[tokio::test]
async fn field_of_the_event_names_the_caller() {
    for callers in [
        "/requestContext/authorizer/lambda/user",
        "jmespath:requestContext.authorizer.lambda.user",
        "jmespath:requestContext.authorizer.lambda.user || headers.\"x-user-id\"",
    ] {
        let of = |user: &str, expires: u64| authorized(json!({ "user": user, "exp": expires }));
        let all = [
            (of("alice", 1), Runs),
            (of("alice", 2), Replays),
            (of("mallory", 2), Runs),
            (of("", 1), Refuses(403)),
            (authorized(json!({ "other": "alice" })), Refuses(403)),
            (sent("http-api", &[]), Refuses(403)),
        ];
        requests(&[("IDEMPOTENCY_CALLERS", callers)], &all).await;
    }
    let several = "/requestContext/authorizer/lambda/tenant,/requestContext/authorizer/lambda/user";
    let of = |tenant: &str, user: &str| authorized(json!({ "tenant": tenant, "user": user }));
    let all = [
        (of("a", "bc"), Runs),
        (of("ab", "c"), Runs),
        (of("a", "bc"), Replays),
        (authorized(json!({ "tenant": "a" })), Refuses(403)),
    ];
    requests(&[("IDEMPOTENCY_CALLERS", several)], &all).await;
}

#[tokio::test]
async fn expressions_see_no_field_of_the_client() {
    // Escapes hide the name from the check at the init. The field isn't there to be found.
    let hidden = r#"jmespath:headers."\u0061uthorization" || "\u0062ody" || requestContext.http.userAgent"#;
    let all = [(sent("http-api", &[("authorization", "Bearer 1")]), Refuses(403))];
    requests(&[("IDEMPOTENCY_CALLERS", hidden)], &all).await;
}

#[tokio::test]
async fn hashes_of_lasting_credentials_name_callers() {
    let (basic, other) = (("authorization", "Basic YTpi"), ("authorization", "Basic YTpj"));
    let (key, bearer) = (("x-api-key", "k-1"), ("authorization", "Bearer 1"));
    of_headers(
        &[("IDEMPOTENCY_CALLERS", "credential")],
        &[
            (&[basic], Runs),
            (&[("cookie", "_ga=GA1.1.2.3; _ga_X=9"), basic], Replays),
            (&[other], Runs),
            (&[key], Runs),
            (&[key], Replays),
            (&[("x-api-key", "k-2")], Runs),
            (&[bearer], Refuses(500)),
            (&[bearer, key], Refuses(500)),
            (&[("cookie", "session=1"), basic], Refuses(500)),
            // Without a credential, requests share one namespace, as by default.
            (&[], Runs),
            (&[], Replays),
        ],
    )
    .await;
}

#[tokio::test]
async fn refreshed_tokens_are_other_any_credentials() {
    of_headers(
        &[("IDEMPOTENCY_CALLERS", "any-credential"), ("IDEMPOTENCY_IGNORE_COOKIES", "theme")],
        &[
            (&[("authorization", "Bearer 1")], Runs),
            (&[("authorization", "Bearer 1"), ("cookie", "_ga=1; theme=dark")], Replays),
            (&[("authorization", "Bearer 2")], Runs),
            (&[("cookie", "session=1")], Runs),
            (&[("cookie", "theme=light; session=1")], Replays),
            (&[("cookie", "session=2")], Runs),
        ],
    )
    .await;
    for init in ["on-demand", "snap-start"] {
        let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
        let endpoint = wire.endpoint();
        let settings = [
            ("IDEMPOTENCY_CALLERS", "any-credential"),
            ("IDEMPOTENCY_KEY", "header"),
            ("AWS_LAMBDA_INITIALIZATION_TYPE", init),
        ];
        let function = Function::start(&lambda, &[&on_table(&endpoint)[..], &settings].concat()).await;
        delivered(&lambda, &function, &sent("alb", &[]).to_string(), &created().to_string()).await;
        assert!(function.log().contains("a retry with a refreshed token"), "{init}: {}", function.log());
    }
}

#[tokio::test]
async fn cookies_without_credentials_are_ignored() {
    let analytics = "_ga=GA1.1.2.3; _ga_AB12=GS1.1; _gid=1; _gat=1; _gat_UA-1=1; _gcl_au=1; _fbp=fb.1; _fbc=fb.1; \
                     _clck=1; _clsk=1; _uetsid=1; _uetvid=1; _pk_id.1.2=3; AWSALB=1";
    of_headers(
        &[],
        &[
            (&[("cookie", analytics)], Runs),
            (&[("cookie", "_ga=GA1.1.9.9")], Replays),
            (&[("cookie", "_ga=1; session=1")], Refuses(500)),
            (&[("cookie", "_garage=1")], Refuses(500)),
        ],
    )
    .await;
    of_headers(
        &[("IDEMPOTENCY_IGNORE_COOKIES", "theme, exp_*")],
        &[
            (&[("cookie", "theme=dark; exp_button=b; _ga=1")], Runs),
            (&[("cookie", "theme=light")], Replays),
            (&[("cookie", "themes=light")], Refuses(500)),
        ],
    )
    .await;
}

#[tokio::test]
async fn unverified_callers_are_refused_at_init() {
    for (callers, says) in [
        ("header:authorization", "jwt"),
        ("header:Authorization", "aren't verified"),
        ("header:cookie", "aren't verified"),
        ("header:x-amzn-oidc-data", "aren't verified"),
        ("header:x-amzn-oidc-accesstoken", "aren't verified"),
        ("header:x-auth-token", "aren't verified"),
        ("header:x-api-key", "credential"),
        ("header:x-session-id", "aren't verified"),
        ("header:", "header:NAME"),
        ("/headers/authorization", "aren't verified"),
        ("/headers/Authorization", "aren't verified"),
        ("/multiValueHeaders/Authorization/0", "could name another caller"),
        ("/body", "could name another caller"),
        ("/body/user", "could name another caller"),
        ("/cookies/0", "could name another caller"),
        ("/queryStringParameters/user", "could name another caller"),
        ("/requestContext/http/userAgent", "could name another caller"),
        ("/requestContext/requestId", "could name another caller"),
        ("/requestContext/identity/sourceIp", "names no caller"),
        ("/requestContext/authorizer/jwt/claims/jti", "names no caller"),
        ("jmespath:headers.authorization", "aren't verified"),
        ("jmespath:headers.Authorization", "aren't verified"),
        ("jmespath:powertools_json(powertools_base64(headers.authorization)).sub", "aren't verified"),
        ("jmespath:json(body).user", "could name another caller"),
        (
            "jmespath:requestContext.authorizer.lambda.user || powertools_json(body).user",
            "could name another",
        ),
        ("jmespath:cookies[0]", "aren't verified"),
        ("jmespath:multiValueHeaders.authorization[0]", "could name another caller"),
        ("jmespath:queryStringParameters.user", "could name another caller"),
        ("jmespath:user", "requestContext or headers"),
        ("jmespath:requestContext.[", "IDEMPOTENCY_CALLERS"),
        ("bearer", "credential"),
        ("jwt", "IDEMPOTENCY_JWT_KEYS"),
    ] {
        let lambda = Lambda::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", "header"),
            ("IDEMPOTENCY_STORE", "memory:"),
            ("IDEMPOTENCY_CALLERS", callers),
        ];
        let mut program = program(&lambda, &settings);
        let ended = program.args(["--", "/bin/true"]).output().await.unwrap();
        assert!(!ended.status.success(), "{callers}");
        let report = lambda.others().into_iter().find(|other| other.path == INIT_ERROR).unwrap();
        let report = String::from_utf8(report.body).unwrap();
        assert!(report.contains("IDEMPOTENCY_CALLERS") && report.contains(says), "{callers}: {report}");
    }
}
