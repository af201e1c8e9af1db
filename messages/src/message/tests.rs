//! Tests of the rules that are checked when a message is decoded.

use super::*;
use crate::checkpoint::StartSpec;
use crate::cluster::ClusterSpec;
use crate::fixtures::{job, placement};
use crate::graph::METRICS_MAX;
use crate::id::*;
use crate::job::JobSpec;
use crate::observe::*;
use crate::optimizer::{GroupSpec, OptimizerSpec, UpdateSpec};
use crate::placement::{PlacedSlice, Placement, SHARDS_MAX, SliceSpec};

/// Encodes a message without checking it, and decodes the bytes. `segments` are the lengths of the payload
/// segments in bytes.
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
        with: Vec::new(),
    };
    reread(push(vec![SliceId(0)], 1), &[8]).unwrap();
    assert!(reread(push(vec![SliceId(0)], 1), &[]).unwrap_err().contains("one for each of 1 slices"));
    assert!(reread(push(vec![SliceId(0)], 1), &[7]).unwrap_err().contains("multiple of 4"));
    assert!(reread(push(vec![SliceId(0)], 0), &[8]).unwrap_err().contains("expected at least 1"));
}

#[test]
fn contributions_are_of_other_workers_in_order() {
    let id = |worker, sequence| PushId { worker, incarnation: Incarnation(1), sequence: Sequence(sequence) };
    let push = |others: &[(u32, u64)]| {
        let with = others.iter().map(|&(worker, sequence)| Contribution {
            id: id(worker, sequence),
            local_step: LocalStep(2),
            drawn: 3,
        });
        Push {
            shard: 0,
            id: id(2, 1),
            local_step: LocalStep(0),
            epoch: PlacementEpoch(1),
            placement_digest: 0,
            version: Version(0),
            slices: Vec::new(),
            drawn: 0,
            pull: true,
            traced: false,
            with: with.collect(),
        }
    };
    for good in [&[][..], &[(0, 1)], &[(0, 1), (1, 9), (3, 1)]] {
        let push = push(good);
        assert_eq!(push.count() as usize, 1 + good.len());
        reread(push.clone(), &[]).unwrap();
        reread(RelayPush { ps: 0, push }, &[]).unwrap();
    }
    let all: Vec<(u32, u64)> = (3..3 + WORKERS_MAX).map(|worker| (worker, 1)).collect();
    for (bad, expected) in [
        (&[(1, 1), (0, 1)][..], "the contributions of a push are not in order"),
        (&[(0, 1), (0, 1)], "at most once"),
        (&[(2, 1)], "at most once"),
        (&[(0, 0)], "the sequence of a push is 0"),
        (&all, "a push has 65537 contributions, expected at most 65536"),
    ] {
        let push = push(bad);
        for refused in [reread(push.clone(), &[]), reread(RelayPush { ps: 0, push: push.clone() }, &[])] {
            assert!(refused.as_ref().unwrap_err().contains(expected), "{refused:?}");
        }
    }
}

#[test]
fn an_invalid_job_or_placement_is_refused() {
    let (resume, saves) = (Resume::default(), false);
    let (summary_every, trace) = (None, None);
    let good = Registered {
        job: job(4, 1),
        placement: placement(),
        workers: 2,
        share: None,
        resume,
        saves,
        saves_in_memory: false,
        summary_every,
        trace,
        begun: true,
    };
    reread(good.clone(), &[]).unwrap();
    assert!(reread(good.clone(), &[4]).unwrap_err().contains("no payload"));
    for (position, shares) in [(0, 0), (2, 2), (1, WORKERS_MAX + 1)] {
        let share = Some(Share { position, shares, examples: 1 });
        let expected = format!("share is {position} of {shares}");
        let reported = Reported { stop: None, clock_us: 0, share };
        assert!(reread(reported, &[]).unwrap_err().contains(&expected));
        assert!(reread(Registered { share, ..good.clone() }, &[]).unwrap_err().contains(&expected));
    }
    let mut bad = good.clone();
    bad.job.graph.nodes[3].inputs[0] = NodeId(3);
    assert!(reread(bad, &[]).unwrap_err().contains("mat_mul"));
    let mut bad = good.clone();
    bad.placement.slices[0].slice.rows = 2;
    assert!(reread(bad, &[]).is_err());
    let mut bad = good.clone();
    bad.workers = 0;
    assert!(reread(bad, &[]).is_err());
    let bad = Registered { summary_every: Some(0), ..good.clone() };
    assert!(reread(bad, &[]).unwrap_err().contains("summary_every is 0"));
    let bad = Registered { trace: Some(TraceSpec::every(0)), ..good };
    assert!(reread(bad, &[]).unwrap_err().contains("expected 1 or more"));
}

