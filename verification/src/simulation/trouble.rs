//! The troubles of a schedule: faults from the testing kit's list, circumstances, and outages.

use std::fmt;

use crate::random::Random;

pub use lambda_idempotency_testing::Fault;

/// A trouble that isn't a fault of a request, a read or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circumstance {
    /// The executors' clocks differ, by no more than the skew margin.
    Skew,
    /// The executors' clocks are off by up to a minute. Then only fencing is promised.
    SkewBeyond,
    /// The sweeper removes expired records.
    Sweep,
    /// Handlers return errors.
    HandlerError,
    /// Handlers panic.
    Panic,
    /// Handlers are slow or hang.
    Hang,
    /// A caller gives up, and its future is dropped.
    Drop,
    /// A key is used with another payload.
    OtherPayload,
    /// Responses are large, and requests that write their chunks get lost.
    Parts,
    /// An executor's clock jumps back or ahead, within the same limits as the skew.
    Jump,
    /// An executor's clock stops for a while, and then catches up.
    Stand,
    /// A condition on the handler's own writes fails.
    Declined,
    /// An executor's clock is set back by half a minute or an hour in the middle of a delivery, until the delivery's
    /// end. An executor that shares its process keeps its clock, since another delivery may begin meanwhile.
    SetBack,
}

/// A fault or a circumstance. A schedule has a random subset of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A fault from the testing kit's list.
    Fault(Fault),
    /// A circumstance, which the testing kit doesn't list as a fault.
    Circumstance(Circumstance),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Circumstance> for Trouble {
    fn from(circumstance: Circumstance) -> Self {
        Self::Circumstance(circumstance)
    }
}

impl Trouble {
    /// All troubles, in the order of their bits in [`Config::faults`](super::config::Config::faults). Don't
    /// change the order: a seed's schedule depends on it.
    pub const ALL: [Self; 23] = [
        Self::Fault(Fault::LoseRequest),
        Self::Fault(Fault::LoseAnswer),
        Self::Fault(Fault::Late),
        Self::Fault(Fault::Retry),
        Self::Fault(Fault::Throttle),
        Self::Fault(Fault::Conflict),
        // An executor may die at any poll.
        Self::Fault(Fault::Die),
        // A freeze lasts up to 150 s.
        Self::Fault(Fault::Freeze),
        Self::Circumstance(Circumstance::Skew),
        Self::Circumstance(Circumstance::SkewBeyond),
        Self::Circumstance(Circumstance::Sweep),
        Self::Circumstance(Circumstance::HandlerError),
        Self::Circumstance(Circumstance::Panic),
        Self::Circumstance(Circumstance::Hang),
        Self::Circumstance(Circumstance::Drop),
        Self::Circumstance(Circumstance::OtherPayload),
        Self::Circumstance(Circumstance::Parts),
        // With this fault, the store has no chunks, and an item's size is limited (in DynamoDB, to 400 KB).
        Self::Fault(Fault::Unstorable),
        Self::Circumstance(Circumstance::Jump),
        Self::Circumstance(Circumstance::Stand),
        Self::Circumstance(Circumstance::Declined),
        // Only settlements are slow.
        Self::Fault(Fault::Slow),
        Self::Circumstance(Circumstance::SetBack),
    ];

    /// The troubles that may keep an executor's own answer from being recorded: its settlement gets no response,
    /// is throttled, conflicts, or meets the record of another payload.
    pub const UNRECORDING: [Self; 6] = [
        Self::Fault(Fault::LoseRequest),
        Self::Fault(Fault::LoseAnswer),
        Self::Fault(Fault::Late),
        Self::Fault(Fault::Throttle),
        Self::Fault(Fault::Conflict),
        Self::Circumstance(Circumstance::OtherPayload),
    ];

    /// The trouble's place in [`ALL`](Self::ALL). `None` for a fault that no schedule has.
    pub fn index(self) -> Option<usize> {
        Self::ALL.iter().position(|trouble| *trouble == self)
    }

    /// The trouble's bit in [`Config::faults`](super::config::Config::faults).
    pub fn bit(self) -> u32 {
        self.index().map_or(0, |index| 1 << index)
    }
}

/// How a store fails during an outage.
pub use Fault as Outage;

/// All kinds of outages. If a request or an answer is lost, the client gives up after a second. In a silent outage,
/// the client never gives up. In outages with silence or internal errors, half of the writes are applied.
pub const OUTAGES: [Outage; 7] = [
    Outage::LoseRequest,
    Outage::LoseAnswer,
    Outage::Throttle,
    Outage::Conflict,
    Outage::InternalError,
    Outage::Refuse,
    Outage::Silence,
];

/// The outage with this name.
pub fn outage_named(name: &str) -> Option<Outage> {
    Outage::named(name).filter(|outage| OUTAGES.contains(outage))
}

/// The least time that an outage leaves for the library, in ms:
///
/// - After a definite error, the library needs a pause, which takes up to half of the remaining time, and a request.
/// - After an internal error, it needs a pause, a read, a second pause and a request.
/// - If a request gets no response, the library gives up on it after half of the remaining time, but not before
///   250 ms. Then it needs the same as after an internal error.
pub const fn leaves(outage: Outage) -> u64 {
    match outage {
        Outage::Throttle | Outage::Conflict | Outage::Refuse => 60,
        Outage::InternalError => 150,
        _ => 400,
    }
}

/// Draws an outage for a delivery that has `left` ms to record its outcome. Returns the delay before the outage and
/// its length, in ms, or `None` for no outage, for example because too little time is left.
pub(super) fn draw(outage: Outage, left: u64, random: &mut Random) -> Option<(u64, u64)> {
    let share = if random.percent(60) { random.between(500, 950) } else { random.between(10, 500) };
    let delay = if random.percent(70) { 0 } else { random.below(20) };
    let longest = left.checked_sub(leaves(outage) + delay)?;
    let length = (left * share / 1000).min(longest);
    (length > 0 && random.percent(85)).then_some((delay, length))
}

/// The handler's own error.
#[derive(Debug)]
pub struct Refusal;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}
