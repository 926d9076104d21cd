//! The runs of a function's handler, counted from its processes' output.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lines that a function's processes wrote, one per run of its handler. Clones share the lines.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<Mutex<Vec<String>>>);

impl Runs {
    /// The number of runs so far.
    pub fn count(&self) -> usize {
        self.lines().len()
    }

    /// The lines of all runs after the first `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<String> {
        self.lines().get(count..).unwrap_or_default().to_vec()
    }

    /// Adds a run.
    pub(crate) fn add(&self, line: String) {
        self.lines().push(line);
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
