//! Tests of jobs with a join string: the tasks train as without one, strangers are refused with one clear
//! line and counted, and nothing that travels can be read.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pushpull_messages::id::{JobName, TaskId};

use crate::harness::{
    Cluster, ENDLESS, Endpoint, Job, Joined, PATIENCE, Program, TCP, free_port, tool, wait_until,
};

const CHIEF: TaskId = TaskId::CHIEF;
const PS: TaskId = TaskId::ps(0);
const WORKER: TaskId = TaskId::worker(0);
const SECOND: TaskId = TaskId::worker(1);

/// The time limit for a task that is refused to end, and for a stranger to be counted.
const PROMPT: Duration = Duration::from_secs(20);
/// A job whose variables have the same bits however the tasks are connected.
const SAME_BITS: [&str; 2] = ["--sync=sync", "--deterministic"];

#[track_caller]
fn all_end(programs: impl IntoIterator<Item = Program>) {
    programs.into_iter().for_each(|mut program| drop(program.wait().expect(0)));
}

/// Returns the number of connections that a task has closed for this reason.
fn closed(endpoint: &Endpoint, reason: &str) -> u64 {
    let count = endpoint.metrics().sum("pushpull_connections_closed_total", &[("reason", reason)]);
    count.unwrap_or_default() as u64
}

#[test]
fn a_job_with_a_join_string_gives_the_same_bits() {
    let cluster = || Cluster::with(1, 2, 2, |dir| Job::with(dir, 200, &SAME_BITS));
    let plain = cluster();
    all_end(plain.start_all());
    let joined = Joined::new(cluster());
    let mut programs = joined.start_all();
    let ps = Endpoint::of(&mut programs[1]);
    for program in &mut programs[1..] {
        program.wait_for("the chief has given this task a certificate");
    }
    assert_eq!(closed(&ps, "identity"), 0, "a task that has to wait for a certificate is no stranger");
    all_end(programs);
    let bits = joined.cluster.finished().variables_crc32c();
    assert_eq!(bits, plain.finished().variables_crc32c());
}

#[test]
fn tasks_of_one_host_share_memory_with_a_join_string() {
    let joined = Joined::new(Cluster::with(1, 1, 2, |dir| Job::with(dir, 100, &SAME_BITS)));
    let start = |(task, _): (TaskId, _)| {
        // One worker is as if it were on another host.
        let transport = if task == SECOND { TCP } else { "--transport=auto" };
        joined.cluster.spawn(task, joined.role(task).arg(transport))
    };
    let programs: Vec<Program> = joined.cluster.spec.tasks().map(start).collect();
    all_end(programs);
    joined.cluster.finished();
}

#[test]
fn workers_that_store_the_variables_have_one_certificate_each() {
    let flags = ["--strategy=multi_worker_mirrored", "--deterministic"];
    for chiefs in [0, 1] {
        let cluster = || Cluster::with(chiefs, 0, 2, |dir| Job::with(dir, 60, &flags));
        let (plain, joined) = (cluster(), Joined::new(cluster()));
        all_end(plain.start_all());
        let mut programs = joined.start_all();
        let mut last = programs.pop().unwrap();
        all_end(programs);
        last.wait().expect(0);
        let log = last.err();
        let line = " has given this task a certificate";
        assert_eq!(
            log.matches(line).count(),
            1,
            "although it asks, and the chief connects to its ps task:\n{log}"
        );
        let bits = joined.cluster.finished().variables_crc32c();
        assert_eq!(bits, plain.finished().variables_crc32c());
    }
}

#[test]
fn the_environment_may_hold_the_join_string() {
    let joined = Joined::new(Cluster::new(1, 1, 50));
    let join = std::fs::read_to_string(&joined.join).expect("it was written");
    let start = |task: TaskId| {
        let mut command = joined.cluster.role(task);
        command.arg(TCP).env("PUSHPULL_JOIN", join.trim());
        if task == CHIEF {
            command.arg("--authority").arg(&joined.authority);
        }
        joined.cluster.spawn(task, &mut command)
    };
    let mut programs = [CHIEF, PS, WORKER].map(start);
    let secret = join.trim().rsplit('.').nth(1).expect("the join string has a secret");
    for program in &mut programs {
        let endpoint = Endpoint::of(program);
        assert!(!endpoint.get("/config").contains(secret), "a secret is never shown");
    }
    for program in &mut programs {
        let ended = program.wait().expect(0);
        assert!(!ended.err.contains(secret) && !ended.out.contains(secret), "a secret is never logged");
    }
    joined.cluster.finished();
}

