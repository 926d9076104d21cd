//! Draws what happened in a test as a sequence diagram, and puts diagrams on a page. The kit and the rehearsal use it.
//! It has no stable API. Its output is well-formed XML, has no script, and loads nothing.

use std::{collections::BTreeSet, fmt::Write as _};

/// How something is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// An arrow from one participant to another.
    #[default]
    Arrow,
    /// An arrow that doesn't arrive.
    Lost,
    /// A mark on the line of one participant.
    Mark,
    /// A mark at which the participant's line ends.
    End,
    /// A text across all lines: time passes.
    Gap,
}

/// The meaning of something, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// It only happened.
    #[default]
    Plain,
    /// A write was applied, or an answer has the outcome.
    Good,
    /// The protocol refused something.
    Refused,
    /// An effect outside the table of records.
    Effect,
    /// A fault.
    Fault,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Refused => "refused",
            Self::Effect => "effect",
            Self::Fault => "fault",
        }
    }
}

/// One event of a diagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// When it happened, in milliseconds; `None` if only the order is known.
    pub at_ms: Option<u64>,
    /// The participant that did it.
    pub from: String,
    /// The participant at an arrow's end.
    pub to: String,
    /// The text beside it.
    pub text: String,
    /// How it's drawn.
    pub shape: Shape,
    /// Its meaning.
    pub tone: Tone,
}

impl Event {
    /// An arrow.
    #[must_use]
    pub fn arrow(from: &str, to: &str, text: impl Into<String>, tone: Tone) -> Self {
        Self { from: from.to_owned(), to: to.to_owned(), text: text.into(), tone, ..Self::default() }
    }

    /// A mark on one participant's line.
    #[must_use]
    pub fn mark(at: &str, text: impl Into<String>) -> Self {
        Self { from: at.to_owned(), text: text.into(), shape: Shape::Mark, ..Self::default() }
    }
}

/// The line of the process with this number.
#[must_use]
pub fn process(number: usize) -> String {
    format!("process {number}")
}

fn number_of(lane: &str) -> Option<usize> {
    lane.strip_prefix("process ")?.parse().ok()
}

/// Whether these events have more processes than get their own lines: one line is for all of them.
#[must_use]
pub fn is_crowd<'e>(events: impl IntoIterator<Item = &'e Event>) -> bool {
    processes_of(events).len() > MOST_PROCESSES
}

fn processes_of<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<usize> {
    events.into_iter().flat_map(|event| [&event.from, &event.to]).filter_map(|lane| number_of(lane)).collect()
}

/// A part of a diagram: one delivery, or several that were concurrent.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// The heading; empty if the diagram has only one part.
    pub heading: String,
    /// The verdict; `None` if the part has none.
    pub ok: Option<bool>,
    /// The events, in their order.
    pub events: Vec<Event>,
}

/// The width of a diagram in its own units. On a phone, one unit is about one pixel.
const WIDTH: usize = 400;
/// The left margin, which has the times.
const MARGIN: usize = 40;
/// An average character's width, in tenths of a unit.
const CHARACTER: usize = 70;
/// More events than this are combined into groups of equal events.
const MANY: usize = 16;
/// The most lines of one text.
const MOST_LINES: usize = 8;
/// More processes share one line.
const MOST_PROCESSES: usize = 3;

