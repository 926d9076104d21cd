//! An explored state: true time, the record, the executors, and the writes still in flight.
//!
//! It's small and plain. Large values are numbers that an [`Interner`](crate::intern::Interner) maps back.

use crate::{
    configuration::{Configuration, MAX_DELIVERIES, MAX_LATE, MAX_MADE, MAX_SLOTS},
    fingerprints::fingerprint,
};

/// No delivery.
pub const NOBODY: u8 = u8::MAX;

/// An executor's current stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It waits for a delivery.
    #[default]
    Idle,
    /// Its write is about to be sent, or in flight.
    Applying,
    /// Its read is about to be sent, or in flight.
    Reading,
    /// The store's response has arrived; the executor hasn't looked at it yet.
    Answered,
    /// It pauses.
    Pausing,
    /// Its handler runs.
    Running,
    /// Its handler runs, and an extension of its lease is about to be sent, or in flight.
    Extending,
}

/// The store's response, until the executor looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// Nothing yet.
    #[default]
    None,
    /// The write was applied.
    Applied,
    /// The write's condition failed on the slot's record.
    Refused,
    /// The read found the slot's record.
    Found,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It hasn't ended.
    #[default]
    None,
    /// With an outcome.
    Complete,
    /// With a permanent failure.
    Fail,
    /// With a request to release the key.
    Release,
    /// With an outcome, and with the handler's own writes to commit together with it.
    Commit,
    /// With a panic: the key is released, and it's unknown what the handler has done until then.
    Panic,
}

/// One executor. The clock is the first field, so that executors with equal clocks can be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The clock it uses, by its number in the configuration.
    pub clock: u8,
    /// How many deliveries it may still take.
    pub attempts_left: u8,
    /// Its current stage.
    pub stage: Stage,
    /// Whether it must decide what it does at this moment, before anything else happens.
    pub is_urgent: bool,
    /// Whether the SDK has already sent the write once and doesn't know the result.
    pub is_retried: bool,
    /// Whether its handler runs, or ran, without a claim.
    pub is_open: bool,
    /// Whether an earlier submission of the transaction that it sent last was ambiguous.
    pub is_in_doubt: bool,
    /// Whether the store has reported that it can never store the response.
    pub is_unstorable: bool,
    /// How often it has asked the store again since its handler ended.
    pub retries: u8,
    /// The moment when its handler ended; 0 where the time for retries is unlimited.
    pub ended_at: u8,
    /// The store's response.
    pub answer: Answer,
    /// The delivery it's processing.
    pub delivery: u8,
    /// The plan of that delivery.
    pub plan: u32,
    /// The machine's state.
    pub machine: u32,
    /// The write it sent last.
    pub write: u32,
    /// The record in the response.
    pub record: u32,
    /// The claim under which its handler runs, or ran.
    pub held: u32,
}

impl Slot {
    /// Ends its delivery, whatever the reason.
    pub fn end(&mut self) {
        *self = Self { clock: self.clock, attempts_left: self.attempts_left, ..Self::default() };
        self.is_urgent = self.attempts_left > 0;
    }

    /// Begins a new moment: an executor that waited decides again.
    pub fn awake(&mut self) {
        self.is_urgent = match self.stage {
            Stage::Idle => self.attempts_left > 0,
            // With less time left, the executor may also give up on a write.
            Stage::Applying | Stage::Answered | Stage::Pausing | Stage::Running | Stage::Extending => true,
            // The time doesn't affect the step after a failed read.
            Stage::Reading => false,
        };
    }

    /// Whether it's processing a delivery.
    pub fn is_active(&self) -> bool {
        self.stage != Stage::Idle
    }
}

/// A write that its sender gave up on, and that may still reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Late {
    /// The write, or 0.
    pub write: u32,
    /// The delivery that sent it.
    pub sender: u8,
}

/// An applied transaction, while the store still knows its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Made {
    /// The transaction, or 0.
    pub write: u32,
    /// The moment when it was applied.
    pub time: u8,
}

