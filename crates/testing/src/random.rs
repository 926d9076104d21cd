//! A small random number generator. The project has its own, so that a seed gives the same sequence on every machine
//! and in every version.

/// SplitMix64 (Steele, Lea and Flood, 2014). Not for secrets.
///
/// ```
/// use lambda_idempotency_testing::Random;
///
/// let (mut one, mut another) = (Random::new(17), Random::new(17));
/// assert_eq!(one.bits(), another.bits());
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence that belongs to this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`. `end` must not be zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A number from `first` to `last`.
    pub const fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True with a probability of `percent` in 100.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True with a probability of `per_mille` in 1,000.
    pub const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// An index below `end`; 0 if `end` is 0.
    pub const fn index(&mut self, end: usize) -> usize {
        // The number is below `end`, so it fits into a `usize`.
        self.below(if end == 0 { 1 } else { end as u64 }) as usize
    }

    /// One of the `items`; `None` if there are none.
    pub fn pick<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        items.get(self.index(items.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_matches_the_reference_sequence() {
        // The first numbers of SplitMix64's reference implementation for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers.map(|_| random.bits()), numbers);
    }

    #[test]
    fn picks_stay_within_bounds() {
        let mut random = Random::new(1);
        assert!((0..100).all(|_| random.index(3) < 3));
        assert_eq!(random.index(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
        assert_eq!(random.pick(&[7]), Some(&7));
    }
}
