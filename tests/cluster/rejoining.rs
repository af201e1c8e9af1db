//! Tests a worker that joins again after it died in the middle of a push. One shard has the gradient of the
//! push, the other shard does not, and there is no other worker.

use std::sync::Arc;
use std::time::Duration;

use pushpull::{OptimizerSpec, PsConfig, SyncSpec};
use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::variable::{InitializerSpec, VariableSpec};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};
use pushpull_transport::{Identity, InProcess, Patience, Transport, dial};
use pushpull_worker::{Parameters, WorkerConfig};
use tokio_util::sync::CancellationToken;

use crate::harness::PATIENCE;

/// Returns two variables, and a placement with one of them on each of two shards.
fn variables() -> (Vec<VariableSpec>, Placement) {
    let variable = |name: &str| VariableSpec {
        name: name.into(),
        shape: [1, 2].into(),
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

fn create(shard: ShardId, placement: &Placement, variables: &[VariableSpec], sync: SyncSpec) -> CreateShard {
    CreateShard {
        job: 0,
        shard,
        placement: placement.clone(),
        variables: variables.to_vec(),
        update: OptimizerSpec::sgd(1.0).into(),
        sync,
        deterministic: false,
        workers: 1,
        last_step: GlobalStep(100),
        seed: 0,
        start: StartSpec::Initialise,
    }
}

/// Returns the push of the first incarnation, which reaches only one shard.
fn first_push(placement: &Placement) -> Push {
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: placement.epoch,
        placement_digest: placement.digest(),
        version: Version(0),
        slices: vec![SliceId(0)],
        drawn: 1,
        pull: true,
        traced: false,
    }
}

/// The versions of the shards after a push, and the number of shards that received it.
type Step = ([u64; 2], usize);

/// Lets a worker die and join again. Checks its first steps, in which it must bring both shards to the same
/// version: `begun` are the versions when the first incarnation has died.
async fn rejoin(sync: SyncSpec, begun: [u64; 2], steps: &[Step]) {
    let addresses = [(JobName::Chief, "c:1"), (JobName::Ps, "p:1"), (JobName::Worker, "w:1")];
    let spec = ClusterSpec::new(addresses.map(|(job, address)| (job, vec![address]))).expect("a cluster");
    let identity = |task: TaskId, life: u64| Identity {
        task,
        incarnation: Incarnation(life),
        cluster: spec.clone(),
        graph: None,
        http: None,
        nonce: 0,
    };
    let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
    let (pool, interrupt, task) = (BufferPool::default(), CancellationToken::new(), TaskId::ps(0));
    let listener = transport.listen("p:1").await.expect("a free address");
    // With this short timeout, the ps ends at the interrupt as soon as the chief is gone.
    let config = PsConfig { shards: 2, chief_lease: Duration::from_millis(1), ..Default::default() };
    let ps = pushpull_ps::Ps::start(config, identity(task, 1), listener, &pool).expect("a ps");
    let ps = actix_rt::spawn(ps.run(interrupt.clone()));
    let call = |as_task: TaskId| {
        let (transport, identity) = (Arc::clone(&transport), identity(as_task, 1));
        async move { dial(&*transport, "p:1", &identity, task, Patience::of(PATIENCE)).await.expect("it serves") }
    };
    let (variables, placement) = variables();
    let chief = call(TaskId::CHIEF).await;
    chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.expect("no other chief is there");
    for &shard in &placement.shards {
        let create = create(shard, &placement, &variables, sync);
        chief.call::<ShardCreated>(create, Payload::EMPTY).await.expect("it holds its slice");
    }
    let appoint = async |life: u64| {
        for shard in 0..2 {
            let appoint = Appoint { shard, worker: 0, incarnation: Incarnation(life), number: life };
            chief.call::<Appointed>(appoint, Payload::EMPTY).await.expect("it obeys the chief");
        }
    };
    appoint(1).await;
    // The push of the first incarnation reaches only one shard.
    let first = call(TaskId::worker(0)).await;
    let push = first_push(&placement);
    let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0, 1.0])))]);
    let (pushed, _) = first.call::<Pushed>(push, gradient).await.expect("it is taken");
    assert_eq!(pushed.version.0, begun[0]);
    drop(first);
    appoint(2).await;
    let config = WorkerConfig::default().client();
    let second = identity(TaskId::worker(0), 2);
    let mut second = Parameters::connect(&transport, &second, &placement, &variables, &pool, config)
        .await
        .expect("it serves");
    let mut latest = second.join(sync, 1).await.expect("it takes part");
    assert_eq!(latest.versions, begun.map(Version));
    for (step, &(versions, pushes)) in (0..).zip(steps) {
        let mut gradients = second.gradients();
        (0..2).for_each(|variable| gradients.variable_mut(VariableId(variable)).fill(1.0));
        let payloads = gradients.into_payloads();
        let pushed = second.push_pull(payloads, LocalStep(step), step + 1, &latest.versions, false);
        latest = pushed.await.expect("it is taken");
        assert_eq!(latest.versions, versions.map(Version));
        assert_eq!(latest.verdicts, vec![Verdict::Held; pushes]);
    }
    for variable in [0, 1].map(VariableId) {
        assert_eq!(latest.values.variable(variable), [-3.0, -3.0], "three updates on each shard");
    }
    drop(chief);
    interrupt.cancel();
    let _ = ps.await;
}

#[test]
fn a_shard_that_lags_behind_is_brought_to_the_others_step() {
    actix_rt::System::new().block_on(async {
        let steps = [([1, 1], 1), ([2, 2], 2), ([3, 3], 2)];
        let rejoin = rejoin(SyncSpec::SYNC, [1, 0], &steps);
        tokio::time::timeout(PATIENCE, rejoin).await.expect("no task waits forever");
    });
}

#[test]
fn a_shard_that_lacks_a_repeated_gradient_gets_it() {
    actix_rt::System::new().block_on(async {
        // An update has two gradients, and the first shard has one of them from the first incarnation.
        let sync = SyncSpec::Sync { aggregate: Some(2) };
        let steps = [([1, 0], 2), ([1, 1], 1), ([1, 1], 2), ([2, 2], 2), ([2, 2], 2), ([3, 3], 2)];
        let rejoin = rejoin(sync, [0, 0], &steps);
        tokio::time::timeout(PATIENCE, rejoin).await.expect("no task waits forever");
    });
}
