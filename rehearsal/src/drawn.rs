//! The report as a page: each step as a sequence diagram of what the rehearsal saw.

use std::{ops::Range, time::Instant};

use lambda_idempotency_testing::{
    Fault,
    drawing::{self, Event, Part, Section, Shape, Tone, counted, process},
};

use super::{
    report::{Row, all_ok, requests, summary},
    runs::{Runs, Seen, What},
    wire::{Exchange, Meaning, Wire},
};

const LAMBDA: &str = "Lambda";
const RECORDS: &str = "records";
const PAYMENTS: &str = "payments";
const OTHERS: &str = "other tables";
const GATEWAY: &str = "gateway";

const LEGEND: &[&str] = &[
    "Lambda may deliver the same request more than once, kill a process in the middle, or let it sleep. The rehearsal did that to \
     this function, and each drawing shows what it saw. Time runs downwards, and each line is a participant. Lambda hands a request \
     to a process of the function and gets the answer. “records” is the table in which the library keeps one record per request. \
     “payments” or “gateway” is where the effect happens. A purple arrow with a dot is an effect, a red arrow or mark is \
     something that the rehearsal broke, and an amber arrow is a write that the table refused. “3 ×” stands for equal events of several \
     processes.",
    "Why it happens once: before the handler runs, the process must claim the request, by writing a record that says “I'm working on \
     this until then”. That time limit is the claim's lease. The table accepts one claim and refuses all others. Who is refused gets the \
     recorded answer (a replay) or the answer that the request is in progress. When the handler is done, the process records the outcome. If it dies before \
     that, its lease expires, and the next delivery takes the claim over. If it was only asleep, the table refuses its late write, \
     because the claim is no longer its own. But a run that died or slept may already have had its effect, and the next run may have it again: \
     only the function can prevent that.",
];

/// How the example functions prevent a second effect.
const PAID_ONCE: &str = "These functions prevent it: all runs of a request use one payment id, and the table of payments \
     refuses a second one.";

/// Returns what happened in this time, in order.
pub(crate) fn events(runs: &Runs, wire: &Wire, during: Range<Instant>) -> Vec<Event> {
    let mut all: Vec<(Instant, Event)> =
        runs.seen().into_iter().map(|seen| (seen.at, of_process(seen))).collect();
    let (begun, exchanges) = wire.all();
    for exchange in exchanges {
        let sent = begun + exchange.at;
        let served = exchange.served.as_ref().map(|served| begun + served.at);
        let is_late = exchange.is_held && served.is_some();
        all.push((sent, request(&exchange, served.filter(|_| !is_late).is_some())));
        let Some(served) = served else { continue };
        if is_late {
            let event = request(&exchange, true);
            all.push((served, Event { text: format!("the held request arrives: {}", event.text), ..event }));
        }
        if exchange.served_payment() {
            let text = "the payment, in the same transaction".to_owned();
            all.push((served, Event::arrow(RECORDS, PAYMENTS, text, Tone::Effect)));
        }
        if exchange.fault.is_some_and(|fault| fault.amounts_to() == Fault::LoseAnswer) {
            let text = "the answer is lost on its way";
            let lost = Event::arrow(table(&exchange), &process(exchange.port), text, Tone::Fault);
            all.push((served, Event { shape: Shape::Lost, ..lost }));
        }
    }
    all.retain(|(at, _)| *at > during.start && *at <= during.end);
    all.sort_by_key(|(at, _)| *at);
    let ms = |at: Instant| u64::try_from((at - begun.min(at)).as_millis()).ok();
    all.into_iter().map(|(at, event)| Event { at_ms: ms(at), ..event }).collect()
}

impl Exchange {
    /// Whether it made a payment in the transaction that records the outcome.
    fn served_payment(&self) -> bool {
        self.pays && self.to_store && self.applied()
    }
}

fn table(exchange: &Exchange) -> &'static str {
    match exchange {
        Exchange { to_store: true, .. } => RECORDS,
        Exchange { pays: true, .. } => PAYMENTS,
        _ => OTHERS,
    }
}

fn of_process(seen: Seen) -> Event {
    let process = process(seen.process);
    let mark = |text: &str| Event::mark(&process, text);
    let arrow = |from: &str, to: &str, text: String| Event::arrow(from, to, text, Tone::Plain);
    match seen.what {
        What::Delivered(event) => arrow(LAMBDA, &process, format!("delivers {event}")),
        What::Ran => mark("the handler runs"),
        What::Answered(answer, is_success) => {
            let tone = if is_success { Tone::Good } else { Tone::Refused };
            Event { tone, ..arrow(&process, LAMBDA, format!("answers: {answer}")) }
        }
        What::Unanswered(how) => Event { tone: Tone::Fault, ..mark(&how) },
        What::Signal("STOP") => Event { tone: Tone::Fault, ..mark("frozen (SIGSTOP)") },
        What::Signal("CONT") => Event { tone: Tone::Fault, ..mark("continues (SIGCONT)") },
        What::Signal(signal) => {
            Event { tone: Tone::Fault, shape: Shape::End, ..mark(&format!("killed (SIG{signal})")) }
        }
        What::LeaseExpired => {
            let text = "time passes, and the lease of the claim expires".into();
            Event { text, shape: Shape::Gap, ..Event::default() }
        }
        What::AtGateway(what, is_effect) => {
            let tone = if is_effect { Tone::Effect } else { Tone::Plain };
            Event { tone, ..Event::mark(GATEWAY, what) }
        }
    }
}

