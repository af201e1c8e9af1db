//! The push/pull client: what a worker sees of all shards together.
//!
//! Every push goes to every shard, also to one that owns nothing, so that each shard's version counts the job's
//! steps (V3). Bytes in flight are bounded by credits, taken before a push is sent and given back with its reply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;
use messages::buffer::{Budget, BufferPool, Payload};
use messages::id::{GlobalStep, LocalStep, Sequence, ShardId, TaskId, Version};
use messages::message::{Pull, Pulled, Push, PushId, Pushed, Verdict};
use messages::placement::Placement;
use messages::transport::{CallError, Client, Identity, Patience, Transport, dial};
use messages::variable::VariableSpec;

use crate::error::WorkerError;
use crate::gradients::Gradients;
use crate::layout::Layout;
use crate::values::Values;

/// All shards of a job, for one worker.
pub struct Parameters {
    layout: Arc<Layout>,
    /// For every shard of the layout the connection to its task.
    clients: Vec<Arc<Client>>,
    pool: BufferPool,
    credits: Budget,
    identity: Identity,
    sequence: Sequence,
}

/// What a push or pull brought back.
#[derive(Debug)]
pub struct Exchange {
    /// The newest values.
    pub values: Arc<Values>,
    /// Of each shard, the version of its values.
    pub versions: Vec<Version>,
    /// Of each shard, what became of the gradient; empty after a pull.
    pub verdicts: Vec<Verdict>,
}

impl Exchange {
    /// The greatest number of updates that any shard has applied.
    pub fn global_step(&self) -> GlobalStep {
        GlobalStep(self.versions.iter().map(|version| version.0).max().unwrap_or(0))
    }

    /// Whether every shard has reached the job's last step.
    pub fn is_complete(&self, last_step: GlobalStep) -> bool {
        self.versions.iter().all(|version| version.0 >= last_step.0)
    }
}

impl Parameters {
    /// Connects to every ps task that the placement names.
    ///
    /// # Errors
    /// Where one of them cannot be reached in time.
    pub async fn connect(
        transport: &dyn Transport,
        identity: &Identity,
        placement: &Placement,
        variables: &[VariableSpec],
        pool: &BufferPool,
        patience: Patience,
        in_flight_bytes_max: u64,
    ) -> Result<Self, WorkerError> {
        let layout = Arc::new(Layout::new(placement, variables));
        let tasks: BTreeSet<TaskId> = layout.shards.iter().map(|shard| shard.shard.task()).collect();
        let dials = tasks.into_iter().map(|task| async move {
            let address = identity.cluster.address(task).ok_or(WorkerError::NotInCluster(task))?;
            let client = dial(transport, address.as_str(), identity, task, patience).await?;
            Ok::<_, WorkerError>((task, Arc::new(client)))
        });
        let tasks: BTreeMap<TaskId, Arc<Client>> = try_join_all(dials).await?.into_iter().collect();
        let clients = layout.shards.iter().map(|shard| Arc::clone(&tasks[&shard.shard.task()])).collect();
        Ok(Self {
            layout,
            clients,
            pool: pool.clone(),
            credits: Budget::new(in_flight_bytes_max),
            identity: identity.clone(),
            sequence: Sequence(0),
        })
    }

    /// Memory for the gradients of one step.
    pub fn gradients(&self) -> Gradients {
        Gradients::take(&self.layout, &self.pool)
    }

    /// All shards, in the order in which versions and verdicts are given.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.layout.shards.iter().map(|shard| shard.shard)
    }

    /// The newest values of all variables.
    ///
    /// # Errors
    /// Where a shard refuses, or is gone.
    pub async fn pull(&self) -> Result<Exchange, WorkerError> {
        let calls = self.layout.shards.iter().zip(&self.clients).map(|(shard, client)| {
            let pull = Pull {
                shard: shard.shard.shard,
                epoch: self.layout.epoch,
                placement_digest: self.layout.digest,
            };
            client.call::<Pulled>(pull, Payload::EMPTY)
        });
        let mut versions = Vec::with_capacity(self.clients.len());
        let mut payloads = Vec::with_capacity(self.clients.len());
        for (shard, (pulled, payload)) in self.layout.shards.iter().zip(try_join_all(calls).await?) {
            shard.check(&pulled.slices)?;
            versions.push(pulled.version);
            payloads.push(payload);
        }
        let values = Arc::new(Values::assemble(&self.layout, &payloads, &self.pool)?);
        Ok(Exchange { values, versions, verdicts: Vec::new() })
    }

    /// Pushes the gradients of one step, which were computed from values of these versions, and pulls the newest
    /// values in the same round trip.
    ///
    /// # Errors
    /// Where a shard refuses, or is gone.
    pub async fn push_pull(
        &mut self,
        gradients: Gradients,
        local_step: LocalStep,
        versions: &[Version],
    ) -> Result<Exchange, WorkerError> {
        self.sequence = self.sequence.next();
        let id = PushId {
            worker: self.identity.task.index,
            incarnation: self.identity.incarnation,
            sequence: self.sequence,
        };
        let calls = gradients.into_payloads().into_iter().enumerate().map(|(position, payload)| {
            let shard = &self.layout.shards[position];
            let push = Push {
                shard: shard.shard.shard,
                id,
                local_step,
                epoch: self.layout.epoch,
                placement_digest: self.layout.digest,
                version: versions[position],
                slices: shard.slices.clone(),
                pull: true,
            };
            self.push(&self.clients[position], push, payload)
        });
        let mut exchange = (Vec::new(), Vec::new(), Vec::new());
        for (shard, (pushed, payload)) in self.layout.shards.iter().zip(try_join_all(calls).await?) {
            shard.check(&pushed.slices)?;
            exchange.0.push(pushed.version);
            exchange.1.push(pushed.verdict);
            exchange.2.push(payload);
        }
        let (versions, verdicts, payloads) = exchange;
        let values = Arc::new(Values::assemble(&self.layout, &payloads, &self.pool)?);
        Ok(Exchange { values, versions, verdicts })
    }

    async fn push(
        &self,
        client: &Client,
        push: Push,
        payload: Payload,
    ) -> Result<(Pushed, Payload), CallError> {
        let _credit = self.credits.take(payload.bytes() as u64).await;
        client.call::<Pushed>(push, payload).await
    }
}
