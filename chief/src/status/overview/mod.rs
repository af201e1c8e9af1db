//! An overview of a job, assembled from the last snapshots of the coordinator, the shards and the saver. Uses
//! no actor, socket or clock, and decides nothing.

mod curves;
mod evidence;
mod findings;
mod peer_times;
mod shard_history;
mod slow_workers;
mod troubled_shards;
mod window;
mod worker_history;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::graph::MetricSpec;
use pushpull_messages::id::{GlobalStep, JobName, ShardId, TaskId};
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, MetricValue, ShardSnapshot};
use pushpull_messages::observe::{
    Checkpoints, ChiefSnapshot, CurvePoint, Finding, FindingKind, JobPhase, JobSummary, PlacementRow,
    ShardRow, ShardState, TaskRow, TimeHistogram, WorkerRow, WorkerState,
};
use pushpull_messages::placement::Placement;
use pushpull_storage::without_passwords;
use pushpull_transport::Identity;
use tracing::{info, warn};

use crate::checkpoint::SaveStatus;
use crate::coordinator::CoordinatorSnapshot;
use crate::job::JobStatus;
use crate::launch::PsStatus;
use crate::report::JobProgress;
use curves::{Curves, Segment};
use evidence::AllEvidence;
use findings::{Changes, Findings};
use shard_history::ShardHistory;
use slow_workers::slow_workers;
use troubled_shards::troubled_shards;
use window::Window;
use worker_history::WorkerHistory;

/// The status rows of all workers and shards at one time. They are computed once, and used both for
/// snapshots and for findings.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    at: Duration,
    workers: Vec<WorkerRow>,
    shards: Vec<ShardRow>,
}

/// An overview of a job: the newest information about all its parts.
pub(crate) struct Overview {
    job: JobSpec,
    summary: JobSummary,
    /// The address of every task.
    cluster: Vec<(TaskId, String)>,
    /// The address of the chief's HTTP endpoint, if it has one.
    http: Option<String>,
    status: JobStatus,
    progress: JobProgress,
    ps: BTreeMap<TaskId, PsStatus>,
    workers: BTreeMap<u32, WorkerHistory>,
    shards: BTreeMap<ShardId, ShardHistory>,
    /// The number of updates that the most advanced shard had applied, at several times in the last seconds.
    steps: Window<u64>,
    /// The number of variables on each shard. A variable counts if the shard has at least one of its slices.
    variables: BTreeMap<ShardId, u64>,
    placement: Vec<PlacementRow>,
    evaluation: Option<(GlobalStep, Vec<MetricValue>)>,
    checkpoints: Option<Checkpoints>,
    /// The time at which the last checkpoint was saved.
    saved: Option<Duration>,
    curves: Curves,
    /// The segment of the job's history that follows the last point of the curves. This segment is still
    /// open, and not yet part of the curves.
    open: Segment,
    findings: Findings,
    spans_lost: u64,
    ended: bool,
    /// Whether the job ended with an error.
    failed: bool,
}

impl Overview {
    /// Creates the overview of a job. `location` is where the job stores its checkpoints; `None` if it makes
    /// none.
    pub(crate) fn new(job: &JobSpec, identity: &Identity, location: Option<&str>) -> Self {
        let variables = &job.graph.variables;
        let summary = JobSummary {
            name: job.graph.name.clone(),
            sync: job.sync.to_string(),
            optimizer: job.optimizer.name().to_owned(),
            batch_size: job.batch_size,
            accumulate: job.accumulate,
            variables: variables.len() as u64,
            variable_bytes: variables.iter().map(|variable| variable.bytes()).sum(),
        };
        // A worker that leads no replica reports to its leader alone, so nothing is known of it here.
        let leaders = job.replicas(identity.cluster.addresses(JobName::Worker).len() as u32);
        let reports = |task: &TaskId| task.job != JobName::Worker || task.index < leaders;
        let tasks = identity.cluster.tasks_and_hosted().filter(|(task, _)| reports(task));
        let cluster = tasks.map(|(task, address)| (task, address.to_string()));
        let checkpoints = location
            .map(|location| Checkpoints { location: without_passwords(location), ..Default::default() });
        Self {
            summary,
            cluster: cluster.collect(),
            http: identity.http.clone(),
            status: JobStatus::default(),
            progress: JobProgress { last_step: job.last_step, ..JobProgress::default() },
            ps: BTreeMap::new(),
            workers: BTreeMap::new(),
            shards: BTreeMap::new(),
            steps: Window::default(),
            variables: BTreeMap::new(),
            placement: Vec::new(),
            evaluation: None,
            checkpoints,
            saved: None,
            curves: Curves::default(),
            open: Segment::default(),
            findings: Findings::default(),
            spans_lost: 0,
            ended: false,
            failed: false,
            job: job.clone(),
        }
    }

