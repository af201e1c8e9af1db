//! Tests of graphs whose operations are on several worker tasks. A replica with stages computes the same bits
//! as one worker with the whole graph, and it survives the death of any of its tasks.

use std::sync::Arc;

use pushpull::{
    DatasetSpec, DeviceList, Embedded, GraphBuilder, GraphSpec, InitializerSpec, InputSpec, JobProgress,
    JobReport, JobSpec, PartitionerSpec, PlacementSpec, SyncSpec,
};
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{
    CloseStage, ComputeStage, Message, Register, StageComputed, StageValue, StageValueKey,
};
use pushpull_transport::buffer::{Buffer, Payload, Segment};
use pushpull_transport::{Connection, Identity};
use pushpull_worker::{Hook, WorkerConfig};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, ENDLESS, Job, Report, all_end_well, wait_for_version, whisper};

/// Returns the device scope of a stage.
fn stage(index: u32) -> String {
    format!("/job:worker/task:{index}")
}

/// Returns a model whose layers are on these stages: a hidden layer with batch normalisation, one with
/// dropout, and the logits with the loss.
fn graph([first, second, last]: [u32; 3]) -> GraphSpec {
    let mut g = GraphBuilder::new("three layers");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.device(&stage(first), |g| {
        let x = g.reshape(images, [784]);
        let kernel = g.variable("first/kernel", [784, 32], InitializerSpec::GlorotUniform);
        let x = g.matmul(x, kernel);
        let vector = |g: &mut GraphBuilder, name: &str, value| {
            g.variable(name, [32], InitializerSpec::Constant { value })
        };
        let (gamma, beta) = (vector(g, "gamma", 1.0), vector(g, "beta", 0.0));
        let mean = g.untrained("mean", [32], InitializerSpec::Zeros);
        let variance = g.untrained("variance", [32], InitializerSpec::Constant { value: 1.0 });
        let x = g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.9);
        g.relu(x)
    });
    let x = g.device(&stage(second), |g| {
        let kernel = g.variable("second/kernel", [32, 24], InitializerSpec::GlorotUniform);
        let x = g.matmul(x, kernel);
        let x = g.dropout(x, 0.2);
        g.relu(x)
    });
    let (loss, accuracy) = g.device(&stage(last), |g| {
        let kernel = g.variable("logits/kernel", [24, 10], InitializerSpec::GlorotUniform);
        let bias = g.variable("logits/bias", [10], InitializerSpec::Zeros);
        let logits = g.matmul(x, kernel);
        let logits = g.bias_add(logits, bias);
        let loss = g.softmax_cross_entropy(logits, labels);
        let accuracy = g.accuracy(logits, labels);
        (loss, accuracy)
    });
    g.finish(loss, &[("accuracy", accuracy)]).expect("a graph")
}

fn job(graph: GraphSpec, steps: u64) -> JobSpec {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    JobSpec {
        batch_size: 16,
        sync: SyncSpec::SYNC,
        deterministic: true,
        placement: PlacementSpec { partitioner: PartitionerSpec::Fixed { slices: 3 }, ..Default::default() },
        seed: 5,
        ..JobSpec::new(graph, InputSpec::new(digits(1, 1000), digits(2, 200)), steps)
    }
}

fn train(workers: u32, job: JobSpec) -> JobReport {
    let mut cluster = Embedded::new(2, workers);
    cluster.worker_config.threads = 1;
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    actix_rt::System::new().block_on(run).expect("the job trains to its end")
}

/// Returns the bits of the losses and of the metric.
fn bits(report: &JobReport) -> [u32; 3] {
    let metric = report.evaluation.metrics[0].value;
    [report.train_loss, report.evaluation.loss, metric].map(f32::to_bits)
}

#[track_caller]
fn holds(report: &JobReport, steps: u64, workers: u64) {
    assert_eq!(report.updates_applied, steps);
    for (shard, seen) in &report.shards {
        assert!(seen.pushes.add_up(), "V2 on {shard}: {seen:?}");
        assert_eq!((seen.pushes.held, seen.version.0), (steps * workers, steps), "V3 on {shard}: {seen:?}");
    }
}

