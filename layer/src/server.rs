//! The HTTP server for the function, on loopback.

use std::{io, net::SocketAddr};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};

use crate::{proxy::Proxy, upstream::MAX_HEAD};

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
        let Ok((stream, _)) = listener.accept().await else { continue };
        // Small answers are sent at once.
        let _ = stream.set_nodelay(true);
        tokio::spawn(connection(stream, proxy.clone()));
    }
}

/// Serves one connection of the function, until it ends.
pub(crate) async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, proxy: Proxy) {
    let service = service_fn(move |request| proxy.clone().handle(request));
    let served = hyper::server::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of the function ended");
    }
}
