//! The runs of a function's handler, as its processes tell of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lines that processes of a function have written at each run of its handler. Its clones share them.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<Mutex<Vec<String>>>);

impl Runs {
    /// How many runs there have been.
    pub fn count(&self) -> usize {
        self.lines().len()
    }

    /// What has been written at each run since there were `count` of them.
    pub(crate) fn since(&self, count: usize) -> Vec<String> {
        self.lines().get(count..).unwrap_or_default().to_vec()
    }

    /// One more.
    pub(crate) fn add(&self, line: String) {
        self.lines().push(line);
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
