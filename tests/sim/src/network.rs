//! A simulated network. It carries envelopes with a latency, in order, as TCP does; links break, and hosts
//! are cut off from each other for a while, in one direction or both.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::Message;
use pushpull_transport::buffer::{Payload, Share};
use pushpull_transport::wire::{Envelope, Limits, WireError};
use pushpull_transport::{
    Accepted, Begun, FrameReceiver, FrameSender, Link, Listener, Sink, Transport, TransportError,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::layout::Layout;
use crate::machine::Machine;
use crate::random::Random;
use crate::trace::Trace;
use crate::witness::Witness;

/// The largest number of envelopes on the way in one direction of a link.
const ON_THE_WAY_MAX: usize = 64;
/// The largest number of links that wait to be accepted.
const BACKLOG_MAX: usize = 64;
/// How long a peer may be silent before it counts as lost, as the default of the TCP transport.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// A network with its hosts, one for each process.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

struct Shared {
    trace: Trace,
    witness: Witness,
    latency: [Duration; 2],
    layout: Layout,
    state: Mutex<State>,
}

struct State {
    random: Random,
    listeners: BTreeMap<String, Listening>,
    /// The links that were made, with the hosts of both ends. A link that has ended stays in the list.
    links: Vec<([TaskId; 2], CancellationToken)>,
    /// For each direction between two hosts that is blocked: until when.
    blocked: BTreeMap<(TaskId, TaskId), Instant>,
    /// The machine of the newest start of each host.
    machines: BTreeMap<TaskId, Machine>,
    /// The shards that hang: they take up no request.
    hung: BTreeSet<(TaskId, u32)>,
}

/// A host that listens at an address.
#[derive(Clone)]
struct Listening {
    host: TaskId,
    machine: Machine,
    links: mpsc::Sender<Link>,
}

impl Network {
    /// Makes a network whose envelopes take a time within `latency` to arrive.
    pub fn new(seed: u64, latency: [Duration; 2], layout: Layout, trace: Trace, witness: Witness) -> Self {
        let state = State {
            random: Random::new(seed),
            listeners: BTreeMap::new(),
            links: Vec::new(),
            blocked: BTreeMap::new(),
            machines: BTreeMap::new(),
            hung: BTreeSet::new(),
        };
        Self(Arc::new(Shared { trace, witness, latency, layout, state: Mutex::new(state) }))
    }

    /// Returns the transport of a process that starts now, on a machine of its own.
    pub fn join(&self, host: TaskId) -> Host {
        let machine = Machine::default();
        let mut state = self.0.state.lock();
        state.machines.insert(host, machine.clone());
        state.hung.retain(|(hung, _)| self.host_of(*hung) != host);
        drop(state);
        Host { network: self.clone(), task: host, host, machine }
    }

    fn host_of(&self, task: TaskId) -> TaskId {
        self.0.layout.host_of(task)
    }

    /// Sees that a message has arrived, or the end of a link if there is none.
    pub fn saw(&self, from: TaskId, to: TaskId, envelope: Option<&Envelope>) {
        let what = envelope.map_or("end of link", |envelope| envelope.message.name());
        if what != "Heartbeat" {
            self.0.trace.arrived(from, to, what);
        }
        if let Some(envelope) = envelope {
            self.0.witness.saw(from, to, envelope);
        }
    }

    /// Returns the witness of all messages.
    pub fn witness(&self) -> &Witness {
        &self.0.witness
    }

    /// Stops the machine of a task for a time.
    pub fn stop(&self, task: TaskId, time: Duration) {
        if let Some(machine) = self.0.state.lock().machines.get(&self.host_of(task)) {
            machine.stop(time);
        }
    }

    /// Sets the wall clock of a task's machine to a time since 1970.
    pub fn set_clock(&self, task: TaskId, time: Duration) {
        if let Some(machine) = self.0.state.lock().machines.get(&self.host_of(task)) {
            machine.set_clock(time);
        }
    }

    /// Makes a shard of the current start of a ps task hang: requests to it are lost from now on, although
    /// its task lives.
    pub fn hang(&self, task: TaskId, shard: u32) {
        self.0.state.lock().hung.insert((task, shard));
    }

    /// Returns whether a message to a task is for a shard that hangs.
    pub fn is_hung(&self, to: TaskId, message: &Message) -> bool {
        let shard = match message {
            Message::CreateShard(create) => create.shard.shard,
            Message::Push(push) => push.shard,
            Message::Pull(pull) => pull.shard,
            Message::Leave(leave) => leave.shard,
            Message::Inspect(inspect) => inspect.shard,
            Message::Appoint(appoint) => appoint.shard,
            Message::Observe(observe) => observe.shard,
            Message::Save(save) => save.shard,
            Message::StopAt(stop) => stop.shard,
            Message::HoldAt(hold) => hold.shard,
            Message::SetLearningRate(set) => set.shard,
            _ => return false,
        };
        self.0.state.lock().hung.contains(&(to, shard))
    }

    /// Returns whether the machine of a task is stopped.
    pub fn is_stopped(&self, task: TaskId) -> bool {
        let state = self.0.state.lock();
        state.machines.get(&self.host_of(task)).is_some_and(|machine| machine.stopped_until().is_some())
    }

    /// Breaks all links of a process that was killed, and closes its sockets.
    pub fn kill(&self, host: TaskId) {
        let mut state = self.0.state.lock();
        if let Some(machine) = state.machines.remove(&host) {
            machine.kill();
        }
        state.listeners.retain(|_, listening| listening.host != host);
        state.links.retain(|(ends, broken)| {
            let dies = ends.contains(&host);
            if dies {
                broken.cancel();
            }
            !dies
        });
    }

    /// Closes the port of a process that has ended.
    pub fn close(&self, host: TaskId) {
        self.0.state.lock().listeners.retain(|_, listening| listening.host != host);
    }

    /// Breaks all links between the processes of two tasks. They may dial each other again at once. Has no
    /// effect on tasks of the same process.
    pub fn cut(&self, one: TaskId, other: TaskId) {
        let (one, other) = (self.host_of(one), self.host_of(other));
        if one == other {
            return;
        }
        self.0.state.lock().links.retain(|(ends, broken)| {
            let dies = ends.contains(&one) && ends.contains(&other);
            if dies {
                broken.cancel();
            }
            !dies
        });
    }

    /// Holds everything that the process of `from` sends to the process of `to` for a time. It arrives
    /// afterwards, as TCP sends again. Has no effect on tasks of the same process.
    pub fn block(&self, from: TaskId, to: TaskId, time: Duration) {
        let (from, to) = (self.host_of(from), self.host_of(to));
        let until = Instant::now() + time;
        let blocked = &mut self.0.state.lock().blocked;
        let known = blocked.entry((from, to)).or_insert(until);
        *known = until.max(*known);
    }

    /// Ends all blocks.
    pub fn heal(&self) {
        self.0.state.lock().blocked.clear();
    }

    /// Returns the time at which an envelope that is sent now arrives, if nothing holds it.
    fn arrival(&self) -> Instant {
        let [least, most] = self.0.latency.map(|time| time.as_micros() as u64);
        let micros = self.0.state.lock().random.between(least, most);
        Instant::now() + Duration::from_micros(micros)
    }

    /// Draws the time between two pieces of a payload.
    fn pause(&self) -> Duration {
        let mut state = self.0.state.lock();
        let micros = match state.random.between(0, 99) {
            0 => state.random.between(100_000, 800_000),
            1..20 => state.random.between(0, 2_000),
            _ => 0,
        };
        Duration::from_micros(micros)
    }

    /// Draws the size of the next piece of a payload, in bytes.
    fn piece(&self) -> usize {
        self.0.state.lock().random.between(1, 64) as usize
    }

    fn blocked_until(&self, from: TaskId, to: TaskId) -> Option<Instant> {
        self.0.state.lock().blocked.get(&(from, to)).copied().filter(|&until| until > Instant::now())
    }

    /// Waits until `at`, and then until nothing holds what the process `from` sends to the process `to`.
    async fn arrive(&self, from: TaskId, to: TaskId, at: Instant) {
        sleep_until(at).await;
        while let Some(until) = self.blocked_until(from, to) {
            // A block may be healed early, so the wait has short steps.
            sleep_until(until.min(Instant::now() + Duration::from_millis(100))).await;
        }
    }
}

/// The transport of one start of a task.
#[derive(Clone)]
pub struct Host {
    network: Network,
    task: TaskId,
    /// The process that runs the task.
    host: TaskId,
    machine: Machine,
}

impl Host {
    /// Returns the machine on which the task runs.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the transport of a task of the same process.
    #[must_use]
    pub fn of(&self, task: TaskId) -> Self {
        Self { task, ..self.clone() }
    }

    /// Returns the task.
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Returns the network.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// Begins a link within the process. The token is cancelled when the process is killed.
    pub fn begin_link(&self) -> CancellationToken {
        let broken = CancellationToken::new();
        self.network.0.state.lock().links.push(([self.host; 2], broken.clone()));
        broken
    }

    /// Makes both ends of a link to the process `peer`.
    fn link(&self, peer: TaskId, at_peer: &Machine) -> [Link; 2] {
        let broken = CancellationToken::new();
        self.network.0.state.lock().links.push(([self.host, peer], broken.clone()));
        let (here, there) = (self.host, peer);
        let tasks = Tasks { dials: self.task, host: peer, named: Arc::default() };
        let (out, arrives) = mpsc::channel(ON_THE_WAY_MAX);
        let (back, comes_back) = mpsc::channel(ON_THE_WAY_MAX);
        let end = |from: TaskId, to: TaskId, machine: &Machine, sender, receiver| Link {
            sender: Box::new(Sender {
                network: self.network.clone(),
                machine: machine.clone(),
                broken: broken.clone(),
                last: Instant::now(),
                sender,
            }),
            receiver: Box::new(Receiver {
                ends: (to, from),
                tasks: tasks.clone(),
                network: self.network.clone(),
                machine: machine.clone(),
                broken: broken.clone(),
                heard: Instant::now(),
                next: None,
                receiver,
                payload: Payload::EMPTY,
            }),
            peer: to.to_string(),
            proven: None,
        };
        [end(here, there, &self.machine, out, comes_back), end(there, here, at_peer, back, arrives)]
    }
}

impl Transport for Host {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        async move {
            let (sender, links) = mpsc::channel(BACKLOG_MAX);
            let mut state = self.network.0.state.lock();
            // A task whose machine is stopped is started again on another machine, with the same name.
            let runs = |held: &Listening| !held.links.is_closed() && held.machine.stopped_until().is_none();
            if state.listeners.get(address).is_some_and(runs) {
                return Err(TransportError::InUse { address: address.to_owned() });
            }
            let listening = Listening { host: self.host, machine: self.machine.clone(), links: sender };
            state.listeners.insert(address.to_owned(), listening);
            let machine = self.machine.clone();
            Ok(Box::new(Socket { address: address.to_owned(), machine, links }) as Box<dyn Listener>)
        }
        .boxed()
    }

    fn streams(&self) -> bool {
        true
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        async move {
            let failed = |kind: ErrorKind| TransportError::io(address, kind.into());
            self.machine.running().await;
            let peer = self.network.0.state.lock().listeners.get(address).map(|peer| peer.host);
            let arrival = self.network.arrival();
            match peer {
                Some(peer) => self.network.arrive(self.host, peer, arrival).await,
                None => sleep_until(arrival).await,
            }
            self.machine.running().await;
            if self.machine.is_killed() {
                return Err(failed(ErrorKind::NetworkDown));
            }
            let found = self.network.0.state.lock().listeners.get(address).cloned();
            let peer = found.ok_or_else(|| failed(ErrorKind::ConnectionRefused))?;
            let [here, there] = self.link(peer.host, &peer.machine);
            peer.links.try_send(there).map_err(|_| failed(ErrorKind::ConnectionRefused))?;
            Ok(here)
        }
        .boxed()
    }
}

