//! Tests with hostile peers that send arbitrary data to the ports of a job. Training continues: strangers
//! are rejected, forbidden requests are refused, and no peer can delay the end of the job.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{
    GlobalStep, Incarnation, LocalStep, PlacementEpoch, RequestId, Sequence, SliceId, TaskId, Version,
};
use pushpull_messages::message::{
    Finish, Finished, Observe, PROTOCOL, Pull, PullAt, Pulled, Push, PushId, Pushed, Register, Registered,
    Report, Reported, ShardSnapshot, Stop, StopReason, Stopped, TrainingResult,
};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};
use pushpull_transport::wire::{Envelope, Limits, PREFIX_BYTES, Prefix, encode_head};
use pushpull_transport::{CallError, Connection, DialError, Identity};

use crate::harness::{
    Cluster, ENDLESS, Job, Program, all_end_well, frame, noise, prefix, wait_for_version, whisper,
};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);

/// The time limit for the tasks to end while a peer tries to delay the end.
const PROMPT: Duration = Duration::from_secs(5);

/// Returns pairs of bytes that a stranger might send, and the text that the task must log.
fn strangers(hello: &[u8]) -> Vec<(Vec<u8>, &'static str)> {
    let mut flipped = hello.to_vec();
    flipped[PREFIX_BYTES + 9] ^= 1;
    let most = Limits::STRANGER.header_bytes_max;
    let mut long = prefix(1, most, 0);
    long.extend(noise(1, most as usize));
    let mut newer = hello.to_vec();
    newer[4..6].copy_from_slice(&(PROTOCOL + 1).to_le_bytes());
    vec![
        (noise(2, 100_000), "not a pushpull frame"),
        (noise(3, PREFIX_BYTES), "not a pushpull frame"),
        (vec![0; 1 << 20], "not a pushpull frame"),
        (b"GET / HTTP/1.1\r\nHost: ps0\r\nUser-Agent: curl/8.5.0\r\n\r\n".to_vec(), "not a pushpull frame"),
        // The first bytes that a TLS client sends.
        ([&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &noise(4, 506)].concat(), "not a pushpull frame"),
        (noise(5, 7), "in the middle of a frame"),
        (hello[..hello.len() / 2].to_vec(), "in the middle of a frame"),
        (prefix(1, 2 * Limits::STRANGER.header_bytes_max, 0), "header may have at most"),
        (prefix(1, 100, u64::MAX), "payload may have at most 0 bytes"),
        (prefix(22, 100, 1 << 30), "payload may have at most 0 bytes"),
        (long, "checksum of the header"),
        (flipped, "checksum of the header"),
        (newer, "speaks protocol version"),
        (frame(0, Register::default()), "the first frame is Register, expected Hello"),
        (frame(0, Stop { reason: StopReason::Completed }), "the first frame is Stop, expected Hello"),
    ]
}

/// Sends bytes to a task, and checks that the task closes the connection.
#[track_caller]
fn say(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("the task listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    // The task may close the connection before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let closed = stream.read_to_end(&mut answer);
    let timed_out = |error: &std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    };
    assert!(!closed.as_ref().is_err_and(timed_out), "the connection is still open");
}

