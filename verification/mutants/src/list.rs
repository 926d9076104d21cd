//! The mutants, as `cargo mutants --list --json` prints them.

use std::{fs, path::Path};

use serde::Deserialize;

use crate::Failed;

/// One mutant.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// The mutated file, from the root of the repository.
    pub(crate) file: String,
    /// The kind of mutation: `FnValue`, `BinaryOperator`, `UnaryOperator`, `StructField`, `MatchArm` or `MatchArmGuard`.
    pub(crate) genre: String,
    /// The mutant's line in reports: place and change.
    pub(crate) name: String,
    /// The text that replaces the mutated text.
    pub(crate) replacement: String,
    /// The range of the mutated text.
    pub(crate) span: Span,
    /// The function that contains the mutant.
    pub(crate) function: Option<Function>,
}

/// The function that contains a mutant.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Function {
    /// `-> Type`, or empty.
    pub(crate) return_type: String,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Span {
    pub(crate) start: Place,
    pub(crate) end: Place,
}

/// A place in a file. Both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// Reads the list.
pub(crate) fn read(path: &Path) -> Result<Vec<Mutant>, Failed> {
    let text =
        fs::read_to_string(path).map_err(|error| Failed::new(format!("{}: {error}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| {
        Failed::new(format!("{} isn't what `cargo mutants --list --json` prints: {error}", path.display()))
    })
}
