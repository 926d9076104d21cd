//! Detects credentials in a request, so that a request whose caller the layer can't name isn't treated as
//! anonymous, and one caller doesn't get the response of another behind the same proxy.

use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};

use super::{
    caller::{Caller, checked_api_key, checked_certificate},
    query::percent_decoded,
};
use crate::lambda::identity::{SESSION_TOKEN, cookie_name, cookies, is_credential, is_signature};

/// The header in which a client sends its API key to a REST API.
const API_KEY: &str = "x-api-key";

/// The headers and cookies that count as credentials, in addition to the list of all APIs, or in spite of it.
#[derive(Clone, Debug, Default)]
pub(super) struct CredentialRules {
    pub(super) ignored_cookies: Vec<String>,
    pub(super) headers: Vec<HeaderName>,
}

impl CredentialRules {
    pub(super) fn ignore_cookies(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.ignored_cookies.extend(names.into_iter().map(Into::into));
    }

    pub(super) fn add_headers(&mut self, names: impl IntoIterator<Item = HeaderName>) {
        self.headers.extend(names);
    }

    /// The name of a header with a credential whose owner may be someone else than `caller`.
    pub(super) fn second<'a>(&self, caller: Option<&Caller>, parts: &'a Parts) -> Option<&'a HeaderName> {
        let mut carried = self.carried_in(&parts.headers);
        let second =
            carried.find(|(name, value)| !caller.is_some_and(|caller| is_own(caller, name, value, parts)));
        second.map(|(name, _)| name)
    }

    /// The headers that carry credentials.
    fn carried_in<'a>(
        &self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        headers.iter().filter(|(name, value)| match *name {
            name if *name == header::COOKIE => self.has_cookie(value.as_bytes()),
            name => is_credential(name.as_str()) || self.headers.contains(name),
        })
    }

    /// The credentials in these headers, by the headers' names. Each cookie that isn't ignored counts alone.
    pub(super) fn all_in<'h>(&'h self, headers: &'h HeaderMap) -> impl Iterator<Item = (&'h str, &'h [u8])> {
        self.carried_in(headers).flat_map(|(name, value)| {
            let text = std::str::from_utf8(value.as_bytes()).ok().filter(|_| *name == header::COOKIE);
            let single = text.is_none().then_some(value.as_bytes());
            let pairs = text.into_iter().flat_map(cookies).filter(|pair| !self.ignores(cookie_name(pair)));
            single.into_iter().chain(pairs.map(str::as_bytes)).map(|value| (name.as_str(), value))
        })
    }

    /// Whether at least one cookie isn't ignored. An unreadable header counts as a cookie that isn't ignored.
    fn has_cookie(&self, value: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(value) else { return true };
        cookies(text).any(|pair| !self.ignores(cookie_name(pair)))
    }

    fn ignores(&self, name: &str) -> bool {
        self.ignored_cookies.iter().any(|ignored| match ignored.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == ignored,
        })
    }
}

/// Whether this credential is the one by which the front end verified `caller`, or one that the front end verified
/// beside it.
fn is_own(caller: &Caller, name: &HeaderName, value: &HeaderValue, parts: &Parts) -> bool {
    let name = name.as_str();
    match caller {
        Caller::ApiKey { .. } => name == API_KEY,
        // An API key beside another caller only meters the caller's requests.
        _ if name == API_KEY => checked_api_key(parts).is_some_and(|key| *key == *value),
        Caller::Iam(_) => match name {
            "authorization" => value.to_str().is_ok_and(is_signature),
            name => name == SESSION_TOKEN,
        },
        // API Gateway writes no header with the certificate. If there's one, it may come from a proxy, and say whose
        // certificate the proxy saw.
        Caller::Certificate { .. } if name.starts_with("x-amzn-mtls-clientcert") => {
            repeats(value.as_bytes(), &checked_certificate(parts))
        }
        _ => false,
    }
}

/// Whether a header says the same about the certificate as the front end does. A load balancer encodes a PEM for
/// a URL, but leaves `+` as it is.
fn repeats(value: &[u8], certificate: &[&str]) -> bool {
    let value = String::from_utf8_lossy(value).replace('+', "%2B");
    let value = percent_decoded(&value);
    certificate.iter().any(|text| text.trim().as_bytes() == value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::lambda::identity::{CREDENTIALS, SUFFIXES};

    fn found(lines: &[(&'static str, &str)], ignored: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let mut rules = CredentialRules::default();
        rules.ignore_cookies(ignored.iter().copied());
        rules.carried_in(&headers).next().map(|(name, _)| name.to_string())
    }

    #[test]
    fn the_guide_lists_credential_headers() {
        let page = include_str!("../../guide/callers.md");
        let (_, list) = page.split_once("These headers carry credentials").unwrap();
        let (list, _) = list.split_once("\n\n").unwrap();
        let listed: Vec<_> = list.split('`').skip(1).step_by(2).collect();
        let suffixes = SUFFIXES.iter().map(|suffix| format!("*{suffix}"));
        let expected: Vec<_> = CREDENTIALS.iter().map(ToString::to_string).chain(suffixes).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn cookies_are_credentials_unless_ignored() {
        let cookie = |text, ignored: &[&str]| found(&[("cookie", text)], ignored).is_some();
        assert!(cookie("session=1", &[]));
        assert!(!cookie("AWSALB=a; AWSALBCORS=b; AWSALBTG=c; AWSALBTGCORS=d; AWSELB=e; AWSELBCORS=f", &[]));
        assert!(cookie("AWSALB=a; AWSELBAuthSessionCookie-0=b", &[]), "a login's session cookie");
        assert!(!cookie("_ga=1; _ga_X1=2;", &["_ga*"]));
        assert!(cookie("_ga=1; _ga_X1=2", &["_ga"]));
        assert!(cookie("theme=dark; session=1", &["theme"]));
        assert!(cookie("session", &["sessio"]) && cookie("caf\u{e9}", &[]));
        assert!(!cookie("", &[]) && !cookie(" ; ", &[]));
        assert!(
            found(&[("cookie", "theme=1"), ("cookie", "session=1")], &["theme"]).is_some(),
            "every cookie header counts"
        );
    }
}
