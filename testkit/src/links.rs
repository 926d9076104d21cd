//! A proxy whose connections die as in a frozen sandbox: nobody notices until the next request.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// The message with which a client of PostgreSQL may close its connection. It's no request.
const GOODBYE: &[u8] = b"X\0\0\0\x04";

/// What becomes of a request on a dead connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The proxy closes the connection when the request arrives.
    Closes,
    /// The proxy swallows the request, and the connection hangs.
    Swallows,
}

/// The proxy. Its threads end with the process.
#[derive(Debug)]
pub struct Links {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often the connections died.
    epoch: AtomicUsize,
    swallows: AtomicBool,
    /// How many connections were made in all, and how many requests the dead ones got.
    made: AtomicUsize,
    lost: AtomicUsize,
    delay_ms: AtomicU64,
}

impl Links {
    /// Starts a proxy in front of the server at `upstream`.
    pub fn before(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                shared.made.fetch_add(1, Ordering::SeqCst);
                let born = shared.epoch.load(Ordering::SeqCst);
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (up, down) = (Arc::clone(&shared), Arc::clone(&shared));
                thread::spawn(move || up.requests(client, server, born));
                thread::spawn(move || down.answers(ends.1, ends.0, born));
            }
        });
        Self { address, state }
    }

    /// The proxy's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays each answer from now on, so that concurrent requests need a connection each.
    pub fn delay(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Kills all connections.
    pub fn kill(&self, death: Death) {
        self.state.swallows.store(death == Death::Swallows, Ordering::SeqCst);
        self.state.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of connections that were made.
    pub fn made(&self) -> usize {
        self.state.made.load(Ordering::SeqCst)
    }

    /// The number of requests that dead connections got.
    pub fn lost(&self) -> usize {
        self.state.lost.load(Ordering::SeqCst)
    }
}

impl State {
    fn is_dead(&self, born: usize) -> bool {
        born < self.epoch.load(Ordering::SeqCst)
    }

    fn requests(&self, mut client: TcpStream, mut server: TcpStream, born: usize) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            if self.is_dead(born) {
                if buffer[..read] != *GOODBYE {
                    self.lost.fetch_add(1, Ordering::SeqCst);
                }
                if self.swallows.load(Ordering::SeqCst) {
                    continue;
                }
                break;
            }
            if server.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }

    fn answers(&self, mut server: TcpStream, mut client: TcpStream, born: usize) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
            if !self.is_dead(born) && client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        if !self.is_dead(born) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}
