//! Checks that the documentation names only tests, crash points and pages that exist, and that the guide names every
//! crash point.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod front_page;
mod links;
mod powertools;
mod promises;

use std::fs;

use testkit::source::{read_under, root};

/// Returns the Rust sources that have the tests named by the documentation.
fn sources() -> String {
    let folders =
        ["src", "crates", "tests", "examples", "testkit", "rehearsal", "verification", "cli", "functions"];
    folders.map(read_under).into_iter().flatten().map(|(_, text)| text).collect()
}

#[test]
fn the_guide_names_existing_items() {
    let tests = sources();
    let points = fs::read_to_string(root().join("crates/testing/src/point.rs")).unwrap();
    let guide = include_str!("../../src/guide/failure_modes.md");

    let rows = guide.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut named = Vec::new();
    for row in rows {
        let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let names: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test covers this row: {row}");
        named.extend(names);
    }
    assert!(named.len() > 40, "the rows weren't found");
    for name in &named {
        match name.strip_prefix("crash-points: ") {
            Some(point) => {
                assert!(points.contains(&format!("\"{point}\"")), "no crash point is named {point}")
            }
            None => assert!(tests.contains(&format!("fn {name}(")), "no test is named {name}"),
        }
    }
    // The guide needn't name the points around failures and lease extensions, because the program `crash-points` kills
    // no process there.
    let all = points.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once("=> \""));
    let all = all
        .filter_map(|(_, name)| name.strip_suffix("\","))
        .filter(|name| !name.contains("_failure_") && !name.contains("_extension_") && !name.contains(' '));
    for point in all {
        assert!(named.contains(&format!("crash-points: {point}").as_str()), "{point} isn't in the guide");
    }
}
