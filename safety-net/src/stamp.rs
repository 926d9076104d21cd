//! What the long exploration explored: a stamp of the rules, and of the net itself, and the file that says so.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};

use crate::{explore::Report, report::grouped};

/// What the rules are written in: single files, and folders with all that is below them.
const RULES: [&str; 6] =
    ["src/policy.rs", "src/protocol", "src/protocol.rs", "src/record.rs", "src/store.rs", "safety-net/src"];
/// What is below those and decides nothing of what is explored: tests, and the simulation, which drives the engine.
const NOT_RULES: [&str; 4] = [
    "src/protocol/tests",
    "src/protocol/tests.rs",
    "safety-net/src/simulation",
    "safety-net/src/simulation.rs",
];

/// SHA-256 over the rule files below `root`: each file's path and code, in the order of the paths. Comments, blank lines
/// and the tests at a file's end are left out, so that it changes with a rule, and not with what is said of it.
///
/// # Errors
///
/// If a file cannot be read.
pub fn stamp(root: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for name in RULES {
        collect(root, name, &mut files)?;
    }
    files.sort();
    let mut digest = Sha256::new();
    for name in &files {
        let content = fs::read_to_string(root.join(name))?;
        digest.update(format!("file {name}\n"));
        for line in code(&content) {
            digest.update(format!("{line}\n"));
        }
    }
    let mut text = String::new();
    for byte in digest.finalize() {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The lines that decide anything.
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

/// The repository that this was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What is written down of a long exploration that found nothing. `since_epoch` is the time now.
pub fn record(
    stamp: &str,
    commit: &str,
    since_epoch: Duration,
    reports: &[Report],
    took: Duration,
) -> String {
    let sum = |of: fn(&Report) -> usize| grouped(reports.iter().map(of).sum());
    let largest = reports.iter().map(|report| report.states).max().unwrap_or(0);
    format!(
        "# The long exploration of these rules: `safety-net explore --long --record safety-net/explored.txt`.\n\
         # CI runs it anew when `safety-net stamp` prints another stamp.\n\
         stamp: {stamp}\n\
         commit: {commit}\n\
         date: {}\n\
         configurations: {}, each complete; the largest has {} worlds\n\
         worlds: {}\n\
         transitions: {}\n\
         violations: {}\n\
         minutes: {:.0}\n",
        date(since_epoch),
        reports.len(),
        grouped(largest),
        sum(|report| report.states),
        sum(|report| report.transitions),
        sum(|report| report.violations.len()),
        took.as_secs_f64() / 60.0,
    )
}

/// The stamp in what [`record`] has written.
pub fn stamp_in(recorded: &str) -> Option<&str> {
    recorded.lines().find_map(|line| line.strip_prefix("stamp: "))
}

/// The time now, since 1970.
#[expect(clippy::disallowed_methods, reason = "it dates a file, and decides nothing")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The day in UTC, as `2026-11-22` (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(since_epoch: Duration) -> String {
    let days = since_epoch.as_secs() / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_a_date() {
        let on = |secs| date(Duration::from_secs(secs));
        assert_eq!(on(0), "1970-01-01");
        assert_eq!(on(951_782_400), "2000-02-29");
        assert_eq!(on(1_795_305_599), "2026-11-21");
        assert_eq!(on(1_795_305_600), "2026-11-22");
    }

    #[test]
    fn rules_change_the_stamp_tests_do_not() {
        let root = std::env::temp_dir().join(format!("stamp-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in ["src/policy.rs", "src/protocol.rs", "src/record.rs", "src/store.rs"] {
            write(name, "rules");
        }
        for name in ["src/protocol/settle.rs", "safety-net/src/net.rs", "safety-net/src/net/record.rs"] {
            write(name, "more");
        }
        let first = stamp(&root).unwrap();
        assert_eq!(first.len(), 64);
        for name in ["src/protocol/tests.rs", "src/protocol/tests/open.rs", "safety-net/src/simulation/x.rs"]
        {
            write(name, "a test");
            assert_eq!(stamp(&root).unwrap(), first, "{name}");
        }
        for comment in ["rules\n// A comment.\n", "/// Docs.\n\n  rules", "rules\n#[cfg(test)]\nmod tests {}"]
        {
            write("src/store.rs", comment);
            assert_eq!(stamp(&root).unwrap(), first, "{comment}");
        }
        let mut seen = vec![first];
        for name in
            ["src/store.rs", "src/protocol/settle.rs", "safety-net/src/net/record.rs", "src/protocol/new.rs"]
        {
            write(name, "changed");
            let stamp = stamp(&root).unwrap();
            assert!(!seen.contains(&stamp), "{name}");
            seen.push(stamp);
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_record_gives_its_stamp_back() {
        let text = record("abc", "commit", Duration::ZERO, &[], Duration::ZERO);
        assert_eq!(stamp_in(&text), Some("abc"));
        assert_eq!(stamp_in("nothing"), None);
    }
}
