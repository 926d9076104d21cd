//! Random numbers from a seed. All parts of the verification suite draw them from the library's own generator.

use lambda_idempotency::store::Owner;
pub use lambda_idempotency_testing::Random;

/// Returns a new random seed. The caller prints the seed if the run fails, so that the run can be repeated.
pub fn fresh_seed() -> u64 {
    let owner = Owner::random().unwrap();
    owner.as_bytes().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
}
