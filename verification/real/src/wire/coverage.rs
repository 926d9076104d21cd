//! Counts how often each fault hit each kind of call.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use lambda_idempotency_testing::Fault;

use lambda_idempotency_rehearsal::wire::{HttpWay, Meaning};

use super::way::{Medium, OverTcp as _};

/// The counts, by the kind of call and the fault.
#[derive(Clone, Debug)]
pub struct Coverage {
    medium: Medium,
    counts: BTreeMap<(Meaning, HttpWay), u64>,
}

impl Coverage {
    pub(super) const fn over(medium: Medium) -> Self {
        Self { medium, counts: BTreeMap::new() }
    }

    pub(super) fn count(&mut self, meaning: Meaning, fault: HttpWay) {
        *self.counts.entry((meaning, fault)).or_default() += 1;
    }

    /// Returns the number of faults that happened.
    pub fn faults(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the pairs of call and fault that are possible but never happened. If any are left, the check is
    /// incomplete.
    pub fn missing(&self) -> Vec<(Meaning, HttpWay)> {
        let cells = Meaning::ALL.into_iter().flat_map(|meaning| HttpWay::ALL.map(|fault| (meaning, fault)));
        cells.filter(|cell| self.is_reachable(*cell) && !self.counts.contains_key(cell)).collect()
    }

    /// Whether the call can happen.
    const fn has(&self, meaning: Meaning) -> bool {
        matches!(self.medium, Medium::Http) || !meaning.is_of_chunks()
    }

    /// Whether the fault can hit the call. `HideRecord` leaves the record out of the answer to a failed condition, so
    /// it needs a conditional write.
    fn is_reachable(&self, (meaning, fault): (Meaning, HttpWay)) -> bool {
        let happens = self.has(meaning) && fault.happens_over(self.medium);
        happens && (fault.amounts_to() != Fault::HideRecord || meaning.has_condition())
    }
}

impl Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:18}", "")?;
        let meanings = Meaning::ALL.into_iter().filter(|meaning| self.has(*meaning));
        for meaning in meanings.clone() {
            write!(f, "{:>13}", meaning.to_string())?;
        }
        for fault in HttpWay::ALL.into_iter().filter(|fault| fault.happens_over(self.medium)) {
            write!(f, "\n{:18}", fault.name_over(self.medium))?;
            for meaning in meanings.clone() {
                let cell = (meaning, fault);
                match self.counts.get(&cell) {
                    Some(count) => write!(f, "{count:>13}")?,
                    None if self.is_reachable(cell) => write!(f, "{:>13}", "NEVER")?,
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
    fn counted_pairs_are_no_longer_missing() {
        let mut coverage = Coverage::over(Medium::Http);
        let all = coverage.missing().len();
        assert_eq!(all, Meaning::ALL.len() * HttpWay::ALL.len() - 3);
        coverage.count(Meaning::Claim, HttpWay::CutAfter);
        assert_eq!(coverage.missing().len(), all - 1);
        assert_eq!(coverage.to_string().matches("NEVER").count(), all - 1);
    }

    #[test]
    fn tcp_coverage_expects_only_tcp_faults() {
        let mut coverage = Coverage::over(Medium::Tcp);
        let all = coverage.missing();
        assert_eq!(all.len(), (Meaning::ALL.len() - 2) * 12);
        all.iter().for_each(|(meaning, fault)| coverage.count(*meaning, *fault));
        assert!(coverage.missing().is_empty());
        assert!(!coverage.to_string().contains("NEVER"));
    }
}
