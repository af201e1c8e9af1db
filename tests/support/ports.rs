//! Finds free ports for processes that bind their own ports.

// Each user needs a port or an address.
#![allow(dead_code)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port. The ports are below the ephemeral range, so that no outgoing connection takes a port
/// before the process binds it.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a port that was free at the time of the call. Each call in this process returns a different port.
///
/// # Panics
/// If no port is free.
pub(crate) fn free_port() -> u16 {
    // Each run of the tests begins at a different port, so that runs at the same time rarely collide.
    let start = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (FIRST + start.wrapping_add(next) % COUNT) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

/// Returns an address on loopback with a port of [`free_port`].
///
/// # Panics
/// If no port is free.
pub(crate) fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}
