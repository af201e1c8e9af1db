//! Tests of clusters whose workers store the variables. They give the bits of a cluster with ps tasks, share
//! its checkpoints, and survive the death of a worker, which takes a part of the variables with it.

use std::path::PathBuf;
use std::process::Command;

use pushpull::{DeviceList, Embedded, JobReport, JobSpec};
use pushpull_messages::id::{ShardId, TaskId};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::checkpoints;
use crate::harness::{
    Cluster, ENDLESS, Job, PATIENCE, Program, Running, all_end_well, under_each, wait_for_shard, wait_until,
};

/// With a constant learning rate, a job that is stopped early has the bits of one that ends there.
const FLAGS: [&str; 4] =
    ["--strategy=multi_worker_mirrored", "--deterministic", "--schedule=constant", "--optimizer=adam"];
/// The same job with ps tasks.
const WITH_PS: [&str; 4] = ["--sync=sync", "--deterministic", "--schedule=constant", "--optimizer=adam"];

/// Returns a cluster with a chief and this number of workers, without ps tasks. With the partitioner `auto`,
/// worker 0 stores all variables, and with `none`, each worker stores some.
fn mirrored(workers: u32, steps: u64, partitioner: &str) -> Cluster {
    let partitioner = format!("--partitioner={partitioner}");
    let flags = [&FLAGS[..], &[&partitioner]].concat();
    let mut cluster = Cluster::with(1, 0, workers, |dir| Job::with(dir, steps, &flags));
    cluster.chief_lost_after_s = 60;
    cluster
}

/// Trains a job with ps tasks, and returns the digest of its variables.
fn bits_with_ps(ps: u32, workers: u32, steps: u64) -> u64 {
    let cluster = Cluster::with(1, ps, workers, |dir| Job::with(dir, steps, &WITH_PS));
    cluster.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    cluster.finished().variables_crc32c()
}

#[test]
fn workers_that_store_the_variables_give_the_bits_of_ps() {
    for (workers, partitioner, shards) in [(1, "auto", 1), (3, "auto", 1), (3, "none", 3)] {
        let cluster = mirrored(workers, 40, partitioner);
        let programs = cluster.start_all();
        programs.into_iter().for_each(|mut program| drop(program.wait().expect(0)));
        let report = cluster.finished();
        assert_eq!(report.count("gradients"), 40 * u64::from(workers));
        assert_eq!(report.shards().len(), shards, "{partitioner}");
        assert_eq!(report.variables_crc32c(), bits_with_ps(2, workers, 40));
    }
}

#[test]
fn worker_0_is_the_chief_and_trains() {
    for partitioner in ["--partitioner=none", "--partitioner=auto"] {
        let flags = [&FLAGS[..], &[partitioner]].concat();
        let cluster = Cluster::with(0, 0, 2, |dir| Job::with(dir, ENDLESS, &flags));
        let mut programs = cluster.start_all();
        all_end_well(&cluster, &mut programs);
        let report = cluster.finished();
        assert_eq!(report.variables_crc32c(), bits_with_ps(1, 2, report.count("updates_applied")));
    }
}

#[test]
fn the_same_script_is_every_task_of_tf_config() {
    let cluster = Cluster::with(0, 0, 2, |dir| Job::new(dir, 30));
    let start = |index: u32| {
        let task = TaskId::worker(index);
        let mut script: Command = cluster.example(task);
        cluster.spawn(task, script.arg("--strategy=multi_worker_mirrored"))
    };
    let mut programs: Vec<Program> = (0..2).map(start).collect();
    programs.iter_mut().for_each(|program| drop(program.wait().expect(0)));
    let report = cluster.finished();
    assert_eq!((report.text("sync"), report.count("gradients")), ("sync", 60));
}

#[test]
fn a_checkpoint_goes_on_under_another_strategy() {
    let with_ps = || Cluster::with(1, 2, 2, |dir| Job::with(dir, 60, &WITH_PS));
    let plain = bits_with_ps(2, 2, 60);
    for from_ps in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let flag = format!("--checkpoint-dir={}", dir.path().display());
        let first = |mut cluster: Cluster| {
            cluster.job.edit(|job| job["last_step"] = 25.into());
            cluster.job.steps = 25;
            cluster.chief_flags = vec![flag.clone()];
            cluster.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
        };
        let rest = |mut cluster: Cluster| {
            cluster.chief_flags = vec![flag.clone()];
            let mut programs = cluster.start_all();
            programs.iter_mut().for_each(|program| drop(program.wait().expect(0)));
            assert!(programs[0].err().contains("step-25"), "it resumes");
            assert_eq!(cluster.finished().variables_crc32c(), plain, "from ps: {from_ps}");
        };
        match from_ps {
            true => (first(with_ps()), rest(mirrored(2, 60, "none"))),
            false => (first(mirrored(2, 60, "auto")), rest(with_ps())),
        };
    }
}

/// Starts a job that saves checkpoints. Returns when it has saved one after its first step.
fn saving(workers: u32, partitioner: &str) -> Running {
    let mut cluster = mirrored(workers, ENDLESS, partitioner);
    let saved: PathBuf = checkpoints::directory(cluster.dir());
    let to = format!("--checkpoint-dir={}", saved.display());
    cluster.chief_flags = vec![to, "--save-steps=50".into(), "--ps-lost-after-s=60".into()];
    let running = Running::of(cluster, &["--lost-after-s=3"]);
    let later = |line: &str| line.split("saved step-").skip(1).any(|name| !name.starts_with("0-"));
    wait_until("a checkpoint after step 0", PATIENCE, || later(&running.chief.err()).then_some(()));
    running
}