    /// Updates the overview with a snapshot of the coordinator, made at the time `at`.
    pub(crate) fn coordinator(&mut self, at: Duration, snapshot: CoordinatorSnapshot) {
        for status in &snapshot.status.workers {
            let worker =
                self.workers.entry(status.worker).or_insert_with(|| WorkerHistory::new(status.clone()));
            worker.update(at, status.clone());
            if let Some(latest) = snapshot.latest.get(&status.worker) {
                worker.report(latest, &mut self.open);
            }
        }
        for report in snapshot.reports.values() {
            self.open.add_steps(report.steps, report.loss.unwrap_or(f32::NAN));
        }
        if let Some(placement) = &snapshot.placement {
            self.placed(placement);
        }
        (self.status, self.progress) = (snapshot.status, snapshot.progress);
    }

    /// Records the placement of the variables.
    fn placed(&mut self, placement: &Placement) {
        let mut variables: BTreeMap<ShardId, BTreeSet<usize>> = BTreeMap::new();
        // A shard that has lost its slices is no longer observed.
        let with_slices = placement.shards_with_slices();
        self.shards.retain(|shard, _| with_slices.contains(shard));
        self.placement.clear();
        for placed in &placement.slices {
            let (slice, index) = (placed.slice, placed.slice.variable.index());
            let Some(variable) = self.job.graph.variables.get(index) else { continue };
            variables.entry(placed.shard).or_default().insert(index);
            let shape: Vec<String> = variable.shape.0.iter().map(ToString::to_string).collect();
            self.placement.push(PlacementRow {
                variable: variable.name.clone(),
                shape: shape.join("x"),
                rows: (slice.row, slice.rows),
                bytes: slice.elements(variable) as u64 * 4,
                shard: placed.shard,
            });
        }
        self.variables = variables.into_iter().map(|(shard, own)| (shard, own.len() as u64)).collect();
    }

    /// Records the status of the ps tasks to which the chief has connected.
    pub(crate) fn ps(&mut self, statuses: Vec<PsStatus>) {
        // Tasks that were told to stop are missing in `statuses`, so they count as unreachable.
        self.ps.values_mut().for_each(|status| status.up = false);
        self.ps.extend(statuses.into_iter().map(|status| (status.task, status)));
    }

    /// Records the last snapshot of a shard, if there is any. `at` is the time at which the shard last
    /// replied or, before its first reply, the time at which the chief connected to its task.
    pub(crate) fn shard(&mut self, at: Duration, shard: ShardId, snapshot: Option<ShardSnapshot>) {
        self.shards.entry(shard).or_insert_with(|| ShardHistory::new(shard)).update(at, snapshot);
    }

