//! The caller that the front end verified. A key belongs to one caller: another caller can neither get the key's
//! recorded response nor learn that the key exists.

use std::fmt;

use ::http::request::Parts;
use lambda_http::{
    RequestExt,
    aws_lambda_events::{
        apigw::{
            ApiGatewayProxyRequestContext, ApiGatewayRequestAuthorizer, ApiGatewayRequestIdentity,
            ApiGatewayV2httpRequestContext, ApiGatewayV2httpRequestContextAuthentication,
        },
        vpc_lattice::VpcLatticeRequestV2Identity,
    },
    request::RequestContext,
};
use serde_json::Value;

use crate::{
    error::{Error, ErrorKind},
    key::joined,
    lambda::identity::{is_shared_by_pool, without_session},
};

/// The caller in the scope of an HTTP request's key: verified by the front end, or named by
/// [`HttpLayer::caller`](super::HttpLayer::caller). The table in [`guide::callers`](crate::guide::callers) lists the
/// caller for each front end and credential.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caller {
    /// The subject of a JWT that an authorizer checked. It's the same caller in every API and stage.
    Jwt {
        /// The claim `iss`.
        issuer: String,
        /// The claim `sub`.
        subject: String,
    },
    /// An IAM principal, by its unique id or its ARN. A role's session is ignored. It's the same caller in
    /// every API and stage.
    Iam(String),
    /// An identity of a Cognito identity pool, whose users share one role. It's the same caller in every API and stage.
    CognitoIdentity(String),
    /// A Lambda authorizer's `principalId`, or a JWT's subject without an issuer. Another API may use that name for
    /// someone else, so the caller belongs to one API and stage.
    Principal {
        /// The API: `<API id>/<stage>`, or [`HttpLayer::api_name`](super::HttpLayer::api_name).
        api: String,
        /// The principal's name, from the authorizer.
        name: String,
    },
    /// The owner of a client certificate, in one API and stage, since each API has its own trust store. The issuer and
    /// the subject identify the owner: an issuer gives a subject's name to one entity only (RFC 5280, section 4.1.2.6).
    Certificate {
        /// The API: `<API id>/<stage>`, or [`HttpLayer::api_name`](super::HttpLayer::api_name).
        api: String,
        /// The issuer's distinguished name.
        issuer: String,
        /// The subject's distinguished name.
        subject: String,
    },
    /// The owner of a REST API's key, in one API and stage.
    ApiKey {
        /// The API: `<API id>/<stage>`, or [`HttpLayer::api_name`](super::HttpLayer::api_name).
        api: String,
        /// The id of the API key, never the API key itself.
        id: String,
    },
    /// The text that [`HttpLayer::caller`](super::HttpLayer::caller) returned.
    Resolved(String),
}

impl Caller {
    /// Whether several people may stand behind this caller: the users of an app with an API key, or of a proxy with a
    /// role or a certificate. Authorizers and identity pools name one person.
    pub(super) fn may_be_several(&self) -> bool {
        matches!(self, Self::Iam(_) | Self::Certificate { .. } | Self::ApiKey { .. })
    }

    /// Replaces the API's name, if the caller belongs to one API.
    pub(super) fn of_api(mut self, name: &str) -> Self {
        if let Self::Principal { api, .. } | Self::Certificate { api, .. } | Self::ApiKey { api, .. } =
            &mut self
        {
            name.clone_into(api);
        }
        self
    }
}

impl fmt::Debug for Caller {
    /// Shows the kind, never the identity.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jwt { .. } => "Jwt(…)",
            Self::Iam(_) => "Iam(…)",
            Self::CognitoIdentity(_) => "CognitoIdentity(…)",
            Self::Principal { .. } => "Principal(…)",
            Self::Certificate { .. } => "Certificate(…)",
            Self::ApiKey { .. } => "ApiKey(…)",
            Self::Resolved(_) => "Resolved(…)",
        })
    }
}

