//! Tells the system how to divide a core among its threads. This module must not depend on what they do.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

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

/// Threads of this process that are batch work, or have been.
#[derive(Clone, Debug)]
pub struct BatchThreads {
    /// The ids that the system gives to the threads.
    ids: Vec<i32>,
}

#[cfg(target_os = "linux")]
impl BatchThreads {
    /// Returns the threads of this process that are batch work now.
    ///
    /// # Errors
    /// Returns an error if the system does not list the threads.
    pub fn of_process() -> io::Result<Self> {
        let names = std::fs::read_dir("/proc/self/task")?.flatten().map(|thread| thread.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse().ok());
        // SAFETY: the call takes no pointer, and only reads the policy of a thread.
        let is_batch = |&id: &i32| unsafe { libc::sched_getscheduler(id) } == libc::SCHED_BATCH;
        Ok(Self { ids: ids.filter(is_batch).collect() })
    }

    /// Returns for how long these threads together have waited for a core so far, since each of them began.
    /// Threads that have ended do not count.
    ///
    /// # Errors
    /// Returns an error if the system does not count these times.
    pub fn waited(&self) -> io::Result<Duration> {
        let mut waited = 0;
        for id in &self.ids {
            // The time on a core, the time in a queue, and the number of turns; the times are in nanoseconds.
            let times = match std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat")) {
                Ok(times) => times,
                Err(_) if !std::path::Path::new(&format!("/proc/self/task/{id}")).exists() => continue,
                Err(error) => return Err(error),
            };
            let nanos = times.split_whitespace().nth(1).and_then(|nanos| nanos.parse::<u64>().ok());
            waited += nanos.ok_or_else(|| io::Error::other(format!("schedstat has '{}'", times.trim())))?;
        }
        Ok(Duration::from_nanos(waited))
    }

    /// Makes these threads batch work or usual threads. Threads that have ended stay away.
    pub fn set(&self, batch: bool) {
        let policy = if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
        let parameters = libc::sched_param { sched_priority: 0 };
        for &id in &self.ids {
            // SAFETY: the call reads the parameters, and keeps no reference to them. It fails if the thread
            // has ended.
            unsafe { libc::sched_setscheduler(id, policy, &raw const parameters) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl BatchThreads {
    /// Returns the threads of this process that are batch work, which only Linux knows.
    ///
    /// # Errors
    /// Returns an error on this system.
    pub fn of_process() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns for how long these threads have waited, which only Linux counts.
    ///
    /// # Errors
    /// Returns an error on this system.
    pub fn waited(&self) -> io::Result<Duration> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Does nothing on this system.
    pub fn set(&self, _: bool) {}
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

    #[test]
    fn batch_work_becomes_usual_work_and_batch_work_again() {
        if policy() != libc::SCHED_OTHER {
            eprintln!("SKIPPED: this process has a policy of its own");
            return;
        }
        let thread = std::thread::spawn(|| {
            become_batch_work().unwrap();
            let threads = BatchThreads::of_process().unwrap();
            assert!(!threads.ids.is_empty());
            let waited = threads.waited();
            threads.set(false);
            let usual = policy();
            threads.set(true);
            let longer = threads.waited();
            (usual, policy(), waited, longer)
        });
        let (usual, batch, waited, longer) = thread.join().unwrap();
        assert_eq!((usual, batch), (libc::SCHED_OTHER, libc::SCHED_BATCH));
        match (waited, longer) {
            (Ok(waited), Ok(longer)) => assert!(waited <= longer),
            // Some systems do not count the times.
            (waited, longer) => assert!(waited.is_err() && longer.is_err()),
        }
    }
}
