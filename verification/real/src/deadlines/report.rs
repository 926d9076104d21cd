//! The results of one store's invocations: one row for each way in which the wire broke.

use std::{fmt, time::Duration};

use super::{
    judge::{Evidence, Verdict},
    plan::{Plan, Position, Way},
};
use crate::site::Kind;

/// How many problems the report describes in full.
const TOLD: usize = 20;

/// The results of one store's invocations.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store.
    pub kind: Kind,
    rows: Vec<Row>,
    problems: Vec<String>,
    /// How often an invocation was repeated because the machine was too busy or no request was broken.
    pub(super) repeated: u64,
    /// The total time.
    pub(super) took: Duration,
}

#[derive(Clone, Debug)]
struct Row {
    way: Way,
    /// The first cell counts the invocations with a fault before the claim. The second cell counts those with a fault
    /// at the settlement.
    cells: [Cell; 2],
    slowest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    invocations: u64,
    killed: u64,
    honest: u64,
    ran: u64,
    recorded: u64,
}

impl Report {
    pub(super) fn new(kind: Kind) -> Self {
        let row = |way| Row { way, cells: [Cell::default(); 2], slowest: Duration::ZERO };
        let rows = Way::all(kind).into_iter().map(row).collect();
        Self { kind, rows, problems: Vec::new(), repeated: 0, took: Duration::ZERO }
    }

    pub(super) fn note(&mut self, plan: &Plan, evidence: &Evidence, verdict: &Verdict) {
        let Some(row) = self.rows.iter_mut().find(|row| row.way == plan.way) else { return };
        row.slowest = row.slowest.max(evidence.took);
        let cell = &mut row.cells[usize::from(plan.position == Position::Settlement)];
        cell.invocations += 1;
        cell.ran += u64::from(evidence.effects > 0);
        cell.recorded += u64::from(evidence.is_recorded);
        match verdict {
            Verdict::True => cell.honest += 1,
            Verdict::Killed => {
                cell.killed += 1;
                self.problems.push(format!("{plan}: killed at its deadline; {evidence:?}"));
            }
            Verdict::False(problem) => self.problems.push(format!("{plan}: {problem}; {evidence:?}")),
        }
    }

    fn sum(&self, of: fn(&Cell) -> u64) -> u64 {
        self.rows.iter().flat_map(|row| &row.cells).map(of).sum()
    }

    /// How many invocations were made.
    pub fn invocations(&self) -> u64 {
        self.sum(|cell| cell.invocations)
    }

    /// How many invocations weren't answered by their deadlines.
    pub fn killed(&self) -> u64 {
        self.sum(|cell| cell.killed)
    }

    /// How many invocations were answered in time and truthfully.
    pub fn honest(&self) -> u64 {
        self.sum(|cell| cell.honest)
    }

    /// Whether every invocation was answered in time and truthfully.
    pub fn is_sound(&self) -> bool {
        self.killed() == 0 && self.honest() == self.invocations()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} invocations, {} killed, {} true answers; {} repeated; {:.0} s",
            self.kind.name(),
            self.invocations(),
            self.killed(),
            self.honest(),
            self.repeated,
            self.took.as_secs_f64()
        )?;
        let titles = ["killed", "true", "of", "ran", "recorded"];
        writeln!(f, "{:<24}{:^42}{:^42}", "", "from the claim on", "from the settlement on")?;
        write!(f, "{:<24}", "the wire")?;
        for _ in 0..2 {
            for title in titles {
                write!(f, " {title:>7}")?;
            }
            write!(f, "  ")?;
        }
        writeln!(f, " slowest")?;
        for row in &self.rows {
            write!(f, "{:<24}", row.way)?;
            for Cell { invocations, killed, honest, ran, recorded } in row.cells {
                for number in [killed, honest, invocations, ran, recorded] {
                    write!(f, " {number:>7}")?;
                }
                write!(f, "  ")?;
            }
            writeln!(f, " {:>5.2} s", row.slowest.as_secs_f64())?;
        }
        for problem in self.problems.iter().take(TOLD) {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        if let Some(more) = self.problems.len().checked_sub(TOLD).filter(|more| *more > 0) {
            writeln!(f, "and {more} more problems")?;
        }
        Ok(())
    }
}
