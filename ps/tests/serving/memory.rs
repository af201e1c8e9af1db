//! Tests that clients that do not read their replies do not fill the memory of a ps task.

use pushpull_messages::tensor::DType;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::wire::{Envelope, Limits};
use pushpull_transport::{Link, ServerConfig, Tcp};

use super::*;

/// The size of the variable, in rows of 1 KiB.
const ROWS: usize = 4 << 10;
pub(super) const VALUES_BYTES: usize = ROWS << 10;
/// The number of clients that push at the same time. The cluster has one more worker.
pub(super) const CLIENTS: u32 = 64;
/// The bound for the memory of the task: the values and the next ones, the values that replies keep, and the
/// gradients in flight.
pub(super) const BYTES_BOUND: usize = (3 + 2 + 2) * VALUES_BYTES;
/// The number of pushes of each client.
pub(super) const PUSHES: u64 = 3;

/// A ps task with one shard, which serves on a socket.
pub(super) struct TcpTask {
    pub(super) address: String,
    pub(super) cluster: ClusterSpec,
    /// The memory of the task: its values, and the gradients that it receives.
    pool: BufferPool,
    pub(super) placement: Placement,
    pub(super) view: PsView,
}

impl TcpTask {
    /// Starts a task. The replies that are being written may keep two versions of the values in memory, and
    /// as many gradients may be in flight.
    pub(super) async fn start() -> Self {
        let workers = (0..=CLIENTS).map(|worker| format!("w:{}", worker + 1)).collect::<Vec<_>>();
        let workers = workers.iter().map(String::as_str).collect();
        let addresses =
            [(JobName::Chief, vec!["c:1"]), (JobName::Ps, vec!["p:1"]), (JobName::Worker, workers)];
        let cluster = ClusterSpec::new(addresses).unwrap();
        let pool = BufferPool::default();
        let listener = Tcp::new(pool.clone()).listen("127.0.0.1:0").await.unwrap();
        let bytes = 2 * VALUES_BYTES as u64;
        let server = ServerConfig { in_flight_bytes_max: bytes, ..ServerConfig::default() };
        let config = PsConfig { reply_bytes_max: bytes, server, ..PsConfig::default() };
        let ps = Ps::start(config, identity(&cluster, TaskId::ps(0)), listener, &pool).unwrap();
        let (address, view) = (ps.address().to_owned(), ps.view());
        actix_rt::spawn(ps.run(CancellationToken::new()));
        let (shard, slice) =
            (ShardId::new(0, 0), SliceSpec { variable: VariableId(0), row: 0, rows: ROWS as u64 });
        let placement = Placement {
            epoch: PlacementEpoch(1),
            shards: vec![shard],
            slices: vec![PlacedSlice { slice, shard }],
        };
        Self { address, cluster, pool, placement, view }
    }

    /// Returns the bytes of the buffers that the task uses and of those that it keeps for reuse.
    pub(super) fn bytes(&self) -> usize {
        self.pool.bytes_used() + self.pool.bytes_kept()
    }

    pub(super) async fn call(&self, task: TaskId) -> Connection {
        let identity = identity(&self.cluster, task);
        let tcp = Tcp::default();
        dial(&tcp, &self.address, &identity, TaskId::ps(0), Patience::of(PATIENCE)).await.unwrap()
    }

    /// Creates the shard of a job in which a worker may have `pipeline` pushes in flight.
    pub(super) async fn create(&self, chief: &Connection, pipeline: u32) {
        let (name, shape) = ("x".to_owned(), [ROWS, 256].into());
        let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
        let create = CreateShard {
            job: 0,
            shard: ShardId::new(0, 0),
            placement: self.placement.clone(),
            variables: vec![VariableSpec {
                name,
                shape,
                dtype: DType::F32,
                initializer,
                trainable: true,
                device: None,
            }],
            update: OptimizerSpec::sgd(0.1).into(),
            compression: Vec::new(),
            sync: SyncSpec::ASYNC,
            pipeline,
            deterministic: false,
            workers: CLIENTS + 1,
            last_step: GlobalStep(1000),
            seed: 1,
            start: StartSpec::Initialise,
        };
        chief.call::<Claimed>(Claim { attempt: 1 }, Payload::EMPTY).await.unwrap();
        chief.call::<ShardCreated>(create, Payload::EMPTY).await.unwrap();
        for worker in 0..=CLIENTS {
            let (incarnation, number) = (Incarnation(1), u64::from(worker) + 1);
            let appoint = Appoint { shard: 0, worker, incarnation, number };
            chief.call::<Appointed>(appoint, Payload::EMPTY).await.unwrap();
        }
    }

    pub(super) fn push(&self, worker: u32, number: u64) -> Push {
        Push { placement_digest: self.placement.digest(), ..push_of(worker, 0, number) }
    }

    /// Pushes as a client that does not read its replies. Returns the connection, so that it stays open.
    async fn push_only(&self, worker: u32, gradient: &Payload) -> Link {
        let task = TaskId::worker(worker);
        let mut link = Tcp::default().dial(&self.address).await.unwrap();
        let hello = identity(&self.cluster, task).hello(TaskId::ps(0));
        let envelope = |request, message, payload| Envelope { request: RequestId(request), message, payload };
        link.sender.send(envelope(0, hello.into(), Payload::EMPTY)).await.unwrap();
        let welcome = link.receiver.receive().await.unwrap().unwrap();
        assert!(matches!(welcome.message, Message::Welcome(_)), "{welcome:?}");
        link.receiver.trust(Limits::default(), None);
        for number in 1..=PUSHES {
            let push = self.push(worker, number).into();
            link.sender.send(envelope(number, push, gradient.clone())).await.unwrap();
        }
        link
    }
}

/// A fast worker goes on meanwhile.
#[test]
fn replies_that_nobody_reads_keep_few_versions() {
    run(async {
        let task = TcpTask::start().await;
        let (chief, fast) = (task.call(TaskId::CHIEF).await, task.call(TaskId::worker(CLIENTS)).await);
        task.create(&chief, 1).await;
        let (epoch, placement_digest) = (PlacementEpoch(1), task.placement.digest());
        let pull = Pull { shard: 0, epoch, placement_digest, at: PullAt::Join, averages: false };
        fast.call::<Pulled>(pull, Payload::EMPTY).await.unwrap();
        let gradient = Payload::new(vec![Segment::whole(Arc::new(Buffer::zeroed(VALUES_BYTES)))]);
        let mut links = Vec::new();
        for worker in 0..CLIENTS {
            links.push(task.push_only(worker, &gradient).await);
        }
        // A push that was overtaken by others for too long is refused with the request to send it again,
        // which these clients never read.
        let all = u64::from(CLIENTS) * PUSHES;
        let applied = loop {
            let observe = chief.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
            let (ShardSnapshot { pushes, .. }, _) = observe.await.unwrap();
            if pushes.applied + pushes.refused >= all {
                break pushes.applied;
            }
        };
        for number in 1..=PUSHES {
            let push = task.push(CLIENTS, number);
            let (pushed, values) = fast.call::<Pushed>(push, gradient.clone()).await.unwrap();
            assert!(pushed.verdict == Verdict::Applied && pushed.version.0 >= applied + number, "{pushed:?}");
            assert_eq!(values.bytes(), VALUES_BYTES);
        }
        let bytes = task.bytes();
        assert!(bytes <= BYTES_BOUND, "{} versions in memory", bytes / VALUES_BYTES);
        drop(links);
    });
}
