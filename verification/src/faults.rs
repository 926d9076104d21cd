//! Lists every choice that's possible next in an explored state: progress and faults.

use lambda_idempotency_testing::Fault;

use crate::{
    configuration::{Configuration, Flow, Host},
    model::{ExploredState, Slot, Stage, Verdict},
};

/// One possible next event in an explored state: progress or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The executor makes no other decision at this moment. If it has a request to send, it sends the request.
    Wait(u8),
    /// True time advances to the next moment. An executor that could act, but waits until then, counts as
    /// frozen.
    Tick,
    /// The sweeper removes the record.
    Sweep,
    /// The write at this index of [`ExploredState::late`], which its sender gave up on, reaches the store.
    Land(u8),
    /// An operator looks at the record, and decides to settle it with this verdict. An earlier operator's write may then
    /// still be in flight, and nobody waits for its answer.
    Operate(Verdict),
    /// This executor's clock jumps to the clock with this number.
    Jump(u8, u8),
    /// This executor receives this request, and processes it with this flow.
    Deliver(u8, u8, Flow),
    /// This executor receives this request with this flow, and no time is left: the fault [`Fault::NoTime`].
    DeliverLate(u8, u8, Flow),
    /// The store receives the executor's write, and answers.
    Answer(u8),
    /// The store receives the executor's transaction. The record's condition holds, but a condition on the
    /// handler's own writes fails.
    Decline(u8),
    /// This fault strikes the executor, its write or its read.
    Fault(u8, Fault),
    /// The store answers the executor's read.
    Read(u8),
    /// The executor looks at the response.
    Look(u8),
    /// The executor's pause is over.
    Resume(u8),
    /// The executor's handler, or its question, ends with this verdict.
    Finish(u8, Verdict),
    /// The executor asks for a longer lease, while its handler runs.
    Extend(u8),
    /// The library cuts the handler off.
    CutOff(u8),
}

/// Replaces the content of `choices` with every possible event in `explored`. Some of the events may turn out to
/// change nothing.
///
/// If an executor's decision doesn't involve the record, it depends only on the moment, not on the other executors.
/// So the executor makes such decisions as soon as possible, and again at each new moment. Within a moment, the
/// exploration tries different orders only for events that touch the record. The other events lead to the same state
/// in many orders, and it explores one of these orders. Dying is a decision that doesn't involve the record: an
/// executor that would do nothing until it dies might as well die at once.
pub fn choices(configuration: &Configuration, explored: &ExploredState, choices: &mut Vec<Choice>) {
    choices.clear();
    if explored.is_over() {
        return;
    }
    let slots = &explored.slots[..configuration.slots()];
    if let Some(at) = slots.iter().position(|slot| slot.is_urgent) {
        decisions(configuration, explored, at, choices);
        return;
    }
    if usize::from(explored.time) + 1 < configuration.times.len() {
        choices.push(Choice::Tick);
    }
    if explored.record != 0 {
        choices.push(Choice::Sweep);
    }
    if explored.operations_left > 0 && explored.record != 0 {
        // An operator neither panics nor dies.
        let is_operators = |verdict: &&Verdict| !matches!(verdict, Verdict::Panic | Verdict::Interrupt);
        let verdicts = configuration.verdicts.iter().filter(is_operators);
        choices.extend(verdicts.map(|&verdict| Choice::Operate(verdict)));
    }
    for (late, number) in explored.late.iter().zip(0..) {
        if late.write != 0 {
            choices.push(Choice::Land(number));
        }
    }
    for (slot, number) in slots.iter().zip(0..) {
        match slot.stage {
            Stage::Applying | Stage::Extending => {
                choices.push(Choice::Answer(number));
                if explored.declines_left > 0 && slot.stage == Stage::Applying {
                    choices.push(Choice::Decline(number));
                }
                if explored.faults_left > 0 && !slot.is_retried {
                    choices.push(Choice::Fault(number, Fault::LoseAnswer));
                    // No client repeats a request in its caller's transaction.
                    if !(slot.is_open && configuration.is_inside()) {
                        choices.push(Choice::Fault(number, Fault::Retry));
                    }
                }
            }
            Stage::Reading => choices.push(Choice::Read(number)),
            Stage::Idle | Stage::Answered | Stage::Pausing | Stage::Running => {}
        }
    }
}

