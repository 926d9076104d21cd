//! Text for people: times, durations, tables, command lines.

#[cfg(unix)]
use std::os::fd::AsFd as _;
use std::{
    io::{self, Write as _},
    time::Duration,
};

use aws_smithy_types::{DateTime, date_time::Format};
use lambda_idempotency::time::Timestamp;
#[cfg(unix)]
use tokio::{io::Interest, net::unix::pipe::Sender};

use crate::problem::{Context as _, Result};

/// Breaks a text at blanks into lines of at most `width` characters. A longer word gets its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A table whose columns are as wide as their content.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    let width = |at: usize| {
        let cells = rows.iter().chain([&headings]).filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        let cells = row.iter().enumerate().map(|(at, cell)| format!("{cell:<0$}", width(at)));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A point in time in UTC, in RFC 3339's format.
pub(crate) fn moment(time: Timestamp) -> String {
    let date = i64::try_from(time.as_millis()).ok().map(DateTime::from_millis);
    let text = date.and_then(|date| date.fmt(Format::DateTime).ok());
    text.unwrap_or_else(|| format!("{} ms", time.as_millis()))
}

/// How far `time` is from `now`: `in 12 s`, `3 min ago`.
pub(crate) fn relative(time: Timestamp, now: Timestamp) -> String {
    if time > now {
        format!("in {}", span(now.until(time)))
    } else {
        format!("{} ago", span(time.until(now)))
    }
}

/// A point in time in UTC, and how far it is from `now`.
pub(crate) fn moment_and_distance(time: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", moment(time), relative(time, now))
}

/// When a record expires. A record without an expiry gets one when an executor or an operator settles it.
pub(crate) fn expiry(expires_at: Option<Timestamp>, now: Timestamp) -> String {
    match expires_at {
        Some(time) => moment_and_distance(time, now),
        None => "never, until it's settled".to_owned(),
    }
}

/// A count of things: `1 record`, `3 records`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A duration in one unit, rounded down: `999 ms`, `119 s`, `2 min`, `2 h`, `2 days`.
pub(crate) fn span(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0 => format!("{} ms", duration.as_millis()),
        1..120 => format!("{secs} s"),
        120..7_200 => format!("{} min", secs / 60),
        7_200..172_800 => format!("{} h", secs / 3_600),
        _ => format!("{} days", secs / 86_400),
    }
}

/// Parses a duration: a number with its unit, such as `24h`, or several of them, such as `1h30m`.
///
/// # Errors
///
/// If `text` isn't a duration, or is zero. The message describes the format.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} isn't a duration above zero: write one like 24h, 90s, 30m, 7d or 500ms");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis));
        total = millis.and_then(|ms| total.checked_add(Duration::from_millis(ms))).ok_or_else(wrong)?;
        rest = after;
    }
    if total.is_zero() { Err(wrong()) } else { Ok(total) }
}

/// A duration in the form that [`duration()`] parses, as a whole number of hours, minutes, seconds or milliseconds.
pub(crate) fn exact(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = units.into_iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "ms"));
    format!("{}{name}", millis / unit)
}

/// Quotes a word of a command line for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | '@' | '%' | '+' | '=' | ',')
    };
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command line for a shell.
pub(crate) fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// `text` with its control characters escaped, except for line breaks and tabs. A terminal would interpret the others.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            _ if c.is_control() => shown.extend(c.escape_default()),
            _ => shown.push(c),
        }
    }
    shown
}

/// Prints the command's result. A reader that closes the pipe early, such as `head`, isn't an error.
pub(crate) fn print(text: &str) -> Result<()> {
    print_if_read(text).map(drop)
}

/// Prints like [`print()`], and returns whether the pipe still has a reader.
pub(crate) fn print_if_read(text: &str) -> Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.context("couldn't write to standard output").map(|()| true),
    }
}

/// Waits until the reader of standard output closes the pipe. Waits forever if standard output is a file, or if the
/// system doesn't report a closed pipe. Only Linux is known to report it.
pub(crate) async fn reader_gone() {
    #[cfg(unix)]
    if let Ok(stdout) = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked) {
        // The checked function, `from_owned_fd`, would make the pipe non-blocking, and `print` writes to the same pipe.
        let is_gone = stdout.ready(Interest::ERROR).await.is_ok_and(|ready| ready.is_error());
        if is_gone {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Prints JSON.
pub(crate) fn print_json(document: &serde_json::Value) -> Result<()> {
    print(&format!("{document:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_print() {
        for (text, secs) in [("24h", 86_400), ("90s", 90), ("7d", 604_800), ("1h30m", 5_400), ("2min", 120)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(secs)), "{text}");
        }
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        for wrong in [
            "",
            "24",
            "h",
            "-1h",
            "1.5h",
            "1 h",
            "1w",
            "0s",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(duration(wrong).unwrap_err().contains("24h"), "{wrong}");
        }
        for (secs, told) in [
            (1, "1 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (180_000, "2 days"),
        ] {
            assert_eq!(span(Duration::from_secs(secs)), told);
        }
        assert_eq!(span(Duration::from_millis(999)), "999 ms");
        for text in ["24h", "90m", "61s", "1500ms"] {
            assert_eq!(exact(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn times_print_in_utc_with_distance() {
        let time = Timestamp::from_millis(1_795_000_000_124);
        assert_eq!(moment(time), "2026-11-18T11:06:40.124Z");
        assert_eq!(moment(Timestamp::from_secs(1_795_000_000)), "2026-11-18T11:06:40Z");
        assert_eq!(moment(Timestamp::from_millis(u64::MAX)), "18446744073709551615 ms");
        let later = time.saturating_add(Duration::from_secs(12));
        assert_eq!((relative(later, time), relative(time, later)), ("in 12 s".into(), "12 s ago".into()));
        assert_eq!(moment_and_distance(time, time), "2026-11-18T11:06:40.124Z (0 ms ago)");
        assert_eq!(expiry(Some(time), time), "2026-11-18T11:06:40.124Z (0 ms ago)");
        assert_eq!(expiry(None, time), "never, until it's settled");
        assert_eq!([0, 1, 2].map(|n| count(n, "record")), ["0 records", "1 record", "2 records"]);
    }

    #[test]
    fn shell_words_are_quoted_when_needed() {
        assert_eq!(command_line(["a", "b/c#1", "it's", "", "x y"]), r"a 'b/c#1' 'it'\''s' '' 'x y'");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\n\tö\u{1b}[2J\r\u{9b}"), "a\n\tö\\u{1b}[2J\\r\\u{9b}");
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [["STARTED", "3 min ago", "x"], ["COMPLETED", "", "y"]]
            .map(|row| row.map(str::to_owned).to_vec());
        let expected = "status     claimed    id\nSTARTED    3 min ago  x\nCOMPLETED             y\n";
        assert_eq!(table(&["status", "claimed", "id"], &rows), expected);
    }

    #[test]
    fn text_is_wrapped_at_blanks() {
        assert_eq!(wrap("ab c abcdefgh c", 4), ["ab c", "abcdefgh", "c"]);
    }
}
