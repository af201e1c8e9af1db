//! What the chief does with the ps tasks: reaches them, hands out the variables, reads the counts, ends them.

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

/// Connections to ps tasks, in the order of the cluster spec.
#[derive(Default)]
pub(crate) struct PsTasks(Vec<Arc<Client>>);

impl PsTasks {
    /// Reaches every ps task, and hands over each connection as it is made.
    pub(crate) async fn connect(
        transport: &dyn Transport,
        identity: &Identity,
        patience: Patience,
        arrived: impl Fn(Arc<Client>),
    ) -> Result<(), DialError> {
        let addresses = identity.cluster.addresses(JobName::Ps);
        let dials = addresses.iter().enumerate().map(|(index, address)| {
            let (task, arrived) = (TaskId::ps(index as u32), &arrived);
            async move {
                let client = dial(transport, address.as_str(), identity, task, patience).await?;
                arrived(Arc::new(client));
                Ok::<_, DialError>(())
            }
        });
        futures_util::future::try_join_all(dials).await?;
        Ok(())
    }

    /// These connections: to all ps tasks, or to as many as came.
    pub(crate) fn new(mut clients: Vec<Arc<Client>>) -> Self {
        clients.sort_by_key(|client| client.peer());
        Self(clients)
    }

    /// Which tasks they lead to.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.0.iter().map(|client| client.peer())
    }

    fn shards(&self) -> impl Iterator<Item = (ShardId, &Arc<Client>)> {
        self.0.iter().flat_map(|client| {
            (0..client.welcome().shards).map(move |shard| (ShardId::new(client.peer().index, shard), client))
        })
    }

    fn client(&self, shard: ShardId) -> &Client {
        &self.0[shard.ps as usize]
    }

    /// Decides where every variable lives, and has every shard fill its own.
    pub(crate) async fn create(&self, job: &JobSpec) -> Result<Placement, ChiefError> {
        let shards: Vec<ShardId> = self.shards().map(|(shard, _)| shard).collect();
        let placement = place(&job.placement, &job.graph.variables, &shards, PlacementEpoch(1))?;
        let mut creations = Vec::new();
        for (shard, client) in self.shards() {
            let create = CreateShard {
                shard,
                placement: placement.clone(),
                variables: job.graph.variables.clone(),
                optimizer: job.optimizer.clone(),
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
        let lost =
            self.0.iter().map(|client| Box::pin(async move { (client.peer(), client.wait_lost().await) }));
        futures_util::future::select_all(lost).await.0
    }

    /// The state of every shard.
    pub(crate) async fn observe(&self) -> Result<Vec<(ShardId, ShardSnapshot)>, ChiefError> {
        let shards: Vec<ShardId> = self.shards().map(|(shard, _)| shard).collect();
        let snapshots = shards.into_iter().map(|shard| async move {
            let observe = Observe { shard: shard.shard };
            let (snapshot, _) = self.client(shard).call::<ShardSnapshot>(observe, Payload::EMPTY).await?;
            Ok::<_, ChiefError>((shard, snapshot))
        });
        futures_util::future::try_join_all(snapshots).await
    }

    /// Tells every ps task that the job is over. One that is gone already needs no telling.
    pub(crate) async fn stop(&self, reason: StopReason) {
        let stops = self.0.iter().map(|client| {
            let stop = client.call::<Stopped>(Stop { reason: reason.clone() }, Payload::EMPTY);
            tokio::time::timeout(FAREWELL, stop)
        });
        for (client, stopped) in self.0.iter().zip(futures_util::future::join_all(stops).await) {
            if !matches!(stopped, Ok(Ok(_))) {
                tracing::warn!("{} did not hear that the job is over", client.peer());
            }
        }
    }
}
