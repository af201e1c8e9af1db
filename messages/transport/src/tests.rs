//! Tests of calls, refusals, limits and an orderly stop, on every transport.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::buffer::{Buffer, BufferPool, Payload, Segment};
use crate::wire::{Envelope, encode_head};
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::*;
use pushpull_messages::message::*;

const PS: TaskId = TaskId::ps(0);

pub(crate) fn identity(task: TaskId) -> Identity {
    let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:2"])];
    let cluster = ClusterSpec::new(jobs).unwrap();
    Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
}

/// A service that answers a push with the gradients of that push. It keeps the reply handle of an `Observe`
/// until a `JoinRoute` arrives, and then drops the handle without answering.
#[derive(Default)]
struct Echo {
    kept: Mutex<Vec<Reply>>,
    /// If `Some`, the service keeps the pushed payloads here, and its replies have no values.
    keeps: Mutex<Option<Vec<Payload>>>,
    /// The admitted peers, each with whether it is a guest.
    guests: Mutex<Vec<(TaskId, Option<ClientRole>)>>,
    gone: tokio::sync::Notify,
}

impl Service for Echo {
    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        if peer.task == TaskId::worker(1) {
            return Err(Refusal::new(RefusalCode::Mismatch, "worker/1 is not wanted"));
        }
        self.guests.lock().unwrap().push((peer.task, peer.guest));
        Ok(())
    }

    fn call(&self, _peer: &Peer, message: Message, payload: Payload, reply: Reply) {
        match message {
            Message::Push(push) => {
                let Push { version, slices, .. } = *push;
                let mut keeps = self.keeps.lock().unwrap();
                let (slices, payload) = match &mut *keeps {
                    Some(kept) => {
                        kept.push(payload);
                        (Vec::new(), Payload::EMPTY)
                    }
                    None => (slices, payload),
                };
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
            Message::Observe(_) | Message::Finish(_) => self.kept.lock().unwrap().push(reply),
            Message::JoinRoute(join) => {
                reply.send(RouteJoined { from: join.first }, Payload::EMPTY);
                self.kept.lock().unwrap().clear();
            }
            other => reply.refuse(RefusalCode::Malformed, format!("no {} here", other.name())),
        }
    }

    fn disconnected(&self, _peer: &Peer) {
        self.gone.notify_one();
    }
}

struct Setup {
    transport: Box<dyn Transport>,
    address: String,
    server: Server,
    echo: Arc<Echo>,
}

async fn setup(transport: Box<dyn Transport>, address: &str, config: ServerConfig) -> Setup {
    let listener = transport.listen(address).await.unwrap();
    let echo = Arc::new(Echo::default());
    let server = serve(listener, identity(PS), Arc::clone(&echo) as Arc<dyn Service>, config);
    Setup { transport, address: server.address().to_owned(), server, echo }
}

async fn both(check: impl AsyncFn(Setup)) {
    let config = ServerConfig { requests_max: 2, ..Default::default() };
    check(setup(Box::new(InProcess::new()), "p:1", config.clone()).await).await;
    let tcp = Tcp::new(BufferPool::default());
    check(setup(Box::new(tcp.clone()), "127.0.0.1:0", config.clone()).await).await;
    check(setup(Box::new(tcp.with_payload_crc(true)), "127.0.0.1:0", config).await).await;
}

async fn client(setup: &Setup, task: TaskId) -> Result<Connection, DialError> {
    let patience = Patience::of(Duration::from_secs(20));
    dial(&*setup.transport, &setup.address, &identity(task), PS, patience).await
}

pub(crate) fn push(version: u64, slices: u32) -> Push {
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
        with: Vec::new(),
    }
}

#[tokio::test]
async fn calls_of_any_size_come_back_whole() {
    both(async |setup| {
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        for lengths in [vec![], vec![1], vec![3, 0, 5_000_000, 17, 100]] {
            let values: Vec<Vec<f32>> =
                lengths.iter().map(|&length| (0..length).map(|i| i as f32).collect()).collect();
            let segments = values.iter().map(|values| Segment::whole(Arc::new(Buffer::from_f32(values))));
            let payload = Payload::new(segments.collect());
            let (pushed, back): (Pushed, _) =
                client.call(push(7, lengths.len() as u32), payload).await.unwrap();
            assert_eq!(pushed.version, Version(7));
            let back: Vec<&[f32]> = back.segments().iter().map(Segment::as_f32).collect();
            assert_eq!(back, values);
        }
    })
    .await;
}

