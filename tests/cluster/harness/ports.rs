//! Ports for processes that must bind them for themselves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ephemeral range, so that no outgoing connection takes one of them between the choice and the
/// use.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a port that was free a moment ago; this process returns each port once.
pub(crate) fn free_port() -> u16 {
    // Another run of these tests starts at another port.
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