#[test]
fn any_stages_give_the_bits_of_one_worker() {
    let expected = train(1, job(graph([0, 0, 0]), 60));
    for (stages, workers) in [([0, 0, 1], 2), ([0, 1, 1], 2), ([1, 0, 1], 2), ([0, 1, 2], 3), ([3, 1, 0], 4)]
    {
        let report = train(workers, job(graph(stages), 60));
        assert_eq!(bits(&report), bits(&expected), "{stages:?}");
        holds(&report, 60, 1);
    }
}

#[test]
fn two_replicas_with_stages_give_the_bits_of_two_workers() {
    let expected = train(2, job(graph([0, 0, 0]), 60));
    let report = train(4, job(graph([0, 1, 1]), 60));
    assert_eq!(bits(&report), bits(&expected));
    holds(&report, 60, 2);
}

/// Returns a model without random numbers or statistics of a batch, whose layers are on these stages.
fn plain([first, last]: [u32; 2]) -> GraphSpec {
    let mut g = GraphBuilder::new("two layers");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.device(&stage(first), |g| {
        let x = g.reshape(images, [784]);
        let kernel = g.variable("first/kernel", [784, 32], InitializerSpec::GlorotUniform);
        let x = g.matmul(x, kernel);
        g.relu(x)
    });
    let (loss, accuracy) = g.device(&stage(last), |g| {
        let kernel = g.variable("logits/kernel", [32, 10], InitializerSpec::GlorotUniform);
        let logits = g.matmul(x, kernel);
        (g.softmax_cross_entropy(logits, labels), g.accuracy(logits, labels))
    });
    g.finish(loss, &[("accuracy", accuracy)]).expect("a graph")
}

/// A batch of 16 in 4 micro-batches is 4 batches of 4.
#[test]
fn micro_batches_give_the_bits_of_accumulated_batches() {
    let accumulated = JobSpec { batch_size: 4, accumulate: 4, ..job(plain([0, 0]), 60) };
    let expected = train(1, accumulated);
    for layers in [[0, 1], [1, 0]] {
        let report = train(2, JobSpec { micro_batches: 4, ..job(plain(layers), 60) });
        // Evaluations have batches of another size, so their sums are rounded differently.
        assert_eq!(report.train_loss.to_bits(), expected.train_loss.to_bits(), "{layers:?}");
        holds(&report, 60, 1);
    }
}

/// Returns a cluster of two ps tasks, whose job has its hidden layers in stage 0 and its logits in stage 1.
fn staged_cluster(workers: u32, steps: u64, flags: &[&str]) -> Cluster {
    let cluster = Cluster::with(1, 2, workers, |dir| Job::with(dir, steps, flags));
    cluster.job.edit(|job| {
        for node in job["graph"]["nodes"].as_array_mut().expect("a list of nodes") {
            let name = node["name"].as_str().expect("a name");
            if name.contains("logits") || name.contains("cross_entropy") || name.contains("accuracy") {
                node["device"] = json!("/job:worker/task:1");
            }
        }
    });
    cluster
}

const FLAGS: [&str; 3] = ["--sync=sync", "--deterministic", "--schedule=constant"];

#[test]
fn stages_of_real_processes_give_the_bits_of_one_worker() {
    let expected = Cluster::with(1, 2, 1, |dir| Job::with(dir, 60, &FLAGS));
    expected.start_all().iter_mut().for_each(|program| drop(program.wait().expect(0)));
    let expected = Report::read(&expected.report_path());
    let cluster = staged_cluster(2, 60, &FLAGS);
    let mut programs = cluster.start_all();
    programs.iter_mut().for_each(|program| drop(program.wait().expect(0)));
    let report = Report::read(&cluster.report_path());
    for key in ["train_loss", "test_loss", "test_accuracy"] {
        assert_eq!(report.number(key).to_bits(), expected.number(key).to_bits(), "{key}");
    }
    assert_eq!(report.variables_crc32c(), expected.variables_crc32c());
    assert!(programs[4].err().contains("serving as a stage of a replica"), "{}", programs[4].err());
}