/// The decisions that the executor may take at this moment.
fn decisions(configuration: &Configuration, explored: &ExploredState, at: usize, choices: &mut Vec<Choice>) {
    let (slot, number) = (explored.slots[at], at as u8);
    let may_fail = explored.faults_left > 0;
    choices.push(Choice::Wait(number));
    if may_fail && slot.is_active() && !slot.is_retried {
        choices.push(Choice::Fault(number, Fault::Die));
    }
    let looks_at_clock = !matches!(slot.stage, Stage::Applying | Stage::Reading);
    if explored.jumps_left > 0 && looks_at_clock && at < configuration.executors {
        let clocks = 0..configuration.clocks.len() as u8;
        choices.extend(clocks.filter(|&to| to != slot.clock).map(|to| Choice::Jump(number, to)));
    }
    match slot.stage {
        Stage::Idle => {
            // If an equal executor has already decided to wait, a delivery to this executor would only swap the two.
            let waits = Slot { is_urgent: false, ..slot };
            if explored.slots[..configuration.executors].contains(&waits) {
                return;
            }
            for &flow in configuration.flows {
                let requests = 0..configuration.requests;
                choices.extend(requests.map(|request| Choice::Deliver(number, request, flow)));
                if may_fail {
                    choices.push(Choice::DeliverLate(number, 0, flow));
                }
            }
        }
        Stage::Applying if may_fail => sending(configuration, explored, at, choices),
        Stage::Reading if may_fail => {
            choices.push(Choice::Fault(number, Fault::Throttle));
            if configuration.permanent_faults {
                choices.push(Choice::Fault(number, Fault::Unreadable));
            }
        }
        Stage::Applying | Stage::Reading => {}
        Stage::Answered => choices.push(Choice::Look(number)),
        Stage::Pausing => choices.push(Choice::Resume(number)),
        Stage::Running => {
            running(configuration, slot, number, choices);
            if explored.extensions_left > 0 && !slot.is_open {
                choices.push(Choice::Extend(number));
            }
        }
        Stage::Extending => {
            if may_fail {
                sending(configuration, explored, at, choices);
            }
            running(configuration, slot, number, choices);
            // The executor may give up on the extension in flight, and ask again.
            if explored.extensions_left > 0 {
                choices.push(Choice::Extend(number));
            }
        }
    }
}

/// Adds the ways in which a running handler, or its question, may end.
fn running(configuration: &Configuration, slot: Slot, number: u8, choices: &mut Vec<Choice>) {
    let verdicts = if slot.is_question { Verdict::ANSWERS } else { configuration.verdicts };
    choices.extend(verdicts.iter().map(|&verdict| Choice::Finish(number, verdict)));
    if configuration.host == Host::LetsRun {
        choices.push(Choice::CutOff(number));
    }
}

/// Adds the faults that can happen while a write is sent: the store doesn't receive the write, rejects it, or receives
/// it late.
fn sending(configuration: &Configuration, explored: &ExploredState, at: usize, choices: &mut Vec<Choice>) {
    let (slot, number) = (explored.slots[at], at as u8);
    let mut meets = |faults: &[Fault]| {
        choices.extend(faults.iter().map(|&fault| Choice::Fault(number, fault)));
    };
    meets(&[Fault::Conflict]);
    if slot.is_retried {
        // For a second attempt, only `Conflict` leads to a new state. Any other fault leaves the write ambiguous, and
        // faults of the first attempt already lead to that state.
        return;
    }
    meets(&[Fault::LoseRequest, Fault::Throttle]);
    if explored.late.iter().filter(|late| late.write != 0).count() < usize::from(configuration.in_flight) {
        meets(&[Fault::Late]);
        if !(slot.is_open && configuration.is_inside()) {
            meets(&[Fault::RetryLate]);
        }
    }
    if configuration.permanent_faults {
        meets(&[Fault::Refuse, Fault::Unstorable, Fault::Unreadable]);
    }
}

impl Choice {
    /// The choice's fault; `None` for progress. A configuration limits the number of faults.
    pub fn fault(self) -> Option<Fault> {
        match self {
            Self::Fault(_, fault) => Some(fault),
            Self::DeliverLate(..) => Some(Fault::NoTime),
            _ => None,
        }
    }
}
