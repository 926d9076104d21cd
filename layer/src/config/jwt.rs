//! The settings of the JWTs that name callers.

use crate::callers::{Jwt, Keys, Location, TokenIn};

/// The settings that have been read.
#[derive(Debug, Default)]
pub(super) struct JwtDraft {
    pub(super) keys: Option<KeysIn>,
    pub(super) issuer: Option<String>,
    pub(super) audiences: Vec<String>,
    pub(super) claim: Option<String>,
    pub(super) token_in: Option<TokenIn>,
}

/// The place of the issuer's keys.
#[derive(Debug)]
pub(super) enum KeysIn {
    /// Behind a URL.
    Url(Location),
    /// In a file of the function's package.
    File(String),
}

impl JwtDraft {
    /// The name of a setting that has a value.
    pub(super) fn first_set(&self) -> Option<&'static str> {
        let all = [
            ("JWT_KEYS", self.keys.is_some()),
            ("JWT_ISSUER", self.issuer.is_some()),
            ("JWT_AUDIENCE", !self.audiences.is_empty()),
            ("JWT_CLAIM", self.claim.is_some()),
            ("JWT_IN", self.token_in.is_some()),
        ];
        all.iter().find(|(_, is_set)| *is_set).map(|(name, _)| *name)
    }

    /// How tokens are verified. `read` reads a file of the function's package.
    ///
    /// # Errors
    ///
    /// The name of the setting that's missing or wrong, and what's wrong.
    pub(super) fn finish(
        self,
        read: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<Jwt, (&'static str, String)> {
        let missing = |what: &str| format!("isn't set, and IDEMPOTENCY_CALLERS is jwt; set it to {what}");
        let keys = match self.keys {
            None => {
                return Err((
                    "JWT_KEYS",
                    missing("the URL of the issuer's JWKS, or to a file in the package"),
                ));
            }
            Some(KeysIn::Url(location)) => Keys::at(location),
            Some(KeysIn::File(path)) => {
                let keys = read(&path).and_then(|text| Keys::in_file(&text));
                keys.map_err(|problem| ("JWT_KEYS", format!("{path}: {problem}")))?
            }
        };
        let issuer = self.issuer.ok_or_else(|| ("JWT_ISSUER", missing("the claim `iss` of the tokens")))?;
        if self.audiences.is_empty() {
            return Err((
                "JWT_AUDIENCE",
                missing("the claim `aud` of the tokens that are meant for this API"),
            ));
        }
        let claim = self.claim.unwrap_or_else(|| "sub".to_owned());
        Ok(Jwt {
            keys,
            issuer,
            audiences: self.audiences,
            claim,
            token_in: self.token_in.unwrap_or_default(),
        })
    }
}
