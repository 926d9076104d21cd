//! An explored state: true time, the record, the executors, and the writes still in flight.
//!
//! Large values (plans, writes, records) are kept as numbers, which an [`Interner`](crate::intern::Interner)
//! maps back to the values.

use crate::fingerprints::fingerprint;

/// The most executors in a state.
pub const MAX_SLOTS: usize = 3;
/// The most deliveries in a state.
pub const MAX_DELIVERIES: usize = 6;
/// The most writes that may be in flight after their senders gave up on them.
pub const MAX_LATE: usize = 2;
/// The most transactions whose tokens the store remembers: one per executor, and the transactions that may
/// arrive late.
pub const MAX_MADE: usize = MAX_SLOTS + MAX_LATE;

/// Stands in the place of a delivery's number for no delivery, or for an operator.
pub const NOBODY: u8 = u8::MAX;

/// An executor's current stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The executor waits for a delivery.
    #[default]
    Idle,
    /// A write is about to be sent, or is in flight.
    Applying,
    /// A read is about to be sent, or is in flight.
    Reading,
    /// The store's response has arrived; the executor hasn't looked at it yet.
    Answered,
    /// The executor waits before it retries.
    Pausing,
    /// The handler, or its question, runs.
    Running,
    /// The handler, or its question, runs, and an extension of its lease is about to be sent, or is in flight.
    Extending,
}

/// The store's response, until the executor looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// No response has arrived.
    #[default]
    None,
    /// The write was applied.
    Applied,
    /// The write's condition failed on the record in [`Slot::record`].
    Refused,
    /// The read returned the record in [`Slot::record`].
    Found,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The handler hasn't ended.
    #[default]
    None,
    /// The handler returned an outcome.
    Complete,
    /// The handler failed permanently.
    Fail,
    /// The handler asked for the key to be released.
    Release,
    /// The handler returned an outcome and staged writes, which are committed in one transaction.
    Commit,
    /// The handler panicked. The key is released, and it's unknown what the handler did before.
    Panic,
    /// The handler's process died, and its executor lives on; or the handler doesn't know. The claim is marked as
    /// unanswered.
    Interrupt,
    /// The question's answer is that an earlier attempt had its effect. Its outcome is recorded.
    Found,
    /// The question's answer is that the remote system refused for good. That's recorded as a permanent failure.
    FoundFailed,
    /// The question's answer is that the earlier attempts had no effect, and will have none. The handler runs if it may.
    Absent,
    /// The question failed or panicked.
    NotKnown,
    /// The question's answer is to ask again after a tick.
    NotYet,
}

impl Verdict {
    /// All answers to a question.
    pub const ANSWERS: &[Self] =
        &[Self::Found, Self::FoundFailed, Self::Absent, Self::NotKnown, Self::NotYet];

    /// Whether this is an outcome that was found by asking.
    pub fn is_found(self) -> bool {
        matches!(self, Self::Found | Self::FoundFailed)
    }
}

/// The effect of a delivery's handler on the remote system, as far as an outside observer knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RemoteEffect {
    /// The handler hasn't started, or it said that nothing happened.
    #[default]
    None,
    /// The handler runs, or ended without an answer: its effect may be on its way.
    Possible,
    /// The handler had its effect.
    Happened,
    /// The remote system said that the effect didn't happen, and won't.
    Absent,
    /// The handler belongs to an operation that's over.
    Past,
}

