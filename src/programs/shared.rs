//! The process of a worker that hosts other tasks: a ps task, if the cluster lists none, and the chief, if it
//! names none. The tasks share one port.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::Arbiter;
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_ps::{Ps, PsConfig, PsError};
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, SharedPort, Tcp, Transport};
use tokio_util::sync::CancellationToken;

use super::http::Endpoint;
use super::listen::listen;
use super::signals::Signals;
use crate::threads::{panicked, run_on};

/// How long the ps task may serve after the chief or the worker in its process has ended. Normally the chief
/// has told it that the job is over.
const LEAVE: Duration = Duration::from_secs(5);

/// The port that the tasks of a worker's process share, and the threads that serve it.
pub(super) struct WorkerPort {
    port: SharedPort,
    /// The thread of the port and of the worker. The hosted ps task has the same thread: its connections are
    /// read there, and a small push of the worker needs no other thread.
    io: Arbiter,
    task: TaskId,
    own: String,
}

impl WorkerPort {
    /// Opens the port of a worker's process if the worker hosts other tasks: returns `None` if the cluster
    /// has a chief and ps tasks of its own.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub(super) async fn open(
        cluster: &ClusterConfig,
        identity: &Identity,
        tcp: &Tcp,
        bind: Option<&str>,
        endpoint: &Endpoint,
    ) -> anyhow::Result<Option<Self>> {
        if !cluster.hosts_ps() && !cluster.hosts_chief() {
            return Ok(None);
        }
        let io = Arbiter::new();
        let (task, own) = (cluster.task(), cluster.cluster().address(cluster.task()));
        let own = own.expect("a worker is in its cluster").to_string();
        let (cluster, identity, tcp) = (cluster.clone(), identity.clone(), tcp.clone());
        let (bind, exposure) = (bind.map(ToOwned::to_owned), endpoint.exposure());
        let open = move || async move {
            let listener = listen(&tcp, &cluster, &identity, bind.as_deref(), &exposure).await?;
            anyhow::Ok(SharedPort::open(listener, &identity))
        };
        let port = panicked(run_on(&io, open).await)??;
        Ok(Some(Self { port, io, task, own }))
    }

    /// Returns the port.
    pub(super) const fn port(&self) -> &SharedPort {
        &self.port
    }

    /// Returns the thread of the process's tasks.
    pub(super) const fn io(&self) -> &Arbiter {
        &self.io
    }

    /// Returns the transport of the process's tasks. They reach each other without a socket.
    pub(super) fn transport(&self, tcp: &Tcp) -> Arc<dyn Transport> {
        self.port.transport(self.task, self.own.clone(), Arc::new(tcp.clone()))
    }
}

/// The hosted ps task.
pub(super) struct HostedPs {
    running: tokio::sync::oneshot::Receiver<anyhow::Result<Result<(), PsError>>>,
    leave: CancellationToken,
}

impl HostedPs {
    /// Starts the ps task that a worker hosts. Returns `None` if the cluster lists ps tasks.
    ///
    /// # Errors
    /// If the ps task cannot start.
    pub(super) fn start(
        cluster: &ClusterConfig,
        port: &WorkerPort,
        identity: &Identity,
        config: PsConfig,
        pool: &BufferPool,
        (endpoint, signals): (&Endpoint, &Signals),
    ) -> anyhow::Result<Option<Self>> {
        if !cluster.hosts_ps() {
            return Ok(None);
        }
        let identity = Identity { task: hosted_ps(cluster.task()), ..identity.clone() };
        let listener = port.port.listener(identity.task)?;
        let (observers, leave) = (endpoint.observers(), signals.interrupt.child_token());
        let (interrupt, pool) = (leave.clone(), pool.clone());
        let serve = move || async move {
            let ps = Ps::start(config, identity, listener, &pool)?;
            observers.add(Arc::new(ps.view()));
            anyhow::Ok(ps.run(interrupt).await)
        };
        Ok(Some(Self { running: run_on(&port.io, serve), leave }))
    }

    /// Waits until the ps task has ended.
    ///
    /// # Errors
    /// If it ended with an error.
    pub(super) async fn ended(self) -> anyhow::Result<Result<(), PsError>> {
        panicked(self.running.await)?
    }

    /// Returns a function that ends the ps task a while after another task of this process has ended.
    pub(super) fn leave_later(&self) -> impl FnOnce() + use<> {
        let leave = self.leave.clone();
        move || {
            tokio::spawn(async move {
                tokio::time::sleep(LEAVE).await;
                leave.cancel();
            });
        }
    }
}

/// Returns the ps task that the process of this worker hosts.
const fn hosted_ps(worker: TaskId) -> TaskId {
    TaskId::new(JobName::Ps, worker.index)
}
