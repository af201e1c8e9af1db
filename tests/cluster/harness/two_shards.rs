//! A ps task with two shards in the test's own process. The test gives the orders of the chief.

use std::sync::Arc;
use std::time::Duration;

use pushpull::{OptimizerSpec, PsConfig, PsError, SyncSpec};
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{Connection, Identity, InProcess, Patience, Transport, dial};
use pushpull_worker::{Parameters, WorkerConfig};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::PATIENCE;

/// A ps task whose shards have one variable of two elements each. The variables begin with 0, and each update
/// subtracts its gradient. There is one worker.
pub(crate) struct TwoShards {
    transport: Arc<dyn Transport>,
    cluster: ClusterSpec,
    chief: Connection,
    variables: Vec<VariableSpec>,
    pub(crate) placement: Placement,
    interrupt: CancellationToken,
    ps: JoinHandle<Result<(), PsError>>,
}

impl TwoShards {
    /// Starts the task, and creates its shards with this synchronisation policy.
    pub(crate) async fn create(sync: SyncSpec) -> Self {
        Self::create_with(sync, 1).await
    }

    /// Does the same for a job in which the worker may have `pipeline` steps in flight.
    pub(crate) async fn create_with(sync: SyncSpec, pipeline: u32) -> Self {
        let addresses = [(JobName::Chief, "c:1"), (JobName::Ps, "p:1"), (JobName::Worker, "w:1")];
        let cluster = ClusterSpec::new(addresses.map(|(job, address)| (job, vec![address])));
        let cluster = cluster.expect("a cluster");
        let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
        let interrupt = CancellationToken::new();
        let listener = transport.listen("p:1").await.expect("a free address");
        // With this short timeout, the ps ends at the interrupt as soon as the chief is gone.
        let config = PsConfig { shards: 2, chief_lease: Duration::from_millis(1), ..Default::default() };
        let of_ps = identity(&cluster, TaskId::ps(0), 1);
        let ps = pushpull_ps::Ps::start(config, of_ps, listener, &BufferPool::default()).expect("it starts");
        let ps = actix_rt::spawn(ps.run(interrupt.clone()));
        let chief = call(&transport, &cluster, TaskId::CHIEF).await;
        chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.expect("no other chief is there");
        let (variables, placement) = variables();
        for &shard in &placement.shards {
            let create = CreateShard { pipeline, ..create_shard(shard, &placement, &variables, sync) };
            chief.call::<ShardCreated>(create, Payload::EMPTY).await.expect("it holds its slice");
        }
        Self { transport, cluster, chief, variables, placement, interrupt, ps }
    }

    /// Lets this incarnation of the worker join.
    pub(crate) async fn appoint(&self, life: u64) {
        for shard in 0..2 {
            let appoint = Appoint { shard, worker: 0, incarnation: Incarnation(life), number: life };
            self.chief.call::<Appointed>(appoint, Payload::EMPTY).await.expect("it obeys the chief");
        }
    }

    /// Connects the first incarnation of the worker.
    pub(crate) async fn worker(&self) -> Connection {
        call(&self.transport, &self.cluster, TaskId::worker(0)).await
    }

    /// Connects the client of this incarnation of the worker.
    pub(crate) async fn parameters(&self, life: u64) -> Parameters {
        let config = WorkerConfig::default().client();
        let identity = identity(&self.cluster, TaskId::worker(0), life);
        let pool = BufferPool::default();
        Parameters::connect(&self.transport, &identity, &self.placement, &self.variables, &pool, config)
            .await
            .expect("it serves")
    }

    /// Ends the task.
    pub(crate) async fn end(self) {
        drop(self.chief);
        self.interrupt.cancel();
        let _ = self.ps.await;
    }
}

/// Returns a valid order to create the first shard of ps 0.
pub(crate) fn create_order() -> CreateShard {
    let (variables, placement) = variables();
    create_shard(placement.shards[0], &placement, &variables, SyncSpec::ASYNC)
}

/// Returns gradients of 1 for all elements, one payload for each shard.
pub(crate) fn ones(parameters: &Parameters) -> Vec<Payload> {
    let mut gradients = parameters.gradients();
    (0..2).for_each(|variable| gradients.variable_mut(VariableId(variable)).fill(1.0));
    gradients.into_payloads()
}

fn identity(cluster: &ClusterSpec, task: TaskId, life: u64) -> Identity {
    let (incarnation, cluster) = (Incarnation(life), cluster.clone());
    Identity { task, incarnation, cluster, graph: None, http: None, nonce: 0 }
}

async fn call(transport: &Arc<dyn Transport>, cluster: &ClusterSpec, task: TaskId) -> Connection {
    let identity = identity(cluster, task, 1);
    dial(&**transport, "p:1", &identity, TaskId::ps(0), Patience::of(PATIENCE)).await.expect("it serves")
}

/// Returns two variables, and a placement with one of them on each of two shards.
fn variables() -> (Vec<VariableSpec>, Placement) {
    let variable = |name: &str| VariableSpec {
        name: name.into(),
        shape: [1, 2].into(),
        dtype: DType::F32,
        initializer: InitializerSpec::Zeros,
        trainable: true,
        device: None,
    };
    let shards = [0, 1].map(|shard| ShardId::new(0, shard));
    let slice = |id: u32| SliceSpec { variable: VariableId(id), row: 0, rows: 1 };
    let placed = |id: u32| PlacedSlice { slice: slice(id), shard: shards[id as usize] };
    let slices = vec![placed(0), placed(1)];
    let placement = Placement { epoch: PlacementEpoch(1), shards: shards.to_vec(), slices };
    (vec![variable("a"), variable("b")], placement)
}

fn create_shard(
    shard: ShardId,
    placement: &Placement,
    variables: &[VariableSpec],
    sync: SyncSpec,
) -> CreateShard {
    CreateShard {
        job: 0,
        shard,
        placement: placement.clone(),
        variables: variables.to_vec(),
        update: OptimizerSpec::sgd(1.0).into(),
        compression: Vec::new(),
        sync,
        pipeline: 1,
        deterministic: false,
        workers: 1,
        last_step: GlobalStep(100),
        seed: 0,
        start: StartSpec::Initialise,
    }
}
