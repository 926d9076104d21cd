//! The table: one row per scenario, one column per runtime and mode.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{runtime::Runtime, sandbox::Mode};

type Column = (Runtime, Mode);
type Cells = BTreeMap<Column, Result<(), String>>;

/// The results of the scenarios.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The scenarios' names and results, in the order of the table.
    rows: Vec<(String, Cells)>,
}

impl Report {
    pub(crate) fn add(&mut self, at: usize, name: &str, column: Column, result: Result<(), String>) {
        if self.rows.len() <= at {
            self.rows.resize_with(at + 1, Default::default);
        }
        self.rows[at].0 = name.into();
        self.rows[at].1.insert(column, result);
    }

    pub(crate) fn failures(&self) -> usize {
        self.rows.iter().flat_map(|(_, cells)| cells.values()).filter(|result| result.is_err()).count()
    }

    pub(crate) fn plays(&self) -> usize {
        self.rows.iter().map(|(_, cells)| cells.len()).sum()
    }

    /// The scenarios that were played. Any other scenario has an empty row, or no row.
    fn played(&self) -> impl Iterator<Item = &(String, Cells)> {
        self.rows.iter().filter(|(_, cells)| !cells.is_empty())
    }

    /// The reason for each FAILED play, and the table. The reasons come first, because a log that's too long for its reader
    /// is cut at its end.
    pub(crate) fn table(&self) -> String {
        let mut columns: Vec<Column> =
            self.rows.iter().flat_map(|(_, cells)| cells.keys().copied()).collect();
        columns.sort();
        columns.dedup();
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let mut text = format!("{:width$}", "");
        for (runtime, mode) in &columns {
            let _ = write!(text, "  {:16}", format!("{} {}", runtime.name(), mode.name()));
        }
        text.push('\n');
        let mut reasons = String::new();
        for (name, cells) in self.played() {
            let _ = write!(text, "{name:width$}");
            for column in &columns {
                let cell = match cells.get(column) {
                    None => "-",
                    Some(Ok(())) => "ok",
                    Some(Err(_)) => "FAILED",
                };
                let _ = write!(text, "  {cell:16}");
                if let Some(Err(problem)) = cells.get(column) {
                    let _ = writeln!(reasons, "{name}, {} {}: {problem}", column.0.name(), column.1.name());
                }
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "{} scenarios, {} plays, {} FAILED",
            self.played().count(),
            self.plays(),
            self.failures()
        );
        reasons + &text
    }
}

#[test]
fn summary_counts_only_played_scenarios() {
    let mut report = Report::default();
    report.add(2, "replays", (Runtime::Go, Mode::OnDemand), Ok(()));
    assert!(report.table().contains("\n1 scenarios, 1 plays, 0 FAILED\n"), "{}", report.table());
}
