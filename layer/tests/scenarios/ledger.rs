//! The functions' runs and effects. Each is one line of a file that outlives every kill.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The ledger's file.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(PathBuf);

impl Ledger {
    /// Creates an empty ledger, which every user may append to.
    pub(crate) fn new(file: PathBuf) -> Self {
        File::create(&file).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        Self(file)
    }

    pub(crate) fn file(&self) -> &Path {
        &self.0
    }

    /// How often the function started a run with this key.
    pub(crate) fn runs(&self, key: &str) -> usize {
        self.count("run", key)
    }

    /// How many effects the function had with this key.
    pub(crate) fn effects(&self, key: &str) -> usize {
        self.count("effect", key)
    }

    /// The keys that begin with `prefix`, without the prefix, in the order of their effects.
    pub(crate) fn order(&self, prefix: &str) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap();
        let keys = text
            .lines()
            .filter_map(|line| line.strip_prefix("effect ")?.strip_prefix(prefix)?.split(' ').next());
        keys.map(str::to_owned).collect()
    }

    fn count(&self, what: &str, key: &str) -> usize {
        let beginning = format!("{what} {key} ");
        let text = fs::read_to_string(&self.0).unwrap();
        text.lines().filter(|line| line.starts_with(&beginning)).count()
    }
}
