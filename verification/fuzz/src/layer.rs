//! Fuzzes the HTTP edge of the Lambda layer: heads, chunked bodies and trailers, as a broken function may send them.
//!
//! After any bytes, a duplicate must get the recorded answer, and the layer must serve the next event.

use std::cell::OnceCell;

use lambda_idempotency_layer::edge;
use tokio::runtime::{Builder, Runtime};

/// Checks `data` as the bytes of a connection.
///
/// # Panics
///
/// If the layer breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    thread_local! {
        static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
    }
    RUNTIME.with(|cell| {
        let runtime = cell.get_or_init(|| {
            Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
        });
        runtime.block_on(edge::check(data));
    });
}
