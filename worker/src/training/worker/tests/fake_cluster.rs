//! A simulated chief and a simulated ps task, with a worker that is connected to both.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::{
    GlobalStep, Incarnation, JobName, PlacementEpoch, ShardId, SliceId, TaskId, VariableId, Version,
};
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{
    Evaluated, Finish, Finished, Go, Message, Pulled, Push, Pushed, Refusal, RefusalCode, Registered, Report,
    Reported, Resume, Verdict,
};
use pushpull_messages::observe::{Clock, Micros, Observed, PushTimes, TaskSnapshot, TaskState, TraceSpec};
use pushpull_messages::placement::{PlacedSlice, Placement, SliceSpec};
use pushpull_messages::variable::InitializerSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};
use pushpull_transport::{
    Identity, InProcess, Listener, Peer, Reply, Server, ServerConfig, Service, Tcp, Transport, serve,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::Worker;
use crate::config::WorkerConfig;
use crate::error::WorkerError;
use crate::telemetry::WorkerView;

const PATIENCE: Duration = Duration::from_secs(60);
/// The first incarnation of the worker.
pub(super) const FIRST: Incarnation = Incarnation(5);
/// The number of batches drawn at the position where the worker continues first.
pub(super) const DRAWN: u64 = 4;
/// The position at which the worker continues after the job has rolled back at a [`RollBackAt`].
pub(super) const RESUME_AGAIN: Resume = Resume { drawn: 9, examples: 16, files: None };
const ROLLED_BACK: &str = "the job has rolled back to step 0";
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
fn placement(job: &JobSpec, epoch: PlacementEpoch) -> Placement {
    let placed = |(id, &shard): (usize, &ShardId)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id as u32), &job.graph.variables[id]),
        shard,
    };
    let slices = SHARDS.iter().enumerate().map(placed).collect();
    Placement { epoch, shards: SHARDS.to_vec(), slices }
}

/// A simulated chief.
pub(super) struct Chief {
    registered: Registered,
    pub(super) clock: Clock,
    words: Mutex<Words>,
    shards: Arc<Shards>,
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
    /// The incarnation of the worker in each `Finish` message.
    pub(super) finished: Vec<Incarnation>,
    /// True if the chief tells a worker that has finished training to evaluate the final values.
    pub(super) evaluate: bool,
    pub(super) evaluated: Option<Evaluated>,
    /// True if the chief withholds the reply to a worker that has finished, in `waiting`.
    pub(super) withhold: bool,
    pub(super) waiting: Option<Reply>,
    /// The incarnation of the worker in each `Register` message, and the incarnation that it names as the
    /// one before.
    pub(super) registered: Vec<(Incarnation, Option<Incarnation>)>,
    /// When each of these messages arrived.
    pub(super) registered_at: Vec<Instant>,
    /// True if the chief refuses each `Register` message, because the job has rolled back once more.
    pub(super) refuses_all: bool,
    /// The incarnations of the worker whose connections have ended.
    pub(super) disconnected: Vec<Incarnation>,
}

impl Chief {
    pub(super) fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap()
    }

    pub(super) fn go(&self) {
        let ready = self.words().ready.take().expect("it is ready");
        ready.send(Go {}, Payload::EMPTY);
    }

    /// Lets the worker begin as soon as it is ready, from now on.
    pub(super) fn go_at_once(&self) {
        self.words().go = true;
    }

    /// Tells the worker that has finished, and waits for the reply, to evaluate.
    pub(super) fn let_evaluate(&self) {
        let (waiting, step) =
            (self.words().waiting.take().expect("it has finished"), self.registered.job.last_step);
        waiting.send(Finished { evaluate: true, step }, Payload::EMPTY);
    }

    /// Returns the job for an incarnation of the worker, which is then the current one.
    fn register(&self, incarnation: Incarnation) -> Registered {
        let mut timeline = self.shards.timeline();
        timeline.current = Some(incarnation);
        let placement = placement(&self.registered.job, timeline.epoch);
        Registered { placement, resume: timeline.resume, ..self.registered.clone() }
    }

    /// Answers the reports collected in `unheard`, and lets the chief answer later reports at once.
    pub(super) fn hear(&self) {
        let mut words = self.words();
        words.deaf = false;
        for (report, reply) in take(&mut words.unheard) {
            self.take(&mut words, report, reply);
        }
    }

    fn take(&self, words: &mut Words, report: Report, reply: Reply) {
        words.reports.push(report);
        let (stop, clock_us) = (words.stop.clone(), self.clock.now() + AHEAD_US);
        reply.send(Reported { stop, clock_us, share: None }, Payload::EMPTY);
    }
}

