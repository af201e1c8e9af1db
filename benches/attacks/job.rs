//! A secured job in processes of its own: a chief, a ps task and a worker, which are connected by TLS.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pushpull::{ClusterSpec, OptimizerSpec, SyncSpec};
use pushpull_identity::Authority;
use pushpull_messages::id::{JobName, TaskId};
use tempfile::TempDir;

use crate::secret::write_secret;
use crate::support::ports::free_address;
use crate::support::usage::peak_of;

const TASKS: [TaskId; 3] = [TaskId::CHIEF, TaskId::ps(0), TaskId::worker(0)];
/// The width of the model: an update takes a few milliseconds.
const WIDTH: usize = 256;
/// A number of steps that no measurement reaches.
const STEPS: u64 = 1 << 40;
/// The time limit for the job to begin, and for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the version is asked for while a new one is awaited.
const EVERY: Duration = Duration::from_millis(10);

/// The processes of the job. They are killed when this value is dropped.
pub(crate) struct Job {
    tasks: Vec<Child>,
    /// The addresses of the HTTP endpoints of the chief and of the ps task.
    endpoints: [String; 2],
    cluster: ClusterSpec,
    folder: TempDir,
}

/// Returns the file with the log of a task.
fn log_of(folder: &TempDir, task: TaskId) -> PathBuf {
    folder.path().join(format!("{}.log", task.job))
}

impl Job {
    /// Starts the job, and waits until it trains.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let [authority, join, job] = ["authority", "join", "job.json"].map(|name| folder.path().join(name));
        let made = Authority::new()?;
        made.write(&authority)?;
        write_secret(&join, &made.join().text())?;
        let optimizer = OptimizerSpec::sgd(0.01);
        fs::write(&job, crate::support::job(WIDTH, optimizer, SyncSpec::ASYNC, STEPS)?.to_json())?;
        let jobs = [JobName::Chief, JobName::Ps, JobName::Worker];
        let jobs = jobs.map(|name| (name, vec![free_address()]));
        let cluster = ClusterSpec::new(jobs)?;
        let endpoints = [free_address(), free_address()];
        let mut started = Self { tasks: Vec::new(), endpoints, cluster, folder };
        for (at, task) in TASKS.into_iter().enumerate() {
            let mut command = Command::new(match at {
                0 => env!("CARGO_BIN_EXE_pushpull-chief"),
                1 => env!("CARGO_BIN_EXE_pushpull-ps"),
                _ => env!("CARGO_BIN_EXE_pushpull-worker"),
            });
            command.arg("--transport=tcp").env("TF_CONFIG", started.cluster.to_tf_config(task));
            command.arg(format!("--http-addr={}", started.endpoints.get(at).map_or("none", String::as_str)));
            match at {
                0 => command.arg("--job").arg(&job).arg("--authority").arg(&authority),
                _ => command.arg("--join-file").arg(&join),
            };
            if at == 2 {
                command.arg("--threads=1");
            }
            // The task ends when its standard input is closed, and so when this process ends.
            command.env("PUSHPULL_ENDS_WITH_PARENT", "5").stdin(Stdio::piped()).stdout(Stdio::null());
            let log = File::create(log_of(&started.folder, task))?;
            let child = command.stderr(log).spawn().with_context(|| format!("cannot start {task}"))?;
            started.tasks.push(child);
        }
        let deadline = Instant::now() + PATIENCE;
        while started.version().unwrap_or_default() == 0.0 {
            started.is_well()?;
            if Instant::now() > deadline {
                bail!(
                    "the job does not train:\n{}",
                    fs::read_to_string(log_of(&started.folder, TaskId::CHIEF))?
                );
            }
            sleep(EVERY);
        }
        Ok(started)
    }

    /// Returns the addresses to attack: the ports of the chief and the ps task, and the chief's endpoint.
    pub(crate) fn targets(&self) -> [String; 3] {
        let port = |task| self.cluster.address(task).map(ToString::to_string).unwrap_or_default();
        [port(TaskId::CHIEF), port(TaskId::ps(0)), self.endpoints[0].clone()]
    }

    /// Checks that all tasks run.
    pub(crate) fn is_well(&mut self) -> anyhow::Result<()> {
        for (task, child) in TASKS.into_iter().zip(&mut self.tasks) {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(log_of(&self.folder, task))?;
                bail!("{task} has ended with {status}:\n{log}");
            }
        }
        Ok(())
    }

    /// Returns the metrics of an endpoint.
    fn metrics(&self, endpoint: usize) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.endpoints[endpoint])?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Returns the version of the shard in the newest snapshot.
    fn version(&self) -> anyhow::Result<f64> {
        let text = self.metrics(1)?;
        let line = text.lines().find(|line| line.starts_with("pushpull_shard_version"));
        let version = line.and_then(|line| line.split_whitespace().last());
        Ok(version.context("no version yet")?.parse()?)
    }

    /// Waits for a new snapshot, and returns its version and its time.
    fn fresh(&self) -> anyhow::Result<(f64, Instant)> {
        let old = self.version()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let version = self.version()?;
            if version != old {
                return Ok((version, Instant::now()));
            }
            if Instant::now() > deadline {
                bail!("the job has stopped to train at version {old}");
            }
            sleep(EVERY);
        }
    }

    /// Returns the updates per second during `window`.
    pub(crate) fn rate(&mut self, window: Duration) -> anyhow::Result<f64> {
        let (first, began) = self.fresh()?;
        sleep(window);
        let (last, ended) = self.fresh()?;
        self.is_well()?;
        Ok((last - first) / (ended - began).as_secs_f64())
    }

    /// Returns the peak memory of the attacked tasks, in bytes.
    pub(crate) fn peaks(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let attacked = TASKS.iter().zip(&self.tasks).take(2);
        attacked.map(|(task, child)| Ok((task.to_string(), peak_of(&child.id().to_string())?))).collect()
    }

    /// Returns the counters of what the attacked tasks have refused.
    pub(crate) fn refusals(&self) -> anyhow::Result<Vec<String>> {
        let families = ["pushpull_connections_closed_total{", "pushpull_http_refused_total{"];
        let mut lines = Vec::new();
        for (at, task) in TASKS.iter().enumerate().take(2) {
            let text = self.metrics(at)?;
            let counters = text.lines().filter(|line| {
                families.iter().any(|family| line.starts_with(family)) && !line.ends_with(" 0")
            });
            lines.extend(counters.map(|line| format!("{task}: {line}")));
        }
        Ok(lines)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}
