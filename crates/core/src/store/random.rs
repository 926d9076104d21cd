//! Starts the random generator of a store's TLS library before the first handshake needs it.

use std::{env, future::Future};

use tokio::runtime::Handle;

/// Lets `fill` draw a byte from the random generator of a TLS library, on another thread. The first use starts the
/// generator, which may collect entropy for tens of milliseconds. A store calls this when it's built, so that the first
/// handshake doesn't wait for the generator inside the first invocation.
///
/// Does nothing before a SnapStart snapshot, which would copy the generator's state into every sandbox, and outside of
/// Tokio.
///
/// # Cancel safety
///
/// The returned future only waits for the other thread. Dropping it has no effect.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use lambda_idempotency::store::toolkit::start_random;
///
/// // With rustls: `provider.secure_random.fill(&mut [0])`.
/// start_random(|| drop([0_u8])).await;
/// # }
/// ```
pub fn start_random(fill: impl FnOnce() + Send + 'static) -> impl Future<Output = ()> + Send {
    let is_snapshotted = is_snapshotted(|name| env::var(name).ok());
    let runtime = Handle::try_current().ok().filter(|_| !is_snapshotted);
    let started = runtime.map(|runtime| runtime.spawn_blocking(fill));
    async {
        if let Some(started) = started {
            // If the generator fails, the handshake fails too, and its error says why.
            drop(started.await);
        }
    }
}

/// Lambda sets this variable in every sandbox. Emulators of the Runtime API don't set it ("Defined runtime environment
/// variables", AWS Lambda developer guide).
pub const INITIALIZATION: &str = "AWS_LAMBDA_INITIALIZATION_TYPE";

/// Whether Lambda takes a snapshot of this process at the end of its init, by the variables of its environment.
pub fn is_snapshotted(environment: impl Fn(&'static str) -> Option<String>) -> bool {
    environment(INITIALIZATION).is_some_and(|kind| kind == "snap-start")
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[tokio::test]
    async fn generator_starts_on_another_thread() {
        let (filled, fills) = mpsc::channel();
        let fill = |filled: mpsc::Sender<_>| {
            move || {
                let _ = filled.send(thread::current().id());
            }
        };
        start_random(fill(filled.clone())).await;
        assert_ne!(fills.try_recv().unwrap(), thread::current().id());
        // A builder that isn't async doesn't wait.
        drop(start_random(fill(filled)));
        assert!(fills.recv().is_ok());
    }

    #[test]
    fn nothing_starts_outside_of_a_runtime() {
        drop(start_random(|| unreachable!("there's no thread for it")));
    }

    #[test]
    fn only_snap_start_announces_a_snapshot() {
        for (value, expected) in [(Some("snap-start"), true), (Some("on-demand"), false), (None, false)] {
            let environment = |name| value.filter(|_| name == INITIALIZATION).map(str::to_owned);
            assert_eq!(is_snapshotted(environment), expected);
        }
    }
}
