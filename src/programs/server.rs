//! Runs a server of sessions as a process, until a signal ends it.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use pushpull_identity::Credentials;
use pushpull_messages::cluster::{Address, ClusterSpec};
use pushpull_messages::id::TaskId;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Listener, Tcp, Transport, TransportError};

use crate::incarnation::{incarnation, nonce};
use crate::programs::exit::Outcome;
use crate::programs::http::{About, Endpoint, EndpointConfig};
use crate::programs::open_files;
use crate::programs::parent::end_with_parent;
use crate::programs::signals::Signals;
use crate::server::{ServerOptions, session_server};

/// A server, and where it listens.
pub(crate) struct Serving {
    pub cluster: ClusterSpec,
    pub task: TaskId,
    pub address: Address,
    /// `None` if peers need no proof of who they are.
    pub credentials: Option<Credentials>,
    pub insecure: bool,
    pub options: ServerOptions,
    pub http: EndpointConfig,
}

/// Returns the socket that the parent process has passed on or, without one, listens at `address`.
async fn listen(tcp: &Tcp, task: TaskId, address: &Address) -> anyhow::Result<Box<dyn Listener>> {
    let inherited = listenfd::ListenFd::from_env().take_tcp_listener(0)?;
    match inherited {
        Some(socket) => tcp.listen_on(socket).context("cannot use the socket in LISTEN_FDS"),
        None => tcp.listen(address.as_str()).await.map_err(|error| match error {
            TransportError::InUse { address } => anyhow!("{task}: address {address} is already in use"),
            error => anyhow!("{task} cannot listen at {error}"),
        }),
    }
}

/// Serves until a signal arrives. Then begins no more runs, waits for those in progress, and ends.
pub(crate) async fn serve(serving: Serving) -> Outcome {
    let Serving { cluster, task, address, credentials, insecure, options, http } = serving;
    open_files::allow_server()?;
    let signals = Signals::listen()?;
    end_with_parent()?;
    let endpoint = Endpoint::bind(&http, About::server(task, &cluster))?;
    endpoint.announce(false);
    let tcp = Tcp::new(BufferPool::default()).with_insecure(insecure).with_credentials(credentials);
    let listener = listen(&tcp, task, &address).await?;
    if !tcp.demands_proof() {
        endpoint.exposure().listens(listener.address(), "run graphs and change variables");
    }
    let http = endpoint.advertised();
    let identity = Identity { task, incarnation: incarnation(), cluster, graph: None, http, nonce: nonce() };
    let server = session_server(identity, listener, Arc::new(tcp.clone()), options)
        .map_err(|reason| anyhow!(reason))?;
    endpoint.observers().add(Arc::new(server.view()));
    tokio::select! {
        biased;
        () = signals.interrupt.cancelled() => {}
        enrolled = tcp.enrol() => {
            enrolled.map_err(|error| anyhow!("{task}: {error}"))?;
            tracing::info!("serving sessions at pushpull://{}", server.address());
            signals.interrupt.cancelled().await;
        }
    }
    tracing::info!("a signal has arrived: waiting for the runs in progress");
    server.drain().await;
    endpoint.close(&signals.interrupt).await;
    Ok(())
}