/// A request as an arrow. If it isn't served, it's one that doesn't arrive.
fn request(exchange: &Exchange, is_served: bool) -> Event {
    let what = match exchange.meaning {
        Meaning::Claim | Meaning::Reclaim => "claims the request",
        Meaning::TakeOver => "takes the claim over",
        Meaning::Complete if exchange.operation == "TransactWriteItems" => {
            "records the outcome, in a transaction"
        }
        Meaning::Complete => "records the outcome",
        Meaning::Fail => "records the failure",
        Meaning::Release => "gives the claim back",
        Meaning::Look => "reads the record",
        Meaning::PartWritten => "writes a part of the outcome",
        Meaning::PartRead => "reads a part of the outcome",
        Meaning::Payment => "pays",
        Meaning::Other => &exchange.operation,
    };
    let again = if exchange.first_attempt { "" } else { ", sent again" };
    let (fate, tone) = match exchange {
        _ if exchange.is_broken() && exchange.served.is_none() => {
            ("the rehearsal makes it fail", Tone::Fault)
        }
        _ if !is_served && exchange.is_held => ("held back, it doesn't arrive", Tone::Fault),
        _ if !is_served => ("no answer yet", Tone::Plain),
        Exchange { meaning: Meaning::Payment, .. } if exchange.applied() => ("paid", Tone::Effect),
        Exchange { meaning: Meaning::Payment, .. } if exchange.refused() => {
            ("refused, it's already paid", Tone::Refused)
        }
        Exchange { meaning: Meaning::Look | Meaning::PartRead, .. } if exchange.applied() => {
            ("read", Tone::Plain)
        }
        _ if exchange.applied() => ("accepted", Tone::Good),
        Exchange { is_own: true, .. } => ("refused, its own first attempt is there", Tone::Refused),
        _ if exchange.meaning.settles() => ("refused, the claim isn't its own", Tone::Refused),
        _ if exchange.refused() => ("refused, there's a record", Tone::Refused),
        _ => ("refused", Tone::Refused),
    };
    let shape = if is_served { Shape::Arrow } else { Shape::Lost };
    let text = format!("{what}{again}: {fate}");
    Event { shape, ..Event::arrow(&process(exchange.port), table(exchange), text, tone) }
}

/// Draws the rows of one step.
pub(crate) fn figure(rows: &[&Row], is_alone: bool) -> String {
    let mut events: Vec<Vec<Event>> = rows.iter().map(|row| row.events.clone()).collect();
    let lanes = drawing::lined_up(&mut events, LAMBDA, &[RECORDS, PAYMENTS, GATEWAY, OTHERS]);
    let parts = rows.iter().zip(events).map(|(row, events)| {
        let heading = format!("{} → {}", row.delivered, row.answered);
        Part { heading, ok: Some(row.ok), events: drawing::grouped(&events) }
    });
    let title = rows.first().map_or_else(String::new, |row| format!("Step {}: {}", row.step, row.name));
    drawing::svg(&title, &lanes, &parts.collect::<Vec<_>>(), is_alone)
}

fn upper(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn happened(row: &Row) -> String {
    let runs = row.handler_runs.map(|runs| format!("{} of the handler", counted(runs, "run")));
    let paid = row.payments_made.map(|paid| counted(paid, "payment"));
    let sent = format!("requests to the table {}", requests(row.requests, &row.operations));
    std::iter::once(row.answered.clone()).chain(runs).chain(paid).chain([sent]).collect::<Vec<_>>().join("; ")
}

fn section(rows: &[&Row]) -> Section {
    let (Some(first), ok) = (rows.first(), rows.iter().all(|row| row.ok)) else { return Section::default() };
    let sum = |count: fn(&Row) -> Option<usize>| rows.iter().map(|row| count(row)).sum::<Option<usize>>();
    let delivers = |event: &&Event| event.from == LAMBDA;
    let deliveries = rows.iter().flat_map(|row| &row.events).filter(delivers).count();
    let in_all = [
        Some(if deliveries == 1 { "1 delivery".to_owned() } else { format!("{deliveries} deliveries") }),
        sum(|row| row.handler_runs).map(|runs| format!("{} of the handler", counted(runs, "run"))),
        sum(|row| row.payments_made).map(|paid| counted(paid, "payment")),
    ];
    let mut sentences =
        vec![(None, format!("In all: {}.", in_all.into_iter().flatten().collect::<Vec<_>>().join(", ")))];
    for row in rows {
        let must = if row.requirements.is_empty() {
            String::new()
        } else {
            format!(" Required: {}.", row.requirements.join("; "))
        };
        sentences.push((Some(row.ok), format!("{}.{must} Seen: {}.", upper(&row.delivered), happened(row))));
        sentences.extend(row.faults.iter().map(|fault| (Some(false), format!("Wrong: {fault}"))));
    }
    Section { heading: format!("{} {}", first.step, first.name), ok, sentences, figure: figure(rows, false) }
}

/// The rows of each step, in the order of the report.
pub(crate) fn steps(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut steps: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match steps.last_mut().filter(|step| step.first().is_some_and(|first| first.step == row.step)) {
            Some(step) => step.push(row),
            None => steps.push(vec![row]),
        }
    }
    steps
}

/// The report as a page that loads nothing.
pub(crate) fn page(function: &str, rows: &[Row], seconds: f32) -> String {
    let sections: Vec<Section> = steps(rows).iter().map(|rows| section(rows)).collect();
    let verdict = if all_ok(rows) { "passed" } else { "FAILED" };
    let pays = rows.iter().any(|row| row.payments_made.is_some());
    let legend: Vec<&str> = LEGEND.iter().copied().chain(pays.then_some(PAID_ONCE)).collect();
    drawing::page(&format!("Rehearsal of {function}: {verdict}"), &summary(rows, seconds), &legend, &sections)
}
