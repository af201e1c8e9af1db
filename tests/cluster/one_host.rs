//! Tests of tasks that share memory because they are on one host.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use pushpull_messages::id::TaskId;

use crate::harness::{Cluster, ENDLESS, Program, all_end_well, wait_for_version, wait_until};

const PS: TaskId = TaskId::ps(0);

/// Returns the files of the shared memories that a process has mapped.
fn mapped(program: &Program) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap_or_default();
    let memories = maps.lines().filter(|line| line.contains("/memfd:pushpull"));
    memories.filter_map(|line| line.split_whitespace().nth(4).map(ToOwned::to_owned)).collect()
}

/// Returns how many Unix sockets have the name of a task.
fn named(cluster: &Cluster, task: TaskId) -> usize {
    let name = format!("@pushpull/{}", cluster.address(task));
    let sockets = fs::read_to_string("/proc/net/unix").expect("Linux lists its Unix sockets");
    sockets.lines().filter(|line| line.ends_with(&name)).count()
}

#[test]
fn tasks_of_one_host_share_memory_and_leave_nothing() {
    let cluster = Cluster::new(1, 2, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 50);
    let [ps, first, second] = [1, 2, 3].map(|at: usize| mapped(&programs[at]));
    assert_eq!(ps.len(), 3, "its own, and one of each worker");
    assert_eq!((first.len(), second.len()), (2, 2), "its own, and that of the ps");
    assert!(first.is_subset(&ps) && second.is_subset(&ps));
    assert!(named(&cluster, PS) > 1, "the socket that listens, and those of its connections");
    // The other tasks go on, and let go of the memory of a worker that has been killed.
    programs[3].kill();
    let version = wait_for_version(&cluster, 100).version.0;
    wait_for_version(&cluster, version + 50);
    wait_until("the end of the mapping", Duration::from_secs(60), || {
        (mapped(&programs[1]).len() == 2).then_some(())
    });
    programs[3] = cluster.start(TaskId::worker(1));
    wait_until("a new mapping", Duration::from_secs(60), || (mapped(&programs[1]).len() == 3).then_some(()));
    all_end_well(&cluster, &mut programs);
    assert_eq!(named(&cluster, PS), 0);
}

#[test]
fn nothing_is_left_of_tasks_that_are_killed() {
    let cluster = Cluster::new(1, 1, ENDLESS);
    let mut programs = cluster.start_all();
    wait_for_version(&cluster, 20);
    assert!(named(&cluster, PS) > 1);
    for program in &mut programs {
        program.kill();
    }
    assert_eq!((named(&cluster, PS), named(&cluster, TaskId::CHIEF)), (0, 0));
}

#[test]
fn a_flag_at_either_end_keeps_tcp() {
    for flags in [["--transport=tcp", "--transport=auto"], ["--transport=auto", "--transport=tcp"]] {
        let cluster = Cluster::new(1, 1, ENDLESS);
        let chief = cluster.start(TaskId::CHIEF);
        let ps = cluster.start_with(PS, &flags[..1]);
        let worker = cluster.start_with(TaskId::worker(0), &flags[1..]);
        wait_for_version(&cluster, 50);
        let shared = mapped(&ps).intersection(&mapped(&worker)).count();
        assert_eq!(shared, 0, "{flags:?}");
        all_end_well(&cluster, &mut [chief, ps, worker]);
    }
}
