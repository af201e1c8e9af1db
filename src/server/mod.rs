//! A server in this process, which runs graphs for sessions.

mod local_cluster;
mod variables;

use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_ps::ContainerLimits;
use pushpull_session::{SessionConfig, SessionServer};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Tcp, Transport};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::incarnation::{incarnation, nonce, span_of};
use crate::session::{Session, SessionOptions};
use crate::threads;
use variables::HeldVariables;

/// How long a server that has ended waits for its threads.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The number of CPU devices, from 1 to 64.
    pub cpus: u32,
    /// The limits on the memory of variables.
    pub limits: ContainerLimits,
    /// The other settings.
    pub config: SessionConfig,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let limits = ContainerLimits { bytes_max: 16 << 30, client_bytes_max: 4 << 30 };
        Self { cpus: 1, limits, config: SessionConfig::default() }
    }
}

/// A server of sessions in this process. It holds no model: graphs come from clients. Its variables live in
/// named containers until they are reset or the server ends.
pub struct Server {
    address: String,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server on a free port of the loopback interface, as the only task of its cluster: `local/0`.
    ///
    /// # Errors
    /// If the server cannot listen.
    pub fn local() -> Result<Self, Error> {
        Self::local_with(ServerOptions::default())
    }

    /// Starts a server like [`local`](Self::local), with settings.
    ///
    /// # Errors
    /// If the server cannot listen, or a setting is out of range.
    pub fn local_with(options: ServerOptions) -> Result<Self, Error> {
        let listener = std::net::TcpListener::bind((IpAddr::from([127, 0, 0, 1]), 0));
        let listener =
            listener.map_err(|error| Error::Cluster(format!("cannot listen on loopback: {error}")))?;
        let address = listener.local_addr().map_err(|error| Error::Cluster(error.to_string()))?.to_string();
        let job: JobName = "local".parse().expect("a valid name");
        let cluster =
            ClusterSpec::new([(job, vec![address])]).map_err(|error| Error::Cluster(error.to_string()))?;
        Self::start(cluster, TaskId::new(job, 0), listener, options)
    }

    /// Starts a server that is a task of a cluster, on a socket that listens already.
    ///
    /// # Errors
    /// If the socket cannot be used, or a setting is out of range.
    pub fn start(
        cluster: ClusterSpec,
        task: TaskId,
        listener: std::net::TcpListener,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        let (stop, (started, start)) = (CancellationToken::new(), oneshot::channel());
        let stopped = stop.clone();
        let serve = move || serve(cluster, task, listener, options, stopped, started);
        let thread = threads::spawn(&format!("pushpull-{task}"), serve);
        let thread = thread.map_err(|error| Error::Cluster(format!("cannot start a thread: {error}")))?;
        match start.blocking_recv() {
            Ok(Ok(address)) => Ok(Self { address, stop, thread: Some(thread) }),
            Ok(Err(reason)) => Err(Error::Cluster(reason)),
            Err(_) => Err(Error::Cluster("the server's thread has ended".into())),
        }
    }

    /// Returns the target that sessions connect to, such as `pushpull://127.0.0.1:40123`.
    pub fn target(&self) -> String {
        format!("pushpull://{}", self.address)
    }

    /// Connects a session to the server.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn session(&self) -> Result<Session, crate::session::SessionError> {
        // The environment is about other servers: this one demands no client string.
        Session::connect_as_told(&self.target(), SessionOptions::default())
    }

    /// Serves until the process ends.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            // The thread ends with an error only after it has reported a panic.
            let _ = thread.join();
        }
    }

    /// Ends the server: begins no more runs, waits for those in progress, and closes every connection. This
    /// also happens when the server is dropped.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // The thread ends with an error only after it has reported a panic.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Runs a server on the current thread until it is stopped.
fn serve(
    cluster: ClusterSpec,
    task: TaskId,
    listener: std::net::TcpListener,
    options: ServerOptions,
    stop: CancellationToken,
    started: oneshot::Sender<Result<String, String>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(format!("cannot start a runtime: {error}")))),
    };
    let serve = async {
        let tcp = Tcp::new(BufferPool::default());
        let identity =
            Identity { task, incarnation: incarnation(), cluster, graph: None, http: None, nonce: nonce() };
        let server = tcp
            .listen_on(listener)
            .map_err(|error| error.to_string())
            .and_then(|listener| session_server(identity, listener, Arc::new(tcp), options));
        match server {
            Ok(server) => {
                let _ = started.send(Ok(server.address().to_owned()));
                stop.cancelled().await;
                server.drain().await;
            }
            Err(reason) => drop(started.send(Err(reason))),
        }
    };
    runtime.block_on(tracing::Instrument::instrument(serve, span_of(task)));
    // An operation that computes when its run is ended goes on to its end. The program need not wait for it.
    runtime.shutdown_timeout(SHUTDOWN);
}

/// Starts a server on the current runtime.
///
/// # Errors
/// If a setting is out of range.
pub(crate) fn session_server(
    identity: Identity,
    listener: Box<dyn pushpull_transport::Listener>,
    transport: Arc<dyn Transport>,
    options: ServerOptions,
) -> Result<SessionServer, String> {
    let variables = Arc::new(HeldVariables::new(options.limits));
    let config = SessionConfig { cpus: options.cpus, ..options.config };
    SessionServer::start(config, identity, listener, transport, variables).map_err(|error| error.to_string())
}
