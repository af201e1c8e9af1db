//! Tests of tasks that do not fit together: ports that are in use, peers that never connect or connect
//! twice, and peers with a different cluster spec, graph or protocol. Both sides report the same error, and
//! no task waits forever.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::PROTOCOL;

use rustix::process::Signal;

use crate::harness::{Cluster, ENDLESS, Job, Running, free_port, wait_for_version};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The time limit for a task to fail. It is long enough to look up the owner of a port, and much shorter
/// than the time that a task waits for its peers.
const PROMPT: Duration = Duration::from_secs(20);

#[test]
fn a_port_that_another_program_has() {
    for task in [PS, CHIEF] {
        let cluster = Cluster::new(1, 1, 10);
        let address = cluster.address(task);
        let _taken = TcpListener::bind(&address).expect("the port is free");
        let ended = cluster.start(task).wait_within(PROMPT).expect_failure();
        ended.says(&task.to_string()).says(&format!("{address} is already in use by another program"));
    }
}

#[test]
fn the_port_of_the_chief_that_a_worker_hosts() {
    let cluster = Cluster::without_chief(1, 1, 10);
    let address = cluster.address(WORKER);
    let _taken = TcpListener::bind(&address).expect("the port is free");
    cluster.start(WORKER).wait_within(PROMPT).expect_failure().says(&format!("{address} is already in use"));
}

#[test]
fn a_port_that_one_of_ours_has() {
    let cluster = Cluster::new(1, 1, 100);
    let mut ps = cluster.start(PS);
    ps.wait_for("serving");
    let in_use = |task| format!("{} is already in use by ", cluster.address(task));
    cluster
        .start(PS)
        .wait_within(PROMPT)
        .expect_failure()
        .says(&in_use(PS))
        .says("ps/0: is the same task started");
    let mut other = cluster.role(PS);
    other.env("TF_CONFIG", moved(&cluster, WORKER).to_tf_config(PS));
    let ended = cluster.spawn(PS, &mut other).wait_within(PROMPT).expect_failure();
    ended.says(&format!("{}a pushpull task of another cluster", in_use(PS)));
    let mut chief = cluster.start(CHIEF);
    chief.wait_for("waiting for 1 ps");
    cluster
        .start(CHIEF)
        .wait_within(PROMPT)
        .expect_failure()
        .says(&in_use(CHIEF))
        .says("the peer is chief/0");
    // The tasks that were started first are unaffected.
    let mut worker = cluster.start(WORKER);
    for program in [&mut worker, &mut chief, &mut ps] {
        program.wait().expect(0);
    }
    cluster.finished();
}

#[test]
fn a_worker_that_is_started_twice() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut first = cluster.start_all();
    wait_for_version(&cluster, 20);
    let twice = "worker/0 is already connected: is the same task started twice?";
    cluster.start(WORKER).wait_within(PROMPT).expect_failure().says(twice);
    cluster.stop(&mut first[0]);
    for program in &mut first {
        program.wait().expect(0);
    }
    cluster.finished();
}

#[test]
fn a_chief_that_is_started_twice_disturbs_no_job() {
    let cluster = || {
        let flags = ["--sync=sync", "--deterministic"];
        Cluster::with(1, 2, 1, |dir| Job::with(dir, 1000, &flags))
    };
    let quiet = cluster();
    quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));

    let cluster = cluster();
    let mut running = Running::of(cluster, &[]);
    running.wait_for_version(5);
    // The job cannot end before the second chief does.
    running.workers[0].signal(Signal::STOP);
    let elsewhere = format!("--bind=127.0.0.1:{}", free_port());
    let ended = running.cluster.start_with(CHIEF, &[&elsewhere, "--start-timeout-s=2"]).wait_within(PROMPT);
    let ended = ended.expect_failure().says("waiting for another chief to end");
    let refused = "another chief leads this job: ps/0 refuses Claim: it belongs to the chief with term ";
    for words in [refused, "which is connected", "end one of the two"] {
        assert!(ended.last_line().contains(words), "'{words}' in {}", ended.err);
    }
    running.workers[0].signal(Signal::CONT);
    let report = running.end_well_without(&[]);
    assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
}