#[test]
fn strangers_are_turned_away_while_training_goes_on() {
    let cluster = Cluster::new(2, 2, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let hello = frame(0, cluster.impostor().hello(PS));
    let mut idle = Vec::new();
    for task in [CHIEF, PS] {
        let address = cluster.address(task);
        for (bytes, _) in strangers(&hello).iter().flat_map(|stranger| std::iter::repeat_n(stranger, 4)) {
            say(&address, bytes);
            idle.push(TcpStream::connect(&address).expect("the task listens"));
        }
    }
    assert!(programs.iter_mut().all(Program::is_running), "it trains while it is attacked");
    for (task, program) in [CHIEF, PS].iter().zip(&programs) {
        let peak = program.peak_bytes();
        assert!(peak < 256 << 20, "{task} took {peak} bytes");
    }
    drop(idle);
    all_end_well(&cluster, &mut programs);
    for program in &programs[..2] {
        for (_, said) in strangers(&hello) {
            assert!(program.err().contains(said), "{said} in\n{}", program.err());
        }
    }
    for shard in cluster.finished().shards() {
        assert_eq!(shard["refused"], 0, "no stranger came as far as a shard: {shard:#}");
    }
}

#[test]
fn peers_that_do_not_belong_here_hear_why() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let me = cluster.impostor();
    let other = ClusterSpec::new([
        (pushpull_messages::id::JobName::Ps, vec!["elsewhere:1"]),
        (pushpull_messages::id::JobName::Worker, vec!["here:2"]),
    ]);
    let stranger = Identity { cluster: other.expect("a cluster"), ..me.clone() };
    let unknown = Identity { task: TaskId::ps(9), ..me.clone() };
    for to in [CHIEF, PS] {
        for (identity, expected) in
            [(&stranger, "has another cluster spec than"), (&unknown, "ps/9 is not in the cluster spec")]
        {
            match whisper(&cluster, to, identity, async |_: Connection| ()) {
                Err(DialError::Refused { refusal, .. }) => {
                    assert!(refusal.reason.contains(expected), "{refusal}");
                }
                other => panic!("{to} took {identity:?}: {other:?}"),
            }
        }
    }
    all_end_well(&cluster, &mut programs);
    cluster.finished();
    for program in &programs[..2] {
        assert!(program.err().contains("refused: the cluster specs of"), "{}", program.err());
        assert!(program.err().contains("refused: ps/9 is not in the cluster spec"), "{}", program.err());
    }
}

fn pull(placement_digest: u32) -> Pull {
    Pull { shard: 0, epoch: PlacementEpoch(1), placement_digest, at: PullAt::Latest, averages: false }
}

/// Returns the digest of the placement. It is taken from the error of a shard that refuses a wrong digest.
async fn placement_digest(client: &Connection) -> u32 {
    let refusal = refusal(client.call::<Pulled>(pull(0), Payload::EMPTY).await);
    let (_, digest) = refusal.split_once("with digest ").expect("the digest that was expected");
    u32::from_str_radix(&digest[..8], 16).expect("eight hexadecimal digits")
}

#[track_caller]
fn refusal<R: std::fmt::Debug>(reply: Result<R, CallError>) -> String {
    match reply {
        Err(CallError::Refused { refusal, .. }) => refusal.reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_forbidden_request_is_refused_and_changes_nothing() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let attack = async |client: Connection| {
        let digest = placement_digest(&client).await;
        let push = |sequence| Push {
            shard: 0,
            id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(sequence) },
            local_step: LocalStep(0),
            epoch: PlacementEpoch(1),
            placement_digest: digest,
            version: Version(0),
            slices: Vec::new(),
            drawn: 0,
            pull: true,
            traced: false,
            with: Vec::new(),
        };
        let mut refused = 0;
        // These requests reach the shard, which counts them as refused.
        for (bad, expected) in [
            (Push { placement_digest: !digest, ..push(1) }, "expected placement epoch"),
            (Push { epoch: PlacementEpoch(7), ..push(1) }, "expected placement epoch"),
            // The chief has appointed the worker that trains.
            (push(1), "another incarnation of worker/0 than 1"),
            (push(77), "another incarnation of worker/0 than 1"),
        ] {
            let reason = refusal(client.call::<Pushed>(bad, Payload::EMPTY).await);
            assert!(reason.contains(expected), "{reason}");
            refused += 1;
        }
        // These requests do not reach the shard.
        let another = PushId { worker: 1, ..push(1).id };
        let reason = refusal(client.call::<Pushed>(Push { id: another, ..push(1) }, Payload::EMPTY).await);
        assert!(reason.contains("does not accept Push"), "{reason}");
        let reason = refusal(client.call::<Pushed>(Push { shard: 9, ..push(1) }, Payload::EMPTY).await);
        assert!(reason.contains("no shard 9"), "{reason}");
        let stop = Stop { reason: StopReason::Completed };
        let reason = refusal(client.call::<Stopped>(stop, Payload::EMPTY).await);
        assert!(reason.contains("does not accept Stop from worker/0"), "{reason}");
        let reason = refusal(client.call::<Registered>(Register::default(), Payload::EMPTY).await);
        assert!(reason.contains("does not accept Register"), "{reason}");
        refused
    };
    let refused = whisper(&cluster, PS, &cluster.impostor(), attack).expect("a worker is let in");
    assert!(programs.iter_mut().all(Program::is_running), "it trains while it is attacked");
    all_end_well(&cluster, &mut programs);
    let report = cluster.finished();
    assert_eq!(report.shards()[0]["refused"].as_u64(), Some(refused));
}

