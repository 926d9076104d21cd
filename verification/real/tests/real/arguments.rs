//! The command line refuses arguments that it doesn't know, and those that would test nothing.

use std::process::{Command, Output};

/// Runs `verification-real` with `arguments`, which it must refuse. Returns its error message.
#[track_caller]
fn refused(arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verification-real"));
    let Output { status, stderr, .. } = command.args(arguments.split(' ')).output().unwrap();
    assert_eq!(status.code(), Some(2), "{arguments}");
    String::from_utf8(stderr).unwrap()
}

#[test]
fn commands_that_test_nothing_are_refused() {
    for arguments in ["kills 0", "crash-points 0", "wire long 0", "deadlines 0 7", "kills redis 0"] {
        assert!(refused(arguments).contains("counts of at least 1"), "{arguments}");
    }
    assert!(refused("crash-points layer").contains("use `kills layer`"));
    assert!(refused("crash-points layer 5").contains("use `kills layer`"));
}

#[test]
fn unknown_arguments_are_refused() {
    for arguments in ["wire redis", "agreement layer", "wire long postgres", "kills somewhere", "explode"] {
        assert!(refused(arguments).contains(&format!("can't run `{arguments}`")), "{arguments}");
    }
}
