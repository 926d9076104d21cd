//! Detects credentials in a request, so that a request whose caller the layer can't name isn't treated as
//! anonymous.

use http::{HeaderMap, HeaderName, header};

use crate::lambda::identity::{cookie_name, cookies, is_credential};

/// The names of cookies that aren't credentials, in addition to a load balancer's cookies.
#[derive(Clone, Debug, Default)]
pub(super) struct IgnoredCookies(Vec<String>);

impl IgnoredCookies {
    pub(super) fn add(&mut self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.0.extend(names.into_iter().map(Into::into));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|ignored| match ignored.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == ignored,
        })
    }
}

/// The header in which a client sends its API key to a REST API.
pub(super) const API_KEY: &str = "x-api-key";

/// The names of the headers that carry credentials.
pub(super) fn carried_in<'a>(
    headers: &'a HeaderMap,
    ignored: &'a IgnoredCookies,
) -> impl Iterator<Item = &'a HeaderName> {
    headers.iter().filter_map(move |(name, value)| {
        let carries = match name {
            name if *name == header::COOKIE => has_cookie(value.as_bytes(), ignored),
            name => is_credential(name.as_str()),
        };
        carries.then_some(name)
    })
}

/// Whether at least one cookie isn't ignored. An unreadable header counts as a cookie that isn't ignored.
fn has_cookie(value: &[u8], ignored: &IgnoredCookies) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return true };
    cookies(text).any(|pair| !ignored.has(cookie_name(pair)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn found(lines: &[(&'static str, &str)], ignored: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let mut cookies = IgnoredCookies::default();
        cookies.add(ignored.iter().copied());
        carried_in(&headers, &cookies).next().map(ToString::to_string)
    }

    #[test]
    fn every_credential_header_is_found() {
        for name in [
            "authorization",
            "proxy-authorization",
            "x-api-key",
            "x-auth-token",
            "client-cert",
            "x-forwarded-client-cert",
            "x-amz-security-token",
            "x-amzn-oidc-data",
            "x-amzn-oidc-identity",
            "x-amzn-mtls-clientcert",
            "x-amzn-mtls-clientcert-subject",
        ] {
            assert_eq!(found(&[("accept", "*/*"), (name, "1")], &[]).as_deref(), Some(name));
        }
        assert_eq!(
            found(&[("accept", "*/*"), ("x-amzn-trace-id", "1"), ("x-forwarded-for", "::1")], &[]),
            None
        );
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
