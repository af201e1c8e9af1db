//! The shards of a ps task. It starts as many as its settings say, and more of them if the chief names more,
//! because the values of one shard must fit into a frame.

use std::sync::{Arc, OnceLock};

use actix::Actor;
use actix_rt::Arbiter;
use parking_lot::RwLock;
use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::observe::Clock;
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_transport::buffer::BufferPool;
use tokio_util::sync::CancellationToken;

use crate::actor::{Shard, ShardThreads};
use crate::address::Address;
use crate::checkpoint::Checkpoints;
use crate::config::PsConfig;
use crate::drafts::Drafts;
use crate::lifecycle::{End, Lifecycle};
use crate::requests::StopShard;
use crate::serving::{Serving, Surroundings};
use crate::shard::{ShardLimits, ShardState, UpdateThreads};
use crate::threads;
use crate::view::{PsView, ShardView};

/// What all shards of a task share.
pub(crate) struct Shared {
    pub task: TaskId,
    pub config: PsConfig,
    pub pool: BufferPool,
    pub checkpoints: Checkpoints,
    pub lifecycle: Lifecycle,
    /// Cancelled when a signal arrives.
    pub leaving: CancellationToken,
}

/// The shards of a task, in the order of their indices.
pub(crate) struct Shards {
    shared: Shared,
    clock: Clock,
    update_threads: UpdateThreads,
    started: RwLock<Vec<Started>>,
    /// The view that shows the shards; unset while the first ones start.
    view: OnceLock<PsView>,
}

/// A shard that has been started.
struct Started {
    address: Address<Shard>,
    drafts: Drafts,
    view: ShardView,
    /// The shard's own thread; `None` if it runs on the task's thread.
    arbiter: Option<Arbiter>,
}

impl Shards {
    /// Starts as many shards as the settings say, each on an arbiter of its own unless they say otherwise. A
    /// shard that gets small values moves to the current arbiter.
    pub(crate) fn start(shared: Shared) -> Arc<Self> {
        let count = shared.config.shards;
        let (clock, update_threads) = (Clock::start(), shared.config.update_threads());
        let (started, view) = (RwLock::default(), OnceLock::new());
        let shards = Self { shared, clock, update_threads, started, view };
        *shards.started.write() = (0..count).map(|index| shards.start_one(index)).collect();
        Arc::new(shards)
    }

    /// Returns the address of a shard and its turn to draft; `None` if the shard has not been started.
    pub(crate) fn get(&self, index: u32) -> Option<(Address<Shard>, Drafts)> {
        let started = self.started.read();
        started.get(index as usize).map(|shard| (shard.address.clone(), shard.drafts.clone()))
    }

    /// Returns the address of a shard; `None` if the shard has not been started.
    pub(crate) fn address(&self, index: u32) -> Option<Address<Shard>> {
        self.started.read().get(index as usize).map(|shard| shard.address.clone())
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> usize {
        self.started.read().len()
    }

    /// Returns the address of a shard that the chief has named. Starts the shard, and all before it, if that
    /// has not happened yet. Returns `None` if a task has fewer shards, or if the task has no threads of its
    /// own.
    pub(crate) fn address_or_start(&self, index: u32) -> Option<Address<Shard>> {
        if let Some(address) = self.address(index) {
            return Some(address);
        }
        if index >= SHARDS_PER_TASK_MAX || !self.shared.config.own_threads {
            return None;
        }
        let mut started = self.started.write();
        while started.len() <= index as usize {
            let shard = self.start_one(started.len() as u32);
            if let Some(view) = self.view.get() {
                view.add(shard.view.clone(), shard.address.recipient());
            }
            started.push(shard);
        }
        tracing::info!(shards = started.len(), "started shards that the chief needs");
        started.get(index as usize).map(|shard| shard.address.clone())
    }

    fn start_one(&self, index: u32) -> Started {
        let Shared { task, config, pool, checkpoints, lifecycle, leaving } = &self.shared;
        let id = ShardId::new(task.index, index);
        let limits = ShardLimits {
            values_bytes_max: config.server.limits.payload_bytes_max,
            // The held gradients of all shards may take at most half of the task's bytes in flight. The
            // other half is for gradients that have yet to arrive.
            gradients_bytes_max: config.server.in_flight_bytes_max / 2,
        };
        let on_failure = {
            let lifecycle = lifecycle.clone();
            Box::new(move |end: End| lifecycle.end(end))
        };
        let drafts = Drafts::new(pool.clone(), config.drafted_bytes_min);
        let (publisher, view) = ShardView::new(id);
        let with = Surroundings {
            reply_bytes_max: config.reply_bytes_max / u64::from(config.shards.max(index + 1)),
            drafts: drafts.clone(),
            checkpoints: checkpoints.clone(),
            clock: self.clock,
            publisher,
            leaving: leaving.clone(),
            on_failure,
        };
        let state = ShardState::new(id, pool.clone(), limits)
            .shared_by(self.update_threads.clone())
            .on_device(config.device.clone());
        let serving = Serving::new(state, with);
        let address = Address::new(id, Arc::clone(view.meter()));
        let arbiter =
            config.own_threads.then(|| threads::arbiter(format!("shard {index}"), config.cores.clone()));
        if let Some(arbiter) = &arbiter {
            let (sessions, own) = (Arbiter::current(), arbiter.handle());
            let own_bytes_min = config.own_thread_bytes_min;
            let threads = ShardThreads { sessions, own: own.clone(), on_own: true, own_bytes_min };
            let actor = Shard::new(serving, &address, Some(threads));
            address.set(Shard::start_in_arbiter(&own, |_| actor));
        } else {
            address.set(Shard::new(serving, &address, None).start());
        }
        Started { address, drafts, view, arbiter }
    }

    /// Sets the view that shows the shards. Shards that are started later are added to it.
    pub(crate) fn show_in(&self, view: PsView) {
        for shard in &*self.started.read() {
            view.add(shard.view.clone(), shard.address.recipient());
        }
        // A task sets its view once.
        let _ = self.view.set(view);
    }

    /// Tells all shards to end. A shard that stops refuses the requests that still wait in its mailbox.
    pub(crate) fn stop(&self) {
        let mut started = self.started.write();
        for shard in &*started {
            // If the mailbox is full, this message is lost. The shard then ends with its arbiter, or with the
            // task.
            let _ = shard.address.try_send(StopShard);
        }
        started.iter_mut().filter_map(|shard| shard.arbiter.take()).for_each(|arbiter| {
            arbiter.stop();
        });
    }

    /// Returns the arbiter that a shard runs on.
    #[cfg(test)]
    pub(crate) fn arbiter(&self, index: usize) -> actix_rt::ArbiterHandle {
        self.started.read()[index].arbiter.as_ref().expect("it has a thread").handle()
    }
}
