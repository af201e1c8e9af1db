//! What the chief does with the ps tasks: reaches them, hands out the variables, reads the counts, ends them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use messages::buffer::Payload;
use messages::id::{JobName, PlacementEpoch, ShardId, TaskId};
use messages::job::JobSpec;
use messages::message::{CreateShard, Observe, ShardCreated, ShardSnapshot, Stop, StopReason, Stopped};
use messages::placement::Placement;
use messages::transport::{Client, DialError, Identity, Patience, Transport, dial};

use crate::error::ChiefError;
use crate::placement::place;

/// So long a ps task may take to say that it goes.
const FAREWELL: Duration = Duration::from_secs(5);

/// Connections to ps tasks: to as many as have come so far.
#[derive(Default)]
pub(crate) struct PsTasks(RefCell<BTreeMap<TaskId, Arc<Client>>>);

impl PsTasks {
    /// Reaches every ps task.
    pub(crate) async fn connect(
        &self,
        transport: &dyn Transport,
        identity: &Identity,
        patience: Patience,
    ) -> Result<(), DialError> {
        let addresses = identity.cluster.addresses(JobName::Ps);
        let dials = addresses.iter().enumerate().map(|(index, address)| async move {
            let task = TaskId::ps(index as u32);
            let client = dial(transport, address.as_str(), identity, task, patience).await?;
            self.0.borrow_mut().insert(task, Arc::new(client));
            Ok::<_, DialError>(())
        });
        futures_util::future::try_join_all(dials).await?;
        Ok(())
    }

    /// Which tasks have come.
    pub(crate) fn tasks(&self) -> Vec<TaskId> {
        self.0.borrow().keys().copied().collect()
    }

    fn clients(&self) -> Vec<Arc<Client>> {
        self.0.borrow().values().cloned().collect()
    }

    /// Every shard, with the connection to its task.
    fn shards(&self) -> Vec<(ShardId, Arc<Client>)> {
        let of_task = |client: Arc<Client>| {
            let shards = 0..client.welcome().shards;
            shards.map(move |shard| (ShardId::new(client.peer().index, shard), Arc::clone(&client)))
        };
        self.clients().into_iter().flat_map(of_task).collect()
    }

    /// Decides where every variable lives, and has every shard fill its own.
    pub(crate) async fn create(&self, job: &JobSpec) -> Result<Placement, ChiefError> {
        let tasks = self.shards();
        let shards: Vec<ShardId> = tasks.iter().map(|&(shard, _)| shard).collect();
        let placement = place(&job.placement, &job.graph.variables, &shards, PlacementEpoch(1))?;
        let mut creations = Vec::new();
        for &(shard, ref client) in &tasks {
            let create = CreateShard {
                shard,
                placement: placement.clone(),
                variables: job.graph.variables.clone(),
                optimizer: job.optimizer.clone(),
                schedule: job.schedule,
                sync: job.sync,
                last_step: job.last_step,
                seed: job.seed,
            };
            let (bytes, max) = (create.bytes(), client.welcome().payload_bytes_max);
            if bytes > max {
                return Err(ChiefError::ShardTooLarge { shard, bytes, max });
            }
            creations.push(client.call::<ShardCreated>(create, Payload::EMPTY));
        }
        futures_util::future::try_join_all(creations).await?;
        Ok(placement)
    }

    /// Waits until the first of them is gone.
    pub(crate) async fn wait_lost(&self) -> (TaskId, String) {
        let lost = self
            .clients()
            .into_iter()
            .map(|client| Box::pin(async move { (client.peer(), client.wait_lost().await) }));
        futures_util::future::select_all(lost).await.0
    }

    /// The state of every shard.
    pub(crate) async fn observe(&self) -> Result<Vec<(ShardId, ShardSnapshot)>, ChiefError> {
        let snapshots = self.shards().into_iter().map(|(shard, client)| async move {
            let observe = Observe { shard: shard.shard };
            let (snapshot, _) = client.call::<ShardSnapshot>(observe, Payload::EMPTY).await?;
            Ok::<_, ChiefError>((shard, snapshot))
        });
        futures_util::future::try_join_all(snapshots).await
    }

    /// Tells every ps task that the job is over. One that is gone already needs no telling.
    pub(crate) async fn stop(&self, reason: StopReason) {
        let stops = self.clients().into_iter().map(|client| {
            let stop = Stop { reason: reason.clone() };
            async move {
                let stopped = client.call::<Stopped>(stop, Payload::EMPTY);
                if !matches!(tokio::time::timeout(FAREWELL, stopped).await, Ok(Ok(_))) {
                    tracing::warn!("{} did not hear that the job is over", client.peer());
                }
            }
        });
        futures_util::future::join_all(stops).await;
    }
}
