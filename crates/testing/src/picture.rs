//! The story of a test as a drawing, and the page of a failed test.

use std::{
    env, fs, io,
    panic::Location,
    path::{self, PathBuf},
    thread,
};

use super::{
    drawing::{self, Event, Part, Section, Shape, Tone, is_crowd, lined_up, page, svg},
    effect::{Happened, Lookup},
    fault::Fault,
    point::{Call, Point},
    told::{Told, duration, is_again},
    world::Delivered,
};

const CALLER: &str = "caller";
const RECORDS: &str = "records";
const EFFECTS: &str = "effects";
/// The folder for the pages of failed tests.
const FOLDER: &str = "DRAW_FAILURES";

const LEGEND: &[&str] = &[
    "Time runs downwards, and each line is a participant. The caller delivers an event to a process of the function and gets its \
     answer. “records” is the store in which the library keeps one record per operation, and “effects” is the test's ledger. A purple \
     arrow with a dot is an effect, a red arrow or mark is a fault that the kit caused, a green arrow is a write that was applied or an \
     answer of success, and an amber arrow is what was refused or had no effect. The answer to a refused claim brings the record.",
];

/// Draws one event of the story.
pub(super) fn event(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<Event> {
    let event = plain(told, effects, deliveries)?;
    // A drawing has no code style.
    Some(Event { text: event.text.replace('`', ""), ..event })
}

fn plain(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<Event> {
    let process = |delivery: &usize| Some(drawing::process(deliveries.get(*delivery)?.process + 1));
    Some(match told {
        Told::Delivered { delivery, what } => {
            let what = if what.is_empty() { "the event" } else { what };
            Event::arrow(
                CALLER,
                &process(delivery)?,
                format!("delivery {}: {what}", delivery + 1),
                Tone::Plain,
            )
        }
        Told::Wrote { delivery, call } => Event::arrow(&process(delivery)?, RECORDS, does(*call), Tone::Good),
        Told::Refused { delivery, call } => {
            Event::arrow(&process(delivery)?, RECORDS, format!("{}: refused", does(*call)), Tone::Refused)
        }
        Told::Read { delivery } => {
            Event::arrow(&process(delivery)?, RECORDS, "reads the record", Tone::Plain)
        }
        Told::Happened { delivery, effect } => {
            let effect = effects.get(*effect)?;
            let again = if is_again(effect, effects) { " AGAIN" } else { "" };
            let late = if effect.is_late { ", AFTER its answer" } else { "" };
            let text = format!("`{}` happens{again}: {}{late}", effect.name, effect.detail);
            let (from, text) = match effect.is_staged() {
                true => (RECORDS.to_owned(), format!("{text}, in one transaction")),
                false => (process(delivery)?, text),
            };
            Event::arrow(&from, EFFECTS, text, Tone::Effect)
        }
        Told::Deduplicated { delivery, effect, detail } => {
            let effect = effects.get(*effect)?;
            let but = if *detail == effect.detail { "" } else { " with OTHER details" };
            let text = format!("sends `{}` again{but} under the same key: nothing happens", effect.name);
            Event::arrow(&process(delivery)?, EFFECTS, text, Tone::Refused)
        }
        Told::Asked { delivery, effect, answer, .. } => {
            let answer = match answer {
                Ok(Lookup::Found(_)) => "it happened",
                Ok(Lookup::OnItsWay) => "it's on its way",
                Ok(Lookup::Nothing) => "nothing is known of it",
                Err(_) => "no answer",
            };
            Event::arrow(&process(delivery)?, EFFECTS, format!("asks for `{effect}`: {answer}"), Tone::Plain)
        }
        Told::Arrived { delivery, call, is_applied } => {
            let (fate, tone) = if *is_applied { ("applied", Tone::Good) } else { ("refused", Tone::Refused) };
            Event::arrow(
                &process(delivery)?,
                RECORDS,
                format!("{} arrives late: {fate}", call.described()),
                tone,
            )
        }
        Told::Fault { delivery, point, fault, effect } => {
            struck(&process(delivery)?, *point, *fault, effect.as_deref())
        }
        Told::Ended { delivery, how, is_done: Some(is_done) } => {
            let tone = if *is_done { Tone::Good } else { Tone::Refused };
            Event::arrow(&process(delivery)?, CALLER, format!("answers: {how}"), tone)
        }
        Told::Ended { delivery, how, is_done: None } => {
            Event { shape: Shape::End, tone: Tone::Fault, ..Event::mark(&process(delivery)?, how) }
        }
        Told::Paused { delivery } => {
            Event { tone: Tone::Fault, ..Event::mark(&process(delivery)?, "its process pauses") }
        }
        Told::Passed { seconds } => {
            Event { text: format!("{} pass", duration(*seconds)), shape: Shape::Gap, ..Event::default() }
        }
    })
}

/// Draws a fault: a death ends the process's line, a message that's lost or late doesn't arrive, and a request that the store
/// refuses does.
fn struck(process: &str, point: Point, fault: Fault, effect: Option<&str>) -> Event {
    let text = fault.described(point, effect);
    let (remote, is_answer) = match point {
        Point::Before(_) => (Some(RECORDS), false),
        Point::After(_) => (Some(RECORDS), true),
        Point::BeforeEffect => (Some(EFFECTS), false),
        Point::AfterEffect => (Some(EFFECTS), true),
        Point::Entered | Point::Answered => (None, false),
    };
    let shape = match fault {
        Fault::Die => Shape::End,
        Fault::LoseAnswer
        | Fault::LoseRequest
        | Fault::Late
        | Fault::Retry
        | Fault::RetryLate
        | Fault::Silence
        | Fault::SilenceAfter => Shape::Lost,
        Fault::InternalError | Fault::Throttle | Fault::Conflict | Fault::Refuse | Fault::Slow => {
            Shape::Arrow
        }
        _ => Shape::Mark,
    };
    match remote.filter(|_| matches!(shape, Shape::Lost | Shape::Arrow)) {
        Some(remote) if is_answer => Event { shape, ..Event::arrow(remote, process, text, Tone::Fault) },
        Some(remote) => Event { shape, ..Event::arrow(process, remote, text, Tone::Fault) },
        None if shape == Shape::End => Event { shape, tone: Tone::Fault, ..Event::mark(process, text) },
        None => Event { tone: Tone::Fault, ..Event::mark(process, text) },
    }
}

const fn does(call: Call) -> &'static str {
    match call {
        Call::Claim => "claims the key",
        Call::Reclaim => "claims the key again",
        Call::TakeOver => "takes the claim over",
        Call::Complete => "records the outcome",
        Call::Fail => "records the failure",
        Call::Release => "gives the key back",
        Call::Extend => "extends the lease",
        Call::Conclude => "records the outcome, without a claim",
    }
}

/// Draws a story. With `is_alone`, the drawing is for a separate file.
pub(super) fn figure(title: &str, events: &[Event], is_alone: bool) -> String {
    let mut events = [events.to_vec()];
    let is_crowd = is_crowd(&events[0]);
    for event in events.iter_mut().flatten().filter(|_| is_crowd) {
        let own = [&event.from, &event.to].into_iter().find(|lane| lane.starts_with("process "));
        event.text = own.map_or_else(|| event.text.clone(), |own| format!("{own}: {}", event.text));
    }
    let lanes = lined_up(&mut events, CALLER, &[RECORDS, EFFECTS]);
    let part = |events| Part { events, ..Part::default() };
    svg(title, &lanes, &events.map(part), is_alone)
}

/// A part of a failed test's page.
pub(super) fn section(heading: String, sentences: &[&str], events: &[Event]) -> Section {
    let sentences = sentences.iter().map(|sentence| (None, (*sentence).to_owned())).collect();
    let figure = figure(&heading, events, false);
    Section { heading, ok: false, sentences, figure }
}

/// The page of a failed test.
pub(super) fn failure(title: &str, lead: &str, sections: &[Section]) -> String {
    page(title, lead, LEGEND, sections)
}

/// If the test's environment asks for it, writes the page of a failed check, and says where it is. A test that fails at one
/// line several times keeps the last page.
pub(super) fn kept(at: &Location<'_>, page: impl FnOnce() -> String) -> String {
    let Some(folder) = env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else { return String::new() };
    let folder = path::absolute(&folder).unwrap_or_else(|_| PathBuf::from(&folder));
    // The thread has the test's name.
    let name = format!("{}-{}", thread::current().name().unwrap_or("test"), at.line());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name: String = name.replace("::", ".").chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    let file = folder.join(format!("{name}.html"));
    let written = || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        fs::write(&file, page())
    };
    match written() {
        Ok(()) => format!("\n\nDrawn in {}", file.display()),
        Err(error) => format!("\n\nCan't write {}: {error}. {FOLDER} must name a folder.", file.display()),
    }
}
