//! How long to wait before the next attempt.

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::{record::random_bits, time::Timestamp};

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
/// or can't be read.
///
/// A date is compared with the response's own `Date`, if there is one, so that the client's and the server's clock
/// needn't agree.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok().map(Timestamp::from);
    let sent = headers.get(DATE).and_then(|value| date(value.to_str().ok()?));
    Some(sent.unwrap_or(now).until(date(text)?))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

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
        for nonsense in ["", "-1", "+1", "1.5", "soon"] {
            assert_eq!(read(nonsense, None), None, "{nonsense}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
