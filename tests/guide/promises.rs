//! Checks that every promise has a test: `docs/promises.md` quotes each sentence and names the tests that show it.

use std::{collections::BTreeSet, fs};

use testkit::source::root;

/// The pages with promises, each with its sections to check. An empty list means every section of the page. The
/// sections left out of a list explain how to run, deploy and monitor a function, or what was measured.
const PAGES: [(&str, &[&str]); 5] = [
    ("src/guide/idempotency_specification.md", &[]),
    ("README.md", &["lambda-idempotency", "Use it", "The promise and its limits"]),
    ("src/guide/exactly_once.md", &[]),
    (
        "src/guide/operations.md",
        &["Switch it off, or watch first", "Managed Instances", "Publish what ended", "Defaults"],
    ),
    ("docs/performance.md", &["What a call costs"]),
];
/// The accepted reasons for a sentence without a test.
const NO_TEST: [&str; 8] = [
    "No test: advice to the API's callers.",
    "No test: advice; the server does it.",
    "No test: introduces what follows.",
    "No test: not promised.",
    "No test: points to another page.",
    "No test: tells the API's owner what the page is.",
    "No test: the API's owner fills it in.",
    "No test: the problem, not a promise.",
];

/// A section's heading, and one of its sentences or table rows.
type Said = (String, String);

/// Returns the sentences and table rows of a Markdown text, without its code.
fn said(text: &str) -> Vec<Said> {
    let (mut all, mut section, mut paragraph, mut is_code) =
        (Vec::new(), String::new(), String::new(), false);
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            end(&mut paragraph, &section, &mut all);
        } else if let Some(heading) = line.strip_prefix('#') {
            end(&mut paragraph, &section, &mut all);
            heading.trim_start_matches('#').trim().clone_into(&mut section);
        } else if line.starts_with('|') {
            end(&mut paragraph, &section, &mut all);
            let is_head = lines.peek().is_some_and(|next| is_rule(next));
            if !is_head && !is_rule(line) {
                all.push((section.clone(), line.to_owned()));
            }
        } else {
            let item = line.strip_prefix("- ");
            if line.is_empty() || item.is_some() {
                end(&mut paragraph, &section, &mut all);
            }
            paragraph.push(' ');
            paragraph.push_str(item.unwrap_or(line));
        }
    }
    end(&mut paragraph, &section, &mut all);
    all
}

fn is_rule(line: &str) -> bool {
    line.starts_with('|') && line.chars().all(|sign| "|- ".contains(sign))
}

/// Ends a paragraph: moves its sentences to `all`, and leaves the paragraph empty.
fn end(paragraph: &mut String, section: &str, all: &mut Vec<Said>) {
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let mut sentence = String::new();
    for (at, word) in words.iter().enumerate() {
        sentence.push_str(if sentence.is_empty() { "" } else { " " });
        sentence.push_str(word);
        let is_end = word.trim_end_matches(['*', ')']).ends_with(['.', '!', '?']);
        let begins =
            |next: &&str| next.starts_with(|sign: char| sign.is_ascii_uppercase() || "`*[(".contains(sign));
        if words.get(at + 1).is_none_or(|next| is_end && begins(next)) {
            all.push((section.to_owned(), std::mem::take(&mut sentence)));
        }
    }
    paragraph.clear();
}

/// Returns the quotes in a section of `docs/promises.md`, each with the line that names its tests.
fn shown(page: &str, section: &str) -> Vec<(String, String)> {
    let after = page.split_once(&format!("\n## {section}\n")).unwrap().1;
    let of_section = after.split("\n## ").next().unwrap();
    let mut lines = of_section.lines().filter(|line| !line.is_empty());
    let mut shown = Vec::new();
    while let Some(quote) = lines.next() {
        let quote = quote.strip_prefix("> ").unwrap_or_else(|| panic!("this line must be a quote: {quote}"));
        shown.push((quote.to_owned(), lines.next().unwrap().to_owned()));
    }
    shown
}

#[test]
fn every_promise_names_its_tests() {
    let text = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let page = text("docs/promises.md");
    let tests = super::sources();

    let mut wrong = BTreeSet::new();
    for (name, sections) in PAGES {
        let mut said = said(&text(name));
        said.retain(|(section, _)| sections.is_empty() || sections.contains(&section.as_str()));
        assert!(said.len() > 10, "{name}: the sentences weren't found");
        let shown = shown(&page, name);
        for (_, sentence) in &said {
            if shown.iter().filter(|(quote, _)| sentence.starts_with(quote.as_str())).count() != 1 {
                wrong.insert(format!("{name}: docs/promises.md doesn't quote this exactly once: {sentence}"));
            }
        }
        for (quote, shown_by) in shown {
            if !said.iter().any(|(_, sentence)| sentence.starts_with(&quote)) {
                wrong.insert(format!("docs/promises.md: {name} no longer says: {quote}"));
            }
            if NO_TEST.contains(&shown_by.as_str()) {
                continue;
            }
            let named: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
            if named.is_empty() {
                wrong.insert(format!("docs/promises.md: no test covers this: {quote}"));
            }
            // A macro defines the tests of the IETF draft's clauses from a list, which has no `fn` before the names.
            let is_there = |test: &&str| {
                tests.contains(&format!("fn {test}(")) || tests.contains(&format!("    {test}: \"D"))
            };
            wrong.extend(
                named.iter().filter(|test| !is_there(test)).map(|test| format!("no test is named {test}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn sentences_and_rows_are_split() {
    let text = "# A\nOne is 1.5 s long. *Two*, e.g. this.) Three\ngoes on.\n\n| a | b |\n|---|---|\n| c | d |\n```\nNo.\n```\n- Four.\n- Five.";
    let sentences: Vec<String> = said(text).into_iter().map(|(_, sentence)| sentence).collect();
    assert_eq!(
        sentences,
        ["One is 1.5 s long.", "*Two*, e.g. this.)", "Three goes on.", "| c | d |", "Four.", "Five."]
    );
}
