//! Settings for `cargo rehearse`, in which a handler blocks its thread. A deployed function sets neither
//! variable.

use std::time::Duration;

use lambda_http::Error;
use lambda_idempotency::Builder;

/// `PAYMENTS_LEASE_MS`: claims with leases of this length, extended while the handler runs.
pub(crate) fn leases(builder: Builder) -> Result<Builder, Error> {
    Ok(match millis("PAYMENTS_LEASE_MS")? {
        // An extension takes at least three times the grace.
        Some(length) => builder.lease_grace(length / 3).lease_extension(length),
        None => builder,
    })
}

/// `PAYMENTS_BLOCK_MS`: blocks the handler's thread for this long. Then it yields: a fast handler that returns
/// from the poll that blocked can't be cut off.
pub(crate) async fn block_thread() -> Result<(), Error> {
    if let Some(length) = millis("PAYMENTS_BLOCK_MS")? {
        std::thread::sleep(length);
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn millis(name: &str) -> Result<Option<Duration>, Error> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    let millis = text.parse().map_err(|_| format!("{name} is not a number of milliseconds"))?;
    Ok(Some(Duration::from_millis(millis)))
}
