//! A server that starts, serves and stops without losing replies. The listener accepts links, and a session
//! serves each link.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pushpull_messages::message::Message;
use tokio::sync::watch;
use tracing::Instrument;

use crate::buffer::Budget;
use crate::counters::{ConnectionCounters, ServerObserver};
use crate::handshake::Identity;
use crate::listener::{Listener, accept_all};
use crate::server_config::ServerConfig;
use crate::service::Service;
use crate::session::{Host, serve_link};
use crate::warnings::Warnings;
use crate::wire::Limits;

/// A running server.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    peers: watch::Receiver<usize>,
    observer: ServerObserver,
    address: String,
}

impl Server {
    /// Returns the address that the server listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns an observer of the server's connections. It can outlive the server.
    pub fn observer(&self) -> ServerObserver {
        self.observer.clone()
    }

    /// Waits until all peers whose handshake succeeded have disconnected.
    pub async fn alone(&self) {
        let _ = self.peers.clone().wait_for(|&peers| peers == 0).await;
    }

    /// Stops accepting links and reading requests, writes the replies to the requests that have been read,
    /// and closes every connection.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = self.ended.wait_for(|&ended| ended).await;
    }
}

/// Serves on the current runtime until the server is stopped or dropped.
pub fn serve(
    listener: Box<dyn Listener>,
    identity: Identity,
    service: Arc<dyn Service>,
    config: ServerConfig,
) -> Server {
    let (stop, stopping) = watch::channel(false);
    let (end, ended) = watch::channel(false);
    let (count, peers) = watch::channel(0);
    let counters = Arc::new(ConnectionCounters::default());
    let address = listener.address();
    let budget = Budget::new(config.in_flight_bytes_max);
    let observer = ServerObserver::new(Arc::clone(&counters), budget.clone());
    let connections_max = config.connections_max;
    let hello = Message::from(identity.hello(identity.task));
    let hello_limits = Limits::for_hello(hello.encode().len());
    let warnings = Arc::new(Warnings::default());
    let host = Arc::new(Host {
        budget,
        identity,
        service,
        config,
        hello_limits,
        warnings: Arc::clone(&warnings),
        strangers: Arc::default(),
        counters,
        next: AtomicU64::new(1),
        peers: Arc::new(count),
    });
    let run = async move {
        let stopped = stopping.clone();
        let handle = |link| serve_link(Arc::clone(&host), link, stopped.clone());
        accept_all(listener, connections_max, stopping, &warnings, handle).await;
        end.send_replace(true);
    };
    // The server's log lines get the span of the task that started the server.
    tokio::spawn(run.in_current_span());
    Server { stop, ended, peers, observer, address }
}