#[tokio::test]
async fn replies_find_their_requests_in_any_order() {
    both(async |setup| {
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        let kept = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let later = async {
            while setup.echo.kept.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let (pushed, _): (Pushed, _) = client.call(push(1, 0), Payload::EMPTY).await.unwrap();
            assert_eq!(pushed.version, Version(1));
            let reply = setup.echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 5, ..Default::default() }, Payload::EMPTY);
        };
        let (kept, ()) = tokio::join!(kept, later);
        assert_eq!(kept.unwrap().0.pulls, 5);
    })
    .await;
}

#[tokio::test]
async fn refused_unexpected_and_dropped_replies_are_errors() {
    both(async |setup| {
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        let refused = client.call::<Registered>(Register::default(), Payload::EMPTY).await.unwrap_err();
        assert_eq!(refused.to_string(), "ps/0: no Register here");
        let odd = client.call::<Registered>(push(1, 0), Payload::EMPTY).await.unwrap_err();
        assert_eq!(odd.to_string(), "ps/0 replied with Pushed, but Registered was expected");
        let kept = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let drop_it = async {
            while setup.echo.kept.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let join = JoinRoute { first: Version(1) };
            client.call::<RouteJoined>(join, Payload::EMPTY).await.unwrap();
        };
        let (dropped, ()) = tokio::join!(kept, drop_it);
        assert!(dropped.unwrap_err().to_string().contains("ended before it could answer"));
    })
    .await;
}

#[tokio::test]
async fn a_misfit_peer_is_refused_with_the_difference() {
    both(async |setup| {
        let refused = async |change: fn(&mut Identity)| {
            let mut identity = identity(TaskId::worker(0));
            change(&mut identity);
            let patience = Patience::of(Duration::from_secs(20));
            dial(&*setup.transport, &setup.address, &identity, PS, patience).await.unwrap_err().to_string()
        };
        let other = |identity: &mut Identity| {
            let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1", "w:3"])];
            identity.cluster = ClusterSpec::new(jobs).unwrap();
        };
        assert_eq!(
            refused(other).await,
            "ps/0 refused this task: ps/0 has another cluster spec than worker/0, which has \
             'ps|p:1,worker|w:1;w:3'; start every task with the same one: the log of ps/0 says how the two differ"
        );
        assert!(refused(|identity| identity.task = TaskId::ps(7)).await.contains("ps/7 is not in"));
        assert!(refused(|identity| identity.task = TaskId::worker(1)).await.contains("not wanted"));
        let elsewhere = async {
            let patience = Patience::of(Duration::from_secs(20));
            let me = identity(TaskId::worker(0));
            dial(&*setup.transport, &setup.address, &me, TaskId::CHIEF, patience)
                .await
                .unwrap_err()
                .to_string()
        };
        assert!(elsewhere.await.contains("worker/0 dialled chief/0, but reached ps/0"));
        assert_eq!(setup.server.observer().snapshot().closed.get("refused"), Some(&4));
    })
    .await;
}

/// Dials as a client program.
async fn guest(setup: &Setup) -> Result<Connection, DialError> {
    let guest = Guest { index: 70_000, incarnation: Incarnation(1), nonce: 2 };
    let patience = Patience::of(Duration::from_secs(20));
    dial_as_guest(&*setup.transport, &setup.address, &guest, patience).await
}