impl Service for Chief {
    fn call(&self, peer: &Peer, message: Message, _: Payload, reply: Reply) {
        if let Message::Register(register) = &message {
            let mut words = self.words();
            words.registered.push((peer.incarnation, register.after));
            words.registered_at.push(Instant::now());
            if words.refuses_all {
                return refuse(reply);
            }
        }
        if self.shards.rolls_back_at(&message) || self.shards.has_ended(peer.incarnation) {
            return refuse(reply);
        }
        let mut words = self.words();
        match message {
            Message::Register(_) => reply.send(self.register(peer.incarnation), Payload::EMPTY),
            Message::Ready(_) if words.go => reply.send(Go {}, Payload::EMPTY),
            Message::Ready(_) => words.ready = Some(reply),
            Message::Report(report) if words.deaf => words.unheard.push((*report, reply)),
            Message::Report(report) => self.take(&mut words, *report, reply),
            Message::Finish(finish) => {
                let (step, evaluate) = (self.registered.job.last_step, words.evaluate);
                words.finish = Some(*finish);
                words.finished.push(peer.incarnation);
                match words.withhold {
                    true => words.waiting = Some(reply),
                    false => reply.send(Finished { evaluate, step }, Payload::EMPTY),
                }
            }
            Message::Evaluated(evaluated) => {
                words.evaluated = Some(*evaluated);
                let step = self.registered.job.last_step;
                reply.send(Finished { evaluate: false, step }, Payload::EMPTY);
            }
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.words().disconnected.push(peer.incarnation);
    }
}

fn refuse(reply: Reply) {
    reply.refuse(RefusalCode::RolledBack, ROLLED_BACK);
}

/// A request at which the simulated job rolls back.
#[derive(Clone, Copy, Default)]
pub(super) enum RollBackAt {
    #[default]
    Never,
    /// The handshake with the ps task.
    Connecting,
    /// The first request for which the function returns true.
    Request(fn(&Message) -> bool),
}

/// What the simulated tasks know of the times when the job rolled back.
struct Timeline {
    at: RollBackAt,
    epoch: PlacementEpoch,
    /// The position at which a worker that registers continues.
    resume: Resume,
    /// The incarnation of the worker that has registered last.
    current: Option<Incarnation>,
    /// The incarnations that registered before the job rolled back.
    ended: Vec<Incarnation>,
    /// The incarnations of the worker whose connections to the ps task have ended.
    disconnected: Vec<Incarnation>,
}

/// The simulated shards. Each has one variable, which it updates by plain gradient descent.
struct Shards {
    last_step: GlobalStep,
    learning_rate: f32,
    /// The values of each shard at all of its versions.
    values: Mutex<[Vec<Vec<f32>>; 2]>,
    /// For each push that the first shard applied: the incarnation of the worker, and the number of batches
    /// that the worker had drawn from its input when it sent the push.
    drawn: Mutex<Vec<(Incarnation, u64)>>,
    clock: Clock,
    timeline: Mutex<Timeline>,
    /// The pushes that a shard received at version `keep_from` or later. They are withheld, that is, neither
    /// applied nor answered, until the test calls [`Play::release`].
    kept: Mutex<Vec<(Push, Payload, Reply)>>,
    keep_from: AtomicU64,
}

impl Shards {
    fn push(&self, push: Push, gradient: Payload, reply: Reply) {
        let received_us = self.clock.now() - AHEAD_US;
        let version = self.version(push.shard);
        if version >= self.keep_from.load(Ordering::Relaxed) {
            return self.kept.lock().unwrap().push((push, gradient, reply));
        }
        let shard = push.shard as usize;
        let stopped = version >= self.last_step.0;
        let next = {
            let values = self.values.lock().unwrap();
            let last = values[shard].last().expect("the initial values").iter();
            let slopes = gradient.segments()[0].as_f32();
            last.zip(slopes).map(|(value, slope)| value - self.learning_rate * slope).collect()
        };
        if !stopped {
            self.values.lock().unwrap()[shard].push(next);
        }
        if shard == 0 && !stopped {
            self.drawn.lock().unwrap().push((push.id.incarnation, push.drawn));
        }
        let taken_us = self.clock.now() - AHEAD_US;
        let (done_us, answered_us) = (taken_us, taken_us);
        let pushed = Pushed {
            verdict: if stopped { Verdict::Stopped } else { Verdict::Applied },
            version: Version(self.version(push.shard)),
            last_step: self.last_step,
            staleness: 1,
            times: push.traced.then_some(PushTimes { received_us, taken_us, done_us, answered_us }),
            slices: vec![SliceId(push.shard)],
        };
        reply.send(pushed, self.values(push.shard));
    }

