//! The families of metrics: name, kind and help. Units are base units, as Prometheus recommends.

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number that is 0 when the task starts, and then only increases.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts of values in buckets, which are given by their upper bounds.
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

/// All families.
#[rustfmt::skip]
pub(super) const FAMILIES: &[(&str, Kind, &str)] = &[
    // Any process.
    ("pushpull_insecure", Gauge, "1 if other hosts may reach the process's tasks without a proof of who they are (--insecure), 0 if not."),
    // Any task.
    ("pushpull_build_info", Gauge, "Always 1; the label names the version."),
    ("pushpull_task_state", Gauge, "1 for the state that the task is in, 0 for the others."),
    ("pushpull_task_start_time_seconds", Gauge, "Time at which the process of the task was started, in seconds since 1970."),
    ("pushpull_actor_queue_messages", Gauge, "Messages that wait in the actor's mailbox."),
    ("pushpull_actor_waiting_seconds", Histogram, "How long messages waited in the actor's mailbox."),
    ("pushpull_actor_handling_seconds", Histogram, "How long the actor took to handle a message."),
    ("pushpull_actor_busy_seconds", Gauge, "How long the actor has been handling its current message; 0 if it handles none."),
    // The process.
    ("pushpull_http_refused_total", Counter, "HTTP requests that the endpoint refused, by reason."),
    // Traffic of ps and worker tasks.
    ("pushpull_messages_total", Counter, "Messages by direction, without heartbeats."),
    ("pushpull_payload_bytes_total", Counter, "Bytes of tensors by direction, without headers."),
    ("pushpull_in_flight_bytes", Gauge, "Payload bytes in flight: at a worker, those of requests that wait for a reply; at a ps, those of requests that were received and not yet answered."),
    ("pushpull_in_flight_limit_bytes", Gauge, "Maximum of payload bytes in flight; a request that would exceed the maximum waits."),
    // Ps tasks, the chief and servers of sessions.
    ("pushpull_connections_accepted_total", Counter, "Connections accepted."),
    ("pushpull_connections_closed_total", Counter, "Connections closed, by reason."),
    ("pushpull_requests_refused_total", Counter, "Requests of other tasks that were refused, by reason."),
    // Ps tasks and servers of sessions.
    ("pushpull_reply_write_seconds", Histogram, "How long replies took to be written."),
    ("pushpull_buffer_pool_bytes", Gauge, "Bytes of buffers that are kept for reuse."),
    ("pushpull_shard_version", Gauge, "Updates applied to the shard's variables, including those before a restart."),
    ("pushpull_shard_slices", Gauge, "Slices of variables that the shard owns."),
    ("pushpull_shard_variable_bytes", Gauge, "Bytes of the shard's variables."),
    ("pushpull_shard_slot_bytes", Gauge, "Bytes of the optimizer's slots and of the averages."),
    ("pushpull_shard_held_bytes", Gauge, "Bytes of gradients that wait for those of other workers or for a new learning rate."),
    ("pushpull_shard_members", Gauge, "Workers that are members of the shard now."),
    ("pushpull_shard_waiting_pulls", Gauge, "Workers that wait for the values of their next step."),
    ("pushpull_shard_learning_rate_factor", Gauge, "Factor by which hooks of the chief have multiplied the learning rate; 1 if they have not."),
    ("pushpull_shard_leaving", Gauge, "1 if the shard's task was told to stop and waits for the chief to save a checkpoint."),
    ("pushpull_pushes_received_total", Counter, "Pushes received by the shard: the sum over all verdicts."),
    ("pushpull_pushes_total", Counter, "Pushes by shard and verdict."),
    ("pushpull_pushes_not_finite_total", Counter, "Pushes refused because they were not finite."),
    ("pushpull_pulls_total", Counter, "Pulls answered, including those within a push."),
    ("pushpull_push_staleness_versions", Histogram, "Staleness of the applied pushes, in versions of the shard."),
    ("pushpull_push_steps_behind", Histogram, "Number of steps by which the pushing worker was behind the worker that was furthest ahead."),
    ("pushpull_apply_seconds", Histogram, "How long updates took."),
    ("pushpull_checkpoint_part_write_seconds", Histogram, "How long the shard took to write its part of a checkpoint."),
    ("pushpull_checkpoint_part_failures_total", Counter, "Parts of checkpoints that the shard could not write."),
    // Workers.
    ("pushpull_worker_steps_total", Counter, "Steps that this incarnation of the worker has made."),
    ("pushpull_worker_global_step", Gauge, "The greatest number of updates that a shard reported to the worker."),
    ("pushpull_worker_batches_drawn_total", Counter, "Batches drawn from the input, in all incarnations of the worker."),
    ("pushpull_worker_examples_total", Counter, "Examples for which the worker computed gradients."),
    ("pushpull_worker_steps_skipped_total", Counter, "Steps whose gradients were dropped because they were not finite."),
    ("pushpull_worker_records_skipped_total", Counter, "Damaged records of the training set that the worker skipped."),
    ("pushpull_step_phase_seconds", Histogram, "Time of a step by phase: input, compute, filter, exchange, hooks."),
    ("pushpull_worker_pushes_total", Counter, "The worker's pushes by verdict, over all shards."),
    ("pushpull_worker_push_staleness_versions", Histogram, "Staleness of the worker's applied pushes, in versions of their shard."),
    ("pushpull_push_round_trip_seconds", Histogram, "Time from push to reply, by shard; it includes the network, the queue, the update, and waiting for other workers."),
    ("pushpull_reconnections_total", Counter, "Connections to ps tasks that were restored."),
    ("pushpull_resends_total", Counter, "Requests to ps tasks that were sent again."),
    // Evaluations, by the chief or an evaluator.
    ("pushpull_evaluations_total", Counter, "Checkpoints evaluated."),
    ("pushpull_evaluation_failures_total", Counter, "Checkpoints that could not be evaluated."),
    ("pushpull_evaluation_seconds", Histogram, "How long evaluations took."),
    ("pushpull_evaluation_step", Gauge, "The step of the last evaluation."),
    ("pushpull_evaluation", Gauge, "The last evaluation by metric: the loss, and the metrics of the model."),
    // Servers of sessions.
    ("pushpull_session_runs_total", Counter, "Runs that clients requested from the task, by outcome."),
    ("pushpull_session_running", Gauge, "Runs in progress that the task takes part in."),
    ("pushpull_session_run_seconds", Histogram, "Time from a client's request for a run to the answer."),
    ("pushpull_session_graphs", Gauge, "Graphs that are open on the task."),
    ("pushpull_session_variable_bytes", Gauge, "Bytes of the variables of sessions and of their slots."),
    ("pushpull_session_variable_limit_bytes", Gauge, "Maximum of the bytes of variables of sessions."),
    // The chief.
    ("pushpull_job_phase", Gauge, "1 for the phase that the job is in, 0 for the others."),
    ("pushpull_job_up_seconds", Gauge, "Time since the chief was started."),
    ("pushpull_job_failed", Gauge, "1 if the job ended with an error."),
    ("pushpull_job_step", Gauge, "Updates of the shard that is furthest ahead."),
    ("pushpull_job_last_step", Gauge, "The step at which the training ends."),
    ("pushpull_job_began_step", Gauge, "The step at which this run began."),
    ("pushpull_job_rollbacks_total", Counter, "Rollbacks of the job to a checkpoint, because a ps task had lost its variables."),
    ("pushpull_loss", Gauge, "Mean training loss over the last steps; the chief reports that of the job, and a worker its own."),
    ("pushpull_train_metric", Gauge, "The model's metrics on the workers' last training batches, by metric."),
    ("pushpull_steps_per_second", Gauge, "Updates per second, over the last seconds."),
    ("pushpull_examples_per_second", Gauge, "Examples per second for which gradients were computed, over the last seconds."),
    ("pushpull_job_workers", Gauge, "Workers by state."),
    ("pushpull_job_task_reachable", Gauge, "1 if the chief can reach the task now, else 0; a worker that left has no sample."),
    ("pushpull_job_task_lives_total", Counter, "Incarnations of the task; more than 1 if the task was restarted."),
    ("pushpull_job_worker_report_age_seconds", Gauge, "Time since the worker's last report."),
    ("pushpull_job_worker_steps_per_second", Gauge, "The worker's steps per second, over the last seconds."),
    ("pushpull_job_worker_examples_per_second", Gauge, "The worker's examples per second, over the last seconds."),
    ("pushpull_job_worker_staleness_versions", Gauge, "Mean staleness of the worker's pushes over the last seconds, in versions of their shard."),
    ("pushpull_job_shard_updates_per_second", Gauge, "The shard's updates per second, over the last seconds."),
    ("pushpull_job_shard_busy_ratio", Gauge, "Fraction of the last seconds in which the shard handled messages, from 0 to 1."),
    ("pushpull_job_shard_round_trip_seconds", Gauge, "Mean time from push to reply over the last seconds, measured by the workers."),
    ("pushpull_checkpoint_saves_total", Counter, "Checkpoints made."),
    ("pushpull_checkpoint_failures_total", Counter, "Checkpoints that could not be made."),
    ("pushpull_checkpoint_last_step", Gauge, "The step of the newest complete checkpoint."),
    ("pushpull_checkpoint_age_seconds", Gauge, "Time since the newest checkpoint of this run was complete."),
    ("pushpull_checkpoint_write_seconds", Histogram, "How long the shards took to write their parts of a checkpoint."),
    ("pushpull_bottleneck", Gauge, "1 for each task or shard that holds up the others, by kind and name."),
    ("pushpull_spans_lost_total", Counter, "Spans that were dropped from the timeline."),
];
