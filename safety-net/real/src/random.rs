//! A small generator of our own, so that a seed means the same schedule on every machine and in every version.

use lambda_idempotency::Owner;
use lambda_idempotency_cli::problem::{Context, Result};

/// A seed that no other run has.
///
/// # Errors
///
/// If the operating system has no random bits.
pub fn fresh_seed() -> Result<u64> {
    let random = Owner::random().context("a seed")?;
    Ok(random.as_bytes().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte)))
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.bits() % if end == 0 { 1 } else { end }
    }

    /// Any of `items`, if there are any.
    pub(crate) fn pick<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        items.get(self.index(items.len()))
    }

    /// An index below `end`; 0 if there is none.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(u64::try_from(end).unwrap_or(u64::MAX))).unwrap_or(0)
    }

    /// True in so many of a hundred.
    pub(crate) const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
