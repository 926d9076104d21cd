//! Checks that links between the repository's pages have a target.

use std::{fs, path::Path};

use testkit::source::root;

/// This page quotes other pages. A link in a quote leads to its target only from the quoted page, so
/// this test skips the quotes.
const QUOTES: &str = "docs/promises.md";
const GUIDES: [&str; 2] = ["src/guide", "crates/testing/src/guide.md"];

/// Returns the repository's Markdown pages, without the guides': rustdoc's own lint checks the links in the guides.
fn pages() -> Vec<String> {
    let (mut folders, mut pages) = (vec![root().to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            let is_skipped = name.starts_with('.') || name == "target" || GUIDES.contains(&name.as_str());
            match path.is_dir() {
                true if !is_skipped => folders.push(path),
                false if !is_skipped && name.ends_with(".md") && name != QUOTES => pages.push(name),
                _ => {}
            }
        }
    }
    pages
}

/// Returns the link targets of a Markdown text, without its code blocks.
fn targets(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split("](").skip(1).filter_map(|rest| rest.split(')').next())).collect()
}

/// Returns a heading's anchor as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}

#[test]
fn links_have_targets() {
    let (mut dead, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for target in targets(&text).into_iter().filter(|target| !target.contains("://")) {
            checked += 1;
            let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
            let folder = root().join(Path::new(&page).parent().unwrap());
            let file = if path.is_empty() { root().join(&page) } else { folder.join(path) };
            let is_there = file.exists()
                && (fragment.is_empty() || {
                    let text = fs::read_to_string(&file).unwrap();
                    text.lines().any(|line| line.starts_with('#') && anchor(line) == fragment)
                });
            if !is_there {
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(checked > 40, "only {checked} links were found");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn readme_is_short() {
    let lines = include_str!("../../README.md").lines().count();
    assert!(lines <= 150, "README has {lines} lines, but at most 150 are allowed");
}
