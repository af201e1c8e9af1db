//! Divides the cores of this host among processes. A process inherits the cores of the thread that starts
//! it, and so do all its threads.
//!
//! Wanted properties: (A) every core gets the same number of processes; (B) if that is impossible, each
//! process may use all cores.

use self::system::{allow, allowed};

/// Returns the core of each of `processes` processes; an empty list if each may use all cores.
pub(crate) fn divide(processes: usize) -> Vec<usize> {
    divided(&allowed().unwrap_or_default(), processes)
}

fn divided(cores: &[usize], processes: usize) -> Vec<usize> {
    match cores.len() {
        0 | 1 => Vec::new(),
        len if processes.is_multiple_of(len) => cores.iter().copied().cycle().take(processes).collect(),
        _ => Vec::new(),
    }
}

/// Calls `start` on a thread that may only use this core, if the system allows it. The processes and threads
/// that it starts may use no other, either.
pub(crate) fn on_core<T>(core: usize, start: impl FnOnce() -> T) -> T {
    let before = allowed().filter(|_| allow(&[core]));
    let started = start();
    if let Some(before) = before {
        allow(&before);
    }
    started
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Returns the cores that the current thread may use, in ascending order. Returns `None` if the host has
    /// more cores than a list can have.
    pub(super) fn allowed() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
    }

    /// Lets the current thread use only these cores. Returns whether the system allows it.
    pub(super) fn allow(cores: &[usize]) -> bool {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        sched_setaffinity(None, &set).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) const fn allowed() -> Option<Vec<usize>> {
        None
    }

    pub(super) const fn allow(_: &[usize]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_core_has_the_same_number_of_processes(
            cores in prop::collection::btree_set(0usize..64, 0..8),
            processes in 0usize..40,
        ) {
            let cores: Vec<usize> = cores.into_iter().collect();
            let divided = divided(&cores, processes);
            if cores.len() < 2 || !processes.is_multiple_of(cores.len()) {
                prop_assert!(divided.is_empty());
            } else {
                prop_assert_eq!(divided.len(), processes);
                for core in &cores {
                    let those = divided.iter().filter(|&own| own == core).count();
                    prop_assert_eq!(those, processes / cores.len());
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_started_on_a_core_uses_no_other() {
        let Some(before) = allowed() else {
            eprintln!("SKIPPED: this host has too many cores to list them");
            return;
        };
        let last = before[before.len() - 1];
        let started = on_core(last, || std::thread::spawn(allowed));
        assert_eq!(started.join().unwrap(), Some(vec![last]));
        assert_eq!(allowed(), Some(before), "the thread that starts them is free again");
    }
}
