//! A simulated chief and a simulated ps task, with a worker that is connected to both.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{
    Incarnation, JobName, PlacementEpoch, ShardId, SliceId, TaskId, VariableId, Version,
};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::message::{
    Go, Message, Pulled, Push, Pushed, RefusalCode, Registered, Report, Reported, Verdict,
};
use pushpull_messages::observe::{Micros, Observed, PushTimes, TaskSnapshot, TaskState, TraceSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::buffer::{Buffer, Segment};
use pushpull_transport::{InProcess, Listener, Peer, Reply, Server, ServerConfig, Service, Tcp, serve};

use super::super::*;

const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const SHARDS: [ShardId; 2] = [ShardId::new(0, 0), ShardId::new(0, 1)];
pub(super) const BATCH: u32 = 16;
/// The difference between clocks, one hour: the chief's clock is ahead of the worker's clock by this time,
/// and the ps task's clock is behind the worker's clock by the same time.
pub(super) const AHEAD_US: Micros = 3_600_000_000;

/// Returns a job that trains a linear model of two features (a plane). Its two variables are the kernel and
/// the bias.
pub(super) fn job(last_step: u64) -> JobSpec {
    let mut g = GraphBuilder::new("plane");
    let (features, labels) = (g.input("features", [2]), g.input("labels", []));
    let kernel = g.variable("kernel", [2, 1], InitializerSpec::Zeros);
    let bias = g.variable("bias", [1], InitializerSpec::Zeros);
    let x = g.matmul(features, kernel);
    let x = g.bias_add(x, bias);
    let x = g.reshape(x, []);
    let loss = g.mean_squared_error(x, labels);
    let points = |examples| {
        let (seed, weights) = (examples, vec![1.5, -0.5]);
        DatasetSpec::Linear { seed, examples, weights, bias: 1.0, noise: 0.0 }
    };
    g.summary_scalar("own/loss", loss);
    g.summary_histogram("kernel", kernel);
    let graph = g.finish(loss, &[("error", loss)]).unwrap();
    let input = InputSpec::new(points(50), points(37));
    JobSpec { batch_size: BATCH, ..JobSpec::new(graph, input, last_step) }
}

/// Places one variable on each shard.
fn placement(job: &JobSpec) -> Placement {
    let placed = |(id, &shard): (usize, &ShardId)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id as u32), &job.graph.variables[id]),
        shard,
    };
    let slices = SHARDS.iter().enumerate().map(placed).collect();
    Placement { epoch: PlacementEpoch(1), shards: SHARDS.to_vec(), slices }
}

/// A simulated chief.
pub(super) struct Chief {
    registered: Registered,
    pub(super) clock: Clock,
    words: Mutex<Words>,
}

#[derive(Default)]
pub(super) struct Words {
    /// True if the chief answers a `Ready` message at once with `Go`. If false, the worker waits until the
    /// test calls [`Chief::go`].
    go: bool,
    pub(super) ready: Option<Reply>,
    pub(super) stop: Option<String>,
    pub(super) reports: Vec<Report>,
    /// True if the chief answers no reports. It collects them in `unheard` until the test calls
    /// [`Chief::hear`].
    pub(super) deaf: bool,
    pub(super) unheard: Vec<(Report, Reply)>,
    pub(super) finish: Option<Finish>,
    /// True if the chief tells a worker that has finished training to evaluate the final values.
    pub(super) evaluate: bool,
}

impl Chief {
    pub(super) fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap()
    }

    pub(super) fn go(&self) {
        let ready = self.words().ready.take().expect("it is ready");
        ready.send(Go {}, Payload::EMPTY);
    }

    /// Answers the reports collected in `unheard`, and lets the chief answer later reports at once.
    pub(super) fn hear(&self) {
        let mut words = self.words();
        words.deaf = false;
        for (report, reply) in std::mem::take(&mut words.unheard) {
            self.take(&mut words, report, reply);
        }
    }

    fn take(&self, words: &mut Words, report: Report, reply: Reply) {
        words.reports.push(report);
        let (stop, clock_us) = (words.stop.clone(), self.clock.now() + AHEAD_US);
        reply.send(Reported { stop, clock_us }, Payload::EMPTY);
    }
}