#[tokio::test]
async fn a_guest_is_refused_by_a_task_that_trains() {
    both(async |setup| {
        let error = guest(&setup).await.unwrap_err();
        assert!(matches!(error, DialError::GuestRefused { .. }), "{error}");
        let expected = format!(
            "the task at {} refused this client: this task serves no clients: connect to a pushpull-server",
            setup.address
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!(setup.server.observer().snapshot().closed.get("refused"), Some(&1));
        client(&setup, TaskId::worker(0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_guest_is_admitted_and_learns_the_task() {
    for (transport, address) in [
        (Box::new(InProcess::new()) as Box<dyn Transport>, "p:1"),
        (Box::new(Tcp::new(BufferPool::default())), "127.0.0.1:0"),
    ] {
        let config = ServerConfig { guests: true, ..Default::default() };
        let setup = setup(transport, address, config).await;
        let connection = guest(&setup).await.unwrap();
        assert_eq!((connection.peer(), connection.welcome().task), (PS, PS));
        let describe = Describe { own: true, variables: false };
        let refused = connection.call::<Described>(describe, Payload::EMPTY).await.unwrap_err();
        assert_eq!(refused.to_string(), "ps/0: no Describe here");
        // Requests of tasks do not reach the service.
        let refused = connection.call::<Registered>(Register::default(), Payload::EMPTY).await.unwrap_err();
        assert_eq!(refused.to_string(), "ps/0: ps/0 does not accept Register from client/70000");
        assert_eq!(setup.server.observer().snapshot().refused.get("malformed"), Some(&2));
        // Members of the cluster are admitted and refused as without guests.
        client(&setup, TaskId::worker(0)).await.unwrap();
        let unknown = client(&setup, TaskId::ps(7)).await.unwrap_err().to_string();
        assert!(unknown.contains("ps/7 is not in"), "{unknown}");
        let guests = setup.echo.guests.lock().unwrap().clone();
        assert_eq!(
            guests,
            [(TaskId::new(JobName::CLIENT, 70_000), Some(ClientRole::Run)), (TaskId::worker(0), None)]
        );
    }
}

#[tokio::test]
async fn a_missing_server_is_named_by_its_address() {
    let transport = InProcess::new();
    let guest = Guest { index: 1, incarnation: Incarnation(1), nonce: 2 };
    let patience = Patience::of(Duration::from_millis(20));
    let error = dial_as_guest(&transport, "p:1", &guest, patience).await.unwrap_err().to_string();
    assert!(error.starts_with("no server at p:1 answered in time: "), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_named_as_refused() {
    let (tcp, guest) = (Tcp::default(), Guest { index: 1, incarnation: Incarnation(1), nonce: 2 });
    let address = tcp.listen("127.0.0.1:0").await.unwrap().address();
    // The last attempt begins at the deadline, so it has no time of its own.
    for millis in [5, 20, 60] {
        let patience = Patience::of(Duration::from_millis(millis));
        let error = dial_as_guest(&tcp, &address, &guest, patience).await.unwrap_err().to_string();
        assert!(error.contains("Connection refused"), "{error}");
    }
}

#[tokio::test]
async fn both_ends_notice_a_lost_connection() {
    both(async |setup| {
        let Setup { server, echo, .. } = &setup;
        let client_to_drop = client(&setup, TaskId::worker(0)).await.unwrap();
        drop(client_to_drop);
        echo.gone.notified().await;
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        assert_eq!(server.observer().snapshot().accepted, 2);
        setup.server.stop().await;
        let error = client.call::<Pushed>(push(1, 0), Payload::EMPTY).await.unwrap_err();
        assert!(matches!(error, CallError::Lost { .. }), "{error}");
        assert!(client.is_lost());
    })
    .await;
}

#[tokio::test]
async fn a_stopping_server_still_writes_its_replies() {
    both(async |setup| {
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        let kept = client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY);
        let echo = Arc::clone(&setup.echo);
        let stop = async {
            while echo.kept.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let reply = echo.kept.lock().unwrap().pop().unwrap();
            reply.send(ShardSnapshot { pulls: 9, ..Default::default() }, Payload::EMPTY);
            setup.server.stop().await;
        };
        let (kept, ()) = tokio::join!(kept, stop);
        assert_eq!(kept.unwrap().0.pulls, 9);
    })
    .await;
}

#[tokio::test]
async fn a_payload_is_in_flight_until_it_is_dropped() {
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    let observer = setup.server.observer();
    *setup.echo.keeps.lock().unwrap() = Some(Vec::new());
    let client = client(&setup, TaskId::worker(0)).await.unwrap();
    let payload = || Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0; 1024])))]);
    client.call::<Pushed>(push(1, 1), payload()).await.unwrap();
    client.call::<Pushed>(push(2, 1), payload()).await.unwrap();
    assert_eq!(observer.snapshot().in_flight_bytes, 2 * 4096);
    *setup.echo.keeps.lock().unwrap() = None;
    assert_eq!(observer.snapshot().in_flight_bytes, 0);
}

/// Waits until a server has this number of bytes in flight.
async fn wait_for_in_flight(observer: &ServerObserver, bytes: u64) {
    let wait = async {
        while observer.snapshot().in_flight_bytes != bytes {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the bytes in flight");
}

#[tokio::test]
async fn a_large_header_is_in_flight_until_its_reply() {
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    let observer = setup.server.observer();
    let client = client(&setup, TaskId::worker(0)).await.unwrap();
    let finish = |reason: usize| Finish {
        result: TrainingResult::failed("r".repeat(reason)),
        local_step: LocalStep(0),
        loss: 0.0,
        skipped: 0,
    };
    let long = client.call::<Finished>(finish(8000), Payload::EMPTY);
    let short = client.call::<Finished>(finish(10), Payload::EMPTY);
    let check = async {
        while setup.echo.kept.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(observer.snapshot().in_flight_bytes, 8 << 10, "the long header, in KiB");
        setup.echo.kept.lock().unwrap().clear();
    };
    let (long, short, ()) = tokio::join!(long, short, check);
    assert!(long.is_err() && short.is_err(), "both replies were dropped");
    wait_for_in_flight(&observer, 0).await;
}

#[tokio::test]
async fn segments_of_one_buffer_come_back_whole() {
    both(async |setup| {
        let client = client(&setup, TaskId::worker(0)).await.unwrap();
        let numbers: Vec<f32> = (0..100_000).map(|at| at as f32).collect();
        let buffer = Arc::new(Buffer::from_f32(&numbers));
        // Some follow each other without a gap, some with padding, and some overlap. In floats.
        let places =
            [(0, 1024), (1024, 64), (1088, 16), (1104, 3), (1120, 80_000), (16, 16), (32, 0), (32, 5)];
        let segments = places.map(|(start, count)| Segment::new(Arc::clone(&buffer), start * 4, count * 4));
        let payload = Payload::new(segments.to_vec());
        let (_, back): (Pushed, _) = client.call(push(1, places.len() as u32), payload).await.unwrap();
        let back: Vec<&[f32]> = back.segments().iter().map(Segment::as_f32).collect();
        assert_eq!(back, places.map(|(start, count)| &numbers[start..start + count]));
    })
    .await;
}

#[tokio::test]
async fn one_connection_cannot_take_the_whole_budget() {
    let (in_flight_bytes_max, connection_bytes_max) = (64 << 10, 32 << 10);
    let config = ServerConfig { in_flight_bytes_max, connection_bytes_max, ..Default::default() };
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", config).await;
    let observer = setup.server.observer();
    // The pushes are answered, but the service keeps their payloads.
    *setup.echo.keeps.lock().unwrap() = Some(Vec::new());
    let payload =
        |kib: usize| Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&vec![1.0; kib << 8])))]);
    let [greedy, modest] = [client(&setup, TaskId::worker(0)).await, client(&setup, TaskId::worker(0)).await];
    let (greedy, modest) = (greedy.unwrap(), modest.unwrap());
    for version in [1, 2] {
        greedy.call::<Pushed>(push(version, 1), payload(16)).await.unwrap();
    }
    let more = greedy.call::<Pushed>(push(3, 1), payload(16));
    let others = async {
        let whole = modest.call::<Pushed>(push(4, 1), payload(32));
        tokio::time::timeout(Duration::from_secs(20), whole).await.expect("a share is left").unwrap();
        wait_for_in_flight(&observer, 64 << 10).await;
        *setup.echo.keeps.lock().unwrap() = None;
    };
    let (more, ()) = tokio::join!(more, others);
    more.unwrap();
}