/// Returns the text that represents the caller and the tenant in the scope of an HTTP request's key. Pass the text to
/// [`Scope::with_caller`](crate::Scope::with_caller). `None` if there's neither a caller nor a tenant.
///
/// ```
/// use lambda_idempotency::{Key, Scope, StoredKey, lambda::http::{Caller, scope_caller}};
///
/// let scope = Scope::new("payments", "http")?;
/// let caller = Caller::Jwt { issuer: "https://login".into(), subject: "17".into() };
/// let scope = match scope_caller(Some(&caller), None) {
///     Some(caller) => scope.with_caller(caller)?,
///     None => scope,
/// };
/// println!("{}", StoredKey::new(&scope, &Key::new("order-17")?));
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
pub fn scope_caller(caller: Option<&Caller>, tenant: Option<&str>) -> Option<String> {
    let caller = caller.map(|caller| match caller {
        Caller::Jwt { issuer, subject } => joined(&["jwt", issuer, subject]),
        Caller::Iam(id) => joined(&["iam", without_session(id)]),
        Caller::CognitoIdentity(id) => joined(&["cognito", id]),
        Caller::Principal { api, name } => joined(&["principal", api, name]),
        Caller::Certificate { api, issuer, subject } => joined(&["certificate", api, issuer, subject]),
        Caller::ApiKey { api, id } => joined(&["api-key", api, id]),
        Caller::Resolved(text) => joined(&["resolved", text]),
    });
    match (caller, tenant) {
        (caller, None) => caller,
        (caller, Some(tenant)) => Some(joined(&["tenant", tenant, caller.as_deref().unwrap_or_default()])),
    }
}

/// The caller that a front end verified, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// The front end verified no caller.
    Nobody,
    /// The front end verified a caller, but gives no name that this library understands. An authorizer may name no
    /// principal, for example. Unless [`HttpLayer::shared_namespace`](super::HttpLayer::shared_namespace) is set, the
    /// layer refuses keyed requests from such callers, so that they don't share a namespace.
    Unnamed,
    /// The front end verified this caller. The caller stays the same when a token is refreshed or a role starts a new
    /// session.
    Caller(Caller),
}

/// The caller that the front end verified, from its event's request context; `None` if it verified none. The layer
/// uses this caller unless [`HttpLayer::caller`](super::HttpLayer::caller) is set. The table in
/// [`guide::callers`](crate::guide::callers) lists the caller for each front end and credential.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the front end verified a caller, but gives no name that this library understands. An
/// authorizer may name no principal, for example. Unless
/// [`HttpLayer::shared_namespace`](super::HttpLayer::shared_namespace) is set, the layer refuses keyed requests from
/// such callers, so that they don't share a namespace.
///
/// ```
/// use lambda_http::Request;
/// use lambda_idempotency::lambda::http::{Caller, verified_caller};
///
/// fn is_partner(request: Request) -> bool {
///     let (request, _body) = request.into_parts();
///     matches!(verified_caller(&request), Ok(Some(Caller::Certificate { .. })))
/// }
/// ```
pub fn verified_caller(request: &Parts) -> Result<Option<Caller>, Error> {
    match verified_in(request) {
        Verified::Nobody => Ok(None),
        Verified::Caller(caller) => Ok(Some(caller)),
        Verified::Unnamed => Err(Error::new(
            ErrorKind::Invalid,
            "the front end verified a caller, but this library finds no name for the caller in the event",
        )),
    }
}

pub(super) fn verified_in(request: &Parts) -> Verified {
    match request.extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV2(context)) => of_http_api(context),
        Some(RequestContext::ApiGatewayV1(context)) => {
            let api = api(&context.apiid, &context.stage);
            if is_unset(&context.authorizer) && !is_of_rest_api(context) {
                return of_rest_api(&ApiGatewayRequestAuthorizer::default(), &context.identity, &api);
            }
            of_rest_api(&context.authorizer, &context.identity, &api)
        }
        Some(RequestContext::WebSocket(context)) => {
            let api = api(&context.apiid, &context.stage);
            of_rest_api(&context.authorizer, &context.identity, &api)
        }
        Some(RequestContext::VpcLattice(context)) => {
            context.identity.as_ref().map_or(Verified::Nobody, of_lattice)
        }
        // A load balancer names a verified caller only in headers, and a client can send the same headers itself. The
        // load balancer signs only `x-amzn-oidc-data`, and this library doesn't verify that signature.
        None | Some(RequestContext::Alb(_)) => Verified::Nobody,
        // A front end that this library doesn't know may have verified someone.
        Some(_) => Verified::Unnamed,
    }
}