struct Socket {
    address: String,
    machine: Machine,
    links: mpsc::Receiver<Link>,
}

impl Listener for Socket {
    fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Accepted>> {
        async move {
            let Some(link) = self.links.recv().await else { return std::future::pending().await };
            self.machine.running().await;
            Ok(link.into())
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

struct Sender {
    network: Network,
    machine: Machine,
    broken: CancellationToken,
    /// When the last envelope arrives. No later envelope arrives earlier.
    last: Instant,
    sender: mpsc::Sender<(Instant, Envelope)>,
}

/// Returns the error of a link that broke.
pub fn reset() -> WireError {
    Error::from(ErrorKind::ConnectionReset).into()
}

impl FrameSender for Sender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            let sent = async {
                self.machine.running().await;
                envelope.payload.ready().await?;
                let place = self.sender.reserve().await.map_err(|_| reset())?;
                self.last = self.last.max(self.network.arrival());
                place.send((self.last, envelope));
                Ok(())
            };
            let sent = tokio::select! {
                biased;
                () = self.broken.cancelled() => Err(reset()),
                sent = sent => sent,
            };
            // A stopped machine does not notice that a link broke.
            self.machine.running().await;
            sent
        }
        .boxed()
    }
}

/// The tasks at the ends of a link.
#[derive(Clone)]
struct Tasks {
    /// The task that has dialled.
    dials: TaskId,
    /// The process that was dialled.
    host: TaskId,
    /// The task of that process that the first message of the link names.
    named: Arc<OnceLock<TaskId>>,
}

