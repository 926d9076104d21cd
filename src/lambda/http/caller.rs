//! Who calls, as far as the front end has verified it. A key is one caller's: another caller can
//! neither hit it nor learn that it exists.

use std::fmt;

use lambda_http::{aws_lambda_events::apigw::ApiGatewayRequestAuthorizer, request::RequestContext};
use serde_json::Value;

/// A caller that the front end verified; what the scope of an HTTP request's key has of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Caller<'a> {
    /// Who a JWT is about, by an authorizer that checked it.
    Jwt {
        /// The claim `iss`; empty where there is none.
        issuer: &'a str,
        /// The claim `sub`.
        subject: &'a str,
    },
    /// An IAM principal, by its unique id or its ARN. The session of a role does not count.
    Iam(&'a str),
    /// An identity of a Cognito identity pool, whose users share one role.
    CognitoIdentity(&'a str),
    /// What a Lambda authorizer calls the principal.
    Principal(&'a str),
    /// What [`HttpLayer::caller`](super::HttpLayer::caller) made of the request.
    Resolved(&'a str),
}

impl fmt::Debug for Caller<'_> {
    /// Shows the kind, never who it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jwt { .. } => "Jwt(…)",
            Self::Iam(_) => "Iam(…)",
            Self::CognitoIdentity(_) => "CognitoIdentity(…)",
            Self::Principal(_) => "Principal(…)",
            Self::Resolved(_) => "Resolved(…)",
        })
    }
}

/// The text that stands for caller and tenant in the scope of an HTTP request's key, for
/// [`Scope::with_caller`](crate::Scope::with_caller); none where there is neither.
///
/// ```
/// use lambda_idempotency::{Key, Scope, StoredKey, lambda::http::{Caller, scope_caller}};
///
/// let scope = Scope::new("payments", "http")?;
/// let caller = scope_caller(Some(Caller::Jwt { issuer: "https://login", subject: "17" }), None);
/// let scope = match caller {
///     Some(caller) => scope.with_caller(caller)?,
///     None => scope,
/// };
/// println!("{}", StoredKey::new(&scope, &Key::new("order-17")?));
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
pub fn scope_caller(caller: Option<Caller<'_>>, tenant: Option<&str>) -> Option<String> {
    let caller = caller.map(|caller| match caller {
        Caller::Jwt { issuer, subject } => parts(&["jwt", issuer, subject]),
        Caller::Iam(id) => parts(&["iam", without_session(id)]),
        Caller::CognitoIdentity(id) => parts(&["cognito", id]),
        Caller::Principal(principal) => parts(&["principal", principal]),
        Caller::Resolved(text) => parts(&["resolved", text]),
    });
    match (caller, tenant) {
        (caller, None) => caller,
        (caller, Some(tenant)) => Some(parts(&["tenant", tenant, caller.as_deref().unwrap_or_default()])),
    }
}

/// What the front end says of a request's caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verified<'a> {
    /// No authorizer ran: such an API has one namespace for all callers.
    Nobody,
    /// One ran, and named nobody. What it let in is not to share a namespace with others like it.
    Unnamed,
    /// This one; never a token, and the same when the token is refreshed.
    Caller(Caller<'a>),
}

pub(super) fn verified(context: Option<&RequestContext>) -> Verified<'_> {
    match context {
        Some(RequestContext::ApiGatewayV2(context)) => {
            context.authorizer.as_ref().map_or(Verified::Nobody, authorized)
        }
        Some(RequestContext::ApiGatewayV1(context)) => {
            let (identity, authorizer) = (&context.identity, &context.authorizer);
            let ran = authorizer.jwt.is_some() || authorizer.iam.is_some() || !authorizer.fields.is_empty();
            if ran {
                return authorized(authorizer);
            }
            // Users of an identity pool share its role: the identity goes first.
            let cognito = named_by(&identity.cognito_identity_id).map(Caller::CognitoIdentity);
            let caller = cognito.or_else(|| named_by(&identity.caller).map(Caller::Iam));
            caller.map_or(Verified::Nobody, Verified::Caller)
        }
        _ => Verified::Nobody,
    }
}

