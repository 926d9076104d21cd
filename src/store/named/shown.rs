//! A store's URL without its credentials, for messages and descriptions.

use super::{MEMORY, NamedStore};

/// The parameters of a URL that hold credentials. `tokio-postgres` accepts the first two, libpq all four.
const CREDENTIALS: [&str; 4] = ["user", "password", "passfile", "sslpassword"];

/// Removes user name and password from `url`: everything between `://` and the last `@` before the query, and the
/// [`CREDENTIALS`] in the query. `None` if `url` isn't a store's. If the URL's `?` may be part of a password, only the
/// scheme is left.
pub(super) fn without_credentials(url: &str) -> Option<String> {
    if url == MEMORY {
        return Some(url.to_owned());
    }
    // If `url` isn't a store's, return nothing of it: any part of such a text may be a password.
    let ((scheme, rest), named) = scheme_of(url).zip(NamedStore::from_url(url).ok())?;
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') && !named.has_at_in_parameter() {
        return Some(format!("{scheme}://…"));
    }
    let host = base.rsplit_once('@').map_or(base, |(_, host)| host);
    let shown = query.split('&').filter(|pair| !is_credential(pair)).map(without_userinfo);
    let query = shown.collect::<Vec<_>>().join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    Some(format!("{scheme}://{host}{mark}{query}"))
}

/// Splits `url` at the `://` after its scheme. Returns `None` if the first `:` isn't followed by `//`: the text before
/// a later `://` isn't a scheme, and may contain a password.
fn scheme_of(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    Some((scheme, rest.strip_prefix("//")?))
}

/// Whether the parameter is one of the [`CREDENTIALS`]. A name with a percent escape counts as a credential's: it may
/// stand for any name, and no valid name needs an escape.
fn is_credential(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    name.contains('%') || CREDENTIALS.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns the parameter, or `endpoint=…` for an endpoint that may contain credentials.
fn without_userinfo(pair: &str) -> &str {
    let hides = |value: &str| {
        let value = value.to_ascii_lowercase();
        ["@", "?", "%40", "%3f"].iter().any(|mark| value.contains(mark))
    };
    match pair.split_once('=') {
        Some(("endpoint", value)) if hides(value) => "endpoint=…",
        _ => pair,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn shown_urls_have_no_credentials() {
        for (url, shown) in [
            ("dynamodb://orders", "dynamodb://orders"),
            ("postgres://user:p@ss@db/orders", "postgres://db/orders"),
            ("redis://:secret@cache:6379", "redis://cache:6379"),
            ("memory:", "memory:"),
            // Credentials in the query.
            ("postgres://db/orders?user=app&password=secret", "postgres://db/orders"),
            (
                "postgres://db/o?sslmode=require&p%61ssword=secret&table=t",
                "postgres://db/o?sslmode=require&table=t",
            ),
            ("postgres://a:b@db/o?Password=secret&user=a&timeouts=role", "postgres://db/o?timeouts=role"),
            ("postgres://db/o?passfile=secret&sslpassword=secret&%=secret", "postgres://db/o"),
            // An `@` in a parameter.
            (
                "dynamodb://app?sort_key=sk&partition=idem@prod",
                "dynamodb://app?sort_key=sk&partition=idem@prod",
            ),
            ("dynamodb://a:secret@app?partition=idem@prod", "dynamodb://app?partition=idem@prod"),
            ("redis://cache?prefix=a@b", "redis://cache?prefix=a@b"),
            ("redis://:secret@cache?prefix=a@b", "redis://cache?prefix=a@b"),
            // A password that isn't encoded.
            ("postgres://user:se?cret@db/orders", "postgres://…"),
            ("postgres://user:se?table=t@cret@db/orders?sslmode=require", "postgres://…"),
            ("postgres://db/orders?user=app@corp&password=secret", "postgres://…"),
            ("redis://:se?cret@cache:6379?prefix=a", "redis://…"),
            ("redis://cache?prefix=a@b&password=secret", "redis://…"),
            // An endpoint with credentials.
            (
                "dynamodb://app?endpoint=http://user:secret@proxy:8000&region=r",
                "dynamodb://app?endpoint=…&region=r",
            ),
            ("dynamodb://app?endpoint=http%3A%2F%2Fuser%3Asecret%40proxy", "dynamodb://app?endpoint=…"),
            ("dynamodb://app?endpoint=http://h/?token=secret", "dynamodb://app?endpoint=…"),
            (
                "dynamodb://app?endpoint=http://127.0.0.1:8000",
                "dynamodb://app?endpoint=http://127.0.0.1:8000",
            ),
            // Texts that aren't a store's URL.
            ("dynamodb://t?password=secret@h", ""),
            ("host=db password=secret hostaddr=::1", ""),
            ("password=secret sslrootcert=file:///x", ""),
            ("memory:secret", ""),
            ("postgres:user:secret@db", ""),
            ("postgres:user:secret@db?sslrootcert=file:///x", ""),
            ("host=db password=secret", ""),
        ] {
            assert_eq!(super::without_credentials(url).unwrap_or_default(), shown, "{url}");
        }
    }
}
