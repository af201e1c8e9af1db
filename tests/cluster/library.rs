//! Tests of the library as a program uses it: the example `embedded` trains in one process or as one task of
//! a cluster, predicts, and saves the model.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use pushpull::{Examples, GraphBuilder, GraphSpec, Model};
use pushpull_messages::id::{JobName, TaskId};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Cluster, PATIENCE, Program, example_called, mnist_dir, wait_until, write_model};

/// Returns what a line of the program says, for example the labels.
fn said<'a>(out: &'a str, what: &str) -> &'a str {
    let line = out.lines().find_map(|line| line.strip_prefix(what));
    line.unwrap_or_else(|| panic!("no '{what}' in {out}")).trim()
}

/// Checks what the program that got the trained model has printed, and loads the model that it saved.
#[track_caller]
fn check(out: &str, dir: &Path, accuracy_min: f64) -> Model {
    let accuracy: f64 = said(out, "test accuracy").trim_end_matches(" %").parse().expect("a number");
    assert!(accuracy >= accuracy_min, "{accuracy} %");
    let list = |what| serde_json::from_str::<Vec<i32>>(said(out, what)).expect("a list of classes");
    let (predicted, labels) = (list("predicted"), list("labels"));
    assert_eq!((predicted.len(), labels.len()), (10, 10));
    let right = predicted.iter().zip(&labels).filter(|(one, other)| one == other).count();
    assert!(right >= 8, "{predicted:?} for {labels:?}");
    let model = Model::load(dir.join("digits.safetensors")).expect("the model was saved");
    assert_eq!(model.value("hidden/kernel").expect("a variable").shape, [784, 128]);
    model
}

fn tutorial(dir: &Path, mnist: Option<&Path>) -> Command {
    let mut command = example_called("embedded");
    command.current_dir(dir).args(mnist);
    command
}

#[test]
fn the_tutorial_trains_mnist_in_one_process() {
    let Some(mnist) = mnist_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let ended = Program::run(dir.path(), "tutorial", &mut tutorial(dir.path(), Some(&mnist))).expect(0);
    check(&ended.out, dir.path(), 96.0);
}

#[test]
fn the_tutorial_trains_on_four_processes() {
    let mnist = mnist_dir();
    let cluster = Cluster::new(1, 2, 1);
    let start = |task: TaskId| {
        let mut command = tutorial(cluster.dir(), mnist.as_deref());
        cluster.spawn(task, command.env("TF_CONFIG", cluster.spec.to_tf_config(task)))
    };
    let mut programs: Vec<Program> = cluster.spec.tasks().map(|(task, _)| start(task)).collect();
    let ended: Vec<_> = programs.iter_mut().map(|program| program.wait().expect(0)).collect();
    check(&ended[0].out, cluster.dir(), 96.0);
    // Lines of the log begin with the time.
    let shows_progress = |err: &str| err.lines().any(|line| line.starts_with("step "));
    assert!(shows_progress(&ended[0].err), "the program shows its progress: {}", ended[0].err);
    for other in &ended[1..] {
        assert!(!shows_progress(&other.err), "{}", other.err);
        assert_eq!(other.out, "", "only the chief's process goes on after the training");
    }
}

#[test]
fn a_worker_that_hosts_the_chief_gets_the_model() {
    let cluster = Cluster::without_chief(1, 1, 1);
    let start = |task: TaskId| {
        let mut command = tutorial(cluster.dir(), None);
        cluster.spawn(task, command.env("TF_CONFIG", cluster.spec.to_tf_config(task)))
    };
    let [mut ps, mut worker] = [TaskId::ps(0), TaskId::worker(0)].map(start);
    let ended = worker.wait().expect(0);
    ps.wait().expect(0);
    check(&ended.out, cluster.dir(), 96.0);
}

#[test]
fn a_task_of_a_cluster_needs_its_description() {
    let dir = tempfile::tempdir().unwrap();
    for (config, expected) in [("{}", "no cluster is given, expected TF_CONFIG"), ("{", "TF_CONFIG")] {
        let mut command = tutorial(dir.path(), None);
        let ended = Program::run(dir.path(), "tutorial", command.env("TF_CONFIG", config)).expect(2);
        assert!(ended.last_line().contains(expected), "{}", ended.err);
    }
}

