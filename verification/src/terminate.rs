//! Checks that every delivery ends: finds the longest path through the machine's own states.

use std::collections::{HashMap, HashSet};

use crate::{checker::Position, configuration::Configuration};

/// The most store calls that a delivery may make while it keeps its claim. Claiming takes at most four
/// writes, each with a read. Settling takes one write with a read, and so does each retry. One more write may
/// follow: a settlement without the response or, if a transaction is still ambiguous, that transaction again. An
/// operator may send each write twice, with a read after each, and may follow five changes of the lease.
pub fn most_calls(configuration: &Configuration) -> usize {
    let operators = 4 * (1 + 5) * usize::from(configuration.operations.min(1));
    operators.max(8 + 3 + 2 * usize::from(configuration.max_retries))
}

/// The most store calls on any path through the machine, or `None` if some path is endless.
///
/// `edges` has the steps of all states together, so the result is an upper bound: perhaps no single execution
/// contains the whole path.
///
/// Two kinds of steps aren't in `edges`, since the machine alone doesn't bound them:
///
/// - The handler decides how often it asks for an extension, or tries again after a declined transaction.
/// - After another delivery's write or the sweeper's removal, an executor whose claim was lost claims again to record
///   its outcome, and an executor without a claim concludes again. The other deliveries and the sweeper decide how
///   often this happens.
pub(crate) fn longest_run(edges: impl Iterator<Item = (Position, Position, bool)>) -> Option<usize> {
    let mut ways: HashMap<Position, HashSet<(Position, bool)>> = HashMap::new();
    for (from, to, calls) in edges {
        ways.entry(from).or_default().insert((to, calls));
    }
    let mut longest: HashMap<Position, Option<usize>> = HashMap::new();
    for &start in ways.keys() {
        // Depth first, with an explicit stack, since a recursion would be as deep as the path is long.
        let mut path = vec![(start, false)];
        while let Some((at, is_seen)) = path.pop() {
            let out = ways.get(&at);
            if is_seen {
                let best = out.into_iter().flatten().map(|&(to, calls)| {
                    longest.get(&to).copied().flatten().unwrap_or(0) + usize::from(calls)
                });
                let best = best.max().unwrap_or(0);
                longest.insert(at, Some(best));
                continue;
            }
            match longest.get(&at) {
                Some(Some(_)) => continue,
                // `at` is on the path that led here: a cycle.
                Some(None) => return None,
                None => {}
            }
            longest.insert(at, None);
            path.push((at, true));
            for (to, _) in out.into_iter().flatten() {
                match longest.get(to) {
                    Some(None) => return None,
                    Some(Some(_)) => {}
                    None => path.push((*to, false)),
                }
            }
        }
    }
    Some(longest.values().copied().flatten().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Stage;

    fn at(number: u32) -> Position {
        (number, Stage::Applying)
    }

    #[test]
    fn longest_run_counts_only_store_calls() {
        let edges = [(1, 2, true), (2, 3, false), (3, 5, true), (1, 5, true), (2, 5, true)];
        let edges = edges.map(|(from, to, calls)| (at(from), at(to), calls));
        assert_eq!(longest_run(edges.into_iter()), Some(2));
    }

    #[test]
    fn cycle_has_no_longest_run() {
        for ring in [vec![(1, 1)], vec![(1, 2), (2, 3), (3, 1)], vec![(4, 2), (4, 3), (3, 2), (2, 3)]] {
            let edges = ring.into_iter().map(|(from, to)| (at(from), at(to), true));
            assert_eq!(longest_run(edges), None);
        }
    }

    #[test]
    fn converging_paths_are_not_a_cycle() {
        let edges = [(1, 2), (1, 3), (2, 4), (3, 4), (4, 5)];
        let edges = edges.map(|(from, to)| (at(from), at(to), true));
        assert_eq!(longest_run(edges.into_iter()), Some(3));
    }
}