/// One executor. Executors are interchangeable, so [`ExploredState::tidy`] sorts them, first by clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The number of the executor's clock in the configuration.
    pub clock: u8,
    /// How many deliveries the executor may still take.
    pub attempts_left: u8,
    /// The executor's current stage.
    pub stage: Stage,
    /// Whether the executor must decide what it does at this moment, before anything else happens.
    pub is_urgent: bool,
    /// Whether the SDK has already sent the write once and doesn't know the result.
    pub is_retried: bool,
    /// Whether the handler runs, or ran, without a claim. For an operator: whether the SDK has sent an earlier write twice.
    pub is_open: bool,
    /// Whether the remote system is asked for the effect of an earlier attempt, in place of the handler.
    pub is_question: bool,
    /// Whether an earlier attempt at the last request had an ambiguous result.
    pub is_in_doubt: bool,
    /// Whether the store has reported that it can never store the response.
    pub is_unstorable: bool,
    /// How often the executor has retried a request to the store since its handler ended.
    pub retries: u8,
    /// The moment when the handler ended; 0 if the time for retries is unlimited.
    pub ended_at: u8,
    /// The store's response.
    pub answer: Answer,
    /// The delivery that the executor is processing.
    pub delivery: u8,
    /// The number of the delivery's plan.
    pub plan: u32,
    /// The number of the machine's state.
    pub machine: u32,
    /// The number of the write that the executor sent last.
    pub write: u32,
    /// The number of the record in the response.
    pub record: u32,
    /// The number of the claim under which the handler runs, or ran.
    pub held: u32,
}

impl Slot {
    /// Ends the executor's delivery, whatever the reason.
    pub fn end(&mut self) {
        *self = Self { clock: self.clock, attempts_left: self.attempts_left, ..Self::default() };
        self.is_urgent = self.attempts_left > 0;
    }

    /// Begins a new moment: an executor that waited decides again.
    pub fn awake(&mut self) {
        self.is_urgent = match self.stage {
            Stage::Idle => self.attempts_left > 0,
            // At a later moment less time is left, so the executor may give up on its write.
            Stage::Applying | Stage::Answered | Stage::Pausing | Stage::Running | Stage::Extending => true,
            // The time doesn't affect the step after a failed read.
            Stage::Reading => false,
        };
    }

    /// Whether the executor is processing a delivery.
    pub fn is_active(&self) -> bool {
        self.stage != Stage::Idle
    }
}

/// A write whose sender gave up on it. It may still reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Late {
    /// The write's number, or 0 for none.
    pub write: u32,
    /// The delivery that sent it.
    pub sender: u8,
}

/// An applied transaction whose token the store may still remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Made {
    /// The transaction's number, or 0 for none.
    pub write: u32,
    /// The moment when it was applied.
    pub time: u8,
}

/// The facts that the invariants need about a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delivery {
    /// The request that was delivered.
    pub request: u8,
    /// Whether the handler has started.
    pub has_started: bool,
    /// How the handler ended.
    pub verdict: Verdict,
    /// Whether the delivery's settlement (outcome, failure or release) was ever in the store.
    pub is_stored: bool,
    /// Whether the handler ever had its own writes.
    pub has_writes: bool,
    /// Whether the handler's own writes were applied.
    pub has_effect: bool,
    /// Whether the delivery got the definite answer that its own writes weren't applied, and never will be.
    pub is_denied: bool,
    /// Whether the delivery got the answer that it claimed nothing.
    pub is_refused: bool,
    /// Whether the sweeper has removed a record while this delivery was sending its claim, or while that claim was in
    /// flight.
    pub is_overtaken: bool,
    /// Whether the question under the delivery's own claim was answered "did not happen".
    pub is_cleared: bool,
    /// The handler's effect on the remote system, in a space with a reconciler.
    pub remote: RemoteEffect,
    /// The first moment at which an effect that's possible has surely arrived; 0 while the handler runs.
    pub arrived: u8,
}

/// The facts about the operation that uses the key, as an outside observer sees them. They're derived from the
/// events alone, without the protocol's rules and without the record's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The operation's request.
    pub request: u8,
    /// Whether the operation has an outcome. If so, the next claim belongs to another operation.
    pub is_over: bool,
    /// Whether an earlier claim's handler panicked, or started and stored neither an outcome nor a release.
    pub was_interrupted: bool,
    /// Whether an earlier claim was left unsettled in the store, or its handler panicked. The record of such
    /// a claim doesn't show whether its handler ran.
    pub was_left: bool,
}

impl Operation {
    /// Returns the operation after a claim for `request`. `holder` is the delivery whose claim is still
    /// stored, if any.
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

    /// Notes that the handler panicked and that its claim was released.
    pub fn panicked(&mut self) {
        (self.was_interrupted, self.was_left) = (true, true);
    }

    /// Notes that the operation has an outcome.
    pub fn end(&mut self) {
        *self = Self { is_over: true, ..Self::default() };
    }
}

