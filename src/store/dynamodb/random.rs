//! Starts the random generator of the TLS library before the first handshake needs it.

use aws_lc_rs::rand;
use tokio::{runtime::Handle, task::spawn_blocking};

use crate::invocation::is_snapshotted;

/// Starts the random generator, which collects entropy from the processor's jitter for about 20 ms, once in a process.
/// Otherwise the first handshake would do that, inside the first invocation.
///
/// Does nothing before a SnapStart snapshot, which would copy the generator's state into every sandbox, and outside of
/// Tokio.
pub(crate) async fn start_random() {
    if is_snapshotted(|name| std::env::var(name).ok()) || Handle::try_current().is_err() {
        return;
    }
    // If the generator fails, the handshake fails too, and its error says why.
    let started = spawn_blocking(|| rand::fill(&mut [0; 1])).await;
    drop(started);
}
