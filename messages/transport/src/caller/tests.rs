//! Connections that are cut, frames that are lost or come twice, peers that do not come back: on every transport.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use proptest::prelude::*;

use super::*;
use crate::buffer::{Budget, Buffer, BufferPool, Segment};
use crate::wire::{Envelope, Limits, WireError};
use crate::{
    Connection, FrameReceiver, FrameSender, InProcess, Listener, Peer, Reply, Server, ServerConfig, Service,
    Tcp, TransportError, serve,
};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;
use pushpull_messages::observe::Traffic;

const PS: TaskId = TaskId::ps(0);

fn identity(task: TaskId, incarnation: u64) -> Identity {
    let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:2"])];
    let cluster = ClusterSpec::new(jobs).unwrap();
    Identity { task, incarnation: Incarnation(incarnation), cluster, graph: None, http: None }
}

/// Answers a push with its version, and counts; keeps what it is told to keep.
#[derive(Default)]
struct Echo {
    /// How often each version was pushed.
    pushed: Mutex<BTreeMap<u64, u32>>,
    kept: Mutex<Vec<Reply>>,
    refuses: Mutex<Option<Refusal>>,
    came: tokio::sync::Notify,
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
            // Like a shard whose policy waits: of one request that comes twice the later is answered.
            Message::Observe(_) => {
                let earlier = std::mem::replace(&mut *self.kept.lock().unwrap(), vec![reply]);
                earlier.into_iter().for_each(|earlier| earlier.send(Refusal::superseded(), Payload::EMPTY));
                self.came.notify_one();
            }
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }
}

/// What becomes of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Double,
    Cut,
}

type Judge = Box<dyn FnMut(&Message) -> Fate + Send>;

/// Decides over every frame after the handshake that the dialling end writes or reads.
struct Faults {
    request: Mutex<Judge>,
    reply: Mutex<Judge>,
    /// Goes up when all connections are cut.
    cuts: watch::Sender<u64>,
}

struct Flaky {
    inner: Arc<dyn Transport>,
    faults: Arc<Faults>,
}

struct FlakySender {
    inner: Box<dyn FrameSender>,
    faults: Arc<Faults>,
    cut: watch::Receiver<u64>,
}

struct FlakyReceiver {
    inner: Box<dyn FrameReceiver>,
    faults: Arc<Faults>,
    cut: watch::Receiver<u64>,
    again: Option<Envelope>,
}

impl Faults {
    fn none() -> Arc<Self> {
        Self::on_replies(|_| Fate::Pass)
    }

    fn on_replies(judge: impl FnMut(&Message) -> Fate + Send + 'static) -> Arc<Self> {
        let request: Judge = Box::new(|_| Fate::Pass);
        Arc::new(Self {
            request: Mutex::new(request),
            reply: Mutex::new(Box::new(judge)),
            cuts: watch::channel(0).0,
        })
    }

    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

fn judge(judge: &Mutex<Judge>, message: &Message) -> Fate {
    match message {
        Message::Hello(_) | Message::Welcome(_) | Message::Refusal(_) | Message::Heartbeat(_) => Fate::Pass,
        message => judge.lock().unwrap()(message),
    }
}

fn reset() -> WireError {
    WireError::Io(std::io::ErrorKind::ConnectionReset.into())
}

impl Transport for Flaky {
    fn streams(&self) -> bool {
        true
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>, TransportError>> {
        self.inner.listen(address)
    }

    fn dial<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Connection, TransportError>> {
        async move {
            let Connection { sender, receiver, peer } = self.inner.dial(address).await?;
            let faults = || (Arc::clone(&self.faults), self.faults.cuts.subscribe());
            let (of_sender, of_receiver) = (faults(), faults());
            Ok(Connection {
                sender: Box::new(FlakySender { inner: sender, faults: of_sender.0, cut: of_sender.1 }),
                receiver: Box::new(FlakyReceiver {
                    inner: receiver,
                    faults: of_receiver.0,
                    cut: of_receiver.1,
                    again: None,
                }),
                peer,
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

    fn trust(&mut self, limits: Limits, budget: Option<Budget>) {
        self.inner.trust(limits, budget);
    }
}

struct Setup {
    transport: Arc<dyn Transport>,
    address: String,
    echo: Arc<Echo>,
    server: Server,
}

async fn start(transport: Arc<dyn Transport>, address: &str, incarnation: u64) -> Setup {
    // The port of a server that has just ended may be taken a moment later only.
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
    let server = serve(listener, identity(PS, incarnation), service, config);
    Setup { transport, address: server.address().to_owned(), echo, server }
}

async fn both(check: impl AsyncFn(Setup)) {
    check(start(Arc::new(InProcess::new()), "p:1", 1).await).await;
    check(start(Arc::new(Tcp::new(BufferPool::default())), "127.0.0.1:0", 1).await).await;
}

/// Patient with a busy machine, and with answers.
const RETRY: RetryConfig = RetryConfig {
    redial_for: Duration::from_secs(30),
    resend_after: Duration::from_secs(60),
    connections_max: 100,
};

async fn caller(setup: &Setup, faults: &Arc<Faults>, retry: RetryConfig) -> Caller {
    retry.validate().unwrap();
    let transport = Flaky { inner: Arc::clone(&setup.transport), faults: Arc::clone(faults) };
    let patience = Patience::of(Duration::from_secs(20));
    let me = identity(TaskId::worker(0), 1);
    Caller::connect(Arc::new(transport), &setup.address, &me, PS, patience, retry).await.unwrap()
}

fn push(version: u64, slices: u32) -> Push {
    Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(version),
        slices: (0..slices).map(SliceId).collect(),
        drawn: 0,
        pull: false,
        traced: false,
    }
}

/// A push that must come back as it was sent.
async fn echoed(caller: &Caller, version: u64) {
    let values: Vec<f32> = (0..100).map(|i| (version * 100 + i) as f32).collect();
    let payload = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&values)))]);
    let (pushed, back): (Pushed, _) = caller.call(push(version, 1), payload).await.unwrap();
    assert_eq!(pushed.version, Version(version));
    assert_eq!(back.segments()[0].as_f32(), values);
}

