//! A job as its chief sees it: what workers, shards and the desk have told last, put together. Knows neither actor nor socket nor
//! clock, and decides nothing.

mod curves;
mod findings;
mod others;
mod shards;
mod slow;
mod troubled;
mod window;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pushpull_messages::checkpoint::CheckpointName;
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

use crate::checkpoint::SaveStatus;
use crate::job::JobSeen;
use crate::moment::WorkerReport;
use crate::ps_tasks::PsLine;
use crate::report::JobProgress;
use curves::{Curves, Stretch};
use findings::{AllEvidence, Findings, evidence};
use shards::ShardPast;
use window::Window;
pub(crate) use workers::Told;
use workers::WorkerPast;

/// What the desk tells when it is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeskSnapshot {
    pub seen: JobSeen,
    pub progress: JobProgress,
    /// What each worker has told last.
    pub told: BTreeMap<u32, Told>,
    /// What was reported since it was asked before.
    pub reports: BTreeMap<u32, WorkerReport>,
    /// Set when the variables have their places.
    pub placement: Option<Placement>,
}

/// Workers and shards at one time: reckoned once, and looked at by whoever needs them.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    at: Duration,
    workers: Vec<WorkerRow>,
    shards: Vec<ShardRow>,
}

/// What is known of a job.
pub(crate) struct Overview {
    job: JobSpec,
    summary: JobSummary,
    /// Every task and its address.
    cluster: Vec<(TaskId, String)>,
    /// Where the chief can be observed.
    http: Option<String>,
    seen: JobSeen,
    progress: JobProgress,
    ps: BTreeMap<TaskId, PsLine>,
    workers: BTreeMap<u32, WorkerPast>,
    shards: BTreeMap<ShardId, ShardPast>,
    /// Updates, of the shard that is furthest.
    steps: Window<u64>,
    /// Of which variables a shard has a slice.
    variables: BTreeMap<ShardId, u64>,
    placement: Vec<PlacementRow>,
    evaluation: Option<(GlobalStep, Vec<MetricValue>)>,
    checkpoints: Option<Checkpoints>,
    saved: Option<Duration>,
    curves: Curves,
    /// What comes after the last point of the curves.
    open: Stretch,
    findings: Findings,
    spans_lost: u64,
    ended: bool,
    /// By an error.
    failed: bool,
}

impl Overview {
    /// Of a chief that makes its checkpoints there, if it makes any.
    pub(crate) fn new(job: &JobSpec, identity: &Identity, location: Option<&str>) -> Self {
        let variables = &job.graph.variables;
        let summary = JobSummary {
            name: job.graph.name.clone(),
            sync: job.sync.to_string(),
            optimizer: job.optimizer.name().to_owned(),
            batch_size: job.batch_size,
            variables: variables.len() as u64,
            variable_bytes: variables.iter().map(|variable| variable.bytes()).sum(),
        };
        let cluster = identity.cluster.tasks().map(|(task, address)| (task, address.to_string()));
        let checkpoints = location
            .map(|location| Checkpoints { location: without_passwords(location), ..Default::default() });
        Self {
            summary,
            cluster: cluster.collect(),
            http: identity.http.clone(),
            seen: JobSeen::default(),
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
            open: Stretch::default(),
            findings: Findings::default(),
            spans_lost: 0,
            ended: false,
            failed: false,
            job: job.clone(),
        }
    }

    /// What the desk tells at that time.
    pub(crate) fn desk(&mut self, at: Duration, desk: DeskSnapshot) {
        for seen in &desk.seen.workers {
            let worker = self.workers.entry(seen.worker).or_insert_with(|| WorkerPast::new(seen.clone()));
            worker.see(at, seen.clone());
            if let Some(told) = desk.told.get(&seen.worker) {
                worker.tell(told, &mut self.open);
            }
        }
        for report in desk.reports.values() {
            self.open.lose(report.steps, report.loss.unwrap_or(f32::NAN));
        }
        if let Some(placement) = &desk.placement {
            self.placed(placement);
        }
        (self.seen, self.progress) = (desk.seen, desk.progress);
    }

