//! The results of one store's operations.

use std::{fmt, time::Duration};

use super::{
    sandbox::{Answer, Run, response_to},
    trouble::Trouble,
};

/// The evidence about one key.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub(super) key: String,
    pub(super) run: Run,
    /// The record's status after the run, if there is a record.
    pub(super) status: Option<String>,
    /// The number of effects after the run.
    pub(super) effects: u64,
    /// The answer to the delivery after all leases had ended.
    pub(super) again: Answer,
    /// The number of effects after that delivery.
    pub(super) effects_in_the_end: u64,
}

impl Evidence {
    /// Whether the handler's outcome was lost: it isn't recorded, or the handler ran again.
    fn is_lost(&self) -> bool {
        self.status.as_deref() != Some("COMPLETED") || self.effects_in_the_end > self.effects
    }

    /// Describes the violations.
    fn faults(&self) -> Vec<String> {
        let Self { key, run, effects, again, effects_in_the_end, .. } = self;
        let response = Answer::Value(response_to(key));
        let mut faults = Vec::new();
        let mut must = |holds: bool, what: String| {
            if !holds {
                faults.push(format!("{key}: {what}"));
            }
        };
        must(*effects == 1, format!("{effects} effects, expected one"));
        must(run.answer == response, format!("the caller got {:?}, not the handler's response", run.answer));
        must(!self.is_lost(), {
            let status = self.status.as_deref().unwrap_or("gone");
            format!("the outcome is lost: the record is {status}, and there are {effects_in_the_end} effects")
        });
        must(*again == response, format!("the next delivery got {again:?}, not the handler's response"));
        faults
    }
}

/// The results of all operations.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The store, and what happened to it.
    pub trouble: Trouble,
    /// The seed that reproduces the rounds.
    pub seed: u64,
    /// How many operations there were.
    pub operations: u64,
    /// How many effects they had.
    pub effects: u64,
    /// How many outcomes were lost.
    pub lost: u64,
    /// How many outages there were.
    pub outages: u64,
    /// How many deliveries were repeated because the library refused them before the handler ran.
    pub refused: u64,
    /// The longest time from a handler's return to the answer.
    pub slowest: Duration,
    /// The total time.
    pub took: Duration,
    /// The violations.
    pub faults: Vec<String>,
}

impl Figures {
    pub(super) const fn new(trouble: Trouble, seed: u64) -> Self {
        Self {
            trouble,
            seed,
            operations: 0,
            effects: 0,
            lost: 0,
            outages: 0,
            refused: 0,
            slowest: Duration::ZERO,
            took: Duration::ZERO,
            faults: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, evidence: &Evidence) {
        self.operations += 1;
        self.effects += evidence.effects_in_the_end;
        self.lost += u64::from(evidence.is_lost());
        self.refused += evidence.run.refused;
        self.slowest = self.slowest.max(evidence.run.settled_in);
        self.faults.extend(evidence.faults());
    }

    /// Whether no outcome was lost, every operation had one effect, and every caller got its response.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.effects == self.operations && self.faults.is_empty()
    }

    /// Returns the table's header row.
    pub fn head() -> String {
        format!(
            "{:<28} {:>10} {:>8} {:>5} {:>8} {:>8} {:>16}",
            "store", "operations", "effects", "lost", "outages", "refused", "slowest settling"
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trouble, operations, effects, lost, outages, refused, .. } = self;
        let slowest = format!("{:.1} s", self.slowest.as_secs_f64());
        write!(
            f,
            "{trouble:<28} {operations:>10} {effects:>8} {lost:>5} {outages:>8} {refused:>8} {slowest:>16}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Evidence {
        Evidence {
            key: "k".into(),
            run: Run {
                answer: Answer::Value(response_to("k")),
                settled_in: Duration::from_secs(3),
                refused: 0,
            },
            status: Some("COMPLETED".into()),
            effects: 1,
            again: Answer::Value(response_to("k")),
            effects_in_the_end: 1,
        }
    }

    fn judged(change: impl FnOnce(&mut Evidence)) -> Figures {
        let mut evidence = sound();
        change(&mut evidence);
        let mut figures = Figures::new(Trouble::DynamoDbThrottled, 0);
        figures.note(&evidence);
        figures
    }

    #[test]
    fn recorded_outcome_passes() {
        let figures = judged(|_| {});
        assert!(figures.is_sound() && figures.lost == 0, "{figures:?}");
    }

    #[test]
    fn every_fault_is_found() {
        type Change = fn(&mut Evidence);
        let cases: [(u64, Change); 7] = [
            (1, |e| e.status = Some("STARTED".into())),
            (1, |e| e.status = None),
            (1, |e| e.effects_in_the_end = 2),
            (0, |e| e.effects = 2),
            (0, |e| e.run.answer = Answer::Killed),
            (0, |e| e.run.answer = Answer::Error("refused".into())),
            (0, |e| e.again = Answer::Value("another".into())),
        ];
        for (nth, (lost, change)) in cases.into_iter().enumerate() {
            let figures = judged(change);
            assert!(!figures.is_sound(), "case {nth}");
            assert_eq!(figures.lost, lost, "case {nth}");
        }
    }
}
