//! How frames travel, and the request/reply calls above them. Nothing above knows which transport it is.
//!
//! A [`Caller`] calls, over as many connections as it takes, each of them a [`Client`]; a [`serve`]d [`Service`]
//! answers. Between them is a [`Connection`] of one of the [`Transport`]s: [`InProcess`] hands envelopes over as they
//! are, [`Tcp`] writes and reads frames.

#![forbid(unsafe_code)]

pub mod buffer;
mod caller;
mod client;
mod connection;
mod counters;
mod dial;
#[cfg(test)]
#[path = "../../tests/fixtures/mod.rs"]
mod fixtures;
mod handshake;
mod in_process;
mod liveness;
mod retry;
mod server;
mod tcp;
#[cfg(test)]
mod tests;
pub mod wire;

pub use caller::Caller;
pub use client::{CallError, Client};
pub use connection::{Connection, FrameReceiver, FrameSender, Listener, Transport, TransportError};
pub use counters::{CallCounters, CallsSnapshot, ServerObserver};
pub use dial::{DialError, Patience, dial};
pub use handshake::Identity;
pub use in_process::InProcess;
pub use liveness::LOST_AFTER_MIN;
pub use retry::{RetryConfig, RetryError};
pub use server::{Peer, Reply, Server, ServerConfig, Service, serve};
pub use tcp::Tcp;
