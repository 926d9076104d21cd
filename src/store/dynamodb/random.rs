//! Starts the random generator of the AWS SDK's TLS library.

use std::future::Future;

use aws_lc_rs::rand;

use crate::store::toolkit;

/// Starts the random generator, which collects entropy from the processor's jitter for about 20 ms, once in a process.
/// Otherwise the first handshake would do that, inside the first invocation.
pub(crate) fn start_random() -> impl Future<Output = ()> + Send {
    toolkit::start_random(|| _ = rand::fill(&mut [0; 1]))
}
