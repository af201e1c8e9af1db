//! The processes of the benchmark's own: this program again, with a task as its argument. A process prints a
//! line when it is ready, and ends when its standard input is closed.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{line, relay};

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Keeps its network namespace.
    Hold,
    /// Passes on bytes later, on the connections to each first address, to its second address. Keeps at most
    /// `bytes_max` bytes of each direction of a connection.
    Relay { routes: Vec<(String, String)>, delay: Duration, bytes_max: usize },
    /// Serves [`LineClient`](Self::LineClient).
    LineServer { address: String },
    /// Measures the raw line to the server for about this time, and prints the result.
    LineClient { address: String, seconds: f64 },
}

impl Task {
    /// Returns the task that [`Process::start`] has passed as an argument.
    pub(crate) fn from_text(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// Carries out the task until standard input is closed.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (closed, mut input) = tokio::sync::mpsc::channel(1);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = closed.blocking_send(());
        });
        tokio::select! {
            ended = self.carry_out() => ended,
            _ = input.recv() => Ok(()),
        }
    }

    async fn carry_out(self) -> anyhow::Result<()> {
        match self {
            Self::Hold => {
                println!("ready");
                std::future::pending().await
            }
            Self::Relay { routes, delay, bytes_max } => relay::run(&routes, delay, bytes_max).await,
            Self::LineServer { address } => line::serve(&address).await,
            Self::LineClient { address, seconds } => line::run_client(&address, seconds).await,
        }
    }
}

/// A process that carries out a task. It is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a process for a task, and waits until it is ready. The program's name and its arguments are
    /// added to `wrapper`, a command that runs its arguments.
    pub(crate) async fn start(wrapper: Option<Command>, task: &Task) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = match wrapper {
            Some(mut wrapper) => {
                wrapper.arg(program);
                wrapper
            }
            None => Command::new(program),
        };
        command.args(["--task", &serde_json::to_string(task)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {:?}", command.as_std()))?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut process = Self { child, lines };
        match process.line().await?.as_str() {
            "ready" => Ok(process),
            other => bail!("expected 'ready', but the process printed '{other}'"),
        }
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("a process of the benchmark has ended")
    }

    /// Returns the next line that the process prints.
    pub(crate) async fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.next_line().await? {
            Some(line) => Ok(line),
            None => bail!("a process of the benchmark ended with {}", self.child.wait().await?),
        }
    }
}
