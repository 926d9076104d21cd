//! Describes how the layer derives its records' ids from events, for `idempotency why --describe`.

use std::sync::Arc;

use lambda_idempotency::{Error, lambda::Description};

use crate::{
    config::{KeyOf, Rules},
    event::Kind,
    turn::Protection,
};

/// Writes the line that begins the log. Its field `wrappers` has one description for each kind of event that the
/// layer protects. If a setting names the callers, `resolved_caller` has the form of their names. The line holds no key,
/// no caller and no password.
pub(crate) fn log(protection: &Arc<Protection>) {
    let resolved_caller = protection.rules.callers.text_of("NAME");
    let wrappers = wrappers(protection)
        .and_then(|wrappers| serde_json::to_string(&wrappers).map_err(|error| error.to_string()));
    match wrappers {
        Ok(wrappers) => tracing::info!(
            event = "started",
            wrappers,
            resolved_caller,
            "the layer describes the keys of its events for `idempotency why`"
        ),
        Err(problem) => tracing::warn!(problem, "the layer's settings can't be described"),
    }
}

/// The descriptions, the more specific kinds of events first.
fn wrappers(protection: &Arc<Protection>) -> Result<Vec<Description>, String> {
    let kinds = match protection.rules.kind {
        Some(kind) => vec![kind],
        None => vec![Kind::Http, Kind::Sqs, Kind::Kinesis, Kind::DynamoDb, Kind::Kafka, Kind::Event],
    };
    let described = kinds.into_iter().filter_map(|kind| of(protection, kind).transpose());
    described.collect::<Result<_, _>>().map_err(|error: Error| error.to_string())
}

/// The description for events of this kind. `None` if they have no key.
fn of(protection: &Arc<Protection>, kind: Kind) -> Result<Option<Description>, Error> {
    let Rules { key, compare, .. } = &protection.rules;
    let via = match kind {
        Kind::Http => {
            let has_key = matches!(key, KeyOf::Header | KeyOf::Fields(_));
            return Ok(has_key.then(|| protection.http.describe()));
        }
        Kind::Event => "event",
        Kind::Sqs => "sqs",
        Kind::Kinesis => "kinesis",
        Kind::DynamoDb => "dynamodb",
        Kind::Kafka => "kafka",
        Kind::Durable => return Ok(None),
    };
    let mut layer = key.layer(&protection.idempotency);
    if let Some(fields) = compare {
        layer = layer.fingerprint_fields(fields.iter().map(String::as_str))?;
    }
    // A batch's records and a plain event have keys from the same fields.
    let mut description = layer.describe();
    description.via = via.to_owned();
    match key {
        KeyOf::Fields(_) | KeyOf::Source(_) => {}
        KeyOf::RequestId if kind == Kind::Event => {}
        KeyOf::Record(source) if *source == kind => description.key_from = None,
        KeyOf::Header | KeyOf::RequestId | KeyOf::Record(_) => return Ok(None),
    }
    Ok(Some(description))
}
