//! Visits every reachable state, breadth first. So the first trace to a broken invariant is also a shortest one.

use std::{
    ops::ControlFlow,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::{
    checker::{Checker, Happened},
    configuration::Configuration,
    coverage::Coverage,
    faults::{Choice, choices},
    fingerprints::Visited,
    invariants::{Flaws, Invariant},
    model::ExploredState,
    packed::Queue,
    terminate,
    trace::{self, Trace},
    under_test::Protocol,
};

/// The limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most distinct states to visit.
    pub states: usize,
    /// The most memory to use, in bytes: for the visited states and those still to visit.
    pub memory: usize,
    /// Whether to continue after an invariant broke, to find other broken invariants.
    pub go_on: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { states: usize::MAX, memory: usize::MAX, go_on: false }
    }
}

/// A broken invariant, and the shortest path to it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The broken invariant.
    pub invariant: Invariant,
    /// The path to the broken invariant.
    pub trace: Trace,
}

/// The results of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    /// The space that was explored.
    pub name: &'static str,
    /// How many distinct states were visited.
    pub states: usize,
    /// How many transitions were made between states.
    pub transitions: usize,
    /// How far the farthest state is from the initial state, in steps from one kept state to the next. A step may
    /// consist of several transitions.
    pub depth: usize,
    /// How many distinct states the machines were in.
    pub machines: usize,
    /// The most store calls that one delivery can make; `None` if there is no bound.
    pub longest_run: Option<usize>,
    /// Whether every state was visited.
    pub is_complete: bool,
    /// The marks that were reached.
    pub coverage: Coverage,
    /// The invariants that can't hold in the space, and broke.
    pub exempted: Flaws,
    /// The broken invariants, each once.
    pub violations: Vec<Violation>,
    /// How long the exploration took. [`explore`] itself leaves this at zero, and callers with a clock fill it in.
    pub took: Duration,
}

/// Explores `protocol` in each of `spaces`, `jobs` at a time, and calls `done` with each report when it's
/// ready. The reports are in the order of the spaces.
pub fn explore_all<P: Protocol + Sync>(
    protocol: &P,
    spaces: &[Configuration],
    limits: Limits,
    jobs: usize,
    clock: &(dyn Fn() -> Duration + Sync),
    done: &(dyn Fn(&Report) + Sync),
) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut reports = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(space) = spaces.get(number) else { return reports };
            let start = clock();
            let report = explore(protocol, space, limits);
            let report = Report { took: clock().saturating_sub(start), ..report };
            done(&report);
            reports.push((number, report));
        }
    };
    let mut reports: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        // A panic in a worker is a bug in the checker itself, so it's propagated.
        let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(reports) => reports,
            Err(panic) => resume_unwind(panic),
        };
        workers.into_iter().flat_map(join).collect()
    });
    reports.sort_by_key(|&(number, _)| number);
    reports.into_iter().map(|(_, report)| report).collect()
}

/// Explores `protocol` in `configuration`.
pub fn explore<P: Protocol>(protocol: &P, configuration: &Configuration, limits: Limits) -> Report {
    let mut explorer = Explorer {
        checker: Checker::new(protocol, configuration),
        visited: Visited::new(),
        parents: Vec::new(),
        coverage: Coverage::NONE,
        exempted: Flaws::NONE,
        violations: Vec::new(),
        transitions: 0,
    };
    let (depth, is_complete) = explorer.run(limits);
    let longest_run = terminate::longest_run(explorer.checker.edges());
    let terminates = longest_run.is_some_and(|calls| calls <= terminate::most_calls(configuration));
    if !terminates {
        explorer.violations.push(Violation { invariant: Invariant::Terminates, trace: Trace::default() });
    }
    Report {
        name: configuration.name,
        states: explorer.parents.len(),
        transitions: explorer.transitions,
        depth,
        machines: explorer.checker.machines(),
        longest_run,
        is_complete,
        coverage: explorer.coverage,
        exempted: explorer.exempted,
        violations: explorer.violations,
        took: Duration::ZERO,
    }
}

struct Explorer<'a, P: Protocol> {
    checker: Checker<'a, P>,
    visited: Visited,
    /// For each state, in the order of discovery: its predecessor, and its index among that predecessor's
    /// successors.
    parents: Vec<(u32, u32)>,
    coverage: Coverage,
    exempted: Flaws,
    violations: Vec<Violation>,
    transitions: usize,
}