#[test]
fn a_worker_that_hosts_the_chief_and_is_started_twice() {
    let cluster = Cluster::without_chief(1, 1, ENDLESS);
    let mut first = cluster.start_all();
    wait_for_version(&cluster, 20);
    let in_use = format!("{} is already in use", cluster.address(WORKER));
    // The second process must not replace the report of the first one.
    cluster.start(WORKER).wait_within(PROMPT).expect_failure().says(&in_use);
    cluster.stop(&mut first[1]);
    for program in &mut first {
        program.wait().expect(0);
    }
    cluster.finished();
}

#[test]
fn a_chief_names_everybody_who_did_not_come() {
    let cluster = Cluster::new(2, 2, 10);
    let ended = cluster.start_with(CHIEF, &["--start-timeout-s=1"]).wait_within(PROMPT).expect_failure();
    let ended = ended.says("after 1 s these tasks are missing");
    for task in [PS, TaskId::ps(1), WORKER, SECOND] {
        assert!(ended.last_line().contains(&format!("{task} at {}", cluster.address(task))), "{}", ended.err);
    }
}

#[test]
fn everybody_who_came_hears_who_did_not() {
    for (present, absent) in [([PS, WORKER], SECOND), ([WORKER, SECOND], PS)] {
        let cluster = Cluster::new(1, 2, 10);
        // The present tasks have the default timeout, so the chief times out first.
        let mut others = present.map(|task| cluster.start(task));
        let mut chief = cluster.start_with(CHIEF, &["--start-timeout-s=2"]);
        let named = format!("these tasks are missing: {absent} at {}", cluster.address(absent));
        let ended = chief.wait().expect_failure().says(&named);
        for task in present {
            assert!(!ended.last_line().contains(&format!("{task} at")), "{}", ended.err);
        }
        for program in &mut others {
            program.wait_within(PROMPT).expect_failure().says(&named);
        }
    }
}

#[test]
fn a_ps_or_worker_without_a_chief_names_it() {
    let cluster = Cluster::new(1, 1, 10);
    let chief = format!("chief/0 at {}", cluster.address(CHIEF));
    for task in [PS, WORKER] {
        let ended = cluster.start_with(task, &["--start-timeout-s=1"]).wait_within(PROMPT);
        assert!(ended.expect_failure().last_line().contains(&chief));
    }
    let cluster = Cluster::without_chief(1, 2, 10);
    let host = cluster.address(WORKER);
    for task in [PS, SECOND] {
        let ended = cluster.start_with(task, &["--start-timeout-s=1"]).wait_within(PROMPT).expect_failure();
        assert!(ended.last_line().contains(&host), "{}", ended.err);
    }
}

/// Returns the same cluster spec, except for the address of one task.
fn moved(cluster: &Cluster, task: TaskId) -> ClusterSpec {
    let jobs = [JobName::Chief, JobName::Ps, JobName::Worker].map(|job| {
        let mut addresses: Vec<String> =
            cluster.spec.addresses(job).iter().map(ToString::to_string).collect();
        if job == task.job {
            addresses[task.index as usize] = "127.0.0.1:9".into();
        }
        (job, addresses)
    });
    ClusterSpec::new(jobs).expect("a cluster")
}

