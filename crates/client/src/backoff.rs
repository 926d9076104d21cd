//! How long to wait before the next attempt.

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};

use lambda_idempotency_core::{internal::record::random_bits, time::Timestamp};

/// Exponential backoff with full jitter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    /// The longest wait after the first attempt.
    pub(super) first: Duration,
    /// The longest wait after any attempt.
    pub(super) longest: Duration,
}

impl Backoff {
    /// The wait after attempt `nth`, counted from one. If the operating system returns no random bits, this is the
    /// longest possible wait.
    pub(super) fn wait(self, nth: u32) -> Duration {
        let bits = random_bits("a wait").map_or(u64::MAX, |bits| {
            let [a, b, c, d, e, f, g, h, ..] = bits;
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        });
        part(self.ceiling(nth), bits)
    }

    fn ceiling(self, nth: u32) -> Duration {
        let times = 2_u32.saturating_pow(nth.saturating_sub(1));
        self.first.saturating_mul(times).min(self.longest)
    }
}

/// A part of `whole` between zero and all of it, in proportion to `bits`.
fn part(whole: Duration, bits: u64) -> Duration {
    let nanos = whole.as_nanos().min(u128::from(u64::MAX));
    let part = nanos * u128::from(bits) / u128::from(u64::MAX);
    Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

/// The wait that `Retry-After` asks for: seconds, or a date (RFC 9110, section 10.2.3). `None` if the header is missing
/// or can't be read. If the header appears several times, the longest wait counts.
///
/// A date is compared with the response's own `Date`, if there is one, so that the client's and the server's clock
/// needn't agree.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |value: &HeaderValue| value.to_str().ok().map(|text| text.trim().to_owned());
    let sent = || headers.get(DATE).and_then(|value| date(&text(value)?)).unwrap_or(now);
    let wait = |asked: String| seconds(&asked).or_else(|| Some(sent().until(date(&asked)?)));
    headers.get_all(RETRY_AFTER).iter().filter_map(|value| wait(text(value)?)).max()
}

/// Reads a number of seconds, rounded up. The RFC allows only whole seconds, but some servers write a float, such as
/// `299.997` or `1e3`.
fn seconds(text: &str) -> Option<Duration> {
    let is_number = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_decimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let seconds =
        match is_decimal(whole) && is_decimal(fraction) && text.len() > usize::from(text.contains('.')) {
            true if whole.is_empty() => u64::from(fraction.bytes().any(|digit| digit != b'0')),
            true => {
                let rest = u64::from(fraction.bytes().any(|digit| digit != b'0'));
                whole.parse().unwrap_or(u64::MAX).saturating_add(rest)
            }
            // The conversion from a float saturates.
            false => match text.parse::<f64>().ok().filter(|seconds| is_number && *seconds >= 0.0)?.ceil() {
                seconds if seconds >= u64::MAX as f64 => u64::MAX,
                seconds => seconds as u64,
            },
        };
    Some(Duration::from_secs(seconds))
}

/// Reads a date in one of HTTP's three forms (RFC 9110, section 5.6.7), or in the forms of mail (RFC 5322) and of ISO
/// 8601 (RFC 3339), which some servers send instead.
fn date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from).or_else(|| lenient_date(text))
}

/// Reads a date by its parts: a month's name, or else a year in front, and a time. A missing offset counts as GMT.
fn lenient_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let text = text.to_ascii_lowercase();
    let at = text.find(':')?;
    let start = text[..at].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    let end =
        text[at..].find(|c: char| !matches!(c, ':' | '.' | '0'..='9')).map_or(text.len(), |more| at + more);
    let (time, zone) = (&text[start..end], text[end..].trim());
    let mut day_seconds = 0;
    let mut parts = time.split(':');
    for (unit, most) in [(3600, 23), (60, 59), (1, 60)] {
        let part = parts.next().unwrap_or("0").split('.').next()?;
        day_seconds += unit * part.parse::<i64>().ok().filter(|part| *part <= most)?;
    }
    let (zone, year_behind) = match zone.split_once(' ') {
        Some((zone, year)) => (zone, Some(year)),
        None if zone.len() == 4 && zone.bytes().all(|byte| byte.is_ascii_digit()) => ("", Some(zone)),
        None => (zone, None),
    };
    // The day and the month stand in front of the time, in any order, and so does the year, but for asctime.
    let words = text[..start].split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let month_of =
        |word: &str| MONTHS.iter().position(|month| word.starts_with(month)).map(|at| at as i64 + 1);
    let month = words.clone().find_map(month_of);
    let numbers = words.filter_map(|word| word.trim_end_matches('t').parse::<i64>().ok());
    let mut numbers: Vec<i64> = numbers.chain(year_behind.and_then(|year| year.parse().ok())).collect();
    if month.is_none() || numbers.first().is_some_and(|first| *first > 31) {
        numbers.reverse();
    }
    let (day, month, year) = match (month, &numbers[..]) {
        (Some(month), [day, year]) => (*day, month, *year),
        (None, [day, month, year]) => (*day, *month, *year),
        _ => return None,
    };
    let year = match year {
        0..70 => year + 2000,
        70..100 => year + 1900,
        _ => year,
    };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + day_seconds - offset(zone)?;
    u64::try_from(seconds).ok().map(Timestamp::from_secs)
}