impl Tasks {
    /// Learns from a message which task of the process was dialled.
    fn learn(&self, layout: Layout, message: &Message) {
        if let Message::Hello(hello) = message
            && let Some(to) = hello.to.filter(|to| layout.tasks_on(self.host).contains(to))
        {
            let _ = self.named.set(to);
        }
    }

    /// Returns the tasks that send and receive what the process `to` receives.
    fn ends(&self, to: TaskId) -> (TaskId, TaskId) {
        let answers = self.named.get().copied().unwrap_or(self.host);
        if to == self.host { (self.dials, answers) } else { (answers, self.dials) }
    }
}

struct Receiver {
    /// The process that sends, and the one that receives.
    ends: (TaskId, TaskId),
    tasks: Tasks,
    network: Network,
    machine: Machine,
    broken: CancellationToken,
    /// When the peer was heard last.
    heard: Instant,
    /// The next envelope, if it is known but has not arrived; `None` in it is the end of the link.
    next: Option<(Instant, Option<Envelope>)>,
    receiver: mpsc::Receiver<(Instant, Envelope)>,
    /// The payload that is still to be read.
    payload: Payload,
}

impl Receiver {
    /// Waits for the next piece of a payload: mostly for a moment, rarely until others stop waiting for it.
    async fn pause(&self) -> Result<(), WireError> {
        let at = Instant::now() + self.network.pause();
        let (from, to) = self.ends;
        tokio::select! {
            biased;
            () = self.broken.cancelled() => return Err(reset()),
            () = self.network.arrive(from, to, at) => {}
        }
        self.machine.running().await;
        Ok(())
    }

