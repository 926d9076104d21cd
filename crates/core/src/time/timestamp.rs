//! [`Timestamp`]. The protocol's rules compute with timestamps, so this file belongs to the code that the model checker
//! explores: see `verification/src/stamp.rs`.

use std::{fmt, time::Duration};

/// A point in time, in whole milliseconds since the Unix epoch.
///
/// Arithmetic saturates: a time beyond the range becomes the first or the last timestamp, and doesn't wrap around.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use std::time::Duration;
/// use lambda_idempotency::time::Timestamp;
///
/// let time = Timestamp::from_millis(1_795_000_000_500);
/// assert_eq!(time.saturating_add(Duration::from_secs(2)).as_millis(), 1_795_000_002_500);
/// assert_eq!(time.as_secs_rounded_up(), 1_795_000_001);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The time `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The time `secs` seconds after the Unix epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Seconds since the Unix epoch, rounded up: the unit of DynamoDB's TTL attribute. Rounding up means that
    /// the sweeper never removes a record before this time.
    pub const fn as_secs_rounded_up(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Rounds up to a whole second. The library rounds a record's expiry before storing it, so that every
    /// store returns exactly what it was given.
    #[must_use]
    pub const fn rounded_up_to_second(self) -> Self {
        Self::from_secs(self.as_secs_rounded_up())
    }

    /// The time `duration` later.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The time `duration` earlier, but not before the epoch.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// How long until `later`; zero if it has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Timestamp::from_millis(1000).as_secs_rounded_up(), 1);
        assert_eq!(Timestamp::from_millis(1001).as_secs_rounded_up(), 2);
        assert_eq!(Timestamp::from_millis(1999).rounded_up_to_second(), Timestamp::from_secs(2));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let end = Timestamp::from_millis(u64::MAX);
        assert_eq!(end.saturating_add(Duration::from_secs(1)), end);
        assert_eq!(end.saturating_add(Duration::MAX), end);
        assert_eq!(
            Timestamp::from_millis(5).saturating_sub(Duration::from_secs(1)),
            Timestamp::from_millis(0)
        );
        assert_eq!(Timestamp::from_secs(u64::MAX), end);
        assert_eq!(Timestamp::from_millis(7).until(Timestamp::from_millis(3)), Duration::ZERO);
    }
}