    /// The variables have their places.
    fn placed(&mut self, placement: &Placement) {
        let mut variables: BTreeMap<ShardId, BTreeSet<usize>> = BTreeMap::new();
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

    /// Which ps tasks have come.
    pub(crate) fn ps(&mut self, lines: Vec<PsLine>) {
        // Those that were told to go have come, too.
        self.ps.values_mut().for_each(|line| line.up = false);
        self.ps.extend(lines.into_iter().map(|line| (line.task, line)));
    }

    /// A shard was heard, or reached, at that time.
    pub(crate) fn shard(&mut self, at: Duration, shard: ShardId, snapshot: Option<ShardSnapshot>) {
        self.shards.entry(shard).or_insert_with(|| ShardPast::new(shard)).see(at, snapshot);
    }

    /// What has become of the checkpoints, at that time.
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

    /// The variables of that step were evaluated; that came to be known at that time.
    pub(crate) fn evaluated(&mut self, at: Duration, step: GlobalStep, evaluation: &Evaluation) {
        let loss = MetricValue { name: "loss".into(), value: evaluation.loss };
        let metrics: Vec<MetricValue> =
            std::iter::once(loss).chain(evaluation.metrics.iter().cloned()).collect();
        self.curves.evaluated(millis(at), step, metrics.clone());
        self.evaluation = Some((step, metrics));
    }

    /// Spans that were lost in the chief itself, in all.
    pub(crate) fn spans_lost(&mut self, lost: u64) {
        self.spans_lost = lost;
    }

    /// The job is over, for that reason, if it did not train to its end.
    pub(crate) fn end(&mut self, reason: Option<String>, failed: bool) {
        self.ended = true;
        self.failed = failed;
        self.seen.phase = JobPhase::Ended;
        self.seen.reason = reason;
    }

    /// What is of the last seconds at that time; when the job is over, nothing goes on.
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

    /// Goes on to those rows, about once a second; tells people who is found to be slow.
    pub(crate) fn tick(&mut self, rows: &Rows) {
        let at = rows.at;
        let step = self.step();
        let trains = self.seen.phase == JobPhase::Training;
        // How fast it is, it shows from its first moment.
        if trains {
            self.steps.add(at, step.0);
        }
        let from_ms = self.open.until_ms;
        let open = std::mem::take(&mut self.open);
        self.open.until_ms = millis(at);
        if trains || open.steps > 0 || open.loss_steps > 0 {
            self.curves.add(Stretch { from_ms, until_ms: millis(at), step, ..open });
        }
        // At the end some have trained, and others bring to an end what they are at.
        let found = match trains && step < self.progress.last_step {
            true => {
                let all = self.workers.values().zip(&rows.workers);
                let training = all.filter(|(_, row)| row.state == WorkerState::Training);
                let trainers: Vec<_> = training.map(|(worker, row)| worker.trainer(at, row)).collect();
                evidence(&trainers, &rows.shards, self.job.sync)
            }
            false => AllEvidence::default(),
        };
        let changes = self.findings.look(at, found);
        for Finding { kind, name, reason } in changes.begun {
            match kind {
                FindingKind::SlowWorker => tracing::warn!(
                    "{name} is slow: {reason}; look at that host, or give each worker the same batch and the same device"
                ),
                FindingKind::OverloadedShard => tracing::warn!(
                    "{name} is overloaded: {reason}; more ps tasks or shards, or greedy_load_balancing as placement, spread what it has to do"
                ),
                FindingKind::SilentShard => tracing::warn!(
                    "{name} does not answer: {reason}; look whether its task lives, and whether the network reaches its host"
                ),
            }
        }
        for Finding { kind, name, .. } in changes.ended {
            match kind {
                FindingKind::SlowWorker if self.trains(&name) => tracing::info!("{name} is slow no more"),
                // What has become of it is told elsewhere.
                FindingKind::SlowWorker => {}
                FindingKind::OverloadedShard => tracing::info!("{name} is overloaded no more"),
                FindingKind::SilentShard => tracing::info!("{name} answers again"),
            }
        }
    }

    /// Whether a worker of that name trains.
    fn trains(&self, name: &str) -> bool {
        let seen = self.workers.values().map(WorkerPast::seen);
        let mut training = seen.filter(|seen| seen.state == WorkerState::Training);
        training.any(|seen| TaskId::worker(seen.worker).to_string() == name)
    }

    /// The job so far.
    pub(crate) fn curves(&self) -> Vec<CurvePoint> {
        self.curves.points()
    }

    /// Where every slice lives; none before that is decided.
    pub(crate) fn placement(&self) -> &[PlacementRow] {
        &self.placement
    }

    /// Whether the job ends before its last step, or has ended.
    pub(crate) const fn stops(&self) -> bool {
        self.seen.stops
    }

    /// All of it, with those rows; `at_ms` is since the epoch.
    pub(crate) fn snapshot(&self, rows: Rows, at_ms: u64) -> ChiefSnapshot {
        let Rows { at, workers, shards } = rows;
        let trains = |row: &&WorkerRow| row.state == WorkerState::Training;
        ChiefSnapshot {
            job: self.summary.clone(),
            phase: self.seen.phase,
            reason: self.seen.reason.clone(),
            failed: self.failed,
            at_ms,
            up_ms: millis(at),
            step: self.step(),
            last_step: self.progress.last_step,
            began: self.seen.began,
            loss: self.progress.loss,
            steps_per_s: if self.ended { 0.0 } else { self.steps.rate(at) },
            // From above zero: the sum of none is the negative one.
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
        let row = |(shard, past): (&ShardId, &ShardPast)| {
            let variables = self.variables.get(shard).copied().unwrap_or_default();
            let row = past.row(at, variables, &round_trips.get(shard).copied().unwrap_or_default());
            match self.ps.get(&shard.task()) {
                Some(ps) if !ps.up => ShardRow { state: ShardState::Unreachable, ..row },
                _ => row,
            }
        };
        self.shards.iter().map(row).collect()
    }

    /// All that should be there, as far as the chief can know: evaluators tell it nothing, and who has left is not missed.
    fn tasks(&self) -> Vec<TaskRow> {
        let row = |(task, address): &(TaskId, String)| {
            let (http, reachable, lives) = match task.job {
                JobName::Chief => (self.http.clone(), true, 1),
                JobName::Ps => self.ps.get(task).map_or((None, false, 0), |ps| (ps.http.clone(), ps.up, 1)),
                JobName::Worker => match self.workers.get(&task.index).map(WorkerPast::seen) {
                    Some(seen) if seen.state == WorkerState::Left => return None,
                    Some(seen) => (seen.http.clone(), is_here(seen.state), seen.lives),
                    None => (None, false, 0),
                },
                JobName::Evaluator => return None,
            };
            Some(TaskRow { task: *task, address: address.clone(), http, reachable, lives })
        };
        self.cluster.iter().filter_map(row).collect()
    }
}

const fn is_here(state: WorkerState) -> bool {
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
