//! Skips a test that needs a missing server or tool, except in CI.

use std::fmt::Display;

/// Prints the reason why a test is skipped.
///
/// # Panics
///
/// If the environment variable `CI` is `true`, since CI must not skip a test.
#[track_caller]
pub fn skip(reason: impl Display) {
    assert!(!forbids_skipping(std::env::var("CI").ok().as_deref()), "{reason}");
    eprintln!("SKIPPED: {reason}");
}

/// Whether this value of `CI` forbids skipping, as `scripts/test` documents it.
fn forbids_skipping(ci: Option<&str>) -> bool {
    ci == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_true_forbids_skipping() {
        assert!(forbids_skipping(Some("true")));
        for ci in [None, Some(""), Some("false"), Some("0")] {
            assert!(!forbids_skipping(ci), "{ci:?}");
        }
    }
}
