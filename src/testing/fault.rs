//! [`Fault`]: the one list of faults.

use std::fmt;

use super::point::Point;

/// A fault at a point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The process dies. Nothing of it runs any more, not even a destructor.
    Die,
    /// The process pauses, and another delivery of the operation runs to its end. Its own lease holds.
    Overlap,
    /// The process freezes until its lease has expired and another delivery has taken over. Then it goes on.
    Freeze,
    /// The request was applied, or the effect happened, and the answer is lost: the caller can't tell.
    LoseAnswer,
    /// The request never arrives, and no answer says so: the caller can't tell.
    LoseRequest,
    /// The store reports an internal error: the caller can't tell whether the request was applied.
    InternalError,
    /// The request is throttled: it definitely isn't applied.
    Throttle,
    /// Another transaction conflicts on the record: the write definitely isn't applied.
    Conflict,
    /// The store refuses the request, as with expired credentials.
    Refuse,
    /// From here on, the store is down until this delivery has ended.
    Outage,
    /// No answer comes in the time that's left, and the request isn't applied.
    Silence,
    /// No answer comes in the time that's left, and the request is applied.
    SilenceAfter,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 12] = [
        Self::Die,
        Self::Overlap,
        Self::Freeze,
        Self::LoseAnswer,
        Self::LoseRequest,
        Self::InternalError,
        Self::Throttle,
        Self::Conflict,
        Self::Refuse,
        Self::Outage,
        Self::Silence,
        Self::SilenceAfter,
    ];

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Its name on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Die => "die",
            Self::Overlap => "overlap",
            Self::Freeze => "freeze",
            Self::LoseAnswer => "lost-answers",
            Self::LoseRequest => "lost-requests",
            Self::InternalError => "errors-500",
            Self::Throttle => "throttles",
            Self::Conflict => "conflicts",
            Self::Refuse => "refusals",
            Self::Outage => "outage",
            Self::Silence => "silence",
            Self::SilenceAfter => "silence-after",
        }
    }

    /// Whether it can happen at `point`.
    pub const fn fits(self, point: Point) -> bool {
        match self {
            Self::Die => true,
            Self::Overlap | Self::Freeze => !matches!(point, Point::Entered | Point::Answered),
            Self::LoseAnswer | Self::SilenceAfter => matches!(point, Point::After(_) | Point::AfterEffect),
            Self::LoseRequest | Self::InternalError | Self::Conflict | Self::Refuse | Self::Outage => {
                matches!(point, Point::Before(_))
            }
            Self::Throttle | Self::Silence => matches!(point, Point::Before(_) | Point::BeforeEffect),
        }
    }

    /// A sentence about a delivery that had it.
    pub(super) fn described(self, point: Point, effect: Option<&str>) -> String {
        let at = match (point, effect) {
            (Point::BeforeEffect, Some(effect)) => format!("before `{effect}`"),
            (Point::AfterEffect, Some(effect)) => format!("after `{effect}`"),
            _ => point.described(),
        };
        let of = match (point, effect) {
            (Point::BeforeEffect | Point::AfterEffect, Some(effect)) => format!("`{effect}`"),
            (Point::Before(call) | Point::After(call), _) => call.described().to_owned(),
            _ => "the call".to_owned(),
        };
        match self {
            Self::Die => format!("its process died {at}"),
            Self::Overlap => format!("its process paused {at}, while another delivery ran"),
            Self::Freeze => format!("its process froze {at}, until its lease had expired"),
            Self::LoseAnswer => format!("the answer to {of} was lost"),
            Self::LoseRequest => format!("the request of {of} was lost"),
            Self::InternalError => format!("{of} met an internal error, and wasn't applied"),
            Self::Throttle => format!("{of} failed: unavailable, nothing happened"),
            Self::Conflict => format!("{of} met another transaction"),
            Self::Refuse => format!("the store refused {of}"),
            Self::Outage => format!("the store went down {at}"),
            Self::Silence => format!("{of} got no answer until the time was over, and didn't happen"),
            Self::SilenceAfter => format!("{of} happened, but got no answer until the time was over"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