/// The colours and fonts of diagrams, in a light and a dark scheme.
const STYLE: &str = "\
.seq{--bg:#fff;--fg:#1f2328;--soft:#59636e;--line:#c4ccd4;--band:#eef1f4;--plain:#57606a;--good:#1a7f37;--refused:#9a6700;\
--effect:#8250df;--fault:#cf222e;font:12px system-ui,sans-serif;display:block}
@media(prefers-color-scheme:dark){.seq{--bg:#0d1117;--fg:#e6edf3;--soft:#9198a1;--line:#3d444d;--band:#1c2129;--plain:#9198a1;\
--good:#3fb950;--refused:#d29922;--effect:#ab7df8;--fault:#ff7b72}}
.seq rect{fill:var(--bg)}.seq .band{fill:var(--band)}.seq text{fill:var(--fg);text-anchor:middle}
.seq .e text{stroke:var(--bg);stroke-width:3;paint-order:stroke}.seq .e .t{fill:var(--soft);font-size:10px;text-anchor:start}
.seq .h{text-anchor:start;font-weight:600}.seq .life{stroke:var(--line)}.seq path{fill:none;stroke-width:1.6}
.seq .plain path{stroke:var(--plain)}.seq .good path{stroke:var(--good)}.seq .refused path{stroke:var(--refused)}
.seq .effect path{stroke:var(--effect)}.seq .fault path{stroke:var(--fault)}.seq circle{stroke:none}
.seq .plain circle{fill:var(--plain)}.seq .effect circle{fill:var(--effect)}.seq .fault circle,.seq .fault text{fill:var(--fault)}
";

/// Returns the participants of these parts in their order: `first`, then the processes, then the others. If there are many
/// processes, they become one participant.
#[must_use]
pub fn lined_up(parts: &mut [Vec<Event>], first: &str, others: &[&str]) -> Vec<String> {
    let is_crowd = is_crowd(parts.iter().flatten());
    let processes = processes_of(parts.iter().flatten());
    let all = format!("{} processes", processes.len());
    for event in parts.iter_mut().flatten().filter(|_| is_crowd) {
        for lane in [&mut event.from, &mut event.to].into_iter().filter(|lane| number_of(lane).is_some()) {
            lane.clone_from(&all);
        }
        // The line goes on when one of its processes ends.
        if event.shape == Shape::End {
            event.shape = Shape::Mark;
        }
    }
    let alone = processes.into_iter().map(process);
    let processes: Vec<String> = if is_crowd { vec![all] } else { alone.collect() };
    let others = others.iter().map(|other| (*other).to_owned());
    std::iter::once(first.to_owned()).chain(processes).chain(others).collect()
}

/// Draws the parts below each other, with the participants of `lanes` that take part, in this order. The title is read
/// to people who can't see the diagram. With `is_alone`, the diagram has its own style, for a separate file.
#[must_use]
pub fn svg(title: &str, lanes: &[String], parts: &[Part], is_alone: bool) -> String {
    let events = || parts.iter().flat_map(|part| &part.events);
    let lanes: Vec<&str> = lanes
        .iter()
        .map(String::as_str)
        .filter(|lane| events().any(|event| event.from == *lane || event.to == *lane))
        .collect();
    let begin = events().filter_map(|event| event.at_ms).min().unwrap_or_default();
    let left = if events().any(|event| event.at_ms.is_some()) { MARGIN } else { 0 };
    let mut canvas =
        Canvas { lanes: &lanes, left, begin, y: 34, lives: vec![None; lanes.len()], body: String::new() };
    for part in parts {
        canvas.part(part);
    }
    let height = canvas.y + 6;
    let mut heads = String::new();
    for (at, lane) in lanes.iter().enumerate() {
        let x = canvas.x_of(at);
        let until = canvas.lives[at].unwrap_or(height);
        let _ = writeln!(
            heads,
            "<path class=\"life\" d=\"M{x} 24V{until}\"/><text x=\"{x}\" y=\"16\">{}</text>",
            escape(lane)
        );
    }
    let style = if is_alone { format!("<style>{STYLE}</style>\n") } else { String::new() };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"seq\" role=\"img\" style=\"width:100%;max-width:520px\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <title>{}</title>\n{style}<rect width=\"{WIDTH}\" height=\"{height}\"/>\n{heads}{}</svg>\n",
        escape(title),
        canvas.body
    )
}

struct Canvas<'a> {
    lanes: &'a [&'a str],
    left: usize,
    begin: u64,
    y: usize,
    /// Where each line ends; `None` for the lines that go on to the end.
    lives: Vec<Option<usize>>,
    body: String,
}