    /// Waits until the next envelope has arrived, without taking it.
    async fn wait(&mut self) -> Result<(), WireError> {
        let (from, to) = self.ends;
        let next = async {
            if self.next.is_none() {
                self.next = Some(match self.receiver.recv().await {
                    Some((at, envelope)) => (at, Some(envelope)),
                    None => (self.network.arrival(), None),
                });
            }
            let at = self.next.as_ref().map_or_else(Instant::now, |(at, _)| *at);
            self.network.arrive(from, to, at).await;
            Ok(())
        };
        let broken = async {
            self.broken.cancelled().await;
            self.network.arrive(from, to, self.network.arrival()).await;
            Err(reset())
        };
        tokio::select! {
            biased;
            arrived = next => arrived,
            broken = broken => broken,
            () = sleep_until(self.heard + LOST_AFTER) => Err(WireError::Silent(LOST_AFTER.as_secs())),
        }
    }
}

impl FrameReceiver for Receiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        async move {
            let ((from, to), envelope) = loop {
                let arrived = self.wait().await;
                self.machine.running().await;
                arrived?;
                let envelope = self.next.take().and_then(|(_, envelope)| envelope);
                self.heard = Instant::now();
                if let Some(envelope) = &envelope {
                    self.tasks.learn(self.network.0.layout, &envelope.message);
                }
                let (from, to) = self.tasks.ends(self.ends.1);
                if !envelope.as_ref().is_some_and(|envelope| self.network.is_hung(to, &envelope.message)) {
                    break ((from, to), envelope);
                }
            };
            self.network.saw(from, to, envelope.as_ref());
            Ok(envelope)
        }
        .boxed()
    }

    fn begin(&mut self) -> BoxFuture<'_, Result<Option<Begun>, WireError>> {
        async move {
            let Some(mut envelope) = self.receive().await? else { return Ok(None) };
            if envelope.payload.bytes() == 0 {
                return Ok(Some(Begun::Whole(envelope)));
            }
            let payload = std::mem::take(&mut envelope.payload);
            let lengths = payload.segments().iter().map(|segment| segment.len() as u64).collect();
            self.payload = payload;
            Ok(Some(Begun::Head { envelope, lengths }))
        }
        .boxed()
    }

    fn finish(&mut self, sink: Option<Box<dyn Sink>>) -> BoxFuture<'_, Result<Payload, WireError>> {
        async move {
            let payload = std::mem::take(&mut self.payload);
            let Some(mut sink) = sink else { return Ok(payload) };
            for segment in payload.segments() {
                let mut rest = segment.as_bytes();
                while !rest.is_empty() {
                    self.pause().await?;
                    let space = sink.space();
                    let piece = rest.len().min(space.len()).min(self.network.piece());
                    space[..piece].copy_from_slice(&rest[..piece]);
                    sink.filled(piece);
                    rest = &rest[piece..];
                }
            }
            sink.finish();
            Ok(Payload::TAKEN)
        }
        .boxed()
    }

    fn trust(&mut self, _: Limits, _: Option<Share>) {
        // Payloads are shared memory, so nothing is allocated for them here.
    }
}
