//! A cluster whose processes are started one by one by a test. Each process binds its own port.

use std::path::{Path, PathBuf};
use std::process::Command;

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use tempfile::TempDir;

use super::endpoint::Endpoint;
use super::job::Job;
use super::ports::free_port;
use super::program::{Program, example, role};
use super::report::Report;
use super::spy::wait_for_version;

/// The number of steps after which a model has learnt enough for the checks of a report.
const LEARNT: u64 = 100;
/// The time after which a job ends without its chief, in most tests. No chief comes back in time.
const CHIEF_LOST_AFTER_S: u32 = 1;
/// How long ps tasks belong to a chief that was killed, in seconds.
const CHIEF_LEASE_S: u32 = 2;
/// The token with which a test may stop a job.
const TOKEN: &str = "the-token-of-the-tests";

/// The addresses, the job and the directory of a cluster. It has no processes until a test starts them.
pub(crate) struct Cluster {
    pub(crate) spec: ClusterSpec,
    pub(crate) job: Job,
    /// Additional flags of the task that hosts the chief.
    pub(crate) chief_flags: Vec<String>,
    /// How long the other tasks wait for a chief that was killed, in seconds.
    pub(crate) chief_lost_after_s: u32,
    dir: TempDir,
}

impl Cluster {
    /// Makes a cluster with a separate chief task.
    pub(crate) fn new(ps: u32, workers: u32, steps: u64) -> Self {
        Self::with(1, ps, workers, |dir| Job::new(dir, steps))
    }

    /// Makes a cluster in which worker 0 hosts the chief.
    pub(crate) fn without_chief(ps: u32, workers: u32, steps: u64) -> Self {
        Self::with(0, ps, workers, |dir| Job::new(dir, steps))
    }

    pub(crate) fn with(chiefs: u32, ps: u32, workers: u32, job: impl FnOnce(&Path) -> Job) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let addresses = |count| (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let jobs: [(JobName, Vec<String>); 3] = [
            (JobName::Chief, addresses(chiefs)),
            (JobName::Ps, addresses(ps)),
            (JobName::Worker, addresses(workers)),
        ];
        let spec = ClusterSpec::new(jobs).expect("a cluster");
        Self {
            spec,
            job: job(dir.path()),
            chief_flags: Vec::new(),
            chief_lost_after_s: CHIEF_LOST_AFTER_S,
            dir,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn address(&self, task: TaskId) -> String {
        let task = if task == TaskId::CHIEF { self.spec.chief_host() } else { task };
        self.spec.reached_at(task).expect("a task of the cluster").to_string()
    }

    /// Returns the command of the role binary for a task. The task is set in `TF_CONFIG`.
    pub(crate) fn role(&self, task: TaskId) -> Command {
        let mut command = role(task.job);
        command.env("TF_CONFIG", self.spec.to_tf_config(task)).args(self.usual(task));
        command.env("PUSHPULL_HTTP_TOKEN", TOKEN);
        command
    }

    /// Returns the flags that are needed to start a task.
    pub(crate) fn usual(&self, task: TaskId) -> Vec<String> {
        let mut flags = vec![format!("--chief-lost-after-s={}", self.chief_lost_after_s)];
        match task.job {
            JobName::Worker => {
                flags.push("--threads=1".to_owned());
                flags.extend((!self.spec.has_ps()).then(|| format!("--chief-lease-s={CHIEF_LEASE_S}")));
            }
            JobName::Ps => flags.push(format!("--chief-lease-s={CHIEF_LEASE_S}")),
            _ => {}
        }
        if task == self.spec.chief_host() {
            flags.push(format!("--job={}", self.job.path().display()));
            flags.push(format!("--report={}", self.report_path().display()));
            flags.extend(self.chief_flags.iter().cloned());
        }
        flags
    }

    /// Returns the command of the example for a task. The task is set in `TF_CONFIG`.
    pub(crate) fn example(&self, task: TaskId) -> Command {
        let mut command = example();
        command.env("TF_CONFIG", self.spec.to_tf_config(task)).args(["--threads=1", "--batch-size=16"]);
        command.arg(format!("--steps={}", self.job.steps));
        command.arg("--report").arg(self.report_path());
        command
    }

    #[track_caller]
    pub(crate) fn start(&self, task: TaskId) -> Program {
        self.start_with(task, &[])
    }

    #[track_caller]
    pub(crate) fn start_with(&self, task: TaskId, flags: &[&str]) -> Program {
        self.spawn(task, self.role(task).args(flags))
    }

    #[track_caller]
    pub(crate) fn spawn(&self, task: TaskId, command: &mut Command) -> Program {
        Program::start(self.dir(), &task.to_string(), command)
    }

    /// Starts all tasks in the order of the cluster spec: chief, ps, workers.
    #[track_caller]
    pub(crate) fn start_all(&self) -> Vec<Program> {
        self.spec.tasks().map(|(task, _)| self.start(task)).collect()
    }

    pub(crate) fn report_path(&self) -> PathBuf {
        self.dir().join("report.json")
    }

    /// Asks the chief to end the job early and well. A test can thus train for as long as it needs, on a
    /// machine of any speed.
    #[track_caller]
    pub(crate) fn stop(&self, chief: &mut Program) {
        // The chief's page would show this step one or two seconds later.
        wait_for_version(self, LEARNT);
        Self::stop_now(chief);
    }

    /// Does the same at once. The model may have learnt nothing.
    #[track_caller]
    pub(crate) fn stop_now(chief: &mut Program) {
        assert_eq!(Endpoint::of(chief).stop(TOKEN), 202, "{}", chief.err());
    }

    /// Returns the report after checking its invariants.
    #[track_caller]
    pub(crate) fn finished(&self) -> Report {
        let report = Report::read(&self.report_path());
        let ps = self.spec.ps_addresses().len() as u64;
        let workers = self.spec.addresses(JobName::Worker).len() as u64;
        match self.chief_lost_after_s {
            CHIEF_LOST_AFTER_S => report.holds(self.job.steps, ps, workers),
            _ => report.holds_but_for_times(self.job.steps, ps, workers),
        }
        report
    }
}

/// Stops the job, and waits until all tasks have ended. The chief is the first program.
#[track_caller]
pub(crate) fn all_end_well(cluster: &Cluster, programs: &mut [Program]) {
    cluster.stop(&mut programs[0]);
    for program in programs {
        program.wait().expect(0);
    }
}
