//! Bounds the memory that large bodies take. `memory.c` makes the allocator return it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

/// The most bytes that one read takes from a connection. hyper doubles a connection's buffer whenever a read fills it,
/// up to the size of the largest head, and keeps it for the next body.
const MOST_READ: u64 = 64 * 1024;
/// The most bytes that are reserved before they arrive: a little more than the largest event, and the largest answer.
const MOST_RESERVED: usize = 6_500_000;

/// A connection that's read in small pieces.
pub(crate) struct SmallReads<S>(Take<S>);

impl<S: AsyncRead> SmallReads<S> {
    pub(crate) fn of(stream: S) -> Self {
        Self(stream.take(MOST_READ))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SmallReads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.set_limit(MOST_READ);
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SmallReads<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.0.get_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.0.get_mut()).poll_shutdown(cx)
    }
}

/// The parts of a body so far, in one buffer of the body's length.
pub(crate) struct Gathered {
    /// The first part. It's the whole body of a small event, which is then never copied.
    first: Bytes,
    /// All parts, once there are several.
    all: Vec<u8>,
    expected: usize,
}

impl Gathered {
    /// Begins with no part of this body.
    pub(crate) fn of(body: &Incoming) -> Self {
        let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX).min(MOST_RESERVED);
        Self { first: Bytes::new(), all: Vec::new(), expected }
    }

    pub(crate) fn push(&mut self, part: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = part;
            return;
        }
        if self.all.is_empty() {
            self.all.reserve_exact(self.expected.max(self.first.len() + part.len()));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&part);
    }

    /// The parts in one piece.
    pub(crate) fn bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}
