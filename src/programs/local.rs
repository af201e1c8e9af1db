//! Runs a cluster of processes on this machine. Starts the role binaries, merges their logs, and ends when
//! all processes have ended. If this process is killed, the cluster's processes end, too.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use command_fds::{CommandFdExt, FdMapping};
use parking_lot::Mutex;
use pushpull_identity::TlsFiles;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{JobName, TaskId};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::programs::cli::{AUTHORITY_ENV, JOIN_ENV};
use crate::programs::exit::{Failure, Outcome};
use crate::programs::logging::{LogFormat, PREFIXED};
use crate::programs::open_files;
use crate::programs::parent::end_with_this;
use crate::programs::signals::Signals;

/// The time limit for the tasks to end after the chief has saved the job or has ended.
const LEAVE: Duration = Duration::from_secs(15);
/// The time limit for the other tasks to learn that the chief has failed.
const GRACE: Duration = Duration::from_secs(2);
/// The file descriptor of the first inherited socket in systemd's protocol.
const FIRST_INHERITED_FD: i32 = 3;

/// The settings of a local cluster.
pub(crate) struct Local {
    pub ps: u32,
    pub workers: u32,
    /// The job file.
    pub job: PathBuf,
    /// The chief's flags, without those that describe the cluster.
    pub chief_flags: Vec<String>,
    /// The flags of every ps, also without those that describe the cluster.
    pub ps_flags: Vec<String>,
    /// The flags of every worker, also without those that describe the cluster.
    pub worker_flags: Vec<String>,
    /// The core of each worker; empty if each may use all cores.
    pub worker_cores: Vec<usize>,
    /// Whether no other program computes on this host.
    pub dedicated: bool,
    /// The time limit for the chief to save the job and end after a signal.
    pub drain_timeout: Duration,
    /// The format of all tasks' logs.
    pub log_format: LogFormat,
}

impl Local {
    /// Runs the cluster until the job has ended.
    pub(crate) async fn run(self) -> Outcome {
        open_files::allow_children(1 + u64::from(self.ps) + u64::from(self.workers))?;
        let running = Running::default();
        let last = running.clone();
        let signals = Signals::listen_and(move || last.kill_all())?;
        let Sockets { cluster, opened } = Sockets::open(self.ps, self.workers)?;
        let mut children = JoinSet::new();
        // If there are ps tasks, workers do not listen; a worker's socket then only reserves its port.
        let mut kept = Vec::new();
        for (task, socket) in opened {
            let inherits = match task.job {
                JobName::Worker if cluster.has_ps() => {
                    kept.push(socket);
                    None
                }
                _ => Some(socket.into()),
            };
            let child = self.start(task, &cluster, inherits)?;
            running.add(task, child.id());
            children.spawn(attend(task, child, self.log_format));
        }
        let failed = wait(&mut children, &running, &signals, self.leave()).await?;
        match failed.is_empty() {
            // A job that was interrupted and saved is a success, too: all its tasks end without an error.
            true => Ok(()),
            false if signals.interrupt.is_cancelled() => {
                let reason = format!("interrupted: {}", failed.join("; "));
                Err(Failure::Signal { reason, number: signals.number() })
            }
            false => Err(anyhow!(failed.join("; ")).into()),
        }
    }

    /// Returns the time limit for the tasks to end, after the chief has ended or a signal has arrived.
    fn leave(&self) -> Duration {
        self.drain_timeout + LEAVE
    }

