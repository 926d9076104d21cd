//! The events of a story, which a failed test prints and draws.

use super::{
    effect::{Happened, Lookup, NoAnswer},
    fault::Fault,
    point::{Call, Point},
};

/// One event of the story, which a failed test prints line by line. An `effect` that's a number is an index into
/// [`State::effects`](super::world::State::effects).
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// `what` is empty if the test delivers the event itself.
    Delivered {
        delivery: usize,
        what: String,
    },
    Wrote {
        delivery: usize,
        call: Call,
    },
    /// Only drawn: the printed story has no line for it.
    Refused {
        delivery: usize,
        call: Call,
    },
    /// Only drawn.
    Read {
        delivery: usize,
    },
    Happened {
        delivery: usize,
        effect: usize,
    },
    Deduplicated {
        delivery: usize,
        effect: usize,
        detail: String,
    },
    Asked {
        delivery: usize,
        effect: String,
        reference: String,
        answer: Result<Lookup, NoAnswer>,
    },
    Arrived {
        delivery: usize,
        call: Call,
        is_applied: bool,
    },
    Fault {
        delivery: usize,
        point: Point,
        fault: Fault,
        effect: Option<String>,
    },
    /// `is_done` is `None` if the process was killed at its timeout.
    Ended {
        delivery: usize,
        how: String,
        is_done: Option<bool>,
    },
    Paused {
        delivery: usize,
    },
    Passed {
        seconds: u64,
    },
}

/// Whether the same effect had happened before.
pub(super) fn is_again(effect: &Happened, effects: &[Happened]) -> bool {
    let whole = |effect: &Happened| (effect.name.clone(), effect.detail.clone(), effect.key.clone());
    let mut before = effects.iter().take_while(|other| !std::ptr::eq(*other, effect));
    before.any(|other| whole(other) == whole(effect))
}

/// Writes a duration in seconds, minutes or hours.
pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
