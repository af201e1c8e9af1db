//! The processes of a job: one for each task, with a proxy in front of each task that listens, or one that
//! starts the others by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};

use crate::plan::Plan;
use crate::ports::free_address;
use crate::program::Program;
use crate::programs::Programs;
use crate::proxy::Proxy;

/// The environment variable that all processes of a job inherit. Its value is the directory of the job.
pub const MARK: &str = "SOAK_JOB";
/// The time after which a silent peer counts as lost, in seconds.
const LOST_AFTER_S: u32 = 5;
/// The time for which a task waits for the others at its start, in seconds.
const START_TIMEOUT_S: u32 = 60;
/// How long tasks wait for a chief that was killed, in seconds: longer than ps tasks refuse its next run.
const CHIEF_LOST_AFTER_S: u32 = 25;
/// How long the chief waits for a lost ps task, in seconds: longer than a ps task is stopped, and short
/// enough that a job whose ps does not come back still ends in time.
const PS_LOST_AFTER_S: u32 = 25;
/// The number of checkpoints that are kept.
const KEPT: u32 = 3;

/// The processes of a job.
pub struct Cluster<'a> {
    plan: Plan,
    programs: &'a Programs,
    dir: PathBuf,
    spec: ClusterSpec,
    /// Where each task listens behind its proxy.
    behind: BTreeMap<TaskId, String>,
    proxies: BTreeMap<TaskId, Proxy>,
    running: BTreeMap<TaskId, Program>,
}

impl<'a> Cluster<'a> {
    /// Makes the cluster of a plan, with its job file, in a directory. Starts no task.
    ///
    /// # Errors
    /// If the directory cannot be written, or no port is free.
    pub fn new(plan: &Plan, programs: &'a Programs, dir: &Path) -> anyhow::Result<Self> {
        std::fs::write(dir.join("job.json"), crate::job::job(plan).to_json())?;
        let mut jobs = Vec::new();
        let (mut behind, mut proxies) = (BTreeMap::new(), BTreeMap::new());
        for (job, count) in [(JobName::Chief, 1), (JobName::Ps, plan.ps), (JobName::Worker, plan.workers)] {
            let mut addresses = Vec::new();
            for index in 0..count {
                let (address, own) = (free_address(), free_address());
                // A worker does not listen.
                if job != JobName::Worker && !plan.local {
                    let task = TaskId::new(job, index);
                    let proxy = Proxy::start(&address, &own, plan.latency).context("cannot start a proxy")?;
                    proxies.insert(task, proxy);
                    behind.insert(task, own);
                }
                addresses.push(address);
            }
            jobs.push((job, addresses));
        }
        let (spec, plan, dir) = (ClusterSpec::new(jobs)?, plan.clone(), dir.to_owned());
        Ok(Self { plan, programs, dir, spec, behind, proxies, running: BTreeMap::new() })
    }

    /// Returns the tasks that have a process of their own which is a child of this one.
    pub fn tasks(&self) -> Vec<TaskId> {
        match self.plan.local {
            true => vec![TaskId::CHIEF],
            false => self.spec.tasks().map(|(task, _)| task).collect(),
        }
    }

    /// Starts a task, always with the same flags.
    ///
    /// # Errors
    /// If its process cannot be started.
    pub fn start(&mut self, task: TaskId) -> anyhow::Result<()> {
        let mut command = if self.plan.local { self.local() } else { self.role(task) };
        command.env(MARK, &self.dir);
        self.running.insert(task, Program::start(&mut command, &log_of(&self.dir, task))?);
        Ok(())
    }

    fn local(&self) -> Command {
        let mut command = self.programs.tool();
        let Plan { ps, workers, shards, .. } = self.plan;
        command.arg("local").args([format!("--ps={ps}"), format!("--workers={workers}")]);
        command.args([format!("--shards={shards}"), "--threads=1".to_owned()]).args(self.chief_flags());
        command
    }

    fn role(&self, task: TaskId) -> Command {
        let mut command = self.programs.role(task.job);
        command.env("TF_CONFIG", self.spec.to_tf_config(task));
        command.args([format!("--lost-after-s={LOST_AFTER_S}"), "--retry-after-ms=1000".to_owned()]);
        command.arg(format!("--start-timeout-s={START_TIMEOUT_S}"));
        command.arg(format!("--chief-lost-after-s={CHIEF_LOST_AFTER_S}"));
        if let Some(own) = self.behind.get(&task) {
            command.arg(format!("--bind={own}"));
        }
        match task.job {
            JobName::Worker => command.arg("--threads=1"),
            JobName::Ps => command.arg(format!("--shards={}", self.plan.shards)),
            _ => command.args(self.chief_flags()),
        };
        command
    }

    fn chief_flags(&self) -> Vec<String> {
        let path = |flag: &str, name: &str| format!("--{flag}={}", self.dir.join(name).display());
        let mut flags = vec![path("job", "job.json"), path("report", "report.json")];
        if let Some(steps) = self.plan.save_steps {
            flags.extend([path("checkpoint-dir", "checkpoints"), format!("--save-steps={steps}")]);
            flags.push(format!("--keep-checkpoints={KEPT}"));
            // `pushpull local` does not start a ps task again, so it has no such flag.
            if !self.plan.local {
                flags.push(format!("--ps-lost-after-s={PS_LOST_AFTER_S}"));
            }
        }
        flags
    }

    /// Returns the process of a task that runs.
    pub fn running(&mut self, task: TaskId) -> Option<&mut Program> {
        self.running.get_mut(&task)
    }

    /// Returns the processes that run.
    pub fn all_running(&mut self) -> impl Iterator<Item = (TaskId, &mut Program)> {
        self.running.iter_mut().map(|(&task, program)| (task, program))
    }

    /// Returns the proxy in front of a task.
    pub fn proxy(&self, task: TaskId) -> Option<&Proxy> {
        self.proxies.get(&task)
    }

    /// Removes and returns the tasks whose processes have ended.
    ///
    /// # Errors
    /// If the system does not say whether a process runs.
    pub fn take_ended(&mut self) -> anyhow::Result<Vec<(TaskId, ExitStatus)>> {
        let mut ended = Vec::new();
        for (&task, program) in &mut self.running {
            ended.extend(program.ended()?.map(|status| (task, status)));
        }
        ended.iter().for_each(|(task, _)| drop(self.running.remove(task)));
        Ok(ended)
    }
}

/// Returns the file with the log of a task, of all its lives.
pub fn log_of(dir: &Path, task: TaskId) -> PathBuf {
    dir.join(format!("{}.log", task.to_string().replace('/', "-")))
}