    fn start(&self, task: TaskId, cluster: &ClusterSpec, socket: Option<OwnedFd>) -> anyhow::Result<Child> {
        let program = beside_this_program(&format!("pushpull-{}", task.job))?;
        let mut command = std::process::Command::new(&program);
        // Each child has a process group of its own. Ctrl-C therefore reaches only this process, which then
        // ends the children in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.env("TF_CONFIG", cluster.to_tf_config(task)).env(PREFIXED, "1");
        // All tasks are on this host, and none has the authority of the shell's job.
        command.env_remove(JOIN_ENV).env_remove(AUTHORITY_ENV);
        for file in [TlsFiles::CA_ENV, TlsFiles::CERTIFICATE_ENV, TlsFiles::KEY_ENV] {
            command.env_remove(file);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_this(&mut command, self.leave());
        match task.job {
            JobName::Chief => command.arg("--job").arg(&self.job).args(&self.chief_flags),
            JobName::Ps => command.args(&self.ps_flags),
            _ => {
                let core = self.worker_cores.get(task.index as usize).map(|core| format!("--core={core}"));
                let dedicated = core.as_ref().filter(|_| self.dedicated).map(|_| "--dedicated");
                command.args(&self.worker_flags).args(core).args(dedicated)
            }
        };
        if let Some(parent_fd) = socket {
            command.env("LISTEN_FDS", "1").env_remove("LISTEN_PID");
            command.fd_mappings(vec![FdMapping { parent_fd, child_fd: FIRST_INHERITED_FD }])?;
        }
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    }
}

/// The sockets of a cluster's tasks. All sockets are opened in this process, so that no other program can
/// take a port before its task starts. The children that listen inherit their sockets.
struct Sockets {
    cluster: ClusterSpec,
    opened: Vec<(TaskId, TcpListener)>,
}

impl Sockets {
    fn open(ps: u32, workers: u32) -> anyhow::Result<Self> {
        let (mut opened, mut jobs) = (Vec::new(), Vec::new());
        for (job, count) in [(JobName::Chief, 1), (JobName::Ps, ps), (JobName::Worker, workers)] {
            let mut addresses = Vec::new();
            for index in 0..count {
                let socket = TcpListener::bind("127.0.0.1:0").context("cannot open a socket on loopback")?;
                addresses.push(socket.local_addr()?.to_string());
                opened.push((TaskId::new(job, index), socket));
            }
            jobs.push((job, addresses));
        }
        Ok(Self { cluster: ClusterSpec::new(jobs)?.for_training()?, opened })
    }
}

/// Waits until all children have ended, and returns one description for each failure. If the chief fails,
/// the other tasks have [`GRACE`] to learn of it, and are then told to stop, because they may still be
/// waiting for the chief. Passes the first signal on to the chief. Once the chief has ended or the signal has
/// arrived, waits for at most `leave`, and then kills the children that still run.
async fn wait(
    children: &mut JoinSet<anyhow::Result<(TaskId, ExitStatus)>>,
    running: &Running,
    signals: &Signals,
    leave: Duration,
) -> anyhow::Result<Vec<String>> {
    let mut failed = Vec::new();
    let mut deadline = None;
    let mut interrupted = false;
    // The time at which the other tasks are told to stop.
    let mut grace = None;
    let mut told = false;
    while !children.is_empty() {
        tokio::select! {
            Some(ended) = children.join_next() => {
                let (task, status) = ended.context("a task was cancelled")??;
                running.remove(task);
                // A task that was told to stop has not failed.
                if !status.success() && !told {
                    failed.push(format!("{task} ended with {status}"));
                }
                if task == TaskId::CHIEF {
                    deadline = Some(Instant::now() + leave);
                    grace = (!status.success()).then(|| Instant::now() + GRACE);
                }
            }
            () = until(grace), if !told => {
                told = true;
                running.terminate_all();
            }
            () = until(deadline) => {
                let (late, seconds) = (running.names(), leave.as_secs());
                failed.push(format!("killed {late}: still running {seconds} s after the chief ended or a signal arrived"));
                children.abort_all();
                break;
            }
            () = signals.interrupt.cancelled(), if !interrupted => {
                interrupted = true;
                // Only the chief gets the signal. It stops the other tasks.
                running.terminate(TaskId::CHIEF);
                deadline = Some(Instant::now() + leave);
            }
        }
    }
    Ok(failed)
}

/// Waits until `time`; for ever if `time` is `None`.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The processes that are running. A process is removed as soon as it has ended, because the system may
/// reuse its id.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<BTreeMap<TaskId, Pid>>>);

impl Running {
    fn add(&self, task: TaskId, process: Option<u32>) {
        let process = process.and_then(|number| Pid::from_raw(number.cast_signed()));
        self.0.lock().extend(process.map(|process| (task, process)));
    }

    fn remove(&self, task: TaskId) {
        self.0.lock().remove(&task);
    }

    fn names(&self) -> String {
        self.0.lock().keys().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn terminate(&self, task: TaskId) {
        if let Some(&process) = self.0.lock().get(&task) {
            // An error here means that the process has just ended.
            let _ = kill_process(process, Signal::TERM);
        }
    }

    fn terminate_all(&self) {
        self.send_all(Signal::TERM);
    }

    fn kill_all(&self) {
        self.send_all(Signal::KILL);
    }

    fn send_all(&self, signal: Signal) {
        for &process in self.0.lock().values() {
            let _ = kill_process(process, signal);
        }
    }
}

fn beside_this_program(name: &str) -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find the path of this program")?;
    let program = this.parent().unwrap_or(Path::new(".")).join(name);
    if program.exists() {
        return Ok(program);
    }
    Err(anyhow!("{} is missing: build all programs with `cargo build --release`", program.display()))
}

/// Prints each line of a child's output, with the task's name in front of it, until the child ends. Two
/// kinds of lines are printed unchanged: the chief's standard output, which is the result, and log lines in
/// JSON, which contain the name.
async fn attend(task: TaskId, mut child: Child, format: LogFormat) -> anyhow::Result<(TaskId, ExitStatus)> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // The pipe stays open until the child has ended, because the child ends when the pipe is closed.
    let _stdin = child.stdin.take();
    let result = task == TaskId::CHIEF;
    // An error here means that the reader has closed the pipe. The children continue to train.
    let out = lines(out, |line| {
        let name = if result { String::new() } else { format!("[{task}] ") };
        let _ = writeln!(std::io::stdout(), "{name}{line}");
    });
    let err = lines(err, |line| {
        // A log line in JSON contains the task's name, but the lines of a panic do not.
        let name = match format {
            LogFormat::Json if line.starts_with('{') => String::new(),
            LogFormat::Json | LogFormat::Human => format!("[{task}] "),
        };
        let _ = writeln!(std::io::stderr(), "{name}{line}");
    });
    tokio::join!(out, err);
    Ok((task, child.wait().await?))
}

async fn lines(pipe: Option<impl AsyncRead + Unpin>, print: impl Fn(&str)) {
    let Some(pipe) = pipe else { return };
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        print(&line);
    }
}
