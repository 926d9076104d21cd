//! The story of a test, line by line.

use super::{
    drawing::Event,
    effect::{Happened, Lookup, NoAnswer},
    picture,
    point::Call,
    told::{Told, duration, is_again},
    world::Delivered,
};

/// Everything that happened in a test, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) lines: Vec<String>,
    /// What's drawn of it.
    pub(super) events: Vec<Event>,
}

/// Returns the story of a test.
pub(super) fn told(trace: &[Told], effects: &[Happened], deliveries: &[Delivered]) -> Story {
    // Leaves out the wait at the end, in which only spawned tasks could still do something.
    let end = trace.iter().rposition(|told| !matches!(told, Told::Passed { .. })).map_or(0, |last| last + 1);
    Story {
        lines: trace[..end].iter().filter_map(|told| line(told, effects, deliveries)).collect(),
        events: trace[..end].iter().filter_map(|told| picture::event(told, effects, deliveries)).collect(),
    }
}

fn line(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<String> {
    Some(match told {
        Told::Delivered { delivery, what } => {
            let process = deliveries.get(*delivery)?.process + 1;
            let what = if what.is_empty() { String::new() } else { format!("{what}, to ") };
            format!("delivery {}: {what}process {process}", delivery + 1)
        }
        Told::Refused { .. } | Told::Read { .. } => return None,
        Told::Wrote { delivery, call } => {
            let did = match call {
                Call::Claim => "claimed the key",
                Call::Reclaim => "claimed the key again, because it was free",
                Call::TakeOver => "took over the stale claim",
                Call::Complete => "recorded its outcome",
                Call::Fail => "recorded a permanent failure",
                Call::Release => "released the key",
                Call::Conclude => "recorded its outcome, without a claim",
                Call::Extend => return None,
            };
            format!("  {} {did}", delivery + 1)
        }
        Told::Happened { delivery, effect } => {
            let effect = effects.get(*effect)?;
            let again = if is_again(effect, effects) { " AGAIN" } else { "" };
            let key = match &effect.key {
                Some(key) => format!(", under the key {key}"),
                None if effect.is_staged() => ", in one transaction with its outcome".to_owned(),
                None => ", without a key".to_owned(),
            };
            let late = if effect.is_late { ", AFTER its answer" } else { "" };
            format!("  {} `{}` happened{again}: {}{key}{late}", delivery + 1, effect.name, effect.detail)
        }
        Told::Asked { delivery, effect, reference, answer } => {
            let answer = match answer {
                Ok(Lookup::Found(found)) => format!("it happened: {}", found.detail),
                Ok(Lookup::OnItsWay) => "it's on its way".to_owned(),
                Ok(Lookup::Nothing) => "nothing is known of it".to_owned(),
                Err(NoAnswer) => "no answer".to_owned(),
            };
            format!("  {} asked for `{effect}` under the key {reference}: {answer}", delivery + 1)
        }
        Told::Arrived { delivery, call, is_applied } => {
            let fate = if *is_applied { "applied" } else { "refused" };
            format!("  {}: {} arrived late, and was {fate}", delivery + 1, call.described())
        }
        Told::Deduplicated { delivery, effect, detail } => {
            let effect = effects.get(*effect)?;
            let other = if *detail == effect.detail {
                String::new()
            } else {
                format!(", but with other details: {detail}")
            };
            format!(
                "  {} `{}` was sent again under the same key{other}: nothing happened",
                delivery + 1,
                effect.name
            )
        }
        Told::Fault { delivery, point, fault, effect } => {
            format!("  {} {}", delivery + 1, fault.described(*point, effect.as_deref()))
        }
        Told::Ended { delivery, how, .. } => {
            let replayed = match deliveries.get(*delivery) {
                // The line says this only if the store refused a claim. Otherwise, a handler may have run without a
                // claim, and failed before its first effect.
                Some(delivery) if delivery.is_refused && !delivery.shows_run() => " (no handler ran)",
                _ => "",
            };
            format!("  {} ended with {how}{replayed}", delivery + 1)
        }
        Told::Paused { delivery } => {
            format!("  {} its process paused while it waited, and another delivery ran", delivery + 1)
        }
        Told::Passed { seconds } => format!("{} pass", duration(*seconds)),
    })
}
