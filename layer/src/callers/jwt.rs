//! The caller is named by a claim of a JWT that this layer verifies.

use std::time::Duration;

use http::{HeaderMap, HeaderName, header};
use jsonwebtoken::{Validation, decode, decode_header, errors::ErrorKind};
use serde_json::{Map, Value};

use super::{Keys, Unnamed, caller_of, only};

/// How far the clock of the token's issuer may differ from this one's, in seconds.
const LEEWAY: u64 = 30;
/// The largest number of keys to try. Most issuers publish two, and name one of them in each token.
const MOST_KEYS: usize = 8;

/// The place of a request's token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenIn {
    /// In `Authorization`, after `Bearer`.
    #[default]
    Authorization,
    /// The value of this header, with or without `Bearer`.
    Header(HeaderName),
    /// The value of the cookie of this name.
    Cookie(String),
}

/// How tokens are verified, and which claim names the caller.
#[derive(Debug)]
pub(crate) struct Jwt {
    pub(crate) keys: Keys,
    pub(crate) issuer: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) claim: String,
    pub(crate) token_in: TokenIn,
}

type Claims = Map<String, Value>;

fn refused(why: &str) -> Unnamed {
    Unnamed::Refused(why.to_owned())
}

impl Jwt {
    /// The caller of a request. It stays the same when its token is refreshed.
    ///
    /// # Errors
    ///
    /// If the request has no valid token, or if the issuer's keys aren't known.
    pub(super) async fn caller(
        &self,
        headers: &HeaderMap,
        left: Option<Duration>,
    ) -> Result<String, Unnamed> {
        let claims = self.verified(self.token_in.find(headers)?, left).await?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(&self.issuer) {
            return Err(refused("the request's token is from another issuer than IDEMPOTENCY_JWT_ISSUER"));
        }
        if !self.is_audience(&claims) {
            return Err(refused("the request's token is for another audience than IDEMPOTENCY_JWT_AUDIENCE"));
        }
        let name = match claims.get(&self.claim) {
            Some(Value::String(text)) if !text.trim().is_empty() => text.clone(),
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
            _ => {
                let why = format!("the request's token has no text in the claim `{}`", self.claim);
                return Err(Unnamed::Refused(format!("{why}, which IDEMPOTENCY_JWT_CLAIM names")));
            }
        };
        Ok(self.text_of(&name))
    }

    /// The text that names the caller `name`.
    pub(super) fn text_of(&self, name: &str) -> String {
        caller_of("jwt", &[&self.issuer, &self.claim, name])
    }

    /// Whether the token is for this API. A token without `aud` can name the API's client in `client_id`, as an access
    /// token of Cognito does, and API Gateway's JWT authorizers accept ("Control access to HTTP APIs with JWT
    /// authorizers", API Gateway developer guide).
    fn is_audience(&self, claims: &Claims) -> bool {
        let is_one =
            |value: &Value| value.as_str().is_some_and(|text| self.audiences.iter().any(|one| one == text));
        match claims.get("aud") {
            Some(Value::Array(several)) => several.iter().any(is_one),
            Some(one) => is_one(one),
            None => claims.get("client_id").is_some_and(is_one),
        }
    }

    /// The claims of the token, if its signature and its times are valid.
    async fn verified(&self, token: &str, left: Option<Duration>) -> Result<Claims, Unnamed> {
        // `none` isn't an algorithm of this library, so such a token has no readable header.
        let header = decode_header(token).map_err(|_| refused("the request's token isn't a signed JWT"))?;
        if header.crit.is_some() {
            return Err(refused("the request's token needs an extension of JWT that the layer doesn't know"));
        }
        let keys = self.keys.with(header.kid.as_deref(), left).await?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        // `caller` checks the audience.
        validation.validate_aud = false;
        // The key decides which algorithms are valid for it. Keys for HMAC aren't among the issuer's.
        let fits = keys.of(header.kid.as_deref()).filter(|key| key.algorithms.contains(&header.alg));
        let mut why = "the request's token has an algorithm that its issuer's key isn't for";
        for key in fits.take(MOST_KEYS) {
            why = match decode::<Claims>(token, &key.key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) => match error.kind() {
                    ErrorKind::ExpiredSignature => return Err(refused("the request's token has expired")),
                    ErrorKind::ImmatureSignature => {
                        return Err(refused("the request's token isn't valid yet"));
                    }
                    ErrorKind::MissingRequiredClaim(_) => {
                        return Err(refused("the request's token never expires: it has no claim `exp`"));
                    }
                    _ => "the signature of the request's token isn't valid",
                },
            };
        }
        Err(refused(why))
    }
}

impl TokenIn {
    /// The request's token.
    ///
    /// # Errors
    ///
    /// If the request has no token, or more than one.
    fn find<'h>(&self, headers: &'h HeaderMap) -> Result<&'h str, Unnamed> {
        match self {
            Self::Authorization => bearer(only(headers, &header::AUTHORIZATION)?)
                .ok_or_else(|| refused("the request's header `authorization` has no bearer token")),
            Self::Header(name) => only(headers, name).map(|value| bearer(value).unwrap_or(value)),
            Self::Cookie(wanted) => {
                let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
                let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
                let mut found = pairs.filter(|(name, _)| name.trim() == wanted);
                match (found.next(), found.next()) {
                    (Some((_, value)), None) => Ok(value.trim().trim_matches('"')),
                    (None, _) => Err(Unnamed::Refused(format!("the request has no cookie `{wanted}`"))),
                    _ => Err(Unnamed::Refused(format!("the request has more than one cookie `{wanted}`"))),
                }
            }
        }
    }
}

/// The token after `Bearer`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
