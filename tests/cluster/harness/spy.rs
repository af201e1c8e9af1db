//! Connects to a task as a peer of the cluster, to observe a shard while it works.

use std::time::Duration;

use pushpull_messages::id::{Incarnation, ShardId, TaskId};
use pushpull_messages::message::{Observe, ShardSnapshot};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Connection, DialError, Identity, Patience, Tcp, dial};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::wait::PATIENCE;

/// Connects to a task of the cluster with `identity`, calls `talk`, and closes the connection.
pub(crate) fn whisper<T>(
    cluster: &Cluster,
    to: TaskId,
    identity: &Identity,
    talk: impl AsyncFnOnce(Connection) -> T,
) -> Result<T, DialError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client =
            dial(&Tcp::default(), &cluster.address(to), identity, to, Patience::of(PATIENCE)).await?;
        Ok(talk(client).await)
    })
}

impl Cluster {
    /// Returns an identity of worker 0 with an earlier incarnation than that of the real worker.
    pub(crate) fn impostor(&self) -> Identity {
        let cluster = self.spec.clone();
        Identity {
            task: TaskId::worker(0),
            incarnation: Incarnation(1),
            cluster,
            graph: None,
            http: None,
            nonce: 0,
        }
    }
}

/// Waits until a condition holds for a shard, and returns the snapshot of the shard.
#[track_caller]
pub(crate) fn wait_for_shard(
    cluster: &Cluster,
    shard: ShardId,
    what: &str,
    holds: impl Fn(&ShardSnapshot) -> bool,
) -> ShardSnapshot {
    let watch = async |client: Connection| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (seen, _) = client
                .call::<ShardSnapshot>(Observe { shard: shard.shard }, Payload::EMPTY)
                .await
                .expect("a shard lets itself be observed");
            if holds(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "{shard} is at {seen:?}, and {what} is waited for");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    whisper(cluster, shard.task(), &cluster.impostor(), watch).expect("a ps can be reached")
}

/// Waits until the first shard of ps 0 has applied at least this number of updates.
#[track_caller]
pub(crate) fn wait_for_version(cluster: &Cluster, at_least: u64) -> ShardSnapshot {
    let first = ShardId::new(0, 0);
    wait_for_shard(cluster, first, &format!("version {at_least}"), |seen| seen.version.0 >= at_least)
}
