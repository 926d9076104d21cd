//! The HTTP server for the function, on loopback.

use std::{io, net::SocketAddr, time::Duration};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lambda_idempotency::time::{Clock as _, system_clock};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};

use crate::{memory::SmallReads, proxy::Proxy, upstream::MAX_HEAD};

/// The pause after a failed accept. Without it, the server would retry at full speed until the process can open files
/// again.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens on this port of the loopback interface, or on a free port if `port` is 0.
///
/// # Errors
///
/// If the port is in use.
pub(crate) async fn listen(port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Serves the Runtime API, one task for each connection.
pub(crate) async fn serve(listener: TcpListener, proxy: Proxy) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "couldn't accept a connection from the function");
                system_clock().sleep(PAUSE).await;
                continue;
            }
        };
        // Sends small answers immediately, without the delay of Nagle's algorithm.
        let _ = stream.set_nodelay(true);
        tokio::spawn(connection(stream, proxy.clone()));
    }
}

/// Serves one connection of the function, until it ends.
pub(crate) async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, proxy: Proxy) {
    let service = service_fn(move |request| proxy.clone().handle(request));
    let served = hyper::server::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(SmallReads::of(stream)), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of the function ended");
    }
}
