//! A transport that loses frames, doubles frames and cuts links as a test specifies, and a server that
//! echoes pushes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, FutureExt};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use tokio::sync::watch;

use crate::buffer::{BufferPool, Payload, Share};
use crate::wire::{Envelope, Limits, WireError};
use crate::{
    FrameReceiver, FrameSender, Identity, InProcess, Link, Listener, Peer, Reply, Server, ServerConfig,
    Service, Tcp, Transport, TransportError, serve,
};

pub(super) const PS: TaskId = TaskId::ps(0);

pub(super) fn identity(task: TaskId, incarnation: u64) -> Identity {
    let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:2"])];
    let cluster = ClusterSpec::new(jobs).unwrap();
    Identity { task, incarnation: Incarnation(incarnation), cluster, graph: None, http: None, nonce: 0 }
}

/// A service that answers a push with the push's version and payload, counts pushes, and holds back the reply
/// to the latest `Observe`.
#[derive(Default)]
pub(super) struct Echo {
    /// For each version, the number of pushes that arrived with this version.
    pub(super) pushed: Mutex<BTreeMap<u64, u32>>,
    pub(super) kept: Mutex<Vec<Reply>>,
    pub(super) refuses: Mutex<Option<Refusal>>,
    pub(super) came: tokio::sync::Notify,
}

impl Service for Echo {
    fn admit(&self, _: &Peer) -> Result<(), Refusal> {
        self.refuses.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn call(&self, _: &Peer, message: Message, payload: Payload, reply: Reply) {
        match message {
            Message::Push(push) => {
                *self.pushed.lock().unwrap().entry(push.version.0).or_default() += 1;
                let Push { version, slices, .. } = *push;
                let pushed = Pushed {
                    verdict: Verdict::Applied,
                    version,
                    last_step: GlobalStep(9),
                    slices,
                    staleness: 0,
                    times: None,
                };
                reply.send(pushed, payload);
            }
            // If a request arrives twice, the later copy gets the reply, and the earlier copy is refused as
            // superseded. A shard does the same when a worker has to wait.
            Message::Observe(_) => {
                let earlier = std::mem::replace(&mut *self.kept.lock().unwrap(), vec![reply]);
                earlier.into_iter().for_each(|earlier| earlier.send(Refusal::superseded(), Payload::EMPTY));
                self.came.notify_one();
            }
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }
}

/// The fate that a test chooses for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Drop,
    Double,
    Cut,
}

pub(super) type Judge = Box<dyn FnMut(&Message) -> Fate + Send>;

/// The faults that a test injects. `request` chooses the fate of each frame that the dialling end writes,
/// and `reply` the fate of each frame that the dialling end reads; handshakes, refusals and heartbeats
/// always pass.
pub(super) struct Faults {
    pub(super) request: Mutex<Judge>,
    pub(super) reply: Mutex<Judge>,
    /// A counter; all links are cut whenever it increases.
    pub(super) cuts: watch::Sender<u64>,
}

pub(super) struct Flaky {
    pub(super) inner: Arc<dyn Transport>,
    pub(super) faults: Arc<Faults>,
}

pub(super) struct FlakySender {
    pub(super) inner: Box<dyn FrameSender>,
    pub(super) faults: Arc<Faults>,
    pub(super) cut: watch::Receiver<u64>,
}

pub(super) struct FlakyReceiver {
    pub(super) inner: Box<dyn FrameReceiver>,
    pub(super) faults: Arc<Faults>,
    pub(super) cut: watch::Receiver<u64>,
    pub(super) again: Option<Envelope>,
}

impl Faults {
    pub(super) fn none() -> Arc<Self> {
        Self::on_replies(|_| Fate::Pass)
    }

