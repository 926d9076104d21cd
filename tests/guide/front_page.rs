//! Checks that the library's front page names every feature, and makes the same promise as README.

use std::{collections::BTreeSet, fs};

use testkit::source::root;

/// The library's front page, without comment marks.
fn front_page() -> String {
    let source = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    source
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

#[test]
fn front_page_names_every_feature() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, features) = manifest.split_once("\n[features]\n").unwrap();
    let (features, _) = features.split_once("\n[").unwrap();
    let declared: BTreeSet<_> = features
        .lines()
        .filter(|line| !line.starts_with(['#', ' ', ']']))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| *name != "default")
        .collect();
    assert!(declared.len() > 10, "the features weren't found: {declared:?}");
    let page = front_page();
    let (_, table) = page.split_once("\n# Features\n").unwrap();
    let (table, _) = table.split_once("\n# ").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let named: BTreeSet<_> = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name).collect();
    assert_eq!(named, declared);
}

#[test]
fn front_page_and_readme_promise_the_same() {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let readme = include_str!("../../README.md");
    let promise = readme.split('*').find(|text| text.starts_with("Outcomes are recorded exactly once"));
    let promise = words(promise.expect("README must have its promise in italics"));
    assert!(words(&front_page()).contains(&promise), "the front page lacks README's promise: {promise}");
}
