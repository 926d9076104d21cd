//! Finds third-party tools that the tests start.

use std::path::{Path, PathBuf};

use crate::skip::skip;

/// Finds the tool `name` in the folder where `scripts/tools` installs tools, or else in `PATH`. If the tool is missing,
/// prints that the test is skipped, and returns `None`.
///
/// # Panics
///
/// In CI, if the tool is missing; see [`skip`].
pub fn tool(name: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::iter::once(installed)
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|tool| tool.is_file());
    if found.is_none() {
        skip(format_args!("{name} is missing: run scripts/tools, which installs it into the build folder"));
    }
    // An absolute path, since some tests start the tool in another folder.
    found.and_then(|tool| tool.canonicalize().ok())
}