#[tokio::test]
async fn a_trickled_payload_ends_in_time() {
    // The payload is far too slow if it takes longer than `frame_ms`.
    let limits = wire::Limits { frame_ms: 200, frame_bytes_per_second_min: 1 << 60, ..Default::default() };
    let config = ServerConfig { limits, ..Default::default() };
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", config).await;
    let observer = setup.server.observer();
    let frame = |request: u64, message: Message, payload: Payload| {
        let envelope = wire::Envelope { request: RequestId(request), message, payload };
        wire::encode_head(&envelope, false).unwrap().bytes
    };
    let hello = frame(0, identity(TaskId::worker(0)).hello(PS).into(), Payload::EMPTY);
    let large = Payload::new(vec![Segment::whole(Arc::new(Buffer::zeroed(1 << 24)))]);
    let head = frame(1, push(1, 1).into(), large);
    for trickles in [true, false] {
        let mut stream = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
        stream.write_all(&[&hello[..], &head].concat()).await.unwrap();
        wait_for_in_flight(&observer, 1 << 24).await;
        let (mut read, mut write) = stream.into_split();
        let closed = async {
            let mut answer = Vec::new();
            let _ = read.read_to_end(&mut answer).await;
        };
        let send = async {
            while trickles && write.write_all(&[0]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        let both = async { tokio::join!(closed, send) };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("the connection is closed");
        wait_for_in_flight(&observer, 0).await;
    }
    let closed = observer.snapshot().closed;
    assert_eq!(closed.get("slow"), Some(&2), "{closed:?}");
}

/// Counts the log lines of level `WARN` by the end of their text.
#[derive(Clone, Default)]
struct WarningCounter(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for WarningCounter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text<'a>(&'a mut String);
        impl tracing::field::Visit for Text<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    *self.0 = format!("{value:?}");
                }
            }
        }
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        self.0.lock().unwrap().push(text);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_peer_cannot_fill_the_log() {
    // `tracing` remembers for each place that logs whether a log wants it. Tests in other threads disturb
    // that, so this test has a process of its own.
    const ALONE: &str = "PUSHPULL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "tests::a_peer_cannot_fill_the_log", "--test-threads=1"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let disturb = async |setup: &Setup| {
        let member = client(setup, TaskId::worker(0)).await.unwrap();
        for _ in 0..25 {
            let mut stream = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
            stream.write_all(&[b'x'; 40]).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
            member.call::<Registered>(Register::default(), Payload::EMPTY).await.unwrap_err();
        }
    };
    let log = WarningCounter::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    disturb(&setup).await;
    setup.server.stop().await;
    // The server's state is dropped by its own task.
    while !log.0.lock().unwrap().iter().any(|line| line.contains("magic")) {
        tokio::task::yield_now().await;
    }
    let lines = log.0.lock().unwrap().clone();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("closed the connection"), count("refused Register: no Register here")), (10, 10));
    for kind in ["magic", "refused_request"] {
        let left_out = format!("left out 15 more warning(s) about 127.0.0.1 (reason: {kind})");
        assert_eq!(count(&left_out), 1, "{lines:#?}");
    }
}

