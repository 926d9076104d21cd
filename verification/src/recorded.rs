//! The file that lists the spaces that were explored completely, with the stamp of the rules.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest as _, Sha256};

use crate::{
    configuration::Configuration,
    coverage::Coverage,
    explore::Report,
    report::grouped,
    stamp::{hex, root, stamp},
};

const STAMP: &str = "stamp: ";

/// A space that was explored completely, without a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Explored {
    name: String,
    /// A digest of the whole [`Configuration`]: a space that changes under the same name is a different space.
    configuration: String,
    worlds: usize,
    transitions: usize,
    seconds: u64,
    reached: Coverage,
    commit: String,
    date: String,
}

/// The file's rows for the current rules.
#[derive(Debug)]
pub struct Recorded {
    path: PathBuf,
    stamp: String,
    commit: String,
    explored: Vec<Explored>,
}

impl Recorded {
    /// Reads `path`. Rows from an exploration of other rules are ignored.
    ///
    /// # Errors
    ///
    /// If a source file of the rules can't be read.
    pub fn open(path: &Path, commit: String) -> io::Result<Self> {
        let stamp = stamp(&root())?;
        // A missing file has no rows.
        let text = fs::read_to_string(path).unwrap_or_default();
        let is_current = text.lines().any(|line| line.strip_prefix(STAMP) == Some(&stamp));
        let explored = if is_current { text.lines().filter_map(parse).collect() } else { Vec::new() };
        Ok(Self { path: path.to_owned(), stamp, commit, explored })
    }

    /// Whether `space` was explored under these rules.
    pub fn has(&self, space: &Configuration) -> bool {
        let digest = digest(space);
        self.explored.iter().any(|explored| explored.configuration == digest)
    }

    /// Drops the rows of all spaces that aren't in `spaces`, the list of existing spaces.
    pub fn keep(&mut self, spaces: &[Configuration]) {
        let digests: Vec<String> = spaces.iter().map(digest).collect();
        self.explored.retain(|explored| digests.contains(&explored.configuration));
    }

    /// The marks that the recorded spaces reached.
    pub fn reached(&self) -> Coverage {
        let mut reached = Coverage::NONE;
        self.explored.iter().for_each(|explored| reached.add(explored.reached));
        reached
    }

    /// Adds `report` and writes the file at once, so that the next run skips this space even if this run is
    /// interrupted. A space that was cut off or has a violation isn't added.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn add(&mut self, space: &Configuration, report: &Report) -> io::Result<()> {
        if !report.is_complete || !report.violations.is_empty() {
            return Ok(());
        }
        self.explored.push(Explored {
            name: space.name.to_owned(),
            configuration: digest(space),
            worlds: report.states,
            transitions: report.transitions,
            seconds: report.took.as_secs(),
            reached: report.coverage,
            commit: self.commit.clone(),
            date: date(since_epoch()),
        });
        fs::write(&self.path, self.to_string())
    }
}

impl std::fmt::Display for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |of: fn(&Explored) -> usize| grouped(self.explored.iter().map(of).sum());
        writeln!(
            f,
            "The spaces that `scripts/verification explore` has explored to their end without a violation, under the\n\
             rules whose stamp `verification stamp` prints. CI explores the spaces that aren't listed here.\n\n\
             {STAMP}{}\n\n\
             | space | digest | explored states | transitions | seconds | reached | commit | date |\n\
             |---|---|---:|---:|---:|---|---|---|",
            self.stamp
        )?;
        for one in &self.explored {
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                one.name,
                one.configuration,
                grouped(one.worlds),
                grouped(one.transitions),
                one.seconds,
                one.reached.to_hex(),
                one.commit,
                one.date
            )?;
        }
        let seconds: u64 = self.explored.iter().map(|one| one.seconds).sum();
        writeln!(
            f,
            "\n{} spaces, {} explored states, {} transitions, {seconds} s on one core",
            self.explored.len(),
            sum(|one| one.worlds),
            sum(|one| one.transitions),
        )
    }
}

fn parse(line: &str) -> Option<Explored> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let &[name, configuration, worlds, transitions, seconds, reached, commit, date] = cells.as_slice() else {
        return None;
    };
    let number = |text: &str| text.replace(',', "").parse().ok();
    Some(Explored {
        name: name.to_owned(),
        configuration: configuration.to_owned(),
        worlds: number(worlds)?,
        transitions: number(transitions)?,
        seconds: seconds.parse().ok()?,
        reached: Coverage::from_hex(reached)?,
        commit: commit.to_owned(),
        date: date.to_owned(),
    })
}

fn digest(space: &Configuration) -> String {
    let mut text = hex(&Sha256::digest(format!("{space:?}")));
    text.truncate(16);
    text
}

/// The time since the start of 1970, in UTC.
#[expect(clippy::disallowed_methods, reason = "the date only goes into a file")]
fn since_epoch() -> Duration {
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
    use crate::{coverage::Mark, invariants::Flaws, spaces};

    #[test]
    fn dates_are_formatted_in_utc() {
        let on = |secs| date(Duration::from_secs(secs));
        assert_eq!(on(0), "1970-01-01");
        assert_eq!(on(951_782_400), "2000-02-29");
        assert_eq!(on(1_795_305_599), "2026-11-21");
        assert_eq!(on(1_795_305_600), "2026-11-22");
    }

    fn report(is_complete: bool) -> Report {
        let mut coverage = Coverage::NONE;
        [Mark::T1, Mark::RefusedT8].into_iter().for_each(|mark| coverage.reach(mark));
        Report {
            name: "",
            states: 1_234_567,
            transitions: 7,
            depth: 3,
            machines: 2,
            longest_run: None,
            is_complete,
            coverage,
            exempted: Flaws::NONE,
            violations: Vec::new(),
            took: Duration::from_secs(9),
        }
    }

    /// A space in the file counts as explored until the rules or the space change. A space that was cut off isn't
    /// written to the file.
    #[test]
    fn explored_spaces_are_recognised_until_changed() {
        let path = std::env::temp_dir().join(format!("explored-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let open = || Recorded::open(&path, "abc".to_owned()).unwrap();
        let [first, second, third] = &spaces::bounded()[..3] else { unreachable!() };
        let mut recorded = open();
        recorded.add(first, &report(true)).unwrap();
        recorded.add(second, &report(false)).unwrap();
        recorded.add(third, &report(true)).unwrap();
        let mut again = open();
        assert_eq!(again.explored, recorded.explored);
        assert_eq!(again.reached(), report(true).coverage);
        assert!(again.has(first) && !again.has(second) && again.has(third));
        assert!(!again.has(&Configuration { faults: first.faults + 1, ..first.clone() }));
        again.keep(&[second.clone(), third.clone()]);
        assert!(!again.has(first) && again.has(third));

        let other = fs::read_to_string(&path).unwrap().replace(&recorded.stamp, "other rules");
        fs::write(&path, other).unwrap();
        assert!(open().explored.is_empty());
        fs::remove_file(&path).unwrap();
    }
}