#[test]
fn staleness_is_counted_in_powers_of_two() {
    let mut histogram = StalenessHistogram::default();
    for staleness in [0, 1, 2, 3, 4, u64::MAX] {
        histogram.record(staleness);
    }
    assert_eq!(histogram.buckets[..4], [1, 1, 2, 1]);
    assert_eq!(histogram.buckets[15], 1);
    assert_eq!((histogram.max, histogram.count()), (u64::MAX, 6));
}

#[test]
fn a_long_reason_is_cut_to_be_sent() {
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
fn a_split_variable_is_refused_for_lamb() {
    let job = job(1, 1);
    let mut placement = placement();
    let [first, rest] = [0, 1].map(|row| SliceSpec { row, rows: 1 + row, ..placement.slices[0].slice });
    let create = |placement: &Placement, optimizer: OptimizerSpec| CreateShard {
        job: 0,
        shard: placement.shards[0],
        placement: placement.clone(),
        variables: job.graph.variables.clone(),
        update: optimizer.into(),
        compression: Vec::new(),
        sync: job.sync,
        pipeline: 1,
        deterministic: false,
        workers: 1,
        last_step: job.last_step,
        seed: 1,
        start: StartSpec::Initialise,
    };
    reread(create(&placement, OptimizerSpec::lamb(0.1)), &[]).unwrap();
    placement.slices = [first, rest].map(|slice| PlacedSlice { slice, ..placement.slices[0] }).into();
    reread(create(&placement, OptimizerSpec::adam(0.1)), &[]).unwrap();
    let refused = reread(create(&placement, OptimizerSpec::lamb(0.1)), &[]).unwrap_err();
    assert!(refused.contains("variable 'kernel' is split, but lamb needs it in one slice"), "{refused}");
    let grouped = |group: GroupSpec| {
        let create = create(&placement, OptimizerSpec::lamb(0.1));
        CreateShard { update: UpdateSpec { groups: vec![group], ..create.update.clone() }, ..create }
    };
    reread(grouped(GroupSpec::new("k*").optimizer(OptimizerSpec::adam(0.1))), &[]).unwrap();
    let refused = reread(grouped(GroupSpec::new("bias")), &[]).unwrap_err();
    assert!(refused.contains("pattern 'bias' selects no variable"), "{refused}");
}

#[test]
fn an_update_of_some_workers_is_not_deterministic() {
    let JobSpec { graph, last_step, .. } = job(1, 1);
    let placement = placement();
    let create = |sync: &str, workers| CreateShard {
        job: 0,
        shard: placement.shards[0],
        placement: placement.clone(),
        variables: graph.variables.clone(),
        update: OptimizerSpec::adam(0.1).into(),
        compression: Vec::new(),
        sync: sync.parse().unwrap(),
        pipeline: 1,
        deterministic: true,
        workers,
        last_step,
        seed: 1,
        start: StartSpec::Initialise,
    };
    for (sync, workers) in [("sync", 3), ("sync:3", 3), ("sync:4", 3)] {
        reread(create(sync, workers), &[]).unwrap();
        reread(CreateShard { deterministic: false, ..create("sync:2", workers) }, &[]).unwrap();
    }
    for sync in ["async", "bounded:1", "sync:2"] {
        let refused = reread(create(sync, 3), &[]).unwrap_err();
        assert!(refused.contains(&format!("{sync} with 3 workers is not deterministic")), "{refused}");
    }
}

#[test]
fn metrics_and_evaluations_of_a_report_are_bounded() {
    let report = |metrics: usize| Report { metrics: vec![0.5; metrics], ..Report::default() };
    reread(report(METRICS_MAX), &[]).unwrap();
    let refused = reread(report(METRICS_MAX + 1), &[]).unwrap_err();
    assert!(refused.contains("got 1025 metrics, expected at most 1024"), "{refused}");
    let evaluation = |metrics: usize| {
        let metrics = vec![MetricValue { name: "a".into(), value: 0.5 }; metrics];
        let evaluation = Evaluation { loss: 0.5, metrics, examples: 1, variables_crc32c: 0 };
        StepEvaluation { step: GlobalStep(1), evaluation }
    };
    let evaluated = |evaluations| Report { evaluations, ..Report::default() };
    // An evaluation has a loss in addition to its metrics.
    let full = vec![evaluation(1023); REPORT_NUMBERS_MAX / 1024];
    reread(evaluated(full.clone()), &[]).unwrap();
    let refused = reread(evaluated([full, vec![evaluation(0)]].concat()), &[]).unwrap_err();
    assert!(refused.contains("got 4097 numbers in evaluations, expected at most 4096"), "{refused}");
    let refused = reread(evaluated(vec![evaluation(METRICS_MAX + 1)]), &[]).unwrap_err();
    assert!(refused.contains("got 1025 metrics, expected at most 1024"), "{refused}");
}

#[test]
fn counts_that_overflow_do_not_add_up() {
    let counters = ShardCounters { applied: u64::MAX, stopped: 1, ..Default::default() };
    assert!(!counters.add_up());
}

#[test]
fn spans_phases_trips_and_endpoints_are_bounded() {
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
    assert!(refused(vec![span(1, 1); SPANS_MAX + 1]).contains("got 4097 spans, expected at most 4096"));
    assert!(refused(vec![span(1, 1), span(129, 1)]).contains("has 129 bytes, expected at most 128"));
    assert!(refused(vec![span(1, 129)]).contains("has 129 bytes, expected at most 128"));
    let snapshot = |snapshot| Report { snapshot: Some(Box::new(snapshot)), ..Report::default() };
    let phase =
        |bytes: usize| snapshot(WorkerSnapshot { phase: Some("p".repeat(bytes)), ..Default::default() });
    reread(phase(Phases::NAME_BYTES_MAX), &[]).unwrap();
    let refused = reread(phase(Phases::NAME_BYTES_MAX + 1), &[]).unwrap_err();
    assert!(refused.contains("the name of a phase has 17 bytes, expected at most 16"), "{refused}");
    let round_trips = |shards: &[u32]| {
        let trip =
            |&shard: &u32| RoundTrip { shard: ShardId::new(0, shard), times: TimeHistogram::default() };
        snapshot(WorkerSnapshot { round_trips: shards.iter().map(trip).collect(), ..Default::default() })
    };
    reread(round_trips(&[0, 1, 7]), &[]).unwrap();
    let many: Vec<u32> = (0..=SHARDS_MAX as u32).collect();
    for bad in [&[1, 0][..], &[0, 1, 1], &many] {
        assert!(
            reread(round_trips(bad), &[]).unwrap_err().contains("each shard once and in ascending order")
        );
    }

    let cluster = ClusterSpec::new([(JobName::Ps, vec!["p:1"]), (JobName::Worker, vec!["w:1"])]).unwrap();
    let (task, incarnation) = (TaskId::ps(0), Incarnation(1));
    let hello = |http: usize| Hello {
        protocol: PROTOCOL,
        task,
        incarnation,
        to: Some(task),
        cluster: Some(cluster.clone()),
        graph: None,
        http: Some("h".repeat(http)),
        nonce: 0,
    };
    let welcome = |http: usize| Welcome {
        protocol: PROTOCOL,
        task,
        incarnation,
        shards: 1,
        payload_bytes_max: 1,
        requests_max: 1,
        http: Some("h".repeat(http)),
        nonce: 0,
    };
    // A host name has at most 253 bytes.
    reread(hello(267), &[]).unwrap();
    reread(Hello { to: None, cluster: None, ..hello(1) }, &[]).unwrap();
    for half in [Hello { to: None, ..hello(1) }, Hello { cluster: None, ..hello(1) }] {
        assert!(reread(half, &[]).unwrap_err().contains("got only one of the fields of a cluster"));
    }
    reread(welcome(267), &[]).unwrap();
    for refused in [reread(hello(300), &[]), reread(welcome(300), &[])] {
        assert!(
            refused.unwrap_err().contains("the address of an endpoint has 300 bytes, expected at most 272")
        );
    }
}

/// Removes these fields from an encoded message and decodes it, as if a peer of an earlier build had sent
/// it.
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
fn a_peer_without_the_fields_of_observation_is_accepted() {
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
        with: Vec::new(),
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
    let reported = Reported { stop: None, clock_us: 0, share: None };
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
        nonce: 0,
    };
    assert_eq!(without_fields(welcome.clone(), &["http"], &[]), welcome.into());
}