impl Service for Chief {
    fn call(&self, _: &Peer, message: Message, _: Payload, reply: Reply) {
        let mut words = self.words();
        match message {
            Message::Register(_) => reply.send(self.registered.clone(), Payload::EMPTY),
            Message::Ready(_) if words.go => reply.send(Go {}, Payload::EMPTY),
            Message::Ready(_) => words.ready = Some(reply),
            Message::Report(report) if words.deaf => words.unheard.push((*report, reply)),
            Message::Report(report) => self.take(&mut words, *report, reply),
            Message::Finish(finish) => {
                let (step, evaluate) = (self.registered.job.last_step, words.evaluate);
                words.finish = Some(*finish);
                reply.send(Finished { evaluate, step }, Payload::EMPTY);
            }
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }
}

/// The simulated shards. Each has one variable, which it updates by plain gradient descent.
struct Shards {
    last_step: GlobalStep,
    learning_rate: f32,
    values: Mutex<[Vec<f32>; 2]>,
    /// For each push that the first shard applied: the number of batches that the worker had drawn from its
    /// input when it sent the push.
    drawn: Mutex<Vec<u64>>,
    clock: Clock,
    versions: Mutex<[u64; 2]>,
    /// The pushes that a shard received at version `keep_from` or later. They are withheld, that is, neither
    /// applied nor answered, until the test calls [`Play::release`].
    kept: Mutex<Vec<(Push, Payload, Reply)>>,
    keep_from: AtomicU64,
}

impl Shards {
    fn push(&self, push: Push, gradient: Payload, reply: Reply) {
        let received_us = self.clock.now() - AHEAD_US;
        let mut versions = self.versions.lock().unwrap();
        let version = &mut versions[push.shard as usize];
        if *version >= self.keep_from.load(Ordering::Relaxed) {
            return self.kept.lock().unwrap().push((push, gradient, reply));
        }
        *version += 1;
        let shard = push.shard as usize;
        for (value, slope) in
            self.values.lock().unwrap()[shard].iter_mut().zip(gradient.segments()[0].as_f32())
        {
            *value -= self.learning_rate * slope;
        }
        if shard == 0 {
            self.drawn.lock().unwrap().push(push.drawn);
        }
        let taken_us = self.clock.now() - AHEAD_US;
        let (done_us, answered_us) = (taken_us, taken_us);
        let pushed = Pushed {
            verdict: Verdict::Applied,
            version: Version(*version),
            last_step: self.last_step,
            staleness: 1,
            times: push.traced.then_some(PushTimes { received_us, taken_us, done_us, answered_us }),
            slices: vec![SliceId(push.shard)],
        };
        reply.send(pushed, self.values(push.shard));
    }

