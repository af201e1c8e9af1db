//! Samples of a worker task: its phases, and the verdicts on its pushes.

use pushpull_messages::observe::WorkerSnapshot;

use super::exposition::Samples;
use super::ps::traffic;

pub(super) fn samples(worker: &WorkerSnapshot, out: &mut Samples<'_>) {
    out.counter("pushpull_worker_steps_total", &[], worker.local_step.0);
    out.gauge("pushpull_worker_global_step", &[], worker.global_step.0 as f64);
    out.counter("pushpull_worker_batches_drawn_total", &[], worker.drawn);
    out.counter("pushpull_worker_examples_total", &[], worker.examples);
    if let Some(loss) = worker.loss {
        out.gauge("pushpull_loss", &[], f64::from(loss));
    }
    out.counter("pushpull_worker_steps_skipped_total", &[], worker.skipped);
    out.counter("pushpull_worker_records_skipped_total", &[], worker.records_skipped);
    for (phase, times) in worker.phases.iter() {
        out.times("pushpull_step_phase_seconds", &[("phase", phase)], times);
    }
    for (verdict, count) in worker.verdicts.iter() {
        out.counter("pushpull_worker_pushes_total", &[("verdict", verdict)], count);
    }
    out.staleness("pushpull_worker_push_staleness_versions", &[], &worker.staleness);
    for trip in &worker.round_trips {
        out.times("pushpull_push_round_trip_seconds", &[("shard", &trip.shard.to_string())], &trip.times);
    }
    out.gauge("pushpull_in_flight_bytes", &[], worker.in_flight_bytes as f64);
    out.gauge("pushpull_in_flight_limit_bytes", &[], worker.in_flight_bytes_max as f64);
    traffic(&worker.received, &worker.sent, out);
    out.counter("pushpull_reconnections_total", &[], worker.reconnections);
    out.counter("pushpull_resends_total", &[], worker.resends);
}
