//! The plan of one run: a scenario, the SDK's retries, and the faults.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use lambda_idempotency_testing::Fault;
use testkit::random::Random;

use lambda_idempotency_rehearsal::wire::{HttpWay, Meaning};

use super::{
    round::Long,
    scenario::{self, Prior, Scenario},
    way::{Medium, OverTcp as _},
};

/// How the SDK retries inside one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// The store's default: up to eight attempts, the second within 25 ms.
    Default,
    /// Three attempts, a millisecond apart.
    Quick,
    /// No retries.
    None,
}

/// A run's complete plan. Its seed or its number reproduces it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) origin: Origin,
    pub(super) medium: Medium,
    pub(super) scenario: &'static Scenario,
    pub(super) retries: Retries,
    /// The extra faults, by the request's number from 0. The scenario's own faults aren't among them.
    pub(super) faults: BTreeMap<usize, HttpWay>,
    /// The part in a round with a long fault. Such a case has no other faults.
    pub(super) long: Option<Long>,
}

/// The source of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The case with this number in the list of all cases with at most one extra fault.
    Listed(usize),
    /// The random case of this seed.
    Seed(u64),
    /// An operation in a round with a long fault. The seed is of all rounds.
    Long(u64),
}

impl Case {
    /// Draws the plan of this seed, for a run over this medium.
    pub(super) fn random(seed: u64, medium: Medium) -> Self {
        let mut random = Random::new(seed);
        let scenarios: Vec<_> = scenario::ALL.iter().filter(|scenario| scenario.is_for(medium)).collect();
        let all: Vec<_> = HttpWay::ALL.into_iter().filter(|fault| fault.happens_over(medium)).collect();
        let mut scenario = scenarios[random.index(scenarios.len())];
        // A response of half a megabyte takes long, so keep only one in eight of these runs.
        if scenario.is_heavy() && random.index(8) > 0 {
            scenario = &scenario::ALL[0];
        }
        let drawn = [Retries::Default, Retries::Quick, Retries::None][random.index(3)];
        // The PostgreSQL and Redis stores have no retry setting.
        let retries = if medium == Medium::Http { drawn } else { Retries::None };
        let count = [1, 1, 1, 2, 2, 3][random.index(6)];
        let mut faults = BTreeMap::new();
        for _ in 0..count {
            let at = random.index(scenario.requests.len() + 2);
            if let Some(fault) = random.pick(&all) {
                faults.insert(at, *fault);
            }
        }
        Self { origin: Origin::Seed(seed), medium, scenario, retries, faults, long: None }
    }

    /// For each of these retry settings, lists each scenario once without extra faults, and then once for each
    /// request and each fault that's tried on the request.
    pub(super) fn listed(retries: &[Retries], medium: Medium) -> Vec<Self> {
        let mut plans = Vec::new();
        for retries in retries {
            for scenario in scenario::ALL.iter().filter(|scenario| scenario.is_for(medium)) {
                plans.push((scenario, *retries, BTreeMap::new()));
                let (first, end) = scenario.tried();
                for at in first..end {
                    for fault in HttpWay::ALL
                        .into_iter()
                        .filter(|fault| fault.happens_over(medium) && scenario.is_tried(at, *fault))
                    {
                        plans.push((scenario, *retries, BTreeMap::from([(at, fault)])));
                    }
                }
            }
        }
        let numbered = plans.into_iter().enumerate();
        numbered
            .map(|(n, (scenario, retries, faults))| Self {
                origin: Origin::Listed(n),
                medium,
                scenario,
                retries,
                faults,
                long: None,
            })
            .collect()
    }

    /// Picks from the list all cases without extra faults, and at most `of_each` cases for each pair of call and fault.
    pub(super) fn some_of_each(listed: Vec<Self>, of_each: usize, seed: u64) -> Vec<Self> {
        let mut random = Random::new(seed);
        let mut shuffled: Vec<_> = listed.into_iter().map(|case| (random.bits(), case)).collect();
        shuffled.sort_by_key(|(place, _)| *place);
        let mut taken: BTreeMap<_, usize> = BTreeMap::new();
        let take = |case: &Self| match case.faults.first_key_value() {
            None => true,
            // The heavy scenario is slow, so it's picked only without faults.
            Some(_) if case.scenario.is_heavy() => false,
            Some((at, fault)) => {
                let count = taken.entry((case.scenario.requests.get(*at), *fault)).or_default();
                *count += 1;
                *count <= of_each
            }
        };
        shuffled.into_iter().map(|(_, case)| case).filter(take).collect()
    }

