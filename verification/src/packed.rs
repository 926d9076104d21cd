//! The queue of states to explore. Each state is packed into few bytes, since the queue would use most of the
//! memory otherwise.

use std::collections::VecDeque;

use crate::model::{
    Answer, Delivery, ExploredState, Late, Made, Operation, RemoteEffect, Slot, Stage, Verdict,
};

/// The size of a chunk of the queue, in bytes. A chunk is freed once all its states are popped.
const CHUNK: usize = 1 << 20;

/// States in first-in, first-out order, each with its number.
#[derive(Debug)]
pub struct Queue {
    slots: usize,
    chunks: VecDeque<Vec<u8>>,
    /// The read position in the first chunk.
    read: usize,
    worlds: usize,
}

impl Queue {
    /// An empty queue for states with this number of slots.
    pub fn new(slots: usize) -> Self {
        Self { slots, chunks: VecDeque::new(), read: 0, worlds: 0 }
    }

    /// The number of states in the queue.
    pub fn len(&self) -> usize {
        self.worlds
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.worlds == 0
    }

    /// The memory that the queue uses, in bytes.
    pub fn memory(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Appends `explored`.
    pub fn push(&mut self, number: u32, explored: &ExploredState) {
        // The longest packed state takes less than 256 bytes.
        if self.chunks.back().is_none_or(|chunk| chunk.len() + 256 > CHUNK) {
            self.chunks.push_back(Vec::with_capacity(CHUNK));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            put(chunk, number.into());
            pack(chunk, explored, self.slots);
            self.worlds += 1;
        }
    }

    /// Removes and returns the first state.
    pub fn pop(&mut self) -> Option<(u32, ExploredState)> {
        let chunk = self.chunks.front()?;
        let mut bytes = Bytes { bytes: chunk, at: self.read };
        let number = bytes.number() as u32;
        let explored = unpack(&mut bytes, self.slots);
        self.read = bytes.at;
        self.worlds -= 1;
        if self.read == chunk.len() {
            self.chunks.pop_front();
            self.read = 0;
        }
        Some((number, explored))
    }
}

/// Writes a number, seven bits per byte.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn pack(out: &mut Vec<u8>, explored: &ExploredState, slots: usize) {
    let operation = explored.operation;
    out.extend([
        explored.time,
        explored.holder,
        bits([
            explored.has_run,
            explored.has_effect,
            operation.was_interrupted,
            operation.was_left,
            operation.is_over,
            operation.request != 0,
            explored.is_resolved,
            false,
        ]),
        explored.unwritten,
        explored.faults_left,
        explored.jumps_left,
        explored.operations_left,
        explored.extensions_left,
        explored.declines_left,
        explored.delivered,
    ]);
    put(out, explored.record.into());
    put(out, explored.highest_start);
    for slot in &explored.slots[..slots] {
        let flags = [slot.is_urgent, slot.is_retried, slot.is_open, slot.is_in_doubt];
        out.extend([
            slot.clock << 4 | slot.attempts_left,
            (slot.stage as u8) << 4 | slot.answer as u8,
            bits([
                flags[0],
                flags[1],
                flags[2],
                flags[3],
                slot.is_unstorable,
                slot.is_question,
                false,
                false,
            ]),
        ]);
        if slot.is_active() {
            out.extend([slot.delivery, slot.retries, slot.ended_at]);
            for number in [slot.plan, slot.machine, slot.write, slot.record, slot.held] {
                put(out, number.into());
            }
        }
    }
    for late in explored.late {
        put(out, late.write.into());
        if late.write != 0 {
            out.push(late.sender);
        }
    }
    for made in explored.made {
        put(out, made.write.into());
        if made.write != 0 {
            out.push(made.time);
        }
    }
    for delivery in explored.deliveries {
        let Delivery { request, has_started, verdict, is_stored, .. } = delivery;
        let Delivery { has_writes, has_effect, is_denied, is_refused, is_overtaken, .. } = delivery;
        out.push(bits([
            has_started,
            is_stored,
            has_writes,
            has_effect,
            is_denied,
            is_refused,
            is_overtaken,
            request != 0,
        ]));
        out.push(verdict as u8 | u8::from(delivery.is_cleared) << 7);
        out.push(delivery.remote as u8 | delivery.arrived << 4);
    }
}