/// The facts kept about a delivery: enough to identify whose outcome is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The request it brought.
    pub request: u8,
    /// Whether its handler has started.
    pub has_started: bool,
    /// How its handler ended.
    pub verdict: Verdict,
    /// Whether its settlement (outcome, failure or release) was ever in the store.
    pub is_stored: bool,
    /// Whether its handler ever had its own writes.
    pub has_writes: bool,
    /// Whether those were applied.
    pub has_effect: bool,
    /// Whether it got the definite answer that they're never applied.
    pub is_denied: bool,
    /// Whether it got the answer that nothing is claimed.
    pub is_refused: bool,
    /// Whether the sweeper has removed a record while this delivery's claim was sent or in flight.
    pub is_overtaken: bool,
}

/// The facts about the operation that uses the key, as an outside observer sees them. They follow from the
/// events alone: no rule and no field of the record is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Its request.
    pub request: u8,
    /// Whether it has an outcome, so that the next claim belongs to another operation.
    pub is_over: bool,
    /// Whether a handler under an earlier claim started and stored neither an outcome nor a release, or
    /// panicked.
    pub was_interrupted: bool,
    /// Whether an earlier claim was left in the store, or its handler panicked. A record can't know whether a
    /// handler ran under the left claim.
    pub was_left: bool,
}

impl Operation {
    /// The operation as a claim for `request` finds it. `holder` is the delivery whose claim is stored, if any.
    #[must_use]
    pub fn claimed(self, request: u8, holder: Option<Delivery>) -> Self {
        if self.is_over || self.request != request {
            return Self { request, ..Self::default() };
        }
        let has_run = holder.is_some_and(|holder| holder.has_started && !holder.is_stored);
        Self {
            was_interrupted: self.was_interrupted || has_run,
            was_left: self.was_left || holder.is_some(),
            ..self
        }
    }

    /// Its handler panicked, and its claim was released.
    pub fn panicked(&mut self) {
        (self.was_interrupted, self.was_left) = (true, true);
    }

    /// It has an outcome.
    pub fn end(&mut self) {
        *self = Self { is_over: true, ..Self::default() };
    }
}

/// An explored state, with the little history that the invariants need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// The number of the moment, in true time.
    pub time: u8,
    /// The record, or 0.
    pub record: u32,
    /// The delivery that owns the claim in the record.
    pub holder: u8,
    /// The facts about the operation that uses the key.
    pub operation: Operation,
    /// At most once: whether a handler has run since the key was last free.
    pub has_run: bool,
    /// The highest generation under which a handler has started.
    pub highest_start: u64,
    /// How many faults there may still be.
    pub faults_left: u8,
    /// How many jumps of a clock there may still be.
    pub jumps_left: u8,
    /// How often an operator may still decide on a write.
    pub operations_left: u8,
    /// How often a lease may still be extended.
    pub extensions_left: u8,
    /// How often a handler's own condition may still fail.
    pub declines_left: u8,
    /// Whether a transaction has applied its effect along with the record.
    pub has_effect: bool,
    /// How many deliveries there were.
    pub delivered: u8,
    /// The executors.
    pub slots: [Slot; MAX_SLOTS],
    /// The writes still in flight.
    pub late: [Late; MAX_LATE],
    /// The tokens that the store knows, of transactions that may still arrive again.
    pub made: [Made; MAX_MADE],
    /// The deliveries that still matter.
    pub deliveries: [Delivery; MAX_DELIVERIES],
}

impl World {
    /// The initial state.
    pub fn new(configuration: &Configuration) -> Self {
        let mut slots = [Slot::default(); MAX_SLOTS];
        for (slot, clock) in slots.iter_mut().zip(0..).take(configuration.executors) {
            *slot = Slot { clock, attempts_left: configuration.attempts, ..Slot::default() };
            slot.awake();
        }
        let mut world = Self {
            time: 0,
            record: 0,
            holder: NOBODY,
            operation: Operation::default(),
            has_run: false,
            highest_start: 0,
            faults_left: configuration.faults,
            jumps_left: configuration.jumps,
            operations_left: configuration.operations,
            extensions_left: configuration.extensions,
            declines_left: configuration.declines,
            has_effect: false,
            delivered: 0,
            slots,
            late: [Late::default(); MAX_LATE],
            made: [Made::default(); MAX_MADE],
            deliveries: [Delivery::default(); MAX_DELIVERIES],
        };
        world.tidy(configuration.executors);
        world
    }