    fn values(&self, shard: u32) -> Payload {
        let values = self.values.lock().unwrap();
        let values = Buffer::from_f32(values[shard as usize].last().expect("the initial values"));
        Payload::new(vec![Segment::whole(Arc::new(values))])
    }

    fn version(&self, shard: u32) -> u64 {
        self.values.lock().unwrap()[shard as usize].len() as u64 - 1
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap()
    }

    fn has_ended(&self, incarnation: Incarnation) -> bool {
        self.timeline().ended.contains(&incarnation)
    }

    /// Rolls the job back to the initial values if `message` is the request at which this happens. Returns
    /// true if so.
    fn rolls_back_at(&self, message: &Message) -> bool {
        let at = self.timeline().at;
        let now = matches!(at, RollBackAt::Request(is_it) if is_it(message));
        if now {
            self.roll_back(0, RESUME_AGAIN);
        }
        now
    }

    /// Rolls the job back to `version`. The worker then continues at `resume`. Pushes that wait are neither
    /// answered nor applied any more.
    fn roll_back(&self, version: usize, resume: Resume) {
        let mut timeline = self.timeline();
        timeline.at = RollBackAt::Never;
        timeline.epoch = timeline.epoch.next();
        timeline.resume = resume;
        let ended = timeline.current.take();
        timeline.ended.extend(ended);
        self.keep_from.store(u64::MAX, Ordering::Relaxed);
        self.values.lock().unwrap().iter_mut().for_each(|values| values.truncate(version + 1));
    }
}

impl Service for Shards {
    fn admit(&self, _: &Peer) -> Result<(), Refusal> {
        if !matches!(self.timeline().at, RollBackAt::Connecting) {
            return Ok(());
        }
        self.roll_back(0, RESUME_AGAIN);
        Err(Refusal::new(RefusalCode::RolledBack, ROLLED_BACK))
    }

