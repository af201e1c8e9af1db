//! What is reduced, over which transport, and the orders that a chief would give.

use std::time::Duration;

use anyhow::Context;
use pushpull::{ClusterSpec, InitializerSpec, OptimizerSpec, SyncSpec};
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, PlacementEpoch, ShardId, TaskId, VariableId};
use pushpull_messages::message::{Appoint, Appointed, Claim, Claimed, CreateShard, ShardCreated};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Connection, Identity, Patience, Tcp, dial};
use serde::{Deserialize, Serialize};

use crate::ports::free_address;

/// The time limit for starting a process.
pub(crate) const START: Duration = Duration::from_secs(30);
/// The incarnation of every task.
const INCARNATION: Incarnation = Incarnation(1);
/// A variable with fewer bytes is not split over the processes.
const SPLIT_BYTES_MIN: usize = 64 << 10;

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Case {
    /// The number of variables, and of the elements of each.
    variables: (usize, usize),
    /// Whether the processes share memory; otherwise they use TCP.
    pub shares_memory: bool,
}

impl Case {
    /// Returns all cases.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let variables = [(1, 1024), (1, 1_000_000), (25, 1_000_000)];
        let case = |shares_memory| move |variables| Self { variables, shares_memory };
        [true, false].into_iter().flat_map(move |shared| variables.into_iter().map(case(shared)))
    }

    /// Returns the number of bytes that are reduced.
    pub(crate) const fn bytes(&self) -> u64 {
        (self.variables.0 * self.variables.1 * 4) as u64
    }

    /// Returns whether the time is compared with that of a message.
    pub(crate) const fn is_small(&self) -> bool {
        self.bytes() < SPLIT_BYTES_MIN as u64
    }

    /// Returns the size as text.
    pub(crate) fn size(&self) -> String {
        match self.bytes() {
            bytes if bytes < 1_000_000 => format!("{} KB", bytes / 1024),
            bytes => format!("{} MB", bytes / 1_000_000),
        }
    }

    /// Returns the name of the case.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.size(), if self.shares_memory { "shared memory" } else { "tcp" })
    }
}

/// What all processes must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub case: Case,
    pub cluster: ClusterSpec,
}

impl Setup {
    /// Makes a cluster without ps tasks.
    pub(crate) fn new(case: Case, processes: u32) -> anyhow::Result<Self> {
        let addresses = (0..processes).map(|_| free_address()).collect::<Vec<String>>();
        Ok(Self { case, cluster: ClusterSpec::new([(JobName::Worker, addresses)])? })
    }

    /// Returns the number of processes.
    pub(crate) fn processes(&self) -> u32 {
        self.cluster.addresses(JobName::Worker).len() as u32
    }

    /// Returns the identity of a task.
    pub(crate) fn identity(&self, task: TaskId) -> Identity {
        let cluster = self.cluster.clone();
        Identity { task, incarnation: INCARNATION, cluster, graph: None, http: None, nonce: 0 }
    }

    /// Returns the variables.
    pub(crate) fn variables(&self) -> Vec<VariableSpec> {
        let (count, elements) = self.case.variables;
        let spec = |at| VariableSpec {
            name: format!("v{at}"),
            shape: [elements].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        };
        (0..count).map(spec).collect()
    }

    fn shards(&self) -> Vec<ShardId> {
        (0..self.processes()).map(|ps| ShardId::new(ps, 0)).collect()
    }

    /// Returns the placement. Each process has an equal part of each large variable.
    pub(crate) fn placement(&self) -> Placement {
        let (count, elements) = self.case.variables;
        let shards = self.shards();
        let parts = if elements * 4 < SPLIT_BYTES_MIN || count >= shards.len() { 1 } else { shards.len() };
        let slice = |variable: usize, part: usize| {
            let (row, end) = (elements * part / parts, elements * (part + 1) / parts);
            let slice = SliceSpec {
                variable: VariableId(variable as u32),
                row: row as u64,
                rows: (end - row) as u64,
            };
            PlacedSlice { slice, shard: shards[(variable + part) % shards.len()] }
        };
        let of_one = |variable| (0..parts).map(move |part| slice(variable, part));
        let slices = (0..count).flat_map(of_one).collect();
        Placement { epoch: PlacementEpoch(1), shards: self.shards(), slices }
    }

    /// Gives the orders of a chief: claims the ps tasks, creates their shards, and appoints the workers. The
    /// tasks serve for as long as the returned connections exist.
    pub(crate) async fn lead(&self) -> anyhow::Result<Vec<Connection>> {
        let (transport, identity) = (Tcp::default(), self.identity(TaskId::CHIEF));
        let mut connections = Vec::new();
        for shard in self.shards() {
            let task = shard.task();
            let address = self.cluster.reached_at(task).context("a ps of the cluster")?.to_string();
            let chief = dial(&transport, &address, &identity, task, Patience::of(START)).await?;
            chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await?;
            let create = CreateShard {
                shard,
                placement: self.placement(),
                variables: self.variables(),
                // The rate is so small that no value overflows.
                update: OptimizerSpec::sgd(1e-6).into(),
                compression: Vec::new(),
                sync: SyncSpec::SYNC,
                pipeline: 1,
                deterministic: false,
                workers: self.processes(),
                last_step: GlobalStep(u64::MAX / 2),
                seed: 1,
                job: 0,
                start: Default::default(),
            };
            chief.call::<ShardCreated>(create, Payload::EMPTY).await?;
            for worker in 0..self.processes() {
                let number = u64::from(worker) + 1;
                let appoint = Appoint { shard: 0, worker, incarnation: INCARNATION, number };
                chief.call::<Appointed>(appoint, Payload::EMPTY).await?;
            }
            connections.push(chief);
        }
        Ok(connections)
    }
}
