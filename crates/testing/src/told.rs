//! The events of a story, which a failed test prints and draws.

use super::{
    effect::{Lookup, NoAnswer},
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

impl Told {
    /// The delivery that did it. `None` if it's the passing of time.
    pub(super) fn delivery(&self) -> Option<usize> {
        match self {
            Self::Delivered { delivery, .. }
            | Self::Wrote { delivery, .. }
            | Self::Refused { delivery, .. }
            | Self::Read { delivery }
            | Self::Happened { delivery, .. }
            | Self::Deduplicated { delivery, .. }
            | Self::Asked { delivery, .. }
            | Self::Arrived { delivery, .. }
            | Self::Fault { delivery, .. }
            | Self::Ended { delivery, .. }
            | Self::Paused { delivery } => Some(*delivery),
            Self::Passed { .. } => None,
        }
    }
}
