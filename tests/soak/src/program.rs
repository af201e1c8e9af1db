//! A process that is watched: its output goes to a file, its memory is measured, and it never outlives its
//! owner.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// A process that was started.
pub struct Program {
    child: Child,
    /// When a process that is stopped runs on; `None` if it runs.
    paused_until: Option<Instant>,
    memory_bytes: u64,
}

impl Program {
    /// Starts a command. Appends its output to a file.
    ///
    /// # Errors
    /// If the file cannot be opened or the command not be started.
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, paused_until: None, memory_bytes: 0 })
    }

    /// Returns how the process has ended; `None` if it runs.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal. A process that has just ended gets none.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Stops the process for a time.
    pub fn pause(&mut self, time: Duration) {
        self.signal(Signal::STOP);
        self.paused_until = self.paused_until.max(Some(Instant::now() + time));
    }

    /// Lets the process run on if its pause is over, or if `now` is true.
    pub fn run_on(&mut self, now: bool) {
        if self.paused_until.is_some_and(|until| now || until <= Instant::now()) {
            self.signal(Signal::CONT);
            self.paused_until = None;
        }
    }

    /// Measures the memory of the process, and returns the most that it has used, in bytes.
    pub fn memory_bytes(&mut self) -> u64 {
        self.memory_bytes = self.memory_bytes.max(memory_of(self.child.id()));
        self.memory_bytes
    }
}

/// Returns the most memory that a process has used so far, in bytes; 0 if it has ended.
pub fn memory_of(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of the signal that a shell would add to 128, or the exit status.
pub fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
