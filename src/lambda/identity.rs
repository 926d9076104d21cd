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

/// The fields of [`VERIFIED_NAMES`] that name a role or a certificate. Several people may stand behind it.
const MACHINES: [&str; 9] = [
    "/authorizer/iam/callerId",
    "/authorizer/iam/userArn",
    "/identity/caller",
    "/identity/userArn",
    "/identity/clientCert/issuerDN",
    "/identity/clientCert/subjectDN",
    "/authentication/clientCert/issuerDN",
    "/authentication/clientCert/subjectDN",
    "/identity/principal",
];

/// Whether a field of [`VERIFIED_NAMES`] names a role or a certificate, and not a person.
pub(super) fn is_machine(name: &str) -> bool {
    MACHINES.contains(&name)
}

/// Names of headers that carry a credential or name a user, in lower case. An entry that ends with `*` stands for every
/// name with that beginning. The list is sorted, for a binary search.
///
/// Only the product that's named beside an entry writes its headers, or the clients of that product do. This library
/// can't tell whether a header comes from the product or from the client. So it takes no caller from these headers, but
/// treats them as credentials. Signatures of webhooks aren't in the list: they prove who wrote the message, and a
/// sender of webhooks gets no user's response.
pub(super) const CREDENTIALS: [&str; 77] = [
    "access-token",
    "access_token",
    "api-key", // Azure OpenAI and AI Search, New Relic
    "api-token",
    "api_key",
    "apikey", // Supabase, Kong, Apigee, WSO2
    "auth-token",
    "auth_token",
    "authorization",
    "cf-access-*",  // Cloudflare Access: a JWT, the user's e-mail address, a service's token
    "client-cert*", // RFC 9440
    "id-token",
    "impersonate-*", // Kubernetes
    "job-token",     // GitLab
    "jwt",
    "ocp-apim-subscription-key", // Azure API Management
    "private-token",             // GitLab
    "remote-email",              // Authelia
    "remote-groups",             // Authelia
    "remote-name",               // Authelia
    "remote-user",               // Authelia, Apache
    "session-token",
    "ssl-client-*",     // Ingress NGINX
    "tailscale-user-*", // Tailscale Serve
    "token",
    "user-token",
    "x-amz-security-token",
    "x-amzn-mtls-clientcert*", // an Application Load Balancer, for a client's certificate
    "x-amzn-oidc-*",           // an Application Load Balancer, after a login by OpenID Connect
    "x-apigateway-api-userinfo", // Google API Gateway
    "x-appwrite-jwt",          // Appwrite
    "x-appwrite-key",          // Appwrite
    "x-appwrite-session",      // Appwrite
    "x-arr-clientcert",        // Azure App Service
    "x-auth",
    "x-auth-*", // OAuth2 Proxy (`x-auth-request-user`), OpenStack (`x-auth-token`), Cloudflare (`x-auth-key`)
    "x-authenticated-*", // Kong
    "x-authentik-*", // authentik
    "x-client-cert*", // Google Cloud Load Balancing, HAProxy
    "x-consul-token", // HashiCorp Consul
    "x-consumer-*", // Kong
    "x-credential-*", // Kong
    "x-email",  // OAuth2 Proxy, by its documentation for NGINX
    "x-endpoint-api-userinfo", // Google Cloud Endpoints
    "x-forwarded-client-cert*", // Envoy, Istio, App Mesh
    "x-forwarded-email", // OAuth2 Proxy
    "x-forwarded-groups", // OAuth2 Proxy
    "x-forwarded-preferred-username", // OAuth2 Proxy
    "x-forwarded-tls-client-cert*", // Traefik
    "x-forwarded-user", // OAuth2 Proxy, Traefik
    "x-functions-key", // Azure Functions
    "x-goog-authenticated-user-*", // Google Identity-Aware Proxy
    "x-hasura-*", // Hasura
    "x-jwt*",   // WSO2, Istio
    "x-ms-client-principal*", // Azure App Service
    "x-ms-token-*", // Azure App Service
    "x-nomad-token", // HashiCorp Nomad
    "x-pomerium-*", // Pomerium
    "x-rapidapi-*", // RapidAPI
    "x-remote-email",
    "x-remote-extra-*", // Kubernetes
    "x-remote-group*",  // Kubernetes
    "x-remote-name",
    "x-remote-user*", // Kubernetes, Apache
    "x-ssl-client-*", // NGINX, HAProxy
    "x-token",
    "x-user", // OAuth2 Proxy, by its documentation for NGINX
    "x-user-claims",
    "x-user-email",
    "x-user-id",
    "x-user-name",
    "x-userinfo", // Kong, APISIX
    "x-username",
    "x-vault-token", // HashiCorp Vault
    "x-vouch-*",     // Vouch Proxy
    "x-webauth-*",   // Grafana
    "x-zumo-auth",   // Azure App Service
];

