//! Sends messages between tasks: buffers, the wire format, links, and calls. Callers do not depend on the
//! transport in use.
//!
//! A [`ReconnectingClient`] calls one task, and opens a new [`Connection`] when the old one breaks. At the
//! other end, [`serve`] runs a session for each connection, and a [`Service`] answers. The two ends share a
//! [`Link`] of a [`Transport`]: [`InProcess`] passes envelopes on unchanged, [`Tcp`] uses frames.

#![deny(unsafe_code)]

mod accepted;
mod ahead;
mod arrival;
pub mod buffer;
mod caller;
mod client;
mod congestion;
mod connection;
mod counters;
mod dial;
mod earlier;
mod error;
#[cfg(test)]
#[path = "../../tests/fixtures/mod.rs"]
mod fixtures;
mod guest;
mod handshake;
mod in_process;
mod late;
mod link;
mod listener;
mod liveness;
#[cfg_attr(not(target_os = "linux"), path = "local/elsewhere.rs")]
mod local;
mod pending;
mod renewal;
mod reply;
mod retry;
mod secure;
mod server;
mod server_config;
mod service;
mod session;
mod shared_port;
mod sink;
mod spin;
mod strangers;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod transport;
mod warnings;
pub mod wire;

pub use accepted::Accepted;
pub use ahead::Ahead;
pub use client::ReconnectingClient;
pub use congestion::{Congestion, CongestionError};
pub use connection::Connection;
pub use counters::{CallCounters, CallsSnapshot, ServerObserver};
pub use dial::{Patience, dial, dial_as_guest};
pub use earlier::{CallAnswered, EarlierCall};
pub use error::{CallError, DialError, TransportError};
pub use guest::Guest;
pub use handshake::Identity;
pub use in_process::InProcess;
pub use late::{AnswerGuard, DecidedAnswer, LateAnswer};
pub use link::{Begun, FrameReceiver, FrameSender, Link};
pub use listener::Listener;
pub use liveness::LOST_AFTER_MIN;
pub use pushpull_identity::{ClientRole, Proven};
pub use reply::Reply;
pub use retry::RetryConfig;
pub use server::{Server, serve};
pub use server_config::ServerConfig;
pub use service::{Arrived, Arriving, Peer, Service};
pub use shared_port::SharedPort;
pub use sink::Sink;
pub use spin::SPIN;
pub use strangers::STRANGERS_MAX;
pub use tcp::Tcp;
pub use transport::Transport;
pub use warnings::Warnings;
