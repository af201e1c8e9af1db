//! A running cluster with all its processes, one shard a ps task, for tests in which workers come and go.

use pushpull_messages::id::{JobName, ShardId, TaskId};
use pushpull_messages::message::ShardSnapshot;

use super::cluster::Cluster;
use super::job::Job;
use super::program::{Ended, Program};
use super::report::Report;
use super::spy::wait_for_shard;
use super::wait::{PATIENCE, wait_until};

/// More steps than any test takes.
pub(crate) const ENDLESS: u64 = 1_000_000;

/// The tasks that were started and are still of interest.
pub(crate) struct Running {
    pub(crate) cluster: Cluster,
    pub(crate) chief: Program,
    pub(crate) ps: Vec<Program>,
    /// The workers by index.
    pub(crate) workers: Vec<Program>,
}

impl Running {
    /// A cluster of two ps tasks and `workers` workers, with further flags of the example.
    #[track_caller]
    pub(crate) fn start(workers: u32, steps: u64, flags: &[&str]) -> Self {
        Self::of(Cluster::with(1, 2, workers, |dir| Job::with(dir, steps, flags)), &[])
    }

    /// All tasks of a cluster, each with these flags.
    #[track_caller]
    pub(crate) fn of(cluster: Cluster, flags: &[&str]) -> Self {
        let (mut chief, mut ps, mut workers) = (None, Vec::new(), Vec::new());
        for (task, _) in cluster.spec.tasks() {
            let program = cluster.start_with(task, flags);
            match task.job {
                JobName::Chief => chief = Some(program),
                JobName::Ps => ps.push(program),
                _ => workers.push(program),
            }
        }
        Self { cluster, chief: chief.expect("a chief of its own"), ps, workers }
    }

    /// Every shard.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.ps.len() as u32).map(|ps| ShardId::new(ps, 0))
    }

    /// Waits until a condition holds for every shard, one after the other.
    #[track_caller]
    pub(crate) fn wait_for_shards(
        &self,
        what: &str,
        holds: impl Fn(&ShardSnapshot) -> bool,
    ) -> Vec<ShardSnapshot> {
        self.shards().map(|shard| wait_for_shard(&self.cluster, shard, what, &holds)).collect()
    }

    /// Waits until any shard keeps that number of workers waiting. Other shards may let them continue: the
    /// last push of the missing worker may have reached some of the shards only.
    #[track_caller]
    pub(crate) fn wait_for_waiting(&self, workers: u32) {
        wait_until(&format!("{workers} that wait"), PATIENCE, || {
            let seen = self.wait_for_shards("any", |_| true);
            seen.iter().any(|seen| seen.waiting == workers).then_some(())
        });
    }

    /// Waits until every shard has applied that number of updates.
    #[track_caller]
    pub(crate) fn wait_for_version(&self, at_least: u64) -> Vec<ShardSnapshot> {
        self.wait_for_shards(&format!("version {at_least}"), |seen| seen.version.0 >= at_least)
    }

    /// Starts a worker again.
    #[track_caller]
    pub(crate) fn start_again(&mut self, worker: u32) {
        self.workers[worker as usize] = self.cluster.start(TaskId::worker(worker));
    }

    /// Waits until all but those workers succeed, and returns the report after checking its invariants.
    #[track_caller]
    pub(crate) fn end_well_without(&mut self, gone: &[usize]) -> Report {
        let workers = self.workers.iter_mut().enumerate();
        let workers = workers.filter(|(index, _)| !gone.contains(index)).map(|(_, worker)| worker);
        for program in workers.chain([&mut self.chief]).chain(&mut self.ps) {
            program.wait().expect(0);
        }
        self.cluster.finished()
    }

    /// Kills all running tasks at once.
    pub(crate) fn kill_all(&mut self) {
        let programs = [&mut self.chief].into_iter().chain(&mut self.ps).chain(&mut self.workers);
        for program in programs {
            program.kill();
        }
    }

    /// Starts the same tasks again after all have ended.
    #[track_caller]
    pub(crate) fn all_again(self) -> Self {
        let Self { cluster, chief, ps, workers } = self;
        drop((chief, ps, workers));
        Self::of(cluster, &[])
    }

    /// Waits until all fail but those workers: chief, ps, workers.
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