impl Canvas<'_> {
    fn x_of(&self, lane: usize) -> usize {
        let space = (WIDTH - self.left) / self.lanes.len().max(1);
        self.left + space / 2 + lane * space
    }

    fn lane(&self, name: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| *lane == name)
    }

    fn part(&mut self, part: &Part) {
        self.body.push_str("<g class=\"part\">\n");
        if !part.heading.is_empty() {
            let (class, mark) = match part.ok {
                None => ("h", ""),
                Some(true) => ("h", "✓ "),
                Some(false) => ("h bad", "✗ "),
            };
            let lines = wrap(&format!("{mark}{}", part.heading), 50);
            let (y, height) = (self.y, 15 * lines.len() + 6);
            let _ =
                writeln!(self.body, "<rect class=\"band\" y=\"{y}\" width=\"{WIDTH}\" height=\"{height}\"/>");
            for (nth, line) in lines.iter().enumerate() {
                let y = y + 15 + 15 * nth;
                let _ =
                    writeln!(self.body, "<text class=\"{class}\" x=\"6\" y=\"{y}\">{}</text>", escape(line));
            }
            self.y += height + 2;
        }
        for event in &part.events {
            self.event(event);
        }
        self.body.push_str("</g>\n");
        self.y += 6;
    }

    fn event(&mut self, event: &Event) {
        let (from, to) = (self.lane(&event.from), self.lane(&event.to));
        let (start, end) = match (from, to) {
            (Some(from), Some(to)) => (self.x_of(from), self.x_of(to)),
            (Some(lane), None) | (None, Some(lane)) => (self.x_of(lane), self.x_of(lane)),
            (None, None) => (WIDTH / 2, WIDTH / 2),
        };
        let _ = writeln!(self.body, "<g class=\"e {}\">", event.tone.class());
        for line in wrap(&event.text, 56) {
            self.y += 14;
            let half = line.chars().count() * CHARACTER / 20;
            let middle = usize::midpoint(start, end)
                .clamp((half + 4).min(WIDTH / 2), WIDTH.saturating_sub(half + 4).max(WIDTH / 2));
            let _ = writeln!(self.body, "<text x=\"{middle}\" y=\"{}\">{}</text>", self.y, escape(&line));
        }
        self.y += 9;
        let (y, up, down) = (self.y, self.y - 4, self.y + 4);
        if let Some(at) = event.at_ms {
            let _ = writeln!(
                self.body,
                "<text class=\"t\" x=\"2\" y=\"{}\">{}</text>",
                y + 3,
                time(at - self.begin.min(at))
            );
        }
        let back = |from: usize, to: usize, by: usize| if to >= from { to - by } else { to + by };
        let _ = match event.shape {
            Shape::Gap => Ok(()),
            Shape::Arrow => {
                let head = back(start, end, 6);
                let dot = if event.tone == Tone::Effect {
                    format!("<circle cx=\"{end}\" cy=\"{y}\" r=\"5\"/>")
                } else {
                    String::new()
                };
                writeln!(
                    self.body,
                    "<path d=\"M{start} {y}H{end}M{head} {up}L{end} {y}L{head} {down}\"/>{dot}"
                )
            }
            Shape::Lost => {
                let stop = usize::midpoint(usize::midpoint(start, end), end);
                let (one, other) = (stop - 4, stop + 4);
                writeln!(
                    self.body,
                    "<path stroke-dasharray=\"5 3\" d=\"M{start} {y}H{stop}\"/><path d=\"M{one} {up}L{other} {down}M{one} {down}L{other} {up}\"/>"
                )
            }
            Shape::Mark => writeln!(self.body, "<circle cx=\"{start}\" cy=\"{y}\" r=\"4\"/>"),
            Shape::End => {
                let (one, other) = (start - 5, start + 5);
                let cross = format!(
                    "<path d=\"M{one} {}L{other} {}M{one} {}L{other} {}\"/>",
                    y - 5,
                    y + 5,
                    y + 5,
                    y - 5
                );
                if let Some(life) = from.and_then(|lane| self.lives.get_mut(lane)) {
                    *life = Some(y);
                }
                writeln!(self.body, "{cross}")
            }
        };
        self.body.push_str("</g>\n");
        self.y += 6;
    }
}

/// Combines equal events, if there are many. A combined event has the time and the place of the first one.
#[must_use]
pub fn grouped(events: &[Event]) -> Vec<Event> {
    if events.len() <= MANY {
        return events.to_vec();
    }
    let mut groups: Vec<(Event, usize)> = Vec::new();
    for event in events {
        match groups.iter_mut().find(|(first, _)| Event { at_ms: first.at_ms, ..event.clone() } == *first) {
            Some((_, count)) => *count += 1,
            None => groups.push((event.clone(), 1)),
        }
    }
    let named = |(event, count): (Event, usize)| match count {
        1 => event,
        _ => Event { text: format!("{count} × {}", event.text), ..event },
    };
    groups.into_iter().map(named).collect()
}

