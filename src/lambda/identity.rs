//! The fields and headers by which the HTTP layer and the event layer identify a request's caller.

/// JSON Pointers to the fields of a request's context in which a front end names the caller that it verified. Their
/// values stay the same when a token is refreshed, or when a role starts another session. The event layer compares all
/// these fields. The HTTP layer reads them through its own types, and its tests check that it reads every field in this
/// list.
pub(super) const VERIFIED_NAMES: [&str; 17] = [
    "/authorizer/jwt/claims/iss",
    "/authorizer/jwt/claims/sub",
    "/authorizer/claims/iss",
    "/authorizer/claims/sub",
    "/authorizer/principalId",
    "/authorizer/lambda",
    "/authorizer/iam/cognitoIdentity/identityId",
    "/authorizer/iam/callerId",
    "/authorizer/iam/userArn",
    "/identity/cognitoIdentityId",
    "/identity/caller",
    "/identity/userArn",
    "/identity/clientCert/issuerDN",
    "/identity/clientCert/subjectDN",
    "/authentication/clientCert/issuerDN",
    "/authentication/clientCert/subjectDN",
    "/identity/principal",
];

/// Each entry lists fields that together name the same caller in every API and stage. A name from any other field may
/// mean someone else in another API: a Lambda authorizer's principal, a subject without an issuer, or a certificate
/// under that API's own trust store.
const GLOBAL_NAMES: [&[&str]; 9] = [
    &["/authorizer/jwt/claims/iss", "/authorizer/jwt/claims/sub"],
    &["/authorizer/claims/iss", "/authorizer/claims/sub"],
    &["/authorizer/iam/cognitoIdentity/identityId"],
    &["/authorizer/iam/callerId"],
    &["/authorizer/iam/userArn"],
    &["/identity/cognitoIdentityId"],
    &["/identity/caller"],
    &["/identity/userArn"],
    &["/identity/principal"],
];

/// Whether a caller is the same in every API and stage. `has` says whether a field of [`VERIFIED_NAMES`] names the
/// caller.
pub(super) fn is_global(has: impl Fn(&str) -> bool) -> bool {
    GLOBAL_NAMES.iter().any(|names| names.iter().all(|name| has(name)))
}

/// Headers that carry a credential, in lower case.
const CREDENTIALS: [&str; 7] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-auth-token",
    "client-cert",
    "x-forwarded-client-cert",
    "x-amz-security-token",
];

/// Load balancers write headers with these prefixes: the session of an OpenID Connect login (`x-amzn-oidc-*`), and the
/// client's certificate (`x-amzn-mtls-clientcert*`). This library can't tell whether the load balancer or the client
/// wrote such a header. So the library takes no caller from these headers, but treats them as credentials.
const PREFIXES: [&str; 2] = ["x-amzn-oidc-", "x-amzn-mtls-clientcert"];

/// A load balancer's stickiness cookies: they choose a target, and don't authenticate the client ("Sticky
/// sessions", Elastic Load Balancing user guides).
const LOAD_BALANCER_COOKIES: [&str; 6] =
    ["AWSALB", "AWSALBCORS", "AWSALBTG", "AWSALBTGCORS", "AWSELB", "AWSELBCORS"];

/// Whether the header of this name, in lower case, carries a credential. False for `cookie`: see [`cookies`].
pub(super) fn is_credential(header: &str) -> bool {
    CREDENTIALS.contains(&header) || PREFIXES.iter().any(|prefix| header.starts_with(prefix))
}

/// The pairs of a `Cookie` header, without a load balancer's cookies.
pub(super) fn cookies(header: &str) -> impl Iterator<Item = &str> {
    let pairs = header.split(';').map(str::trim).filter(|pair| !pair.is_empty());
    pairs.filter(|pair| !LOAD_BALANCER_COOKIES.contains(&cookie_name(pair)))
}

/// The cookie's name in a pair `name=value`.
pub(super) fn cookie_name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name.trim())
}

/// Returns a role's id without the session's name, which differs in each session. `AROA…:session` becomes the role's
/// unique id, and `arn:aws:sts::account:assumed-role/role/session` loses the session ("IAM identifiers", IAM user
/// guide). Other ids stay whole, since the part after a colon may identify the caller: `account:name` is a federated
/// user.
pub(super) fn without_session(id: &str) -> &str {
    let role = if id.starts_with("AROA") {
        id.split_once(':').map(|(role, _)| role)
    } else if id.contains(":assumed-role/") {
        id.rsplit_once('/').map(|(role, _)| role)
    } else {
        None
    };
    role.unwrap_or(id)
}
