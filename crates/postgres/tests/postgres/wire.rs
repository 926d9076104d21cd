//! A proxy between the store and the server. It can cause some of the testing kit's faults.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lambda_idempotency_testing::Fault;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// A proxy on loopback.
#[derive(Debug)]
pub(super) struct Wire {
    port: u16,
    next: Arc<Mutex<Option<Fault>>>,
    /// How long the next request's answer is delayed.
    delay: Arc<Mutex<Option<Duration>>>,
    /// While this is set, no request passes, but the connections stay open.
    silence: Arc<AtomicBool>,
    /// The number of requests. Each piece of data from the client counts as one.
    requests: Arc<Mutex<u32>>,
    connections: Arc<Mutex<u32>>,
    cut: Arc<Notify>,
    late: Arc<Notify>,
    serving: JoinHandle<()>,
}

impl Wire {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (next, requests) = (Arc::<Mutex<Option<Fault>>>::default(), Arc::<Mutex<u32>>::default());
        let (connections, cut) = (Arc::<Mutex<u32>>::default(), Arc::new(Notify::new()));
        let (late, delay) = (Arc::new(Notify::new()), Arc::<Mutex<Option<Duration>>>::default());
        let silence = Arc::<AtomicBool>::default();
        let shared = (Arc::clone(&next), Arc::clone(&requests), Arc::clone(&silence), Arc::clone(&delay));
        let counted = Arc::clone(&connections);
        let (cut_all, delivered) = (Arc::clone(&cut), Arc::clone(&late));
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                *counted.lock().unwrap() += 1;
                let ((next, requests, silence, delay), cut_all) = (shared.clone(), Arc::clone(&cut_all));
                let delivered = Arc::clone(&delivered);
                tokio::spawn(async move {
                    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
                    tokio::select! {
                        () = carry(client, server, &next, &requests, &silence, &delay, &delivered) => {}
                        () = cut_all.notified() => {}
                    }
                });
            }
        });
        Self { port, next, delay, silence, requests, connections, cut, late, serving }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Applies this fault to the next request.
    pub(super) fn fail_next(&self, fault: Fault) {
        *self.next.lock().unwrap() = Some(fault);
    }

    /// Delays the answer to the next request.
    pub(super) fn delay_next(&self, delay: Duration) {
        *self.delay.lock().unwrap() = Some(delay);
    }

    /// With `true`, stops the requests on all connections, even on new ones. With `false`, lets requests pass again,
    /// except on a connection on which a request was stopped.
    pub(super) fn be_silent(&self, silent: bool) {
        self.silence.store(silent, Ordering::Relaxed);
    }

    /// Whether a request has met the fault of `fail_next`.
    pub(super) fn has_failed(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }

    /// Returns the number of requests since the last call.
    pub(super) fn requests(&self) -> u32 {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// Returns the number that `requests` would return, and doesn't reset it.
    pub(super) fn requests_so_far(&self) -> u32 {
        *self.requests.lock().unwrap()
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> u32 {
        *self.connections.lock().unwrap()
    }

    /// Passes on the request that `Fault::Late` holds back.
    pub(super) fn deliver(&self) {
        self.late.notify_waiters();
    }

    /// Cuts the oldest open connection.
    pub(super) fn cut_first(&self) {
        self.cut.notify_one();
    }

    /// Cuts every open connection.
    pub(super) fn cut_all(&self) {
        self.cut.notify_waiters();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    next: &Mutex<Option<Fault>>,
    requests: &Mutex<u32>,
    silence: &AtomicBool,
    delay: &Mutex<Option<Duration>>,
    delivered: &Notify,
) {
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                *requests.lock().unwrap() += 1;
                let fault = next.lock().unwrap().take();
                if fault == Some(Fault::LoseRequest) {
                    return;
                }
                if fault == Some(Fault::Silence) || silence.load(Ordering::Relaxed) {
                    return std::future::pending().await;
                }
                if fault == Some(Fault::Late) {
                    delivered.notified().await;
                }
                server.write_all(&up[..count]).await.unwrap();
                let delay = delay.lock().unwrap().take();
                if let Some(delay) = delay {
                    tokio::time::sleep(delay).await;
                }
                if fault.is_some() {
                    // The server's answer shows that it has applied the request.
                    let _answer = server.read(&mut down).await.unwrap();
                    if fault == Some(Fault::LoseAnswer) {
                        return;
                    }
                    return std::future::pending().await;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
