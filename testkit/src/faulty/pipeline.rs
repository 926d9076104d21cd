//! The answers to calls that share one connection, in the order of the requests.

use std::{collections::VecDeque, sync::Mutex};

/// Answers that haven't been fetched. The answer to a dropped call stays, and the next call fetches it.
#[derive(Debug)]
pub(super) struct Pipeline<T>(Mutex<VecDeque<T>>);

impl<T> Default for Pipeline<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Pipeline<T> {
    /// Sends a request whose answer will be `answer`, waits, and fetches the first answer that's there.
    pub(super) async fn call(&self, answer: T) -> T {
        const UNPOISONED: &str = "no test panics while it holds the lock";
        self.0.lock().expect(UNPOISONED).push_back(answer);
        tokio::task::yield_now().await;
        self.0.lock().expect(UNPOISONED).pop_front().expect("each call adds an answer and fetches one")
    }
}
