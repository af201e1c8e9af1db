//! Tests of `pushpull local`, which starts a cluster of processes. It ends when all processes have ended,
//! and leaves no process behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command};

use pushpull_messages::id::TaskId;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{ENDLESS, Endpoint, Job, PATIENCE, Program, Report, tool, wait_until};

fn local(job: &Job, flags: &[&str]) -> Command {
    let mut command = tool();
    command.args(["local", "--threads=1"]).args(flags).arg("--job").arg(job.path());
    command
}

/// Returns the ids and names of the running processes that `program` has started.
fn children(program: &Program) -> Vec<(i32, String)> {
    let parent = program.id().to_string();
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("this is Linux").flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The format is `pid (name) state parent …`. The name may contain any characters.
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        let mut fields = stat[close + 1..].split_whitespace();
        let (state, its_parent) = (fields.next(), fields.next());
        if state != Some("Z") && its_parent == Some(&parent) {
            let id = stat[..open].trim().parse().expect("a process id");
            children.push((id, stat[open + 1..close].to_owned()));
        }
    }
    children
}

/// Returns whether a process has ended. In a container, an orphan may stay as a zombie.
fn is_gone(id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.map_or(true, |stat| stat.rfind(')').is_some_and(|close| stat[close..].starts_with(") Z")))
}

/// Waits until training has begun.
#[track_caller]
fn wait_for_training(program: &mut Program) {
    Endpoint::of_task(program, TaskId::ps(0)).wait_for_update();
}

#[test]
fn two_ps_and_three_workers_train_an_exported_job() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::with(dir.path(), 300, &["--partitioner=fixed:2"]);
    let path = dir.path().join("report.json");
    let mut command = local(&job, &["--ps=2", "--workers=3", "--shards=2", "--log-placement"]);
    let ended = Program::run(dir.path(), "local", command.arg("--report").arg(&path)).expect(0);
    let report = Report::read(&path);
    report.holds(300, 2, 3);
    assert_eq!(report.shards().len(), 4);
    assert!(ended.out.contains("300 of 300 applied"), "{}", ended.out);
    for said in ["[chief/0] ", "[ps/0] ", "[ps/1] ", "[worker/2] ", "dense1/kernel"] {
        assert!(ended.err.contains(said), "{said} in {}", ended.err);
    }
    let unnamed: Vec<&str> = ended.err.lines().filter(|line| !line.starts_with('[')).collect();
    assert!(unnamed.is_empty(), "lines without a task: {unnamed:?}");
    let twice = ended.err.lines().find(|line| line.contains(" chief/0: ") && line.starts_with("[chief/0]"));
    assert_eq!(twice, None, "a line names its task twice");
}

#[test]
fn nobody_is_warned_of_a_job_that_goes_well() {
    let dir = tempfile::tempdir().unwrap();
    // The job is long enough for the workers to send a report or two.
    let job = Job::new(dir.path(), 3000);
    let ended = Program::run(dir.path(), "local", &mut local(&job, &["--workers=2"])).expect(0);
    // Another test's tasks may look for one that they have lost at an address that a task of this job has.
    let is_of_others = |line: &&str| line.contains("refused: the cluster specs of ");
    // Tests beside this one may take more time from one worker than from the other, which makes that worker
    // slow. The chief's test `only_the_slow_worker_is_found` checks that nobody else is found.
    let is_by_load = |line: &&str| line.contains("slow worker; ") && line.contains("its steps take ");
    let warnings = ended.err.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
    let warnings: Vec<&str> = warnings.filter(|line| !is_of_others(line) && !is_by_load(line)).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_report_may_be_named_relative_to_where_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new(dir.path(), 20);
    let mut command = local(&job, &["--report=report.json"]);
    Program::run(dir.path(), "local", command.current_dir(dir.path())).expect(0);
    Report::read(&dir.path().join("report.json")).holds(20, 1, 2);
}

