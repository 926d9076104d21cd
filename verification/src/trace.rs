//! Describes a path through the explored states.

use std::fmt;

use lambda_idempotency::{
    store::{Generation, Mark as RecordMark, Put, Record, State as RecordState, Status},
    time::Timestamp,
};
use lambda_idempotency_testing::{Call, Fault};

use crate::{
    checker::Checker,
    configuration::{DAY, Flow, drawn_by, since_beginning},
    faults::Choice,
    model::{Answer, ExploredState, NOBODY, Stage, Verdict},
    under_test::{Protocol, Purpose, Sent},
};

/// The events, one per line.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The lines.
    pub lines: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, number) in self.lines.iter().zip(1..) {
            writeln!(f, "{number:>3}. {line}")?;
        }
        Ok(())
    }
}

/// Replays the path and describes it.
pub fn tell<P: Protocol>(checker: &mut Checker<'_, P>, path: &[Choice]) -> Trace {
    let mut explored = ExploredState::new(checker.configuration());
    let mut lines = Vec::new();
    for &choice in path {
        let Some(happened) = checker.perform(&explored, choice) else { break };
        if let Choice::Wait(_) = choice {
            explored = happened.explored;
            continue;
        }
        let what = telling(checker, &explored, choice, &happened.explored);
        let record = match checker.record(happened.explored.record) {
            Some(record) if happened.explored.record != explored.record => format!("   [{}]", show(record)),
            None if explored.record != 0 => "   [no record]".to_owned(),
            _ => String::new(),
        };
        let broken: String =
            happened.flaws.iter().map(|flaw| format!("   BROKEN: {}", flaw.promise())).collect();
        lines.push(format!("{:<8} {what}{record}{broken}", moment(checker, explored.time)));
        explored = happened.explored;
    }
    Trace { lines }
}

fn telling<P: Protocol>(
    checker: &Checker<'_, P>,
    before: &ExploredState,
    choice: Choice,
    after: &ExploredState,
) -> String {
    let who = |at: u8| name(before.slots[usize::from(at)].delivery);
    let write = |at: u8| sent(checker, before.slots[usize::from(at)].write);
    let then = |at: u8| next(checker, after, before.slots[usize::from(at)].delivery);
    let of_new = || next(checker, after, before.delivered);
    match choice {
        Choice::Wait(at) => format!("{} waits", who(at)),
        Choice::Tick => format!("time advances to {}", moment(checker, after.time)),
        Choice::Sweep => "the sweeper removes the record".to_owned(),
        Choice::Land(at) => {
            let late = before.late[usize::from(at)];
            let fate = if after.record == before.record { "is refused" } else { "is applied" };
            let sender =
                if late.sender == NOBODY { "an operator".to_owned() } else { name(late.sender).into() };
            format!("{sender}'s late {} arrives and {fate}", sent(checker, late.write))
        }
        Choice::Operate(_) => format!("an operator decides{}", next(checker, after, NOBODY)),
        Choice::Jump(at, clock) => {
            format!("{}'s clock jumps to {}", who(at), ahead(checker, clock))
        }
        Choice::Deliver(at, request, flow) | Choice::DeliverLate(at, request, flow) => {
            let time = if matches!(choice, Choice::Deliver(..)) { "" } else { ", with no time left" };
            let clock = ahead(checker, before.slots[usize::from(at)].clock);
            let how = match flow {
                Flow::Claim => "",
                Flow::Look => ", without a claim",
                Flow::Blind => ", without a claim or a read",
                Flow::Inside => ", in its caller's transaction",
            };
            format!(
                "{} is delivered (request {request}, clock {clock}{how}{time}){}",
                name(before.delivered),
                of_new()
            )
        }
        Choice::Answer(at) => {
            format!("the store receives {}'s {}{}", who(at), write(at), then(at))
        }
        Choice::Decline(at) => {
            format!(
                "the store receives {}'s {}: a condition on the handler's own writes fails{}",
                who(at),
                write(at),
                then(at)
            )
        }
        Choice::Fault(at, fault) => {
            let is_read = before.slots[usize::from(at)].stage == Stage::Reading;
            let what = if is_read { "read".to_owned() } else { write(at) };
            let goes_on = !matches!(fault, Fault::Die | Fault::Retry | Fault::RetryLate);
            let then = if goes_on { then(at) } else { String::new() };
            format!("{}{then}", struck(fault, who(at), &what))
        }
        Choice::Read(at) => format!("the store answers {}'s read", who(at)),
        Choice::Look(at) => {
            let slot = before.slots[usize::from(at)];
            let shown = checker.record(slot.record).map_or("no record".to_owned(), show);
            let shown = if slot.answer == Answer::Applied { "applied".to_owned() } else { shown };
            format!("{} (clock {}) sees: {shown}{}", who(at), own_time(checker, before, at), then(at))
        }
        Choice::Resume(at) => format!("{}'s pause is over{}", who(at), then(at)),
        Choice::Finish(at, verdict) => {
            let how = match verdict {
                Verdict::Complete => "completes",
                Verdict::Fail => "fails permanently",
                Verdict::Release | Verdict::None => "asks to release the key",
                Verdict::Commit => "completes, with its own writes",
                Verdict::Panic => "panics",
                Verdict::Interrupt => "dies with its process",
                Verdict::Found => "is answered: it happened",
                Verdict::FoundFailed => "is answered: it failed for good",
                Verdict::Absent => "is answered: it did not happen",
                Verdict::NotKnown => "fails",
                Verdict::NotYet => "is answered: not known yet",
            };
            let what = if before.slots[usize::from(at)].is_question { "question" } else { "handler" };
            format!("{}'s {what} {how} (clock {}){}", who(at), own_time(checker, before, at), then(at))
        }
        Choice::Extend(at) => format!("{} asks for a longer lease{}", who(at), then(at)),
        Choice::CutOff(at) => format!("{}'s handler is cut off", who(at)),
    }
}

