//! Parses the value of each setting.

use std::time::Duration;

use http::Method;

use super::{BatchAnswer, BatchMode, Callers, ClaimField, OnError};

/// The error message for a value that isn't allowed.
pub(super) fn unknown(value: &str, allowed: &str) -> String {
    format!("`{value}` isn't valid; use {allowed}")
}

/// A time with its unit, such as `90s`, `15m`, `24h` or `7d`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let problem = || unknown(text, "a number with its unit, such as 500ms, 90s, 15m, 24h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(problem)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| problem())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(problem()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(problem)
}

/// A number of bytes.
pub(super) fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| unknown(text, "a number of bytes"))
}

/// A boolean, `true` or `false`.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| unknown(text, "true or false"))
}

/// The address of a Runtime API. It can't be the layer's own, which has this `port`: the layer would poll itself.
pub(super) fn upstream(address: &str, port: u16) -> Result<String, String> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    match parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok().filter(|port| *port != 0)?))) {
        None => Err(unknown(address, "a host and a port, such as 127.0.0.1:9009")),
        Some(("127.0.0.1" | "localhost", other)) if other == port => {
            Err(format!("`{address}` is the layer's own address; use the other proxy's address"))
        }
        Some(_) => Ok(address.to_owned()),
    }
}

/// Several texts, separated by commas.
pub(super) fn list(text: &str) -> Result<Vec<String>, String> {
    let parts: Vec<_> = text.split(',').map(|part| part.trim().to_owned()).collect();
    match parts.iter().any(String::is_empty) {
        true => Err(format!("`{text}` has an empty entry; fill it in, or leave out its comma")),
        false => Ok(parts),
    }
}

/// Whether events pass to the function unprotected.
pub(super) fn passes(policy: &str) -> Result<bool, String> {
    match policy {
        "refuse" => Ok(false),
        "pass" => Ok(true),
        _ => Err(unknown(policy, "refuse or pass")),
    }
}

pub(super) fn on_error(policy: &str) -> Result<OnError, String> {
    match policy.split_once(':') {
        None if policy == "release" => Ok(OnError::Release),
        None if policy == "record" => Ok(OnError::Record),
        Some(("record", types)) => list(types).map(OnError::RecordOnly),
        Some(("release", types)) => list(types).map(OnError::RecordExcept),
        _ => Err(unknown(policy, "release, record, record:TYPE,… or release:TYPE,…")),
    }
}

pub(super) fn batch(mode: &str) -> Result<BatchMode, String> {
    match mode {
        "whole" => Ok(BatchMode::Whole),
        "each" => Ok(BatchMode::Each),
        _ => Err(unknown(mode, "whole or each")),
    }
}

pub(super) fn batch_answer(answer: &str) -> Result<BatchAnswer, String> {
    match answer {
        "report" => Ok(BatchAnswer::Report),
        "fail" => Ok(BatchAnswer::Fail),
        _ => Err(unknown(answer, "report or fail")),
    }
}

pub(super) fn callers(callers: &str) -> Result<Callers, String> {
    match callers {
        "verified" => Ok(Callers::Verified),
        "required" => Ok(Callers::Required),
        "shared" => Ok(Callers::Shared),
        _ => Err(unknown(callers, "verified, required or shared")),
    }
}

pub(super) fn methods(methods: &str) -> Result<Vec<Method>, String> {
    let parse = |name: String| match Method::from_bytes(name.as_bytes()) {
        Ok(method) if method.is_safe() => Err(format!("{method} is never protected; leave it out")),
        Ok(method) if name == name.to_uppercase() => Ok(method),
        _ => Err(unknown(&name, "methods such as POST,PUT")),
    };
    list(methods)?.into_iter().map(parse).collect()
}

pub(super) fn claim_field(field: &str) -> Result<ClaimField, String> {
    let (name, is_context) = match field.strip_prefix("context:") {
        Some(name) => (name, true),
        None => (field, false),
    };
    if name.is_empty() || name.chars().any(|c| c.is_control() || c == '"') {
        return Err(unknown(field, "a field's name, or context:NAME"));
    }
    Ok(if is_context { ClaimField::Context(name.into()) } else { ClaimField::Event(name.into()) })
}
