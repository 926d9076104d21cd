//! The story of a test as a drawing, and the page of a failed test.

use std::{
    env, fs, io,
    panic::Location,
    path::{self, PathBuf},
};

use super::{
    drawing::{Event, Part, Section, Shape, Tone, lined_up, page, svg},
    effect::{Happened, Lookup},
    fault::Fault,
    point::{Call, Point},
    story::{duration, is_again},
    world::{Delivered, Told},
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
     answer of success, and an amber arrow was refused.",
];

/// Draws one event of the story.
pub(super) fn event(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<Event> {
    let event = plain(told, effects, deliveries)?;
    // A drawing has no code style.
    Some(Event { text: event.text.replace('`', ""), ..event })
}

fn plain(told: &Told, effects: &[Happened], deliveries: &[Delivered]) -> Option<Event> {
    let process = |delivery: &usize| Some(format!("process {}", deliveries.get(*delivery)?.process + 1));
    Some(match told {
        Told::Delivered { delivery, what } => {
            let what = if what.is_empty() { "the event" } else { what };
            arrow(CALLER, &process(delivery)?, format!("delivery {}: {what}", delivery + 1), Tone::Plain)
        }
        Told::Wrote { delivery, call } => {
            arrow(&process(delivery)?, RECORDS, does(*call).to_owned(), Tone::Good)
        }
        Told::Refused { delivery, call } => {
            arrow(&process(delivery)?, RECORDS, format!("{}: refused", does(*call)), Tone::Refused)
        }
        Told::Read { delivery } => {
            arrow(&process(delivery)?, RECORDS, "reads the record".to_owned(), Tone::Plain)
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
            arrow(&from, EFFECTS, text, Tone::Effect)
        }
        Told::Deduplicated { delivery, effect, .. } => {
            let name = &effects.get(*effect)?.name;
            let text = format!("sends `{name}` again under the same key: nothing happens");
            arrow(&process(delivery)?, EFFECTS, text, Tone::Refused)
        }
        Told::Asked { delivery, effect, answer, .. } => {
            let answer = match answer {
                Ok(Lookup::Found(_)) => "it happened",
                Ok(Lookup::OnItsWay) => "it's on its way",
                Ok(Lookup::Nothing) => "nothing is known of it",
                Err(_) => "no answer",
            };
            arrow(&process(delivery)?, EFFECTS, format!("asks for `{effect}`: {answer}"), Tone::Plain)
        }
        Told::Arrived { delivery, call, is_applied } => {
            let (fate, tone) = if *is_applied { ("applied", Tone::Good) } else { ("refused", Tone::Refused) };
            arrow(&process(delivery)?, RECORDS, format!("{} arrives late: {fate}", call.described()), tone)
        }
        Told::Fault { delivery, point, fault, effect } => {
            struck(process(delivery)?, *point, *fault, effect.as_deref())
        }
        Told::Ended { delivery, how, is_done: Some(is_done) } => {
            let tone = if *is_done { Tone::Good } else { Tone::Refused };
            arrow(&process(delivery)?, CALLER, format!("answers: {how}"), tone)
        }
        Told::Ended { delivery, how, is_done: None } => {
            Event { shape: Shape::End, tone: Tone::Fault, ..mark(process(delivery)?, how.clone()) }
        }
        Told::Paused { delivery } => {
            Event { tone: Tone::Fault, ..mark(process(delivery)?, "its process pauses".to_owned()) }
        }
        Told::Passed { seconds } => {
            Event { text: format!("{} pass", duration(*seconds)), shape: Shape::Gap, ..Event::default() }
        }
    })
}

fn arrow(from: &str, to: &str, text: String, tone: Tone) -> Event {
    Event { from: from.to_owned(), to: to.to_owned(), text, tone, ..Event::default() }
}

fn mark(from: String, text: String) -> Event {
    Event { from, text, shape: Shape::Mark, ..Event::default() }
}

/// Draws a fault: a death ends the process's line, a lost message doesn't arrive, and anything else is a mark.
fn struck(process: String, point: Point, fault: Fault, effect: Option<&str>) -> Event {
    let text = fault.described(point, effect);
    let remote = match point {
        Point::Before(_) | Point::After(_) => Some(RECORDS),
        Point::BeforeEffect | Point::AfterEffect => Some(EFFECTS),
        Point::Entered | Point::Answered => None,
    };
    let is_mark = matches!(
        fault,
        Fault::Overlap
            | Fault::Freeze
            | Fault::Unstorable
            | Fault::Unreadable
            | Fault::HideRecord
            | Fault::Outage
    );
    let event = match remote {
        _ if fault == Fault::Die => Event { shape: Shape::End, ..mark(process, text) },
        Some(remote) if !is_mark => {
            let is_answer = matches!(point, Point::After(_) | Point::AfterEffect);
            let (from, to) = if is_answer { (remote, &*process) } else { (&*process, remote) };
            Event { shape: Shape::Lost, ..arrow(from, to, text, Tone::Fault) }
        }
        _ => mark(process, text),
    };
    Event { tone: Tone::Fault, ..event }
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

/// If the test's environment asks for it, writes the page of a failed test, and says where it is.
pub(super) fn kept(at: &Location<'_>, page: impl FnOnce() -> String) -> String {
    let Some(folder) = env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else { return String::new() };
    let name = at.file().replace(['/', '\\', ':'], "-");
    let file = PathBuf::from(folder).join(format!("{}-{}.html", name.trim_matches('-'), at.line()));
    let file = path::absolute(&file).unwrap_or(file);
    let written = || -> io::Result<()> {
        fs::create_dir_all(file.parent().unwrap_or(&file))?;
        fs::write(&file, page())
    };
    match written() {
        Ok(()) => format!("\n\nDrawn in {}", file.display()),
        Err(error) => format!("\n\nCan't write {}: {error}. {FOLDER} must name a folder.", file.display()),
    }
}
