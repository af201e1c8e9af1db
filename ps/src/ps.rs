//! The ps task: starts its shards, serves until the chief ends the job, and then stops without losing
//! replies.

use std::sync::Arc;

use actix::Actor;
use actix_rt::Arbiter;
use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::message::StopReason;
use pushpull_messages::observe::Clock;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Listener, Server, ServerConfig, Warnings, serve};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::actor::{Shard, ShardThreads};
use crate::address::Address;
use crate::checkpoint::Checkpoints;
use crate::config::PsConfig;
use crate::drafts::Drafts;
use crate::error::PsError;
use crate::lifecycle::{End, Lifecycle};
use crate::requests::StopShard;
use crate::router::Router;
use crate::serving::{Serving, Surroundings};
use crate::shard::{ShardLimits, ShardState};
use crate::threads;
use crate::view::{EndGuard, Observation, Phase, PsView, ShardView};

/// A running ps task.
pub struct Ps {
    server: Server,
    shards: Vec<Address<Shard>>,
    /// The shards' threads; empty if the shards run on the task's own thread.
    arbiters: Vec<Arbiter>,
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

/// The shards of a task, in the order of their indices.
#[derive(Default)]
struct Shards {
    addresses: Vec<Address<Shard>>,
    drafts: Vec<Drafts>,
    views: Vec<ShardView>,
    arbiters: Vec<Arbiter>,
}

impl Shards {
    /// Starts the shards of `task`, each on an arbiter of its own unless `config` says otherwise. A shard
    /// that gets small values moves to the current arbiter.
    fn start(
        task: TaskId,
        config: &PsConfig,
        pool: &BufferPool,
        checkpoints: &Checkpoints,
        lifecycle: &Lifecycle,
        leaving: &CancellationToken,
    ) -> Self {
        let limits = ShardLimits {
            values_bytes_max: config.server.limits.payload_bytes_max,
            // The held gradients of all shards may take at most half of the task's bytes in flight. The
            // other half is for gradients that have yet to arrive.
            gradients_bytes_max: config.server.in_flight_bytes_max / 2 / u64::from(config.shards),
        };
        let reply_bytes_max = config.reply_bytes_max / u64::from(config.shards);
        let clock = Clock::start();
        let update_threads = config.update_threads();
        let mut shards = Self::default();
        for shard in 0..config.shards {
            let id = ShardId::new(task.index, shard);
            let on_panic = {
                let lifecycle = lifecycle.clone();
                Box::new(move |reason: String| lifecycle.end(End::Panic(id, reason)))
            };
            let drafts = Drafts::new(pool.clone(), config.drafted_bytes_min);
            shards.drafts.push(drafts.clone());
            let (publisher, view) = ShardView::new(id);
            let (checkpoints, leaving) = (checkpoints.clone(), leaving.clone());
            let with =
                Surroundings { reply_bytes_max, drafts, checkpoints, clock, publisher, leaving, on_panic };
            let state = ShardState::new(id, pool.clone(), limits).shared_by(update_threads.clone());
            let serving = Serving::new(state, with);
            let address = Address::new(id, Arc::clone(view.meter()));
            if config.own_threads {
                let arbiter = threads::arbiter(format!("shard {shard}"));
                let (sessions, own) = (Arbiter::current(), arbiter.handle());
                let own_bytes_min = config.own_thread_bytes_min;
                let threads = ShardThreads { sessions, own: own.clone(), on_own: true, own_bytes_min };
                let actor = Shard::new(serving, &address, Some(threads));
                address.set(Shard::start_in_arbiter(&own, |_| actor));
                shards.arbiters.push(arbiter);
            } else {
                address.set(Shard::new(serving, &address, None).start());
            }
            shards.addresses.push(address);
            shards.views.push(view);
        }
        shards
    }
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
        config: PsConfig,
        identity: Identity,
        listener: Box<dyn Listener>,
        pool: &BufferPool,
    ) -> Result<Self, PsError> {
        config.validate()?;
        let task = identity.task;
        let lifecycle = Lifecycle::new(config.chief_lease);
        let (leaving, files) = (CancellationToken::new(), CancellationToken::new());
        let checkpoints = Checkpoints::start(&config, pool.clone(), files.clone());
        let Shards { addresses, drafts, views, arbiters } =
            Shards::start(task, &config, pool, &checkpoints, &lifecycle, &leaving);
        let shards = addresses.clone();
        // If a shard has moved, its first actor passes on what it gets.
        let recipients = addresses.iter().filter_map(Address::recipient).collect();
        let warnings = Warnings::default();
        let service =
            Arc::new(Router { task, shards: addresses, drafts, lifecycle: lifecycle.clone(), warnings });
        // A save request is answered only when the file is written. Meanwhile the chief must be able to send
        // other requests to every shard.
        let requests_max = config.server.requests_max.max(4 * config.shards);
        let server_config = ServerConfig { shards: config.shards, requests_max, ..config.server.clone() };
        let server = serve(listener, identity.clone(), service, server_config);
        tracing::info!(shards = config.shards, address = %server.address(), "serving");
        let (end_guard, view) = PsView::new(Observation {
            task,
            incarnation: identity.incarnation,
            shards: views,
            checkpoints: Arc::clone(checkpoints.meter()),
            server: server.observer(),
            lifecycle: lifecycle.clone(),
            leaving: leaving.clone(),
            phase: Mutex::new(Phase::Running { shards: recipients, pool: pool.clone(), stopping: false }),
        });
        Ok(Self {
            server,
            shards,
            arbiters,
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
    pub(crate) fn arbiter(&self, shard: usize) -> &Arbiter {
        &self.arbiters[shard]
    }

    /// Serves until the chief ends the job. The token `interrupt` is cancelled by a signal. If this happens
    /// while the chief is connected, serves for at most [`PsConfig::drain_timeout`] longer, so that the
    /// chief can save and end the job.
    ///
    /// # Errors
    /// Returns an error if the chief never connects, is lost, or reports that the job failed; if a shard
    /// panics; or if the chief does not end the job in time after an interrupt.
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
        // A shard that stops refuses the requests that still wait in its mailbox.
        for shard in self.shards {
            // If the mailbox is full, this message is lost. The shard then ends with its arbiter, or with the
            // task.
            let _ = shard.try_send(StopShard);
        }
        for arbiter in self.arbiters {
            arbiter.stop();
        }
        // Once both waits are over, the counts in the view do not change any more. If a shard hangs, each of
        // the two waits a few seconds for it.
        tokio::join!(self.server.stop(), self.view.wait_for_end());
        match result {
            // After a signal, the job fails if it cannot be saved. The cause to report is then the signal.
            Err(PsError::JobFailed(_)) if self.leaving.is_cancelled() => Err(PsError::Interrupted),
            result => result,
        }
    }

    /// Waits until the chief ends the job or is lost, or until a shard panics.
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