/// Lets this process open enough files for both ends of many connections.
#[cfg(target_os = "linux")]
fn allow_files(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < files) {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    }
}

// Only Linux has more than one address of loopback from the start.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn silent_hosts_keep_no_task_out() {
    const HOSTS: usize = 18;
    const EACH: usize = 60;
    allow_files(2 * (HOSTS * EACH) as u64 + 200);
    let config = ServerConfig { handshake_ms: 600_000, ..Default::default() };
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", config).await;
    let address = setup.address.parse().unwrap();
    let mut silent = Vec::new();
    for number in 0..HOSTS * EACH {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("127.2.0.{}:0", 1 + number / EACH).parse().unwrap()).unwrap();
        silent.push(socket.connect(address).await.unwrap());
    }
    client(&setup, TaskId::worker(0)).await.unwrap();
    assert!(silent[0].read_u8().await.is_err(), "the oldest one is closed");
    let (observer, displaced) = (setup.server.observer(), (HOSTS * EACH + 1 - STRANGERS_MAX) as u64);
    let counted = async {
        while observer.snapshot().closed.get("too_many") != Some(&displaced) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("each of them is counted");
}

#[tokio::test]
async fn foreign_bytes_close_their_own_connection() {
    let config = ServerConfig { handshake_ms: 200, ..Default::default() };
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", config).await;
    let good = client(&setup, TaskId::worker(0)).await.unwrap();
    let talk = async |bytes: &[u8]| {
        let mut stream = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // The server may send an answer first. It closes only this connection.
        let _ = stream.read_to_end(&mut answer).await;
    };
    talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n-------------------------").await;
    let mut huge = crate::wire::Prefix {
        kind: 1,
        request: RequestId(0),
        header_bytes: 0,
        payload_bytes: 1 << 40,
        payload_crc: None,
    }
    .encode(&[]);
    talk(&huge).await;
    huge[4] = 99;
    talk(&huge).await;
    talk(b"PPU").await;
    talk(b"").await;
    let closed = setup.server.observer().snapshot().closed;
    assert_eq!(closed.get("magic"), Some(&1), "{closed:?}");
    assert_eq!(closed.get("too_large"), Some(&1), "{closed:?}");
    assert_eq!(closed.get("version"), Some(&1), "{closed:?}");
    assert_eq!(closed.get("no_handshake"), Some(&2), "{closed:?}");
    let (pushed, _): (Pushed, _) = good.call(push(3, 0), Payload::EMPTY).await.unwrap();
    assert_eq!(pushed.version, Version(3));
}

#[tokio::test]
async fn a_peer_of_another_version_learns_both_versions() {
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    // A frame of a later version of the protocol; only the version in its prefix differs.
    let mut later = crate::wire::Prefix {
        kind: 1,
        request: RequestId(0),
        header_bytes: 0,
        payload_bytes: 0,
        payload_crc: None,
    }
    .encode(&[]);
    later[4..6].copy_from_slice(&(PROTOCOL + 1).to_le_bytes());
    let mut stream = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
    stream.write_all(&later).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    let expected = format!("speaks protocol version {}, and this task speaks {PROTOCOL}", PROTOCOL + 1);
    assert!(text.contains(&expected), "{text}");
    // Conversely, a client treats a server of a later version as a refusal, and does not dial again.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&later).await.unwrap();
        stream
    };
    let (me, patience) = (identity(TaskId::worker(0)), Patience::of(Duration::from_secs(600)));
    let tcp = Tcp::default();
    let (dialled, _stream) = tokio::join!(dial(&tcp, &address, &me, PS, patience), answer);
    let error = dialled.unwrap_err();
    assert!(
        matches!(&error, DialError::Refused { refusal, .. } if refusal.code == RefusalCode::Protocol),
        "{error}"
    );
}

