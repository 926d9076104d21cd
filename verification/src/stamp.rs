//! Computes a stamp of the rules and of the model checker that explores them.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// The sources of the rules and of the model checker: single files, and folders with everything below them.
/// `settings.rs` isn't listed, since the machine uses only the two variants of `Execution` from it. Of the testing
/// kit, only the faults' errors are listed, since the model checker uses nothing else of it but the faults' names.
const RULES: [&str; 7] = [
    "crates/core/src/protocol",
    "crates/core/src/protocol.rs",
    "crates/core/src/record.rs",
    "crates/core/src/store/put.rs",
    "crates/testing/src/fault/error.rs",
    "crates/core/src/time/timestamp.rs",
    "verification/src",
];
/// The files and folders of [`RULES`] that don't affect the exploration of the shipping protocol: tests, other
/// protocols, the simulation, the command line, reporting, and the spaces. The spaces aren't needed, since each space
/// is recorded with its own digest.
const NOT_RULES: [&str; 14] = [
    "crates/core/src/protocol/tests",
    "crates/core/src/protocol/tests.rs",
    "verification/src/lib.rs",
    "verification/src/main.rs",
    "verification/src/mutants",
    "verification/src/mutants.rs",
    "verification/src/powertools.rs",
    "verification/src/recorded.rs",
    "verification/src/report.rs",
    "verification/src/simulation",
    "verification/src/simulation.rs",
    "verification/src/spaces",
    "verification/src/spaces.rs",
    "verification/src/stamp.rs",
];

/// SHA-256 over the rule files below `root`: each file's path in its package and code, in the order of the paths. Comment
/// lines, blank lines and the tests at a file's end are left out, so that they don't change the stamp.
///
/// # Errors
///
/// If a file can't be read.
pub fn stamp(root: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for name in RULES {
        collect(root, name, &mut files)?;
    }
    files.sort();
    let mut digest = Sha256::new();
    for name in &files {
        let content = fs::read_to_string(root.join(name))?;
        digest.update(format!("file {}\n", in_package(name)));
        for line in code(&content) {
            digest.update(format!("{line}\n"));
        }
    }
    Ok(hex(&digest.finalize()))
}

/// The path below the folder of a library's package, so that the stamp stays the same if a file moves to another package.
fn in_package(name: &str) -> &str {
    let moved = name.strip_prefix("crates/").and_then(|name| name.split_once('/'));
    moved.map_or(name, |(_, path)| path)
}

/// `bytes` in lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing into a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The lines of code: no comment lines, no blank lines, no tests.
fn code(content: &str) -> impl Iterator<Item = &str> {
    let lines = content.lines().take_while(|line| *line != "#[cfg(test)]").map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//"))
}

fn collect(root: &Path, name: &str, files: &mut Vec<String>) -> io::Result<()> {
    if NOT_RULES.contains(&name) {
        return Ok(());
    }
    let path = root.join(name);
    if !path.is_dir() {
        let is_source = Path::new(name).extension().is_some_and(|extension| extension == "rs");
        files.extend(is_source.then(|| name.to_owned()));
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(root, &format!("{name}/{}", entry?.file_name().to_string_lossy()), files)?;
    }
    Ok(())
}

/// The root of the repository that this program was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_change_the_stamp() {
        let root = std::env::temp_dir().join(format!("stamp-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in [
            "crates/core/src/protocol.rs",
            "crates/core/src/record.rs",
            "crates/core/src/store/put.rs",
            "crates/testing/src/fault/error.rs",
            "crates/core/src/time/timestamp.rs",
        ] {
            write(name, "rules");
        }
        for name in [
            "crates/core/src/protocol/settle.rs",
            "verification/src/checker.rs",
            "verification/src/checker/record.rs",
        ] {
            write(name, "more");
        }
        let first = stamp(&root).unwrap();
        assert_eq!(first.len(), 64);
        for name in [
            "crates/core/src/protocol/tests.rs",
            "crates/core/src/protocol/tests/open.rs",
            "verification/src/simulation/x.rs",
            "verification/src/spaces.rs",
        ] {
            write(name, "a test");
            assert_eq!(stamp(&root).unwrap(), first, "{name}");
        }
        for comment in ["rules\n// A comment.\n", "/// Docs.\n\n  rules", "rules\n#[cfg(test)]\nmod tests {}"]
        {
            write("crates/core/src/store/put.rs", comment);
            assert_eq!(stamp(&root).unwrap(), first, "{comment}");
        }
        let mut seen = vec![first];
        for name in [
            "crates/core/src/store/put.rs",
            "crates/core/src/protocol/settle.rs",
            "verification/src/checker/record.rs",
            "crates/core/src/protocol/new.rs",
            "crates/core/src/time/timestamp.rs",
        ] {
            write(name, "changed");
            let stamp = stamp(&root).unwrap();
            assert!(!seen.contains(&stamp), "{name}");
            seen.push(stamp);
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
