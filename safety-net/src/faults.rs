//! What may happen next: every choice that a world leaves open, the good ones and the bad.

use crate::{
    configuration::{Configuration, Flow, Host},
    model::{Slot, Stage, Verdict, World},
};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The executor does nothing more at this moment, or sends what it is about to send.
    Wait(u8),
    /// True time goes on to the next moment. Executors that are not scheduled meanwhile are frozen.
    Tick,
    /// The sweeper removes the record.
    Sweep,
    /// A write that was given up on reaches the store: the one with this number.
    Land(u8),
    /// An operator looks at the record, and sends a write that settles it so.
    Operate(Verdict),
    /// This executor's clock jumps to that one.
    Jump(u8, u8),
    /// This executor is delivered this request, and goes about it so.
    Deliver(u8, u8, Flow),
    /// The same, with a deadline that is this very moment.
    DeliverLate(u8, u8, Flow),
    /// The store gets the executor's write, and answers.
    Answer(u8),
    /// The store gets the executor's transaction; the record's condition holds, and one of the handler's own fails.
    Decline(u8),
    /// The store makes the write; the answer is lost.
    LoseAnswer(u8),
    /// The store never gets the write; the executor cannot tell.
    LoseWrite(u8),
    /// The executor gives up on a write that is still on its way.
    Delay(u8),
    /// The store makes the write, the answer is lost, and the SDK sends the write again.
    Retry(u8),
    /// The SDK gives up on a write that is still on its way, and sends it again.
    RetryDelayed(u8),
    /// The store throttles.
    Throttle(u8),
    /// Another transaction has the record.
    Conflict(u8),
    /// The store refuses the request as such.
    Reject(u8),
    /// The store will never take the response in it.
    RejectContent(u8),
    /// The store holds something that cannot be read.
    Garble(u8),
    /// The store answers the executor's read.
    Read(u8),
    /// The read fails.
    FailRead(u8),
    /// The read finds something that cannot be read.
    GarbleRead(u8),
    /// The executor looks at the answer.
    Look(u8),
    /// The executor's pause is over.
    Resume(u8),
    /// The executor's handler ends so.
    Finish(u8, Verdict),
    /// The executor asks for a longer lease, while its handler runs.
    Extend(u8),
    /// The engine cuts the handler off.
    CutOff(u8),
    /// The executor dies.
    Crash(u8),
}

/// Puts everything that may happen in `world` into `choices`; some of it may turn out to change nothing.
///
/// What an executor does by itself, without the record, does not depend on what the others do meanwhile,
/// only on the moment. So it is decided at once when it becomes possible, and again at each new moment:
/// the order within a moment is free only for what touches the record. Of the many orders that lead to
/// the same, this leaves one. To die is such a decision too: who dies later, having done nothing, might
/// as well have died at once.
pub fn choices(configuration: &Configuration, world: &World, choices: &mut Vec<Choice>) {
    choices.clear();
    if world.is_over() {
        return;
    }
    let slots = &world.slots[..configuration.executors];
    if let Some(at) = slots.iter().position(|slot| slot.is_urgent) {
        decisions(configuration, world, at, choices);
        return;
    }
    if usize::from(world.time) + 1 < configuration.times.len() {
        choices.push(Choice::Tick);
    }
    if world.record != 0 {
        choices.push(Choice::Sweep);
    }
    if world.operations_left > 0 && world.record != 0 {
        // An operator does not panic.
        let verdicts = configuration.verdicts.iter().filter(|&&verdict| verdict != Verdict::Panic);
        choices.extend(verdicts.map(|&verdict| Choice::Operate(verdict)));
    }
    for (late, number) in world.late.iter().zip(0..) {
        if late.write != 0 {
            choices.push(Choice::Land(number));
        }
    }
    for (slot, number) in slots.iter().zip(0..) {
        match slot.stage {
            Stage::Applying | Stage::Extending => {
                choices.push(Choice::Answer(number));
                if world.declines_left > 0 && slot.stage == Stage::Applying {
                    choices.push(Choice::Decline(number));
                }
                if world.faults_left > 0 && !slot.is_retried {
                    choices.extend([Choice::LoseAnswer(number), Choice::Retry(number)]);
                }
            }
            Stage::Reading => choices.push(Choice::Read(number)),
            Stage::Idle | Stage::Answered | Stage::Pausing | Stage::Running => {}
        }
    }
}