#[test]
fn a_second_life_of_a_worker_cannot_speak_for_the_first() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let attack = async |client: Connection| {
        let reason = refusal(client.call::<Registered>(Register::default(), Payload::EMPTY).await);
        assert!(reason.contains("is already connected"), "{reason}");
        let finish = Finish {
            result: TrainingResult::Failed("lies".into()),
            local_step: LocalStep(0),
            loss: 0.0,
            skipped: 0,
        };
        let reason = refusal(client.call::<Finished>(finish, Payload::EMPTY).await);
        assert!(reason.contains("out of turn"), "{reason}");
        let report = Report { global_step: GlobalStep(u64::MAX), ..Report::default() };
        let reason = refusal(client.call::<Reported>(report, Payload::EMPTY).await);
        assert!(reason.contains("out of turn"), "{reason}");
        let reason = refusal(client.call::<ShardSnapshot>(Observe { shard: 0 }, Payload::EMPTY).await);
        assert!(reason.contains("out of turn"), "{reason}");
    };
    // Neither an earlier nor a later number helps.
    whisper(&cluster, CHIEF, &cluster.impostor(), attack).expect("a worker is let in");
    let later = Identity { incarnation: Incarnation(u64::MAX), ..cluster.impostor() };
    whisper(&cluster, CHIEF, &later, attack).expect("a worker is let in");
    let join = async |client: Connection| {
        let placement_digest = placement_digest(&client).await;
        let (epoch, at) = (PlacementEpoch(1), PullAt::Join);
        let pull = Pull { shard: 0, epoch, placement_digest, at, averages: false };
        let reason = refusal(client.call::<Pulled>(pull, Payload::EMPTY).await);
        assert!(reason.contains("another incarnation of worker/0 than"), "{reason}");
    };
    whisper(&cluster, PS, &later, join).expect("a worker is let in");
    all_end_well(&cluster, &mut programs);
    cluster.finished();
}

#[test]
fn bytes_after_a_good_hello_cost_one_connection() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let hello = frame(0, cluster.impostor().hello(PS));
    let unknown_kind = {
        let mut bytes = frame(1, Observe { shard: 0 });
        let header = bytes.split_off(PREFIX_BYTES);
        let prefix = Prefix {
            kind: 999,
            request: RequestId(1),
            header_bytes: header.len() as u32,
            payload_bytes: 0,
            payload_crc: None,
        };
        [&prefix.encode(&header)[..], &header].concat()
    };
    let (version, step, last_step) = (Version(1), GlobalStep(1), GlobalStep(9));
    let no_slices = Pulled { version, step, last_step, slices: vec![SliceId(0)] };
    for (bytes, expected) in [
        (noise(6, 5000), "not a pushpull frame"),
        (prefix(22, u32::MAX, 0), "header may have at most"),
        (prefix(22, 100, u64::MAX), "payload may have at most"),
        (unknown_kind, "999"),
        (frame(1, no_slices), "one for each of 1 slices"),
    ] {
        say(&cluster.address(PS), &[&hello[..], &bytes].concat());
        programs[1].wait_for(expected);
    }
    all_end_well(&cluster, &mut programs);
    cluster.finished();
}

