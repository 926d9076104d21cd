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
    /// An IAM principal, by its unique id or its ARN. A role's session does not count.
    Iam(&'a str),
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
            let identity = &context.identity;
            let caller = identity.caller.as_deref().or(identity.cognito_identity_id.as_deref());
            let authorizer = &context.authorizer;
            let ran = authorizer.jwt.is_some() || authorizer.iam.is_some() || !authorizer.fields.is_empty();
            match caller.filter(|caller| !caller.is_empty()) {
                _ if ran => authorized(authorizer),
                Some(caller) => Verified::Caller(Caller::Iam(caller)),
                None => Verified::Nobody,
            }
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
        let id = iam.caller_id.as_deref().or(iam.user_id.as_deref()).or(iam.user_arn.as_deref())?;
        return Some(Caller::Iam(id));
    }
    fn text(value: &Value) -> Option<&str> {
        value.as_str().filter(|text| !text.is_empty())
    }
    if let Some(claims) = authorizer.fields.get("claims") {
        let issuer = claims.get("iss").and_then(text).unwrap_or_default();
        return Some(Caller::Jwt { issuer, subject: claims.get("sub").and_then(text)? });
    }
    authorizer.fields.get("principalId").and_then(text).map(Caller::Principal)
}

/// A role's unique id without the session's name, which differs between sessions of one role
/// ("IAM identifiers", IAM user guide).
fn without_session(id: &str) -> &str {
    id.split_once(':').map_or(id, |(role, _)| role)
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