#[test]
fn strangers_are_refused_and_the_job_ends_well() {
    let joined = Joined::new(Cluster::new(2, 2, 300));
    let (_, other) = Joined::authority(&joined.cluster, "other");
    let [mut chief, mut ps] = [CHIEF, PS].map(|task| joined.start(task));
    let at_ps = Endpoint::of(&mut ps);

    let plain = joined.cluster.start_with(WORKER, &[TCP]).wait_within(PROMPT).expect_failure();
    assert!(
        plain.last_line().contains("the peer demands TLS: give this task the job's join string"),
        "{}",
        plain.err
    );
    chief.wait_for("the peer does not speak TLS");

    let flag = format!("--join-file={}", other.display());
    let wrong = joined.cluster.start_with(WORKER, &[TCP, &flag]).wait_within(PROMPT).expect_failure();
    assert!(wrong.last_line().contains("from another authority than the join string names"), "{}", wrong.err);
    chief.wait_for("the peer does not trust this task");

    // Garbage, and somebody who says nothing at all.
    for (task, program) in [(CHIEF, &mut chief), (PS, &mut ps)] {
        let mut garbage = TcpStream::connect(joined.cluster.address(task)).expect("the task listens");
        garbage.write_all(&[0x16; 4000]).expect("the task reads");
        let _silent = TcpStream::connect(joined.cluster.address(task)).expect("the task listens");
        program.wait_for("the peer does not speak TLS");
        program.wait_for("did not prove who it is within 5 s");
    }
    wait_until("two connections closed for this reason", PROMPT, || {
        (closed(&at_ps, "identity") == 2).then_some(())
    });

    // The chief does not give a certificate to a ps task with another join string.
    let mut wrong = joined.cluster.start_with(TaskId::ps(1), &[TCP, &flag]);
    wrong.wait_for("from another authority than the join string names");
    wrong.kill();
    let mut others = [TaskId::ps(1), WORKER, SECOND].map(|task| joined.start(task));
    let chief = chief.wait().expect(0);
    for words in [
        "the peer does not speak TLS",
        "the peer does not trust this task",
        "did not prove who it is within 5 s",
    ] {
        let lines = chief.err.lines().filter(|line| line.contains(words)).count();
        assert!((1..=10).contains(&lines), "{lines} lines with '{words}' in {}", chief.err);
    }
    ps.wait().expect(0);
    others.iter_mut().for_each(|program| drop(program.wait().expect(0)));
    joined.cluster.finished();
}

#[test]
fn what_does_not_fit_ends_a_task_at_once() {
    let joined = Joined::new(Cluster::new(1, 1, 10));
    let (other, _) = Joined::authority(&joined.cluster, "other");
    let refused = |task: TaskId, flags: &[String], words: &str| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let ended = joined.cluster.start_with(task, &flags).wait_within(PROMPT).expect(2);
        assert!(ended.last_line().contains(words), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    };
    let join = format!("--join-file={}", joined.join.display());
    let authority = |path: &PathBuf| format!("--authority={}", path.display());
    refused(CHIEF, std::slice::from_ref(&join), "needs the job's --authority FILE");
    refused(CHIEF, &[join.clone(), authority(&other)], "the join string of another authority");
    refused(PS, &[join, authority(&joined.authority)], "ps/0 does not host the chief");
    let open = joined.cluster.dir().join("open");
    std::fs::copy(&joined.join, &open).expect("a copy");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&open, mode).expect("its owner may");
    refused(PS, &[format!("--join-file={}", open.display())], "has mode 0644, so others can use it");
    let mut again = tool();
    again.args(["join", "new", "--authority"]).arg(&joined.authority);
    let again = Program::run(joined.cluster.dir(), "join", &mut again).expect(2);
    assert!(again.last_line().contains("exists"), "{}", again.err);
}