/// Whether the authorizer is the one that an HTTP API puts into an event of format 1.0 if no authorizer ran.
fn is_unset(authorizer: &ApiGatewayRequestAuthorizer) -> bool {
    let fields = &authorizer.fields;
    let is_null = |name| fields.get(name).is_some_and(Value::is_null);
    authorizer.jwt.is_none()
        && authorizer.iam.is_none()
        && fields.len() == 2
        && is_null("claims")
        && is_null("scopes")
}

/// Whether the event is a REST API's, and not an HTTP API's of format 1.0. `lambda_http` drops the event's `version`,
/// but only a REST API gives its resources ids. An HTTP API has the route in that place, such as `POST /payments`, or
/// null.
fn is_of_rest_api(context: &ApiGatewayProxyRequestContext) -> bool {
    let id = context.resource_id.as_deref().unwrap_or_default();
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// `<API id>/<stage>`: the API's name by default.
fn api(id: &Option<String>, stage: &Option<String>) -> String {
    format!("{}/{}", id.as_deref().unwrap_or_default(), stage.as_deref().unwrap_or_default())
}

fn of_http_api(context: &ApiGatewayV2httpRequestContext) -> Verified {
    let api = api(&context.apiid, &context.stage);
    match (&context.authorizer, &context.authentication) {
        (Some(authorizer), _) => verified(authorized(authorizer, &api)),
        (None, Some(ApiGatewayV2httpRequestContextAuthentication { client_cert: Some(cert), .. })) => {
            verified(certified(named_by(&cert.issuer_dn), named_by(&cert.subject_dn), &api))
        }
        (None, Some(_)) => Verified::Unnamed,
        (None, None) => Verified::Nobody,
    }
}

/// The caller of a REST API, or of a WebSocket API, whose events have the same types. If there are several identities,
/// the first of these counts: authorizer, IAM, certificate, API key. An API key is meant for usage plans only ("API
/// keys", API Gateway developer guide), so it's last.
fn of_rest_api(
    authorizer: &ApiGatewayRequestAuthorizer,
    identity: &ApiGatewayRequestIdentity,
    api: &str,
) -> Verified {
    if authorizer.jwt.is_some() || authorizer.iam.is_some() || !authorizer.fields.is_empty() {
        return verified(authorized(authorizer, api));
    }
    // Users of an identity pool share its role, so the identity is more specific.
    if let Some(id) = named_by(&identity.cognito_identity_id) {
        return Verified::Caller(Caller::CognitoIdentity(id.to_owned()));
    }
    match iam([&identity.caller, &identity.user_arn]) {
        Verified::Nobody => {}
        verified => return verified,
    }
    if let Some(cert) = identity.other.get("clientCert").filter(|cert| !cert.is_null()) {
        let name = |name| cert.get(name).and_then(text);
        return verified(certified(name("issuerDN"), name("subjectDN"), api));
    }
    match (named_by(&identity.api_key_id), named_by(&identity.api_key)) {
        (Some(id), _) => Verified::Caller(Caller::ApiKey { api: api.to_owned(), id: id.to_owned() }),
        (None, Some(_)) => Verified::Unnamed,
        (None, None) => Verified::Nobody,
    }
}

/// VPC Lattice verifies only IAM signatures. Without a signature, the event says only which VPC the request is from.
fn of_lattice(identity: &VpcLatticeRequestV2Identity) -> Verified {
    match (identity.identity_type.as_deref(), iam([&identity.principal])) {
        (Some("AWS_IAM"), caller @ Verified::Caller(_)) => caller,
        (None | Some("NONE"), Verified::Nobody) => Verified::Nobody,
        _ => Verified::Unnamed,
    }
}

/// The IAM principal with these ids. The users of a Cognito identity pool share a role, so the role names no person.
fn iam<const N: usize>(ids: [&Option<String>; N]) -> Verified {
    let ids = || ids.iter().filter_map(|id| named_by(id));
    match ids().next() {
        None => Verified::Nobody,
        Some(_) if ids().any(is_shared_by_pool) => Verified::Unnamed,
        Some(id) => Verified::Caller(Caller::Iam(id.to_owned())),
    }
}

fn verified(caller: Option<Caller>) -> Verified {
    caller.map_or(Verified::Unnamed, Verified::Caller)
}

fn certified(issuer: Option<&str>, subject: Option<&str>, api: &str) -> Option<Caller> {
    let issuer = issuer.unwrap_or_default().to_owned();
    Some(Caller::Certificate { api: api.to_owned(), issuer, subject: subject?.to_owned() })
}

fn authorized(authorizer: &ApiGatewayRequestAuthorizer, api: &str) -> Option<Caller> {
    let principal = |name: &str| Caller::Principal { api: api.to_owned(), name: name.to_owned() };
    let jwt = |issuer: Option<&str>, subject: &str| match issuer {
        Some(issuer) => Caller::Jwt { issuer: issuer.to_owned(), subject: subject.to_owned() },
        // A subject without an issuer is unique only inside this API.
        None => principal(subject),
    };
    if let Some(token) = &authorizer.jwt {
        let claim = |name: &str| token.claims.get(name).map(String::as_str).filter(|claim| !claim.is_empty());
        return Some(jwt(claim("iss"), claim("sub")?));
    }
    if let Some(iam) = &authorizer.iam {
        let cognito = iam.cognito_identity.as_ref().and_then(|cognito| named_by(&cognito.identity_id));
        return match (cognito, self::iam([&iam.caller_id, &iam.user_id, &iam.user_arn])) {
            (Some(id), _) => Some(Caller::CognitoIdentity(id.to_owned())),
            (None, Verified::Caller(caller)) => Some(caller),
            (None, _) => None,
        };
    }
    // A Lambda authorizer may return a string named `claims`, so only an object counts as a token's claims.
    if let Some(claims) = authorizer.fields.get("claims").filter(|claims| claims.is_object()) {
        return Some(jwt(claims.get("iss").and_then(text), claims.get("sub").and_then(text)?));
    }
    authorizer.fields.get("principalId").and_then(text).map(principal)
}

/// The API key that a REST API checked, whether or not it's the caller.
pub(super) fn checked_api_key(request: &Parts) -> Option<&str> {
    match request.extensions.request_context_ref()? {
        RequestContext::ApiGatewayV1(context) => named_by(&context.identity.api_key),
        _ => None,
    }
}

/// The certificate that the front end checked: its PEM, its serial number, its issuer and its subject.
pub(super) fn checked_certificate(request: &Parts) -> Vec<&str> {
    match request.extensions.request_context_ref() {
        Some(RequestContext::ApiGatewayV1(context)) => {
            let cert = context.identity.other.get("clientCert");
            let names = ["clientCertPem", "serialNumber", "issuerDN", "subjectDN"];
            names.iter().filter_map(|name| cert?.get(name).and_then(text)).collect()
        }
        Some(RequestContext::ApiGatewayV2(context)) => {
            let cert = context.authentication.as_ref().and_then(|context| context.client_cert.as_ref());
            cert.into_iter()
                .flat_map(|cert| {
                    [&cert.client_cert_pem, &cert.serial_number, &cert.issuer_dn, &cert.subject_dn]
                })
                .filter_map(named_by)
                .collect()
        }
        _ => Vec::new(),
    }
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn named_by(id: &Option<String>) -> Option<&str> {
    id.as_deref().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_event(event: &serde_json::Value) -> Verified {
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        verified_in(&request.into_parts().0)
    }

    fn principal(name: &str) -> Option<String> {
        scope_caller(Some(&Caller::Principal { api: "a/$default".into(), name: name.into() }), None)
    }

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
        match of_event(&event) {
            Verified::Caller(caller) => scope_caller(Some(&caller), None),
            Verified::Unnamed => Some("unnamed".into()),
            Verified::Nobody => None,
        }
    }

    #[test]
    fn jwt_callers_are_issuer_and_subject() {
        let token = |iat: &str| serde_json::json!({"jwt": {"claims": {"iss": "i", "sub": "s", "iat": iat}, "scopes": null}});
        assert_eq!(caller(token("1")), Some("3:jwt1:i1:s".into()));
        assert_eq!(caller(token("1")), caller(token("2")));
    }

    #[test]
    fn rest_api_authorizers_identify_callers() {
        for authorizer in [
            serde_json::json!({"jwt": {"claims": {"iss": "i", "sub": "s"}, "scopes": null}}),
            serde_json::json!({"iam": {"callerId": "AROA1:alice"}}),
        ] {
            let read = serde_json::from_value(authorizer.clone()).unwrap();
            let verified = of_rest_api(&read, &ApiGatewayRequestIdentity::default(), "a/prod");
            assert!(matches!(verified, Verified::Caller(_)), "{authorizer}");
        }
    }

    #[test]
    fn subjects_without_issuer_belong_to_one_api() {
        assert_eq!(
            caller(serde_json::json!({"jwt": {"claims": {"sub": "s"}, "scopes": null}})),
            principal("s")
        );
        assert_eq!(caller(serde_json::json!({"lambda": {"claims": {"sub": "s"}}})), principal("s"));
    }

    #[test]
    fn sessions_of_one_role_share_a_caller() {
        let session = |id: &str| serde_json::json!({"iam": {"callerId": id, "userId": id}});
        assert_eq!(caller(session("AROA1:alice")), caller(session("AROA1:bob")));
        assert_ne!(caller(session("AROA1:alice")), caller(session("AROA2:alice")));
    }

    #[test]
    fn lambda_authorizers_principal_is_the_caller() {
        let authorizer = serde_json::json!({"lambda": {"principalId": "p"}});
        assert_eq!(caller(authorizer), principal("p"));
        assert_eq!(principal("p"), Some("9:principal10:a/$default1:p".into()));
    }

    #[test]
    fn tenant_precedes_caller_in_scope() {
        let jwt = Caller::Jwt { issuer: "i".into(), subject: "s".into() };
        assert_eq!(scope_caller(Some(&jwt), Some("t")), Some("6:tenant1:t11:3:jwt1:i1:s".into()));
        assert_eq!(scope_caller(None, Some("t")), Some("6:tenant1:t0:".into()));
        assert_eq!(scope_caller(None, None), None);
        assert_eq!(format!("{jwt:?} {:?}", Caller::Iam("id".into())), "Jwt(…) Iam(…)");
    }

    #[test]
    fn users_sharing_a_role_are_distinct_callers() {
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
    fn rest_apis_prefer_cognito_identity_over_role() {
        let text = include_str!("../../../events/payments/rest-api.json");
        let by = |pool: Option<&str>, session: &str| {
            let mut event: serde_json::Value = serde_json::from_str(text).unwrap();
            event["requestContext"]["identity"]["cognitoIdentityId"] = pool.into();
            event["requestContext"]["identity"]["caller"] = format!("AROA1:{session}").into();
            let Verified::Caller(caller) = of_event(&event) else { panic!("no caller") };
            scope_caller(Some(&caller), None)
        };
        assert_eq!(by(None, "one"), by(None, "two"));
        assert_eq!(by(Some("alice"), "one"), by(Some("alice"), "two"));
        assert_ne!(by(Some("alice"), "one"), by(Some("bob"), "one"));
    }

    #[test]
    fn claims_as_text_do_not_hide_principal() {
        let context = serde_json::json!({"lambda": {"claims": "{\"sub\":\"s\"}", "principalId": "p"}});
        assert_eq!(caller(context), principal("p"));
    }

    /// Returns an event whose request context names a caller only in the field at the path `name`. The event comes from
    /// a front end that sends this field.
    fn with_name(name: &str) -> serde_json::Value {
        let names: Vec<&str> = name.split('/').skip(1).collect();
        let is_authorizer_context = name == "/authorizer/lambda";
        let value =
            if is_authorizer_context { serde_json::json!({ "principalId": "x" }) } else { "x".into() };
        let mut event: serde_json::Value = match names[..] {
            ["identity", "principal"] => {
                let text = include_str!("../../../tests/wrappers/http/vpc-lattice.json");
                let mut event: serde_json::Value = serde_json::from_str(text).unwrap();
                event["requestContext"]["identity"] = serde_json::json!({ "type": "AWS_IAM" });
                event
            }
            ["authorizer", "jwt" | "iam" | "lambda", ..] | ["authentication", ..] => {
                let text = include_str!("../../../events/payments/http-api.json");
                let mut event: serde_json::Value = serde_json::from_str(text).unwrap();
                event["requestContext"]["authorizer"] = serde_json::Value::Null;
                event
            }
            _ => {
                let text = include_str!("../../../events/payments/rest-api.json");
                let mut event: serde_json::Value = serde_json::from_str(text).unwrap();
                event["requestContext"]["identity"] = serde_json::json!({ "sourceIp": "::1" });
                event["requestContext"]["authorizer"] = serde_json::json!({});
                event
            }
        };
        let mut place = &mut event["requestContext"];
        for name in names {
            if !place.is_object() {
                *place = serde_json::json!({});
            }
            place = &mut place[name];
        }
        *place = value;
        event
    }

    /// The HTTP layer and the event layer share one list of the fields that name a caller. If the HTTP layer ignored
    /// one of them, it would treat the caller as anonymous.
    #[test]
    fn every_verified_field_identifies_a_caller() {
        for name in crate::lambda::identity::VERIFIED_NAMES {
            let mut event = with_name(name);
            if name.contains("clientCert") {
                let cert = name.rsplit_once('/').unwrap().0;
                *event["requestContext"].pointer_mut(cert).unwrap() = serde_json::json!({
                    "issuerDN": "CN=ca", "subjectDN": "CN=x", "clientCertPem": "", "serialNumber": "1",
                    "validity": { "notBefore": "", "notAfter": "" },
                });
            }
            if name.contains("jwt") {
                event["requestContext"]["authorizer"]["jwt"]["scopes"] = serde_json::Value::Null;
            }
            if name.contains("cognitoIdentity/") {
                event["requestContext"]["authorizer"]["iam"]["cognitoIdentity"]["amr"] =
                    serde_json::json!([]);
            }
            let verified = of_event(&event);
            // An issuer without a subject names no caller.
            let expected_unnamed = name.ends_with("/iss");
            match verified {
                Verified::Caller(caller) => {
                    assert!(!expected_unnamed, "{name}");
                    let has_api = matches!(
                        caller,
                        Caller::Principal { .. } | Caller::Certificate { .. } | Caller::ApiKey { .. }
                    );
                    let is_global = crate::lambda::identity::is_global(|field| field == name);
                    assert_ne!(is_global, has_api, "{name}");
                }
                Verified::Unnamed => assert!(expected_unnamed, "{name}"),
                Verified::Nobody => panic!("{name} doesn't identify a caller"),
            }
        }
    }

    #[test]
    fn incomplete_lattice_identities_name_no_caller() {
        for (kind, principal, expected) in [
            (None, None, Verified::Nobody),
            (Some("NONE"), None, Verified::Nobody),
            (Some("NONE"), Some("p"), Verified::Unnamed),
            (Some("AWS_IAM"), None, Verified::Unnamed),
            (None, Some("p"), Verified::Unnamed),
        ] {
            let identity = serde_json::json!({ "type": kind, "principal": principal });
            assert_eq!(of_lattice(&serde_json::from_value(identity).unwrap()), expected, "{kind:?}");
        }
    }

    #[test]
    fn requests_without_authorizer_have_no_caller() {
        assert_eq!(caller(serde_json::Value::Null), None);
    }

    #[test]
    fn authorizers_without_identity_leave_callers_unnamed() {
        for silent in [
            serde_json::json!({"jwt": {"claims": {"iss": "i"}, "scopes": null}}),
            serde_json::json!({"iam": {"accountId": "1"}}),
            serde_json::json!({"lambda": {"plan": "gold"}}),
            serde_json::json!({"lambda": {"principalId": ""}}),
        ] {
            assert_eq!(caller(silent.clone()), Some("unnamed".into()), "{silent}");
        }
    }
}
