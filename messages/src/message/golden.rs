//! Tests that this build encodes messages to the same bytes as earlier builds. An accidental change of a
//! name, kind or type would break clusters that mix builds, and would make existing files unreadable. Each
//! line of the golden file is one message.

use std::fmt::Write;
use std::path::PathBuf;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::{
    Contribution, Finish, Hello, Message, PROTOCOL, Push, PushId, Refusal, RefusalCode, Register, Registered,
    Resume, ShardCreated, Share, TrainingResult, Welcome,
};
use crate::cadence::EvalEverySpec;
use crate::cluster::ClusterSpec;
use crate::communication::CommunicationSpec;
use crate::compression::{CompressionSpec, EncodingSpec};
use crate::distribution::DistributionSpec;
use crate::fixtures::any_message::{any_message, create_shard};
use crate::fixtures::any_stage::staged_job;
use crate::fixtures::{job, placement};
use crate::gradient::{GradientSpec, NotFiniteSpec};
use crate::id::{GlobalStep, Incarnation, JobName, LocalStep, PlacementEpoch, Sequence, TaskId, Version};
use crate::job::JobSpec;
use crate::observe::TraceSpec;
use crate::optimizer::{DecaySpec, GroupSpec, OptimizerSpec, ScheduleSpec};
use crate::placement::{PartitionerSpec, PlacementSpec, StrategySpec};
use crate::sync::{LeaveSpec, SyncSpec};

/// The number of messages of each kind in the golden file.
const SAMPLES: usize = 12;
/// The number of random messages that are drawn. It is large enough to yield [`SAMPLES`] messages of every
/// kind.
const DRAWS: usize = 6000;

fn golden_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/messages.txt")
}

/// Returns the line of the golden file for a message: kind, name, segment lengths, and header bytes as
/// escaped ASCII.
fn line(message: &Message, segments: &[u64]) -> String {
    let lengths = segments.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!("{} {} [{lengths}] {}\n", message.kind(), message.name(), message.encode().escape_ascii())
}