/// Records all bytes between a task and those that connect to it.
struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Recorder {
    /// Accepts connections at `address`, and connects each to `target`. The threads end with the connections
    /// or with the test.
    #[track_caller]
    fn start(address: &str, target: String) -> Self {
        let socket = TcpListener::bind(address).expect("the recorder's port is free");
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&recorded);
        std::thread::spawn(move || {
            for near in socket.incoming() {
                let Ok(near) = near else { return };
                // The task may not listen yet: its caller then dials again.
                let Ok(far) = TcpStream::connect(&target) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let ends = (from.try_clone(), to.try_clone());
                    let (Ok(from), Ok(to)) = ends else { return };
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || record(from, to, &shared));
                }
            }
        });
        Self(recorded)
    }

    fn has(&self, text: &str) -> bool {
        self.0.lock().expect("no thread panics").windows(text.len()).any(|bytes| bytes == text.as_bytes())
    }
}

fn record(mut from: TcpStream, mut to: TcpStream, recorded: &Mutex<Vec<u8>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read) = from.read(&mut bytes) {
        recorded.lock().expect("no thread panics").extend(&bytes[..read]);
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn nothing_that_travels_can_be_read() {
    for secret in [false, true] {
        let joined = Joined::new(Cluster::new(1, 1, 20));
        let mut recorders = Vec::new();
        let mut programs = Vec::new();
        for task in [CHIEF, PS, WORKER] {
            let mut command = if secret { joined.role(task) } else { joined.cluster.role(task) };
            command.arg(TCP);
            if task.job != JobName::Worker {
                let behind = format!("127.0.0.1:{}", free_port());
                recorders.push(Recorder::start(&joined.cluster.address(task), behind.clone()));
                command.arg(format!("--bind={behind}"));
            }
            programs.push(joined.cluster.spawn(task, &mut command));
        }
        all_end(programs);
        joined.cluster.finished();
        // A variable of the model, the mark of a frame, and the cluster spec in each hello.
        let own = joined.cluster.address(PS);
        for text in ["kernel", "PPUL", own.as_str()] {
            let seen = recorders.iter().any(|recorder| recorder.has(text));
            assert_eq!(seen, !secret, "'{text}' with a join string: {secret}");
        }
    }
}

#[test]
fn tasks_that_are_started_again_join_again() {
    let mut cluster = Cluster::with(1, 2, 2, |dir| Job::with(dir, 6000, &SAME_BITS));
    let saved = cluster.dir().join("checkpoints");
    cluster.chief_lost_after_s = 60;
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", saved.display()), "--save-steps=50".to_owned()];
    let joined = Joined::new(cluster);
    let mut programs = joined.start_all();
    wait_until("a checkpoint after step 0", PATIENCE, || {
        let log = programs[0].err();
        let later = log.split("saved step-").skip(1).any(|name| !name.starts_with("0-"));
        later.then_some(())
    });
    programs[2].kill();
    programs[2] = joined.start(TaskId::ps(1));
    programs[0].wait_for("rolling the job back to its latest checkpoint");
    programs[2].wait_for("the chief has given this task a certificate");
    Endpoint::of(&mut programs[2]).wait_for_update();
    programs[0].kill();
    programs[0] = joined.start(CHIEF);
    programs[0].wait_for("continuing the job of an earlier run of the chief");
    all_end(programs);
    joined.cluster.finished();
}

#[test]
fn a_worker_that_the_cluster_does_not_list_joins_with_it() {
    let joined = Joined::new(Cluster::new(1, 1, ENDLESS));
    let start = |task: TaskId| joined.cluster.spawn(task, joined.role(task).args([TCP, "--workers-max=2"]));
    let mut programs: Vec<Program> = joined.cluster.spec.tasks().map(|(task, _)| start(task)).collect();
    programs[0].wait_for("of 1000000, ");
    programs.push(start(SECOND));
    programs[3].wait_for("the chief has given this task a certificate");
    programs[3].wait_for("joining the running job at step");
    Cluster::stop_now(&mut programs[0]);
    all_end(programs);
}
