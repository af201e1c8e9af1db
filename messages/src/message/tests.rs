//! Any message that can be said, for the codec's tests; and the rules that a decoded message must keep.

use proptest::prelude::*;

use super::*;
use crate::checkpoint::{CheckpointName, SourceSpec, StartSpec};
use crate::cluster::ClusterSpec;
use crate::graph::GraphBuilder;
use crate::id::*;
use crate::input::InputSpec;
use crate::job::JobSpec;
use crate::observe::*;
use crate::optimizer::OptimizerSpec;
use crate::placement::{PlacedSlice, Placement, SHARDS_MAX, SliceSpec};
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

fn any_task() -> impl Strategy<Value = TaskId> + Clone {
    (0usize..4, any::<u32>()).prop_map(|(job, index)| TaskId::new(JobName::ALL[job], index))
}

fn any_times() -> impl Strategy<Value = TimeHistogram> {
    any::<([u64; TimeHistogram::BUCKETS], u64)>()
        .prop_map(|(buckets, sum_us)| TimeHistogram { buckets, sum_us })
}

fn any_traffic() -> impl Strategy<Value = Traffic> {
    any::<(u64, u64)>().prop_map(|(messages, payload_bytes)| Traffic { messages, payload_bytes })
}

fn any_push_times() -> impl Strategy<Value = PushTimes> {
    any::<[Micros; 4]>().prop_map(|[received_us, taken_us, done_us, answered_us]| PushTimes {
        received_us,
        taken_us,
        done_us,
        answered_us,
    })
}

pub(crate) fn any_actor() -> impl Strategy<Value = ActorSnapshot> {
    (any::<(String, String, u64, Option<u64>, u64)>(), any_times(), any_times()).prop_map(
        |((name, state, queue, busy_us, restarts), waited, handling)| ActorSnapshot {
            name,
            state,
            queue,
            waited,
            handling,
            busy_us,
            restarts,
        },
    )
}

pub(crate) fn any_shard() -> impl Strategy<Value = ShardSnapshot> {
    (any::<[u64; 20]>(), any::<bool>(), any_times(), any_times(), any_actor()).prop_map(
        |(counts, leaving, applying, saving, actor)| {
            let [version, began, slices, bytes, pulls, held_bytes, slot_bytes, not_finite, rest @ ..] =
                counts;
            let [saves_failed, few, staleness, behind, rest @ ..] = rest;
            let [received, applied, held, stale, stopped, duplicate, refused, _] = rest;
            let pushes = ShardCounters { received, applied, held, stale, stopped, duplicate, refused };
            let mut snapshot = ShardSnapshot {
                version: Version(version),
                began: Version(began),
                slices,
                bytes,
                pushes,
                pulls,
                staleness: StalenessHistogram::default(),
                steps_behind: StalenessHistogram::default(),
                members: few as u32,
                waiting: (few >> 32) as u32,
                leaving,
                held_bytes,
                slot_bytes,
                not_finite,
                applying,
                saving,
                saves_failed,
                actor,
            };
            snapshot.staleness.record(staleness);
            snapshot.steps_behind.record(behind);
            snapshot
        },
    )
}

fn any_worker() -> impl Strategy<Value = WorkerSnapshot> {
    let round_trip = (any::<(u32, u32)>(), any_times())
        .prop_map(|((ps, shard), times)| RoundTrip { shard: ShardId::new(ps, shard), times });
    (
        any::<[u64; 14]>(),
        prop::option::of(-1e6f32..1e6),
        prop::collection::vec(any_times(), 5),
        prop::collection::vec(round_trip, 0..3),
        (any_traffic(), any_traffic()),
        (prop::option::of("[a-z]{0,16}"), any::<u64>()),
    )
        .prop_map(|(counts, loss, times, mut round_trips, (sent, received), (phase, phase_us))| {
            round_trips.sort_by_key(|trip| trip.shard);
            round_trips.dedup_by_key(|trip| trip.shard);
            let [local_step, global_step, drawn, examples, skipped, rest @ ..] = counts;
            let [applied, held, stale, stopped, staleness, rest @ ..] = rest;
            let [in_flight_bytes, in_flight_bytes_max, reconnections, resends] = rest;
            let mut histogram = StalenessHistogram::default();
            histogram.record(staleness);
            WorkerSnapshot {
                local_step: LocalStep(local_step),
                global_step: GlobalStep(global_step),
                drawn,
                examples,
                loss,
                skipped,
                phases: Phases {
                    input: times[0],
                    compute: times[1],
                    filter: times[2],
                    exchange: times[3],
                    hooks: times[4],
                },
                phase,
                phase_us,
                verdicts: VerdictCounters { applied, held, stale, stopped },
                staleness: histogram,
                round_trips,
                in_flight_bytes,
                in_flight_bytes_max,
                sent,
                received,
                reconnections,
                resends,
            }
        })
}

