//! Fuzzes the HTTP edge of the Lambda layer: heads, chunked bodies and trailers, as a broken function may send them.
//!
//! After any bytes, a duplicate must get the recorded answer, and the layer must serve the next event.

use lambda_idempotency_layer::edge;
use tokio::runtime::Builder;

/// Checks `data` as the bytes of a connection.
///
/// # Panics
///
/// If the layer breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    // Each input has its own runtime, because dropping a runtime ends its tasks. A task whose function never answers
    // would wait for minutes.
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(edge::check(data));
}