impl<P: Protocol> Explorer<'_, P> {
    /// Visits every state, unless a limit or a violation ends the exploration early. Returns how far the farthest
    /// visited state is from the initial one, and whether every state was visited.
    fn run(&mut self, limits: Limits) -> (usize, bool) {
        let first = ExploredState::new(self.checker.configuration());
        let slots = self.checker.configuration().slots();
        let (mut layer, mut next) = (Queue::new(slots), Queue::new(slots));
        next.push(0, &first);
        // The initial state has no predecessor. In every other queued state, all executors have already decided what
        // they do at that moment.
        self.parents.push((0, 0));
        let mut depth = 0;
        while !next.is_empty() {
            std::mem::swap(&mut layer, &mut next);
            while let Some((number, explored)) = layer.pop() {
                let layer_memory = layer.memory();
                let mut ordinal = 0u32;
                let mut chain = Chain::default();
                let ended =
                    successors(&mut self.checker, &explored, &mut chain, &mut |checker, path, happened| {
                        self.transitions += 1;
                        self.coverage.add(happened.coverage);
                        self.exempted.add(happened.exempted);
                        if !happened.flaws.is_empty() {
                            let news = happened.flaws.iter().filter(|&flaw| {
                                self.violations.iter().all(|violation| violation.invariant != flaw)
                            });
                            let news: Vec<_> = news.collect();
                            if !news.is_empty() {
                                let trace = tell(checker, &self.parents, number, path);
                                let found = news
                                    .into_iter()
                                    .map(|invariant| Violation { invariant, trace: trace.clone() });
                                self.violations.extend(found);
                            }
                            if !limits.go_on {
                                return ControlFlow::Break(());
                            }
                        }
                        if happened.explored.is_urgent() {
                            return ControlFlow::Continue(());
                        }
                        let at = ordinal;
                        ordinal += 1;
                        if self.visited.insert(happened.explored.fingerprint()) {
                            let known = self.parents.len();
                            let waiting = layer_memory + next.memory();
                            let memory = self.visited.memory() + known * size_of::<(u32, u32)>() + waiting;
                            if known > limits.states || memory > limits.memory {
                                return ControlFlow::Break(());
                            }
                            self.parents.push((number, at));
                            next.push(known as u32, &happened.explored);
                        }
                        ControlFlow::Continue(())
                    });
                if ended.is_break() {
                    return (depth + 1, false);
                }
            }
            depth += usize::from(!next.is_empty());
        }
        (depth, true)
    }
}

/// The choices that lead from one state to the next, and reusable buffers for the lists of possible choices.
#[derive(Default)]
struct Chain {
    path: Vec<Choice>,
    spare: Vec<Vec<Choice>>,
}

/// Visits every transition from `explored`, and the transitions that follow until all executors have decided
/// what they do at this moment. The states in between aren't kept.
fn successors<P: Protocol>(
    checker: &mut Checker<'_, P>,
    explored: &ExploredState,
    chain: &mut Chain,
    visit: &mut impl FnMut(&mut Checker<'_, P>, &[Choice], &Happened) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut options = chain.spare.pop().unwrap_or_default();
    choices(checker.configuration(), explored, &mut options);
    for &choice in &options {
        let Some(happened) = checker.perform(explored, choice) else { continue };
        chain.path.push(choice);
        visit(checker, &chain.path, &happened)?;
        if happened.explored.is_urgent() {
            successors(checker, &happened.explored, chain, visit)?;
        }
        chain.path.pop();
    }
    chain.spare.push(options);
    ControlFlow::Continue(())
}

/// Describes the path to the state with this number, followed by the choices in `last`.
fn tell<P: Protocol>(
    checker: &mut Checker<'_, P>,
    parents: &[(u32, u32)],
    number: u32,
    last: &[Choice],
) -> Trace {
    let mut ordinals = Vec::new();
    let mut at = number;
    while at != 0 {
        let (parent, ordinal) = parents[at as usize];
        ordinals.push(ordinal);
        at = parent;
    }
    let mut explored = ExploredState::new(checker.configuration());
    let mut whole = Vec::new();
    for wanted in ordinals.into_iter().rev() {
        let mut ordinal = 0;
        let mut found = None;
        let _ = successors(checker, &explored, &mut Chain::default(), &mut |_, path, happened| {
            if happened.explored.is_urgent() {
                return ControlFlow::Continue(());
            }
            if ordinal == wanted {
                found = Some((path.to_vec(), happened.explored));
                return ControlFlow::Break(());
            }
            ordinal += 1;
            ControlFlow::Continue(())
        });
        let Some((path, next)) = found else { break };
        whole.extend(path);
        explored = next;
    }
    whole.extend_from_slice(last);
    trace::tell(checker, &whole)
}
