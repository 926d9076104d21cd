//! One invocation: protects the event as its kind requires, and posts the answer to the Runtime API.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use lambda_idempotency::{ErrorKind, RunError, settings::Mode};
use lambda_runtime::LambdaEvent;
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing::Instrument as _;

use crate::{
    answer::{Answer, INTERNAL, accept, in_time, post, raw},
    batch,
    config::Rules,
    event::{ClaimField, Event, Kind, has_field},
    function::Posted,
    http as http_event,
    recorded::{self, Recordable},
    turn::{Protection, Turn},
};

/// How long after the deadline the layer waits for the function's answer, to record it: Lambda's longest timeout, since a
/// frozen function goes on in the next invocation.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(15 * 60);
/// How long the layer waits for the function's answer if the deadline is unknown: as long as the longest lease.
const LONGEST_RUN: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest name of an operation, in bytes.
const LONGEST_NAME: usize = 128;
/// Why a durable function's event is refused.
const DURABLE: &str = "the event belongs to a durable execution, which the layer can't protect: it would record the \
                       function's first answer, such as PENDING, as the outcome, and the execution would never end. \
                       Durable functions have their own checkpoints. Take the layer off this function, or set \
                       IDEMPOTENCY_MODE=off";

/// Runs one invocation, and posts its answer. A panic ends only this invocation.
pub(crate) async fn invoke(protection: &Arc<Protection>, event: &Arc<Event>) {
    run(protection, event, protected(Arc::clone(protection), Arc::clone(event))).await;
}

async fn run(
    protection: &Arc<Protection>,
    event: &Arc<Event>,
    protected: impl Future<Output = ()> + Send + 'static,
) {
    if tokio::spawn(protected.in_current_span()).await.is_ok() {
        return;
    }
    let passes = passes_after_panic(protection, event);
    tracing::error!(
        request_id = event.request_id(),
        may_be_claimed = event.may_be_claimed(),
        has_begun = event.has_begun(),
        passes,
        "the layer panicked; this is a bug in the layer"
    );
    protection.telemetry.internal_error();
    let answer = match passes {
        true => unprotected(protection, event).await,
        false => Answer::refusal(INTERNAL, "the idempotency layer failed; its log says more"),
    };
    post(protection, event, answer).await;
}

/// Whether the function gets the event after a panic. If the function was called before the panic, it doesn't get the
/// event again. Otherwise it gets the event in shadow mode. In the mode `enforce`, the user must have allowed that, and
/// the library mustn't have been called yet. After its call, the event's record may be complete, and another run would
/// repeat the operation.
fn passes_after_panic(protection: &Protection, event: &Event) -> bool {
    let Rules { settings, passes_internal_errors, .. } = &protection.rules;
    let is_shadow = settings.mode != Mode::Enforce;
    !event.has_begun() && (is_shadow || *passes_internal_errors && !event.may_be_claimed())
}

/// Runs the event without protection.
async fn unprotected(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    protection.telemetry.unprotected();
    let turn = Turn::new(protection, event);
    match (turn.run(|_: &Posted| ()).await, turn.take()) {
        (_, Some(posted)) => Answer::Own(Box::new(posted)),
        (Err(failure), None) => Answer::error(failure),
        (Ok(()), None) => Answer::refusal(INTERNAL, "the function's answer was lost"),
    }
}

async fn protected(protection: Arc<Protection>, event: Arc<Event>) {
    let rules = &protection.rules;
    let kind = event.kind_or(rules.kind);
    let longest = event.time_left().map_or(LONGEST_RUN, |left| left.saturating_add(GIVEN_UP_AFTER));
    let answering = async {
        if let Some(ClaimField::Event(name)) = &rules.claim_field
            && let Some(owner) = owner_of(name, &event, kind)
        {
            let message =
                format!("{owner} already has a field `{name}`; set IDEMPOTENCY_CLAIM_FIELD to another name");
            return Some(Answer::refused(&protection, ErrorKind::Invalid, &message));
        }
        match kind {
            Kind::Event => one(&protection, &event).await,
            Kind::Http => http_event::request(&protection, &event).await,
            Kind::Sqs => Some(batch::sqs(&protection, &event).await),
            Kind::Kinesis => Some(batch::kinesis(&protection, &event).await),
            Kind::DynamoDb => Some(batch::dynamodb(&protection, &event).await),
            Kind::Kafka => Some(batch::kafka(&protection, &event).await),
            Kind::Durable => Some(Answer::refusal("Idempotency.Invalid", DURABLE)),
        }
    };
    match tokio::time::timeout(longest, Box::pin(answering)).await {
        // A refusal, since the function wasn't called. In shadow mode, the function runs the event instead.
        Ok(Some(_)) if rules.settings.mode != Mode::Enforce && !event.has_begun() => {
            let answer = unprotected(&protection, &event).await;
            post(&protection, &event, answer).await;
        }
        Ok(Some(answer)) => post(&protection, &event, answer).await,
        // The answer was sent already.
        Ok(None) => {}
        Err(_) => tracing::warn!(request_id = event.request_id(), "the function never answered"),
    }
}