#[test]
fn a_killed_worker_comes_back_with_its_variables() {
    under_each(&["none", "auto"], |partitioner| {
        let mut running = saving(3, partitioner);
        for lost in [1, 0] {
            running.workers[lost].kill();
            running.start_again(lost as u32);
            running.chief.wait_for("rolling the job back to its latest checkpoint");
            running.wait_for_version(1);
            running.wait_for_more(60);
        }
        let report = running.stop_well_without(&[]);
        assert_eq!(report.variables_crc32c(), bits_with_ps(1, 3, report.count("updates_applied")));
    });
}

/// Waits until the shard of one ps task has this number of members and, from then on, applies updates.
fn wait_for_members(cluster: &Cluster, ps: u32, members: u32) {
    let shard = ShardId::new(ps, 0);
    let seen = wait_for_shard(cluster, shard, "members", |seen| seen.members == members);
    wait_for_shard(cluster, shard, "more updates", |now| now.version.0 > seen.version.0 + 20);
}

#[test]
fn the_others_take_over_from_a_worker_that_stays_away() {
    for lost in [1, 2] {
        let mut cluster = mirrored(3, ENDLESS, "none");
        let to = format!("--checkpoint-dir={}", checkpoints::directory(cluster.dir()).display());
        let level = if lost == 1 { to } else { "--memory-checkpoint-every=40".to_owned() };
        cluster.chief_flags = vec![level, "--save-steps=50".into(), "--ps-lost-after-s=2".into()];
        if lost == 2 {
            cluster.chief_flags.remove(1);
        }
        let mut running = Running::of(cluster, &["--lost-after-s=3"]);
        running.wait_for_version(200);
        running.workers[lost].kill();
        running.chief.wait_for("did not come back; the others take over its variables");
        running.chief.wait_for("rolling the job back to its latest checkpoint");
        let rest = 3 - lost as u32;
        wait_for_members(&running.cluster, 0, 2);
        wait_for_members(&running.cluster, rest, 2);
        // It comes back, and trains without variables of its own.
        running.start_again(lost as u32);
        running.workers[lost].wait_for("joining the running job at step");
        wait_for_members(&running.cluster, 0, 3);
        running.stop_well_without(&[]);
    }
}

#[test]
fn a_worker_that_stood_still_goes_on() {
    let mut running = saving(2, "none");
    running.workers[1].signal(Signal::STOP);
    running.chief.wait_for("lost a ps task; waiting for it to come back");
    running.workers[1].signal(Signal::CONT);
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.wait_for_version(1);
    running.wait_for_more(60);
    let report = running.stop_well_without(&[]);
    assert_eq!(report.variables_crc32c(), bits_with_ps(1, 2, report.count("updates_applied")));
}

/// Trains a job in this process.
fn train(cluster: &Embedded, job: JobSpec) -> JobReport {
    let (tell, _told) = watch::channel(pushpull::JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    actix_rt::System::new().block_on(run).expect("the job trains to its end")
}

#[test]
fn one_worker_with_several_devices_is_one_with_the_whole_batch() {
    let dir = tempfile::tempdir().unwrap();
    let job = |strategy: &str| {
        let job = Job::with(dir.path(), 50, &[&format!("--strategy={strategy}"), "--deterministic"]);
        JobSpec::from_json(&std::fs::read_to_string(job.path()).unwrap()).unwrap()
    };
    let run = |strategy: &str, devices| {
        let mut cluster = Embedded::new(0, 1);
        cluster.worker_config.devices = DeviceList::cpus(devices);
        train(&cluster, job(strategy))
    };
    let one = run("one_device", 1);
    for strategy in ["mirrored", "central_storage"] {
        for devices in [1, 2, 3] {
            let report = run(strategy, devices);
            assert_eq!(report.steps.0, 50);
            let loss = (report.evaluation.loss - one.evaluation.loss).abs();
            assert!(loss < 1e-5, "{strategy} on {devices} devices: {loss}");
        }
    }
}

#[test]
fn a_strategy_without_its_tasks_is_refused() {
    let refused = |cluster: &Cluster| {
        let mut programs = cluster.start_all();
        let chief = programs.remove(0).wait().expect_failure();
        drop(programs);
        chief
    };
    let with_ps = Cluster::with(1, 1, 2, |dir| Job::with(dir, 9, &FLAGS));
    refused(&with_ps).says("multi_worker_mirrored stores the variables on workers, but the cluster has 1 ps");
    let without = Cluster::with(1, 0, 2, |dir| Job::with(dir, 9, &["--strategy=parameter_server"]));
    refused(&without).says("parameter_server needs ps tasks, but the cluster has none");
    let many = Cluster::with(1, 0, 2, |dir| Job::with(dir, 9, &["--strategy=mirrored"]));
    refused(&many).says("mirrored has one worker, but the cluster has 2");
    let one = Cluster::with(1, 0, 1, |dir| Job::with(dir, 9, &["--strategy=one_device"]));
    let mut chief = one.start(TaskId::CHIEF);
    let mut worker = one.start_with(TaskId::worker(0), &["--devices=2"]);
    worker.wait_for("strategy one_device has one device, but this worker has the devices");
    chief.wait().expect_failure();
}
