//! What the chief does with the ps tasks: reaches them, hands out the variables, reads the counts, ends them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use messages::buffer::Payload;
use messages::id::{Incarnation, JobName, PlacementEpoch, ShardId, TaskId};
use messages::job::JobSpec;
use messages::message::{
    CreateShard, Leave, Left, Observe, RefusalCode, ShardCreated, ShardSnapshot, Stop, StopReason, Stopped,
};
use messages::placement::Placement;
use messages::transport::{CallError, Caller, DialError, Identity, Patience, RetryConfig, Transport};

use crate::error::ChiefError;
use crate::placement::place;

/// So long a ps task may take to say that it goes.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);

/// Before what a shard had no room for is said again.
const OVERLOADED: Duration = Duration::from_millis(100);

/// Callers of ps tasks: of as many as have come so far.
#[derive(Default)]
pub(crate) struct PsTasks(RefCell<BTreeMap<TaskId, Arc<Caller>>>);

impl PsTasks {
    /// Reaches every ps task.
    pub(crate) async fn connect(
        &self,
        transport: &Arc<dyn Transport>,
        identity: &Identity,
        patience: Patience,
        retry: RetryConfig,
    ) -> Result<(), ChiefError> {
        retry.validate()?;
        let addresses = identity.cluster.addresses(JobName::Ps);
        let dials = addresses.iter().enumerate().map(|(index, address)| async move {
            let task = TaskId::ps(index as u32);
            let transport = Arc::clone(transport);
            let caller =
                Caller::connect(transport, address.as_str(), identity, task, patience, retry).await?;
            self.0.borrow_mut().insert(task, Arc::new(caller));
            Ok::<_, DialError>(())
        });
        futures_util::future::try_join_all(dials).await?;
        Ok(())
    }

    /// Which tasks have come.
    pub(crate) fn tasks(&self) -> Vec<TaskId> {
        self.0.borrow().keys().copied().collect()
    }

    fn callers(&self) -> Vec<Arc<Caller>> {
        self.0.borrow().values().cloned().collect()
    }

    /// Every shard, with the caller of its task.
    fn shards(&self) -> Vec<(ShardId, Arc<Caller>)> {
        let of_task = |caller: Arc<Caller>| {
            let shards = 0..caller.welcome().shards;
            shards.map(move |shard| (ShardId::new(caller.peer().index, shard), Arc::clone(&caller)))
        };
        self.callers().into_iter().flat_map(of_task).collect()
    }

    /// Decides where every variable lives, and has every shard fill its own.
    pub(crate) async fn create(&self, job: &JobSpec, identity: &Identity) -> Result<Placement, ChiefError> {
        let tasks = self.shards();
        let shards: Vec<ShardId> = tasks.iter().map(|&(shard, _)| shard).collect();
        let placement = place(&job.placement, &job.graph.variables, &shards, PlacementEpoch(1))?;
        let mut creations = Vec::new();
        for &(shard, ref caller) in &tasks {
            let create = CreateShard {
                shard,
                placement: placement.clone(),
                variables: job.graph.variables.clone(),
                update: job.update(),
                sync: job.sync,
                deterministic: job.deterministic,
                workers: identity.cluster.addresses(JobName::Worker).len() as u32,
                last_step: job.last_step,
                seed: job.seed,
            };
            let (bytes, max) = (create.bytes(), caller.welcome().payload_bytes_max);
            if bytes > max {
                return Err(ChiefError::ShardTooLarge { shard, bytes, max });
            }
            creations.push(caller.call::<ShardCreated>(create, Payload::EMPTY));
        }
        futures_util::future::try_join_all(creations).await?;
        Ok(placement)
    }

    /// Waits until the first of them is gone.
    pub(crate) async fn wait_lost(&self) -> (TaskId, String) {
        let lost = self
            .callers()
            .into_iter()
            .map(|caller| Box::pin(async move { (caller.peer(), caller.wait_lost().await) }));
        futures_util::future::select_all(lost).await.0
    }

    /// The state of every shard.
    pub(crate) async fn observe(&self) -> Result<Vec<(ShardId, ShardSnapshot)>, ChiefError> {
        let snapshots = self.shards().into_iter().map(|(shard, caller)| async move {
            let observe = Observe { shard: shard.shard };
            let (snapshot, _) = caller.call::<ShardSnapshot>(observe, Payload::EMPTY).await?;
            Ok::<_, ChiefError>((shard, snapshot))
        });
        futures_util::future::try_join_all(snapshots).await
    }

    /// Tells every ps task that the job is over, and lets go of it. One that is gone already needs no telling.
    pub(crate) async fn stop(&self, reason: StopReason) {
        let stops = self.0.take().into_values().map(|caller| {
            let stop = Stop { reason: reason.clone() };
            // Each is let go as soon as it has answered: that it closes the connection then is no break.
            async move {
                let stopped = caller.call::<Stopped>(stop, Payload::EMPTY);
                if !matches!(tokio::time::timeout(FAREWELL, stopped).await, Ok(Ok(_))) {
                    tracing::warn!("{} did not hear that the job is over", caller.peer());
                }
            }
        });
        futures_util::future::join_all(stops).await;
    }

    /// Tells every shard that this life of a worker takes part no more, for as long as that takes: a shard that has not
    /// heard it waits for the worker.
    pub(crate) async fn leave(&self, worker: u32, incarnation: Incarnation) {
        let calls = self.shards().into_iter().map(|(shard, client)| async move {
            let leave = Leave { shard: shard.shard, worker, incarnation };
            loop {
                match client.call::<Left>(leave, Payload::EMPTY).await {
                    Ok(_) => return,
                    Err(CallError::Refused { refusal, .. }) if refusal.code == RefusalCode::Overloaded => {
                        tokio::time::sleep(OVERLOADED).await;
                    }
                    // A ps task that is lost ends the job.
                    Err(error) => {
                        tracing::error!("{shard} did not hear that worker/{worker} has left: {error}");
                        return;
                    }
                }
            }
        });
        futures_util::future::join_all(calls).await;
    }
}
