//! Tells the system how to divide a core among its threads. This module must not depend on what they do.
#![allow(unsafe_code)]

use std::io;

/// Makes this thread, and the threads that it starts from now on, batch work: when such a thread wakes, it
/// does not take the core from the thread that runs there, but waits until that one sleeps or has had its
/// share. Its own share stays the same. See `SCHED_BATCH` in sched(7).
///
/// # Errors
/// If the system refuses it, or does not know such threads.
#[cfg(target_os = "linux")]
pub fn become_batch_work() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, and keeps no reference to them. 0 stands for this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// As on Linux, but no other system knows such threads.
///
/// # Errors
/// Always.
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
        let policies = std::thread::spawn(|| {
            become_batch_work().unwrap();
            [policy(), std::thread::spawn(policy).join().unwrap()]
        });
        assert_eq!(policies.join().unwrap(), [libc::SCHED_BATCH; 2]);
        assert_eq!(policy(), libc::SCHED_OTHER, "other threads stay as they are");
    }
}