/// Sends a hello over TCP, and returns the bytes of the answer as text; the empty text if the server closes
/// the connection without one.
async fn answer_to(setup: &Setup, hello: Hello) -> String {
    let envelope =
        crate::wire::Envelope { request: RequestId(0), message: hello.into(), payload: Payload::EMPTY };
    let mut stream = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
    // The server may close the link before it has read everything.
    let _ = stream.write_all(&crate::wire::encode_head(&envelope, false).unwrap().bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_stranger_learns_nothing_of_the_cluster() {
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    let answer = async |hello| answer_to(&setup, hello).await;
    let stranger = |workers: usize| {
        let workers = (1..=workers).map(|port| format!("a-name-of-some-length.example:{port}")).collect();
        let jobs = [(JobName::Ps, vec!["q:1".to_owned()]), (JobName::Worker, workers)];
        let cluster = ClusterSpec::new(jobs).unwrap();
        Identity { cluster, ..identity(TaskId::worker(0)) }.hello(PS)
    };
    // A much longer hello is refused before it is read.
    for (workers, reason) in [(2, "refused"), (3000, "too_large")] {
        let answer = answer(stranger(workers)).await;
        assert!(answer.contains("another cluster spec"), "{answer}");
        for secret in ["p:1", "w:1", "w:2", "ps/0"] {
            assert!(!answer.contains(secret), "{secret} in {answer}");
        }
        assert_eq!(setup.server.observer().snapshot().closed.get(reason), Some(&1));
    }
}

#[tokio::test]
async fn a_guests_odd_hello_is_refused_within_the_limits() {
    let config = ServerConfig { guests: true, ..Default::default() };
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", config).await;
    let answer = async |hello| answer_to(&setup, hello).await;
    let hello = || Guest { index: 1, incarnation: Incarnation(1), nonce: 2 }.hello();
    let claim = answer(Hello { task: TaskId::worker(0), ..hello() }).await;
    assert!(claim.contains("a client has the task worker/0, expected client/N"), "{claim}");
    // A hello with half of a cluster is invalid, and a huge one is refused before it is read.
    assert_eq!(answer(Hello { to: Some(PS), ..hello() }).await, "");
    let huge = answer(Hello { http: Some("h".repeat(1 << 20)), ..hello() }).await;
    assert!(!huge.contains("w:1") && !huge.contains("ps/0"), "{huge}");
    let closed = setup.server.observer().snapshot().closed;
    assert_eq!((closed.get("refused"), closed.get("too_large")), (Some(&1), Some(&1)), "{closed:?}");
}

#[tokio::test]
async fn a_silent_peer_is_lost_and_an_idle_one_is_not() {
    // A server that completes the handshake and then stays silent, like a process that was stopped by
    // SIGSTOP.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_address = listener.local_addr().unwrap().to_string();
    let lost_after = LOST_AFTER_MIN;
    let tcp = Tcp::default().with_lost_after(lost_after);
    let real = setup(Box::new(tcp.clone()), "127.0.0.1:0", ServerConfig::default()).await;
    let silent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let welcome = Welcome {
            protocol: PROTOCOL,
            task: PS,
            incarnation: Incarnation(1),
            shards: 1,
            payload_bytes_max: 0,
            requests_max: 1,
            http: None,
            nonce: 0,
        };
        let envelope =
            crate::wire::Envelope { request: RequestId(0), message: welcome.into(), payload: Payload::EMPTY };
        stream.write_all(&crate::wire::encode_head(&envelope, false).unwrap().bytes).await.unwrap();
        // The server still reads until the peer closes the link, as the operating system would do for a
        // stopped process.
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
    });
    let me = identity(TaskId::worker(0));
    let patience = || Patience::of(Duration::from_secs(20));
    let quiet = dial(&tcp, &real.address, &me, PS, patience()).await.unwrap();
    let doomed = dial(&tcp, &silent_address, &me, PS, patience()).await.unwrap();
    let error =
        doomed.call::<RouteJoined>(JoinRoute { first: Version(1) }, Payload::EMPTY).await.unwrap_err();
    assert!(error.to_string().contains("nothing was received for 3 s"), "{error}");
    silent.await.unwrap();
    // The other connection was idle for the same time, and still works at both ends.
    let (pushed, _): (Pushed, _) = quiet.call(push(4, 0), Payload::EMPTY).await.unwrap();
    assert_eq!(pushed.version, Version(4));
    let seen = real.server.observer().snapshot();
    assert!(seen.closed.is_empty());
    assert_eq!(seen.received.messages, 1, "heartbeats do not count");
}

