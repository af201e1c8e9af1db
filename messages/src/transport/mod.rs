//! How frames travel, and the request/reply calls above them. Nothing above knows which transport it is.
//!
//! A [`Client`] calls; a [`serve`]d [`Service`] answers. Between them is a [`Connection`] of one of the
//! [`Transport`]s: [`InProcess`] hands envelopes over as they are, [`Tcp`] writes and reads frames.

mod client;
mod connection;
mod counters;
mod dial;
mod handshake;
mod in_process;
mod liveness;
mod server;
mod tcp;
#[cfg(test)]
mod tests;

pub use client::{CallError, Client};
pub use connection::{Connection, FrameReceiver, FrameSender, Listener, Transport, TransportError};
pub use counters::{ConnectionCounters, ConnectionsSnapshot};
pub use dial::{DialError, Patience, dial};
pub use handshake::Identity;
pub use in_process::InProcess;
pub use liveness::LOST_AFTER_MIN;
pub use server::{Peer, Reply, Server, ServerConfig, Service, serve};
pub use tcp::Tcp;