fn authorized(authorizer: &ApiGatewayRequestAuthorizer) -> Verified<'_> {
    named(authorizer).map_or(Verified::Unnamed, Verified::Caller)
}

fn named(authorizer: &ApiGatewayRequestAuthorizer) -> Option<Caller<'_>> {
    if let Some(jwt) = &authorizer.jwt {
        let claim = |name: &str| jwt.claims.get(name).map(String::as_str).filter(|claim| !claim.is_empty());
        return Some(Caller::Jwt { issuer: claim("iss").unwrap_or_default(), subject: claim("sub")? });
    }
    if let Some(iam) = &authorizer.iam {
        let cognito = iam.cognito_identity.as_ref().and_then(|cognito| named_by(&cognito.identity_id));
        let ids = [&iam.caller_id, &iam.user_id, &iam.user_arn];
        let principal = || ids.into_iter().find_map(named_by).map(Caller::Iam);
        return cognito.map(Caller::CognitoIdentity).or_else(principal);
    }
    fn text(value: &Value) -> Option<&str> {
        value.as_str().filter(|text| !text.is_empty())
    }
    // A Lambda authorizer may have a text of this name in its context.
    if let Some(claims) = authorizer.fields.get("claims").filter(|claims| claims.is_object()) {
        let issuer = claims.get("iss").and_then(text).unwrap_or_default();
        return Some(Caller::Jwt { issuer, subject: claims.get("sub").and_then(text)? });
    }
    authorizer.fields.get("principalId").and_then(text).map(Caller::Principal)
}

fn named_by(id: &Option<String>) -> Option<&str> {
    id.as_deref().filter(|id| !id.is_empty())
}

/// A role without its session, whose name differs between sessions: of `AROA…:session` the role's unique id, of
/// `arn:aws:sts::account:assumed-role/role/session` all but the session ("IAM identifiers", IAM user guide). What others
/// have behind a colon says who they are: `account:name` is a federated user.
fn without_session(id: &str) -> &str {
    let role = if id.starts_with("AROA") {
        id.split_once(':').map(|(role, _)| role)
    } else if id.contains(":assumed-role/") {
        id.rsplit_once('/').map(|(role, _)| role)
    } else {
        None
    };
    role.unwrap_or(id)
}

/// Joins parts so that their ends cannot be moved.
fn parts(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("{}:{part}", part.len())).collect()
}

#[cfg(test)]
mod tests {
    use lambda_http::RequestExt as _;

    use super::*;

    fn caller(context: serde_json::Value) -> Option<String> {
        let mut event = serde_json::json!({
            "version": "2.0", "routeKey": "$default", "rawPath": "/", "rawQueryString": "", "headers": {},
            "requestContext": {
                "accountId": "1", "apiId": "a", "domainName": "d", "domainPrefix": "p", "requestId": "r",
                "routeKey": "$default", "stage": "$default", "time": "t", "timeEpoch": 1,
                "http": {"method": "POST", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "::1", "userAgent": "x"}
            },
            "isBase64Encoded": false
        });
        event["requestContext"]["authorizer"] = context;
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        match verified(request.request_context_ref()) {
            Verified::Caller(caller) => scope_caller(Some(caller), None),
            Verified::Unnamed => Some("unnamed".into()),
            Verified::Nobody => None,
        }
    }

    #[test]
    fn a_jwt_names_issuer_and_subject_whatever_the_token() {
        let token = |iat: &str| serde_json::json!({"jwt": {"claims": {"iss": "i", "sub": "s", "iat": iat}, "scopes": null}});
        assert_eq!(caller(token("1")), Some("3:jwt1:i1:s".into()));
        assert_eq!(caller(token("1")), caller(token("2")));
    }

    #[test]
    fn a_role_is_one_caller_over_its_sessions() {
        let session = |id: &str| serde_json::json!({"iam": {"callerId": id, "userId": id}});
        assert_eq!(caller(session("AROA1:alice")), caller(session("AROA1:bob")));
        assert_ne!(caller(session("AROA1:alice")), caller(session("AROA2:alice")));
    }