/// Returns which part of the event already has a field of this name: the event itself, or a record of the batch. If the
/// layer added its own field of the same name, most parsers would read the layer's field instead.
fn owner_of(name: &str, event: &Event, kind: Kind) -> Option<&'static str> {
    if has_field(&event.body, name) {
        return Some("the event");
    }
    let has_it = || batch::records(event).iter().any(|record| has_field(record.get().as_bytes(), name));
    (kind.is_batch() && has_it()).then_some("a record of the batch")
}

/// Protects an event that's one operation. `None` if its answer was sent already.
async fn one(protection: &Arc<Protection>, event: &Arc<Event>) -> Option<Answer> {
    let rules = &protection.rules;
    let passes_unkeyed = rules.passes_unkeyed.unwrap_or(false);
    let Some(raw) = raw(event) else {
        let message = "the event isn't JSON, so it has no idempotency key";
        return Some(match passes_unkeyed {
            true => unprotected(protection, event).await,
            false => Answer::refused(protection, ErrorKind::MissingKey, message),
        });
    };
    let turn = Turn::new(protection, event);
    let layer = rules.key.layer(&protection.idempotency).required(!passes_unkeyed);
    let layer = match event.tool() {
        Some(tool) => match layer.operation(of_tool(rules.operation.as_deref(), &tool)) {
            Ok(layer) => layer,
            Err(error) => return Some(Answer::error(error)),
        },
        None => layer,
    };
    let layer = match &rules.compare {
        Some(fields) => match layer.fingerprint_fields(fields.iter().map(String::as_str)) {
            Ok(layer) => layer,
            Err(error) => return Some(Answer::error(error)),
        },
        None => layer,
    };
    let layer = match &rules.not_retained {
        Some(answer) => layer.on_not_retained(answer.clone()),
        None => layer,
    };
    let replayed = turn.clone();
    let layer = layer.on_replay(move |_| {
        replayed.replays();
        []
    });
    let (function, most) = (turn.clone(), rules.max_response);
    let inner = service_fn(move |_: LambdaEvent<IgnoredAny>| {
        let function = function.clone();
        async move { function.run(|posted| Recordable::of(posted, most)).await }
    });
    let calling = layer.layer(inner).oneshot(LambdaEvent::new(raw, event.context.clone()));
    let ended = in_time(protection, event, &turn, calling).await?;
    let own = turn.take().map(Box::new);
    Some(match (ended, own) {
        (Ok(_), Some(own)) if !turn.is_replay() => Answer::Own(own),
        (Ok(recorded), own) => {
            let (headers, body) = recorded::replayed(recorded);
            also(own, Answer::Made { is_error: false, headers, body })
        }
        (Err(RunError::Handler(_)), Some(own)) => Answer::Own(own),
        (Err(RunError::Recorded(_)), Some(own)) if !turn.is_replay() => Answer::Own(own),
        (Err(RunError::Idempotency(error)), Some(own))
            if own.is_larger_than(most) && error.kind() == ErrorKind::Invalid && !turn.is_replay() =>
        {
            Answer::Own(own)
        }
        (Err(error), own) => also(own, Answer::error(error)),
    })
}

/// The operation's name for a tool: the tool's own name, or its hash if a name can't have its characters or its length.
fn of_tool(operation: Option<&str>, tool: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let whole = operation.map_or_else(String::new, |operation| format!("{operation}."));
    if !tool.is_empty() && tool.chars().all(is_name) && whole.len() + tool.len() <= LONGEST_NAME {
        return whole + tool;
    }
    let digest = Sha256::digest(tool);
    digest.iter().take(16).fold(whole + "tool.", |name, byte| format!("{name}{byte:02x}"))
}

/// Returns `answer`. If the function has answered too, tells the function that its own answer was accepted.
fn also(own: Option<Box<Posted>>, answer: Answer) -> Answer {
    if let Some(own) = own {
        accept(own.reply);
    }
    answer
}
