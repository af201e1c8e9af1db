//! Simulates whole clusters. The tasks are the real ones, with their actors; the network, the time and the
//! failures come from a seed, so that every run can be repeated. A simulated job takes milliseconds.
#![cfg(feature = "virtual-time")]
#![forbid(unsafe_code)]

#[cfg(not(tokio_unstable))]
compile_error!(
    "without tokio's seed a run cannot be repeated: use `cargo sim`, and set no RUSTFLAGS but its own"
);

pub mod clock;
pub mod host;
pub mod inside;
pub mod invariants;
pub mod job;
pub mod layout;
pub mod machine;
pub mod network;
pub mod random;
pub mod scenario;
pub mod store;
pub mod sums;
pub mod trace;
pub mod witness;
pub mod world;
