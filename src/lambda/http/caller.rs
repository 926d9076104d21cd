//! Who calls, as far as the front end has verified it. A key is one caller's: another caller can
//! neither hit it nor learn that it exists.

use http::Extensions;
use lambda_http::{
    RequestExt, aws_lambda_events::apigw::ApiGatewayRequestAuthorizer, request::RequestContext,
};
use serde_json::Value;

use crate::lambda::tenant;

/// The verified caller and the tenant, as one text for the scope; never a token, and the same when the
/// token is refreshed. `None` where no authorizer ran: such an API has one namespace for all callers.
pub(super) fn verified(extensions: &Extensions) -> Option<String> {
    let caller = match extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV2(context)) => context.authorizer.as_ref().and_then(authorized),
        Some(RequestContext::ApiGatewayV1(context)) => authorized(&context.authorizer).or_else(|| {
            let identity = &context.identity;
            let caller = identity.caller.as_deref().or(identity.cognito_identity_id.as_deref());
            caller.filter(|caller| !caller.is_empty()).map(|caller| parts(&["iam", without_session(caller)]))
        }),
        _ => None,
    };
    let tenant = extensions.lambda_context_ref().and_then(tenant);
    match (caller, tenant) {
        (caller, None) => caller,
        (caller, Some(tenant)) => Some(parts(&["tenant", tenant, caller.as_deref().unwrap_or_default()])),
    }
}

fn authorized(authorizer: &ApiGatewayRequestAuthorizer) -> Option<String> {
    if let Some(jwt) = &authorizer.jwt {
        let claim = |name: &str| jwt.claims.get(name).map(String::as_str).filter(|claim| !claim.is_empty());
        return Some(parts(&["jwt", claim("iss").unwrap_or_default(), claim("sub")?]));
    }
    if let Some(iam) = &authorizer.iam {
        let id = iam.caller_id.as_deref().or(iam.user_id.as_deref()).or(iam.user_arn.as_deref())?;
        return Some(parts(&["iam", without_session(id)]));
    }
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(claims) = authorizer.fields.get("claims") {
        let subject = claims.get("sub").and_then(text)?;
        return Some(parts(&["jwt", &claims.get("iss").and_then(text).unwrap_or_default(), &subject]));
    }
    let principal = authorizer.fields.get("principalId").and_then(text)?;
    Some(parts(&["principal", &principal]))
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
        verified(request.extensions())
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
    fn no_authorizer_is_no_caller() {
        assert_eq!(caller(serde_json::Value::Null), None);
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(parts(&["ab", "c"]), parts(&["a", "bc"]));
    }
}
