//! The table of settings. The checks of the names and values, the error messages, and the tables of `settings.md` are
//! all made from it.
//!
//! To add a setting, add its row to the file of its group, and run the test `settings_page_equals_the_table`, which
//! writes the page.

mod batches;
mod callers;
mod function;
mod http;
mod outcomes;
mod protection;
mod store;
mod time;

use super::{Draft, PREFIX, value::Read};

/// One setting: a variable, or an entry of the JSON file.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    /// The variable's name without the prefix. The file has the same name in lower case.
    pub(super) name: &'static str,
    /// The values and what they mean, the default first, for the settings page.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page shows it"))]
    page: &'static str,
    /// The valid values, for the message about an invalid one: `` `x` isn't valid; use … ``.
    pub(super) allowed: &'static str,
    /// Reads the value into the draft.
    pub(super) read: fn(&mut Draft, &str) -> Read<()>,
    /// Who reads the variable besides the layer's configuration. Such a setting can't be in the file.
    pub(super) reader: Option<&'static str>,
    /// The setting's name in the library, which the library's messages use.
    pub(super) library: Option<&'static str>,
}

impl Setting {
    const fn new(
        name: &'static str,
        page: &'static str,
        allowed: &'static str,
        read: fn(&mut Draft, &str) -> Read<()>,
    ) -> Self {
        Self { name, page, allowed, read, reader: None, library: None }
    }

    /// The setting is always a variable, since `reader` reads it from the environment.
    const fn variable_for(mut self, reader: &'static str) -> Self {
        self.reader = Some(reader);
        self
    }

    /// The setting has this name in the library.
    const fn library(mut self, name: &'static str) -> Self {
        self.library = Some(name);
        self
    }

    /// The variable's whole name.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// Settings that the page shows together.
struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page shows it"))]
    heading: &'static str,
    settings: &'static [Setting],
}

const GROUPS: [Group; 8] = [
    Group { heading: "The store and the key", settings: store::SETTINGS },
    Group { heading: "Protection", settings: protection::SETTINGS },
    Group { heading: "Outcomes", settings: outcomes::SETTINGS },
    Group { heading: "Time limits", settings: time::SETTINGS },
    Group { heading: "HTTP requests", settings: http::SETTINGS },
    Group { heading: "Callers over HTTP", settings: callers::SETTINGS },
    Group { heading: "Batches of records", settings: batches::SETTINGS },
    Group { heading: "The function and the layer's program", settings: function::SETTINGS },
];

/// All settings, in the page's order.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    GROUPS.iter().flat_map(|group| group.settings)
}

/// The setting with this name, which is in upper case and has no prefix.
pub(super) fn named(name: &str) -> Option<&'static Setting> {
    all().find(|setting| setting.name == name)
}

/// The message for a name that isn't a setting's: `shown` as the user wrote it, `name` in upper case and without the
/// prefix. It names the most similar setting, or all settings if none is similar.
pub(super) fn unknown(shown: &str, name: &str) -> String {
    let nearest = all().min_by_key(|setting| distance(setting.name, name));
    let similar = nearest.filter(|setting| distance(setting.name, name) <= 2.max(name.len() / 3));
    match similar {
        Some(setting) => {
            format!("{shown} isn't a setting of the layer; did you mean {}?", setting.variable())
        }
        None => {
            let names: Vec<_> = all().map(Setting::variable).collect();
            format!("{shown} isn't a setting of the layer; the settings are {}", names.join(", "))
        }
    }
}

/// How many characters to insert, delete or replace to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(*cell + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The library's message, with the names of the layer's variables in place of the library's names.
pub(super) fn in_variables(message: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut text = String::new();
    for word in message.split_inclusive(|c| !is_name(c)) {
        let name = word.trim_end_matches(|c| !is_name(c));
        match all().find(|setting| setting.library == Some(name)) {
            Some(setting) => text.extend([setting.variable().as_str(), &word[name.len()..]]),
            None => text.push_str(word),
        }
    }
    text
}

/// The tables of the settings page.
#[cfg(test)]
pub(super) fn page() -> String {
    use std::fmt::Write as _;

    let mut page = String::new();
    for Group { heading, settings } in &GROUPS {
        write!(page, "### {heading}\n\n| variable | values, the default first |\n|---|---|\n").unwrap();
        for setting in *settings {
            let only = setting.reader.map_or("", |_| ". Always a variable");
            writeln!(page, "| `{}` | {}{only} |", setting.variable(), setting.page).unwrap();
        }
        page.push('\n');
    }
    page
}
