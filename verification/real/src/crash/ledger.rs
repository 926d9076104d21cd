//! Records each effect as a line in a file. SIGKILL can't cut the line short or undo it.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use lambda_idempotency_rehearsal::problem::{Context, Result};
use serde::{Deserialize, Serialize};

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The run that had the effect. Its name is its process's number and its invocation's number, as in `2-1`.
    pub run: String,
    /// The generation of the run's claim.
    pub generation: u64,
    /// The claim's attempt.
    pub attempt: u32,
    /// When the claim's lease ends, in ms since the epoch, as the run knew it.
    pub lease_until: u64,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, generation, attempt, lease_until } = self;
        write!(f, "run {run}, generation {generation}, attempt {attempt}, lease until {lease_until}")
    }
}

/// A folder with one file of lines per key.
#[derive(Clone, Debug)]
pub struct Ledger {
    folder: PathBuf,
}

impl Ledger {
    /// Opens the ledger in this folder.
    pub fn at(folder: impl AsRef<Path>) -> Self {
        Self { folder: folder.as_ref().to_owned() }
    }

    /// Returns the ledger's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a line to a key's file.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn append(&self, key: &str, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        // A single write keeps the line in one piece, even if other processes append at the same time.
        OpenOptions::new().create(true).append(true).open(self.folder.join(key))?.write_all(text.as_bytes())
    }

    /// Reads a key's lines, in the order in which they were written.
    ///
    /// # Errors
    ///
    /// If the file can't be read, or one of its lines isn't valid.
    pub fn lines(&self, key: &str) -> Result<Vec<Line>> {
        let file = self.folder.join(key);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.context(format!("couldn't read the ledger {}", file.display()))?,
        };
        let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        lines.context(format!("couldn't read the ledger {}", file.display()))
    }

    /// Lists the keys that have lines and weren't [forgotten](Self::forget).
    ///
    /// # Errors
    ///
    /// If the folder can't be read.
    pub fn keys(&self) -> Result<Vec<String>> {
        let doing = format!("couldn't list the ledger {}", self.folder.display());
        let files = fs::read_dir(&self.folder).context(&doing)?.collect::<io::Result<Vec<_>>>();
        Ok(files
            .context(&doing)?
            .iter()
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .collect())
    }

    /// Deletes the lines of a key, after the judge has found no violation.
    ///
    /// # Errors
    ///
    /// If the file can't be removed.
    pub fn forget(&self, key: &str) -> Result<()> {
        match fs::remove_file(self.folder.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context("couldn't delete the ledger")
            }
            _ => Ok(()),
        }
    }
}
