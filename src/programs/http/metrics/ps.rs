//! The metric samples of a ps task: its connections and its shards.

use std::collections::BTreeMap;

use pushpull_messages::id::ShardId;
use pushpull_messages::message::ShardSnapshot;
use pushpull_messages::observe::{PsSnapshot, ServerSnapshot, Traffic};

use super::exposition::Samples;

/// The maximum number of reasons of a family that are counted separately; all others are counted together.
const REASONS_MAX: usize = 24;

pub(super) fn samples(ps: &PsSnapshot, out: &mut Samples<'_>) {
    connections(&ps.server, out);
    out.gauge("pushpull_buffer_pool_bytes", &[], ps.pool_bytes as f64);
    for (shard, snapshot) in &ps.shards {
        shard_samples(*shard, snapshot, out);
    }
}

/// Adds the samples of the connections that a task has accepted.
pub(super) fn connections(server: &ServerSnapshot, out: &mut Samples<'_>) {
    let ServerSnapshot { received, sent, writing, in_flight_bytes, in_flight_bytes_max, .. } = server;
    strangers(server, out);
    traffic(received, sent, out);
    out.times("pushpull_reply_write_seconds", &[], writing);
    out.gauge("pushpull_in_flight_bytes", &[], *in_flight_bytes as f64);
    out.gauge("pushpull_in_flight_limit_bytes", &[], *in_flight_bytes_max as f64);
}

/// Adds the samples of the connections that a task has accepted and closed, and of the requests that it has
/// refused.
pub(super) fn strangers(server: &ServerSnapshot, out: &mut Samples<'_>) {
    let ServerSnapshot { accepted, closed, refused, .. } = server;
    out.counter("pushpull_connections_accepted_total", &[], *accepted);
    by_reason("pushpull_connections_closed_total", closed, out);
    by_reason("pushpull_requests_refused_total", refused, out);
}

fn by_reason(family: &str, counts: &BTreeMap<String, u64>, out: &mut Samples<'_>) {
    let mut others = 0u64;
    for (at, (reason, &count)) in counts.iter().enumerate() {
        if at < REASONS_MAX && reason != "other" {
            out.counter(family, &[("reason", reason)], count);
        } else {
            others = others.saturating_add(count);
        }
    }
    out.counter(family, &[("reason", "other")], others);
}

/// Adds the samples of the messages and bytes that a task has received and sent.
pub(super) fn traffic(received: &Traffic, sent: &Traffic, out: &mut Samples<'_>) {
    for (direction, traffic) in [("received", received), ("sent", sent)] {
        let labels = &[("direction", direction)];
        out.counter("pushpull_messages_total", labels, traffic.messages);
        out.counter("pushpull_payload_bytes_total", labels, traffic.payload_bytes);
    }
}

fn shard_samples(shard: ShardId, snapshot: &ShardSnapshot, out: &mut Samples<'_>) {
    let shard = shard.to_string();
    let labels = &[("shard", &*shard)];
    let pushes = &snapshot.pushes;
    out.gauge("pushpull_shard_version", labels, snapshot.version.0 as f64);
    out.gauge("pushpull_shard_slices", labels, snapshot.slices as f64);
    out.gauge("pushpull_shard_variable_bytes", labels, snapshot.bytes as f64);
    out.gauge("pushpull_shard_slot_bytes", labels, snapshot.slot_bytes as f64);
    out.gauge("pushpull_shard_held_bytes", labels, snapshot.held_bytes as f64);
    out.gauge("pushpull_shard_members", labels, f64::from(snapshot.members));
    out.gauge("pushpull_shard_waiting_pulls", labels, f64::from(snapshot.waiting));
    let factor = snapshot.learning_rate_factor.unwrap_or(1.0);
    out.gauge("pushpull_shard_learning_rate_factor", labels, f64::from(factor));
    out.gauge("pushpull_shard_leaving", labels, f64::from(u8::from(snapshot.leaving)));
    out.counter("pushpull_pushes_received_total", labels, pushes.received);
    for (verdict, count) in [
        ("applied", pushes.applied),
        ("held", pushes.held),
        ("stale", pushes.stale),
        ("stopped", pushes.stopped),
        ("duplicate", pushes.duplicate),
        ("refused", pushes.refused),
    ] {
        out.counter("pushpull_pushes_total", &[("shard", &shard), ("verdict", verdict)], count);
    }
    out.counter("pushpull_pushes_not_finite_total", labels, snapshot.not_finite);
    out.counter("pushpull_pulls_total", labels, snapshot.pulls);
    out.staleness("pushpull_push_staleness_versions", labels, &snapshot.staleness);
    out.staleness("pushpull_push_steps_behind", labels, &snapshot.steps_behind);
    out.times("pushpull_apply_seconds", labels, &snapshot.applying);
    out.times("pushpull_checkpoint_part_write_seconds", labels, &snapshot.saving);
    out.counter("pushpull_checkpoint_part_failures_total", labels, snapshot.saves_failed);
}