/// The days from 1970-01-01 to this date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Counts years from March, so that the leap day is a year's last one.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469
}

/// The offset from GMT, in seconds.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "z" | "gmt" | "utc" | "ut") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
    let (hours, minutes) =
        (digits.get(..2)?.parse::<i64>().ok()?, digits.get(2..4).unwrap_or("0").parse::<i64>().ok()?);
    Some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn longest_wait_doubles_up_to_the_limit() {
        let backoff = Backoff { first: 100 * MS, longest: 5000 * MS };
        let ceilings: Vec<_> = (1..=8).map(|nth| backoff.ceiling(nth).as_millis()).collect();
        assert_eq!(ceilings, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.ceiling(u32::MAX), 5000 * MS);
        let endless = Backoff { first: Duration::MAX, longest: Duration::MAX };
        assert_eq!(endless.ceiling(u32::MAX), Duration::MAX);
    }

    #[test]
    fn jitter_spans_the_whole_wait() {
        let whole = 1000 * MS;
        assert_eq!(part(whole, 0), Duration::ZERO);
        assert_eq!(part(whole, u64::MAX), whole);
        assert_eq!(part(whole, u64::MAX / 4).as_millis(), 249);
        let backoff = Backoff { first: whole, longest: whole };
        let waits: Vec<_> = (0..200).map(|_| backoff.wait(1)).collect();
        assert!(waits.iter().all(|wait| *wait <= whole));
        assert!(waits.iter().any(|wait| *wait < whole / 4) && waits.iter().any(|wait| *wait > whole * 3 / 4));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from_secs(1_795_166_144); // Fri, 20 Nov 2026 09:15:44 GMT
        let read = |text: &'static str, date: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(read("7", None), Some(7));
        assert_eq!(read(" 0 ", None), Some(0));
        assert_eq!(read("99999999999999999999", None), Some(u64::MAX));
        assert_eq!(read("Fri, 20 Nov 2026 09:15:54 GMT", None), Some(10));
        assert_eq!(read("Fri, 20 Nov 2026 09:15:40 GMT", None), Some(0), "a past date");
        let theirs = "Fri, 20 Nov 2026 08:00:00 GMT";
        assert_eq!(read("Fri, 20 Nov 2026 08:00:03 GMT", Some(theirs)), Some(3), "by the server's clock");
        for nonsense in
            ["", "-1", ".", "e", "+", "1.5.2", "1,5", "NaN", "inf", "soon", "12:", "1:2:3", "Nov 9:1"]
        {
            assert_eq!(read(nonsense, None), None, "{nonsense}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn decimal_seconds_are_rounded_up() {
        for (text, seconds) in [
            ("1.5", 2),
            ("299.997", 300),
            (".5", 1),
            ("1.", 1),
            ("0.0", 0),
            ("2.0", 2),
            ("0.0000000000000000000001", 1),
            ("9007199254740993.5", 9_007_199_254_740_994),
            ("99999999999999999999.5", u64::MAX),
            ("1e3", 1000),
            ("1.5E1", 15),
            ("1e-3", 1),
            ("1e400", u64::MAX),
            ("+1", 1),
        ] {
            assert_eq!(super::seconds(text), Some(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn dates_are_read_in_other_forms() {
        let expected = Some(Timestamp::from_secs(784_111_777)); // Sun, 06 Nov 1994 08:49:37 GMT
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "sun, 06 nov 1994 08:49:37 gmt",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 09:49:37 +0100",
            "Sun, 06 Nov 1994 03:19:37 -0530",
            "Sun Nov  6 08:49:37 UTC 1994",
            "1994-11-06T08:49:37Z",
            "1994-11-06 08:49:37",
            "1994-11-06t10:49:37.250+02:00",
        ] {
            assert_eq!(date(text), expected, "{text}");
        }
        for text in
            ["06.11.1994 08:49:37", "Sun, 32 Nov 1994 08:49:37 GMT", "1994-13-06T08:49:37Z", "08:49:37"]
        {
            assert_eq!(date(text), None, "{text}");
        }
        for (year, month, day, after) in
            [(1970, 1, 1, 0), (1972, 2, 29, 789), (2000, 3, 1, 11_017), (2100, 3, 1, 47_541)]
        {
            assert_eq!(days(year, month, day), after);
        }
    }

    #[test]
    fn longest_of_several_waits_counts() {
        let mut headers = HeaderMap::new();
        for text in ["2", "7.1", "soon"] {
            headers.append(RETRY_AFTER, HeaderValue::from_static(text));
        }
        assert_eq!(retry_after(&headers, Timestamp::from_secs(0)), Some(Duration::from_secs(8)));
    }
}
