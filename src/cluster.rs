//! From flags to a task in a cluster: who this process is, where it listens, and what is wrong with the rest.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::Incarnation;
use pushpull_transport::{DialError, Identity, Listener, Patience, Tcp, Transport, TransportError, dial};

/// A new life begins: later ones have greater numbers, as far as the clock is right.
pub(crate) fn incarnation() -> Incarnation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// How this task introduces itself. `graph` where it was started with a model of its own; `http` where it can be observed.
pub(crate) fn identity(config: &ClusterConfig, graph: Option<&GraphSpec>, http: Option<String>) -> Identity {
    Identity {
        task: config.task(),
        incarnation: incarnation(),
        cluster: config.cluster().clone(),
        graph: graph.map(GraphSpec::digest),
        http,
    }
}

/// Listens at this task's address, or at `bind` where the cluster's name for it is not a local one; on a socket that
/// the parent process has opened, where there is one.
pub(crate) async fn listen(
    tcp: &Tcp,
    config: &ClusterConfig,
    identity: &Identity,
    bind: Option<&str>,
) -> anyhow::Result<Box<dyn Listener>> {
    let inherited = listenfd::ListenFd::from_env().take_tcp_listener(0);
    if let Some(socket) = inherited.context("the socket in LISTEN_FDS cannot be used")? {
        return tcp.listen_on(socket).context("the socket in LISTEN_FDS cannot be used");
    }
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
                    format!("; if this host is reached under that name, say --bind 0.0.0.0:{}", own.port())
                }
                _ => String::new(),
            };
            Err(anyhow!("{} cannot listen at {error}{hint}", config.task()))
        }
    }
}

/// Who listens there already? One of ours will say.
async fn owner_of(tcp: &Tcp, address: &str, identity: &Identity) -> String {
    let patience = Patience::of(Duration::from_secs(1));
    let ask = dial(tcp, address, identity, identity.task, patience);
    match tokio::time::timeout(Duration::from_secs(2), ask).await {
        Ok(Ok(client)) => format!("{}: is the same task started twice?", client.welcome().task),
        Ok(Err(DialError::Refused { refusal, .. })) => format!("a pushpull task, which says: {refusal}"),
        _ => "another program".to_owned(),
    }
}