#[tokio::test]
async fn a_call_in_flight_when_its_connection_is_cut_is_answered_on_the_next() {
    both(async |setup| {
        let faults = Faults::none();
        let caller = caller(&setup, &faults, RETRY).await;
        let call = caller.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let cut = async {
            for _ in 0..3 {
                setup.echo.came.notified().await;
                faults.cut();
            }
            setup.echo.came.notified().await;
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 7, ..Default::default() }, Payload::EMPTY);
        };
        let (answer, ()) = tokio::join!(call, cut);
        assert_eq!(answer.unwrap().0.pulls, 7);
        let counted = caller.counters().snapshot();
        assert_eq!((counted.reconnections, counted.resends), (3, 3));
        assert!(!caller.is_lost());
        echoed(&caller, 1).await;
    })
    .await;
}

#[tokio::test]
async fn both_ends_count_what_was_carried_without_handshakes() {
    both(async |setup| {
        // The second request goes out twice, and both of these are answered.
        let faults = Faults::none();
        let mut requests = 0;
        *faults.request.lock().unwrap() = Box::new(move |_| {
            requests += 1;
            if requests == 2 { Fate::Double } else { Fate::Pass }
        });
        let caller = caller(&setup, &faults, RETRY).await;
        for version in 1..=5 {
            echoed(&caller, version).await;
        }
        let traffic = |messages| Traffic { messages, payload_bytes: messages * 400 };
        let counted = caller.counters().snapshot();
        assert_eq!((counted.sent, counted.received, counted.ignored), (traffic(5), traffic(6), 1));
        drop(caller);
        let observer = setup.server.observer();
        setup.server.stop().await;
        let ended = observer.snapshot();
        assert_eq!((ended.received, ended.sent, ended.writing.count()), (traffic(6), traffic(6), 6));
        assert_eq!((ended.accepted, ended.closed.values().sum::<u64>()), (1, 1));
        assert_eq!((ended.in_flight_bytes, ended.in_flight_bytes_max), (0, 8 << 30));
    })
    .await;
}

#[tokio::test]
async fn a_request_or_reply_that_is_lost_is_made_up_for() {
    both(async |setup| {
        let mut replies = 0;
        let faults = Faults::on_replies(move |_| {
            replies += 1;
            if replies <= 2 { Fate::Drop } else { Fate::Pass }
        });
        let mut requests = 0;
        *faults.request.lock().unwrap() = Box::new(move |_| {
            requests += 1;
            if requests == 1 { Fate::Drop } else { Fate::Pass }
        });
        let resend_after = Duration::from_millis(10);
        let caller = caller(&setup, &faults, RetryConfig { resend_after, ..RETRY }).await;
        echoed(&caller, 3).await;
        let counted = caller.counters().snapshot();
        assert!(counted.resends >= 3 && counted.reconnections == 0, "{counted:?}");
        assert!(setup.echo.pushed.lock().unwrap()[&3] >= 3);
    })
    .await;
}

