//! Fuzzes the HTTP edge of the Lambda layer: heads, chunked bodies and trailers, as a broken function may send them.
//!
//! Whatever bytes the function sends, a duplicate must get the recorded answer, and the layer must serve the next
//! event.

use lambda_idempotency_layer::edge;
use tokio::runtime::Builder;

/// Checks the layer with `data` as the bytes that a function sends on a connection.
///
/// # Panics
///
/// If the layer breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    // Each input has its own runtime, and dropping the runtime ends the layer's tasks. On a shared runtime, a task
    // whose function never answers would wait for minutes, while other inputs run.
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(edge::check(data));
}
