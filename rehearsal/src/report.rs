//! The report: each row on stderr when it's done, then the table, or its JSON, on stdout.

use lambda_idempotency_testing::drawing::Event;
use serde::Serialize;

use super::{judge::Verdict, measured::Measured, wire::Exchange};
use crate::columns::{self, Column, wrap};

/// One delivery, or a group of concurrent ones, and the outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// The row's step, such as `5a`.
    pub(crate) step: &'static str,
    /// The step's name.
    pub(crate) name: &'static str,
    /// The delivery.
    pub(crate) delivered: String,
    /// The response.
    pub(crate) answered: String,
    /// Runs of the handler; `None` if they can't be counted.
    pub(crate) handler_runs: Option<usize>,
    /// Payments made; `None` if the function makes none.
    pub(crate) payments_made: Option<usize>,
    /// Requests to the store.
    pub(crate) requests: usize,
    /// The operations of these requests, in the order in which they were sent.
    pub(crate) operations: Vec<String>,
    /// Whether the row has no faults.
    pub(crate) ok: bool,
    /// The faults, in words.
    pub(crate) faults: Vec<String>,
    /// The requirements, in words.
    #[serde(skip)]
    pub(crate) requirements: Vec<String>,
    /// The events, for the drawing.
    #[serde(skip)]
    pub(crate) events: Vec<Event>,
}

impl Row {
    /// A row from its measurements and verdict.
    pub(crate) fn new(
        (step, name): (&'static str, &'static str),
        delivered: impl Into<String>,
        answered: impl ToString,
        measured: &Measured,
        verdict: Verdict,
    ) -> Self {
        let requirements = verdict.requirements();
        let faults = verdict.faults();
        Self {
            step,
            name,
            delivered: delivered.into(),
            answered: answered.to_string(),
            handler_runs: measured.runs,
            payments_made: measured.payments,
            requests: measured.requests().count(),
            operations: measured.requests().map(|one| one.operation.clone()).collect(),
            ok: faults.is_empty(),
            faults,
            requirements,
            events: Vec::new(),
        }
    }

    /// The line to show when the row is done, with its faults below.
    pub(crate) fn line(&self) -> String {
        let mark = if self.ok { "ok    " } else { "FAILED" };
        let line =
            format!("  {mark}  {:<2}  {}: {} → {}", self.step, self.name, self.delivered, self.answered);
        let faults = self.faults.iter().map(|fault| format!("\n             ✗ {fault}"));
        std::iter::once(line).chain(faults).collect()
    }

    fn cells(&self) -> [String; COLUMNS] {
        let count = |count: Option<usize>| count.map_or_else(|| "-".into(), |count| count.to_string());
        [
            self.delivered.clone(),
            self.answered.clone(),
            count(self.handler_runs),
            count(self.payments_made),
            requests(self.requests, &self.operations),
        ]
    }

    fn verdict(&self, colour: bool) -> String {
        let (words, code) = if self.ok { ("ok", "32") } else { ("FAILED", "1;31") };
        if colour { format!("\x1b[{code}m{words}\x1b[0m") } else { words.into() }
    }
}

/// Formats requests like `3: Put, 2 Update`.
pub(crate) fn requests(count: usize, operations: &[String]) -> String {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for operation in operations {
        let short = operation.strip_suffix("Item").unwrap_or(operation);
        match runs.last_mut() {
            Some((last, times)) if *last == short => *times += 1,
            _ => runs.push((short, 1)),
        }
    }
    if runs.len() > 3 {
        // `runs` has one entry for each series of equal operations. More than three series mean that several senders
        // were concurrent. The order of their requests doesn't matter, so this adds up the series of each operation.
        let mut total = std::collections::BTreeMap::new();
        for (operation, times) in runs {
            *total.entry(operation).or_insert(0) += times;
        }
        runs = total.into_iter().collect();
    }
    let parts =
        runs.iter().map(|(name, times)| if *times == 1 { (*name).into() } else { format!("{times} {name}") });
    match count {
        0 => "0".into(),
        _ => format!("{count}: {}", parts.collect::<Vec<String>>().join(", ")),
    }
}

/// Whether every row is OK. An empty report isn't OK.
pub(crate) fn all_ok(rows: &[Row]) -> bool {
    !rows.is_empty() && rows.iter().all(|row| row.ok)
}

/// The report as JSON.
pub(crate) fn json(rows: &[Row]) -> String {
    let report = serde_json::json!({ "ok": all_ok(rows), "rows": rows });
    format!("{report:#}\n")
}

const COLUMNS: usize = 5;
const HEADINGS: [&str; COLUMNS] = ["delivered", "answered", "runs", "paid", "requests"];
/// The widths of the columns. With the indent, two blanks after each column and 7 for the verdict, a line has 103
/// characters.
const WIDTHS: [usize; COLUMNS] = [23, 33, 4, 4, 18];
const RIGHT_ALIGNED: [bool; COLUMNS] = [false, false, true, true, false];
const INDENT: usize = 4;
const WIDTH: usize = 110;

