//! Checks that `docs/powertools.md` lists all 53 scenarios, and that its rows name tests that exist.

use std::fs;

use testkit::source::root;

/// The scenarios that this library doesn't support. No test covers them.
const MISSING: [u8; 1] = [52];

/// The tests that a cell names.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_scenario_names_its_tests() {
    let page = fs::read_to_string(root().join("docs/powertools.md")).unwrap();
    let tests = super::sources();

    let (mut numbers, mut wrong) = (Vec::new(), Vec::new());
    for row in page.lines() {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let Ok(number) = cells[0].parse::<u8>() else { continue };
        let [_, _, _, here, shown_by] = cells[..] else { panic!("not five cells: {row}") };
        numbers.push(number);
        if MISSING.contains(&number) {
            if (here, shown_by) != ("missing", "none") {
                wrong.push(format!("{number}: isn't marked as missing; remove it from MISSING"));
            }
            continue;
        }
        if !["same", "differs: "].iter().any(|word| here.starts_with(word)) {
            wrong.push(format!("{number}: the fourth cell must begin with `same` or `differs: `"));
        }
        let named = names(shown_by);
        if named.is_empty() {
            wrong.push(format!("{number}: the row names no test"));
        }
        let is_there = |test: &&&str| tests.contains(&format!("fn {test}("));
        let lost = named.iter().filter(|test| !is_there(test));
        wrong.extend(lost.map(|test| format!("{number}: no test is named {test}")));
    }
    let (_, failures) = page.split_once("\n## Where Powertools fails\n").unwrap();
    let (failures, _) = failures.split_once("\n## ").unwrap();
    let rows = failures.lines().filter(|line| line.starts_with("| ")).skip(1);
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let named = names(cells[cells.len() - 2]);
        if named.is_empty() {
            wrong.push(format!("the row names no test: {row}"));
        }
        let lost = named.iter().filter(|test| !tests.contains(&format!("fn {test}(")));
        wrong.extend(lost.map(|test| format!("no test is named {test}: {row}")));
    }
    assert_eq!(numbers, (1..=53).collect::<Vec<u8>>());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
