//! The caller is named by a field that a trusted front end writes: a header, or a field of the event.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use lambda_idempotency::KeyFields;
use serde_json::{Map, Value};

use super::{Unnamed, caller_of, only};

/// The place of the caller's name.
#[derive(Debug)]
pub(crate) enum Field {
    /// In a header that the front end writes.
    Header(HeaderName),
    /// In fields of the request's context, or what a JMESPath expression finds in the context and the headers.
    Event { fields: KeyFields, shown: String },
}

/// The parts of `requestContext` that only the front end writes. The others repeat the request, which the client
/// wrote, or differ for each request.
const CONTEXT: [&str; 6] = ["authorizer", "identity", "authentication", "accountId", "apiId", "stage"];
/// The parts of `requestContext` that can name a caller.
const NAMING: [&str; 3] = ["authorizer", "identity", "authentication"];
/// Fields of `requestContext.identity` that the client chooses, or that are secret.
const NOT_NAMING: [&str; 3] = ["userAgent", "sourceIp", "apiKey"];
/// Names in an event that a JMESPath expression can't read, since the client writes these fields.
const OF_THE_CLIENT: [&str; 12] = [
    "body",
    "cookies",
    "cookie",
    "authorization",
    "multivalueheaders",
    "multivaluequerystringparameters",
    "querystringparameters",
    "query_string_parameters",
    "rawquerystring",
    "rawpath",
    "pathparameters",
    "path",
];
/// Claims that differ in each token, or that many callers share.
const EPHEMERAL: [&str; 18] = [
    "acr",
    "amr",
    "at_hash",
    "aud",
    "auth_time",
    "azp",
    "c_hash",
    "event_id",
    "exp",
    "iat",
    "iss",
    "jti",
    "nbf",
    "nonce",
    "origin_jti",
    "s_hash",
    "sid",
    "token_use",
];

/// Whether the claim of this name differs in each token, or is shared by many callers, and so can't name one caller.
pub(crate) fn ephemeral_claim(name: &str) -> bool {
    EPHEMERAL.contains(&name)
}

/// The advice for a setting that would take the caller from an unverified token.
const UNVERIFIED: &str = "the tokens there aren't verified, so a client could name another caller, and a refreshed \
                          token would name another caller. Use jwt, and the layer verifies the token; or credential, \
                          for API keys and Basic authentication";

