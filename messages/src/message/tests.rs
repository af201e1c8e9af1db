//! Any message that can be said, for the codec's tests; and the rules that a decoded message must keep.

use proptest::prelude::*;

use super::*;
use crate::checkpoint::{CheckpointName, SourceSpec, StartSpec};
use crate::cluster::ClusterSpec;
use crate::graph::GraphBuilder;
use crate::id::*;
use crate::input::InputSpec;
use crate::job::JobSpec;
use crate::optimizer::OptimizerSpec;
use crate::placement::{PlacedSlice, Placement, SliceSpec};
use crate::summary::SummarySpec;
use crate::variable::InitializerSpec;

pub(crate) fn job(batch_size: u32, seed: u64) -> JobSpec {
    let mut g = GraphBuilder::new("linear");
    let x = g.input("features", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 2], InitializerSpec::HeNormal);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let sets = crate::input::tests::every_dataset();
    let set = |number: u64| sets[(number % sets.len() as u64) as usize].clone();
    JobSpec {
        batch_size,
        optimizer: OptimizerSpec::adam(0.001),
        schedule: crate::optimizer::ScheduleSpec::Cosine,
        seed,
        ..JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(set(seed), set(seed / 7)), seed | 1)
    }
}

pub(crate) fn placement() -> Placement {
    let slice = SliceSpec { variable: VariableId(0), row: 0, rows: 3 };
    let shard = ShardId::new(0, 0);
    Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: vec![PlacedSlice { slice, shard }] }
}

fn checkpoint(step: u64) -> CheckpointName {
    CheckpointName { step: GlobalStep(step), life: Incarnation(step / 2) }
}