#[test]
fn requests_to_stages_are_bounded() {
    use super::{ComputeStage, ServeStage};
    use crate::fixtures::any_stage::staged_job;
    let compute = ComputeStage { run: 1, random: 2, values: 3, keep: Vec::new(), evaluates: None };
    let open = |stage| OpenStage { job: staged_job(1), placement: placement(), stage };
    let refused =
        |message: Message| Message::decode(message.kind(), &message.encode(), &[]).unwrap_err().to_string();
    for (message, expected) in [
        (
            ComputeStage { keep: vec![0; 17], ..compute.clone() }.into(),
            "keeps 17 sets of values, expected at most 16",
        ),
        (ComputeStage { evaluates: Some(0), ..compute }.into(), "evaluates 0 examples"),
        (open(0).into(), "the stage is 0, expected 1 or more, and less than 2"),
        (open(2).into(), "the stage is 2"),
        (ServeStage { leader: 0, replicas: 0 }.into(), "got leader 0 of 0 replicas"),
        (ServeStage { leader: 2, replicas: 2 }.into(), "got leader 2 of 2 replicas"),
    ] {
        let error = refused(message);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_number_of_an_appointment_leaves_room_for_more() {
    let (most, incarnation) = (1 << 62, Incarnation(1));
    let appoint = |number| Appoint { shard: 0, worker: 0, incarnation, number };
    let created = |appointed| ShardCreated { slices: 1, bytes: 4, version: Version(0), appointed };
    reread(appoint(most), &[]).unwrap();
    reread(created(most), &[]).unwrap();
    // A chief that continues the job could not number its own appointments.
    for refused in [reread(appoint(most + 1), &[]), reread(created(u64::MAX), &[])] {
        assert!(refused.unwrap_err().contains("expected at most 4611686018427387904"));
    }
}

#[test]
fn bad_requests_about_files_are_refused() {
    let put = |name: &str, offset, total| AccessFiles {
        access: FileAccess::Put { name: name.into(), upload: 1, offset, total },
    };
    let good = put("step-1-0a/ps-0-shard-0.safetensors", 4, 12);
    assert_eq!(reread(good.clone(), &[8]).unwrap(), good.clone().into());
    for (bad, segments, words) in [
        (good.clone(), &[][..], "0 payload segment(s), expected one"),
        (good.clone(), &[0], "expected one with at least 1 byte"),
        (good.clone(), &[4, 4], "2 payload segment(s)"),
        (good, &[9], "no byte after its end"),
        (put("a", u64::MAX, u64::MAX), &[1], "no byte after its end"),
        (put("a", 0, u64::MAX), &[FILE_PIECE_BYTES_MAX + 1], "expected at most 16777216"),
        (put("../a", 0, 1), &[1], "'../a' is not the name of a file"),
        (put("/etc/passwd", 0, 1), &[1], "is not the name of a file"),
        (put("a\nb", 0, 1), &[1], "'a\\nb' is not the name of a file"),
        (put(&"a".repeat(1 << 20), 0, 1), &[1], "is not the name of a file"),
    ] {
        let error = reread(bad, segments).unwrap_err();
        assert!(error.contains(words) && error.len() < 400, "{words} in {error}");
    }
    let get = FileAccess::Get { name: "a".into(), offset: 0, bytes: FILE_PIECE_BYTES_MAX + 1 };
    let list = FileAccess::List { folder: "a/..".into() };
    let delete = FileAccess::Delete { name: String::new() };
    for access in [get, list, delete] {
        reread(AccessFiles { access }, &[]).unwrap_err();
    }
    let reread_result = |result, segments: &[u64]| reread(FilesAccessed { result }, segments);
    reread_result(FilesResult::Found { bytes: 1 }, &[]).unwrap();
    reread_result(FilesResult::Found { bytes: 1 }, &[FILE_PIECE_BYTES_MAX + 1]).unwrap_err();
    reread_result(FilesResult::Done, &[1]).unwrap_err();
    let file = ListedFile { name: "a".into(), bytes: 1 };
    reread_result(FilesResult::Listed(vec![file.clone(); FILES_KEPT_MAX + 1]), &[]).unwrap_err();
    reread_result(FilesResult::Listed(vec![ListedFile { name: "..".into(), ..file }]), &[]).unwrap_err();
}
