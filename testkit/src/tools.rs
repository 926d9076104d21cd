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

/// Finds the Python that has the packages of `scripts/tools`. If it's missing, prints that the test is skipped, and returns
/// `None`.
///
/// # Panics
///
/// In CI, if it's missing.
pub fn python() -> Option<PathBuf> {
    // A link to the system's Python, which mustn't be resolved: it's in the folder of the installed packages' programs.
    tool("openapi-spec-validator").map(|program| program.with_file_name("python3"))
}
