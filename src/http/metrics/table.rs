//! Every family of metrics: its name, what kind it is, and what it tells. Base units, as Prometheus wants them.

/// What can become of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows, and begins anew with its task.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by upper bounds.
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

/// All of them.
#[rustfmt::skip]
pub(super) const FAMILIES: &[(&str, Kind, &str)] = &[
    // Any task.
    ("pushpull_build_info", Gauge, "Always 1; which version runs."),
    ("pushpull_task_state", Gauge, "Where the task is in its life: 1 for that state, 0 for the others."),
    ("pushpull_task_start_time_seconds", Gauge, "When this life of the task began, since the epoch."),
    ("pushpull_actor_queue_messages", Gauge, "Messages that wait in the actor's mailbox."),
    ("pushpull_actor_waiting_seconds", Histogram, "How long messages waited in the actor's mailbox."),
    ("pushpull_actor_handling_seconds", Histogram, "How long the actor took to handle a message."),
    ("pushpull_actor_busy_seconds", Gauge, "For how long the actor has been at the message that it handles now; 0 if it handles none."),
    ("pushpull_actor_restarts_total", Counter, "How often the actor was started again within its task."),
    // Bytes that go and come, at ps and worker tasks.
    ("pushpull_messages_total", Counter, "Messages, heartbeats left out, by direction."),
    ("pushpull_payload_bytes_total", Counter, "Bytes of tensors, headers left out, by direction."),
    ("pushpull_in_flight_bytes", Gauge, "Payload bytes on their way: at a worker those that wait for an answer, at a ps those that have come and are not answered."),
    ("pushpull_in_flight_limit_bytes", Gauge, "The most bytes on their way; who needs more waits."),
    // Ps tasks.
    ("pushpull_connections_accepted_total", Counter, "Connections accepted."),
    ("pushpull_connections_closed_total", Counter, "Connections that are gone, by reason."),
    ("pushpull_reply_write_seconds", Histogram, "How long replies took to be written."),
    ("pushpull_buffer_pool_bytes", Gauge, "Bytes of buffers that are kept to be used again."),
    ("pushpull_shard_version", Gauge, "Updates that the variables of the shard have seen, those before a restart included."),
    ("pushpull_shard_slices", Gauge, "Slices of variables that the shard owns."),
    ("pushpull_shard_variable_bytes", Gauge, "Bytes of the shard's variables."),
    ("pushpull_shard_slot_bytes", Gauge, "Bytes of what the optimizer and averages keep beside the variables."),
    ("pushpull_shard_held_bytes", Gauge, "Bytes of gradients that wait for others."),
    ("pushpull_shard_members", Gauge, "Workers that the shard counts now."),
    ("pushpull_shard_waiting_pulls", Gauge, "Pulls that wait for their step to begin."),
    ("pushpull_shard_leaving", Gauge, "1 where the shard's task was told to stop, and waits for the chief to save."),
    ("pushpull_pushes_received_total", Counter, "Pushes that came to the shard: the sum over all verdicts."),
    ("pushpull_pushes_total", Counter, "What became of every push, by shard and verdict."),
    ("pushpull_pushes_not_finite_total", Counter, "Pushes refused because they were not finite."),
    ("pushpull_pulls_total", Counter, "Pulls answered, those within a push included."),
    ("pushpull_push_staleness_versions", Histogram, "Staleness of the pushes that are in the variables, in versions of the shard."),
    ("pushpull_push_steps_behind", Histogram, "By how many steps the worker furthest ahead was ahead when a push came."),
    ("pushpull_apply_seconds", Histogram, "How long updates took."),
    ("pushpull_checkpoint_part_write_seconds", Histogram, "How long the shard took to write its part of a checkpoint."),
    ("pushpull_checkpoint_part_failures_total", Counter, "Parts of checkpoints that the shard could not write."),
    // Workers.
    ("pushpull_worker_steps_total", Counter, "Steps that the worker has taken."),
    ("pushpull_worker_global_step", Gauge, "The greatest number of updates that a shard has told the worker of."),
    ("pushpull_worker_batches_drawn_total", Counter, "Batches taken from the input, in all lives of the worker."),
    ("pushpull_worker_examples_total", Counter, "Examples that the worker has computed gradients of."),
    ("pushpull_worker_steps_skipped_total", Counter, "Steps whose gradients were dropped because they were not finite."),
    ("pushpull_step_phase_seconds", Histogram, "Where the time of a step goes, by phase: input, compute, filter, exchange, hooks."),
    ("pushpull_worker_pushes_total", Counter, "What became of the worker's pushes, by verdict, all shards together."),
    ("pushpull_worker_push_staleness_versions", Histogram, "Staleness of the worker's pushes that are in the variables, in versions of their shard."),
    ("pushpull_push_round_trip_seconds", Histogram, "From push to answer, by shard: wire, queue, apply, and waiting for others."),
    ("pushpull_reconnections_total", Counter, "Connections to ps tasks that were found again."),
    ("pushpull_resends_total", Counter, "Requests to ps tasks that were made again."),
    // Evaluations, by the chief or an evaluator.
    ("pushpull_evaluations_total", Counter, "Checkpoints evaluated."),
    ("pushpull_evaluation_failures_total", Counter, "Checkpoints that could not be evaluated."),
    ("pushpull_evaluation_seconds", Histogram, "How long evaluations took."),
    ("pushpull_evaluation_step", Gauge, "The step of the last evaluation."),
    ("pushpull_evaluation", Gauge, "The last evaluation, by metric: loss, and those of the model."),
    // The chief.
    ("pushpull_job_phase", Gauge, "Where the job is in its life: 1 for that phase, 0 for the others."),
    ("pushpull_job_up_seconds", Gauge, "Since the chief was started."),
    ("pushpull_job_failed", Gauge, "1 where the job has ended by an error."),
    ("pushpull_job_step", Gauge, "Updates of the shard that is furthest."),
    ("pushpull_job_last_step", Gauge, "The step at which the training ends."),
    ("pushpull_job_began_step", Gauge, "The step at which this run began."),
    ("pushpull_loss", Gauge, "Training loss over the last steps: of the job at the chief, of its own at a worker."),
    ("pushpull_steps_per_second", Gauge, "Updates per second, over the last seconds."),
    ("pushpull_examples_per_second", Gauge, "Examples per second that gradients were computed of, over the last seconds."),
    ("pushpull_job_workers", Gauge, "Workers by what they are at."),
    ("pushpull_job_task_reachable", Gauge, "1 where the chief can reach that task now; of a worker that has left there is none."),
    ("pushpull_job_task_lives_total", Counter, "Lives of that task that have come: more than one where it was started again."),
    ("pushpull_job_worker_report_age_seconds", Gauge, "Since the worker reported last."),
    ("pushpull_job_worker_steps_per_second", Gauge, "The worker's steps per second, over the last seconds."),
    ("pushpull_job_worker_examples_per_second", Gauge, "The worker's examples per second, over the last seconds."),
    ("pushpull_job_worker_staleness_versions", Gauge, "Mean staleness of the worker's pushes over the last seconds, in versions of their shard."),
    ("pushpull_job_shard_updates_per_second", Gauge, "The shard's updates per second, over the last seconds."),
    ("pushpull_job_shard_busy_ratio", Gauge, "The share of the last seconds in which the shard handled messages: 0 to 1."),
    ("pushpull_job_shard_round_trip_seconds", Gauge, "From push to answer as the shard's workers see it: the mean over the last seconds."),
    ("pushpull_checkpoint_saves_total", Counter, "Checkpoints made."),
    ("pushpull_checkpoint_failures_total", Counter, "Checkpoints that could not be made."),
    ("pushpull_checkpoint_last_step", Gauge, "The step of the newest whole checkpoint."),
    ("pushpull_checkpoint_age_seconds", Gauge, "Since the newest checkpoint of this run was complete."),
    ("pushpull_checkpoint_write_seconds", Histogram, "How long the shards took to write their parts of a checkpoint."),
    ("pushpull_bottleneck", Gauge, "1 for everybody who is found to hold up the others, by kind and name."),
    ("pushpull_spans_lost_total", Counter, "Spans of the timeline that were left out."),
];
