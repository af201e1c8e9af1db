//! A running cluster with all its processes, for tests in which workers join and leave. Each ps task has one
//! shard.

use pushpull_messages::id::{JobName, ShardId, TaskId};
use pushpull_messages::message::ShardSnapshot;

use super::cluster::Cluster;
use super::endpoint::Endpoint;
use super::job::Job;
use super::program::{Ended, Program};
use super::report::Report;
use super::slowed::Slowed;
use super::spy::{wait_for_shard, wait_for_version};
use super::wait::{PATIENCE, wait_until};

/// A number of steps that no test reaches.
pub(crate) const ENDLESS: u64 = 1_000_000;

/// The processes of a cluster.
pub(crate) struct Running {
    pub(crate) chief: Program,
    pub(crate) ps: Vec<Program>,
    /// The workers, in the order of their indices.
    pub(crate) workers: Vec<Program>,
    /// The cluster, which is dropped last, because the programs show their logs in its directory when a test
    /// fails.
    pub(crate) cluster: Cluster,
}

impl Running {
    /// Starts a cluster of two ps tasks and `workers` workers. Its job is made with additional flags of the
    /// example.
    #[track_caller]
    pub(crate) fn start(workers: u32, steps: u64, flags: &[&str]) -> Self {
        Self::of(Cluster::with(1, 2, workers, |dir| Job::with(dir, steps, flags)), &[])
    }

    /// Starts all tasks of a cluster, each with these flags.
    #[track_caller]
    pub(crate) fn of(cluster: Cluster, flags: &[&str]) -> Self {
        Self::of_some(cluster, flags, |_| true)
    }

    /// Starts all tasks of a cluster except the last worker, which [`start_missing`](Self::start_missing)
    /// starts.
    #[track_caller]
    pub(crate) fn without_last_worker(cluster: Cluster) -> Self {
        let last = cluster.spec.addresses(JobName::Worker).len() - 1;
        Self::of_some(cluster, &[], |task| task != TaskId::worker(last as u32))
    }

    #[track_caller]
    fn of_some(cluster: Cluster, flags: &[&str], starts: impl Fn(TaskId) -> bool) -> Self {
        let (mut chief, mut ps, mut workers) = (None, Vec::new(), Vec::new());
        for (task, _) in cluster.spec.tasks().filter(|&(task, _)| starts(task)) {
            let program = cluster.start_with(task, flags);
            match task.job {
                JobName::Chief => chief = Some(program),
                JobName::Ps => ps.push(program),
                _ => workers.push(program),
            }
        }
        Self { cluster, chief: chief.expect("a chief of its own"), ps, workers }
    }

    /// Starts the worker that was missing.
    #[track_caller]
    pub(crate) fn start_missing(&mut self) {
        let missing = TaskId::worker(self.workers.len() as u32);
        self.workers.push(self.cluster.start(missing));
    }

