//! Freezes one thread of a process with ptrace, as if the thread hung in an endless call, while the other
//! threads of the process go on.

use std::fs;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::program::Program;

/// Freezes the threads of a program that run shards, until the program ends. Returns their number; 0 if this
/// system forbids ptrace.
pub(crate) fn freeze_shards(ps: &Program) -> usize {
    let tasks = format!("/proc/{}/task", ps.id());
    let threads = fs::read_dir(&tasks).expect("a running process has threads");
    let mut frozen = 0;
    for thread in threads {
        let name = thread.expect("the threads can be listed").file_name().into_string().expect("a number");
        let thread: i32 = name.parse().expect("a thread has a number");
        let comm = fs::read_to_string(format!("{tasks}/{name}/comm")).unwrap_or_default();
        if !comm.starts_with("shard ") {
            continue;
        }
        match freeze(Pid::from_raw(thread)) {
            Ok(()) => {}
            Err(error @ (Errno::EPERM | Errno::ENOSYS)) => {
                eprintln!("!!! SKIPPED: a thread cannot be frozen on this system: {error}. !!!");
                return 0;
            }
            Err(error) => panic!("cannot freeze thread {thread}: {error}"),
        }
        frozen += 1;
    }
    assert!(frozen > 0, "no thread of {} is called after a shard", ps.id());
    frozen
}

/// Freezes a thread until its process ends.
fn freeze(thread: Pid) -> nix::Result<()> {
    ptrace::seize(thread, ptrace::Options::empty())?;
    ptrace::interrupt(thread)?;
    waitpid(thread, Some(WaitPidFlag::__WALL))?;
    // The system does not report the end of the process before the tracer has taken note of the thread's end.
    std::thread::spawn(move || {
        while !matches!(
            waitpid(thread, Some(WaitPidFlag::__WALL)),
            Err(_) | Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
        ) {}
    });
    Ok(())
}