/// Any message, and the bytes of the payload segments that it needs.
pub(crate) fn any_message() -> impl Strategy<Value = (Message, Vec<Vec<u8>>)> {
    let without = |message: BoxedStrategy<Message>| message.prop_map(|message| (message, vec![])).boxed();
    let task = (0usize..4, any::<u32>()).prop_map(|(job, index)| TaskId::new(JobName::ALL[job], index));
    let segments = prop::collection::vec(
        (0usize..20).prop_flat_map(|floats| prop::collection::vec(any::<u8>(), floats * 4)),
        0..5,
    );
    let slices = |segments: &Vec<Vec<u8>>| (0..segments.len() as u32).map(SliceId).collect::<Vec<_>>();
    let push = (segments.clone(), any::<(u32, u32, u64, u64)>(), 1u64.., any::<(u64, u32, u64, bool)>())
        .prop_map(
            move |(
                segments,
                (shard, worker, incarnation, step),
                sequence,
                (epoch, digest, version, pull),
            )| {
                let push = Push {
                    shard,
                    id: PushId {
                        worker,
                        incarnation: Incarnation(incarnation),
                        sequence: Sequence(sequence),
                    },
                    local_step: LocalStep(step),
                    epoch: PlacementEpoch(epoch),
                    placement_digest: digest,
                    version: Version(version),
                    slices: slices(&segments),
                    drawn: step / 2,
                    pull,
                };
                (push.into(), segments)
            },
        );
    let pushed = (segments.clone(), any::<u64>(), 0u64..9).prop_map(move |(segments, version, which)| {
        let verdict = match which {
            0 => Verdict::Applied,
            1 => Verdict::Held,
            2 => Verdict::Stopped,
            by => Verdict::Stale { by },
        };
        let last_step = GlobalStep(version / 3);
        (Pushed { verdict, version: Version(version), last_step, slices: slices(&segments) }.into(), segments)
    });
    let pulled = (segments, any::<(u64, u64)>()).prop_map(move |(segments, (version, step))| {
        let (version, step) = (Version(version), GlobalStep(step));
        let last_step = GlobalStep(version.0 / 3);
        (Pulled { version, step, last_step, slices: slices(&segments) }.into(), segments)
    });
    prop_oneof![
        without(
            (task.clone(), task.clone(), any::<(u16, u64)>(), 1u16.., any::<Option<u32>>())
                .prop_map(|(task, to, (protocol, incarnation), port, graph)| {
                    let jobs = [(JobName::Ps, format!("p:{port}")), (JobName::Worker, format!("w:{port}"))];
                    let cluster = ClusterSpec::new(jobs.map(|(job, address)| (job, vec![address]))).unwrap();
                    Hello { protocol, task, incarnation: Incarnation(incarnation), to, cluster, graph }.into()
                })
                .boxed()
        ),
        without(
            (task, any::<(u16, u64, u64, u32)>(), 0u32..=256)
                .prop_map(|(task, (protocol, incarnation, payload_bytes_max, requests_max), shards)| {
                    let incarnation = Incarnation(incarnation);
                    Welcome { protocol, task, incarnation, shards, payload_bytes_max, requests_max }.into()
                })
                .boxed()
        ),
        without(any::<String>().prop_map(|reason| Refusal::new(RefusalCode::Misfit, reason).into()).boxed()),
        without(Just(Heartbeat {}.into()).boxed()),
        without(Just(Register {}.into()).boxed()),
        without(Just(Ready {}.into()).boxed()),
        without(Just(Go {}.into()).boxed()),
        without(
            (1u32..1000, any::<u64>(), 1u32..9)
                .prop_map(|(batch, seed, workers)| {
                    let resume = Resume { drawn: seed / 2, examples: seed / 3 };
                    let saves = seed % 2 == 0;
                    Registered { job: job(batch, seed), placement: placement(), workers, resume, saves }
                        .into()
                })
                .boxed()
        ),
        without(
            (any::<(u64, u64)>(), -1e6f32..1e6)
                .prop_map(|((step, local), loss)| {
                    let summaries = vec![SummarySpec::scalar("loss", GlobalStep(step), loss)];
                    Report {
                        global_step: GlobalStep(step),
                        local_step: LocalStep(local),
                        loss,
                        drawn: local / 2,
                        gradient_norm: (step % 2 == 0).then_some(loss),
                        summaries,
                    }
                    .into()
                })
                .boxed()
        ),
        without(any::<Option<String>>().prop_map(|stop| Reported { stop }.into()).boxed()),
        without(
            (any::<u64>(), any::<Option<String>>(), any::<bool>())
                .prop_map(|(step, words, ended)| {
                    let result = match words {
                        None => TrainingResult::Completed,
                        Some(words) if ended => TrainingResult::InputEnded(words),
                        Some(words) => TrainingResult::Failed(words),
                    };
                    Finish { result, local_step: LocalStep(step), loss: 0.5, skipped: step / 3 }.into()
                })
                .boxed()
        ),
        without(
            any::<(bool, u64)>()
                .prop_map(|(evaluate, step)| Finished { evaluate, step: GlobalStep(step) }.into())
                .boxed()
        ),
        without(
            (any::<(u64, u32)>(), any::<Option<String>>())
                .prop_map(|((examples, variables_crc32c), failed)| {
                    let metrics = vec![MetricValue { name: "accuracy".into(), value: 0.9 }];
                    let result =
                        failed.map_or(Ok(Evaluation { loss: 0.1, metrics, examples, variables_crc32c }), Err);
                    Evaluated { result }.into()
                })
                .boxed()
        ),
        without(
            any::<u64>()
                .prop_map(|seed| {
                    let job = job(1, seed);
                    CreateShard {
                        shard: ShardId::new(0, 0),
                        placement: placement(),
                        update: job.update(),
                        variables: job.graph.variables,
                        sync: job.sync,
                        deterministic: job.deterministic,
                        workers: 1,
                        last_step: job.last_step,
                        seed,
                        start: match seed % 3 {
                            0 => StartSpec::Initialise,
                            1 => StartSpec::Resume {
                                store: "/c".into(),
                                checkpoint: checkpoint(seed),
                                workers: crate::checkpoint::tests::manifest(seed).workers,
                            },
                            _ => StartSpec::WarmStart {
                                store: "s3://b/c".into(),
                                checkpoint: checkpoint(seed),
                                variables: vec![SourceSpec { variable: VariableId(0), source: "k".into() }],
                            },
                        },
                    }
                    .into()
                })
                .boxed()
        ),
        without(
            any::<(u64, u64, u64)>()
                .prop_map(|(slices, bytes, version)| {
                    ShardCreated { slices, bytes, version: Version(version) }.into()
                })
                .boxed()
        ),
        push,
        pushed,
        without(
            any::<(u32, u64, u32)>()
                .prop_map(|(shard, epoch, placement_digest)| {
                    let at = match epoch % 3 {
                        0 => PullAt::Latest,
                        1 => PullAt::Join,
                        _ => PullAt::Step(GlobalStep(epoch)),
                    };
                    let averages = epoch % 2 == 0;
                    Pull { shard, epoch: PlacementEpoch(epoch), placement_digest, at, averages }.into()
                })
                .boxed()
        ),
        pulled,
        without(any::<u32>().prop_map(|shard| Observe { shard }.into()).boxed()),
        without(
            any::<(u64, u64, u64)>()
                .prop_map(|(version, received, staleness)| {
                    let mut snapshot = ShardSnapshot { version: Version(version), ..Default::default() };
                    snapshot.pushes.received = received;
                    snapshot.staleness.record(staleness);
                    snapshot.into()
                })
                .boxed()
        ),
        without(
            any::<Option<String>>()
                .prop_map(|failed| {
                    let reason = match failed {
                        None => StopReason::Completed,
                        Some(words) if words.is_empty() => StopReason::Saved,
                        Some(words) => StopReason::Failed(words),
                    };
                    Stop { reason }.into()
                })
                .boxed()
        ),
        without(Just(Stopped {}.into()).boxed()),
        without(
            any::<(u32, u32, u64)>()
                .prop_map(|(shard, worker, incarnation)| {
                    Leave { shard, worker, incarnation: Incarnation(incarnation) }.into()
                })
                .boxed()
        ),
        without(Just(Left {}.into()).boxed()),
        without(
            any::<(u32, u64)>()
                .prop_map(|(shard, at)| {
                    let (store, checkpoint) = ("/c".into(), checkpoint(at));
                    Save { shard, store, checkpoint, at: Version(at) }.into()
                })
                .boxed()
        ),
        without(
            (any::<u64>(), any::<String>())
                .prop_map(|(version, words)| {
                    let result = match version % 4 {
                        0 => {
                            let manifest = crate::checkpoint::tests::manifest(version);
                            let (mut files, workers) = (manifest.files, manifest.workers);
                            SaveResult::Written { file: files.remove(0), workers, took_ms: version / 2 }
                        }
                        1 => SaveResult::Past(Version(version)),
                        2 => SaveResult::Replaced,
                        _ => SaveResult::failed(words),
                    };
                    Saved { result }.into()
                })
                .boxed()
        ),
        without(
            any::<(u32, u64)>()
                .prop_map(|(shard, step)| StopAt { shard, step: GlobalStep(step) }.into())
                .boxed()
        ),
        without(any::<u64>().prop_map(|version| StoppingAt { version: Version(version) }.into()).boxed()),
    ]
}

