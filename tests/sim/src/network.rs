//! A simulated network. It carries envelopes with a latency, in order, as TCP does; links break, and hosts
//! are cut off from each other for a while, in one direction or both.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_transport::buffer::Budget;
use pushpull_transport::wire::{Envelope, Limits, WireError};
use pushpull_transport::{FrameReceiver, FrameSender, Link, Listener, Transport, TransportError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::random::Random;
use crate::trace::Trace;

/// The largest number of envelopes on the way in one direction of a link.
const ON_THE_WAY_MAX: usize = 64;
/// The largest number of links that wait to be accepted.
const BACKLOG_MAX: usize = 64;
/// How long a peer may be silent before it counts as lost, as the default of the TCP transport.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// A network with its hosts, one for each task.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

struct Shared {
    trace: Trace,
    latency: [Duration; 2],
    state: Mutex<State>,
}

struct State {
    random: Random,
    listeners: BTreeMap<String, (TaskId, mpsc::Sender<Link>)>,
    /// The links that were made, with both ends. A link that has ended stays in the list.
    links: Vec<([TaskId; 2], CancellationToken)>,
    /// For each direction that is blocked: until when.
    blocked: BTreeMap<(TaskId, TaskId), Instant>,
    /// How often each task was started. The network serves only the newest start of a task.
    starts: BTreeMap<TaskId, u64>,
}

impl Network {
    /// Makes a network whose envelopes take a time within `latency` to arrive.
    pub fn new(seed: u64, latency: [Duration; 2], trace: Trace) -> Self {
        let state = State {
            random: Random::new(seed),
            listeners: BTreeMap::new(),
            links: Vec::new(),
            blocked: BTreeMap::new(),
            starts: BTreeMap::new(),
        };
        Self(Arc::new(Shared { trace, latency, state: Mutex::new(state) }))
    }

    /// Returns the transport of a task that starts now.
    pub fn join(&self, task: TaskId) -> Host {
        let starts = &mut self.0.state.lock().starts;
        let start = starts.entry(task).or_default();
        *start += 1;
        Host { network: self.clone(), task, start: *start }
    }

    /// Breaks all links of a task that was killed, and closes its sockets.
    pub fn kill(&self, task: TaskId) {
        let mut state = self.0.state.lock();
        *state.starts.entry(task).or_default() += 1;
        state.listeners.retain(|_, (host, _)| *host != task);
        state.links.retain(|(ends, broken)| {
            let dies = ends.contains(&task);
            if dies {
                broken.cancel();
            }
            !dies
        });
    }

    /// Breaks all links between two tasks. They may dial each other again at once.
    pub fn cut(&self, one: TaskId, other: TaskId) {
        self.0.state.lock().links.retain(|(ends, broken)| {
            let dies = ends.contains(&one) && ends.contains(&other);
            if dies {
                broken.cancel();
            }
            !dies
        });
    }

    /// Holds everything that `from` sends to `to` for a time. It arrives afterwards, as TCP sends again.
    pub fn block(&self, from: TaskId, to: TaskId, time: Duration) {
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

    fn blocked_until(&self, from: TaskId, to: TaskId) -> Option<Instant> {
        self.0.state.lock().blocked.get(&(from, to)).copied().filter(|&until| until > Instant::now())
    }

    /// Waits until `at`, and then until nothing holds what `from` sends to `to`.
    async fn arrive(&self, from: TaskId, to: TaskId, at: Instant) {
        sleep_until(at).await;
        while let Some(until) = self.blocked_until(from, to) {
            // A block may be healed early, so the wait has short steps.
            sleep_until(until.min(Instant::now() + Duration::from_millis(100))).await;
        }
    }

    fn is_current(&self, task: TaskId, start: u64) -> bool {
        self.0.state.lock().starts.get(&task) == Some(&start)
    }
}

/// The transport of one start of a task.
#[derive(Clone)]
pub struct Host {
    network: Network,
    task: TaskId,
    start: u64,
}

impl Host {
    /// Makes both ends of a link to `peer`.
    fn link(&self, peer: TaskId) -> [Link; 2] {
        let broken = CancellationToken::new();
        self.network.0.state.lock().links.push(([self.task, peer], broken.clone()));
        let (here, there) = (self.task, peer);
        let (out, at_peer) = mpsc::channel(ON_THE_WAY_MAX);
        let (back, at_home) = mpsc::channel(ON_THE_WAY_MAX);
        let end = |from: TaskId, to: TaskId, sender, receiver| Link {
            sender: Box::new(Sender {
                network: self.network.clone(),
                broken: broken.clone(),
                last: Instant::now(),
                sender,
            }),
            receiver: Box::new(Receiver {
                ends: (to, from),
                network: self.network.clone(),
                broken: broken.clone(),
                heard: Instant::now(),
                next: None,
                receiver,
            }),
            peer: to.to_string(),
        };
        [end(here, there, out, at_home), end(there, here, back, at_peer)]
    }
}

impl Transport for Host {
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        async move {
            let (sender, links) = mpsc::channel(BACKLOG_MAX);
            let mut state = self.network.0.state.lock();
            if state.listeners.get(address).is_some_and(|(_, sender)| !sender.is_closed()) {
                return Err(TransportError::InUse { address: address.to_owned() });
            }
            state.listeners.insert(address.to_owned(), (self.task, sender));
            Ok(Box::new(Socket { address: address.to_owned(), links }) as Box<dyn Listener>)
        }
        .boxed()
    }

    fn streams(&self) -> bool {
        true
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        async move {
            let failed = |kind: ErrorKind| TransportError::io(address, kind.into());
            let peer = self.network.0.state.lock().listeners.get(address).map(|(peer, _)| *peer);
            let arrival = self.network.arrival();
            match peer {
                Some(peer) => self.network.arrive(self.task, peer, arrival).await,
                None => sleep_until(arrival).await,
            }
            if !self.network.is_current(self.task, self.start) {
                return Err(failed(ErrorKind::NetworkDown));
            }
            let found = self.network.0.state.lock().listeners.get(address).cloned();
            let (peer, listener) = found.ok_or_else(|| failed(ErrorKind::ConnectionRefused))?;
            let [here, there] = self.link(peer);
            listener.try_send(there).map_err(|_| failed(ErrorKind::ConnectionRefused))?;
            Ok(here)
        }
        .boxed()
    }
}

struct Socket {
    address: String,
    links: mpsc::Receiver<Link>,
}

impl Listener for Socket {
    fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Link>> {
        async move {
            match self.links.recv().await {
                Some(link) => Ok(link),
                None => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

struct Sender {
    network: Network,
    broken: CancellationToken,
    /// When the last envelope arrives. No later envelope arrives earlier.
    last: Instant,
    sender: mpsc::Sender<(Instant, Envelope)>,
}

fn reset() -> WireError {
    Error::from(ErrorKind::ConnectionReset).into()
}

impl FrameSender for Sender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            let sent = async {
                envelope.payload.ready().await?;
                let place = self.sender.reserve().await.map_err(|_| reset())?;
                self.last = self.last.max(self.network.arrival());
                place.send((self.last, envelope));
                Ok(())
            };
            tokio::select! {
                biased;
                () = self.broken.cancelled() => Err(reset()),
                sent = sent => sent,
            }
        }
        .boxed()
    }
}

struct Receiver {
    /// Who sends, and who receives.
    ends: (TaskId, TaskId),
    network: Network,
    broken: CancellationToken,
    /// When the peer was heard last.
    heard: Instant,
    /// The next envelope, if it is known but has not arrived; `None` in it is the end of the link.
    next: Option<(Instant, Option<Envelope>)>,
    receiver: mpsc::Receiver<(Instant, Envelope)>,
}

impl Receiver {
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
            self.wait().await?;
            let envelope = self.next.take().and_then(|(_, envelope)| envelope);
            self.heard = Instant::now();
            let (from, to) = self.ends;
            let what = envelope.as_ref().map_or("end of link", |envelope| envelope.message.name());
            if what != "Heartbeat" {
                self.network.0.trace.add(format!("{from} > {to}: {what}"));
            }
            Ok(envelope)
        }
        .boxed()
    }

    fn trust(&mut self, _: Limits, _: Option<Budget>) {
        // Payloads are shared memory, so nothing is allocated for them here.
    }
}