    /// Sorts the lists whose order has no meaning and forgets facts that nothing depends on, so that states
    /// that behave alike are equal.
    pub fn tidy(&mut self, executors: usize) {
        self.slots[..executors].sort_unstable();
        self.late.sort_unstable();
        let (slots, late) = (self.slots, self.late);
        for made in &mut self.made {
            let may_come = slots.iter().any(|slot| slot.write == made.write)
                || late.iter().any(|late| late.write == made.write);
            if !may_come {
                *made = Made::default();
            }
        }
        self.made.sort_unstable();
        // A response in flight may hold an outcome that's no longer in the store.
        if self.slots.iter().any(|slot| slot.answer != Answer::None) {
            return;
        }
        for (delivery, number) in self.deliveries.iter_mut().zip(0..) {
            let matters = self.holder == number
                || slots.iter().any(|slot| slot.is_active() && slot.delivery == number)
                || late.iter().any(|late| late.write != 0 && late.sender == number);
            if !matters {
                *delivery = Delivery::default();
            }
        }
    }

    /// Whether an executor hasn't decided yet what it does at this moment.
    pub fn is_urgent(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_urgent)
    }

    /// Whether nothing observable can happen any more.
    pub fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| !slot.is_active() && slot.attempts_left == 0)
    }

    /// The state, hashed to 128 bits.
    pub fn fingerprint(&self) -> u128 {
        let mut words = [0u64; 5 + 4 * MAX_SLOTS + MAX_LATE + MAX_MADE];
        words[0] = u64::from(self.time)
            | u64::from(self.holder) << 8
            | u64::from(self.operation.was_interrupted) << 16
            | u64::from(self.has_run) << 17
            | u64::from(self.has_effect) << 18
            | u64::from(self.operation.was_left) << 19
            | u64::from(self.operation.is_over) << 20
            | u64::from(self.operation.request) << 21
            | u64::from(self.faults_left) << 24
            | u64::from(self.jumps_left) << 32
            | u64::from(self.delivered) << 40
            | u64::from(self.operations_left) << 48
            | u64::from(self.extensions_left & 0xf) << 56
            | u64::from(self.declines_left & 0xf) << 60;
        words[1] = u64::from(self.record);
        words[2] = self.highest_start;
        let mut all = 0u128;
        for delivery in self.deliveries {
            let bits = u64::from(delivery.request & 1)
                | (delivery.verdict as u64) << 1
                | u64::from(delivery.is_stored) << 4
                | u64::from(delivery.has_started) << 5
                | u64::from(delivery.has_writes) << 6
                | u64::from(delivery.has_effect) << 7
                | u64::from(delivery.is_denied) << 8
                | u64::from(delivery.is_refused) << 9
                | u64::from(delivery.is_overtaken) << 10;
            all = all << 11 | u128::from(bits);
        }
        (words[3], words[4]) = (all as u64, (all >> 64) as u64);
        for (slot, words) in self.slots.iter().zip(words[5..].chunks_mut(4)) {
            words[0] = u64::from(slot.clock)
                | u64::from(slot.attempts_left) << 8
                | (slot.stage as u64) << 16
                | u64::from(slot.is_retried) << 24
                | u64::from(slot.is_open) << 25
                | u64::from(slot.is_in_doubt) << 26
                | u64::from(slot.is_unstorable) << 27
                | (slot.answer as u64) << 32
                | u64::from(slot.delivery) << 40
                | u64::from(slot.is_urgent) << 48
                | u64::from(slot.retries & 0xf) << 52
                | u64::from(slot.ended_at) << 56;
            words[1] = u64::from(slot.plan) << 32 | u64::from(slot.machine);
            words[2] = u64::from(slot.write) << 32 | u64::from(slot.record);
            words[3] = u64::from(slot.held);
        }
        let (late, made) = words[5 + 4 * MAX_SLOTS..].split_at_mut(MAX_LATE);
        for (late, word) in self.late.iter().zip(late) {
            *word = u64::from(late.write) << 8 | u64::from(late.sender);
        }
        for (made, word) in self.made.iter().zip(made) {
            *word = u64::from(made.write) << 8 | u64::from(made.time);
        }
        fingerprint(&words)
    }
}