#[test]
fn a_task_that_cannot_be_embedded_ends_with_2() {
    let cluster = Cluster::new(1, 1, 1);
    let mut config: Value = serde_json::from_str(&cluster.spec.to_tf_config(TaskId::CHIEF)).unwrap();
    config["task"] = json!({"type": "evaluator", "index": 0});
    let mut command = tutorial(cluster.dir(), None);
    let ended = Program::run(cluster.dir(), "evaluator", command.env("TF_CONFIG", config.to_string()));
    assert!(ended.expect(2).last_line().contains("pushpull-evaluator"));
}

#[test]
fn a_signal_ends_the_process_after_the_training() {
    let cluster = Cluster::without_chief(1, 1, 1);
    let command = |task: TaskId| {
        let mut command = tutorial(cluster.dir(), None);
        command.env("TF_CONFIG", cluster.spec.to_tf_config(task));
        command
    };
    let mut ps = cluster.spawn(TaskId::ps(0), &mut command(TaskId::ps(0)));
    // The program prints its report when `train` has returned. The pipe is full, so it waits there.
    let (_reader, mut full) = std::io::pipe().expect("a pipe");
    full.write_all(&[b' '; 1 << 16]).expect("the capacity of a pipe is 64 KiB");
    let worker = TaskId::worker(0);
    let mut program = Program::start_writing(cluster.dir(), "worker", &mut command(worker), full.into());
    ps.wait().expect(0);
    let id = Pid::from_raw(program.id() as i32).expect("a process id");
    wait_until("the end of the program", PATIENCE, || {
        if !program.is_running() {
            return Some(());
        }
        // The first signal may come while `train` still ends its tasks. It is not SIGINT: a shell without
        // job control starts the tests so that they and their children ignore SIGINT, and the program would
        // leave it so.
        kill_process(id, Signal::TERM).expect("a child that was not waited for takes signals");
        None
    });
    program.wait().expect(143);
}

fn plane() -> GraphSpec {
    let mut g = GraphBuilder::new("plane");
    let x = g.input("features", [2]);
    let kernel = g.variable("plane/kernel", [2, 1], pushpull::InitializerSpec::Zeros);
    let x = g.matmul(x, kernel);
    g.output("height", x);
    let loss = g.l2_loss(x);
    g.finish(loss, &[]).expect("a graph")
}

#[test]
fn a_model_that_python_wrote_is_predicted_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let job: Value = json!({ "graph": serde_json::to_value(plane()).expect("a graph is JSON") });
    write_model(&path, &job, 0.5);
    let model = Model::load_with(plane(), &path).expect("the names and shapes are right");
    let examples = Examples::f32("features", [2], vec![1.0, 2.0, -3.0, 0.0]).expect("two examples");
    let predictions = model.predict(&examples).expect("they fit");
    assert_eq!(predictions.output("height").expect("an output").values, [1.5, -1.5]);
    let error = Model::load(&path).expect_err("the file does not say which graph").to_string();
    assert!(error.contains("Model::load_with"), "{error}");
}

/// Starts a cluster whose job reads a data set of the program. The workers are `own_data`, or the usual ones.
fn own_data(own: bool) -> (Cluster, Vec<Program>) {
    let cluster = Cluster::new(1, 2, 1);
    let ended = Program::run(cluster.dir(), "job", example_called("own_data").arg("job")).expect(0);
    std::fs::write(cluster.job.path(), &ended.out).expect("the job file can be written");
    let start = |task: TaskId| match task.job == JobName::Worker && own {
        true => {
            let mut command = example_called("own_data");
            cluster.spawn(task, command.env("TF_CONFIG", cluster.spec.to_tf_config(task)))
        }
        false => cluster.start(task),
    };
    let programs = cluster.spec.tasks().map(|(task, _)| start(task)).collect();
    (cluster, programs)
}

#[test]
fn a_worker_program_trains_on_its_own_data() {
    let (_cluster, programs) = own_data(true);
    for mut program in programs {
        program.wait().expect(0);
    }
}

#[test]
fn the_usual_worker_refuses_the_data_of_another() {
    let (_cluster, mut programs) = own_data(false);
    let ended = programs.pop().expect("a worker").wait().expect_failure();
    let ended = ended.says("the job reads the data set 'spirals', but this program has none of its own");
    ended.says("pushpull::worker_main_with");
    for mut program in programs {
        program.wait().expect_failure();
    }
}

#[test]
fn a_program_trains_on_its_own_data_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let ended = Program::run(dir.path(), "own_data", &mut example_called("own_data")).expect(0);
    let accuracy: f64 = said(&ended.out, "test accuracy").trim_end_matches(" %").parse().expect("a number");
    assert!(accuracy >= 95.0, "{accuracy} %");
}
