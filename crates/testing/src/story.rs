//! The story of a test, in words.

use super::{
    effect::{Happened, Lookup, NoAnswer},
    point::Call,
    told::Told,
    world::Delivered,
};

/// The story without the wait at its end, in which only spawned tasks could still do something.
pub(super) fn without_last_wait(trace: &[Told]) -> &[Told] {
    let end = trace.iter().rposition(|told| !matches!(told, Told::Passed { .. })).map_or(0, |last| last + 1);
    &trace[..end]
}

/// Everything that happened in a test, in order, line by line.
pub(super) fn lines(trace: &[Told], effects: &[Happened], deliveries: &[Delivered]) -> Vec<String> {
    without_last_wait(trace).iter().filter_map(|told| line(told, effects, deliveries)).collect()
}

fn line(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<String> {
    let words = words(told, effects, deliveries)?;
    Some(match (told, told.delivery()) {
        (Told::Refused { .. } | Told::Read { .. } | Told::Wrote { call: Call::Extend, .. }, _) => {
            return None;
        }
        (Told::Delivered { .. }, Some(at)) => {
            format!("delivery {}: {words}, to process {}", at + 1, deliveries.get(at)?.process + 1)
        }
        (_, Some(at)) => format!("  {} {words}", at + 1),
        (_, None) => words,
    })
}

/// Says one event of the story, for the printed lines and for the drawing. Both name the delivery beside these words.
pub(super) fn words(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<String> {
    Some(match told {
        Told::Delivered { what, .. } if what.is_empty() => "the event".to_owned(),
        Told::Delivered { what, .. } => what.clone(),
        Told::Wrote { call, .. } => wrote(*call).to_owned(),
        Told::Refused { call, .. } => format!("{} was refused", call.described()),
        Told::Read { .. } => "read the record".to_owned(),
        Told::Happened { effect, .. } => happened(effects.get(*effect)?, effects),
        Told::Asked { effect, reference, answer, .. } => {
            let answer = match answer {
                Ok(Lookup::Found(found)) => &format!("it happened: {}", found.detail),
                Ok(Lookup::OnItsWay) => "it's on its way",
                Ok(Lookup::Nothing) => "nothing is known of it",
                Err(NoAnswer) => "no answer",
            };
            format!("asked for `{effect}` under the key {reference}: {answer}")
        }
        Told::Arrived { call, is_applied, .. } => {
            let fate = if *is_applied { "applied" } else { "refused" };
            format!("{} arrived late, and was {fate}", call.described())
        }
        Told::Deduplicated { effect, detail, .. } => {
            let effect = effects.get(*effect)?;
            let other = if *detail == effect.detail {
                String::new()
            } else {
                format!(", but with other details: {detail}")
            };
            format!("`{}` was sent again under the same key{other}: nothing happened", effect.name)
        }
        Told::Fault { point, fault, effect, .. } => fault.described(*point, effect.as_deref()),
        Told::Ended { delivery, how, .. } => {
            let replayed = match deliveries.get(*delivery) {
                // Says this only if the store refused a claim. Otherwise, a handler may have run without a claim, and
                // failed before its first effect.
                Some(delivery) if delivery.is_refused && !delivery.shows_run() => " (no handler ran)",
                _ => "",
            };
            format!("ended with {how}{replayed}")
        }
        Told::Paused { .. } => "its process paused while it waited, and another delivery ran".to_owned(),
        Told::Passed { seconds } => format!("{} pass", duration(*seconds)),
    })
}

const fn wrote(call: Call) -> &'static str {
    match call {
        Call::Claim => "claimed the key",
        Call::Reclaim => "claimed the key again, because it was free",
        Call::TakeOver => "took over the stale claim",
        Call::Complete => "recorded its outcome",
        Call::Fail => "recorded a permanent failure",
        Call::Release => "released the key",
        Call::Conclude => "recorded its outcome, without a claim",
        Call::Extend => "extended its lease",
    }
}

fn happened(effect: &Happened, effects: &[Happened]) -> String {
    let again = if is_again(effect, effects) { " AGAIN" } else { "" };
    let key = match &effect.key {
        Some(key) => &format!(", under the key {key}"),
        None if effect.is_staged() => ", in one transaction with its outcome",
        None => ", without a key",
    };
    let late = if effect.is_late { ", AFTER its answer" } else { "" };
    format!("`{}` happened{again}: {}{key}{late}", effect.name, effect.detail)
}

/// Whether the same effect had happened before.
fn is_again(effect: &Happened, effects: &[Happened]) -> bool {
    let mut before = effects.iter().take_while(|other| !std::ptr::eq(*other, effect));
    before
        .any(|other| (&other.name, &other.detail, &other.key) == (&effect.name, &effect.detail, &effect.key))
}

/// Writes a duration in seconds, minutes or hours.
fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