fn any_span() -> impl Strategy<Value = SpanSpec> {
    let push = any::<(u32, u64, u64, u32, u32)>().prop_map(|(worker, incarnation, sequence, ps, shard)| {
        let id = PushId { worker, incarnation: Incarnation(incarnation), sequence: Sequence(sequence) };
        (id, ShardId::new(ps, shard))
    });
    let words = || ".{0,32}";
    (any_task(), words(), words(), prop::option::of(push), any::<(Option<u64>, Micros, Micros)>()).prop_map(
        |(task, lane, name, push, (local_step, start_us, took_us))| SpanSpec {
            task,
            lane,
            name,
            push,
            local_step,
            start_us,
            took_us,
        },
    )
}

fn any_http() -> impl Strategy<Value = Option<String>> {
    prop::option::of(".{0,60}")
}

/// Any message, and the bytes of the payload segments that it needs.
pub(crate) fn any_message() -> impl Strategy<Value = (Message, Vec<Vec<u8>>)> {
    let without = |message: BoxedStrategy<Message>| message.prop_map(|message| (message, vec![])).boxed();
    let task = any_task();
    let segments = prop::collection::vec(
        (0usize..20).prop_flat_map(|floats| prop::collection::vec(any::<u8>(), floats * 4)),
        0..5,
    );
    let slices = |segments: &Vec<Vec<u8>>| (0..segments.len() as u32).map(SliceId).collect::<Vec<_>>();
    let push =
        (segments.clone(), any::<(u32, u32, u64, u64)>(), 1u64.., any::<(u64, u32, u64, bool, bool)>())
            .prop_map(
                move |(
                    segments,
                    (shard, worker, incarnation, step),
                    sequence,
                    (epoch, digest, version, pull, traced),
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
                        traced,
                    };
                    (push.into(), segments)
                },
            );
    let told = (any::<(u64, u64)>(), prop::option::of(any_push_times()));
    let pushed = (segments.clone(), told, 0u64..9).prop_map(move |(segments, told, which)| {
        let ((version, staleness), times) = told;
        let verdict = match which {
            0 => Verdict::Applied,
            1 => Verdict::Held,
            2 => Verdict::Stopped,
            by => Verdict::Stale { by },
        };
        let last_step = GlobalStep(version / 3);
        (
            Pushed {
                verdict,
                version: Version(version),
                last_step,
                slices: slices(&segments),
                staleness,
                times,
            }
            .into(),
            segments,
        )
    });
    let pulled = (segments, any::<(u64, u64)>()).prop_map(move |(segments, (version, step))| {
        let (version, step) = (Version(version), GlobalStep(step));
        let last_step = GlobalStep(version.0 / 3);
        (Pulled { version, step, last_step, slices: slices(&segments) }.into(), segments)
    });
    prop_oneof![
        without(
            (task.clone(), task.clone(), any::<(u16, u64)>(), 1u16.., any::<Option<u32>>(), any_http())
                .prop_map(|(task, to, (protocol, incarnation), port, graph, http)| {
                    let jobs = [(JobName::Ps, format!("p:{port}")), (JobName::Worker, format!("w:{port}"))];
                    let cluster = ClusterSpec::new(jobs.map(|(job, address)| (job, vec![address]))).unwrap();
                    Hello { protocol, task, incarnation: Incarnation(incarnation), to, cluster, graph, http }
                        .into()
                })
                .boxed()
        ),
        without(
            (task, any::<(u16, u64, u64, u32)>(), 0u32..=256, any_http())
                .prop_map(|(task, (protocol, incarnation, payload_bytes_max, requests_max), shards, http)| {
                    let incarnation = Incarnation(incarnation);
                    Welcome { protocol, task, incarnation, shards, payload_bytes_max, requests_max, http }
                        .into()
                })
                .boxed()
        ),
        without(any::<String>().prop_map(|reason| Refusal::new(RefusalCode::Misfit, reason).into()).boxed()),
        without(Just(Heartbeat {}.into()).boxed()),
        without(Just(Register {}.into()).boxed()),
        without(Just(Ready {}.into()).boxed()),
        without(Just(Go {}.into()).boxed()),
        without(
            (1u32..1000, any::<u64>(), 1u32..9, prop::option::of(1u64..))
                .prop_map(|(batch, seed, workers, every)| {
                    let resume = Resume { drawn: seed / 2, examples: seed / 3 };
                    let saves = seed % 2 == 0;
                    Registered {
                        job: job(batch, seed),
                        placement: placement(),
                        workers,
                        resume,
                        saves,
                        trace: every.map(|every| TraceSpec { every }),
                    }
                    .into()
                })
                .boxed()
        ),
        without(
            (
                any::<(u64, u64, u64)>(),
                -1e6f32..1e6,
                prop::option::of(any_worker()),
                prop::collection::vec(any_span(), 0..4),
            )
                .prop_map(|((step, local, spans_lost), loss, snapshot, spans)| {
                    let summaries = vec![SummarySpec::scalar("loss", GlobalStep(step), loss)];
                    Report {
                        global_step: GlobalStep(step),
                        number: spans_lost / 3,
                        local_step: LocalStep(local),
                        loss,
                        drawn: local / 2,
                        gradient_norm: (step % 2 == 0).then_some(loss),
                        summaries,
                        snapshot: snapshot.map(Box::new),
                        spans,
                        spans_lost,
                    }
                    .into()
                })
                .boxed()
        ),
        without(
            any::<(Option<String>, Micros)>()
                .prop_map(|(stop, clock_us)| Reported { stop, clock_us }.into())
                .boxed()
        ),
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
        without(any_shard().prop_map(Message::from).boxed()),
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
        traced: false,
    };
    reread(push(vec![SliceId(0)], 1), &[8]).unwrap();
    assert!(reread(push(vec![SliceId(0)], 1), &[]).unwrap_err().contains("1 slices need as many"));
    assert!(reread(push(vec![SliceId(0)], 1), &[7]).unwrap_err().contains("multiple of 4"));
    assert!(reread(push(vec![SliceId(0)], 0), &[8]).unwrap_err().contains("begins at 1"));
}

