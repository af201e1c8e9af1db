//! A ps task and workers in the test's own process. The test gives the orders of the chief.

use std::sync::Arc;
use std::time::Duration;

use pushpull::{CompressionSpec, OptimizerSpec, PsConfig, PsError, SyncSpec};
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_ps::Ps;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, InProcess, Patience, Tcp, Transport, dial};
use pushpull_worker::{Parameters, WorkerConfig};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);
const SHARDS: u32 = 2;

/// How the tasks talk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wire {
    #[default]
    Tcp,
    /// A Unix socket, with large buffers in shared memory.
    Shared,
    InProcess,
}

impl Wire {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Shared, Self::InProcess];

    fn pool(self) -> BufferPool {
        if self == Self::Shared { BufferPool::shared() } else { BufferPool::default() }
    }

    const fn address(self) -> &'static str {
        match self {
            Self::Tcp | Self::Shared => "127.0.0.1:0",
            Self::InProcess => "p:1",
        }
    }

    fn tcp(self, pool: &BufferPool) -> Arc<dyn Transport> {
        Arc::new(Tcp::new(pool.clone()).with_local(self == Self::Shared))
    }
}

/// A worker that pushes and pulls without any model.
struct Worker {
    parameters: Parameters,
    versions: Vec<Version>,
    pushed: u64,
}

impl Worker {
    async fn exchange(&mut self) {
        let mut gradients = self.parameters.gradients();
        (0..variables().len()).for_each(|id| gradients.variable_mut(VariableId(id as u32)).fill(1e-3));
        self.pushed += 1;
        let (gradients, step) = (gradients.into_payloads(), self.pushed);
        let pushed = self.parameters.push_pull(gradients, LocalStep(step), step, &self.versions, false);
        let pushed = pushed.await.expect("it is taken");
        assert!(pushed.counts(), "{:?}", pushed.verdicts);
        self.versions = pushed.versions;
    }
}

/// A running ps task with its workers.
pub(crate) struct Cluster {
    chief: Connection,
    workers: Vec<Worker>,
    pools: Vec<BufferPool>,
    interrupt: CancellationToken,
    ps: JoinHandle<Result<(), PsError>>,
}

impl Cluster {
    /// Starts the ps task, creates its shards, and lets all workers join.
    pub(crate) async fn start(
        wire: Wire,
        sync: SyncSpec,
        optimizer: OptimizerSpec,
        workers: u32,
        compression: Vec<CompressionSpec>,
    ) -> Self {
        let mut pools = vec![wire.pool()];
        let in_process: Arc<dyn Transport> = Arc::new(InProcess::new());
        let transport = |pool: &BufferPool| match wire {
            Wire::InProcess => Arc::clone(&in_process),
            Wire::Tcp | Wire::Shared => wire.tcp(pool),
        };
        let listener = transport(&pools[0]).listen(wire.address()).await.expect("a free address");
        let address = listener.address();
        let hosts = (0..workers).map(|worker| format!("w:{}", worker + 1)).collect();
        let jobs = [
            (JobName::Chief, vec!["c:1".to_owned()]),
            (JobName::Ps, vec![address.clone()]),
            (JobName::Worker, hosts),
        ];
        let cluster = ClusterSpec::new(jobs).expect("a cluster");
        let interrupt = CancellationToken::new();
        // With this short timeout, the ps ends at the interrupt as soon as the chief is gone.
        let config = PsConfig { shards: SHARDS, chief_lease: Duration::from_millis(1), ..Default::default() };
        let ps =
            Ps::start(config, identity(&cluster, TaskId::ps(0)), listener, &pools[0]).expect("it starts");
        let ps = actix_rt::spawn(ps.run(interrupt.clone()));
        let (of_chief, chief_pool) = (identity(&cluster, TaskId::CHIEF), BufferPool::default());
        let (dialling, patience) = (transport(&chief_pool), Patience::of(PATIENCE));
        let chief = dial(&*dialling, &address, &of_chief, TaskId::ps(0), patience).await.expect("it serves");
        let variables = variables();
        let sent = variables
            .iter()
            .map(|variable| CompressionSpec::sent_as(&compression, &optimizer.clone().into(), variable));
        let sent: Vec<_> = sent.collect();
        lead(&chief, sync, optimizer, workers, compression).await;
        let mut all = Vec::new();
        for index in 0..workers {
            // Tasks of one process share a pool, as those of an embedded cluster do.
            let pool = if wire == Wire::InProcess { pools[0].clone() } else { wire.pool() };
            let identity = identity(&cluster, TaskId::worker(index));
            let config = WorkerConfig::default().client();
            let (transport, placement) = (transport(&pool), placement());
            let parameters =
                Parameters::connect(&transport, &identity, &placement, &variables, &pool, config);
            let mut parameters = parameters.await.expect("it serves");
            parameters.compress(&sent);
            let joined = parameters.join(sync).await.expect("it takes part");
            all.push(Worker { parameters, versions: joined.versions, pushed: 0 });
            if wire != Wire::InProcess {
                pools.push(pool);
            }
        }
        Self { chief, workers: all, pools, interrupt, ps }
    }

