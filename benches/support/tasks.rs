//! Trains with one process per task, at given addresses, and counts the bytes that the ps receives and sends
//! for each push. This module must not depend on what is measured.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use pushpull::{ClusterSpec, JobSpec};
use pushpull_messages::id::{JobName, TaskId};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

/// How often the counters of the ps are read.
const EVERY: Duration = Duration::from_millis(50);
/// The number of samples of the counters from which the bytes are computed.
const SAMPLES_MAX: usize = 500;
/// The time limit for the other tasks to end after the chief.
const LEAVE: Duration = Duration::from_secs(15);
/// The time limit for a job.
const TRAINING: Duration = Duration::from_secs(1800);

/// The processes of a job with one ps. They end when this process ends.
pub(crate) struct Tasks {
    folder: TempDir,
    job: PathBuf,
    cluster: ClusterSpec,
    /// The address of the HTTP endpoint of the ps.
    http: String,
    flags: Vec<(JobName, String)>,
    /// The program and the first arguments that run a command of a worker.
    prefix: Vec<String>,
    last_step: u64,
}

/// The result of a job.
pub(crate) struct Trained {
    pub examples_per_second: f64,
    /// The time from the first step to the last, divided by the number of updates.
    pub seconds_per_update: f64,
    /// The payload of a push.
    pub bytes_up_per_push: f64,
    /// The payload of the reply to a push.
    pub bytes_down_per_push: f64,
    pub test_loss: f64,
    /// The fraction of the test examples; `None` if the model has no accuracy.
    pub test_accuracy: Option<f64>,
}

/// The counters of the ps at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counters {
    pushes: f64,
    received: f64,
    sent: f64,
}

struct Running {
    task: TaskId,
    child: Child,
    /// The task ends when this pipe is closed.
    _input: Option<ChildStdin>,
}