#[test]
fn a_signal_ends_all_processes() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::new(dir.path(), 1_000_000);
        let mut program = Program::start(dir.path(), "local", &mut local(&job, &["--workers=2"]));
        wait_for_training(&mut program);
        let children = children(&program);
        assert_eq!(children.len(), 4, "{children:?}");
        program.signal(signal);
        program.wait().expect(status).says("interrupted");
        for (id, name) in children {
            wait_until(&format!("the end of {name}"), PATIENCE, || is_gone(id).then_some(()));
        }
    }
}

#[test]
fn a_killed_program_leaves_no_process_but_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (job, saves) = (Job::new(dir.path(), 1_000_000), dir.path().join("saves"));
    let mut command = local(&job, &["--workers=1"]);
    command.arg("--checkpoint-dir").arg(&saves);
    let mut program = Program::start(dir.path(), "local", &mut command);
    wait_for_training(&mut program);
    let children = children(&program);
    assert_eq!(children.len(), 3, "{children:?}");
    program.kill();
    for (id, name) in children {
        wait_until(&format!("the end of {name}"), PATIENCE, || is_gone(id).then_some(()));
    }
    let listed = Program::run(dir.path(), "tool", tool().args(["checkpoint", "list"]).arg(&saves)).expect(0);
    let trained = |line: &str| line.contains("complete") && !line.contains("step-0-");
    assert!(listed.out.lines().any(trained), "{}", listed.out);
}

#[test]
fn a_lost_ps_ends_all_processes_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new(dir.path(), 1_000_000);
    let mut program = Program::start(dir.path(), "local", &mut local(&job, &["--ps=2", "--workers=2"]));
    wait_for_training(&mut program);
    let children = children(&program);
    let (ps, _) = children.iter().find(|(_, name)| name == "pushpull-ps").expect("a ps runs");
    kill_process(Pid::from_raw(*ps).unwrap(), Signal::KILL).expect("it takes signals");
    let ended = program.wait().expect_failure();
    assert!(ended.last_line().contains("ps/"), "{}", ended.last_line());
    for (id, name) in children {
        wait_until(&format!("the end of {name}"), PATIENCE, || is_gone(id).then_some(()));
    }
}

#[test]
fn a_chief_that_cannot_start_ends_the_others_soon() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::with(dir.path(), 10, &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--http-addr={}", taken.local_addr().unwrap());
    let ended = Program::run(dir.path(), "local", &mut local(&job, &[&address])).expect(1);
    // The others were told to stop: they are neither killed nor listed as failures of their own.
    assert_eq!(ended.last_line(), "error: chief/0 ended with exit status: 1");
    assert!(ended.err.contains("[ps/0] interrupted before the job ended"), "{}", ended.err);
}

/// Returns the sets of cores that some threads of a process may use, as Linux lists them. `chosen` gets the
/// name of a thread.
#[cfg(target_os = "linux")]
fn cores_of(process: i32, chosen: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let listed = |status: String| {
        let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        value("Cpus_allowed_list:").filter(|_| value("Name:").is_some_and(&chosen)).map(str::to_owned)
    };
    statuses.filter_map(listed).collect()
}

/// The numbers of scheduling policies in Linux.
#[cfg(target_os = "linux")]
const OTHER: i32 = 0;
#[cfg(target_os = "linux")]
const BATCH: i32 = 3;