/// Ends of names of headers that carry a credential, such as `x-forwarded-authorization` and `x-goog-api-key`.
pub(super) const SUFFIXES: [&str; 13] = [
    "-access-token",
    "-api-key",
    "-api-token",
    "-apikey",
    "-auth-token",
    "-authorization",
    "-bearer-token",
    "-id-token",
    "-jwt-assertion",
    "-oauth-token",
    "-refresh-token",
    "-session-token",
    "-user-token",
];

/// The header with the session token of an IAM caller's temporary credentials.
pub(super) const SESSION_TOKEN: &str = "x-amz-security-token";

/// A load balancer's stickiness cookies: they choose a target, and don't authenticate the client ("Sticky
/// sessions", Elastic Load Balancing user guides).
const LOAD_BALANCER_COOKIES: [&str; 6] =
    ["AWSALB", "AWSALBCORS", "AWSALBTG", "AWSALBTGCORS", "AWSELB", "AWSELBCORS"];

/// Whether the header of this name, in lower case, carries a credential. False for `cookie`: see [`cookies`].
pub(super) fn is_credential(header: &str) -> bool {
    let beginning = |entry: &&'static str| entry.strip_suffix('*').unwrap_or(entry);
    let after = CREDENTIALS.partition_point(|entry| beginning(entry) <= header);
    let entry = after.checked_sub(1).and_then(|at| CREDENTIALS.get(at));
    let is_listed = entry.is_some_and(|entry| match entry.strip_suffix('*') {
        Some(beginning) => header.starts_with(beginning),
        None => header == *entry,
    });
    // All the suffixes end with one of these letters. Most headers don't, and need no further comparison.
    let may_end = header.ends_with(['n', 'y']);
    is_listed || may_end && SUFFIXES.iter().any(|suffix| header.ends_with(suffix))
}

/// Whether an `Authorization` header is an AWS signature, of version 4 or 4A, and nothing else. A front end may join
/// two headers with a comma.
pub(super) fn is_signature(authorization: &str) -> bool {
    let mut parts = authorization.split(',').map(str::trim);
    let is_first = parts.next().is_some_and(|part| part.starts_with("AWS4-"));
    let names = ["Credential=", "SignedHeaders=", "Signature="];
    is_first && parts.all(|part| names.iter().any(|name| part.starts_with(name)))
}

/// Whether this IAM principal is a role that all users of a Cognito identity pool share. Cognito gives each of their
/// sessions the same name.
pub(super) fn is_shared_by_pool(id: &str) -> bool {
    id.strip_suffix("CognitoIdentityCredentials").is_some_and(|role| role.ends_with([':', '/']))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_headers_are_sorted_and_disjoint() {
        let beginnings = CREDENTIALS.map(|entry| entry.trim_end_matches('*'));
        assert!(beginnings.is_sorted_by(|a, b| a < b));
        for (entry, next) in CREDENTIALS.iter().zip(&beginnings[1..]) {
            assert!(entry.strip_suffix('*').is_none_or(|beginning| !next.starts_with(beginning)), "{next}");
        }
    }

    #[test]
    fn every_credential_header_is_found() {
        for entry in CREDENTIALS {
            assert!(is_credential(entry), "{entry}");
            assert!(is_credential(&entry.replace('*', "any")), "{entry}");
        }
        for suffix in SUFFIXES {
            assert!(is_credential(&format!("x-shop{suffix}")), "{suffix}");
        }
        for header in [
            "proxy-authorization",
            "x-api-key",
            "x-access-token",
            "x-amz-access-token",
            "x-auth-token",
            "x-forwarded-access-token",
            "x-forwarded-authorization",
            "x-goog-api-key",
            "x-goog-iap-jwt-assertion",
            "x-ms-token-aad-id-token",
            "x-original-authorization",
            "x-serverless-authorization",
            "x-shopify-access-token",
        ] {
            assert!(is_credential(header), "{header}");
        }
    }

    #[test]
    fn other_headers_carry_no_credential() {
        for header in [
            "accept",
            "access-control-request-headers",
            "content-type",
            "cookie",
            "csrf-token",
            "host",
            "idempotency-key",
            "proxy-authenticate",
            "sec-websocket-key",
            "stripe-signature",
            "traceparent",
            "user-agent",
            "www-authenticate",
            "x-amz-content-sha256",
            "x-amz-date",
            "x-amzn-trace-id",
            "x-authorization-mode",
            "x-csrf-token",
            "x-forwarded-for",
            "x-forwarded-port",
            "x-forwarded-proto",
            "x-request-id",
            "x-user-agent",
        ] {
            assert!(!is_credential(header), "{header}");
        }
    }

    #[test]
    fn only_whole_signatures_are_signatures() {
        let signed =
            "Credential=A/20261120/eu-central-1/execute-api/aws4_request, SignedHeaders=host, Signature=5a";
        for scheme in ["AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"] {
            assert!(is_signature(&format!("{scheme} {signed}")));
            assert!(!is_signature(&format!("{scheme} {signed},Bearer a=")));
        }
        assert!(!is_signature("Bearer AWS4-") && !is_signature(""));
    }
}
