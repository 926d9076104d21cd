//! Detects whether a connection leads to one session of the server, or to a pooler that has many.
//!
//! A prepared statement belongs to one session. Each client process names its statements in the same way: s0, s1, … A
//! pooler may run each transaction in another session. In that session, the same name may belong to a statement that
//! another client process prepared for another table.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client,
    tls::{ChannelBinding, TlsConnect, TlsStream},
};

/// Returns the process id that the client received when it connected. On a direct connection, the server process with
/// this id also runs the statements. A pooler sends its own id instead.
///
/// The client keeps this id only for cancel requests. So this function writes a cancel request into memory, and reads
/// the id from there.
pub(super) async fn process_at_connect(client: &Client) -> Option<i32> {
    let mut request = Unsent::default();
    client.cancel_token().cancel_query_raw(&mut request, AsIs).await.ok()?;
    // The request's last 16 bytes: length, code, process, secret.
    let end = request.0.len().checked_sub(16)?;
    let process = request.0.get(end + 8..end + 12)?;
    process.try_into().ok().map(i32::from_be_bytes)
}

/// Keeps the bytes that are written to it. Each read returns `S`, the byte with which a server accepts TLS.
#[derive(Default)]
struct Unsent(Vec<u8>);

impl AsyncRead for Unsent {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0 {
            buffer.put_slice(b"S");
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Unsent {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for &mut Unsent {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// Passes the stream on unchanged, without TLS.
struct AsIs;

impl<'a> TlsConnect<&'a mut Unsent> for AsIs {
    type Stream = &'a mut Unsent;
    type Error = Infallible;
    type Future = Ready<Result<&'a mut Unsent, Infallible>>;

    fn connect(self, stream: &'a mut Unsent) -> Self::Future {
        ready(Ok(stream))
    }
}
