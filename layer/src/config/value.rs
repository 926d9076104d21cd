//! Parses the values of settings.

use std::{ops::RangeInclusive, time::Duration};

use http::{HeaderName, Method, StatusCode, Uri};
use lambda_idempotency::lambda::http::ProblemKind;

use super::OnError;
use crate::event::ClaimField;

/// The result of reading a value.
pub(super) type Read<T> = Result<T, Wrong>;

/// Why a value isn't valid.
#[derive(Debug)]
pub(super) enum Wrong {
    /// This text, the value or a part of it, isn't allowed. The message lists what's allowed.
    Value(String),
    /// The message for this value.
    Because(String),
}

impl Wrong {
    /// The message, for a setting with these valid values.
    pub(super) fn message(self, allowed: &str) -> String {
        match self {
            Self::Value(value) => format!("`{value}` isn't valid; use {allowed}"),
            Self::Because(message) => message,
        }
    }
}

/// The valid values of a time.
pub(super) const TIME: &str = "a number with its unit, such as 500ms, 90s, 15m, 24h or 7d";
/// The valid values of a size.
pub(super) const BYTES: &str = "a number of bytes";

/// A time with its unit, such as `90s`, `15m`, `24h` or `7d`.
pub(super) fn duration(text: &str) -> Read<Duration> {
    let wrong = || Wrong::Value(text.into());
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

/// A number of bytes.
pub(super) fn number(text: &str) -> Read<usize> {
    text.parse().map_err(|_| Wrong::Value(text.into()))
}

/// A boolean, `true` or `false`.
pub(super) fn flag(text: &str) -> Read<bool> {
    text.parse().map_err(|_| Wrong::Value(text.into()))
}

/// The address of a Runtime API.
pub(super) fn upstream(address: &str) -> Read<String> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    match parts.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port != 0) {
        Some(_) => Ok(address.to_owned()),
        None => Err(Wrong::Value(address.into())),
    }
}

/// Several texts, separated by commas.
pub(super) fn list(text: &str) -> Read<Vec<String>> {
    let parts: Vec<_> = text.split(',').map(|part| part.trim().to_owned()).collect();
    match parts.iter().any(String::is_empty) {
        true => {
            Err(Wrong::Because(format!("`{text}` has an empty entry; fill it in, or leave out its comma")))
        }
        false => Ok(parts),
    }
}

/// Whether events pass to the function unprotected.
pub(super) fn passes(policy: &str) -> Read<bool> {
    match policy {
        "refuse" => Ok(false),
        "pass" => Ok(true),
        _ => Err(Wrong::Value(policy.into())),
    }
}

pub(super) fn on_error(policy: &str) -> Read<OnError> {
    match policy.split_once(':') {
        None if policy == "release" => Ok(OnError::Release),
        None if policy == "record" => Ok(OnError::Record),
        Some(("record", types)) => list(types).map(OnError::RecordOnly),
        Some(("release", types)) => list(types).map(OnError::RecordExcept),
        _ => Err(Wrong::Value(policy.into())),
    }
}

pub(super) fn methods(methods: &str) -> Read<Vec<Method>> {
    let parse = |name: String| match Method::from_bytes(name.as_bytes()) {
        Ok(method) if method.is_safe() => {
            Err(Wrong::Because(format!("{method} is never protected; leave it out")))
        }
        Ok(method) if name == name.to_uppercase() => Ok(method),
        _ => Err(Wrong::Value(name)),
    };
    list(methods)?.into_iter().map(parse).collect()
}

pub(super) fn claim_field(field: &str) -> Read<ClaimField> {
    let (name, is_context) = match field.strip_prefix("context:") {
        Some(name) => (name, true),
        None => (field, false),
    };
    if name.is_empty() || name.chars().any(|c| c.is_control() || c == '"') {
        return Err(Wrong::Value(field.into()));
    }
    Ok(if is_context { ClaimField::Context(name.into()) } else { ClaimField::Event(name.into()) })
}

/// Names of headers.
pub(super) fn headers(names: &str) -> Read<Vec<HeaderName>> {
    list(names)?.into_iter().map(|name| header(&name)).collect()
}

/// A header's name.
pub(super) fn header(name: &str) -> Read<HeaderName> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| Wrong::Value(name.into()))
}

/// An entry of a list, and whether it's listed without `!`.
pub(super) fn with_sign(entry: &str) -> (&str, bool) {
    entry.strip_prefix('!').map_or((entry, true), |entry| (entry.trim_start(), false))
}

/// The two sides of each entry, such as `a=b`.
pub(super) fn pairs(text: &str) -> Read<Vec<(String, String)>> {
    let pair = |entry: String| {
        let sides =
            entry.rsplit_once('=').map(|(left, right)| (left.trim().to_owned(), right.trim().to_owned()));
        sides.filter(|(left, right)| !left.is_empty() && !right.is_empty()).ok_or(Wrong::Value(entry))
    };
    list(text)?.into_iter().map(pair).collect()
}

/// The statuses that an entry names: one, such as `404`, or a class, such as `4xx`.
pub(super) fn statuses(entry: &str) -> Read<RangeInclusive<u16>> {
    let class = entry.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok());
    match (class.filter(|class| (2..=5).contains(class)), status(entry)) {
        (Some(class), _) => Ok(class * 100..=class * 100 + 99),
        (None, Ok(status)) => Ok(status.as_u16()..=status.as_u16()),
        (None, Err(wrong)) => Err(wrong),
    }
}

/// A final status.
pub(super) fn status(text: &str) -> Read<StatusCode> {
    let number = text.parse().ok().filter(|number| (200..600).contains(number));
    number.and_then(|number| StatusCode::from_u16(number).ok()).ok_or_else(|| Wrong::Value(text.into()))
}

/// A kind of problem, by its code. Without the writes of a handler, and without a check of replays, the layer never answers
/// with two of them.
pub(super) fn problem(code: &str) -> Read<ProblemKind> {
    let never = [ProblemKind::Declined, ProblemKind::ReplayForbidden];
    let mut kinds = ProblemKind::ALL.iter().filter(|kind| !never.contains(kind));
    kinds.find(|kind| kind.code() == code).copied().ok_or_else(|| Wrong::Value(code.into()))
}

/// The URI of a page. It has no fragment, since each problem adds its own.
pub(super) fn page(uri: &str) -> Read<String> {
    let parsed = uri.parse::<Uri>().ok().filter(|uri| uri.scheme().is_some() && uri.authority().is_some());
    let is_plain = uri.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"#".contains(&byte));
    parsed.filter(|_| is_plain).map(|_| uri.to_owned()).ok_or_else(|| Wrong::Value(uri.into()))
}

/// An origin, exactly as browsers send it: lower case, and without a path or the scheme's usual port.
pub(super) fn origin(text: &str) -> Read<String> {
    let wrong = || Wrong::Value(text.into());
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
    let is_usual_port = matches!((scheme, authority.port_u16()), ("https", Some(443)) | ("http", Some(80)));
    let is_exact = text == format!("{scheme}://{authority}") && text == text.to_ascii_lowercase();
    let is_origin = is_exact && !is_usual_port && !text.contains(['*', '@']);
    is_origin.then(|| text.to_owned()).ok_or_else(wrong)
}