fn time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ => format!("{}.{:02} s", ms / 1_000, ms % 1_000 / 10),
    }
}

/// `1 run`, `2 runs`.
#[must_use]
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Breaks a text into lines of at most `width` characters: at blanks, and inside longer words. Leaves out what's beyond
/// the eighth line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let words = text.split_whitespace().flat_map(|word| {
        let characters: Vec<char> = word.chars().collect();
        characters.chunks(width).map(|piece| piece.iter().collect::<String>()).collect::<Vec<_>>()
    });
    for word in words {
        let is_full = lines.len() == MOST_LINES;
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => {
                line.push(' ');
                line.push_str(&word);
            }
            None if is_full => {
                lines.push("…".to_owned());
                break;
            }
            None => lines.push(word),
        }
    }
    lines
}

/// Replaces the characters that mean something in XML, and those that XML doesn't allow.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// A section of a page: a diagram, with sentences beside it.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// Whether its step passed.
    pub ok: bool,
    /// Its sentences, each with its verdict: `None` if it has none.
    pub sentences: Vec<(Option<bool>, String)>,
    /// Its diagram, from [`svg`].
    pub figure: String,
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1160px;padding:12px;color:#1f2328;background:#fff}
h1{font-size:22px;line-height:1.25}h2{font-size:17px;margin:0 0 8px}section{border-top:1px solid #c4ccd4;padding:16px 0;display:grid;gap:12px}
section div{min-width:0;overflow-wrap:anywhere}p{margin:0 0 10px;max-width:72ch}a{color:inherit;text-decoration:none}
nav{display:flex;flex-wrap:wrap;gap:6px;margin:12px 0}nav a{border:1px solid #c4ccd4;border-radius:6px;padding:2px 8px}
.ok{color:#1a7f37}.bad,.seq .bad{color:#cf222e;fill:#cf222e;font-weight:600}details{margin:12px 0}
@media(max-width:600px){nav span{display:none}}
@media(min-width:900px){section{grid-template-columns:1fr 520px;gap:32px}}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}section,nav a{border-color:#3d444d}.ok{color:#3fb950}.bad,.seq .bad{color:#ff7b72;fill:#ff7b72}}
";

/// Writes a page. Failed sections come first. `lead` is a summary, and `legend` explains the
/// diagrams.
#[must_use]
pub fn page(title: &str, lead: &str, legend: &[&str], sections: &[Section]) -> String {
    let mark = |ok: bool| if ok { "<b class=\"ok\">✓</b>" } else { "<b class=\"bad\">✗</b>" };
    let mut order: Vec<(usize, &Section)> = sections.iter().enumerate().collect();
    order.sort_by_key(|(_, section)| section.ok);
    let (mut links, mut body) = (String::new(), String::new());
    for (nth, section) in order {
        let heading = escape(&section.heading);
        // On a phone, the links show only the steps' numbers.
        let (number, name) = heading.split_once(' ').unwrap_or((&heading, ""));
        let _ = writeln!(links, "<a href=\"#s{nth}\">{} {number}<span> {name}</span></a>", mark(section.ok));
        let _ = writeln!(body, "<section id=\"s{nth}\">\n<div>\n<h2>{} {heading}</h2>", mark(section.ok));
        for (ok, sentence) in &section.sentences {
            let class = if *ok == Some(false) { " class=\"bad\"" } else { "" };
            let _ =
                writeln!(body, "<p{class}>{}{}</p>", ok.map_or("", mark), escape(&format!(" {sentence}")));
        }
        let _ = writeln!(body, "</div>\n<div>\n{}</div>\n</section>", section.figure);
    }
    let legend: String = legend.iter().map(|text| format!("<p>{}</p>\n", escape(text))).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>\n{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{lead}</p>\n<details open=\"open\">\n\
         <summary>How to read this page</summary>\n{legend}</details>\n<nav>\n{links}</nav>\n{body}</body>\n</html>\n",
        title = escape(title),
        lead = escape(lead),
    )
}
