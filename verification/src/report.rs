//! Formats results as Markdown: a line or a table.

use std::fmt::Write as _;

use crate::{
    coverage::{Coverage, Mark},
    explore::Report,
    invariants::Invariant,
};

/// The header of a table of explorations.
pub const EXPLORED: &str = "| space | explored states | transitions | depth | machine states | most store calls | time \
     | found |\n\
     |---|---:|---:|---:|---:|---:|---:|---|";

/// Formats one exploration as a row of the table [`EXPLORED`].
pub fn explored(report: &Report) -> String {
    let calls = report.longest_run.map_or_else(|| "endless".to_owned(), |calls| calls.to_string());
    let found = match (report.violations.as_slice(), report.is_complete) {
        ([], true) => "nothing (complete)".to_owned(),
        ([], false) => "nothing (cut off)".to_owned(),
        (violations, _) => {
            let names: Vec<_> = violations.iter().map(|violation| violation.invariant.name()).collect();
            format!("**{}**", names.join(", "))
        }
    };
    format!(
        "| {} | {} | {} | {} | {} | {calls} | {:.1} s | {found} |",
        report.name,
        grouped(report.states),
        grouped(report.transitions),
        report.depth,
        grouped(report.machines),
        report.took.as_secs_f64(),
    )
}

/// Formats the totals of all explorations as the last row of the table [`EXPLORED`].
pub fn total(reports: &[Report]) -> String {
    let sum = |of: fn(&Report) -> usize| reports.iter().map(of).sum::<usize>();
    let seconds: f64 = reports.iter().map(|report| report.took.as_secs_f64()).sum();
    format!(
        "| **total** | **{}** | **{}** | | | | {seconds:.1} s | |",
        grouped(sum(|report| report.states)),
        grouped(sum(|report| report.transitions)),
    )
}

/// Formats a table with a row for each group of marks: how many were reached, and which are missing.
pub fn coverage(coverage: Coverage) -> String {
    let mut text = String::from("| reached | | |\n|---|---:|---|");
    let mut groups: Vec<&str> = Mark::ALL.iter().map(|&(_, group)| group).collect();
    groups.dedup();
    for group in groups {
        let marks: Vec<Mark> =
            Mark::ALL.iter().filter(|&&(_, of)| of == group).map(|&(mark, _)| mark).collect();
        let missing: Vec<&str> =
            marks.iter().filter(|&&mark| !coverage.has(mark)).map(|mark| mark.what()).collect();
        let reached = marks.len() - missing.len();
        let missing =
            if missing.is_empty() { String::new() } else { format!("missing: {}", missing.join("; ")) };
        // Writing into a string can't fail.
        let _ = write!(text, "\n| {group} | {reached}/{} | {missing} |", marks.len());
    }
    text
}

/// Formats a table that compares two protocols over the same spaces: which invariants hold, and after how many steps
/// each of the other invariants broke. A dash stands for an invariant in the protocol's list in `exempt`. The table
/// leaves out the invariants in `untried`, which the spaces don't exercise.
pub fn compared(
    names: [&str; 2],
    exempt: [&[Invariant]; 2],
    untried: &[Invariant],
    reports: [&[Report]; 2],
) -> String {
    let mut text = format!("| invariant | {} | {} |\n|---|---|---|", names[0], names[1]);
    for &invariant in Invariant::ALL.iter().filter(|invariant| !untried.contains(invariant)) {
        let mut cells = [String::new(), String::new()];
        for ((cell, exempt), reports) in cells.iter_mut().zip(exempt).zip(reports) {
            *cell = verdict(invariant, exempt, reports);
        }
        let _ = write!(text, "\n| {} | {} | {} |", invariant.promise(), cells[0], cells[1]);
    }
    text
}

fn verdict(invariant: Invariant, exempt: &[Invariant], reports: &[Report]) -> String {
    if exempt.contains(&invariant) {
        return "–".to_owned();
    }
    let broken: Vec<String> = reports
        .iter()
        .filter_map(|report| {
            let violation = report.violations.iter().find(|violation| violation.invariant == invariant)?;
            let steps = violation.trace.lines.len();
            Some(format!("{} ({steps} steps)", report.name))
        })
        .collect();
    if broken.is_empty() { "holds".to_owned() } else { format!("**broken**: {}", broken.join("; ")) }
}

/// A number with thousands separators.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(grouped(24_193_715), "24,193,715");
    }
}
