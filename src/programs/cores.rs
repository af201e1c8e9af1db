//! Divides the cores of this host among processes, and binds this process to one of them. A thread inherits
//! the cores of the thread that starts it.
//!
//! Wanted properties: (A) every core gets the same number of processes; (B) if that is impossible, each
//! process may use all cores.

use anyhow::{Context, bail};

use self::system::{allow, allowed};

/// Returns the core of each of `processes` processes; an empty list if each may use all cores, or if the
/// system does not bind threads.
pub(crate) fn divide(processes: usize) -> Vec<usize> {
    let cores = divided(&allowed().unwrap_or_default(), processes);
    let first = cores.first().copied();
    let binds = || first.is_none_or(|core| allow(&[core]).is_ok());
    // On a thread of its own, because only that one is then bound.
    if std::thread::scope(|scope| scope.spawn(binds).join().unwrap_or(false)) { cores } else { Vec::new() }
}

fn divided(cores: &[usize], processes: usize) -> Vec<usize> {
    match cores.len() {
        0 | 1 => Vec::new(),
        len if processes.is_multiple_of(len) => cores.iter().copied().cycle().take(processes).collect(),
        _ => Vec::new(),
    }
}

/// Binds this thread, and the threads that it starts from now on, to one core. Returns the cores that it
/// could use before.
///
/// # Errors
/// If the thread may not use this core, or if the system does not bind threads.
pub(crate) fn bind(core: usize) -> anyhow::Result<Vec<usize>> {
    let before = allowed().context("--core: this system does not list the cores: leave the flag out")?;
    if !before.contains(&core) {
        bail!("--core {core}: this process may not use the core: expected one of {}", listed(&before));
    }
    allow(&[core]).with_context(|| format!("--core {core}: the system does not bind threads"))?;
    Ok(before)
}

/// Returns cores as Linux lists them, such as `0-3, 8`.
fn listed(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|core, next| core + 1 == *next);
    let shown = runs.map(|run| match run {
        [core] => core.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    shown.collect::<Vec<_>>().join(", ")
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

    /// Lets the current thread use only these cores.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(super) fn allow(cores: &[usize]) -> std::io::Result<()> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        Ok(sched_setaffinity(None, &set)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) const fn allowed() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn allow(_: &[usize]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
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

    #[test]
    fn cores_are_listed_as_ranges() {
        assert_eq!(listed(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(listed(&[3]), "3");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_bound_thread_starts_threads_on_its_core() {
        let Some(before) = allowed() else {
            eprintln!("SKIPPED: this host has too many cores to list them");
            return;
        };
        let last = before[before.len() - 1];
        let bound =
            std::thread::spawn(move || (bind(last).unwrap(), std::thread::spawn(allowed).join().unwrap()));
        assert_eq!(bound.join().unwrap(), (before.clone(), Some(vec![last])));
        assert_eq!(allowed(), Some(before), "other threads are free");
        let refused = std::thread::spawn(move || {
            bind(last).unwrap();
            [bind(last + 1), bind(1 << 20)].map(|bound| bound.unwrap_err().to_string())
        });
        for (error, core) in refused.join().unwrap().into_iter().zip([last + 1, 1 << 20]) {
            let expected =
                format!("--core {core}: this process may not use the core: expected one of {last}");
            assert_eq!(error, expected);
        }
    }
}
