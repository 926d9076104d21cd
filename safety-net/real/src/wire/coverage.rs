//! What was tried: how often each fault met each call.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use super::{fault::Fault, meaning::Meaning};

/// A count for each call and fault.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(Meaning, Fault), u64>);

impl Coverage {
    pub(super) fn count(&mut self, meaning: Meaning, fault: Fault) {
        *self.0.entry((meaning, fault)).or_default() += 1;
    }

    /// How many faults there were.
    pub fn faults(&self) -> u64 {
        self.0.values().sum()
    }

    /// The cells that can be reached and were not: without them, nothing is shown.
    pub fn missing(&self) -> Vec<(Meaning, Fault)> {
        let cells = Meaning::ALL.into_iter().flat_map(|meaning| Fault::ALL.map(|fault| (meaning, fault)));
        cells.filter(|cell| is_reachable(*cell) && !self.0.contains_key(cell)).collect()
    }
}

/// Only a failed condition has an item to lack.
fn is_reachable((meaning, fault): (Meaning, Fault)) -> bool {
    fault != Fault::NoOldItem || meaning.has_condition()
}

impl Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:18}", "")?;
        for meaning in Meaning::ALL {
            write!(f, "{:>13}", meaning.to_string())?;
        }
        for fault in Fault::ALL {
            write!(f, "\n{fault:18}")?;
            for meaning in Meaning::ALL {
                let cell = (meaning, fault);
                match self.0.get(&cell) {
                    Some(count) => write!(f, "{count:>13}")?,
                    None if is_reachable(cell) => write!(f, "{:>13}", "NEVER")?,
                    None => write!(f, "{:>13}", "-")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_was_never_reached_is_missing() {
        let mut coverage = Coverage::default();
        let all = coverage.missing().len();
        assert_eq!(all, Meaning::ALL.len() * Fault::ALL.len() - 3);
        coverage.count(Meaning::Claim, Fault::CutAfter);
        assert_eq!(coverage.missing().len(), all - 1);
        assert_eq!(coverage.to_string().matches("NEVER").count(), all - 1);
    }
}
