//! Ends the process of a task when its parent process, which started it, ends for any reason. The parent
//! holds a pipe to the task's standard input, and the system closes this pipe when the parent ends.

use std::io::{copy, sink, stdin};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable with which a parent asks a task to end when the parent ends. Its value is the
/// time that the task may take to end, in seconds; a task that takes longer is killed.
const ENDS_WITH_PARENT: &str = "PUSHPULL_ENDS_WITH_PARENT";

/// Prepares `command` so that the task that it starts will end when this process ends. If the task takes
/// longer than `limit` to end, it is killed; `limit` is rounded down to seconds. The caller must keep the
/// standard input of the child until the child has ended.
pub(crate) fn end_with_this(command: &mut Command, limit: Duration) {
    command.env(ENDS_WITH_PARENT, limit.as_secs().to_string()).stdin(Stdio::piped());
}

/// Starts a thread that sends this process a SIGTERM when the parent process has ended. Does nothing if the
/// parent has not set [`ENDS_WITH_PARENT`]. Before the call, the process must have installed a handler for
/// SIGTERM. If the process takes longer to end than the limit that the parent has set, it is killed.
///
/// # Errors
/// Returns an error if the operating system cannot start the thread.
pub(crate) fn end_with_parent() -> std::io::Result<()> {
    let limit = std::env::var(ENDS_WITH_PARENT).ok().and_then(|seconds| seconds.parse().ok());
    let Some(limit) = limit.map(Duration::from_secs) else { return Ok(()) };
    // The read has a thread of its own, because a runtime that shuts down would wait for a blocking read.
    let watch = move || {
        // The parent writes nothing. An error has the same meaning as the end of the pipe.
        let _ = copy(&mut stdin().lock(), &mut sink());
        tracing::warn!("the process that has started this task has ended; stopping");
        let _ = kill_process(getpid(), Signal::TERM);
        std::thread::sleep(limit);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}
