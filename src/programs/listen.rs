//! The identity that a process presents to its cluster, and the address that it listens at.

use std::time::Duration;

use anyhow::{Context, anyhow};
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::message::RefusalCode;
use pushpull_transport::{DialError, Identity, Listener, Patience, Tcp, Transport, TransportError, dial};

use super::exposure::Exposure;
use crate::incarnation::{incarnation, nonce};

/// Returns the identity that this task presents to its peers. `graph` is the model that the task was started
/// with, if any; `http` is the address of the task's endpoint, if it has one.
pub(crate) fn identity(config: &ClusterConfig, graph: Option<&GraphSpec>, http: Option<String>) -> Identity {
    Identity {
        task: config.task(),
        incarnation: incarnation(),
        cluster: config.cluster().clone(),
        graph: graph.map(GraphSpec::digest),
        http,
        nonce: nonce(),
    }
}

/// Listens on the socket that the parent process has passed on. Without such a socket, listens at `bind` if
/// it is given, and otherwise at this task's address in the cluster. A host needs `bind` if its name in the
/// cluster spec does not resolve to an address of the host itself. Records in `exposure` whether other hosts
/// can reach the task.
///
/// # Errors
/// Returns an error of one line if the address cannot be used, or if other hosts can reach it and need
/// no proof of who they are, unless `tcp` allows that. If another program uses the address, the error names
/// that program. If this host does not have the address and `bind` is `None`, the error suggests a value for
/// `--bind`.
pub(crate) async fn listen(
    tcp: &Tcp,
    config: &ClusterConfig,
    identity: &Identity,
    bind: Option<&str>,
    exposure: &Exposure,
) -> anyhow::Result<Box<dyn Listener>> {
    let inherited = listenfd::ListenFd::from_env().take_tcp_listener(0);
    let listener = match inherited.context("cannot use the socket in LISTEN_FDS")? {
        Some(socket) => tcp.listen_on(socket).context("cannot use the socket in LISTEN_FDS")?,
        None => bound(tcp, config, identity, bind).await?,
    };
    if !tcp.demands_proof() {
        exposure.listens(listener.address(), "read the model, change it and end the job");
    }
    Ok(listener)
}

/// Listens at `bind` or, without it, at the task's own address.
async fn bound(
    tcp: &Tcp,
    config: &ClusterConfig,
    identity: &Identity,
    bind: Option<&str>,
) -> anyhow::Result<Box<dyn Listener>> {
    let own = config.cluster().address(config.task()).expect("a task that listens is in its cluster");
    let address = bind.map_or_else(|| own.to_string(), ToOwned::to_owned);
    match tcp.listen(&address).await {
        Ok(listener) => Ok(listener),
        Err(TransportError::InUse { address }) => {
            let owner = owner_of(tcp, &address, identity).await;
            Err(anyhow!("{}: address {address} is already in use by {owner}", config.task()))
        }
        Err(error) => {
            let hint = match (&error, bind) {
                (TransportError::Io { source, .. }, None)
                    if source.kind() == std::io::ErrorKind::AddrNotAvailable =>
                {
                    format!("; if this host is reached by that name, set --bind 0.0.0.0:{}", own.port())
                }
                _ => String::new(),
            };
            Err(anyhow!("{} cannot listen at {error}{hint}", config.task()))
        }
    }
}

/// Describes the program that already listens at `address`. A pushpull task gives its name in the handshake.
async fn owner_of(tcp: &Tcp, address: &str, identity: &Identity) -> String {
    let patience = Patience::of(Duration::from_secs(1));
    let ask = dial(tcp, address, identity, identity.task, patience);
    match tokio::time::timeout(Duration::from_secs(2), ask).await {
        Ok(Ok(client)) => format!("{}: is the same task started twice?", client.welcome().task),
        Ok(Err(DialError::Refused { refusal, .. })) if refusal.code == RefusalCode::Cluster => {
            "a pushpull task of another cluster".to_owned()
        }
        Ok(Err(DialError::Refused { refusal, .. })) => format!("a pushpull task, which refused: {refusal}"),
        _ => "another program".to_owned(),
    }
}