/// Returns the scheduling policies of the threads that compute and serve connections.
#[cfg(target_os = "linux")]
fn policies_of(process: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let policy = |stat: String| {
        let (head, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let policy = || fields.split_whitespace().nth(38).expect("field 41").parse().expect("a number");
        head.contains("(actix-rt").then(policy)
    };
    stats.filter_map(policy).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn workers_with_a_core_each_use_no_other() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let all = sched_getaffinity(None).expect("Linux lists the cores");
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).take(2).collect();
    let &[first, second] = cores.as_slice() else {
        eprintln!("SKIPPED: this test needs two cores");
        return;
    };
    // Programs that this thread starts have two cores.
    let mut two = CpuSet::new();
    cores.iter().for_each(|&core| two.set(core));
    sched_setaffinity(None, &two).expect("a thread may give up cores");
    let bound = BTreeSet::from([first, second].map(|core| BTreeSet::from([core.to_string()])));
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let [synchronous, asynchronous] = [(&dir, "sync"), (&other, "async")]
        .map(|(dir, sync)| Job::with(dir.path(), ENDLESS, &["--sync", sync]));
    for (job, flags, are_bound, give_way) in [
        (&synchronous, ["--workers=2", "--ps=1", "--dedicated"], true, true),
        (&asynchronous, ["--workers=4", "--ps=1", "--dedicated"], true, false),
        (&synchronous, ["--workers=2", "--ps=0", "--dedicated"], true, true),
        (&synchronous, ["--workers=3", "--ps=1", "--dedicated"], false, false),
        (&synchronous, ["--workers=2", "--ps=1", "--devices=2"], false, false),
        (&synchronous, ["--workers=2", "--ps=1", "--bind-to-core=false"], false, false),
    ] {
        let mut program = Program::start(dir.path(), "local", &mut local(job, &flags));
        program.wait_for_line("[worker/0] ", "ready: model");
        program.wait_for_line("[worker/1] ", "ready: model");
        let (workers, others): (Vec<_>, Vec<_>) =
            children(&program).into_iter().partition(|(_, name)| name == "pushpull-worker");
        let free = cores_of(others[0].0, |_| true);
        let is_free = |&(process, _): &(i32, String)| cores_of(process, |_| true) == free;
        assert!(others.iter().all(is_free) && free.len() == 1, "{flags:?}");
        // The first thread waits for the task, and the threads of actix compute and serve connections.
        let works = |name: &str| name == "pushpull-worker" || name.starts_with("actix-rt");
        let used: BTreeSet<_> = workers.iter().map(|&(process, _)| cores_of(process, works)).collect();
        let expected = if are_bound { bound.clone() } else { BTreeSet::from([free.clone()]) };
        assert_eq!(used, expected, "{flags:?}");
        let of_shards = |name: &str| name.starts_with("shard");
        for (process, _) in workers {
            // The threads that compute and serve connections give way. That of the HTTP endpoint does not.
            let policies = policies_of(process);
            let count = |policy| policies.iter().filter(|&&other| other == policy).count();
            let expected = if give_way { 2..=9 } else { 0..=0 };
            assert!(expected.contains(&count(BATCH)) && count(OTHER) > 0, "{flags:?}: {policies:?}");
            let expected = if flags.contains(&"--ps=0") { free.clone() } else { BTreeSet::new() };
            assert_eq!(cores_of(process, of_shards), expected, "{flags:?}");
        }
        program.signal(Signal::TERM);
        program.wait().expect(143);
    }
    stops_giving_way(&mut local(&synchronous, &["--workers=2", "--ps=1"]), dir.path());
    sched_setaffinity(None, &all).expect("a thread may have its cores back");
}

/// A program that computes until this value is dropped.
#[cfg(target_os = "linux")]
struct Busy(Child);

#[cfg(target_os = "linux")]
impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it was killed");
    }
}

/// Runs two workers that give way while they are alone, beside two programs that compute.
#[cfg(target_os = "linux")]
fn stops_giving_way(command: &mut Command, dir: &Path) {
    let mut program = Program::start(dir, "local", command.env("RUST_LOG", "pushpull_worker=debug"));
    program.wait_for_line("[worker/0] ", "ready: model");
    let busy = || Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell"));
    let _others = [busy(), busy()];
    for worker in ["[worker/0] ", "[worker/1] "] {
        program.wait_for_line(worker, "no longer gives way");
    }
    program.signal(Signal::TERM);
    program.wait().expect(143);
}
