//! A stream that reads the server's last reply before it reports a failed write.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// If a request is too long, Redis doesn't read all of it: Redis replies, and closes the connection while the client
/// is still writing. The failed write must not hide that reply. So this stream reports the write as done, and reports
/// the failure once nothing is left to read.
#[derive(Debug)]
pub(super) struct LastWord<S> {
    stream: S,
    /// The error of the first write that failed.
    failure: Option<io::Error>,
}

impl<S> LastWord<S> {
    pub(super) fn of(stream: S) -> Self {
        Self { stream, failure: None }
    }

    /// If the write failed, stores the error for a later read, and returns `done`. Otherwise, returns `written`.
    fn unless_failed<T>(&mut self, written: Poll<io::Result<T>>, done: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(failure)) => {
                self.failure = Some(failure);
                Poll::Ready(Ok(done))
            }
            written => written,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LastWord<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_over = match &read {
            Poll::Ready(Ok(())) => buffer.filled().len() == before,
            Poll::Ready(Err(_)) => false,
            Poll::Pending => true,
        };
        match self.failure.take_if(|_| is_over) {
            Some(failure) => Poll::Ready(Err(failure)),
            None => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LastWord<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.failure.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_failed(written, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failure.is_some() {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.unless_failed(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Offers a reply to read, and fails every write.
    struct HungUp(&'static [u8]);

    impl AsyncRead for HungUp {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            buffer.put_slice(std::mem::take(&mut self.0));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for HungUp {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn failed_writes_do_not_hide_the_answer() {
        let mut stream = LastWord::of(HungUp(b"-ERR too long\r\n"));
        stream.write_all(b"half of a request").await.unwrap();
        stream.flush().await.unwrap();
        stream.write_all(b"the rest").await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"-ERR too long\r\n");
        // The stream reports the error once. After that, a read returns the end of the stream.
        let error = stream.read(&mut answer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    }
}
