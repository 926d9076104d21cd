//! The story of a test as a drawing, and the page of a failed test.

use std::{
    env, fs, io,
    panic::Location,
    path::{self, PathBuf},
    thread,
};

use super::{
    drawing::{Event, Part, Section, Shape, Tone, is_crowd, lined_up, page, process, svg},
    effect::Happened,
    fault::Fault,
    point::Point,
    story::{without_last_wait, words},
    told::Told,
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

/// Draws everything that happened in a test.
pub(super) fn events(trace: &[Told], effects: &[Happened], deliveries: &[Delivered]) -> Vec<Event> {
    without_last_wait(trace).iter().filter_map(|told| event(told, effects, deliveries)).collect()
}

fn event(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<Event> {
    // A drawing has no code style.
    let words = words(told, effects, deliveries)?.replace('`', "");
    let Some(delivery) = told.delivery() else {
        return Some(Event { text: words, shape: Shape::Gap, ..Event::default() });
    };
    let process = process(deliveries.get(delivery)?.process + 1);
    let to = |lane, tone| Event::arrow(&process, lane, &words, tone);
    let fault = Event { tone: Tone::Fault, ..Event::mark(&process, &words) };
    Some(match told {
        Told::Delivered { .. } => {
            Event::arrow(CALLER, &process, format!("delivery {}: {words}", delivery + 1), Tone::Plain)
        }
        Told::Wrote { .. } | Told::Arrived { is_applied: true, .. } => to(RECORDS, Tone::Good),
        Told::Refused { .. } | Told::Arrived { .. } => to(RECORDS, Tone::Refused),
        Told::Read { .. } => to(RECORDS, Tone::Plain),
        Told::Happened { effect, .. } if effects.get(*effect)?.is_staged() => {
            Event::arrow(RECORDS, EFFECTS, words, Tone::Effect)
        }
        Told::Happened { .. } => to(EFFECTS, Tone::Effect),
        Told::Deduplicated { .. } => to(EFFECTS, Tone::Refused),
        Told::Asked { .. } => to(EFFECTS, Tone::Plain),
        Told::Ended { is_done: Some(is_done), .. } => {
            to(CALLER, if *is_done { Tone::Good } else { Tone::Refused })
        }
        Told::Ended { is_done: None, .. } => Event { shape: Shape::End, ..fault },
        Told::Fault { point, fault: kind, .. } => struck(fault, *point, *kind),
        Told::Paused { .. } | Told::Passed { .. } => fault,
    })
}

/// Draws a fault: a death ends the process's line, a message that's lost or late doesn't arrive, and a request that the store
/// refuses does. Any other fault stays a mark.
fn struck(mark: Event, point: Point, fault: Fault) -> Event {
    let shape = match fault {
        Fault::Die => return Event { shape: Shape::End, ..mark },
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
        _ => return mark,
    };
    let (from, to) = match point {
        Point::Before(_) => (mark.from, RECORDS.to_owned()),
        Point::After(_) => (RECORDS.to_owned(), mark.from),
        Point::BeforeEffect => (mark.from, EFFECTS.to_owned()),
        Point::AfterEffect => (EFFECTS.to_owned(), mark.from),
        Point::Entered | Point::Answered => return mark,
    };
    Event { from, to, shape, ..mark }
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
