//! A TCP proxy that breaks traffic. It recognises the requests of PostgreSQL and Redis, but doesn't parse them.

mod link;
mod way;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency_rehearsal::clock;
use testkit::ports::free_listener;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

pub(crate) use self::way::{Protocol, TcpWay};

use self::way::Scope;

/// The proxy. Dropping it closes its port and cuts its connections.
#[derive(Debug)]
pub(crate) struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    protocol: Protocol,
    /// The current fault.
    fault: watch::Sender<Option<TcpWay>>,
    /// Whether the invocation was answered. Requests that were held until the answer are then forwarded.
    is_answered: watch::Sender<bool>,
    /// Whether only held requests are let through.
    is_closed: watch::Sender<bool>,
    /// How many broken requests the proxy holds, or has forwarded without an answer so far.
    under_way: watch::Sender<usize>,
    struck: AtomicUsize,
    /// How many more requests to break.
    left: AtomicUsize,
}

impl TcpProxy {
    /// Listens on a loopback port from `free_listener`, so that no other listener of this process takes the port while a
    /// fault closes it.
    pub(crate) async fn before(server: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let listener = free_listener();
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to: server,
            protocol,
            fault: watch::Sender::new(None),
            is_answered: watch::Sender::new(false),
            is_closed: watch::Sender::new(false),
            under_way: watch::Sender::new(0),
            struck: AtomicUsize::new(0),
            left: AtomicUsize::new(usize::MAX),
        });
        let serving = tokio::spawn(serve(listener, address, Arc::clone(&shared)));
        Ok(Self { address, shared, serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks traffic from now on: for `time`, or if that's `None`, until [`heal`](Self::heal).
    pub(crate) fn break_for(&self, time: Option<Duration>, fault: TcpWay) {
        self.shared.fault.send_replace(Some(fault));
        if let Some(time) = time {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                clock::pause(time).await;
                shared.fault.send_replace(None);
            });
        }
    }

    /// Breaks the next `requests` requests.
    pub(crate) fn break_next(&self, requests: usize, fault: TcpWay) {
        self.shared.left.store(requests, Ordering::Relaxed);
        self.shared.fault.send_replace(Some(fault));
    }

    /// Lets everything through again.
    pub(crate) fn heal(&self) {
        self.shared.fault.send_replace(None);
    }

    /// How many requests or connections were broken.
    pub(crate) fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }

    /// Ends the invocation: lets only held requests through, and waits until the server has answered them.
    pub(crate) async fn close(&self) {
        self.shared.is_closed.send_replace(true);
        self.shared.is_answered.send_replace(true);
        let mut under_way = self.shared.under_way.subscribe();
        // The wait fails only if the sender is dropped, and this proxy owns the sender.
        let _ = under_way.wait_for(|count| *count == 0).await;
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn strike(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fault.send_replace(None);
        }
    }

    /// Returns the part of the traffic that the current fault breaks. Without a fault, returns `Requests`.
    fn scope(&self) -> Scope {
        self.fault.borrow().map_or(Scope::Requests, TcpWay::scope)
    }
}

async fn serve(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>) {
    let mut fault = shared.fault.subscribe();
    let mut normal = Some(listener);
    // When this task ends, the set is dropped, which cuts its connections.
    let mut connections = JoinSet::new();
    loop {
        fault.borrow_and_update();
        let scope = shared.scope();
        if !scope.listens() {
            shared.strike();
            normal = None;
        }
        // Close or block the port before cutting connections, so that a reconnecting client finds it in its new state.
        let _hole = match scope {
            Scope::HangUnconnected { .. } => BlackHole::at(address).await,
            _ => None,
        };
        if scope.cuts() {
            connections.shutdown().await;
        }
        match scope {
            Scope::Requests | Scope::AcceptAndClose | Scope::AcceptAndWait => {
                let Some(listener) = listening(normal.take(), address).await else { continue };
                let changed = accept(&listener, scope, &mut fault, &mut connections, &shared).await;
                normal = Some(listener);
                if changed.is_err() {
                    return;
                }
            }
            Scope::Refuse | Scope::HangUnconnected { .. } => {
                if fault.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Returns this listener, or opens another at the same address. Returns `None` if the port can't be bound yet.
async fn listening(listener: Option<TcpListener>, address: SocketAddr) -> Option<TcpListener> {
    if listener.is_some() {
        return listener;
    }
    let bound = TcpListener::bind(address).await.ok();
    if bound.is_none() {
        // Another process may be using the port, so the caller tries again.
        clock::pause(Duration::from_millis(5)).await;
    }
    bound
}

/// Accepts connections until the fault changes.
async fn accept(
    listener: &TcpListener,
    scope: Scope,
    fault: &mut watch::Receiver<Option<TcpWay>>,
    connections: &mut JoinSet<()>,
    shared: &Arc<Shared>,
) -> Result<(), watch::error::RecvError> {
    let mut waiting = Vec::new();
    loop {
        let stream = tokio::select! {
            changed = fault.changed() => return changed,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        while connections.try_join_next().is_some() {}
        match scope {
            Scope::AcceptAndClose => shared.strike(),
            Scope::AcceptAndWait => {
                shared.strike();
                waiting.push(stream);
            }
            _ => drop(connections.spawn(link::carry(stream, Arc::clone(shared)))),
        }
    }
}

/// A port that never answers a connection attempt: its queue is full, so the operating system drops the packets.
#[derive(Debug)]
struct BlackHole {
    _listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl BlackHole {
    async fn at(address: SocketAddr) -> Option<Self> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_reuseaddr(true).ok()?;
        socket.bind(address).ok()?;
        let listener = socket.listen(1).ok()?;
        let mut queue = Vec::new();
        // The queue holds only one or two connections, so a few attempts fill it.
        for _ in 0..8 {
            match tokio::time::timeout(Duration::from_millis(20), TcpStream::connect(address)).await {
                Ok(Ok(stream)) => queue.push(stream),
                _ => break,
            }
        }
        Some(Self { _listener: listener, _queue: queue })
    }
}

#[cfg(test)]
mod tests;