#[tokio::test]
async fn a_reply_without_a_request_closes_the_connection() {
    let transport = InProcess::new();
    let mut listener = transport.listen("p:1").await.unwrap();
    let me = identity(TaskId::worker(0));
    let envelope = |request, message: Message| crate::wire::Envelope {
        request: RequestId(request),
        message,
        payload: Payload::EMPTY,
    };
    let welcome = Welcome {
        protocol: PROTOCOL,
        task: PS,
        incarnation: Incarnation(1),
        shards: 1,
        payload_bytes_max: 0,
        requests_max: 1,
        http: None,
        nonce: 0,
    };
    let odd = async {
        let Link { mut sender, mut receiver, .. } = listener.accept().await.unwrap().open().await;
        receiver.receive().await.unwrap().unwrap();
        sender.send(envelope(0, welcome.into())).await.unwrap();
        let asked = receiver.receive().await.unwrap().unwrap();
        // A doubled reply is ignored.
        for _ in 0..2 {
            sender.send(envelope(asked.request.0, Stopped {}.into())).await.unwrap();
        }
        sender.send(envelope(asked.request.0 + 1, Stopped {}.into())).await.unwrap();
        (sender, receiver)
    };
    let call = async {
        let patience = Patience::of(Duration::from_secs(20));
        let client = dial(&transport, "p:1", &me, PS, patience).await.unwrap();
        client.call::<Stopped>(Stop { reason: StopReason::Completed }, Payload::EMPTY).await.unwrap();
        client.wait_lost().await
    };
    let (_halves, reason) = tokio::join!(odd, call);
    assert_eq!(reason, "the peer replied to request 2, which was never made");
}

#[tokio::test]
async fn a_silent_stranger_does_not_delay_the_end() {
    let setup = setup(Box::new(Tcp::default()), "127.0.0.1:0", ServerConfig::default()).await;
    let _stranger = tokio::net::TcpStream::connect(&setup.address).await.unwrap();
    while setup.server.observer().snapshot().accepted == 0 {
        tokio::task::yield_now().await;
    }
    // This limit is far below that of the handshake.
    tokio::time::timeout(Duration::from_secs(5), setup.server.stop()).await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_and_a_missing_peer_are_named() {
    for transport in [Box::new(InProcess::new()) as Box<dyn Transport>, Box::new(Tcp::default())] {
        let first = transport.listen("127.0.0.1:0").await.unwrap();
        let error = transport.listen(&first.address()).await.err().unwrap();
        assert!(error.to_string().contains("already in use"), "{error}");
        let address = first.address();
        drop(first);
        let patience = Patience { deadline: tokio::time::Instant::now(), log_every: Duration::from_secs(1) };
        let error = dial(&*transport, &address, &identity(TaskId::worker(0)), PS, patience)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("ps/0 at {address} did not come up in time")), "{error}");
    }
}

/// A sink that keeps what it takes, in pieces of a few sizes.
struct Kept {
    bytes: Vec<u8>,
    lengths: std::collections::VecDeque<usize>,
    space: Vec<u8>,
    done: tokio::sync::mpsc::UnboundedSender<Result<Vec<u8>, usize>>,
}

impl Sink for Kept {
    fn space(&mut self) -> &mut [u8] {
        while self.lengths.front() == Some(&0) {
            self.lengths.pop_front();
        }
        let size = self.lengths[0].min(1 + self.bytes.len() % 100_000);
        self.space.resize(size, 0);
        &mut self.space
    }

    fn filled(&mut self, bytes: usize) {
        self.bytes.extend_from_slice(&self.space[..bytes]);
        self.lengths[0] -= bytes;
    }

    fn finish(mut self: Box<Self>) {
        let _ = self.done.send(Ok(std::mem::take(&mut self.bytes)));
    }

    fn hold(&mut self, _: crate::buffer::Credit) {}
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            let _ = self.done.send(Err(self.bytes.len()));
        }
    }
}

/// A service that takes all large payloads into sinks, and tells of the requests that follow.
struct Sinking {
    done: tokio::sync::mpsc::UnboundedSender<Result<Vec<u8>, usize>>,
}

impl Service for Sinking {
    fn sink<'a>(
        &'a self,
        _: &'a Peer,
        arriving: Arriving<'a>,
    ) -> futures_util::future::BoxFuture<'a, Option<Box<dyn Sink>>> {
        let lengths = arriving.lengths.iter().map(|&length| length as usize).collect();
        let (bytes, space, done) = (Vec::new(), Vec::new(), self.done.clone());
        let sink: Box<dyn Sink> = Box::new(Kept { bytes, lengths, space, done });
        Box::pin(std::future::ready(Some(sink)))
    }

    fn call(&self, _: &Peer, _: Message, payload: Payload, reply: Reply) {
        let taken = if payload.is_taken() { "taken" } else { "whole" };
        // A refusal with this code is no warning, so it does not disturb the test of the log.
        reply.refuse(RefusalCode::Unavailable, format!("{taken} {}", payload.bytes()));
    }
}