#[test]
fn a_job_or_placement_that_cannot_run_is_refused_at_decode() {
    let (resume, saves) = (Resume::default(), false);
    let good = Registered { job: job(4, 1), placement: placement(), workers: 2, resume, saves, trace: None };
    reread(good.clone(), &[]).unwrap();
    assert!(reread(good.clone(), &[4]).unwrap_err().contains("no payload"));
    let mut bad = good.clone();
    bad.job.graph.nodes[3].inputs[0] = NodeId(3);
    assert!(reread(bad, &[]).unwrap_err().contains("mat_mul"));
    let mut bad = good.clone();
    bad.placement.slices[0].slice.rows = 2;
    assert!(reread(bad, &[]).is_err());
    let mut bad = good.clone();
    bad.workers = 0;
    assert!(reread(bad, &[]).is_err());
    let bad = Registered { trace: Some(TraceSpec { every: 0 }), ..good };
    assert!(reread(bad, &[]).unwrap_err().contains("expected 1 or more"));
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

#[test]
fn what_is_told_beside_the_training_is_bounded() {
    let span = |lane: usize, name: usize| SpanSpec {
        task: TaskId::worker(0),
        lane: "l".repeat(lane),
        name: "n".repeat(name),
        push: None,
        local_step: None,
        start_us: -1,
        took_us: 1,
    };
    let report = |spans| Report { spans, ..Report::default() };
    reread(report(vec![span(LANE_BYTES_MAX, LANE_BYTES_MAX); SPANS_MAX]), &[]).unwrap();
    let refused = |spans| reread(report(spans), &[]).unwrap_err();
    assert!(refused(vec![span(1, 1); SPANS_MAX + 1]).contains("at most 4096 spans, and got 4097"));
    assert!(refused(vec![span(1, 1), span(129, 1)]).contains("at most 128 bytes, and one has 129"));
    assert!(refused(vec![span(1, 129)]).contains("at most 128 bytes, and one has 129"));
    let snapshot = |snapshot| Report { snapshot: Some(Box::new(snapshot)), ..Report::default() };
    let phase =
        |bytes: usize| snapshot(WorkerSnapshot { phase: Some("p".repeat(bytes)), ..Default::default() });
    reread(phase(Phases::NAME_BYTES_MAX), &[]).unwrap();
    let refused = reread(phase(Phases::NAME_BYTES_MAX + 1), &[]).unwrap_err();
    assert!(refused.contains("the name of a phase may have at most"), "{refused}");
    let round_trips = |shards: &[u32]| {
        let trip =
            |&shard: &u32| RoundTrip { shard: ShardId::new(0, shard), times: TimeHistogram::default() };
        snapshot(WorkerSnapshot { round_trips: shards.iter().map(trip).collect(), ..Default::default() })
    };
    reread(round_trips(&[0, 1, 7]), &[]).unwrap();
    let many: Vec<u32> = (0..=SHARDS_MAX as u32).collect();
    for bad in [&[1, 0][..], &[0, 1, 1], &many] {
        assert!(reread(round_trips(bad), &[]).unwrap_err().contains("each once and in their order"));
    }

    let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])]).unwrap();
    let (task, incarnation) = (TaskId::ps(0), Incarnation(1));
    let hello = |http: usize| Hello {
        protocol: PROTOCOL,
        task,
        incarnation,
        to: task,
        cluster: cluster.clone(),
        graph: None,
        http: Some("h".repeat(http)),
    };
    let welcome = |http: usize| Welcome {
        protocol: PROTOCOL,
        task,
        incarnation,
        shards: 1,
        payload_bytes_max: 1,
        requests_max: 1,
        http: Some("h".repeat(http)),
    };
    // A host name has at most 253 bytes.
    reread(hello(259), &[]).unwrap();
    reread(welcome(259), &[]).unwrap();
    for refused in [reread(hello(300), &[]), reread(welcome(300), &[])] {
        assert!(refused.unwrap_err().contains("the address of an endpoint may have at most"));
    }
}

