//! The guide names tests and crash points: they exist, and every crash point is named.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::{fs, path::Path};

/// All Rust sources under `folder`, in one.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all += &fs::read_to_string(path).unwrap();
        }
    }
    all
}

#[test]
fn what_the_guide_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let net = root.join("safety-net");
    if !net.is_dir() {
        // A package from a registry has no other packages beside it.
        return;
    }
    let tests: String = ["src", "tests", "safety-net"].map(|folder| sources(&root.join(folder))).concat();
    let points = fs::read_to_string(net.join("real/src/crash/point.rs")).unwrap();
    let guide = include_str!("../src/guide/failure_modes.md");

    let rows = guide.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut named = Vec::new();
    for row in rows {
        let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let names: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test shows this: {row}");
        named.extend(names);
    }
    assert!(named.len() > 40, "the rows were not found");
    for name in &named {
        match name.strip_prefix("crash-points: ") {
            Some(point) => assert!(points.contains(&format!("\"{point}\"")), "there is no point {point}"),
            None => assert!(tests.contains(&format!("fn {name}(")), "there is no test {name}"),
        }
    }
    // The function under test records no failures, and stands at no such point.
    let all = points.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once("=> \""));
    let all = all.filter_map(|(_, name)| name.strip_suffix("\",")).filter(|name| !name.contains("failure"));
    for point in all {
        assert!(named.contains(&format!("crash-points: {point}").as_str()), "{point} is not in the guide");
    }
}