impl Field {
    /// The header of this name.
    ///
    /// # Errors
    ///
    /// A sentence that says why the header can't name a caller.
    pub(crate) fn header(text: &str) -> Result<Self, String> {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
            format!("`{text}` isn't a header's name; use header:NAME, such as header:x-user-id")
        })?;
        match has_credential(name.as_str()) {
            true => Err(format!("`{name}` carries a credential: {UNVERIFIED}")),
            false => Ok(Self::Header(name)),
        }
    }

    /// The fields with these JSON Pointers.
    ///
    /// # Errors
    ///
    /// A sentence that says why a field can't name a caller.
    pub(crate) fn pointers(pointers: &[String]) -> Result<Self, String> {
        if let [one] = pointers
            && let Some(name) = one.strip_prefix("/headers/")
        {
            return Self::header(name);
        }
        for pointer in pointers {
            let mut parts = pointer.split('/').skip(1);
            let (root, part) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if root != "requestContext" || !NAMING.contains(&part) {
                return Err(format!(
                    "the client writes `{pointer}`, and could name another caller: {}",
                    "use a field that the front end writes, below /requestContext/authorizer, \
                     /requestContext/identity or /requestContext/authentication, or header:NAME"
                ));
            }
            let last = pointer.rsplit('/').next().unwrap_or_default();
            if NOT_NAMING.contains(&last) || ephemeral_claim(last) {
                return Err(format!(
                    "`{pointer}` names no caller: it differs between attempts, or several callers share it"
                ));
            }
        }
        Self::event(pointers.iter().map(String::as_str), pointers.join(","))
    }

    /// The result of this JMESPath expression.
    ///
    /// # Errors
    ///
    /// A sentence that says what's wrong with the expression.
    pub(crate) fn jmespath(expression: &str) -> Result<Self, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let words: Vec<_> = expression.split(|c| !is_name(c)).filter(|word| !word.is_empty()).collect();
        for word in &words {
            let lower = word.to_ascii_lowercase();
            let is_header = lower.contains('-') || OF_THE_CLIENT.contains(&lower.as_str());
            if has_credential(&lower) && is_header {
                return Err(format!("the expression reads `{word}`: {UNVERIFIED}"));
            }
            if OF_THE_CLIENT.contains(&lower.as_str()) {
                return Err(format!(
                    "the expression reads `{word}`, which the client writes, so a client could name another caller; \
                     read requestContext or headers"
                ));
            }
        }
        if !words.iter().any(|word| matches!(*word, "requestContext" | "headers")) {
            return Err(
                "the expression must read requestContext or headers, which the front end writes".into()
            );
        }
        Self::event([expression].into_iter(), format!("jmespath:{expression}"))
    }

    fn event<'a>(fields: impl Iterator<Item = &'a str>, shown: String) -> Result<Self, String> {
        let fields = KeyFields::new(fields).map_err(|error| error.to_string())?.all_required();
        Ok(Self::Event { fields, shown })
    }

    /// The caller of a request.
    ///
    /// # Errors
    ///
    /// If the field has no value, or has a token in place of a name.
    pub(super) fn caller(&self, headers: &HeaderMap, event: &Bytes) -> Result<String, Unnamed> {
        let (shown, name) = match self {
            Self::Header(name) => (name.as_str(), only(headers, name)?.to_owned()),
            Self::Event { fields, shown } => {
                let refused = |problem: &str| {
                    Unnamed::Refused(format!(
                        "{problem} `{shown}`, where IDEMPOTENCY_CALLERS has the caller's name"
                    ))
                };
                let view = view(headers, event).ok_or_else(|| refused("the event can't be searched for"))?;
                let found = fields.key_of(&view).map_err(|_| refused("the event can't be searched for"))?;
                let found = found.ok_or_else(|| refused("the event has no value in"))?;
                (shown.as_str(), found.as_str().to_owned())
            }
        };
        match is_token(&name) {
            // Each refresh would make another caller, so a retry would run the operation again.
            true => Err(Unnamed::Refused(format!(
                "`{shown}` has a token in place of the caller's name. Let the front end write the name there, or set \
                 IDEMPOTENCY_CALLERS=jwt"
            ))),
            false => Ok(self.text_of(&name)),
        }
    }

    /// The text that names the caller `name`.
    pub(super) fn text_of(&self, name: &str) -> String {
        let shown = match self {
            Self::Header(header) => header.as_str(),
            Self::Event { shown, .. } => shown,
        };
        caller_of("field", &[shown, name])
    }
}

/// Whether the header of this name carries a credential, rather than a name that a front end wrote.
fn has_credential(name: &str) -> bool {
    const PARTS: [&str; 12] = [
        "authorization",
        "cookie",
        "token",
        "assertion",
        "session",
        "secret",
        "password",
        "signature",
        "oidc-data",
        "api-key",
        "apikey",
        "api_key",
    ];
    PARTS.iter().any(|part| name.contains(part)) || name.split('-').next_back() == Some("jwt")
}

/// Whether the text is a token: a JWT, or a credential with its scheme.
fn is_token(text: &str) -> bool {
    let begins =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let is_jwt = text.starts_with("eyJ") && text.split('.').count() >= 3;
    is_jwt || ["bearer ", "basic ", "aws4-"].into_iter().any(begins)
}

/// The part of the event in which a front end can name a caller, as JSON. Headers that carry credentials aren't in it.
fn view(headers: &HeaderMap, event: &[u8]) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Event {
        #[serde(rename = "requestContext", default)]
        context: Map<String, Value>,
    }
    let Event { mut context } = serde_json::from_slice(event).ok()?;
    context.retain(|name, _| CONTEXT.contains(&name.as_str()));
    if let Some(identity) = context.get_mut("identity").and_then(Value::as_object_mut) {
        identity.retain(|name, _| !NOT_NAMING.contains(&name.as_str()));
    }
    let names = headers.keys().filter(|name| !has_credential(name.as_str()));
    let headers: BTreeMap<_, _> =
        names.filter_map(|name| Some((name.as_str(), only(headers, name).ok()?))).collect();
    serde_json::to_vec(&serde_json::json!({ "requestContext": context, "headers": headers })).ok()
}