    /// Returns the ids of all shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.cluster.spec.ps_addresses().len() as u32).map(|ps| ShardId::new(ps, 0))
    }

    /// Waits until a condition holds for the first shard, then for the second one, and so on. Returns their
    /// snapshots.
    #[track_caller]
    pub(crate) fn wait_for_shards(
        &self,
        what: &str,
        holds: impl Fn(&ShardSnapshot) -> bool,
    ) -> Vec<ShardSnapshot> {
        self.shards().map(|shard| wait_for_shard(&self.cluster, shard, what, &holds)).collect()
    }

    /// Waits until this number of workers wait at some shard. The workers need not wait at all shards,
    /// because the last push of the missing worker may have reached only some of the shards.
    #[track_caller]
    pub(crate) fn wait_for_waiting(&self, workers: u32) {
        wait_until(&format!("{workers} that wait"), PATIENCE, || {
            let seen = self.wait_for_shards("any", |_| true);
            seen.iter().any(|seen| seen.waiting == workers).then_some(())
        });
    }

    /// Waits until every worker trains. Before that, a worker that is told to stop has nothing to save, and
    /// ends as if the job saved no checkpoints.
    #[track_caller]
    pub(crate) fn wait_for_workers(&mut self) {
        for worker in &mut self.workers {
            let endpoint = Endpoint::of(worker);
            wait_until("a worker that trains", PATIENCE, || (endpoint.ask("/readyz").0 == 200).then_some(()));
        }
    }

    /// Waits until every shard that owns slices has applied at least this number of updates. The first shard
    /// owns some in every job, and has applied updates only when all shards have their slices.
    #[track_caller]
    pub(crate) fn wait_for_version(&self, at_least: u64) -> Vec<ShardSnapshot> {
        wait_for_version(&self.cluster, at_least);
        self.wait_for_shards(&format!("version {at_least}"), |seen| {
            seen.slices == 0 || seen.version.0 >= at_least
        })
    }

    /// Waits until every shard that owns slices has this number of members. Workers do not join the others.
    #[track_caller]
    pub(crate) fn wait_for_members(&self, members: u32) {
        self.wait_for_shards(&format!("{members} members"), |seen| {
            seen.slices == 0 || seen.members == members
        });
    }

    /// Waits until every shard that owns slices has applied this number of updates more than any shard now.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, updates: u64) -> Vec<ShardSnapshot> {
        let seen = self.wait_for_shards("any", |_| true);
        let newest = seen.iter().map(|seen| seen.version.0).max().expect("shards");
        self.wait_for_version(newest + updates)
    }

    /// Slows workers down while the test waits for a timeout. They must not be waited for meanwhile.
    pub(crate) fn slowed(&self, workers: &[usize]) -> Vec<Slowed> {
        workers.iter().map(|&worker| Slowed::new(&self.workers[worker])).collect()
    }

    /// Restarts a worker that has ended.
    #[track_caller]
    pub(crate) fn start_again(&mut self, worker: u32) {
        self.workers[worker as usize] = self.cluster.start(TaskId::worker(worker));
    }

    /// Waits until all tasks except the workers `gone` have ended with success. Checks the invariants of the
    /// report, and returns it.
    #[track_caller]
    pub(crate) fn end_well_without(&mut self, gone: &[usize]) -> Report {
        let workers = self.workers.iter_mut().enumerate();
        let workers = workers.filter(|(index, _)| !gone.contains(index)).map(|(_, worker)| worker);
        for program in workers.chain([&mut self.chief]).chain(&mut self.ps) {
            program.wait().expect(0);
        }
        self.cluster.finished()
    }

    /// Stops the job, and then does the same as [`end_well_without`](Self::end_well_without).
    #[track_caller]
    pub(crate) fn stop_well_without(&mut self, gone: &[usize]) -> Report {
        self.cluster.stop(&mut self.chief);
        self.end_well_without(gone)
    }

    /// Kills all running tasks at once.
    pub(crate) fn kill_all(&mut self) {
        let programs = [&mut self.chief].into_iter().chain(&mut self.ps).chain(&mut self.workers);
        for program in programs {
            program.kill();
        }
    }

    /// Kills all tasks that are still running, and starts all tasks again.
    #[track_caller]
    pub(crate) fn all_again(self) -> Self {
        let Self { cluster, chief, ps, workers } = self;
        drop((chief, ps, workers));
        Self::of(cluster, &[])
    }

    /// Waits until all tasks except the workers `gone` have failed. Returns them in the order chief, ps,
    /// workers.
    #[track_caller]
    pub(crate) fn fail_without(&mut self, gone: &[usize]) -> Vec<Ended> {
        let workers = self.workers.iter_mut().enumerate();
        let workers = workers.filter(|(index, _)| !gone.contains(index)).map(|(_, worker)| worker);
        let programs = [&mut self.chief].into_iter().chain(&mut self.ps).chain(workers);
        let ended = programs.map(|program| program.wait().expect_failure()).collect();
        assert!(!self.cluster.report_path().exists(), "an unfinished job has no report");
        ended
    }
}
