//! Pseudorandom numbers from a seed.

/// Xorshift64* (Marsaglia; Vigna): not for secrets.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // The multiplication makes the sequences of neighbouring seeds differ. Setting the last bit prevents zero,
        // which xorshift would never leave.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to `end - 1`; 0 if `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16).checked_rem(end).unwrap_or(0)
    }

    /// Any of `items`, which must not be empty.
    pub(super) fn pick<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        &items[self.below(items.len() as u64) as usize]
    }
}
