//! The world's state: true time, the record, the executors, and what is still on its way.
//!
//! It is small and plain: large values are numbers that an [`Interner`](crate::intern::Interner) knows.

use crate::{
    configuration::{Configuration, MAX_DELIVERIES, MAX_LATE, MAX_MADE, MAX_SLOTS},
    fingerprints::fingerprint,
};

/// No delivery.
pub const NOBODY: u8 = u8::MAX;

/// Where an executor stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It waits for a delivery.
    #[default]
    Idle,
    /// Its write is to be sent, or on its way.
    Applying,
    /// Its read is to be sent, or on its way.
    Reading,
    /// The store's answer has arrived, and was not yet looked at.
    Answered,
    /// It pauses.
    Pausing,
    /// Its handler runs.
    Running,
    /// Its handler runs, and an extension of its lease is to be sent, or on its way.
    Extending,
}

/// What the store answered, while nobody has looked at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// Nothing yet.
    #[default]
    None,
    /// The write was made.
    Applied,
    /// The write was refused by the slot's record.
    Refused,
    /// The read found the slot's record.
    Found,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It has not.
    #[default]
    None,
    /// With an outcome.
    Complete,
    /// With a final failure.
    Fail,
    /// With the word that the key may be given back.
    Release,
    /// With an outcome, and with writes of its own that go along with it.
    Commit,
    /// With a panic: the key is given back, and what it has done until then nobody knows.
    Panic,
}

/// One executor. The clock stands first, so that executors with equal clocks can be put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Which of the configuration's clocks it goes by.
    pub clock: u8,
    /// How many deliveries it may still take.
    pub attempts_left: u8,
    /// Where it stands.
    pub stage: Stage,
    /// Whether it is to decide, before anything else happens, what it does at this moment.
    pub is_urgent: bool,
    /// Whether the SDK has sent the write once already, and does not know what became of it.
    pub is_retried: bool,
    /// Whether its handler runs, or ran, without a claim.
    pub is_open: bool,
    /// Whether the transaction that it sent last was answered doubtfully before.
    pub is_in_doubt: bool,
    /// Whether the store has said that it will never take the response.
    pub is_unstorable: bool,
    /// How often it has asked the store again since its handler ended.
    pub retries: u8,
    /// At which moment its handler ended; 0 where retries have all the time there is.
    pub ended_at: u8,
    /// What the store answered.
    pub answer: Answer,
    /// The delivery it is at work on.
    pub delivery: u8,
    /// That delivery's plan.
    pub plan: u32,
    /// The machine's state.
    pub machine: u32,
    /// The write that it sent last.
    pub write: u32,
    /// The record that the answer holds.
    pub record: u32,
    /// The claim that its handler runs, or ran, under.
    pub held: u32,
}

impl Slot {
    /// Its delivery is over, whichever way.
    pub fn end(&mut self) {
        *self = Self { clock: self.clock, attempts_left: self.attempts_left, ..Self::default() };
        self.is_urgent = self.attempts_left > 0;
    }

    /// A new moment has come: whoever waits for one decides again.
    pub fn awake(&mut self) {
        self.is_urgent = match self.stage {
            Stage::Idle => self.attempts_left > 0,
            // A write may also be given up on later, when there is less time left.
            Stage::Applying | Stage::Answered | Stage::Pausing | Stage::Running | Stage::Extending => true,
            // What a failed read leads to does not depend on the time.
            Stage::Reading => false,
        };
    }

    /// Whether it is at work on a delivery.
    pub fn is_active(&self) -> bool {
        self.stage != Stage::Idle
    }
}

/// A write that its sender gave up on, and that may still reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Late {
    /// The write; 0 is none.
    pub write: u32,
    /// The delivery that sent it.
    pub sender: u8,
}

/// A transaction that was made, while the store still knows its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Made {
    /// The transaction; 0 is none.
    pub write: u32,
    /// The moment that it was made at.
    pub time: u8,
}

/// What is remembered of a delivery: enough to tell whose outcome is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// Which request it brought.
    pub request: u8,
    /// Whether its handler has started.
    pub has_started: bool,
    /// How its handler ended.
    pub verdict: Verdict,
    /// Whether a settlement by it was in the store: its outcome, its failure or its release.
    pub is_stored: bool,
    /// Whether its handler has ever had writes of its own.
    pub has_writes: bool,
    /// Whether those were made.
    pub has_effect: bool,
    /// Whether it was told, for good, that they are not made.
    pub is_denied: bool,
    /// Whether it was told that nothing is claimed.
    pub is_refused: bool,
    /// Whether the sweeper has removed a record while a claim of this delivery was sent, or on its way.
    pub is_overtaken: bool,
}

/// What is known, from outside, of the operation that the key is in use for. It is remembered here, by what happened:
/// neither a rule nor a field of the record is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Its request.
    pub request: u8,
    /// Whether it has an outcome, so that the next claim is another operation's.
    pub is_over: bool,
    /// Whether a handler under an earlier claim started, and neither an outcome nor a release of its is stored; or
    /// panicked.
    pub was_interrupted: bool,
    /// Whether an earlier claim was left standing, or its handler panicked. Whether a handler ran under the former, no
    /// record can know.
    pub was_left: bool,
}

impl Operation {
    /// What it is to a claim for `request`. `holder` is the delivery whose claim stands, if one does.
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

    /// Its handler panicked, and its claim was given back.
    pub fn panicked(&mut self) {
        (self.was_interrupted, self.was_left) = (true, true);
    }

    /// It has an outcome.
    pub fn end(&mut self) {
        *self = Self { is_over: true, ..Self::default() };
    }
}

/// The whole world, and the little of its past that the invariants ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// The number of the moment, in true time.
    pub time: u8,
    /// The record; 0 is none.
    pub record: u32,
    /// The delivery whose claim the record is.
    pub holder: u8,
    /// What is known of the operation that the key is in use for.
    pub operation: Operation,
    /// At most once: whether a handler has run since the key was last free.
    pub has_run: bool,
    /// The highest generation that a handler has started under.
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
    /// Whether the record has the effect of a transaction.
    pub has_effect: bool,
    /// How many deliveries there were.
    pub delivered: u8,
    /// The executors.
    pub slots: [Slot; MAX_SLOTS],
    /// What is still on its way.
    pub late: [Late; MAX_LATE],
    /// The tokens that the store knows, of transactions that may still come again.
    pub made: [Made; MAX_MADE],
    /// The deliveries that still matter.
    pub deliveries: [Delivery; MAX_DELIVERIES],
}

impl World {
    /// The world before anything happened.
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

    /// Puts what has no order into one, and forgets what nothing depends on any more, so that worlds
    /// that behave alike are one.
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
        // An answer on its way may hold an outcome that is in the store no more.
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

    /// Whether an executor has yet to decide what it does at this moment.
    pub fn is_urgent(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_urgent)
    }

    /// Whether anything can still happen that anyone would see.
    pub fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| !slot.is_active() && slot.attempts_left == 0)
    }

    /// The world in 128 bits.
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
