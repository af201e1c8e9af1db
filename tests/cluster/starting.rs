//! Tests of tasks that are started one by one, in any order and with any form of the cluster flags. The
//! tasks find each other, train, and end by themselves.

use std::process::{Command, Stdio};

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Job, Program, Slowed, example, role, tool, wait_for_version};

const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);

#[track_caller]
fn all_end_well(programs: impl IntoIterator<Item = Program>) {
    for mut program in programs {
        program.wait().expect(0);
    }
}

#[test]
fn the_chief_comes_last() {
    let cluster = Cluster::new(1, 2, 100);
    let mut workers = [cluster.start(WORKER), cluster.start(TaskId::worker(1))];
    let mut ps = cluster.start(PS);
    ps.wait_for("serving shards=1");
    for worker in &mut workers {
        worker.wait_for(&format!("waiting for chief/0 at {}", cluster.address(TaskId::CHIEF)));
    }
    let chief = cluster.start(TaskId::CHIEF);
    all_end_well([chief, ps].into_iter().chain(workers));
    cluster.finished();
}

#[test]
fn the_ps_come_last() {
    let cluster = Cluster::new(2, 2, 100);
    let mut chief = cluster.start(TaskId::CHIEF);
    chief.wait_for("waiting for 2 ps and 2 worker task(s)");
    let mut workers = [cluster.start(WORKER), cluster.start(TaskId::worker(1))];
    for worker in &mut workers {
        worker.wait_for("registering");
    }
    let ps = [cluster.start(PS), cluster.start(TaskId::ps(1))];
    all_end_well([chief].into_iter().chain(workers).chain(ps));
    cluster.finished();
}

#[test]
fn the_workers_come_last_one_after_the_other() {
    let cluster = Cluster::new(1, 2, 100);
    let mut ps = cluster.start(PS);
    ps.wait_for("serving");
    let mut chief = cluster.start(TaskId::CHIEF);
    chief.wait_for("waiting for 1 ps");
    let mut second = cluster.start(TaskId::worker(1));
    second.wait_for("ready: model");
    let first = cluster.start(WORKER);
    all_end_well([chief, ps, first, second]);
    cluster.finished();
}

#[test]
fn a_worker_hosts_the_chief_where_the_cluster_names_none() {
    let cluster = Cluster::without_chief(1, 2, 100);
    all_end_well(cluster.start_all().into_iter().rev());
    cluster.finished();
}

#[test]
fn a_cluster_spec_by_flags() {
    let cluster = Cluster::new(1, 2, 60);
    let start = |task: TaskId| {
        let mut command = role(task.job);
        command.arg("--cluster-spec").arg(cluster.spec.to_flag()).args(cluster.usual(task));
        // The flag --job-name is accepted although the program already implies the job.
        if task.index == 0 {
            command.args(["--job-name", task.job.as_str()]);
        }
        cluster.spawn(task, command.args(["--task-index", &task.index.to_string()]))
    };
    all_end_well([TaskId::CHIEF, PS, WORKER, TaskId::worker(1)].map(start));
    cluster.finished();
}

#[test]
fn hosts_by_job_with_underscores_and_no_chief() {
    let cluster = Cluster::without_chief(2, 2, 60);
    let hosts = |job| {
        let addresses: Vec<&str> =
            cluster.spec.addresses(job).iter().map(|address| address.as_str()).collect();
        addresses.join(",")
    };
    let start = |task: TaskId| {
        let mut command = role(task.job);
        command.arg(format!("--ps_hosts={}", hosts(JobName::Ps)));
        command.arg(format!("--worker_hosts={}", hosts(JobName::Worker)));
        command.arg(format!("--job_name={}", task.job)).args(["--task_index", &task.index.to_string()]);
        cluster.spawn(task, command.args(cluster.usual(task)))
    };
    all_end_well([PS, TaskId::ps(1), WORKER, TaskId::worker(1)].map(start));
    cluster.finished();
}

#[test]
fn the_example_plays_every_role() {
    let cluster = Cluster::new(2, 2, 60);
    let tasks = [TaskId::CHIEF, PS, TaskId::ps(1), WORKER, TaskId::worker(1)];
    all_end_well(tasks.map(|task| cluster.spawn(task, &mut cluster.example(task))));
    cluster.finished();
}

#[test]
fn the_example_and_the_generic_programs_train_together() {
    let cluster = Cluster::without_chief(1, 2, 60);
    let leader = cluster.spawn(WORKER, &mut cluster.example(WORKER));
    all_end_well([leader, cluster.start(PS), cluster.start(TaskId::worker(1))]);
    cluster.finished();
}