    #[test]
    fn a_lambda_authorizer_names_the_principal() {
        let principal = serde_json::json!({"lambda": {"principalId": "p"}});
        assert_eq!(caller(principal), scope_caller(Some(Caller::Principal("p")), None));
        assert_eq!(scope_caller(Some(Caller::Principal("p")), None), Some("9:principal1:p".into()));
    }

    #[test]
    fn a_tenant_stands_before_the_caller() {
        let jwt = Caller::Jwt { issuer: "i", subject: "s" };
        assert_eq!(scope_caller(Some(jwt), Some("t")), Some("6:tenant1:t11:3:jwt1:i1:s".into()));
        assert_eq!(scope_caller(None, Some("t")), Some("6:tenant1:t0:".into()));
        assert_eq!(scope_caller(None, None), None);
        assert_eq!(format!("{jwt:?} {:?}", Caller::Iam("id")), "Jwt(…) Iam(…)");
    }

    #[test]
    fn who_shares_a_role_or_an_account_is_no_one_caller() {
        let pool = |identity: &str| {
            let cognito = serde_json::json!({"amr": ["authenticated"], "identityId": identity});
            serde_json::json!({"iam": {"callerId": "AROA1:CognitoIdentityCredentials", "cognitoIdentity": cognito}})
        };
        assert_eq!(caller(pool("eu-central-1:alice")), caller(pool("eu-central-1:alice")));
        assert_ne!(caller(pool("eu-central-1:alice")), caller(pool("eu-central-1:bob")));
        let by = |id: &str| caller(serde_json::json!({"iam": {"callerId": id}}));
        assert_ne!(by("123456789012:alice"), by("123456789012:bob"), "federated users");
        assert_eq!(by(""), Some("unnamed".into()));
        let arn = |arn: &str| caller(serde_json::json!({"iam": {"callerId": "", "userArn": arn}}));
        let session =
            |role: &str, session: &str| arn(&format!("arn:aws:sts::1:assumed-role/{role}/{session}"));
        assert_eq!(session("shop", "one"), session("shop", "two"));
        assert_ne!(session("shop", "one"), session("till", "one"));
        assert_ne!(arn("arn:aws:iam::1:user/alice"), arn("arn:aws:iam::1:user/bob"));
    }

    #[test]
    fn a_rest_api_tells_the_identity_before_the_role() {
        let text = include_str!("../../../events/payments/rest-api.json");
        let by = |pool: Option<&str>, session: &str| {
            let mut event: serde_json::Value = serde_json::from_str(text).unwrap();
            event["requestContext"]["identity"]["cognitoIdentityId"] = pool.into();
            event["requestContext"]["identity"]["caller"] = format!("AROA1:{session}").into();
            let request = lambda_http::request::from_str(&event.to_string()).unwrap();
            let Verified::Caller(caller) = verified(request.request_context_ref()) else { panic!("nobody") };
            scope_caller(Some(caller), None)
        };
        assert_eq!(by(None, "one"), by(None, "two"));
        assert_eq!(by(Some("alice"), "one"), by(Some("alice"), "two"));
        assert_ne!(by(Some("alice"), "one"), by(Some("bob"), "one"));
    }

    #[test]
    fn a_text_called_claims_hides_no_principal() {
        let context = serde_json::json!({"lambda": {"claims": "{\"sub\":\"s\"}", "principalId": "p"}});
        assert_eq!(caller(context), scope_caller(Some(Caller::Principal("p")), None));
    }

    #[test]
    fn no_authorizer_is_no_caller() {
        assert_eq!(caller(serde_json::Value::Null), None);
    }

    #[test]
    fn an_authorizer_that_names_nobody_is_told_from_none() {
        for silent in [
            serde_json::json!({"jwt": {"claims": {"iss": "i"}, "scopes": null}}),
            serde_json::json!({"iam": {"accountId": "1"}}),
            serde_json::json!({"lambda": {"plan": "gold"}}),
            serde_json::json!({"lambda": {"principalId": ""}}),
        ] {
            assert_eq!(caller(silent.clone()), Some("unnamed".into()), "{silent}");
        }
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(parts(&["ab", "c"]), parts(&["a", "bc"]));
    }
}