/// The other replica goes on while one waits for its stage, and so do their counts.
#[test]
fn a_stage_that_is_killed_comes_back() {
    // Worker 3 is the stage of worker 1.
    for (victim, ready) in [(3, "preparing"), (1, "ready: model")] {
        let cluster = staged_cluster(4, ENDLESS, &["--sync=async"]);
        let mut programs = cluster.start_all();
        wait_for_version(&cluster, 50);
        // The tasks are listed as chief, ps 0 and 1, and then the workers: 0 and 1 lead, 2 and 3 are their
        // stages.
        let (task, place) = (TaskId::worker(victim), 3 + victim as usize);
        programs[4].wait_for("ready: model");
        programs[place].kill();
        programs[place] = cluster.start(task);
        programs[place].wait_for(ready);
        let other = 3 + (victim + 2) as usize % 4;
        programs[other].wait_for(if victim == 3 { "registering again" } else { "the leader has left" });
        all_end_well(&cluster, &mut programs);
        let report = Report::read(&cluster.report_path());
        let versions: Vec<u64> =
            report.shards().iter().map(|shard| shard["version"].as_u64().unwrap()).collect();
        assert!(versions.iter().all(|&version| version == report.count("updates_applied")), "{versions:?}");
    }
}

#[test]
fn workers_that_form_no_whole_replica_are_refused() {
    let cluster = staged_cluster(3, 10, &[]);
    let mut chief = cluster.start(TaskId::CHIEF);
    let _others: Vec<_> = cluster
        .spec
        .tasks()
        .map(|(task, _)| task)
        .filter(|&task| task != TaskId::CHIEF)
        .map(|task| cluster.start(task))
        .collect();
    let ended = chief.wait();
    ended.expect(1);
    assert!(chief.err().contains("each replica takes 2 workers, but the cluster has 3"), "{}", chief.err());
}

/// A stage belongs to the connection on which its leader has opened it, and to the tasks of its replica.
#[test]
fn a_stage_refuses_what_its_leader_has_not_opened() {
    let cluster = staged_cluster(2, ENDLESS, &[]);
    let _chief = cluster.start(TaskId::CHIEF);
    let mut stage = cluster.start(TaskId::worker(1));
    stage.wait_for("serving as a stage of a replica");
    let leader = cluster.impostor();
    let refused = |talk: Message, payload: Payload| {
        let asked = async |client: Connection| client.call::<StageComputed>(talk, payload).await;
        let answer = whisper(&cluster, TaskId::worker(1), &leader, asked).expect("the leader may dial");
        answer.expect_err("the stage is not open").to_string()
    };
    let compute = ComputeStage { run: 1, random: 0, values: 1, keep: Vec::new(), evaluates: None };
    let key = StageValueKey { leader: leader.incarnation, run: 1, micro_batch: 0, edge: 0 };
    let value = Payload::new(vec![Segment::whole(Arc::new(Buffer::from_f32(&[1.0])))]);
    for (message, payload) in [(compute.into(), Payload::EMPTY), (StageValue { key }.into(), value)] {
        let error = refused(message, payload);
        assert!(error.contains("but the leader has not opened the stage"), "{error}");
    }
    // An end that no session asks for does not end the task.
    let error = refused(CloseStage {}.into(), Payload::EMPTY);
    assert!(error.contains("got CloseStage, but the leader has not opened"), "{error}");
    let error = refused(Register::default().into(), Payload::EMPTY);
    assert!(error.contains("worker/1 does not accept Register from worker/0"), "{error}");
    let stranger = Identity { task: TaskId::ps(0), ..leader.clone() };
    let error = whisper(&cluster, TaskId::worker(1), &stranger, async |_| ()).expect_err("a stranger");
    assert!(error.to_string().contains("stage of worker/0's replica, and ps/0 is not"), "{error}");
    assert!(stage.is_running(), "{}", stage.err());
}

/// Returns the error of a staged job whose workers have these settings.
fn refusal(set: impl Fn(&mut WorkerConfig)) -> String {
    let mut cluster = Embedded::new(1, 2);
    set(&mut cluster.worker_config);
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job(plain([0, 1]), 5), tell, CancellationToken::new());
    actix_rt::System::new().block_on(run).expect_err("the settings do not suit stages").to_string()
}

/// A hook that changes gradients.
struct Changes;

impl Hook for Changes {
    fn changes_gradients(&self) -> bool {
        true
    }
}

#[test]
fn settings_that_do_not_suit_stages_are_refused() {
    let error = refusal(|config| config.devices = DeviceList::cpus(2));
    assert!(
        error.contains("each of which runs on the processor of its task") && error.contains("CPU:1"),
        "{error}"
    );
    let error = refusal(|config| config.hooks.push(Arc::new(|| Box::new(Changes))));
    assert!(error.contains("a hook changes gradients, of which a worker has only its own"), "{error}");
}
