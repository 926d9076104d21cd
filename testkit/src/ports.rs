//! Free ports for servers that bind them later.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

/// The first port to try. All ports are below 32,768. Linux uses higher ports for outgoing connections, and such a
/// connection could take a port before the server binds it. A node of a Redis cluster also needs the port that is
/// 10,000 higher, which is below 32,768 too.
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// Finds a free port on loopback, for a server that binds it later. Another process may take the port until then.
///
/// # Panics
///
/// As [`free_listener`].
pub fn free_port() -> u16 {
    free_listener().local_addr().expect("a bound listener has an address").port()
}

/// Listens on a free port on loopback. Within a process, this tries every port once before it tries any port again.
///
/// # Panics
///
/// If none is free.
pub fn free_listener() -> TcpListener {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes start at different ports.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let nth = start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        let port = FIRST + u16::try_from(nth).expect("less than COUNT");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener;
        }
    }
    panic!("no port from {FIRST} on is free");
}
