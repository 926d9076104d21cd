//! Makes a run's seed, unless one is given.

use lambda_idempotency::store::Owner;
use lambda_idempotency_cli::problem::{Context, Result};

/// Returns a seed that no other run has.
///
/// # Errors
///
/// If the operating system has no random bits.
pub fn fresh_seed() -> Result<u64> {
    let random = Owner::random().context("a seed")?;
    Ok(random.as_bytes().iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte)))
}
