//! Free ports for servers that bind them later.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

/// The ports to try. They're below 32,768, where Linux's ports for outgoing connections start: an outgoing connection
/// could take a port before the server binds it. A Redis cluster's second port is 10,000 higher, so below 32,768 too.
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// Finds a free port on loopback. Returns each port only once in a process, until it has returned all of them.
///
/// # Panics
///
/// If none is free.
pub fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different ports.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let nth = start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        let port = FIRST + u16::try_from(nth).expect("less than COUNT");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}