    fn call(&self, _: &Peer, message: Message, payload: Payload, reply: Reply) {
        let (last_step, step) = (self.last_step, GlobalStep(0));
        let now = self.rolls_back_at(&message);
        let epoch = self.timeline().epoch;
        match message {
            _ if now => refuse(reply),
            Message::Pull(pull) if pull.epoch < epoch => refuse(reply),
            Message::Push(push) if push.epoch < epoch => refuse(reply),
            Message::Pull(pull) => {
                let version = Version(self.version(pull.shard));
                let slices = vec![SliceId(pull.shard)];
                reply.send(Pulled { version, step, last_step, slices }, self.values(pull.shard));
            }
            Message::Push(push) => self.push(*push, payload, reply),
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.timeline().disconnected.push(peer.incarnation);
    }
}

pub(super) struct Play {
    pub(super) chief: Arc<Chief>,
    shards: Arc<Shards>,
    transport: Arc<dyn Transport>,
    cluster: ClusterSpec,
    _chief: Server,
    /// The server of the ps task; `None` while the task is down.
    ps: Option<Server>,
    pub(super) view: WorkerView,
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
    pub(super) saves: bool,
    pub(super) roll_back_at: RollBackAt,
    /// False if the ps task is down at first.
    pub(super) ps_runs: bool,
    pub(super) config: WorkerConfig,
    pub(super) tcp: bool,
}

impl Default for Script {
    fn default() -> Self {
        let config = WorkerConfig { report_every: Duration::from_millis(5), ..Default::default() };
        let start = [vec![0.0; 2], vec![0.0]];
        let (keep_from, roll_back_at) = (u64::MAX, RollBackAt::Never);
        Self {
            job: job(7),
            start,
            learning_rate: 0.0,
            keep_from,
            go: true,
            saves: false,
            roll_back_at,
            ps_runs: true,
            config,
            tcp: false,
        }
    }
}

impl Play {
    async fn start(script: Script) -> Self {
        let Script { job, start, learning_rate, keep_from, go, saves, roll_back_at, ps_runs, config, tcp } =
            script;
        let (epoch, last_step) = (PlacementEpoch(1), job.last_step);
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
        let trace = Some(TraceSpec { every: 3, ops: 1 });
        let resume = Resume { drawn: DRAWN, ..Default::default() };
        let (summary_every, placement) = (Some(2), placement(&job, epoch));
        let saves_in_memory = false;
        let registered = Registered {
            job,
            placement,
            workers: 1,
            share: None,
            resume,
            saves,
            saves_in_memory,
            summary_every,
            trace,
            begun: false,
        };
        let words = Mutex::new(Words { go, ..Default::default() });
        let clock = Clock::start();
        let (at, current, ended, disconnected) = (roll_back_at, None, Vec::new(), Vec::new());
        let shards = Arc::new(Shards {
            last_step,
            learning_rate,
            values: Mutex::new(start.map(|values| vec![values])),
            drawn: Mutex::default(),
            clock,
            timeline: Mutex::new(Timeline { at, epoch, resume, current, ended, disconnected }),
            kept: Mutex::default(),
            keep_from: AtomicU64::new(keep_from),
        });
        let own = Arc::clone(&shards);
        let chief = Arc::new(Chief { registered, clock, words, shards: own });
        let [first, second] = listeners;
        let identity = |task| identity(&cluster, task, FIRST);
        let to_chief: Arc<dyn Service> = chief.clone();
        let _chief = serve(first, identity(TaskId::CHIEF), to_chief, ServerConfig::default());
        let ps = ps_runs.then(|| serve_shards(second, identity(TaskId::ps(0)), &shards));
        let interrupt = CancellationToken::new();
        let (task, pool) = (identity(TaskId::worker(0)), BufferPool::default());
        let worker = Worker::new(config, task, Arc::clone(&transport), pool, interrupt.clone()).unwrap();
        let view = worker.view();
        assert_eq!(view.observe().await.state, TaskState::Starting);
        let ended = actix_rt::spawn(worker.run());
        Self { chief, shards, transport, cluster, _chief, ps, view, interrupt, ended }
    }

    /// Returns true if this incarnation of the worker has closed its connections to both tasks.
    pub(super) fn is_disconnected(&self, incarnation: Incarnation) -> bool {
        let of_chief = self.chief.words().disconnected.contains(&incarnation);
        of_chief && self.shards.timeline().disconnected.contains(&incarnation)
    }

    /// Lets a shard that has reached `version` withhold pushes, from now on.
    pub(super) fn keep_from(&self, version: u64) {
        self.shards.keep_from.store(version, Ordering::Relaxed);
    }