/// Returns the head of a push with a payload of this size. The payload itself is never sent.
fn promise(payload_bytes: u32) -> Vec<u8> {
    let push = Push {
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(0),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(0),
        slices: vec![SliceId(0)],
        drawn: 0,
        pull: false,
        traced: false,
        with: Vec::new(),
    };
    let buffer = std::sync::Arc::new(BufferPool::default().take(4));
    let payload = Payload::new(vec![Segment::new(buffer, 0, 4)]);
    let envelope = Envelope { request: RequestId(1), message: push.into(), payload };
    let honest = encode_head(&envelope, false).expect("a small message").bytes;
    // In MessagePack the header is a list of two elements. The first element is a list with the length of
    // one segment, 4, which is replaced by a larger length.
    let (begun, rest) = honest[PREFIX_BYTES..].split_at(3);
    assert_eq!(begun, [0x92, 0x91, 4]);
    let header = [&[0x92, 0x91, 0xce][..], &payload_bytes.to_be_bytes(), rest].concat();
    let prefix = Prefix {
        kind: envelope.message.kind(),
        request: RequestId(1),
        header_bytes: header.len() as u32,
        payload_bytes: payload_bytes.into(),
        payload_crc: None,
    };
    [&prefix.encode(&header)[..], &header].concat()
}

#[test]
fn promises_of_large_payloads_cost_no_memory() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let hello = frame(0, cluster.impostor().hello(PS));
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(cluster.address(PS)).expect("the ps listens");
        stream.write_all(&[&hello[..], &promise(1 << 30), &noise(7, 1000)].concat()).expect("the ps reads");
        open.push(stream);
    }
    let seen = wait_for_version(&cluster, 100);
    wait_for_version(&cluster, seen.version.0 + 500);
    let peak = programs[1].peak_bytes();
    assert!(peak < 256 << 20, "{peak} bytes");
    drop(open);
    all_end_well(&cluster, &mut programs);
    cluster.finished();
}

#[test]
fn a_peer_that_never_reads_holds_nobody_up() {
    // The answers must be larger than the buffers of a socket.
    let cluster = Cluster::with(1, 1, 2, |dir| Job::with(dir, ENDLESS, &["--width=512"]));
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let digest = whisper(&cluster, PS, &cluster.impostor(), async |client: Connection| {
        placement_digest(&client).await
    })
    .expect("a worker is let in");
    let mut greedy = TcpStream::connect(cluster.address(PS)).expect("the ps listens");
    greedy.write_all(&frame(0, cluster.impostor().hello(PS))).expect("the ps reads");
    for request in 1..=16 {
        // Each request is answered with all variables.
        greedy.write_all(&frame(request, pull(digest))).expect("the ps reads");
    }
    let seen = wait_for_version(&cluster, 100);
    wait_for_version(&cluster, seen.version.0 + 200);
    all_end_well(&cluster, &mut programs);
    cluster.finished();
    drop(greedy);
}

#[test]
fn half_open_connections_do_not_hold_up_the_end() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    let hello = frame(0, cluster.impostor().hello(PS));
    let mut open = Vec::new();
    for address in [cluster.address(CHIEF), cluster.address(PS)] {
        for begun in [&[][..], &hello[..3], &hello[..PREFIX_BYTES], &hello[..hello.len() - 1]] {
            let mut stream = TcpStream::connect(&address).expect("the task listens");
            stream.write_all(begun).expect("the task reads");
            open.push(stream);
        }
    }
    // The handshakes are still unfinished when the job ends.
    cluster.stop(&mut programs[0]);
    programs[0].wait_for(&format!("worker finished worker={WORKER}"));
    for program in &mut programs {
        program.wait_within(PROMPT).expect(0);
    }
    cluster.finished();
}
