//! Tells the system how to divide a core among its threads. This module must not depend on what they do.
#![allow(unsafe_code)]

use std::io;

/// Makes this thread, and the threads that it starts from now on, batch work: when such a thread wakes, it
/// does not take the core from the thread that runs there, but waits until that one sleeps or has had its
/// share. Its own share stays the same. See `SCHED_BATCH` in sched(7). A thread with another policy than the
/// usual one keeps it.
///
/// # Errors
/// Returns an error if the system refuses it.
#[cfg(target_os = "linux")]
pub fn become_batch_work() -> io::Result<()> {
    // SAFETY: the call takes no pointer. 0 stands for this thread.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, and keeps no reference to them.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes this thread batch work, which only Linux knows.
///
/// # Errors
/// Returns an error on this system.
#[cfg(not(target_os = "linux"))]
pub fn become_batch_work() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns the scheduling policy of this thread. Field 41 of its statistics, counted from 1, is the
    /// policy; the fields after the name begin with the third one.
    fn policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        after_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn threads_that_batch_work_starts_are_batch_work() {
        let before = policy();
        let policies = std::thread::spawn(|| {
            become_batch_work().unwrap();
            [policy(), std::thread::spawn(policy).join().unwrap()]
        });
        let expected = if before == libc::SCHED_OTHER { libc::SCHED_BATCH } else { before };
        assert_eq!(policies.join().unwrap(), [expected; 2]);
        assert_eq!(policy(), before, "other threads stay as they are");
    }
}
