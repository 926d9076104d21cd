//! The troubles of a schedule: faults from the testing kit's list, and circumstances.

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
