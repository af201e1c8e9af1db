//! Processes that a benchmark starts: its own program again, with a task as its argument. A process says
//! when it is ready, and is then told what to do, line by line.

use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process that carries out a task. It is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program for a task, with further flags.
    pub(crate) fn start(task: &impl Serialize, flags: &[String]) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--task", &serde_json::to_string(task)?]).args(flags).env("RUST_LOG", "warn");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let lines = BufReader::new(output.context("a pipe")?).lines();
        Ok(Self { child, input: input.context("a pipe")?, lines })
    }

    /// Sends a line to the process.
    pub(crate) async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    /// Returns the next line that the process prints.
    pub(crate) async fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.next_line().await? {
            Some(line) => Ok(line),
            None => bail!("the process ended with {}", self.child.wait().await?),
        }
    }

    /// Waits until the process can begin.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        match self.line().await?.as_str() {
            "ready" => Ok(()),
            other => bail!("expected 'ready', but the process printed '{other}'"),
        }
    }
}