#[test]
fn one_script_for_all_tasks_as_kubeflow_starts_them() {
    // The variable is written as by an older launcher: with the job 'master', the index as a string, and
    // unknown keys.
    let cluster = Cluster::new(1, 1, 40);
    let start = |task: TaskId| {
        let config = cluster.spec.to_tf_config(task).replace("\"chief\"", "\"master\"");
        let config = config.replace("\"index\":0", "\"index\":\"0\"");
        let config = config.replacen('{', "{\"environment\":\"cloud\",", 1);
        cluster.spawn(task, cluster.example(task).env("TF_CONFIG", config))
    };
    all_end_well([TaskId::CHIEF, PS, WORKER].map(start));
    cluster.finished();
}

#[test]
fn a_task_may_listen_elsewhere_than_at_its_name() {
    let cluster = Cluster::new(1, 1, 40);
    let port = cluster.spec.address(PS).unwrap().port();
    let ps = cluster.start_with(
        PS,
        &[&format!("--bind=0.0.0.0:{port}"), "--payload-crc", "--tcp-congestion=reno", "--insecure"],
    );
    let worker = cluster.start_with(WORKER, &["--payload_crc"]);
    all_end_well([cluster.start(TaskId::CHIEF), ps, worker]);
    cluster.finished();
}

#[test]
fn a_worker_that_dies_before_the_start_may_come_again() {
    let cluster = Cluster::new(1, 2, 100);
    let mut chief = cluster.start(TaskId::CHIEF);
    let ps = cluster.start(PS);
    let mut early = cluster.start(WORKER);
    early.wait_for("ready: model");
    early.signal(Signal::KILL);
    chief.wait_for("worker disconnected before the job began; it may come back worker=worker/0");
    all_end_well([chief, ps, cluster.start(WORKER), cluster.start(TaskId::worker(1))]);
    cluster.finished();
}

#[test]
fn a_worker_that_dies_in_the_middle_may_come_again() {
    let cluster = Cluster::new(2, 2, ENDLESS);
    let mut chief = cluster.start(TaskId::CHIEF);
    let ps = [cluster.start(PS), cluster.start(TaskId::ps(1))];
    let mut dies = cluster.start(WORKER);
    let lives = cluster.start(TaskId::worker(1));
    wait_for_version(&cluster, 50);
    dies.signal(Signal::KILL);
    let slowed = Slowed::new(&lives);
    chief.wait_for("worker lost; the others go on worker=worker/0");
    drop(slowed);
    let mut again = cluster.start(WORKER);
    again.wait_for("ready: model");
    cluster.stop(&mut chief);
    all_end_well([chief, again, lives].into_iter().chain(ps));
    cluster.finished();
}

/// Returns a command that runs another one after a command of the shell, in the same process.
fn after(shell: &str, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{shell} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

#[test]
fn too_few_open_files_are_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let workers = (1..=300).map(|port| format!("w:{port}")).collect();
    let jobs = [
        (JobName::Chief, vec!["c:1".to_owned()]),
        (JobName::Ps, vec!["p:1".to_owned()]),
        (JobName::Worker, workers),
    ];
    let cluster = ClusterSpec::new(jobs).unwrap();
    let mut ps = role(JobName::Ps);
    ps.env("TF_CONFIG", cluster.to_tf_config(PS));
    let mut local = tool();
    local.args(["local", "--workers=40", "--job"]).arg(Job::new(dir.path(), 10).path());
    for (command, said) in [
        (
            ps,
            "error: ps/0 needs up to 374 open files for this cluster, but may open only 200: raise the limit",
        ),
        (local, "error: pushpull local needs up to 400 open files for this cluster, but may open only 200"),
    ] {
        let ended =
            Program::run(dir.path(), "limited", &mut after("ulimit -n 200", &command)).expect_failure();
        assert!(ended.last_line().starts_with(said), "{}", ended.err);
    }
}

#[test]
fn a_low_limit_on_open_files_is_raised() {
    let cluster = Cluster::new(1, 1, 10);
    let mut ps = cluster.spawn(PS, &mut after("ulimit -S -n 70", &cluster.role(PS)));
    ps.wait_for("serving");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", ps.id())).expect("it runs");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("Linux says so");
    let [soft, hard] = [0, 1].map(|at| files.split_whitespace().nth(at).expect("two limits"));
    assert_eq!(soft, hard);
    all_end_well([cluster.start(TaskId::CHIEF), cluster.start(WORKER), ps]);
    cluster.finished();
}

#[test]
fn help_and_version_are_no_errors() {
    let dir = tempfile::tempdir().unwrap();
    for mut command in [role(JobName::Ps), role(JobName::Worker), role(JobName::Chief), example()] {
        let ended = Program::run(dir.path(), "help", command.arg("--help")).expect(0);
        assert!(ended.out.contains("--cluster-spec") && ended.err.is_empty(), "{ended:?}");
    }
    Program::run(dir.path(), "version", role(JobName::Ps).arg("--version")).expect(0);
}