/// Describes a fault of an executor, or of its request.
fn struck(fault: Fault, who: char, what: &str) -> String {
    match fault {
        Fault::Die => format!("{who} dies"),
        Fault::LoseAnswer => format!("the store applies {who}'s {what}; the response is lost"),
        Fault::LoseRequest => format!("{who}'s {what} is lost"),
        Fault::Late => format!("{who} gives up on its {what}, which is still in flight"),
        Fault::Retry => {
            format!("the store applies {who}'s {what}; the response is lost, and the SDK retries")
        }
        Fault::RetryLate => format!("{who}'s {what} is slow, and the SDK retries"),
        Fault::Throttle => format!("{who}'s {what} is throttled"),
        Fault::Conflict => format!("{who}'s {what} conflicts with another transaction"),
        Fault::Refuse => format!("{who}'s {what} is rejected as invalid"),
        Fault::Unstorable => format!("{who}'s {what} has a response that the store rejects permanently"),
        Fault::Unreadable => format!("{who}'s {what} finds an unreadable record"),
        other => format!("{who}'s {what}: {other}"),
    }
}

/// Describes the next action of a delivery.
fn next<P: Protocol>(checker: &Checker<'_, P>, after: &ExploredState, delivery: u8) -> String {
    let slot = after.slots.iter().find(|slot| slot.is_active() && slot.delivery == delivery);
    let Some(slot) = slot else { return " → done".to_owned() };
    match slot.stage {
        Stage::Applying => format!(" → sends {}", sent(checker, slot.write)),
        Stage::Reading => " → reads".to_owned(),
        Stage::Answered => " → has a response to process".to_owned(),
        Stage::Pausing => " → pauses".to_owned(),
        Stage::Running => match checker.claim(slot.held) {
            Some(held) if slot.is_question => {
                format!(" → asks, lease until {}", show_time(held.lock.lease_until))
            }
            Some(held) => format!(" → ITS HANDLER RUNS, lease until {}", show_time(held.lock.lease_until)),
            None => " → its handler runs without a claim".to_owned(),
        },
        Stage::Extending => format!(" → sends {}", sent(checker, slot.write)),
        Stage::Idle => String::new(),
    }
}

fn sent<P: Protocol>(checker: &Checker<'_, P>, write: u32) -> String {
    let Some(Sent { put, submission }) = checker.sent(write) else { return "nothing".to_owned() };
    if let Some(submission) = submission {
        return format!("transaction {submission} with a {}", shown(put));
    }
    shown(put)
}

