//! The CORS headers of replays.

use ::http::{HeaderMap, HeaderValue, header};

use super::HttpLayer;

/// The names in `Vary` by which a response depends on the request's origin. A preflight depends on the last two.
const VARIES_BY_ORIGIN: [&str; 3] =
    ["origin", "access-control-request-method", "access-control-request-headers"];

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Whether replays keep the handler's own CORS headers, for a handler that has no CORS layer outside this one.
    /// Default: no; put the CORS layer [outside](super#browsers), so that its headers match each request's origin.
    ///
    /// A replay keeps the recorded `Access-Control-*` headers if the recorded `Access-Control-Allow-Origin` permits
    /// this request's origin too: if it's `*` without `Access-Control-Allow-Credentials: true`, or equals this
    /// request's `Origin` and isn't `null`. Otherwise the replay drops these headers, and takes `Origin` out of `Vary`.
    /// The layer's own answers, such as 409 and 422, get no CORS headers. [`replay_header`](Self::replay_header) counts
    /// more than this setting.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().replay_cors(true);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn replay_cors(self, is_replayed: bool) -> Self {
        self.with(|config| config.headers.set_cors(is_replayed))
    }
}

/// Whether this is a CORS header.
pub(super) fn is_cors(name: &str) -> bool {
    name.starts_with("access-control-")
}

/// The request's origin. `None` if there's none, or if there are several.
pub(super) fn origin(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin = origins.next()?;
    origins.all(|other| other == origin).then(|| origin.clone())
}

/// Whether these headers let a page of this origin read the response.
pub(super) fn permit(headers: &HeaderMap, origin: Option<&HeaderValue>) -> bool {
    let mut allowed = headers.get_all(header::ACCESS_CONTROL_ALLOW_ORIGIN).iter();
    // Browsers refuse a response that has this header twice.
    let (Some(allowed), None) = (allowed.next(), allowed.next()) else { return false };
    match allowed.as_bytes().trim_ascii() {
        b"*" => {
            let credentials = headers.get_all(header::ACCESS_CONTROL_ALLOW_CREDENTIALS).iter();
            credentials
                .map(HeaderValue::as_bytes)
                .all(|value| !value.trim_ascii().eq_ignore_ascii_case(b"true"))
        }
        // Every sandboxed page has the origin `null`.
        b"" | b"null" => false,
        allowed => origin.is_some_and(|origin| origin.as_bytes() == allowed),
    }
}

/// Takes the names that concern the origin out of `Vary`.
pub(super) fn vary_without_origin(headers: &mut HeaderMap) {
    let lines: Vec<_> = headers.get_all(header::VARY).iter().cloned().collect();
    headers.remove(header::VARY);
    for line in lines {
        let Ok(text) = line.to_str() else {
            headers.append(header::VARY, line);
            continue;
        };
        let concerns_origin =
            |name: &&str| VARIES_BY_ORIGIN.iter().any(|other| name.eq_ignore_ascii_case(other));
        let names: Vec<_> = text.split(',').map(str::trim).collect();
        let others: Vec<_> = names.iter().copied().filter(|name| !concerns_origin(name)).collect();
        let line =
            if others.len() == names.len() { Some(line.clone()) } else { others.join(", ").parse().ok() };
        if let Some(line) = line.filter(|_| !others.is_empty()) {
            headers.append(header::VARY, line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let name = ::http::HeaderName::from_static;
        lines.iter().map(|(key, value)| (name(key), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_the_recorded_origin_is_permitted() {
        let allow = |value| ("access-control-allow-origin", value);
        let credentials = |value| ("access-control-allow-credentials", value);
        let shop = "https://shop.example";
        for (recorded, origin, permits) in [
            (vec![allow("*")], None, true),
            (vec![allow("*")], Some(shop), true),
            (vec![allow("*"), credentials("true")], Some(shop), false),
            (vec![allow("*"), credentials("false")], Some(shop), true),
            (vec![allow("*"), credentials("true")], Some("*"), false),
            (vec![allow(shop)], None, false),
            (vec![allow(shop)], Some(shop), true),
            (vec![allow(shop), credentials("true")], Some(shop), true),
            (vec![allow(shop)], Some("https://shop.example.evil.test"), false),
            (vec![allow(shop)], Some("http://shop.example"), false),
            (vec![allow(shop)], Some("https://SHOP.example"), false),
            (vec![allow("null")], Some("null"), false),
            (vec![allow("")], Some(""), false),
            (vec![allow(shop), allow(shop)], Some(shop), false),
            (vec![], Some(shop), false),
        ] {
            let origin = origin.map(HeaderValue::from_static);
            assert_eq!(permit(&of(&recorded), origin.as_ref()), permits, "{recorded:?} {origin:?}");
        }
    }

    #[test]
    fn several_origins_are_no_origin() {
        assert_eq!(origin(&of(&[("origin", "https://a"), ("origin", "https://a")])).unwrap(), "https://a");
        assert_eq!(origin(&of(&[("origin", "https://a"), ("origin", "https://b")])), None);
    }

    #[test]
    fn vary_keeps_its_other_names() {
        for (lines, kept) in [
            (vec!["Origin"], vec![]),
            (vec!["origin, Accept-Encoding", "ORIGIN"], vec!["Accept-Encoding"]),
            (vec!["accept,origin , Accept-Language"], vec!["accept, Accept-Language"]),
            (vec!["Access-Control-Request-Method", "Accept"], vec!["Accept"]),
            (vec!["Accept,Accept-Language"], vec!["Accept,Accept-Language"]),
            (vec!["*"], vec!["*"]),
        ] {
            let mut headers: HeaderMap =
                lines.iter().map(|line| (header::VARY, HeaderValue::from_static(line))).collect();
            vary_without_origin(&mut headers);
            assert_eq!(headers.get_all(header::VARY).iter().collect::<Vec<_>>(), kept, "{lines:?}");
        }
    }
}
