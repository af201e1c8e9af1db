//! A cluster of servers, each a process of its own on loopback.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pushpull::{ClusterSpec, Session, SessionOptions, TaskId};
use tempfile::TempDir;

use super::ports::free_port;
use super::program::{Program, clean};

/// The processes of a cluster of servers.
pub(crate) struct Servers {
    programs: BTreeMap<TaskId, Program>,
    flags: Vec<String>,
    pub(crate) spec: ClusterSpec,
    /// The directory of the output, which is removed after the programs have ended.
    dir: TempDir,
}

/// Returns the command of the program `pushpull-server`.
pub(crate) fn server() -> Command {
    clean(env!("CARGO_BIN_EXE_pushpull-server"))
}

/// Parses the name of a task, such as `worker/0`.
#[track_caller]
pub(crate) fn task(name: &str) -> TaskId {
    let (job, index) = name.split_once('/').expect("a job and an index");
    TaskId::new(job.parse().expect("the name of a job"), index.parse().expect("an index"))
}

impl Servers {
    /// Starts all tasks of these jobs with additional flags, and waits until they serve.
    #[track_caller]
    pub(crate) fn start(jobs: &[(&str, u32)], flags: &[&str]) -> Self {
        let mut servers = Self::prepare(jobs, flags);
        let tasks: Vec<TaskId> = servers.spec.tasks().map(|(task, _)| task).collect();
        for &task in &tasks {
            let command = servers.command(task);
            servers.spawn(task, command);
        }
        tasks.into_iter().for_each(|task| servers.wait_until_serving(task));
        servers
    }

    /// Chooses the addresses of a cluster, without starting a task.
    #[track_caller]
    pub(crate) fn prepare(jobs: &[(&str, u32)], flags: &[&str]) -> Self {
        let addresses = |tasks| (0..tasks).map(|_| format!("127.0.0.1:{}", free_port())).collect::<Vec<_>>();
        let jobs =
            jobs.iter().map(|&(job, tasks)| (job.parse().expect("the name of a job"), addresses(tasks)));
        let spec = ClusterSpec::new(jobs).expect("a cluster");
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self { programs: BTreeMap::new(), flags, spec, dir: tempfile::tempdir().expect("a directory") }
    }

    /// Returns the command of a task, in the spelling of the field: with underscores.
    pub(crate) fn command(&self, task: TaskId) -> Command {
        let mut command = server();
        command.arg(format!("--cluster_spec={}", self.spec.to_flag()));
        command.arg(format!("--job_name={}", task.job)).arg(format!("--task_index={}", task.index));
        command.args(&self.flags);
        command
    }

    #[track_caller]
    pub(crate) fn spawn(&mut self, task: TaskId, mut command: Command) {
        let program = Program::start(self.dir.path(), &task.to_string(), &mut command);
        self.programs.insert(task, program);
    }

    #[track_caller]
    pub(crate) fn wait_until_serving(&mut self, task: TaskId) {
        self.programs.get_mut(&task).expect("a started task").wait_for("serving sessions at pushpull://");
    }

    /// Starts a task that has ended, and waits until it serves.
    #[track_caller]
    pub(crate) fn restart(&mut self, name: &str) {
        let task = task(name);
        let command = self.command(task);
        self.spawn(task, command);
        self.wait_until_serving(task);
    }

    #[track_caller]
    pub(crate) fn program(&mut self, name: &str) -> &mut Program {
        self.programs.get_mut(&task(name)).expect("a started task")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[track_caller]
    pub(crate) fn address(&self, name: &str) -> String {
        self.spec.address(task(name)).expect("a task of the cluster").to_string()
    }

    #[track_caller]
    pub(crate) fn target(&self, name: &str) -> String {
        format!("pushpull://{}", self.address(name))
    }

    #[track_caller]
    pub(crate) fn session(&self, name: &str) -> Session {
        Session::connect(&self.target(name)).expect("the task serves")
    }

    #[track_caller]
    pub(crate) fn session_in(&self, name: &str, container: &str) -> Session {
        let options = SessionOptions { container: container.to_owned(), ..SessionOptions::default() };
        Session::connect_with(&self.target(name), options).expect("the task serves")
    }
}
