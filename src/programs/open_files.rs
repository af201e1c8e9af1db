//! The limit on the open files of this process. A task checks at its start that the limit is high enough for
//! its cluster, because it would otherwise fail in the middle of the training.

use anyhow::anyhow;
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::id::JobName;
use pushpull_transport::STRANGERS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of open files besides connections to other tasks: the standard streams, the sockets that
/// listen, the event queues of the threads, logs, data and checkpoints.
const OTHER_FILES: u64 = 64;
/// The number of open files that each connection needs besides its socket if its tasks share memory. Tasks
/// that may not open them use TCP.
const LOCAL_FILES: u64 = 2;
/// The number of open files of each shard: the event queue of its thread, and the file that it writes.
const FILES_PER_SHARD: u64 = 8;
/// The number of open files of the HTTP endpoint when it has its maximum number of connections. The endpoint
/// also works with fewer files, so a task does not fail if the limit allows only fewer.
const ENDPOINT_FILES: u64 = 256;
/// The number of open files of connections that have not proved who they are. While there are fewer left,
/// strangers may use all of them, and a task cannot accept the connections of others.
const STRANGER_FILES: u64 = STRANGERS_MAX as u64;
/// The number of open files of a server of sessions for its clients and the other servers.
const CLIENT_FILES: u64 = 1024;
/// The number of open files that each process of a local cluster needs in the process that starts it: its
/// socket, both ends of three pipes, and a descriptor of the process.
const FILES_PER_CHILD: u64 = 8;

/// What to do about the limit.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// The limit is high enough.
    Keep,
    /// The limit is to be raised.
    Raise,
    /// The limit is too low, and may not be raised far enough.
    TooLow,
}

/// Decides what to do about a limit. `None` means that there is no limit. `needed` is the number of open
/// files without which a task fails, and `wanted` is the number that it may use.
fn plan(current: Option<u64>, maximum: Option<u64>, needed: u64, wanted: u64) -> Plan {
    if allows(current, wanted) {
        Plan::Keep
    } else if allows(maximum, needed) {
        Plan::Raise
    } else {
        Plan::TooLow
    }
}

/// Returns whether a limit allows this number of open files. `None` means that there is no limit.
fn allows(limit: Option<u64>, files: u64) -> bool {
    limit.is_none_or(|limit| limit >= files)
}

/// Returns the number of connections of a task with the other tasks of its cluster.
fn connections(cluster: &ClusterConfig) -> u64 {
    let (ps, listed) = (cluster.cluster().ps_addresses(), cluster.cluster().addresses(JobName::Worker));
    let workers = cluster.workers_max().map_or(listed.len() as u64, u64::from);
    let ps = ps.len() as u64;
    // While a chief or a worker is replaced, both the old and the new one may be connected.
    // With checkpoints in memory, each ps task may dial each other one.
    let to_ps = workers + 2 + 2 * ps.saturating_sub(1);
    let own = match cluster.task().job {
        JobName::Ps => to_ps,
        JobName::Worker if cluster.hosts_ps() => ps + 1 + to_ps,
        JobName::Worker => ps + 1,
        JobName::Chief | JobName::Evaluator | JobName::Other(_) => 0,
    };
    // The chief, which a worker may host, has a connection with every other task.
    own + if cluster.hosts_chief() { ps + workers } else { 0 }
}

/// Makes sure that a task of a cluster may open enough files. `shards` is the number of its shards.
///
/// # Errors
/// If the limit is too low and cannot be raised.
pub(crate) fn allow_task(cluster: &ClusterConfig, shards: u32) -> anyhow::Result<()> {
    let connections = connections(cluster);
    let needed = connections + OTHER_FILES + FILES_PER_SHARD * u64::from(shards);
    let wanted = needed + LOCAL_FILES * connections + ENDPOINT_FILES + STRANGER_FILES;
    allow(&cluster.task().to_string(), needed, wanted)
}

/// Lets a server of sessions open files for its clients, its endpoint and strangers, if it may.
///
/// # Errors
/// If the limit is too low for a server, and cannot be raised.
pub(crate) fn allow_server() -> anyhow::Result<()> {
    allow("pushpull-server", OTHER_FILES, OTHER_FILES + CLIENT_FILES + ENDPOINT_FILES + STRANGER_FILES)
}

/// Makes sure that this process may open enough files to start `children` processes of a local cluster.
///
/// # Errors
/// If the limit is too low and cannot be raised.
pub(crate) fn allow_children(children: u64) -> anyhow::Result<()> {
    let needed = FILES_PER_CHILD * children + OTHER_FILES;
    allow("pushpull local", needed, needed)
}

fn allow(who: &str, needed: u64, wanted: u64) -> anyhow::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = match plan(current, maximum, needed, wanted) {
        Plan::Keep => return Ok(()),
        Plan::TooLow => maximum,
        Plan::Raise => match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => return Ok(()),
            Err(_) if allows(current, needed) => return Ok(()),
            Err(_) => current,
        },
    };
    Err(anyhow!(
        "{who} needs up to {needed} open files for this cluster, but may open only {}: raise the limit, such as with \
         `ulimit -n {}`",
        limit.unwrap_or(u64::MAX),
        needed.next_power_of_two()
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::cluster::ClusterSpec;

    use super::*;

    proptest! {
        /// Checks that a limit is raised only if that helps, and that a task fails only if it must.
        #[test]
        fn a_limit_is_raised_if_that_suffices(
            current in prop::option::of(0u64..20),
            more in prop::option::of(0u64..20),
            needed in 0u64..30,
            wanted in 0u64..10,
        ) {
            let maximum = current.and_then(|current| more.map(|more| current + more));
            let wanted = needed + wanted;
            let expected = match (current, maximum) {
                (None, _) => Plan::Keep,
                (Some(current), _) if current >= wanted => Plan::Keep,
                (_, Some(maximum)) if maximum < needed => Plan::TooLow,
                _ => Plan::Raise,
            };
            prop_assert_eq!(plan(current, maximum, needed, wanted), expected);
        }
    }

    #[test]
    fn a_task_counts_its_connections() {
        let hosts =
            |job: &str, count: u32| (1..=count).map(|port| format!("{job}:{port}")).collect::<Vec<_>>();
        let config = |chiefs: u32, job, index| {
            let jobs = [
                (JobName::Chief, hosts("c", chiefs)),
                (JobName::Ps, hosts("p", 3)),
                (JobName::Worker, hosts("w", 100)),
            ];
            ClusterConfig::new(ClusterSpec::new(jobs).unwrap(), job, Some(index)).unwrap()
        };
        assert_eq!(connections(&config(1, JobName::Ps, 0)), 106);
        assert_eq!(connections(&config(1, JobName::Worker, 0)), 4);
        assert_eq!(connections(&config(1, JobName::Chief, 0)), 103);
        assert_eq!(connections(&config(0, JobName::Worker, 1)), 4);
        assert_eq!(connections(&config(0, JobName::Worker, 0)), 4 + 103);
        // Each worker hosts a ps task, too: it dials 100 of them and the chief, is dialled by 102, and may
        // have two connections with each other ps task.
        let workers = ClusterSpec::new([(JobName::Worker, hosts("w", 100))]).unwrap();
        let hosting = |index| ClusterConfig::new(workers.clone(), JobName::Worker, Some(index)).unwrap();
        assert_eq!(connections(&hosting(1)), 101 + 102 + 198);
        assert_eq!(connections(&hosting(0)), 101 + 102 + 198 + 200);
    }
}
