//! Tests of the Slurm script on this machine. Scripts replace Slurm's commands; the programs are the real
//! ones.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{deployed, programs, read};

/// The time limit for each wait, for a job of a few tasks on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of ports of a job: the chief's page, the chief, two ps tasks and three workers.
const PORTS: u16 = 7;
const SRUN: &str = r#"#!/bin/bash
options=
while [[ $1 == --* ]]; do options+=" $1"; shift; done
echo "$options $1" >> "$PLAYED/srun"
# Since 22.05 srun does not use the allocation's --cpus-per-task. A step without --mem takes all of the memory. A step without
# --overlap has its CPUs for itself.
needs="--exact --mem=0 --cpus-per-task="
case $1 in
  pushpull-chief) needs+="1 --overlap" ;;
  pushpull-ps) needs+="$SLURM_CPUS_PER_TASK --overlap" ;;
  *) needs+="$SLURM_CPUS_PER_TASK"; [[ $options == *--overlap* ]] && { echo "$1 shares its CPUs" >&2; exit 64; } ;;
esac
for option in $needs; do
  [[ "$options " == *" $option "* ]] || { echo "srun $1 without $option" >&2; exit 64; }
done
exec "$@"
"#;
const SCONTROL: &str = r#"#!/bin/bash
case $1 in
  show) [[ $2 == hostnames && $3 == "127.0.0.[1-2]" ]] && printf '127.0.0.1\n127.0.0.2\n' ;;
  requeue) echo "$2" >> "$PLAYED/requeued" ;;
  *) echo "scontrol knows no $1" >&2; exit 1 ;;
esac
"#;

/// The running script, and its directory.
struct Allocation {
    child: Child,
    dir: tempfile::TempDir,
}

impl Allocation {
    fn start(steps: u64) -> Self {
        Self::of(3, steps)
    }

    fn of(workers: u32, steps: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name);
        for (name, text) in [("srun", SRUN), ("scontrol", SCONTROL)] {
            fs::create_dir_all(path("bin")).expect("the folder can be written");
            let file = path("bin").join(name);
            fs::write(&file, text).expect("the folder can be written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it can be made a program");
        }
        let job = path("job.json");
        let example = programs().join("examples/linear_regression");
        let exported =
            Command::new(&example).arg(format!("--steps={steps}")).arg("--export-job").arg(&job).output();
        let exported = exported.unwrap_or_else(|error| {
            panic!("{}: {error}; `cargo build --examples` builds it", example.display());
        });
        assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
        let places = [path("bin"), programs().to_owned(), "/usr/bin".into(), "/bin".into()];
        let out = File::create(path("out")).expect("the folder can be written");
        let child = Command::new("bash")
            .arg(deployed("slurm/pushpull.sbatch"))
            .arg(&job)
            .env_clear()
            .env("PATH", std::env::join_paths(places).expect("folders without a colon"))
            .env("PLAYED", dir.path())
            .env("SLURM_JOB_ID", "4711")
            .env("SLURM_JOB_NODELIST", "127.0.0.[1-2]")
            .env("SLURM_NNODES", "2")
            .envs([("SLURM_NTASKS_PER_NODE", "2"), ("SLURM_CPUS_PER_TASK", "2")])
            .env("WORKERS", workers.to_string())
            .envs([("PS", "2"), ("SHARDS", "1"), ("THREADS", "1"), ("DRAIN_S", "60")])
            .env("PORT", free_ports().to_string())
            .env("CHECKPOINTS", path("checkpoints"))
            .env("REPORT", path("report.json"))
            .env("SECRETS", path("secrets"))
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file can be opened twice"))
            .stderr(out)
            .process_group(0)
            .spawn()
            .expect("there is a bash");
        Self { child, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn said(&self) -> String {
        read(&self.path("out"))
    }

    fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "{what} did not come; it said:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the script has ended, and returns its exit status.
    fn end(&mut self) -> Option<i32> {
        let mut ended = None;
        self.wait_until("its end", |own| {
            ended = own.child.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // The script is killed together with all processes that it has started.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Returns the first of [`PORTS`] consecutive free ports, below the ephemeral range. Each call returns
/// different ports.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let free = |port: u16| TcpListener::bind(("0.0.0.0", port)).is_ok();
    // Each run of the tests begins at a different port, so that runs at the same time rarely collide.
    let begin = std::process::id() as u16;
    for _ in 0..1000 {
        let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 1000;
        let start = 20_000 + next * PORTS;
        if (start..start + PORTS).all(free) {
            return start;
        }
    }
    panic!("no {PORTS} ports from 20000 on are free");
}

fn checkpoints(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let whole = |entry: fs::DirEntry| entry.path().join("manifest.json").exists();
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(whole)
        .filter(|whole| *whole)
        .count()
}

#[test]
fn the_script_is_a_script() {
    let checked = Command::new("bash").arg("-n").arg(deployed("slurm/pushpull.sbatch")).output();
    let checked = checked.expect("there is a bash");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn a_job_runs_over_the_hosts_to_its_end() {
    let mut allocation = Allocation::start(200);
    let status = allocation.end();
    let said = allocation.said();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("the job's page is https://127.0.0.1:"), "{said}");
    for secret in ["secrets", "secrets/authority", "secrets/join"] {
        let mode =
            fs::metadata(allocation.path(secret)).expect("the script has made it").permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can use {secret}");
    }
    let report: serde_json::Value =
        serde_json::from_str(&read(&allocation.path("report.json"))).expect("the report is JSON");
    for shard in 0..2 {
        assert_eq!(report["shards"][shard]["version"], 200, "{report}");
    }
    let srun = read(&allocation.path("srun"));
    let mut started: Vec<_> = srun.lines().filter_map(|line| line.split(' ').next_back()).collect();
    started.sort_unstable();
    let workers = ["pushpull-worker"; 3];
    assert_eq!(started, [&["pushpull-chief", "pushpull-ps", "pushpull-ps"], &workers[..]].concat());
    for host in ["127.0.0.1", "127.0.0.2"] {
        assert!(srun.contains(&format!("--nodelist={host} ")), "{srun}");
    }
    assert!(!allocation.path("requeued").exists());
}

#[test]
fn too_many_workers_are_refused_at_once() {
    let mut allocation = Allocation::of(5, 1);
    let status = allocation.end();
    let said = allocation.said();
    assert_eq!(status, Some(2), "{said}");
    let expected = "5 workers on 2 host(s) make 3 on one host, which has room for 2 (--ntasks-per-node)";
    assert!(said.contains(expected), "{said}");
    assert!(!allocation.path("srun").exists());
}

#[test]
fn before_the_time_is_up_it_saves_and_is_queued_again() {
    let mut allocation = Allocation::start(100_000_000);
    allocation.wait_until("the training", |own| own.said().contains(" of 100000000"));
    let script = Pid::from_raw(allocation.child.id().cast_signed()).expect("a process has an id");
    kill_process(script, Signal::USR1).expect("it runs");
    let status = allocation.end();
    let said = allocation.said();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(read(&allocation.path("requeued")), "4711\n", "{said}");
    assert!(checkpoints(&allocation.path("checkpoints")) > 0, "{said}");
}