    /// Lets every worker push and pull once, at the same time.
    pub(crate) async fn exchange(&mut self) {
        futures_util::future::join_all(self.workers.iter_mut().map(Worker::exchange)).await;
    }

    /// Returns the size of all buffers of the pools, used or not.
    pub(crate) fn pooled_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.bytes_kept() + pool.bytes_used()).sum()
    }

    /// Ends all tasks.
    pub(crate) async fn end(self) {
        drop((self.workers, self.chief));
        self.interrupt.cancel();
        let _ = self.ps.await;
    }
}

fn identity(cluster: &ClusterSpec, task: TaskId) -> Identity {
    let cluster = cluster.clone();
    Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
}

/// Gives the orders of a chief.
async fn lead(
    chief: &Connection,
    sync: SyncSpec,
    optimizer: OptimizerSpec,
    workers: u32,
    compression: Vec<CompressionSpec>,
) {
    chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.expect("no other chief is there");
    let placement = placement();
    for &shard in &placement.shards {
        let create = CreateShard {
            job: 0,
            shard,
            placement: placement.clone(),
            variables: variables(),
            update: optimizer.clone().into(),
            compression: compression.clone(),
            sync,
            pipeline: 1,
            deterministic: false,
            workers,
            last_step: GlobalStep(1 << 20),
            seed: 0,
            start: StartSpec::Initialise,
        };
        chief.call::<ShardCreated>(create, Payload::EMPTY).await.expect("it holds its slices");
        for worker in 0..workers {
            let (incarnation, number) = (Incarnation(1), u64::from(worker) + 1);
            let appoint = Appoint { shard: shard.shard, worker, incarnation, number };
            chief.call::<Appointed>(appoint, Payload::EMPTY).await.expect("it obeys the chief");
        }
    }
}

/// Returns three variables of 1 MB or more, and a small one.
fn variables() -> Vec<VariableSpec> {
    let variable = |(name, shape): (&str, [usize; 2])| VariableSpec {
        name: name.into(),
        shape: shape.into(),
        dtype: DType::F32,
        initializer: InitializerSpec::Zeros,
        trainable: true,
        device: None,
    };
    [("split", [512, 1024]), ("a", [250, 1000]), ("b", [1000, 300]), ("bias", [1, 100])].map(variable).into()
}

/// Returns a placement with half of the first variable on each shard.
fn placement() -> Placement {
    let slice = |variable: u32, row: u64, rows: u64, shard: u32| PlacedSlice {
        slice: SliceSpec { variable: VariableId(variable), row, rows },
        shard: ShardId::new(0, shard),
    };
    let slices = vec![
        slice(0, 0, 256, 0),
        slice(0, 256, 256, 1),
        slice(1, 0, 250, 0),
        slice(2, 0, 1000, 1),
        slice(3, 0, 1, 0),
    ];
    let shards = (0..SHARDS).map(|shard| ShardId::new(0, shard)).collect();
    Placement { epoch: PlacementEpoch(1), shards, slices }
}