async fn sinking(
    tcp: Tcp,
) -> (Connection, Server, tokio::sync::mpsc::UnboundedReceiver<Result<Vec<u8>, usize>>) {
    let listener = tcp.listen("127.0.0.1:0").await.unwrap();
    let (done, received) = tokio::sync::mpsc::unbounded_channel();
    let server = serve(listener, identity(PS), Arc::new(Sinking { done }), ServerConfig::default());
    let patience = Patience::of(Duration::from_secs(20));
    let client = dial(&tcp, server.address(), &identity(TaskId::worker(0)), PS, patience).await.unwrap();
    (client, server, received)
}

fn numbers(lengths: &[usize]) -> (Payload, Vec<u8>) {
    let floats = |&length: &usize| Buffer::from_f32(&(0..length).map(|x| x as f32).collect::<Vec<_>>());
    let segments: Vec<_> =
        lengths.iter().map(floats).map(|buffer| Segment::whole(Arc::new(buffer))).collect();
    let bytes = segments.iter().flat_map(Segment::as_bytes).copied().collect();
    (Payload::new(segments), bytes)
}

#[tokio::test]
async fn a_large_payload_goes_into_the_sink_of_its_service() {
    let tcp = Tcp::new(BufferPool::default());
    let (client, _server, mut received) = sinking(tcp.clone()).await;
    for lengths in [vec![100_000], vec![0, 3, 70_001, 0, 5, 123_456, 0], vec![9000; 40]] {
        let (payload, bytes) = numbers(&lengths);
        let refused = client.call::<Pushed>(push(1, lengths.len() as u32), payload).await.unwrap_err();
        assert!(refused.to_string().contains("taken 0"), "{refused}");
        assert_eq!(received.recv().await.unwrap().unwrap(), bytes);
    }
    // A small payload is kept, and so is one of many small segments, and one with a checksum: its bytes may
    // be wrong.
    let (checked, _checked_server, _) = sinking(tcp.with_payload_crc(true)).await;
    for (client, lengths) in [(&client, vec![1000]), (&client, vec![17; 9000]), (&checked, vec![100_000])] {
        let (payload, bytes) = numbers(&lengths);
        let refused = client.call::<Pushed>(push(1, lengths.len() as u32), payload).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("whole {}", bytes.len())), "{refused}");
    }
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn a_torn_payload_drops_its_sink_and_calls_nobody() {
    let (client, _server, mut received) = sinking(Tcp::new(BufferPool::default())).await;
    let promise = crate::buffer::Promise::new(400_000);
    let (whole, _) = numbers(&[100_000]);
    let mut segments = whole.into_segments();
    segments.push(promise.segment(0, 400_000));
    let call = client.call::<Pushed>(push(1, 2), Payload::new(segments));
    let (result, ()) = tokio::join!(call, async { drop(promise) });
    assert!(matches!(result, Err(CallError::Lost { .. })), "{result:?}");
    assert_eq!(received.recv().await, Some(Err(400_000)), "the first segment had arrived");
}

/// A host that opens connections and says nothing has a bounded number of them, at a port of one task and at
/// a shared port. A task of another host is served meanwhile.
#[tokio::test]
async fn silent_connections_of_a_host_are_bounded() {
    for shared in [false, true] {
        let tcp = Tcp::default();
        let mut listener = tcp.listen("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let mut port = None;
        if shared {
            let port = port.insert(SharedPort::open(listener, &identity(PS)));
            listener = port.listener(PS).unwrap();
        }
        let server = serve(listener, identity(PS), Arc::new(Echo::default()), ServerConfig::default());
        let from_elsewhere = async || {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            socket.connect(address.parse().unwrap()).await.unwrap()
        };
        let mut silent = Vec::new();
        while server.observer().snapshot().closed.get("too_many").is_none_or(|&count| count < 5) {
            silent.push(from_elsewhere().await);
        }
        let (me, patience) = (identity(TaskId::worker(0)), Patience::of(Duration::from_secs(20)));
        dial(&tcp, &address, &me, PS, patience).await.unwrap();
        // Connections that their host closes free their places, and do not count as failed.
        drop(silent);
        let hello = Envelope { request: RequestId(0), message: me.hello(PS).into(), payload: Payload::EMPTY };
        let hello = encode_head(&hello, false).unwrap().bytes;
        let mut welcome = [0];
        loop {
            let mut stream = from_elsewhere().await;
            // The server closes a connection that is still one too many.
            if stream.write_all(&hello).await.is_ok()
                && stream.read(&mut welcome).await.is_ok_and(|read| read == 1)
            {
                break;
            }
        }
    }
}
