//! One connection through the proxy, and the faults of its requests.

use std::{io, sync::Arc, time::Duration};

use lambda_idempotency_rehearsal::clock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Shared, TcpWay};

/// How long the server may pause in the middle of an answer.
const PAUSE_IN_ANSWER: Duration = Duration::from_millis(10);
/// How long the server may take to begin an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a request is held if its sender doesn't give up.
const HELD: Duration = Duration::from_millis(1_200);
/// How long the proxy waits after a sender has given up, before it forwards the held request.
const AFTER_GIVING_UP: Duration = Duration::from_millis(20);
const LATENCY: Duration = Duration::from_millis(100);
/// Neither PostgreSQL nor Redis begins an answer like this.
const GARBAGE: &[u8] = b"\x16\x03\x01\x02\x00 this isn't an answer\r\n\x00\xff\x7f";

/// Carries a client's bytes to the server and back. An error means that a side went away, which is expected.
pub(super) async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(shared.to).await else { return };
    // Without `nodelay`, a message in several pieces waits for a delayed acknowledgement.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let _gone = Link { client, server, shared }.carry().await;
}

struct Link {
    client: TcpStream,
    server: TcpStream,
    shared: Arc<Shared>,
}

impl Link {
    async fn carry(mut self) -> io::Result<()> {
        let (mut asked, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
        loop {
            tokio::select! {
                read = self.client.read(&mut asked) => match read? {
                    0 => return Ok(()),
                    length => if !self.pass(&asked[..length]).await? {
                        return Ok(());
                    },
                },
                read = self.server.read(&mut answered) => match read? {
                    0 => return Ok(()),
                    length => {
                        self.delay().await;
                        self.client.write_all(&answered[..length]).await?;
                    }
                },
            }
        }
    }

    /// Forwards the client's bytes, or breaks them. Returns whether the connection continues.
    async fn pass(&mut self, asked: &[u8]) -> io::Result<bool> {
        let fault = *self.shared.fault.borrow();
        let strikes = |fault: &TcpWay| fault.scope().swallows() || self.shared.protocol.is_request(asked);
        match fault.filter(strikes) {
            Some(fault) => {
                self.shared.strike();
                self.strike(fault, asked).await
            }
            None if *self.shared.is_closed.borrow() => Ok(false),
            None => self.forward(asked).await.map(|()| true),
        }
    }

    async fn strike(&mut self, fault: TcpWay, asked: &[u8]) -> io::Result<bool> {
        match fault {
            TcpWay::Refuse | TcpWay::AcceptAndClose | TcpWay::CutAndBlackHole | TcpWay::CloseBefore => {
                return Ok(false);
            }
            TcpWay::AcceptAndWait | TcpWay::BlackHole | TcpWay::SilenceBefore => {
                self.until_client_is_gone().await?;
                return Ok(false);
            }
            TcpWay::ResetBefore => {
                self.client.set_zero_linger()?;
                return Ok(false);
            }
            TcpWay::HalfRequest => {
                self.forward(&asked[..asked.len() / 2]).await?;
                return Ok(false);
            }
            TcpWay::Latency => {
                self.delay().await;
                return self.forward(asked).await.map(|()| true);
            }
            TcpWay::LateSoon | TcpWay::LateAnswered => {
                self.hold(fault, asked).await?;
                return Ok(false);
            }
            _ => {}
        }
        let answer = self.served(asked).await?;
        self.spoil(fault, &answer).await
    }

    /// Delays, loses or breaks the answer to an applied request.
    async fn spoil(&mut self, fault: TcpWay, answer: &[u8]) -> io::Result<bool> {
        if let Some(slowness) = fault.slowness() {
            clock::pause(slowness).await;
            self.client.write_all(answer).await?;
            return Ok(true);
        }
        match fault {
            TcpWay::ResetAfter => self.client.set_zero_linger()?,
            TcpWay::SilenceAfter => self.until_client_is_gone().await?,
            TcpWay::HalfAndSilence => {
                self.client.write_all(&answer[..answer.len() / 2]).await?;
                self.until_client_is_gone().await?;
            }
            TcpWay::HalfAndClose => self.client.write_all(&answer[..answer.len() / 2]).await?,
            TcpWay::Garbage => {
                self.client.write_all(GARBAGE).await?;
                self.until_client_is_gone().await?;
            }
            // `CloseAfter`: the client gets no answer, and the connection closes.
            _ => {}
        }
        Ok(false)
    }

    async fn delay(&self) {
        if *self.shared.fault.borrow() == Some(TcpWay::Latency) {
            clock::pause(LATENCY).await;
        }
    }

    async fn forward(&mut self, asked: &[u8]) -> io::Result<()> {
        self.server.write_all(asked).await
    }

    /// Forwards the request, and returns the server's complete answer.
    async fn served(&mut self, asked: &[u8]) -> io::Result<Vec<u8>> {
        let _under_way = UnderWay::of(&self.shared);
        if *self.shared.is_closed.borrow() {
            return Err(io::Error::other("the proxy is closed"));
        }
        self.forward(asked).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; 64 * 1024];
        let (mut length, mut patience) = (0, PATIENCE);
        while let Ok(read) = tokio::time::timeout(patience, self.server.read(&mut answer[length..])).await {
            match read? {
                0 => break,
                more => length += more,
            }
            patience = PAUSE_IN_ANSWER;
        }
        answer.truncate(length);
        Ok(answer)
    }

    /// Forwards the request later. `LateSoon` waits until the sender has given up or `HELD` has passed. `LateAnswered`
    /// waits until the invocation is over.
    async fn hold(&mut self, fault: TcpWay, asked: &[u8]) -> io::Result<()> {
        // Count the request as on its way from now on, so that the check reads the record only after the request has
        // arrived.
        let shared = Arc::clone(&self.shared);
        let _under_way = UnderWay::of(&shared);
        if fault == TcpWay::LateAnswered {
            let mut is_answered = self.shared.is_answered.subscribe();
            let _ = is_answered.wait_for(|is_answered| *is_answered).await;
        } else {
            let _waited = tokio::time::timeout(HELD, self.until_client_is_gone()).await;
            clock::pause(AFTER_GIVING_UP).await;
        }
        self.forward(asked).await?;
        self.answer().await.map(drop)
    }

    async fn until_client_is_gone(&mut self) -> io::Result<()> {
        let mut rest = [0; 1024];
        while self.client.read(&mut rest).await? > 0 {}
        Ok(())
    }
}

/// Counts a request as on its way to the server until this guard is dropped.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.under_way.send_modify(|count| *count += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}