    fn values(&self, shard: u32) -> Payload {
        let values = Buffer::from_f32(&self.values.lock().unwrap()[shard as usize]);
        Payload::new(vec![Segment::whole(Arc::new(values))])
    }
}

impl Service for Shards {
    fn call(&self, _: &Peer, message: Message, payload: Payload, reply: Reply) {
        let (last_step, step) = (self.last_step, GlobalStep(0));
        match message {
            Message::Pull(pull) => {
                let version = Version(self.versions.lock().unwrap()[pull.shard as usize]);
                let slices = vec![SliceId(pull.shard)];
                reply.send(Pulled { version, step, last_step, slices }, self.values(pull.shard));
            }
            Message::Push(push) => self.push(*push, payload, reply),
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }
}

pub(super) struct Play {
    pub(super) chief: Arc<Chief>,
    shards: Arc<Shards>,
    _servers: [Server; 2],
    pub(super) view: WorkerView,
    pub(super) life: Life,
    pub(super) interrupt: CancellationToken,
    ended: tokio::task::JoinHandle<Result<(), WorkerError>>,
}

/// The settings of a simulated run.
pub(super) struct Script {
    pub(super) job: JobSpec,
    /// The initial values of both variables.
    pub(super) start: [Vec<f32>; 2],
    pub(super) learning_rate: f32,
    /// A shard that has reached this version withholds pushes: it neither applies nor answers them.
    pub(super) keep_from: u64,
    pub(super) go: bool,
    pub(super) config: WorkerConfig,
    pub(super) tcp: bool,
}

impl Default for Script {
    fn default() -> Self {
        let config = WorkerConfig { report_every: Duration::from_millis(5), ..Default::default() };
        let start = [vec![0.0; 2], vec![0.0]];
        Self { job: job(7), start, learning_rate: 0.0, keep_from: u64::MAX, go: true, config, tcp: false }
    }
}

impl Play {
    async fn start(script: Script) -> Self {
        let Script { job, start, learning_rate, keep_from, go, config, tcp } = script;
        let (placement, last_step) = (placement(&job), job.last_step);
        let transport: Arc<dyn Transport> = match tcp {
            true => Arc::new(Tcp::new(BufferPool::default())),
            false => Arc::new(InProcess::new()),
        };
        let listen = async |address: &str| -> Box<dyn Listener> {
            transport.listen(if tcp { "127.0.0.1:0" } else { address }).await.unwrap()
        };
        let listeners = [listen("c:1").await, listen("p:1").await];
        let [chief, ps] = [0, 1].map(|at: usize| listeners[at].address());
        let jobs =
            [(JobName::Chief, vec![chief]), (JobName::Ps, vec![ps]), (JobName::Worker, vec!["w:1".into()])];
        let cluster = ClusterSpec::new(jobs).unwrap();
        let identity = |task| Identity {
            task,
            incarnation: Incarnation(5),
            cluster: cluster.clone(),
            graph: None,
            http: None,
            nonce: 0,
        };
        let trace = Some(TraceSpec { every: 3, ops: 1 });
        let resume = Resume { drawn: 4, ..Default::default() };
        let summary_every = Some(2);
        let registered =
            Registered { job, placement, workers: 1, resume, saves: false, summary_every, trace };
        let words = Mutex::new(Words { go, ..Default::default() });
        let clock = Clock::start();
        let chief = Arc::new(Chief { registered, clock, words });
        let shards = Arc::new(Shards {
            last_step,
            learning_rate,
            values: Mutex::new(start),
            drawn: Mutex::default(),
            clock,
            versions: Mutex::new([0; 2]),
            kept: Mutex::default(),
            keep_from: AtomicU64::new(keep_from),
        });
        let services: [Arc<dyn Service>; 2] = [chief.clone(), shards.clone()];
        let [first, second] = listeners;
        let [to_chief, to_ps] = services;
        let shards_config = ServerConfig { shards: 2, ..Default::default() };
        let servers = [
            serve(first, identity(TaskId::CHIEF), to_chief, ServerConfig::default()),
            serve(second, identity(TaskId::ps(0)), to_ps, shards_config),
        ];
        let interrupt = CancellationToken::new();
        let (task, pool) = (identity(TaskId::worker(0)), BufferPool::default());
        let worker = Worker::new(config, task, Arc::clone(&transport), pool, interrupt.clone()).unwrap();
        let (view, life) = (worker.view(), worker.life.clone());
        assert_eq!(view.observe().await.state, TaskState::Starting);
        let ended = actix_rt::spawn(worker.run());
        Self { chief, shards, _servers: servers, view, life, interrupt, ended }
    }

    pub(super) async fn end(&mut self) -> Result<(), WorkerError> {
        tokio::time::timeout(PATIENCE, &mut self.ended).await.expect("an end within a minute").unwrap()
    }

    /// Waits until `is_so` returns true, then returns a snapshot of the worker.
    pub(super) async fn see(&self, is_so: impl Fn(&Self) -> bool) -> TaskSnapshot {
        let waits = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.expect("it is so within a minute");
        self.view.observe().await
    }

    /// Applies and answers all withheld pushes, and lets the shards answer later pushes at once.
    pub(super) fn release(&self) {
        self.shards.keep_from.store(u64::MAX, Ordering::Relaxed);
        let kept = std::mem::take(&mut *self.shards.kept.lock().unwrap());
        kept.into_iter().for_each(|(push, gradient, reply)| self.shards.push(push, gradient, reply));
    }

    /// Returns, for each push that the first shard applied, the number of batches that the worker had drawn
    /// from its input when it sent the push.
    pub(super) fn drawn(&self) -> Vec<u64> {
        self.shards.drawn.lock().unwrap().clone()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.shards.kept.lock().unwrap().len() == SHARDS.len()
    }
}

pub(super) fn play<F: Future<Output = ()>>(script: Script, test: impl FnOnce(Play) -> F) {
    actix_rt::System::new().block_on(async { test(Play::start(script).await).await });
}
