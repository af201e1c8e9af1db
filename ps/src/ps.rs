//! The ps task: starts its shards, serves until the chief ends the job, and then stops without losing
//! replies.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use parking_lot::{Mutex, RwLock};
use pushpull_messages::message::StopReason;
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_storage::MemoryStore;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Listener, Server, ServerConfig, Warnings, serve};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::checkpoint::Checkpoints;
use crate::config::PsConfig;
use crate::error::PsError;
use crate::files::PsFiles;
use crate::lifecycle::{End, Lifecycle};
use crate::router::Router;
use crate::shards::{Shards, Shared};
use crate::view::{EndGuard, Observation, Phase, PsView};

/// A running ps task.
pub struct Ps {
    server: Server,
    shards: Arc<Shards>,
    lifecycle: Lifecycle,
    /// Cancelled when a signal arrives. The shards' snapshots then say that the task is leaving, so that the
    /// chief saves the job.
    leaving: CancellationToken,
    /// Ends the checkpoint thread when dropped.
    _files: DropGuard,
    view: PsView,
    /// When dropped, makes the view show the task as ended.
    _end_guard: EndGuard,
    config: PsConfig,
    identity: Identity,
}

impl Ps {
    /// Starts the shards, and serves on the current runtime.
    ///
    /// # Errors
    /// Returns [`PsError::Config`] if a setting is out of range.
    ///
    /// # Panics
    /// If called outside an actix system.
    pub fn start(
        mut config: PsConfig,
        identity: Identity,
        listener: Box<dyn Listener>,
        pool: &BufferPool,
    ) -> Result<Self, PsError> {
        config.validate()?;
        let (peers, bytes_max) = (config.peers.clone(), config.memory_checkpoint_bytes_max);
        let memory = PsFiles::new(identity.clone(), peers, bytes_max, pool.clone());
        // The nonce keeps the uploads of two starts of the task apart.
        let store = MemoryStore::new(memory.clone(), identity.nonce);
        config.stores = config.stores.with_memory(store);
        let task = identity.task;
        let lifecycle = Lifecycle::new(config.chief_lease);
        let (leaving, files) = (CancellationToken::new(), CancellationToken::new());
        let checkpoints = Checkpoints::start(&config, pool.clone(), files.clone());
        let shards = Shards::start(Shared {
            task,
            config: config.clone(),
            pool: pool.clone(),
            checkpoints: checkpoints.clone(),
            lifecycle: lifecycle.clone(),
            leaving: leaving.clone(),
        });
        let warnings = Warnings::default();
        let (of_router, lifecycle_of_router) = (Arc::clone(&shards), lifecycle.clone());
        let service = Router { task, shards: of_router, lifecycle: lifecycle_of_router, memory, warnings };
        let service = Arc::new(service);
        // A save request is answered only when the file is written. Meanwhile the chief must be able to send
        // other requests to every shard, also to those that it will name later.
        let requests_max = config.server.requests_max.max(2 * SHARDS_PER_TASK_MAX);
        let server_config = ServerConfig { shards: config.shards, requests_max, ..config.server.clone() };
        let server = serve(listener, identity.clone(), service, server_config);
        tracing::info!(shards = config.shards, address = %server.address(), "serving");
        let (end_guard, view) = PsView::new(Observation {
            task,
            incarnation: identity.incarnation,
            shards: RwLock::default(),
            checkpoints: Arc::clone(checkpoints.meter()),
            server: server.observer(),
            lifecycle: lifecycle.clone(),
            leaving: leaving.clone(),
            phase: Mutex::new(Phase::Running { shards: Vec::new(), pool: pool.clone(), stopping: false }),
        });
        shards.show_in(view.clone());
        Ok(Self {
            server,
            shards,
            lifecycle,
            leaving,
            _files: files.drop_guard(),
            view,
            _end_guard: end_guard,
            config,
            identity,
        })
    }

    /// Returns the address that the task listens on.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Returns a view of the task. The view stays usable after the task has ended.
    pub fn view(&self) -> PsView {
        self.view.clone()
    }

    /// Returns the arbiter that a shard runs on.
    #[cfg(test)]
    pub(crate) fn arbiter(&self, shard: usize) -> actix_rt::ArbiterHandle {
        self.shards.arbiter(shard)
    }

    /// Serves until the chief ends the job. The token `interrupt` is cancelled by a signal. If this happens
    /// while the chief is connected, serves for at most [`PsConfig::drain_timeout`] longer, so that the
    /// chief can save and end the job.
    ///
    /// # Errors
    /// Returns an error if the chief never connects, is lost, or reports that the job failed; if a shard
    /// panics or its device fails; or if the chief does not end the job in time after an interrupt.
    // The future is boxed, so that its code is compiled only in this crate and not again in each program
    // that awaits it.
    pub fn run(self, interrupt: CancellationToken) -> LocalBoxFuture<'static, Result<(), PsError>> {
        Box::pin(self.serve_until_end(interrupt))
    }

    async fn serve_until_end(self, interrupt: CancellationToken) -> Result<(), PsError> {
        let result = tokio::select! {
            // If the chief has ended the job and then disconnected, both branches are ready. The first must
            // win, because it has the result of the job.
            biased;
            result = self.serve() => result,
            () = self.drain(interrupt) => Err(PsError::Interrupted),
        };
        self.view.stop();
        self.shards.stop();
        // Once both waits are over, the counts in the view do not change any more. If a shard hangs, each of
        // the two waits a few seconds for it.
        tokio::join!(self.server.stop(), self.view.wait_for_end());
        match result {
            // After a signal, the job fails if it cannot be saved. The cause to report is then the signal.
            Err(PsError::JobFailed(_)) if self.leaving.is_cancelled() => Err(PsError::Interrupted),
            result => result,
        }
    }

    /// Waits until the chief ends the job or is lost, or until a shard cannot go on.
    async fn serve(&self) -> Result<(), PsError> {
        let PsConfig { start_timeout, chief_lease, chief_lost_after, .. } = self.config;
        if !self.lifecycle.chief_arrives(start_timeout).await {
            let chief = self.identity.cluster.chief_host();
            let address = self.identity.cluster.address(chief).map(ToString::to_string).unwrap_or_default();
            return Err(PsError::NoChief { chief, address, seconds: start_timeout.as_secs() });
        }
        match self.lifecycle.ended(chief_lease.max(chief_lost_after)).await {
            Some(End::Stop(StopReason::Completed | StopReason::Saved)) => Ok(()),
            Some(End::Stop(StopReason::Failed(reason))) => Err(PsError::JobFailed(reason)),
            Some(End::Panic(shard, reason)) => Err(PsError::ShardPanicked { shard, reason }),
            Some(End::DeviceFailed(shard, error)) => Err(PsError::DeviceFailed { shard, error }),
            None => Err(PsError::ChiefLost),
        }
    }

    /// Waits for an interrupt, and then until the chief has disconnected or the time for saving the job has
    /// expired. If the chief has never connected, there is nothing to save, and the second wait is left out.
    async fn drain(&self, interrupt: CancellationToken) {
        let PsConfig { drain_timeout, chief_lease, .. } = self.config;
        interrupt.cancelled().await;
        self.leaving.cancel();
        let _ = timeout(drain_timeout, self.lifecycle.chief_leaves(chief_lease)).await;
    }
}