fn unpack(bytes: &mut Bytes<'_>, used: usize) -> ExploredState {
    let [time, holder, flags] = [(); 3].map(|()| bytes.byte());
    let [has_run, has_effect, was_interrupted, was_left, is_over, request, is_resolved, _] = flagged(flags);
    let unwritten = bytes.byte();
    let [faults_left, jumps_left, operations_left, extensions_left, declines_left, delivered] =
        [(); 6].map(|()| bytes.byte());
    let operation = Operation { request: request.into(), is_over, was_interrupted, was_left };
    let (record, highest_start) = (bytes.number() as u32, bytes.number());
    let mut slots = [Slot::default(); _];
    for slot in &mut slots[..used] {
        let [who, stage, flags] = [(); 3].map(|()| bytes.byte());
        let [is_urgent, is_retried, is_open, is_in_doubt, is_unstorable, is_question, ..] = flagged(flags);
        *slot = Slot {
            clock: who >> 4,
            attempts_left: who & 0xf,
            stage: stage_of(stage >> 4),
            answer: answer_of(stage & 0xf),
            is_urgent,
            is_retried,
            is_open,
            is_in_doubt,
            is_unstorable,
            is_question,
            ..Slot::default()
        };
        if slot.is_active() {
            [slot.delivery, slot.retries, slot.ended_at] = [(); 3].map(|()| bytes.byte());
            [slot.plan, slot.machine, slot.write, slot.record, slot.held] =
                [(); 5].map(|()| bytes.number() as u32);
        }
    }
    let late = [(); _].map(|()| match bytes.number() as u32 {
        0 => Late::default(),
        write => Late { write, sender: bytes.byte() },
    });
    let made = [(); _].map(|()| match bytes.number() as u32 {
        0 => Made::default(),
        write => Made { write, time: bytes.byte() },
    });
    let deliveries = [(); _].map(|()| {
        let [has_started, is_stored, has_writes, has_effect, is_denied, is_refused, is_overtaken, request] =
            flagged(bytes.byte());
        let [verdict, remote] = [(); 2].map(|()| bytes.byte());
        Delivery {
            request: request.into(),
            has_started,
            verdict: verdict_of(verdict & 0x7f),
            is_cleared: verdict >> 7 != 0,
            remote: remote_of(remote & 0xf),
            arrived: remote >> 4,
            is_stored,
            has_writes,
            has_effect,
            is_denied,
            is_refused,
            is_overtaken,
        }
    });
    ExploredState {
        time,
        record,
        holder,
        operation,
        has_run,
        highest_start,
        faults_left,
        jumps_left,
        operations_left,
        extensions_left,
        declines_left,
        is_resolved,
        unwritten,
        has_effect,
        delivered,
        slots,
        late,
        made,
        deliveries,
    }
}

struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let byte = self.bytes[self.at];
        self.at += 1;
        byte
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    }
}

fn bits(flags: [bool; 8]) -> u8 {
    flags.into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag))
}

fn flagged(bits: u8) -> [bool; 8] {
    std::array::from_fn(|at| bits & 1 << at != 0)
}

fn stage_of(number: u8) -> Stage {
    let all = [Stage::Idle, Stage::Applying, Stage::Reading, Stage::Answered, Stage::Pausing, Stage::Running];
    all.into_iter().find(|stage| *stage as u8 == number).unwrap_or(Stage::Extending)
}

fn answer_of(number: u8) -> Answer {
    let all = [Answer::None, Answer::Applied, Answer::Refused];
    all.into_iter().find(|answer| *answer as u8 == number).unwrap_or(Answer::Found)
}

fn verdict_of(number: u8) -> Verdict {
    use Verdict::{Commit, Complete, Fail, Found, FoundFailed, Interrupt, None, NotKnown, Panic, Release};
    let all = [
        None,
        Complete,
        Fail,
        Release,
        Commit,
        Panic,
        Interrupt,
        Found,
        FoundFailed,
        Verdict::Absent,
        NotKnown,
    ];
    all.into_iter().find(|verdict| *verdict as u8 == number).unwrap_or(Verdict::NotYet)
}

fn remote_of(number: u8) -> RemoteEffect {
    use RemoteEffect::{Absent, Happened, None, Possible};
    let all = [None, Possible, Happened, Absent];
    all.into_iter().find(|effect| *effect as u8 == number).unwrap_or(RemoteEffect::Past)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checker::Checker,
        configuration::{Configuration, Flow, Reconciler, TICK},
        faults::choices,
        random::Random,
        under_test::Shipping,
    };

    /// Plays random paths in a space where every event is possible. The queue must return each state unchanged, in
    /// the order in which the states were pushed.
    #[test]
    fn packed_states_round_trip() {
        let configuration = Configuration {
            clocks: vec![0, TICK],
            attempts: 2,
            faults: 6,
            jumps: 1,
            operations: 2,
            extensions: 2,
            declines: 1,
            requests: 2,
            permanent_faults: true,
            settle_within: std::time::Duration::from_secs(60),
            flows: &[Flow::Claim, Flow::Look, Flow::Blind],
            verdicts: &[
                Verdict::Complete,
                Verdict::Fail,
                Verdict::Release,
                Verdict::Commit,
                Verdict::Panic,
                Verdict::Interrupt,
            ],
            ..Configuration::default()
        };
        let asking =
            Configuration { reconciler: Some(Reconciler::HONEST), jumps: 0, ..configuration.clone() };
        let asking = Configuration { flows: &[Flow::Claim], verdicts: &[Verdict::Interrupt], ..asking };
        let mut checkers = [&configuration, &asking].map(|space| Checker::new(&Shipping, space));
        let (mut random, mut options) = (Random::new(7), Vec::new());
        let (mut queue, mut worlds) = (Queue::new(3), Vec::new());
        for number in 0..4000 {
            let checker = &mut checkers[number as usize % 2];
            let mut explored = ExploredState::new(checker.configuration());
            for _ in 0..60 {
                choices(checker.configuration(), &explored, &mut options);
                let Some(&choice) = random.pick(&options) else { break };
                if let Some(happened) = checker.perform(&explored, choice) {
                    explored = happened.explored;
                    queue.push(number, &explored);
                    worlds.push((number, explored));
                }
            }
        }
        assert!(worlds.len() > 50_000 && queue.memory() < 100 * worlds.len(), "{}", queue.memory());
        assert_eq!(queue.len(), worlds.len());
        for expected in worlds {
            assert_eq!(queue.pop(), Some(expected));
        }
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
