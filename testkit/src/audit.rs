//! Runs a test program again with a recording, and checks the recording.

use std::{
    collections::BTreeSet,
    env, fs,
    path::PathBuf,
    process::{Command, Output},
};

use crate::recording::{FOLDER, Recorded};

/// Runs this program again with its own recording, in a new folder under `scratch`.
pub fn recorded(scratch: &str, name: &str, arguments: &[&str], variable: Option<&str>) -> (Recorded, Output) {
    let folder = PathBuf::from(scratch).join(format!("{name}-{}", std::process::id()));
    // Delete the files that an earlier run with the same process id left: the search for secrets would include them.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut run = Command::new(env::current_exe().unwrap());
    // With two threads, the harness names a thread after its test, which the recording needs.
    run.args(["--test-threads", "2", "--nocapture"]).args(arguments).env(FOLDER, &folder);
    run.envs(variable.map(|variable| (variable, "1")));
    let output = run.output().unwrap();
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let recorded = Recorded::read(&folder, &String::from_utf8_lossy(&printed));
    fs::remove_dir_all(&folder).unwrap();
    (recorded, output)
}

/// Returns the names of this program's tests. Tests whose names begin with `audits` are left out: they run the others.
pub fn tests(audits: &str) -> BTreeSet<String> {
    let list = Command::new(env::current_exe().unwrap()).args(["--list", "--format", "terse"]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names.filter(|name| !name.starts_with(audits)).map(str::to_owned).collect()
}

/// Checks that all of `tests` passed, and that all of them except `unrecorded` were recorded.
pub fn assert_whole(tests: &BTreeSet<String>, unrecorded: &[&str], recorded: &Recorded, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let passed = format!("test result: ok. {} passed; 0 failed; 0 ignored", tests.len());
    assert!(output.status.success() && printed.contains(&passed), "expected `{passed}`: {printed}");

    let mut tests = tests.clone();
    for test in unrecorded {
        assert!(
            tests.remove(*test) && !recorded.begun.contains(*test),
            "{test} is listed as unrecorded, but doesn't exist or was recorded"
        );
    }
    let unrecorded: Vec<_> = tests.difference(&recorded.begun).collect();
    assert!(unrecorded.is_empty(), "these tests recorded nothing: {unrecorded:?}");
}

/// Checks that no recorded text contains a secret.
pub fn assert_silent(recorded: &Recorded) {
    let found = recorded.secrets.found_in(&recorded.told);
    let in_line = |line: &&str| found.iter().any(|(secret, _)| line.contains(secret));
    let lines: Vec<_> = recorded.told.lines().filter(in_line).take(10).collect();
    let first: Vec<_> = found.iter().take(10).collect();
    assert!(
        found.is_empty(),
        "the output has {} secrets, such as {first:#?}\nin lines such as {lines:#?}",
        found.len()
    );
}
