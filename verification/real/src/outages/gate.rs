//! A proxy in front of DynamoDB that can throttle completions or refuse connections.

use std::{io, net::SocketAddr};

use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Result},
};
use testkit::ports::free_port;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::wire::message::{Conversation, Upstream, throttled};

/// The gate's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Lets everything through.
    Open,
    /// Answers every UpdateItem, and so every completion, with a throttling error.
    Throttling,
    /// Cuts its connections, and refuses new ones.
    Refusing,
}

/// The gate. Dropping it closes its port and cuts its connections.
#[derive(Debug)]
pub(super) struct Gate {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    serving: JoinHandle<()>,
}

impl Gate {
    /// Starts a gate in front of `server`, on a free loopback port.
    pub(super) async fn before(server: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(("127.0.0.1", free_port())).await.context("couldn't start the gate")?;
        let address = listener.local_addr().context("the gate has no address")?;
        let upstream = format!("http://{server}").parse().context("invalid server address")?;
        let mode = watch::Sender::new(Mode::Open);
        let serving = tokio::spawn(serve(listener, address, Upstream::new(upstream), mode.subscribe()));
        Ok(Self { address, mode, serving })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    upstream: Upstream,
    mut mode: watch::Receiver<Mode>,
) {
    let mut listener = Some(listener);
    // When this task ends, the set is dropped, which cuts its connections.
    let mut connections = JoinSet::new();
    loop {
        if *mode.borrow_and_update() == Mode::Refusing {
            listener = None;
            connections.shutdown().await;
            if mode.changed().await.is_err() {
                return;
            }
            continue;
        }
        let accepting = match listener.take() {
            Some(listener) => listener,
            None => match TcpListener::bind(address).await {
                Ok(listener) => listener,
                // Another process may be using the port, so try again.
                Err(_) => {
                    clock::pause(std::time::Duration::from_millis(5)).await;
                    continue;
                }
            },
        };
        tokio::select! {
            accepted = accepting.accept() => {
                if let Ok((stream, _)) = accepted {
                    while connections.try_join_next().is_some() {}
                    connections.spawn(converse(stream, upstream.clone(), mode.clone()));
                }
            }
            changed = mode.changed() => if changed.is_err() { return },
        }
        listener = Some(accepting);
    }
}

/// Answers the requests of one connection. An error means that the client or the server went away, which is expected.
async fn converse(stream: TcpStream, upstream: Upstream, mode: watch::Receiver<Mode>) -> io::Result<()> {
    let mut conversation = Conversation::new(stream);
    let mut nth = 0;
    while let Some(request) = conversation.request().await? {
        nth += 1;
        let is_throttled = *mode.borrow() == Mode::Throttling && request.operation() == "UpdateItem";
        let answer = match is_throttled {
            true => throttled(nth),
            false => upstream.send(request).await.map_err(io::Error::other)?,
        };
        conversation.write(&answer.message()).await?;
    }
    Ok(())
}