#[test]
fn a_worker_that_holds_another_cluster_spec() {
    let cluster = Cluster::new(1, 1, 10);
    let mut chief = cluster.start_with(CHIEF, &["--start-timeout-s=2"]);
    let mut ps = cluster.start(PS);
    let mut command = cluster.role(WORKER);
    command.env("TF_CONFIG", moved(&cluster, PS).to_tf_config(WORKER));
    let worker = cluster.spawn(WORKER, &mut command).wait_within(PROMPT).expect_failure();
    // The worker learns that the specs differ, and shows its own. Only the chief's log has the difference.
    let own = moved(&cluster, PS).to_flag();
    worker
        .says(&format!("chief/0 has another cluster spec than worker/0, which has '{own}'"))
        .does_not_say(&cluster.address(PS));
    let reason = format!(
        "the cluster specs of chief/0 (here) and worker/0 (there) differ: ps/0 is '{}' here and '127.0.0.1:9' there",
        cluster.address(PS)
    );
    chief.wait_within(PROMPT).expect_failure().says(&reason);
    ps.wait_within(PROMPT).expect_failure();
}

#[test]
fn a_ps_that_holds_another_cluster_spec() {
    let cluster = Cluster::new(1, 1, 10);
    let mut command = cluster.role(PS);
    command.env("TF_CONFIG", moved(&cluster, WORKER).to_tf_config(PS)).arg("--start-timeout-s=2");
    let mut ps = cluster.spawn(PS, &mut command);
    ps.wait_for("serving");
    let reason =
        "the cluster specs of ps/0 (here) and chief/0 (there) differ: worker/0 is '127.0.0.1:9' here";
    let told = "ps/0 has another cluster spec than chief/0, which has 'chief|";
    cluster.start(CHIEF).wait_within(PROMPT).expect_failure().says(told);
    ps.wait_within(PROMPT).expect_failure().says(reason);
}

#[test]
fn a_task_that_was_started_with_another_graph() {
    // The chief reads its model from the job file, and the example has its own model.
    let cluster = Cluster::new(1, 1, 10);
    cluster.job.edit(|job| job["graph"]["name"] = "another".into());
    let differs = |here: TaskId, there: TaskId| (format!("the graphs of {here} ("), format!("and {there} ("));
    let mut ps = cluster.spawn(PS, cluster.example(PS).arg("--start-timeout-s=2"));
    ps.wait_for("serving");
    let (here, there) = differs(PS, CHIEF);
    let chief = cluster.start(CHIEF).wait_within(PROMPT).expect_failure();
    let reason = chief.says(&here).says(&there).says("start every task with the same model");
    let ps = ps.wait_within(PROMPT).expect_failure().says(&here).says(&there);
    // Both tasks print the same reason, word for word.
    let words = reason.last_line().split_once("the graphs of").expect("the reason").1.to_owned();
    ps.says(&words);

    let mut chief = cluster.start_with(CHIEF, &["--start-timeout-s=2"]);
    let (here, there) = differs(CHIEF, WORKER);
    let mut command = cluster.example(WORKER);
    let worker = cluster.spawn(WORKER, command.arg("--model=cnn")).wait_within(PROMPT).expect_failure();
    worker.says(&here).says(&there);
    chief.wait_within(PROMPT).expect_failure().says(&here).says(&there);
}

#[test]
fn a_peer_of_another_protocol_version_is_told_both_versions() {
    let cluster = Cluster::new(1, 1, 10);
    let mut ps = cluster.start(PS);
    ps.wait_for("serving");
    let mut peer = TcpStream::connect(cluster.address(PS)).expect("the ps listens");
    let mut prefix = [0; 40];
    prefix[..4].copy_from_slice(b"PPUL");
    prefix[4..6].copy_from_slice(&99u16.to_le_bytes());
    prefix[6..8].copy_from_slice(&1u16.to_le_bytes());
    peer.write_all(&prefix).expect("the ps reads");
    peer.set_read_timeout(Some(PROMPT)).expect("a timeout");
    let mut answer = Vec::new();
    // If the connection is reset, the answer ends there.
    let _ = peer.read_to_end(&mut answer);
    ps.wait_for(&format!("the peer speaks protocol version 99, and this task speaks {PROTOCOL}"));
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("99"), "the peer was told {answer:?}");
}
