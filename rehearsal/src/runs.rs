//! The runs of a function's handler, counted from its processes' output, and what else was seen of the processes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use crate::clock;

/// The lines that a function's processes wrote, one per run of its handler, and the processes' other events. Clones
/// share the lines and the events.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    lines: Arc<Mutex<Vec<String>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    processes: Arc<AtomicUsize>,
    /// The number of the process whose events this clone takes; 0 for none.
    process: usize,
}

/// An event of a process, as the rehearsal saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    /// The number of the process, from 1; 0 if it's not an event of a process.
    pub(crate) process: usize,
    pub(crate) what: What,
}

/// The kinds of events of a process. Its requests to DynamoDB are in the log of its wire.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// It got an event, described here.
    Delivered(String),
    /// Its handler wrote the line of a run.
    Ran,
    /// It answered.
    Answered(String, bool),
    /// It gave no answer.
    Unanswered(String),
    /// It got this signal.
    Signal(&'static str),
    /// The lease of the step's record expired.
    LeaseExpired,
    /// The gateway outside got a request, and this is what it did. The flag says whether that's an effect.
    AtGateway(String, bool),
}

impl Runs {
    /// The number of runs so far.
    pub fn count(&self) -> usize {
        lock(&self.lines).len()
    }

    /// The lines of all runs after the first `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<String> {
        lock(&self.lines).get(count..).unwrap_or_default().to_vec()
    }

    /// Adds a run.
    pub(crate) fn add(&self, line: String) {
        lock(&self.lines).push(line);
        self.note(What::Ran);
    }

    /// Returns a clone for the events of another process, with the process's number.
    pub(crate) fn of_next_process(&self) -> (Self, usize) {
        let process = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        (Self { process, ..self.clone() }, process)
    }

    /// Notes an event, with the time.
    pub(crate) fn note(&self, what: What) {
        lock(&self.seen).push(Seen { at: clock::start(), process: self.process, what });
    }

    /// All events so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