    /// Whether the case plans one of these pairs of call and fault.
    pub(super) fn reaches_any(&self, cells: &[(Meaning, HttpWay)]) -> bool {
        self.faults.iter().any(|(at, fault)| {
            let meaning = self.scenario.requests.get(*at);
            cells.iter().any(|cell| Some(&cell.0) == meaning && cell.1 == *fault)
        })
    }

    /// Whether the case needs longer timeouts.
    pub(super) fn is_slow(&self) -> bool {
        self.scenario.is_heavy() || self.medium == Medium::Tcp
    }

    /// Returns all faults of the run. If a request has both an extra fault and one of the scenario's own, the
    /// scenario's fault counts, because the scenario depends on it.
    pub(super) fn plan(&self) -> BTreeMap<usize, HttpWay> {
        let mut plan = self.faults.clone();
        plan.extend(self.scenario.lead.iter().copied());
        plan
    }
}

impl Scenario {
    /// Returns the range of requests on which single faults are tried. A scenario with its own faults exists to test
    /// the requests after the last of them, so single faults are tried only there.
    fn tried(&self) -> (usize, usize) {
        let first = self.lead.iter().map(|(at, _)| at + 1).max().unwrap_or(0);
        (first, self.requests.len())
    }

    /// Whether this single fault is tried on this request.
    fn is_tried(&self, at: usize, fault: HttpWay) -> bool {
        let meaning = self.requests.get(at).copied();
        // In the heavy scenario, only the writes of chunks get faults. Lighter scenarios cover the other requests.
        self.can_have(at, fault) && (!self.is_heavy() || meaning == Some(Meaning::PartWritten))
    }

    /// Whether the fault is possible on this request. `HideRecord` leaves the record out of the answer to a failed
    /// condition, so it needs a request whose condition fails.
    fn can_have(&self, at: usize, fault: HttpWay) -> bool {
        let meaning = self.requests.get(at);
        let is_refused = self.rival.is_some_and(|(by, _)| Some(&by) == meaning)
            || self.prior != Prior::Absent && meaning == Some(&Meaning::Claim);
        fault.amounts_to() != Fault::HideRecord || is_refused
    }
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(number) => write!(f, "--case {number}"),
            Self::Seed(seed) => write!(f, "--seed {seed}"),
            Self::Long(seed) => write!(f, "a long fault, seed {seed}"),
        }
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, scenario, retries, .. } = self;
        write!(f, "{origin}: {}; the SDK's retries: {retries:?}; faults:", scenario.name)?;
        for (at, fault) in self.plan() {
            write!(f, " [request {at}: {}]", fault.name_over(self.medium))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_plan() {
        for (seed, medium) in (0..100).map(|seed| (seed, [Medium::Http, Medium::Tcp][seed as usize % 2])) {
            assert_eq!(Case::random(seed, medium).to_string(), Case::random(seed, medium).to_string());
        }
        let different: std::collections::HashSet<_> =
            (0..1000).map(|seed| Case::random(seed, Medium::Http).to_string()).collect();
        assert!(different.len() > 990);
    }

    #[test]
    fn list_covers_every_fault_and_request() {
        let listed = Case::listed(&[Retries::None], Medium::Http);
        let light = scenario::ALL.iter().filter(|scenario| !scenario.is_heavy());
        let tried: usize = light.map(|scenario| scenario.tried().1 - scenario.tried().0).sum();
        assert!(listed.len() >= scenario::ALL.len() + tried * (HttpWay::ALL.len() - 1));
        let of_each = Case::some_of_each(listed.clone(), 1, 1);
        let cell = |case: &Case| {
            let (at, fault) = case.faults.first_key_value()?;
            Some((case.scenario.requests[*at], *fault))
        };
        let cells = |cases: &[Case]| cases.iter().filter_map(cell).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(cells(&of_each), cells(&listed));
        assert_eq!(of_each.len(), cells(&listed).len() + scenario::ALL.len());
    }
}