/// An explored state, with the little history that the invariants need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExploredState {
    /// The current moment: its index in [`Configuration::times`](crate::configuration::Configuration::times).
    pub time: u8,
    /// The record's number, or 0 for none.
    pub record: u32,
    /// The delivery that owns the claim or the outcome in the record, or [`NOBODY`].
    pub holder: u8,
    /// The facts about the operation that uses the key.
    pub operation: Operation,
    /// Under at-most-once, whether a handler has run since the key was last free.
    pub has_run: bool,
    /// The highest generation under which a handler has started.
    pub highest_start: u64,
    /// How many faults may still happen.
    pub faults_left: u8,
    /// How often a clock may still jump.
    pub jumps_left: u8,
    /// How often an operator may still decide on a write.
    pub operations_left: u8,
    /// How often leases may still be extended.
    pub extensions_left: u8,
    /// How often a condition on a handler's own writes may still fail.
    pub declines_left: u8,
    /// Whether the current operator's write was applied.
    pub is_resolved: bool,
    /// The writes in flight whose operators got the answer that nothing was written.
    pub unwritten: u8,
    /// Whether the last write to the record was a transaction that also applied the handler's own writes.
    pub has_effect: bool,
    /// How many deliveries have begun.
    pub delivered: u8,
    /// The executors, and an operator after them.
    pub slots: [Slot; MAX_SLOTS],
    /// The writes still in flight.
    pub late: [Late; MAX_LATE],
    /// The applied transactions that may arrive again, and whose tokens the store may still remember.
    pub made: [Made; MAX_MADE],
    /// The facts about each delivery to which an executor, a write in flight or the record still refers.
    pub deliveries: [Delivery; MAX_DELIVERIES],
}

impl ExploredState {
    /// Sorts the lists whose order has no meaning, and forgets the facts that nothing depends on. States that behave
    /// alike are then equal.
    pub fn tidy(&mut self, executors: usize) {
        self.slots[..executors].sort_unstable();
        self.late.sort_unstable();
        let (slots, late) = (self.slots, self.late);
        self.is_resolved &= slots.iter().any(|slot| slot.is_active() && slot.delivery == NOBODY);
        if !late.iter().any(|late| late.write != 0 && late.sender == NOBODY) {
            self.unwritten = 0;
        }
        for made in &mut self.made {
            let may_come = slots.iter().any(|slot| slot.write == made.write)
                || late.iter().any(|late| late.write == made.write);
            if !may_come {
                *made = Made::default();
            }
        }
        self.made.sort_unstable();
        // A response that no executor has processed yet may show an outcome that's no longer in the store.
        // So the facts about the delivery that recorded that outcome must be kept.
        if self.slots.iter().any(|slot| slot.answer != Answer::None) {
            return;
        }
        for (delivery, number) in self.deliveries.iter_mut().zip(0..) {
            let matters = self.holder == number
                || !matches!(delivery.remote, RemoteEffect::None | RemoteEffect::Past)
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
            | u64::from(self.operations_left & 0xf) << 48
            | u64::from(self.is_resolved) << 52
            | u64::from(self.unwritten & 0x7) << 53
            | u64::from(self.extensions_left & 0xf) << 56
            | u64::from(self.declines_left & 0xf) << 60;
        words[1] = u64::from(self.record);
        words[2] = self.highest_start;
        let mut all = 0u128;
        for delivery in self.deliveries {
            let bits = u64::from(delivery.request & 1)
                | (delivery.verdict as u64) << 1
                | u64::from(delivery.is_stored) << 5
                | u64::from(delivery.has_started) << 6
                | u64::from(delivery.has_writes) << 7
                | u64::from(delivery.has_effect) << 8
                | u64::from(delivery.is_denied) << 9
                | u64::from(delivery.is_refused) << 10
                | u64::from(delivery.is_overtaken) << 11
                | u64::from(delivery.is_cleared) << 12
                | (delivery.remote as u64) << 13
                | u64::from(delivery.arrived & 0xf) << 16;
            all = all << 20 | u128::from(bits);
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
                | u64::from(slot.is_question) << 28
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