    /// Records the status of the checkpoints at the time `at`.
    pub(crate) fn saves(&mut self, at: Duration, status: &SaveStatus) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        if status.saves > checkpoints.saves {
            self.saved = Some(at);
        }
        checkpoints.saves = status.saves;
        checkpoints.failed = status.failed;
        checkpoints.last = status.last.as_ref().map(CheckpointName::to_string);
        checkpoints.last_step = status.last.map(|last| last.step);
        checkpoints.took = status.took;
    }

    /// Records an evaluation of the variables after `step`. Its result became known at the time `at`.
    pub(crate) fn evaluated(&mut self, at: Duration, step: GlobalStep, evaluation: &Evaluation) {
        let loss = MetricValue { name: "loss".into(), value: evaluation.loss };
        let metrics: Vec<MetricValue> =
            std::iter::once(loss).chain(evaluation.metrics.iter().cloned()).collect();
        self.curves.evaluated(millis(at), step, metrics.clone());
        self.evaluation = Some((step, metrics));
    }

    /// Records the number of spans that were dropped in the chief itself.
    pub(crate) fn spans_lost(&mut self, lost: u64) {
        self.spans_lost = lost;
    }

    /// Records that the job has ended. `reason` is set if the training ended before the job's last step;
    /// `failed` says whether the job ended with an error.
    pub(crate) fn end(&mut self, reason: Option<String>, failed: bool) {
        self.ended = true;
        self.failed = failed;
        self.status.phase = JobPhase::Ended;
        self.status.reason = reason;
    }

    /// Returns the rows at the time `at`. Once the job has ended, all rates are zero.
    pub(crate) fn rows(&self, at: Duration) -> Rows {
        let mut rows = Rows { at, workers: self.worker_rows(at), shards: self.shard_rows(at) };
        if self.ended {
            for worker in &mut rows.workers {
                (worker.steps_per_s, worker.examples_per_s) = (0.0, 0.0);
            }
            for shard in &mut rows.shards {
                shard.state = ShardState::Ended;
                (shard.updates_per_s, shard.busy, shard.queue, shard.waiting) = (0.0, 0.0, 0, 0);
            }
        }
        rows
    }

    /// Updates the curves and the findings; called about once a second. Logs findings that begin or end.
    pub(crate) fn tick(&mut self, rows: &Rows) {
        let at = rows.at;
        let step = self.step();
        let trains = self.status.phase == JobPhase::Training;
        // Only the training is recorded, so that the time before it does not lower the rate.
        if trains {
            self.steps.add(at, step.0);
        }
        let from_ms = self.open.until_ms;
        let open = std::mem::take(&mut self.open);
        self.open.until_ms = millis(at);
        if trains || open.steps > 0 || open.loss_steps > 0 {
            let metrics = self.metrics();
            self.curves.add(Segment { from_ms, until_ms: millis(at), step, metrics, ..open });
        }
        // At the last step there is no evidence, because some workers have finished while others complete
        // the step.
        let evidence = match trains && step < self.progress.last_step {
            true => {
                let all = self.workers.values().zip(&rows.workers);
                let training = all.filter(|(_, row)| row.state == WorkerState::Training);
                let trainers: Vec<_> = training.map(|(worker, row)| worker.trainer(at, row)).collect();
                let mut evidence = slow_workers(&trainers, self.job.sync);
                evidence.against.extend(troubled_shards(&rows.shards));
                evidence
            }
            false => AllEvidence::default(),
        };
        let changes = self.findings.update(at, evidence);
        self.log(changes);
    }

    /// Logs findings that have begun or ended.
    fn log(&self, changes: Changes) {
        for Finding { kind, name, reason } in changes.begun {
            match kind {
                FindingKind::SlowWorker => warn!(
                    worker = %name,
                    reason, "slow worker; check its host, or give all workers the same batch size and device"
                ),
                FindingKind::OverloadedShard => warn!(
                    shard = %name,
                    reason,
                    "overloaded shard; use more ps tasks or shards, or the placement greedy_load_balancing"
                ),
                FindingKind::SilentShard => warn!(
                    shard = %name,
                    reason,
                    "silent shard; check whether its task runs, and whether the network reaches its host"
                ),
            }
        }
        for Finding { kind, name, .. } in changes.ended {
            match kind {
                FindingKind::SlowWorker if self.trains(&name) => {
                    info!(worker = %name, "worker is no longer slow")
                }
                // If the worker no longer trains, the coordinator has logged this.
                FindingKind::SlowWorker => {}
                FindingKind::OverloadedShard => info!(shard = %name, "shard is no longer overloaded"),
                FindingKind::SilentShard => info!(shard = %name, "shard replies again"),
            }
        }
    }

    /// Returns whether the worker with this name is training.
    fn trains(&self, name: &str) -> bool {
        let mut workers = self.workers.values().map(WorkerHistory::status);
        workers.any(|status| {
            status.state == WorkerState::Training && TaskId::worker(status.worker).to_string() == name
        })
    }

    /// Returns a pair for each metric of the graph, a sum and a count. The curves add up these pairs. The sum
    /// is the metric's last value on training batches, and the count is 1. If no value is known, both are 0.
    fn metrics(&self) -> Vec<(f64, u64)> {
        let found = |name: &str| self.progress.metrics.iter().find(|metric| metric.name == name);
        let known = |metric: &MetricSpec| found(&metric.name).map_or((0.0, 0), |own| (own.value.into(), 1));
        self.job.graph.metrics.iter().map(known).collect()
    }

    /// Returns the history of the job.
    pub(crate) fn curves(&self) -> Vec<CurvePoint> {
        self.curves.points(&self.job.graph.metrics)
    }

    /// Returns the shard of every slice; empty until the placement is decided.
    pub(crate) fn placement(&self) -> &[PlacementRow] {
        &self.placement
    }

    /// Returns whether the job is stopping early, is failing or has ended.
    pub(crate) const fn stops(&self) -> bool {
        self.status.stops
    }

    /// Returns a snapshot with these rows. `at_ms` is the time of publication, in milliseconds since 1970.
    pub(crate) fn snapshot(&self, rows: Rows, at_ms: u64) -> ChiefSnapshot {
        let Rows { at, workers, shards } = rows;
        let trains = |row: &&WorkerRow| row.state == WorkerState::Training;
        ChiefSnapshot {
            job: self.summary.clone(),
            phase: self.status.phase,
            reason: self.status.reason.clone(),
            failed: self.failed,
            at_ms,
            up_ms: millis(at),
            step: self.step(),
            last_step: self.progress.last_step,
            began: self.status.began,
            rollbacks: self.status.rollbacks,
            loss: self.progress.loss,
            metrics: self.progress.metrics.clone(),
            steps_per_s: if self.ended { 0.0 } else { self.steps.rate(at) },
            // Uses `fold` from positive zero, because `sum` over no floats is negative zero.
            examples_per_s: workers.iter().filter(trains).fold(0.0, |sum, row| sum + row.examples_per_s),
            evaluation: self.evaluation.clone(),
            tasks: self.tasks(),
            shards,
            checkpoints: self.checkpoints.clone().map(|checkpoints| Checkpoints {
                age_ms: self.saved.map(|saved| millis(at.saturating_sub(saved))),
                ..checkpoints
            }),
            findings: if self.ended { Vec::new() } else { self.findings.found() },
            accepts_wishes: false,
            insecure: false,
            server: None,
            spans_lost: self
                .workers
                .values()
                .fold(self.spans_lost, |sum, worker| sum.saturating_add(worker.spans_lost())),
            workers,
        }
    }

    fn step(&self) -> GlobalStep {
        let versions = self.shards.values().map(|shard| GlobalStep(shard.version()));
        versions.chain([self.progress.global_step]).max().unwrap_or_default()
    }

    fn worker_rows(&self, at: Duration) -> Vec<WorkerRow> {
        self.workers.values().map(|worker| worker.row(at)).collect()
    }

    fn shard_rows(&self, at: Duration) -> Vec<ShardRow> {
        let mut round_trips: BTreeMap<ShardId, TimeHistogram> = BTreeMap::new();
        for (shard, times) in self.workers.values().flat_map(|worker| worker.round_trips(at)) {
            round_trips.entry(shard).or_default().add(&times);
        }
        let row = |(shard, past): (&ShardId, &ShardHistory)| {
            let variables = self.variables.get(shard).copied().unwrap_or_default();
            let row = past.row(at, variables, &round_trips.get(shard).copied().unwrap_or_default());
            match self.ps.get(&shard.task()) {
                Some(ps) if !ps.up => ShardRow { state: ShardState::Unreachable, ..row },
                _ => row,
            }
        };
        self.shards.iter().map(row).collect()
    }

    /// Returns a row for every task that should be running. Evaluators are left out because they do not
    /// report to the chief. Workers that have left are left out because they should not be running.
    fn tasks(&self) -> Vec<TaskRow> {
        let row = |(task, address): &(TaskId, String)| {
            let (http, reachable, lives) = match task.job {
                JobName::Chief => (self.http.clone(), true, 1),
                JobName::Ps => self.ps.get(task).map_or((None, false, 0), |ps| (ps.http.clone(), ps.up, 1)),
                JobName::Worker => match self.workers.get(&task.index).map(WorkerHistory::status) {
                    Some(status) if status.state == WorkerState::Left => return None,
                    Some(status) => (status.http.clone(), is_reachable(status.state), status.lives),
                    None => (None, false, 0),
                },
                JobName::Evaluator | JobName::Other(_) => return None,
            };
            Some(TaskRow { task: *task, address: address.clone(), http, reachable, lives })
        };
        // A worker that has joined is not in the cluster spec, and listens at no address.
        let listed = |worker: &u32| self.cluster.iter().any(|(task, _)| *task == TaskId::worker(*worker));
        let joined = self.workers.keys().filter(|worker| !listed(worker));
        let joined: Vec<_> = joined.map(|&worker| (TaskId::worker(worker), String::new())).collect();
        self.cluster.iter().chain(&joined).filter_map(row).collect()
    }
}

const fn is_reachable(state: WorkerState) -> bool {
    match state {
        WorkerState::Absent | WorkerState::Away | WorkerState::Left | WorkerState::Lost => false,
        WorkerState::Preparing | WorkerState::Training | WorkerState::Finished | WorkerState::Evaluating => {
            true
        }
    }
}

fn millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