/// What a decoder makes of a message that is encoded as it is, checks or no checks.
fn reread(message: impl Into<Message>, segments: &[u64]) -> Result<Message, String> {
    let message = message.into();
    Message::decode(message.kind(), &message.encode(), segments).map_err(|error| error.to_string())
}

#[test]
fn a_push_has_one_segment_of_floats_for_each_slice() {
    let push = |slices: Vec<SliceId>, sequence| Push {
        drawn: 1,
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(sequence) },
        local_step: LocalStep(1),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(0),
        slices,
        pull: true,
    };
    reread(push(vec![SliceId(0)], 1), &[8]).unwrap();
    assert!(reread(push(vec![SliceId(0)], 1), &[]).unwrap_err().contains("1 slices need as many"));
    assert!(reread(push(vec![SliceId(0)], 1), &[7]).unwrap_err().contains("multiple of 4"));
    assert!(reread(push(vec![SliceId(0)], 0), &[8]).unwrap_err().contains("begins at 1"));
}

#[test]
fn a_job_or_placement_that_cannot_run_is_refused_at_decode() {
    let (resume, saves) = (Resume::default(), false);
    let good = Registered { job: job(4, 1), placement: placement(), workers: 2, resume, saves };
    reread(good.clone(), &[]).unwrap();
    assert!(reread(good.clone(), &[4]).unwrap_err().contains("no payload"));
    let mut bad = good.clone();
    bad.job.graph.nodes[3].inputs[0] = NodeId(3);
    assert!(reread(bad, &[]).unwrap_err().contains("mat_mul"));
    let mut bad = good.clone();
    bad.placement.slices[0].slice.rows = 2;
    assert!(reread(bad, &[]).is_err());
    let mut bad = good;
    bad.workers = 0;
    assert!(reread(bad, &[]).is_err());
}

#[test]
fn staleness_falls_into_buckets_of_powers_of_two() {
    let mut histogram = StalenessHistogram::default();
    for staleness in [0, 1, 2, 3, 4, u64::MAX] {
        histogram.record(staleness);
    }
    assert_eq!(histogram.buckets[..4], [1, 1, 2, 1]);
    assert_eq!(histogram.buckets[15], 1);
    assert_eq!((histogram.max, histogram.count()), (u64::MAX, 6));
}

#[test]
fn a_reason_of_any_length_still_travels() {
    let long = "ä".repeat(100_000);
    let refusal = Refusal::new(RefusalCode::Misfit, &long);
    assert!(refusal.reason.ends_with("..."));
    reread(refusal, &[]).unwrap();
    reread(Stop { reason: StopReason::failed(&long) }, &[]).unwrap();
    reread(Evaluated::failed(&long), &[]).unwrap();
    let finish =
        Finish { result: TrainingResult::failed(&long), local_step: LocalStep(0), loss: 0.0, skipped: 0 };
    reread(finish, &[]).unwrap();
    assert!(reread(Refusal { code: RefusalCode::Misfit, reason: long }, &[]).is_err());
}

#[test]
fn counts_of_a_peer_that_overflow_do_not_add_up() {
    let counters = ShardCounters { applied: u64::MAX, stopped: 1, ..Default::default() };
    assert!(!counters.add_up());
}