#[tokio::test]
async fn a_reply_that_comes_twice_is_ignored_once() {
    both(async |setup| {
        let faults = Faults::on_replies(|_| Fate::Double);
        let caller = caller(&setup, &faults, RETRY).await;
        for version in 1..=5 {
            echoed(&caller, version).await;
        }
        // The copy of the last one may still be on its way.
        let counted = caller.counters().snapshot();
        assert!((4..=5).contains(&counted.ignored), "{counted:?}");
        assert_eq!((counted.resends, counted.reconnections), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_call_that_was_given_up_is_forgotten_and_its_reply_ignored() {
    both(async |setup| {
        let caller = caller(&setup, &Faults::none(), RETRY).await;
        {
            let call = caller.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
            tokio::select! {
                _ = call => panic!("nobody answers"),
                () = setup.echo.came.notified() => {}
            }
        }
        let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
        reply.send(ShardSnapshot::default(), Payload::EMPTY);
        // Behind that reply, so it has been read.
        echoed(&caller, 1).await;
        assert_eq!(caller.counters().snapshot().ignored, 1);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_comes_twice_waits_for_the_answer_to_the_later_one() {
    both(async |setup| {
        let faults = Faults::none();
        *faults.request.lock().unwrap() = Box::new(|_| Fate::Double);
        let caller = caller(&setup, &faults, RETRY).await;
        let call = caller.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let answer = async {
            // The copy has come when the first has given way to it, and the caller has heard so.
            setup.echo.came.notified().await;
            setup.echo.came.notified().await;
            echoed(&caller, 1).await;
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 3, ..Default::default() }, Payload::EMPTY);
        };
        let (answered, ()) = tokio::join!(call, answer);
        assert_eq!(answered.unwrap().0.pulls, 3);
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_never_comes_back_is_lost_with_both_reasons() {
    both(async |setup| {
        let redial_for = Duration::from_millis(200);
        let caller = caller(&setup, &Faults::none(), RetryConfig { redial_for, ..RETRY }).await;
        let Setup { server, echo, .. } = setup;
        let call = caller.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let end = async {
            echo.came.notified().await;
            // Kept until the end: dropped, it would be an answer.
            let reply = echo.kept.lock().unwrap().pop().unwrap();
            std::mem::drop(tokio::spawn(server.stop()));
            reply
        };
        let before = Instant::now();
        let (lost, _reply) = tokio::join!(call, end);
        let error = lost.unwrap_err();
        assert!(matches!(&error, CallError::Lost { peer, .. } if *peer == PS), "{error}");
        let text = error.to_string();
        assert!(text.contains("closed by the peer; dialled again for 0.2 s without success"), "{text}");
        assert!(before.elapsed() >= redial_for);
        assert!(caller.is_lost());
        assert!(text.ends_with(&caller.wait_lost().await));
        let again = caller.call::<Pushed>(push(1, 0), Payload::EMPTY).await.unwrap_err();
        assert_eq!(again, error);
    })
    .await;
}

#[tokio::test]
async fn another_life_of_the_peer_does_not_answer_for_the_first() {
    both(async |setup| {
        let caller = caller(&setup, &Faults::none(), RETRY).await;
        let Setup { transport, address, server, .. } = setup;
        server.stop().await;
        let next = start(transport, &address, 2).await;
        let reason = caller.wait_lost().await;
        assert!(
            reason.contains("ps/0 was started again: incarnation 1 was called, and 2 answers"),
            "{reason}"
        );
        assert!(caller.call::<Pushed>(push(1, 0), Payload::EMPTY).await.is_err());
        assert!(next.echo.pushed.lock().unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_refuses_is_lost_unless_it_is_only_not_ready() {
    both(async |setup| {
        let faults = Faults::none();
        let caller = caller(&setup, &faults, RETRY).await;
        let refuse = |code| *setup.echo.refuses.lock().unwrap() = Some(Refusal::new(code, "not now"));
        refuse(RefusalCode::Unavailable);
        faults.cut();
        let accepted = setup.server.observer().snapshot().accepted;
        while setup.server.observer().snapshot().accepted < accepted + 3 {
            tokio::task::yield_now().await;
        }
        assert!(!caller.is_lost());
        *setup.echo.refuses.lock().unwrap() = None;
        echoed(&caller, 1).await;
        refuse(RefusalCode::Mismatch);
        faults.cut();
        let reason = caller.wait_lost().await;
        assert!(reason.contains("dialled again: ps/0 refused this task: not now"), "{reason}");
    })
    .await;
}

#[tokio::test]
async fn a_request_that_breaks_every_connection_is_given_up() {
    both(async |setup| {
        let faults = Faults::none();
        *faults.request.lock().unwrap() = Box::new(|message| match message {
            Message::Pull(_) => Fate::Cut,
            _ => Fate::Pass,
        });
        let caller = caller(&setup, &faults, RetryConfig { connections_max: 4, ..RETRY }).await;
        let pull = Pull {
            shard: 0,
            epoch: PlacementEpoch(1),
            placement_digest: 0,
            at: PullAt::Latest,
            averages: false,
        };
        let error = caller.call::<Pulled>(pull, Payload::EMPTY).await.unwrap_err().to_string();
        assert!(error.contains("Pull was made on 4 connections, and each broke"), "{error}");
        // Only that one.
        echoed(&caller, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_breaks_off_after_every_handshake_is_lost() {
    let transport = InProcess::new();
    let mut listener = transport.listen("p:1").await.unwrap();
    let host = tokio::spawn(async move {
        loop {
            let Connection { mut sender, mut receiver, .. } = listener.accept().await.unwrap();
            let welcome = Welcome {
                protocol: PROTOCOL,
                task: PS,
                incarnation: Incarnation(1),
                shards: 1,
                payload_bytes_max: 0,
                requests_max: 1,
                http: None,
            };
            let envelope =
                Envelope { request: RequestId(0), message: welcome.into(), payload: Payload::EMPTY };
            // Whoever has given up already needs no answer.
            let _ = receiver.receive().await;
            let _ = sender.send(envelope).await;
        }
    });
    let (me, patience) = (identity(TaskId::worker(0), 1), Patience::of(Duration::from_secs(20)));
    let retry = RetryConfig { redial_for: Duration::from_millis(300), ..RETRY };
    let caller = Caller::connect(Arc::new(transport), "p:1", &me, PS, patience, retry).await.unwrap();
    let error = caller.call::<Pushed>(push(1, 0), Payload::EMPTY).await.unwrap_err().to_string();
    assert!(error.contains("dialled again for 0.3 s without success"), "{error}");
    // 10, 20, 40, 80, 160 ms apart.
    assert!((1..=8).contains(&caller.counters().snapshot().reconnections));
    host.abort();
}

#[tokio::test]
async fn a_caller_that_is_dropped_closes_its_connection() {
    both(async |setup| {
        let caller = caller(&setup, &Faults::none(), RETRY).await;
        echoed(&caller, 1).await;
        drop(caller);
        while setup.server.observer().snapshot().closed.get("closed") != Some(&1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(setup.server.observer().snapshot().accepted, 1);
    })
    .await;
}

/// A fate for every frame, in the order in which they come.
fn fates(seed: u64) -> Judge {
    let mut state = seed | 1;
    Box::new(move |_| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 100 {
            0..3 => Fate::Cut,
            3..8 => Fate::Drop,
            8..20 => Fate::Double,
            _ => Fate::Pass,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// (A)–(D): whatever is lost, doubled or cut, every call ends with the one answer that is its own.
    #[test]
    fn every_call_is_answered_once(seed in any::<u64>(), tcp in any::<bool>(), tasks in 1u64..12) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let setup = if tcp {
                start(Arc::new(Tcp::default()), "127.0.0.1:0", 1).await
            } else {
                start(Arc::new(InProcess::new()), "p:1", 1).await
            };
            let faults = Faults::none();
            *faults.request.lock().unwrap() = fates(seed);
            *faults.reply.lock().unwrap() = fates(!seed);
            let resend_after = Duration::from_millis(10);
            let caller = caller(&setup, &faults, RetryConfig { resend_after, ..RETRY }).await;
            let calls = (0..tasks).map(|task| {
                let caller = &caller;
                async move {
                    for call in 0..20 {
                        echoed(caller, task * 100 + call).await;
                    }
                }
            });
            join_all(calls).await;
            assert_eq!(setup.echo.pushed.lock().unwrap().len() as u64, tasks * 20);
            assert!(!caller.is_lost());
        });
    }
}
