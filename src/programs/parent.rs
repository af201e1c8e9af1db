//! Ends the process of a task together with the process that has started it, however that one ends. The
//! parent holds a pipe to the task's standard input, and the system closes it with the parent.

use std::io::{copy, sink, stdin};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable with which a parent asks a task to end with it.
const ENDS_WITH_PARENT: &str = "PUSHPULL_ENDS_WITH_PARENT";
/// The time that a task has to end in order, in seconds.
const LEAVE: Duration = Duration::from_secs(30);

/// Makes the task that `command` starts end with this process. The caller must keep the standard input of
/// the child until the child has ended.
pub(crate) fn end_with_this(command: &mut Command) {
    command.env(ENDS_WITH_PARENT, "1").stdin(Stdio::piped());
}

/// If the parent process has asked for it, sends this process a SIGTERM when the parent has ended. The
/// process must handle that signal already. If the process has not ended [`LEAVE`] later, it is killed.
///
/// # Errors
/// If the operating system starts no further thread.
pub(crate) fn end_with_parent() -> std::io::Result<()> {
    if std::env::var_os(ENDS_WITH_PARENT).is_none() {
        return Ok(());
    }
    // A thread of its own, because a runtime would wait for the blocking read when it shuts down.
    let watch = || {
        // The parent writes nothing. An error has the same meaning as the end of the pipe.
        let _ = copy(&mut stdin().lock(), &mut sink());
        tracing::warn!("the process that has started this task has ended; stopping");
        let _ = kill_process(getpid(), Signal::TERM);
        std::thread::sleep(LEAVE);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}