/// What the executor may decide at this moment.
fn decisions(configuration: &Configuration, world: &World, at: usize, choices: &mut Vec<Choice>) {
    let (slot, number) = (world.slots[at], at as u8);
    let may_fail = world.faults_left > 0;
    choices.push(Choice::Wait(number));
    if may_fail && slot.is_active() && !slot.is_retried {
        choices.push(Choice::Crash(number));
    }
    let looks_at_clock = !matches!(slot.stage, Stage::Applying | Stage::Reading);
    if world.jumps_left > 0 && looks_at_clock {
        let clocks = 0..configuration.clocks.len() as u8;
        choices.extend(clocks.filter(|&to| to != slot.clock).map(|to| Choice::Jump(number, to)));
    }
    match slot.stage {
        Stage::Idle => {
            // Of two that are alike, the one that came first has decided for both to wait.
            let waits = Slot { is_urgent: false, ..slot };
            if world.slots[..configuration.executors].contains(&waits) {
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
        Stage::Applying if may_fail => sending(configuration, world, at, choices),
        Stage::Reading if may_fail => {
            choices.push(Choice::FailRead(number));
            if configuration.permanent_faults {
                choices.push(Choice::GarbleRead(number));
            }
        }
        Stage::Applying | Stage::Reading => {}
        Stage::Answered => choices.push(Choice::Look(number)),
        Stage::Pausing => choices.push(Choice::Resume(number)),
        Stage::Running => {
            running(configuration, number, choices);
            if world.extensions_left > 0 && !slot.is_open {
                choices.push(Choice::Extend(number));
            }
        }
        Stage::Extending => {
            if may_fail {
                sending(configuration, world, at, choices);
            }
            running(configuration, number, choices);
            // It gives the one up that is on its way, and asks again.
            if world.extensions_left > 0 {
                choices.push(Choice::Extend(number));
            }
        }
    }
}

/// How a handler that runs may end.
fn running(configuration: &Configuration, number: u8, choices: &mut Vec<Choice>) {
    choices.extend(configuration.verdicts.iter().map(|&verdict| Choice::Finish(number, verdict)));
    if configuration.host == Host::LetsRun {
        choices.push(Choice::CutOff(number));
    }
}

/// What may go wrong with a write that does not reach the store, or not now.
fn sending(configuration: &Configuration, world: &World, at: usize, choices: &mut Vec<Choice>) {
    let (slot, number) = (world.slots[at], at as u8);
    choices.push(Choice::Conflict(number));
    if slot.is_retried {
        // Whatever else happens to a second attempt is as doubtful as if there had been none.
        return;
    }
    choices.extend([Choice::LoseWrite(number), Choice::Throttle(number)]);
    if world.late.iter().filter(|late| late.write != 0).count() < usize::from(configuration.in_flight) {
        choices.extend([Choice::Delay(number), Choice::RetryDelayed(number)]);
    }
    if configuration.permanent_faults {
        choices.extend([Choice::Reject(number), Choice::RejectContent(number), Choice::Garble(number)]);
    }
}

impl Choice {
    /// Whether it counts as a fault, of which a configuration may allow only so many.
    pub fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Wait(_)
                | Self::Tick
                | Self::Sweep
                | Self::Land(_)
                | Self::Operate(_)
                | Self::Jump(..)
                | Self::Deliver(..)
                | Self::Answer(_)
                | Self::Decline(_)
                | Self::Read(_)
                | Self::Look(_)
                | Self::Resume(_)
                | Self::Finish(..)
                | Self::Extend(_)
                | Self::CutOff(_)
        )
    }
}