    pub(super) fn on_replies(judge: impl FnMut(&Message) -> Fate + Send + 'static) -> Arc<Self> {
        let request: Judge = Box::new(|_| Fate::Pass);
        Arc::new(Self {
            request: Mutex::new(request),
            reply: Mutex::new(Box::new(judge)),
            cuts: watch::channel(0).0,
        })
    }

    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

pub(super) fn judge(judge: &Mutex<Judge>, message: &Message) -> Fate {
    match message {
        Message::Hello(_) | Message::Welcome(_) | Message::Refusal(_) | Message::Heartbeat(_) => Fate::Pass,
        message => judge.lock().unwrap()(message),
    }
}

pub(super) fn reset() -> WireError {
    WireError::Io(std::io::ErrorKind::ConnectionReset.into())
}

impl Transport for Flaky {
    fn streams(&self) -> bool {
        true
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        self.inner.listen(address)
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Link, TransportError>> {
        async move {
            let Link { sender, receiver, peer, proven } = self.inner.dial(address).await?;
            let faults = || (Arc::clone(&self.faults), self.faults.cuts.subscribe());
            let (of_sender, of_receiver) = (faults(), faults());
            Ok(Link {
                sender: Box::new(FlakySender { inner: sender, faults: of_sender.0, cut: of_sender.1 }),
                receiver: Box::new(FlakyReceiver {
                    inner: receiver,
                    faults: of_receiver.0,
                    cut: of_receiver.1,
                    again: None,
                }),
                peer,
                proven,
            })
        }
        .boxed()
    }
}

impl FrameSender for FlakySender {
    fn send(&mut self, envelope: Envelope) -> BoxFuture<'_, Result<(), WireError>> {
        async move {
            if self.cut.has_changed().unwrap_or(true) {
                return Err(reset());
            }
            match judge(&self.faults.request, &envelope.message) {
                Fate::Pass => self.inner.send(envelope).await,
                Fate::Drop => Ok(()),
                Fate::Double => {
                    self.inner.send(envelope.clone()).await?;
                    self.inner.send(envelope).await
                }
                Fate::Cut => Err(reset()),
            }
        }
        .boxed()
    }
}

impl FrameReceiver for FlakyReceiver {
    fn receive(&mut self) -> BoxFuture<'_, Result<Option<Envelope>, WireError>> {
        async move {
            if let Some(again) = self.again.take() {
                return Ok(Some(again));
            }
            loop {
                let received = tokio::select! {
                    received = self.inner.receive() => received?,
                    _ = self.cut.changed() => return Err(reset()),
                };
                let Some(envelope) = received else { return Ok(None) };
                match judge(&self.faults.reply, &envelope.message) {
                    Fate::Pass => return Ok(Some(envelope)),
                    Fate::Drop => {}
                    Fate::Double => {
                        self.again = Some(envelope.clone());
                        return Ok(Some(envelope));
                    }
                    Fate::Cut => return Err(reset()),
                }
            }
        }
        .boxed()
    }

    fn trust(&mut self, limits: Limits, share: Option<Share>) {
        self.inner.trust(limits, share);
    }
}

pub(super) struct Setup {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) address: String,
    pub(super) echo: Arc<Echo>,
    pub(super) server: Server,
}

pub(super) async fn start(transport: Arc<dyn Transport>, address: &str, incarnation: u64) -> Setup {
    start_as(transport, address, identity(PS, incarnation)).await
}

pub(super) async fn start_as(transport: Arc<dyn Transport>, address: &str, identity: Identity) -> Setup {
    // The port of a server that has just ended may remain taken for a moment.
    let listener = loop {
        match transport.listen(address).await {
            Ok(listener) => break listener,
            Err(TransportError::InUse { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    let echo = Arc::new(Echo::default());
    let service = Arc::clone(&echo) as Arc<dyn Service>;
    let config = ServerConfig { drain_ms: 10, ..Default::default() };
    let server = serve(listener, identity, service, config);
    Setup { transport, address: server.address().to_owned(), echo, server }
}

pub(super) async fn both(check: impl AsyncFn(Setup)) {
    check(start(Arc::new(InProcess::new()), "p:1", 1).await).await;
    check(start(Arc::new(Tcp::new(BufferPool::default())), "127.0.0.1:0", 1).await).await;
}