    /// Stops the ps task. Requests that wait are not answered.
    pub(super) async fn stop_ps(&mut self) {
        self.ps.take().expect("it runs").stop().await;
    }

    /// Starts the ps task again, as another incarnation.
    pub(super) async fn start_ps(&mut self) {
        let identity = identity(&self.cluster, TaskId::ps(0), Incarnation(6));
        let address = self.cluster.address(TaskId::ps(0)).expect("it is in the cluster").to_string();
        let listener = self.transport.listen(&address).await.unwrap();
        self.ps = Some(serve_shards(listener, identity, &self.shards));
    }

    /// Rolls the job back to `version`, and refuses all requests that wait.
    pub(super) fn roll_back(&self, version: usize, resume: Resume) {
        self.shards.roll_back(version, resume);
        let mut words = self.chief.words();
        let waiting = words.ready.take().into_iter().chain(words.waiting.take());
        let kept = take(&mut *self.shards.kept.lock().unwrap());
        waiting.chain(kept.into_iter().map(|(.., reply)| reply)).for_each(refuse);
    }

    /// Rolls the job back at the first request for which `is_it` returns true, from now on.
    pub(super) fn roll_back_at(&self, is_it: fn(&Message) -> bool) {
        self.shards.timeline().at = RollBackAt::Request(is_it);
    }

    /// Returns the current values of both variables.
    pub(super) fn values(&self) -> [Vec<f32>; 2] {
        let values = self.shards.values.lock().unwrap();
        [0, 1].map(|shard: usize| values[shard].last().expect("the initial values").clone())
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
        let kept = take(&mut *self.shards.kept.lock().unwrap());
        kept.into_iter().for_each(|(push, gradient, reply)| self.shards.push(push, gradient, reply));
    }

    /// Returns, for each push that the first shard applied, the number of batches that the worker had drawn
    /// from its input when it sent the push.
    pub(super) fn drawn(&self) -> Vec<u64> {
        self.shards.drawn.lock().unwrap().iter().map(|(_, drawn)| *drawn).collect()
    }

    /// Returns the same as [`drawn`](Self::drawn) for the pushes of one incarnation of the worker.
    pub(super) fn drawn_by(&self, incarnation: Incarnation) -> Vec<u64> {
        let drawn = self.shards.drawn.lock().unwrap();
        drawn.iter().filter(|(by, _)| *by == incarnation).map(|(_, drawn)| *drawn).collect()
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.pushes_kept() == SHARDS.len()
    }

    /// Returns the number of withheld pushes to all shards.
    pub(super) fn pushes_kept(&self) -> usize {
        self.shards.kept.lock().unwrap().len()
    }

    /// Returns the sequence numbers of the withheld pushes to the first shard, in the order of their arrival.
    pub(super) fn sequences_kept(&self) -> Vec<u64> {
        self.kept(|push| push.id.sequence.0)
    }

    /// Returns the versions from which the withheld pushes to the first shard were computed.
    pub(super) fn versions_kept(&self) -> Vec<Version> {
        self.kept(|push| push.version)
    }

    fn kept<T>(&self, of: impl Fn(&Push) -> T) -> Vec<T> {
        let kept = self.shards.kept.lock().unwrap();
        kept.iter().filter(|(push, ..)| push.shard == 0).map(|(push, ..)| of(push)).collect()
    }
}

fn identity(cluster: &ClusterSpec, task: TaskId, incarnation: Incarnation) -> Identity {
    Identity { task, incarnation, cluster: cluster.clone(), graph: None, http: None, nonce: 0 }
}

fn serve_shards(listener: Box<dyn Listener>, identity: Identity, shards: &Arc<Shards>) -> Server {
    let service: Arc<dyn Service> = shards.clone();
    serve(listener, identity, service, ServerConfig { shards: 2, drain_ms: 1, ..Default::default() })
}

pub(super) fn play<F: Future<Output = ()>>(script: Script, test: impl FnOnce(Play) -> F) {
    actix_rt::System::new().block_on(async { test(Play::start(script).await).await });
}
