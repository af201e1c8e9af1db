//! A server that starts, serves clients, and is drained.

use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_transport::{Identity, Listener, Server, Transport, serve};

use crate::config::{SessionConfig, SessionConfigError};
use crate::device::CPUS_MAX;
use crate::peers::Peers;
use crate::service::SessionService;
use crate::state::State;
use crate::variables::Variables;
use crate::view::SessionView;

/// How long to wait until runs that were ended have told their clients.
const END_WAIT: Duration = Duration::from_secs(1);

/// A running server.
pub struct SessionServer {
    server: Server,
    state: Arc<State>,
}

impl SessionServer {
    /// Serves on the current runtime until the server is drained or dropped.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn start(
        config: SessionConfig,
        identity: Identity,
        listener: Box<dyn Listener>,
        transport: Arc<dyn Transport>,
        variables: Arc<dyn Variables>,
    ) -> Result<Self, SessionConfigError> {
        if !(1..=CPUS_MAX).contains(&config.cpus) {
            return Err(SessionConfigError::Cpus(config.cpus));
        }
        let position = identity.cluster.tasks().position(|(task, _)| task == identity.task);
        let index =
            position.ok_or_else(|| SessionConfigError::Task(ClusterSpec::to_flag(&identity.cluster)))?;
        let peers = Peers::new(transport, identity.clone());
        let server_config = config.server.clone();
        let state = Arc::new(State::new(config, identity.clone(), index, peers, variables));
        let service = Arc::new(SessionService { state: Arc::clone(&state) });
        let server = serve(listener, identity, service, server_config);
        Ok(Self { server, state })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Returns a view of the server. The view stays usable after the server has ended.
    pub fn view(&self) -> SessionView {
        SessionView { state: Arc::clone(&self.state), server: self.server.observer() }
    }

    /// Begins no more runs, and waits until those in progress have ended. After [`SessionConfig::drain`],
    /// ends them with an error. Then closes every connection.
    pub async fn drain(self) {
        self.state.runs.refuse();
        if tokio::time::timeout(self.state.config.drain, self.state.runs.idle()).await.is_err() {
            self.state.runs.fail_all(None, "the server is stopping, and the run has not ended in time");
            let _ = tokio::time::timeout(END_WAIT, self.state.runs.idle()).await;
        }
        self.server.stop().await;
    }
}
