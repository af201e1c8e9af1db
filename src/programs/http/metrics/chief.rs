//! The Prometheus samples of the chief: the job as a whole, its tasks, and its bottlenecks.

use std::collections::BTreeSet;

use pushpull_messages::observe::{Checkpoints, ChiefSnapshot, JobPhase, ShardRow, WorkerRow, WorkerState};

use super::evaluator::results;
use super::exposition::Samples;
use super::ps::strangers;

const PHASES: [&str; 5] = [
    phase(JobPhase::Starting),
    phase(JobPhase::Training),
    phase(JobPhase::Evaluating),
    phase(JobPhase::Failing),
    phase(JobPhase::Ended),
];

const fn phase(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Starting => "starting",
        JobPhase::Training => "training",
        JobPhase::Evaluating => "evaluating",
        JobPhase::Failing => "failing",
        JobPhase::Ended => "ended",
    }
}

pub(super) fn samples(job: &ChiefSnapshot, out: &mut Samples<'_>) {
    out.one_of("pushpull_job_phase", "phase", &PHASES, phase(job.phase));
    out.gauge("pushpull_job_failed", &[], f64::from(u8::from(job.failed)));
    out.gauge("pushpull_job_up_seconds", &[], job.up_ms as f64 / 1e3);
    out.gauge("pushpull_job_step", &[], job.step.0 as f64);
    out.gauge("pushpull_job_last_step", &[], job.last_step.0 as f64);
    out.gauge("pushpull_job_began_step", &[], job.began.0 as f64);
    out.counter("pushpull_job_rollbacks_total", &[], job.rollbacks);
    if let Some(server) = &job.server {
        strangers(server, out);
    }
    if let Some(loss) = job.loss {
        out.gauge("pushpull_loss", &[], f64::from(loss));
    }
    results("pushpull_train_metric", None, &job.metrics, out);
    out.gauge("pushpull_steps_per_second", &[], job.steps_per_s);
    out.gauge("pushpull_examples_per_second", &[], job.examples_per_s);
    if let Some((step, metrics)) = &job.evaluation {
        out.gauge("pushpull_evaluation_step", &[], step.0 as f64);
        results("pushpull_evaluation", None, metrics, out);
    }
    for state in WorkerState::ALL {
        let count = job.workers.iter().filter(|worker| worker.state == state).count();
        out.gauge("pushpull_job_workers", &[("state", state.as_str())], count as f64);
    }
    for task in &job.tasks {
        let name = task.task.to_string();
        out.gauge("pushpull_job_task_reachable", &[("name", &name)], f64::from(u8::from(task.reachable)));
        out.counter("pushpull_job_task_lives_total", &[("name", &name)], task.lives);
    }
    job.workers.iter().for_each(|worker| worker_samples(worker, out));
    job.shards.iter().for_each(|shard| shard_samples(shard, out));
    if let Some(checkpoints) = &job.checkpoints {
        checkpoint_samples(checkpoints, out);
    }
    let mut told = BTreeSet::new();
    for finding in &job.findings {
        if told.insert((finding.kind, &finding.name)) {
            let labels = &[("kind", finding.kind.as_str()), ("name", &*finding.name)];
            out.gauge("pushpull_bottleneck", labels, 1.0);
        }
    }
    out.counter("pushpull_spans_lost_total", &[], job.spans_lost);
}

fn worker_samples(worker: &WorkerRow, out: &mut Samples<'_>) {
    let name = worker.worker.to_string();
    let labels = &[("worker", &*name)];
    if let Some(ago) = worker.reported_ms {
        out.gauge("pushpull_job_worker_report_age_seconds", labels, ago as f64 / 1e3);
    }
    out.gauge("pushpull_job_worker_steps_per_second", labels, worker.steps_per_s);
    out.gauge("pushpull_job_worker_examples_per_second", labels, worker.examples_per_s);
    if let Some(staleness) = worker.staleness {
        out.gauge("pushpull_job_worker_staleness_versions", labels, staleness);
    }
}

fn shard_samples(shard: &ShardRow, out: &mut Samples<'_>) {
    let name = shard.shard.to_string();
    let labels = &[("shard", &*name)];
    out.gauge("pushpull_job_shard_updates_per_second", labels, shard.updates_per_s);
    out.gauge("pushpull_job_shard_busy_ratio", labels, shard.busy);
    if let Some(us) = shard.round_trip_us {
        out.gauge("pushpull_job_shard_round_trip_seconds", labels, us as f64 / 1e6);
    }
}

fn checkpoint_samples(checkpoints: &Checkpoints, out: &mut Samples<'_>) {
    out.counter("pushpull_checkpoint_saves_total", &[], checkpoints.saves);
    out.counter("pushpull_checkpoint_failures_total", &[], checkpoints.failed);
    if let Some(step) = checkpoints.last_step {
        out.gauge("pushpull_checkpoint_last_step", &[], step.0 as f64);
    }
    if let Some(age) = checkpoints.age_ms {
        out.gauge("pushpull_checkpoint_age_seconds", &[], age as f64 / 1e3);
    }
    out.times("pushpull_checkpoint_write_seconds", &[], &checkpoints.took);
}
