//! Two environment variables, with which `cargo rehearse` tests a handler that blocks its thread. A deployed function
//! sets neither.

use std::time::Duration;

use lambda_http::Error;
use lambda_idempotency::Builder;

/// `PAYMENTS_LEASE_MS`: sets the length of each claim's lease. The library extends the lease while the handler runs.
pub(crate) fn leases(builder: Builder) -> Result<Builder, Error> {
    Ok(match millis("PAYMENTS_LEASE_MS")? {
        // The library requires that `lease_extension` is at least three times `lease_grace`.
        Some(length) => builder.settings(|s| {
            s.lease_grace = length / 3;
            s.lease_extension = Some(length);
        }),
        None => builder,
    })
}

/// `PAYMENTS_BLOCK_MS`: blocks the handler's thread for this long. Then the handler yields, since the library can cut
/// it off only between two polls.
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