fn shown(put: &Put) -> String {
    let new = put.record();
    let status = new.status().as_str();
    let what = match (Purpose::of(put), Call::of(put)) {
        (Purpose::Claim, Call::Claim) => "T1 claim".to_owned(),
        (Purpose::Claim, Call::TakeOver) => "T3 takeover".to_owned(),
        (Purpose::Claim, _) => "T2 reclaim".to_owned(),
        (Purpose::Settle, _) if new.status() == Status::Failed => "T5 failure".to_owned(),
        (Purpose::Settle, _) if new.status() == Status::Completed => "T4 completion".to_owned(),
        (Purpose::Settle, _) if new.mark.is_interrupted() => "T6 release, interrupted".to_owned(),
        (Purpose::Settle, _) => "T6 release".to_owned(),
        (Purpose::Extend, _) => "T7 extension".to_owned(),
        (Purpose::Interrupt, _) => "T9 interruption".to_owned(),
        (Purpose::Conclude, _) => format!("conclusion as {status}"),
        (Purpose::Resolve, _) => format!("settlement as {status}"),
    };
    let of = match put {
        Put::Replace { seen, .. } if Purpose::of(put) != Purpose::Extend => {
            format!(" over {}'s record", name(drawn_by(seen.owner).0))
        }
        _ => String::new(),
    };
    let lease =
        new.lease_until().map_or_else(String::new, |lease| format!("lease until {}, ", show_time(lease)));
    format!("{what}{of} ({lease}generation {})", show_generation(new.generation))
}

fn show(record: &Record) -> String {
    let owner = name(drawn_by(record.owner).0);
    let generation = show_generation(record.generation);
    let expires = record
        .expires_at
        .map_or_else(|| "never expires".to_owned(), |at| format!("expires {}", show_time(at)));
    let mark = match record.mark {
        RecordMark::None => "",
        RecordMark::Interrupted => ", interrupted",
        RecordMark::Unanswered => ", unanswered",
        RecordMark::Reconciled => ", reconciled",
    };
    let state = match &record.state {
        RecordState::Started { lease_until } => format!("STARTED until {}", show_time(*lease_until)),
        RecordState::Completed(_) => "COMPLETED".to_owned(),
        RecordState::Failed(_) => "FAILED".to_owned(),
        RecordState::Released => "RELEASED".to_owned(),
    };
    format!("{state} by {owner}, generation {generation}, {expires}{mark}")
}

fn name(delivery: u8) -> char {
    // An operator isn't a delivery, so it has no letter.
    if delivery == NOBODY {
        return '?';
    }
    char::from(b'A'.saturating_add(delivery.min(25)))
}

fn moment<P: Protocol>(checker: &Checker<'_, P>, time: u8) -> String {
    show_time(checker.configuration().moment(time))
}

fn own_time<P: Protocol>(checker: &Checker<'_, P>, explored: &ExploredState, at: u8) -> String {
    show_time(checker.configuration().clock(explored.time, explored.slots[usize::from(at)].clock))
}

fn ahead<P: Protocol>(checker: &Checker<'_, P>, clock: u8) -> String {
    let ahead = checker.configuration().clocks.get(usize::from(clock)).copied().unwrap_or(0);
    format!("{}{}", if ahead < 0 { '-' } else { '+' }, length(ahead.abs()))
}

/// Formats a generation. It's a time, or 0 for none.
fn show_generation(generation: Generation) -> String {
    match generation.get() {
        0 => "none".to_owned(),
        millis => show_time(Timestamp::from_millis(millis)),
    }
}

fn show_time(time: Timestamp) -> String {
    let millis = since_beginning(time);
    if millis < 0 { format!("-{}", length(-millis)) } else { length(millis) }
}

/// Formats a length of time as days and a remainder: `1.5d` or `2d+1ms`.
fn length(millis: i64) -> String {
    let halves = (millis + DAY / 4) / (DAY / 2);
    let rest = millis - halves * (DAY / 2);
    let days = if halves % 2 == 0 { format!("{}d", halves / 2) } else { format!("{}.5d", halves / 2) };
    match rest {
        0 => days,
        rest if rest % 1000 == 0 => format!("{days}{:+}s", rest / 1000),
        rest => format!("{days}{rest:+}ms"),
    }
}