impl Tasks {
    /// Prepares the processes of a job. `http` is a free address on this host for the endpoint of the ps.
    pub(crate) fn new(job: &JobSpec, cluster: ClusterSpec, http: String) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("job.json");
        fs::write(&file, job.to_json())?;
        let last_step = job.last_step.0;
        Ok(Self { folder, job: file, cluster, http, flags: Vec::new(), prefix: Vec::new(), last_step })
    }

    /// Adds a flag to all tasks of a job.
    pub(crate) fn add_flag(&mut self, job: JobName, flag: String) {
        self.flags.push((job, flag));
    }

    /// Runs the workers with this program and these arguments, which run the rest of their command.
    pub(crate) fn prefix_workers(&mut self, prefix: Vec<String>) {
        self.prefix = prefix;
    }

    fn log(&self, task: TaskId) -> PathBuf {
        self.folder.path().join(format!("{}-{}.log", task.job, task.index))
    }

    fn start(&self, task: TaskId) -> anyhow::Result<Running> {
        let program = match task.job {
            JobName::Ps => env!("CARGO_BIN_EXE_pushpull-ps"),
            JobName::Chief => env!("CARGO_BIN_EXE_pushpull-chief"),
            _ => env!("CARGO_BIN_EXE_pushpull-worker"),
        };
        let mut words = if task.job == JobName::Worker { self.prefix.clone() } else { Vec::new() };
        words.push(program.to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        match task.job {
            JobName::Ps => command.arg(format!("--http-addr={}", self.http)),
            _ => command.arg("--http-addr=none"),
        };
        if task.job == JobName::Chief {
            command.arg(format!("--job={}", self.job.display()));
            command.arg(format!("--report={}", self.folder.path().join("report.json").display()));
        }
        command.args(self.flags.iter().filter(|(job, _)| *job == task.job).map(|(_, flag)| flag));
        command.env("TF_CONFIG", self.cluster.to_tf_config(task)).env("RUST_LOG", "warn");
        // The task ends when its standard input is closed, and so when this process ends.
        command.env("PUSHPULL_ENDS_WITH_PARENT", "5").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(File::create(self.log(task))?).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {task}"))?;
        let input = child.stdin.take();
        Ok(Running { task, child, _input: input })
    }

    fn failure(&self, task: TaskId, status: ExitStatus) -> anyhow::Error {
        let log = fs::read_to_string(self.log(task)).unwrap_or_default();
        anyhow::anyhow!("{task} ended with {status}:\n{log}")
    }

    /// Trains to the end.
    pub(crate) async fn train(&self) -> anyhow::Result<Trained> {
        let workers = self.cluster.addresses(JobName::Worker).len() as u32;
        let tasks = [TaskId::ps(0), TaskId::CHIEF].into_iter().chain((0..workers).map(TaskId::worker));
        let mut running = tasks.map(|task| self.start(task)).collect::<anyhow::Result<Vec<Running>>>()?;
        let (deadline, mut all) = (Instant::now() + TRAINING, Vec::<Counters>::new());
        let mut chief_ended = false;
        while !chief_ended {
            if Instant::now() > deadline {
                bail!("the job has not ended after {} s", TRAINING.as_secs());
            }
            for one in &mut running {
                match one.child.try_wait()? {
                    Some(status) if !status.success() => return Err(self.failure(one.task, status)),
                    Some(_) if one.task == TaskId::CHIEF => chief_ended = true,
                    _ => {}
                }
            }
            // Right after a change, the counters agree with each other: a push that arrives is not counted.
            if let Some(now) = Counters::read(&self.http).await
                && all.last().is_none_or(|last| last.pushes < now.pushes)
            {
                all.push(now);
            }
            sleep(EVERY).await;
        }
        for one in &mut running {
            let status = timeout(LEAVE, one.child.wait()).await;
            let status = status.with_context(|| format!("{} has not ended after the chief", one.task))??;
            if !status.success() {
                return Err(self.failure(one.task, status));
            }
        }
        // Start and end of a job have more pulls than pushes.
        let training = |it: &&Counters| (f64::from(workers)..self.last_step as f64).contains(&it.pushes);
        let all: Vec<Counters> = all.iter().filter(training).copied().collect();
        let up = Counters::bytes_per_push(&all, |it| it.received);
        let down = Counters::bytes_per_push(&all, |it| it.sent);
        let (up, down) =
            up.zip(down).context("the job was too short to count its bytes; increase --steps")?;
        self.trained(up, down)
    }

    fn trained(&self, bytes_up_per_push: f64, bytes_down_per_push: f64) -> anyhow::Result<Trained> {
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(self.folder.path().join("report.json"))?)?;
        let number = |field: &str| {
            report[field].as_f64().with_context(|| format!("the report has no number '{field}'"))
        };
        Ok(Trained {
            examples_per_second: number("examples_per_second")?,
            seconds_per_update: number("seconds")? / number("updates_applied")?,
            bytes_up_per_push,
            bytes_down_per_push,
            test_loss: number("test_loss")?,
            test_accuracy: report["test_accuracy"].as_f64(),
        })
    }
}

impl Counters {
    /// Returns by how much a counter of bytes has grown for each push; `None` if there are too few samples.
    ///
    /// Two samples have the same number of replies that are still being written, or they do not. Those that
    /// have it agree on the bytes exactly, so the quotient that most pairs of samples have is the right one.
    fn bytes_per_push(all: &[Self], bytes: impl Fn(&Self) -> f64) -> Option<f64> {
        let all = &all[..all.len().min(SAMPLES_MAX)];
        let mut quotients: Vec<f64> = Vec::new();
        for (at, later) in all.iter().enumerate() {
            let earlier = all[..at].iter();
            quotients.extend(earlier.map(|it| (bytes(later) - bytes(it)) / (later.pushes - it.pushes)));
        }
        quotients.sort_by(f64::total_cmp);
        let longest = quotients.chunk_by(|one, next| next - one <= one * 1e-9).max_by_key(|run| run.len());
        longest.map(|run| run[0])
    }

    /// Reads the counters from the endpoint of the ps; `None` if it does not answer.
    async fn read(address: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let counter = |name: &str, label: &str| {
            let found = text.lines().find(|line| line.starts_with(name) && line.contains(label))?;
            found.split_whitespace().last()?.parse().ok()
        };
        Some(Self {
            pushes: counter("pushpull_pushes_received_total", "")?,
            received: counter("pushpull_payload_bytes_total", "received")?,
            sent: counter("pushpull_payload_bytes_total", "sent")?,
        })
    }
}