/// Undoes [`slice::escape_ascii`].
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next().expect("an escape has a second character") {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

/// Returns messages with jobs that together have every field of a job file, none with its default value. A
/// pipeline needs another policy than a deterministic job, and micro-batches need a graph with stages.
fn full_jobs() -> [Message; 3] {
    let JobSpec { graph, input, .. } = job(4, 1);
    let job = JobSpec {
        graph,
        input,
        batch_size: 4,
        accumulate: 3,
        optimizer: OptimizerSpec::lion(0.125),
        schedule: ScheduleSpec::Linear,
        warm_up: 5,
        weight_decay: 0.25,
        average: Some(0.5),
        weight_decay_on: DecaySpec::Matrices,
        groups: vec![GroupSpec::new("ker*").learning_rate_factor(0.5)],
        average_variables: vec!["kernel".to_owned()],
        metrics_every: Some(7),
        gradient: GradientSpec {
            clip_value: Some(2.0),
            clip_global_norm: Some(3.0),
            not_finite: NotFiniteSpec::Skip,
        },
        compression: vec![
            CompressionSpec::new("kernel")
                .gradients(EncodingSpec::TopK { fraction: 0.125 })
                .values(EncodingSpec::Int8),
        ],
        strategy: Some(DistributionSpec::MultiWorkerMirrored),
        sync: SyncSpec::SYNC,
        communication: CommunicationSpec::Direct,
        pipeline: 1,
        micro_batches: 1,
        deterministic: true,
        when_worker_leaves: LeaveSpec::Fail,
        placement: PlacementSpec {
            strategy: StrategySpec::GreedyLoadBalancing,
            partitioner: PartitionerSpec::Fixed { slices: 2 },
        },
        last_step: GlobalStep(9),
        seed: 10,
        eval_every: Some(EvalEverySpec::Epoch),
        epoch_examples: Some(11),
    };
    let resume = Resume { drawn: 1, examples: 2, files: None };
    let trace = Some(TraceSpec { every: 3, ops: 4 });
    let pipelined =
        JobSpec { strategy: None, sync: SyncSpec::ASYNC, pipeline: 12, deterministic: false, ..job.clone() };
    [job, pipelined, staged_job(1)].map(|job| {
        let (placement, workers, saves, summary_every) = (placement(), 2, true, Some(5));
        Registered {
            job,
            placement,
            workers,
            share: Some(Share { position: 1, shares: 3, examples: 6 }),
            resume,
            saves,
            saves_in_memory: true,
            summary_every,
            trace,
            begun: true,
        }
        .into()
    })
}

/// Returns the handshake of two tasks of this version that have nonces, and the hello of a guest.
fn handshake() -> [Message; 3] {
    let (job, address) = (JobName::Ps, vec!["p:1"]);
    let cluster = ClusterSpec::new([(job, address), (JobName::Worker, vec!["w:1"])]).unwrap();
    let (task, incarnation, to, nonce) = (TaskId::CHIEF, Incarnation(7), TaskId::ps(0), u64::MAX);
    let hello = Hello {
        protocol: PROTOCOL,
        task,
        incarnation,
        to: Some(to),
        cluster: Some(cluster),
        graph: None,
        http: None,
        nonce,
    };
    let guest =
        Hello { task: TaskId::new(JobName::CLIENT, u32::MAX), to: None, cluster: None, ..hello.clone() };
    let (payload_bytes_max, requests_max, http) = (1 << 20, 64, None);
    let welcome = Welcome {
        protocol: PROTOCOL,
        task: to,
        incarnation,
        shards: 1,
        payload_bytes_max,
        requests_max,
        http,
        nonce,
    };
    [hello.into(), welcome.into(), guest.into()]
}

/// Returns the push of a sum of two workers' gradients.
fn sum() -> Push {
    let id = |worker| PushId { worker, incarnation: Incarnation(7), sequence: Sequence(3) };
    Push {
        shard: 1,
        id: id(2),
        local_step: LocalStep(4),
        epoch: PlacementEpoch(1),
        placement_digest: 5,
        version: Version(6),
        slices: Vec::new(),
        drawn: 8,
        pull: true,
        traced: false,
        with: vec![Contribution { id: id(0), local_step: LocalStep(9), drawn: 10 }],
    }
}

/// Returns the lines of the golden file, and adds samples of the kinds that have none. The samples are drawn
/// from the strategy that the codec's tests use, and are the same on every run. Messages with rare contents
/// are added at the end of their kinds.
fn with_fresh_samples(golden: &str) -> String {
    let mut runner = TestRunner::deterministic();
    let strategy = any_message();
    let mut samples = std::collections::BTreeMap::<u16, Vec<String>>::new();
    for known in golden.split_inclusive('\n') {
        let kind = known.split(' ').next().and_then(|kind| kind.parse().ok()).expect("a line has a kind");
        samples.entry(kind).or_default().push(known.to_owned());
    }
    let known: Vec<u16> = samples.keys().copied().collect();
    for _ in 0..DRAWS {
        let (message, segments) = strategy.new_tree(&mut runner).unwrap().current();
        let lengths: Vec<u64> = segments.iter().map(|segment| segment.len() as u64).collect();
        if known.contains(&message.kind()) {
            continue;
        }
        let lines = samples.entry(message.kind()).or_default();
        let fresh = line(&message, &lengths);
        if lines.len() < SAMPLES && !lines.contains(&fresh) {
            lines.push(fresh);
        }
    }
    let result = TrainingResult::gave_up("cut off");
    let gave_up = Finish { result, local_step: LocalStep(3), loss: 0.5, skipped: 1 }.into();
    let refusals = [RefusalCode::Term, RefusalCode::Cluster, RefusalCode::RolledBack, RefusalCode::Alone]
        .map(|code| Refusal::new(code, "taken").into());
    let created = ShardCreated { slices: 1, bytes: 2, version: Version(3), appointed: 4 }.into();
    let again = Register { after: Some(Incarnation(5)) }.into();
    let compressed = create_shard(1, 0).into();
    let rare = full_jobs().into_iter().chain([gave_up, created, again, compressed, sum().into()]);
    for rare in rare.chain(refusals).chain(handshake()) {
        let (lines, rare) = (samples.entry(rare.kind()).or_default(), line(&rare, &[]));
        if !lines.contains(&rare) {
            lines.push(rare);
        }
    }
    samples.into_values().flatten().fold(String::new(), |mut all, line| {
        let _ = write!(all, "{line}");
        all
    })
}

#[test]
fn earlier_builds_are_understood_byte_for_byte() {
    let path = golden_file();
    if std::env::var_os("PUSHPULL_WRITE_GOLDEN").is_some() {
        let known = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, with_fresh_samples(&known)).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for expected in golden.split_inclusive('\n') {
        let mut fields = expected.trim_end_matches('\n').splitn(4, ' ');
        let mut next = || fields.next().expect("a line has four fields");
        let (kind, name, lengths, header) = (next(), next(), next(), next());
        let lengths = lengths.trim_matches(['[', ']']);
        let lengths: Vec<u64> = lengths.split_terminator(',').map(|text| text.parse().unwrap()).collect();
        let kind: u16 = kind.parse().unwrap();
        let message = Message::decode(kind, &unescape(header), &lengths)
            .unwrap_or_else(|error| panic!("{name} of an earlier build is refused: {error}"));
        assert_eq!(
            line(&message, &lengths),
            expected,
            "{name} is encoded differently than before. If this is intended, delete its lines, and add new ones: \
             PUSHPULL_WRITE_GOLDEN=1 cargo test -p pushpull-messages golden"
        );
        kinds.insert(kind);
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), Message::KINDS, "every kind has a golden message");
}

#[test]
fn every_field_of_a_job_and_a_shard_has_golden_bytes() {
    let golden = std::fs::read_to_string(golden_file()).unwrap();
    for message in full_jobs().into_iter().chain([create_shard(1, 0).into()]) {
        assert!(golden.contains(&line(&message, &[])), "extend the golden file: see the test above");
    }
}

#[test]
fn the_handshake_of_this_version_has_golden_bytes() {
    let golden = std::fs::read_to_string(golden_file()).unwrap();
    for message in handshake() {
        assert!(golden.contains(&line(&message, &[])), "extend the golden file: see the first test");
    }
}
