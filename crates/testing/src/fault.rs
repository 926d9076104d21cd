//! [`Fault`]: the one list of faults.

mod error;

use std::fmt;

use lambda_idempotency_core::store::StoreError;

use super::point::{Call, Point};

/// A fault of a request, a read or a process, at a point of a run.
///
/// This list is the only one. The bench, [`survive`](super::survive()), the rehearsal, the model checker, the
/// simulation, and the tests on real servers and sockets cause these faults, each in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The process dies. Nothing of the process runs any more, not even a destructor.
    Die,
    /// The process pauses while its lease is still valid, and another delivery of the operation runs to completion.
    Overlap,
    /// The process freezes until its lease has expired and another delivery has taken over. Then the process continues.
    Freeze,
    /// The delivery arrives with no time left: its deadline is now.
    NoTime,
    /// The request was applied, or the effect happened, but the answer is lost. The caller can't tell whether anything
    /// happened.
    LoseAnswer,
    /// The request is lost, and the caller gets no answer. The caller can't tell whether it was applied.
    LoseRequest,
    /// The request arrives after its sender has given up. The sender can't tell whether it was applied.
    Late,
    /// The request was applied, and the answer is lost. The store's client retries the request internally, and gets the
    /// second request's answer.
    Retry,
    /// The store's client gives up on the request, retries it internally, and gets the second request's answer. The
    /// first request arrives later.
    RetryLate,
    /// The store reports an internal error: the caller can't tell whether the request was applied.
    InternalError,
    /// The request is throttled: it definitely isn't applied.
    Throttle,
    /// Another transaction conflicts on the record: the write definitely isn't applied.
    Conflict,
    /// The store refuses the request, as with expired credentials.
    Refuse,
    /// The store can never store this response: it's too large, or has characters that the store can't represent.
    Unstorable,
    /// The request or the read finds a record that can't be decoded.
    Unreadable,
    /// If the store refuses the write, its answer doesn't contain the existing record.
    HideRecord,
    /// From this point on, the store is down until this delivery has ended.
    Outage,
    /// No answer arrives before the deadline, and the request isn't applied.
    Silence,
    /// No answer arrives before the deadline, but the request is applied.
    SilenceAfter,
    /// The answer arrives, but takes seconds.
    Slow,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 20] = [
        Self::Die,
        Self::Overlap,
        Self::Freeze,
        Self::NoTime,
        Self::LoseAnswer,
        Self::LoseRequest,
        Self::Late,
        Self::Retry,
        Self::RetryLate,
        Self::InternalError,
        Self::Throttle,
        Self::Conflict,
        Self::Refuse,
        Self::Unstorable,
        Self::Unreadable,
        Self::HideRecord,
        Self::Outage,
        Self::Silence,
        Self::SilenceAfter,
        Self::Slow,
    ];

    /// Returns the fault with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Returns the fault's name on a command line and in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Die => "die",
            Self::Overlap => "overlap",
            Self::Freeze => "freeze",
            Self::NoTime => "no-time",
            Self::LoseAnswer => "lost-answers",
            Self::LoseRequest => "lost-requests",
            Self::Late => "late-requests",
            Self::Retry => "retries",
            Self::RetryLate => "late-retries",
            Self::InternalError => "errors-500",
            Self::Throttle => "throttles",
            Self::Conflict => "conflicts",
            Self::Refuse => "refusals",
            Self::Unstorable => "unstorable",
            Self::Unreadable => "unreadable",
            Self::HideRecord => "hidden-records",
            Self::Outage => "outage",
            Self::Silence => "silence",
            Self::SilenceAfter => "silence-after",
            Self::Slow => "slow-answers",
        }
    }

    /// The error that a store's client returns; see [`error_kind`](Self::error_kind).
    pub fn error(self) -> Option<StoreError> {
        let text = match self {
            Self::LoseAnswer => "the answer was lost",
            Self::InternalError => "internal error",
            Self::Throttle => "throttled",
            Self::Conflict => "another transaction conflicts",
            Self::Refuse => "the credentials have expired",
            Self::Unstorable => "the store can't store this response",
            Self::Unreadable => "the record can't be decoded",
            Self::Outage => "the store is down",
            _ => "no answer",
        };
        Some(StoreError::new(self.error_kind()?, text).maybe_applied(self.is_ambiguous()))
    }

    /// Whether the store applies the request. `None` if the fault doesn't determine that: the request may be applied,
    /// now or later, or the fault doesn't affect a request.
    pub const fn is_applied(self) -> Option<bool> {
        match self {
            Self::LoseAnswer | Self::Retry | Self::SilenceAfter | Self::Slow => Some(true),
            Self::LoseRequest
            | Self::Throttle
            | Self::Conflict
            | Self::Refuse
            | Self::Unstorable
            | Self::Unreadable
            | Self::Outage
            | Self::Silence => Some(false),
            Self::Die
            | Self::Overlap
            | Self::Freeze
            | Self::NoTime
            | Self::Late
            | Self::RetryLate
            | Self::InternalError
            | Self::HideRecord => None,
        }
    }

    /// Whether the fault can happen at `point`.
    pub const fn fits(self, point: Point) -> bool {
        match self {
            Self::Die => true,
            Self::Overlap | Self::Freeze => !matches!(point, Point::Entered | Point::Answered),
            Self::NoTime => matches!(point, Point::Entered),
            Self::LoseAnswer | Self::SilenceAfter | Self::Slow => {
                matches!(point, Point::After(_) | Point::AfterEffect)
            }
            Self::Retry => matches!(point, Point::After(_)),
            Self::LoseRequest
            | Self::Late
            | Self::RetryLate
            | Self::InternalError
            | Self::Conflict
            | Self::Refuse
            | Self::Unreadable
            | Self::HideRecord
            | Self::Outage => matches!(point, Point::Before(_)),
            // Only these writes store a response.
            Self::Unstorable => {
                matches!(point, Point::Before(Call::Complete | Call::Fail | Call::Conclude))
            }
            Self::Throttle | Self::Silence => matches!(point, Point::Before(_) | Point::BeforeEffect),
        }
    }

    /// Describes the fault in a sentence about its delivery.
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
            Self::NoTime => "it arrived with no time left".to_owned(),
            Self::LoseAnswer => format!("the answer to {of} was lost"),
            Self::LoseRequest => format!("the request for {of} was lost"),
            Self::Late => format!("it gave up on {of}, which was still on its way"),
            Self::Retry => format!("the answer to {of} was lost, and the client sent the request again"),
            Self::RetryLate => format!("{of} was slow, and the client sent it again"),
            Self::InternalError => format!("{of} got an internal error, and wasn't applied"),
            Self::Throttle => format!("{of} was throttled: nothing happened"),
            Self::Conflict => format!("{of} conflicted with another transaction"),
            Self::Refuse => format!("the store refused {of}"),
            Self::Unstorable => format!("{of} has a response that the store can't store"),
            Self::Unreadable => format!("{of} found a record that can't be read"),
            Self::HideRecord => format!("if the store refused {of}, its answer didn't show the record"),
            Self::Outage => format!("the store went down {at}"),
            Self::Silence => format!("{of} got no answer before the deadline, and didn't happen"),
            Self::SilenceAfter => format!("{of} happened, but got no answer before the deadline"),
            Self::Slow => format!("the answer to {of} took seconds"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
