//! The caller is whoever has this credential: a hash of it names the caller.

use http::HeaderMap;
use lambda_idempotency::lambda::http::HttpLayer;
use sha2::{Digest as _, Sha256};

use super::caller_of;

/// Cookies of analytics scripts. A script draws a random number for each browser, and any script of the page can read
/// it, so none of these cookies authenticates a person.
pub(super) const ANALYTICS_COOKIES: [&str; 12] = [
    "_ga",      // Google Analytics
    "_ga_*",    // Google Analytics
    "_gid",     // Google Analytics
    "_gat*",    // Google Analytics
    "_gcl_*",   // Google Ads
    "_fbp",     // Meta
    "_fbc",     // Meta
    "_clck",    // Microsoft Clarity
    "_clsk",    // Microsoft Clarity
    "_uetsid",  // Microsoft Advertising
    "_uetvid",  // Microsoft Advertising
    "_pk_id.*", // Matomo
];

/// Headers with an API key.
const API_KEYS: [&str; 6] =
    ["api-key", "api_key", "apikey", "x-api-key", "ocp-apim-subscription-key", "x-functions-key"];

/// The caller, as a hash of the request's credentials. `None` if there are none, or if one of them is of a kind that
/// doesn't count: the library then refuses the request.
pub(super) fn caller(layer: &HttpLayer, headers: &HeaderMap, is_any: bool) -> Option<String> {
    let mut found: Vec<_> = layer.credentials(headers).collect();
    if found.is_empty() || !is_any && !found.iter().all(|(name, value)| is_lasting(name, value)) {
        return None;
    }
    found.sort_unstable();
    let mut hash = Sha256::new();
    for part in found.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(caller_of("credential", &[&digest]))
}

/// Whether the credential is an API key or Basic authentication, which stay the same from one attempt to the next.
fn is_lasting(name: &str, value: &[u8]) -> bool {
    let is_basic = || value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "));
    match name {
        "authorization" => is_basic(),
        name => API_KEYS.contains(&name) || name.ends_with("-api-key") || name.ends_with("-apikey"),
    }
}