/// What a peer sends that knows nothing of the fields of these names.
fn without_fields(message: impl Into<Message>, fields: &[&str], segments: &[u64]) -> Message {
    let message = message.into();
    let mut content: serde_json::Map<String, serde_json::Value> =
        rmp_serde::from_slice(&message.encode()).unwrap();
    for &field in fields {
        content.remove(field).unwrap_or_else(|| panic!("{} has no {field}", message.name()));
    }
    let bytes = rmp_serde::to_vec_named(&content).unwrap();
    Message::decode(message.kind(), &bytes, segments).unwrap()
}

#[test]
fn a_peer_that_tells_nothing_of_what_can_be_observed_is_understood() {
    let push = Push {
        drawn: 1,
        shard: 0,
        id: PushId { worker: 0, incarnation: Incarnation(1), sequence: Sequence(1) },
        local_step: LocalStep(1),
        epoch: PlacementEpoch(1),
        placement_digest: 0,
        version: Version(0),
        slices: vec![SliceId(0)],
        pull: true,
        traced: false,
    };
    assert_eq!(without_fields(push.clone(), &["traced"], &[8]), push.into());
    let pushed = Pushed {
        verdict: Verdict::Applied,
        version: Version(1),
        last_step: GlobalStep(2),
        staleness: 0,
        times: None,
        slices: Vec::new(),
    };
    assert_eq!(without_fields(pushed.clone(), &["staleness", "times"], &[]), pushed.into());
    let reported = Reported { stop: None, clock_us: 0 };
    assert_eq!(without_fields(reported.clone(), &["clock_us"], &[]), reported.into());
    let shard = ShardSnapshot { version: Version(7), pulls: 3, ..ShardSnapshot::default() };
    let new = ["held_bytes", "slot_bytes", "not_finite", "applying", "saving", "saves_failed", "actor"];
    assert_eq!(without_fields(shard.clone(), &new, &[]), shard.into());
    let report = Report { local_step: LocalStep(1), loss: 0.5, drawn: 1, ..Report::default() };
    assert_eq!(
        without_fields(report.clone(), &["number", "snapshot", "spans", "spans_lost"], &[]),
        report.into()
    );
    let welcome = Welcome {
        protocol: PROTOCOL,
        task: TaskId::ps(0),
        incarnation: Incarnation(1),
        shards: 1,
        payload_bytes_max: 1,
        requests_max: 1,
        http: None,
    };
    assert_eq!(without_fields(welcome.clone(), &["http"], &[]), welcome.into());
}