/// The report for people, at most 110 characters wide. A step's name is above its rows, and a row's faults are below
/// the row.
pub(crate) fn table(rows: &[Row], colour: bool) -> String {
    let mut text = String::new();
    write_row(&mut text, &HEADINGS.map(str::to_owned), "verdict");
    text.push_str(&"─".repeat(103));
    text.push('\n');
    let mut step_before = "";
    for row in rows {
        if row.step != step_before {
            text.push_str(&format!("{:<INDENT$}{}\n", row.step, row.name));
        }
        step_before = row.step;
        write_row(&mut text, &row.cells(), &row.verdict(colour));
        for fault in &row.faults {
            let lines = wrap(fault, WIDTH - INDENT - 4).join(&format!("\n{:1$}", "", INDENT + 4));
            text.push_str(&format!("{:INDENT$}  ✗ {lines}\n", ""));
        }
    }
    text
}

fn write_row(text: &mut String, cells: &[String; COLUMNS], verdict: &str) {
    let columns =
        std::array::from_fn::<_, COLUMNS, _>(|at| Column { width: WIDTHS[at], is_right: RIGHT_ALIGNED[at] });
    let cells: Vec<_> = cells.iter().cloned().chain([verdict.to_owned()]).collect();
    columns::write_row(text, INDENT, &columns, &cells);
}

/// The closing line.
pub(crate) fn summary(rows: &[Row], seconds: f32) -> String {
    let failed = rows.iter().filter(|row| !row.ok).count();
    match (rows.len(), failed) {
        (0, _) => format!("Nothing was rehearsed ({seconds:.1} s)."),
        (1, 0) => format!("The only row is ok ({seconds:.1} s)."),
        (1, _) => format!("The only row FAILED ({seconds:.1} s)."),
        (all, 0) => format!("All {all} rows are ok ({seconds:.1} s)."),
        (all, failed) => format!("{failed} of {all} rows FAILED ({seconds:.1} s)."),
    }
}

/// Returns whether each settlement was applied, in the order in which they were sent.
pub(crate) fn settlements_of(exchanges: &[Exchange]) -> Vec<bool> {
    exchanges.iter().filter(|one| one.to_store && one.meaning.settles()).map(Exchange::applied).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: &'static str, faults: &[&str]) -> Row {
        Row {
            step,
            name: "first delivery",
            delivered: "POST /payments".into(),
            answered: "201".into(),
            handler_runs: Some(1),
            payments_made: None,
            requests: 2,
            operations: vec!["PutItem".into(), "UpdateItem".into()],
            ok: faults.is_empty(),
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            ..Row::default()
        }
    }

    #[test]
    fn table_fits_110_columns() {
        let mut long = row("2", &["the handler ran 2 times, not once", &"very ".repeat(30)]);
        long.answered = "no answer: the process ended, signal: 9 (SIGKILL)".into();
        let table = table(&[row("1", &[]), row("1", &[]), long], false);
        let expected = "\
\x20   delivered                answered                           runs  paid  requests            verdict
───────────────────────────────────────────────────────────────────────────────────────────────────────
1   first delivery
    POST /payments           201                                   1     -  2: Put, Update      ok
    POST /payments           201                                   1     -  2: Put, Update      ok
2   first delivery
    POST /payments           no answer: the process ended,         1     -  2: Put, Update      FAILED
                             signal: 9 (SIGKILL)
      ✗ the handler ran 2 times, not once
      ✗ very very very very very very very very very very very very very very very very very very very very
        very very very very very very very very very very
";
        let trimmed: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        assert_eq!(trimmed, expected);
        assert!(table.lines().all(|line| line.chars().count() <= WIDTH), "{table}");
    }

    #[test]
    fn colour_is_added_only_on_request() {
        assert!(table(&[row("1", &[])], true).contains("\x1b[32mok\x1b[0m"));
        assert!(!table(&[row("1", &["x"])], false).contains('\x1b'));
    }

    #[test]
    fn failed_or_missing_rows_fail_the_rehearsal() {
        assert!(all_ok(&[row("1", &[]), row("2", &[])]));
        assert!(!all_ok(&[row("1", &[]), row("2", &["wrong"])]));
        assert!(!all_ok(&[]));
        assert_eq!(summary(&[row("1", &[])], 1.25), "The only row is ok (1.2 s).");
        assert_eq!(summary(&[row("1", &["x"])], 1.0), "The only row FAILED (1.0 s).");
        assert_eq!(summary(&[row("1", &[]), row("2", &[])], 1.0), "All 2 rows are ok (1.0 s).");
        assert_eq!(summary(&[row("1", &[]), row("2", &["x"])], 1.0), "1 of 2 rows FAILED (1.0 s).");
    }

    #[test]
    fn json_report_has_each_rows_fields() {
        let report: serde_json::Value = serde_json::from_str(&json(&[row("1", &["wrong"])])).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["rows"][0]["faults"][0], "wrong");
        assert_eq!(report["rows"][0]["handler_runs"], 1);
        assert_eq!(report["rows"][0]["payments_made"], serde_json::Value::Null);
        assert_eq!(report["rows"][0]["operations"][1], "UpdateItem");
    }

    #[test]
    fn requests_are_counted_by_kind_in_order() {
        let of = |names: &[&str]| {
            requests(names.len(), &names.iter().map(|name| format!("{name}Item")).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), "0");
        assert_eq!(of(&["Put", "Update", "Update"]), "3: Put, 2 Update");
        assert_eq!(of(&["Put", "Update", "Put", "Update"]), "4: 2 Put, 2 Update");
    }
}
