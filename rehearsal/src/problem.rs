//! The error of `idempotency-rehearse` when it couldn't do its work.

use std::{
    error::Error,
    fmt::{self, Display},
};

/// One line for the person at the terminal: what happened, to what, and what to do next.
#[derive(Debug)]
pub struct Problem(String);

/// A result whose error means that the command couldn't do its work.
pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    /// A problem, described in words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// An error and its causes, in one line.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let chain = std::iter::successors(Some(error), |&error| error.source());
        let words: Vec<_> = chain.map(|error| error.to_string().replace(['\n', '\r'], " ")).collect();
        Self(words.join(": "))
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts a description of the code's work in front of a lower layer's error.
pub trait Context<T> {
    /// Turns the error into a problem that begins with `doing`.
    fn context(self, doing: impl Display) -> Result<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context(self, doing: impl Display) -> Result<T> {
        self.map_err(|error| Problem(format!("{doing}: {error}")))
    }
}
