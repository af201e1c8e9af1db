//! The metric samples of a server of sessions: its connections, runs, graphs and variables.

use pushpull_messages::observe::SessionSnapshot;

use super::exposition::Samples;
use super::ps::connections;

pub(super) fn samples(session: &SessionSnapshot, out: &mut Samples<'_>) {
    connections(&session.server, out);
    for (outcome, count) in [("completed", session.completed), ("failed", session.failed)] {
        out.counter("pushpull_session_runs_total", &[("outcome", outcome)], count);
    }
    out.gauge("pushpull_session_running", &[], session.running as f64);
    out.times("pushpull_session_run_seconds", &[], &session.took);
    out.gauge("pushpull_session_graphs", &[], session.graphs as f64);
    out.gauge("pushpull_session_variable_bytes", &[], session.variable_bytes as f64);
    out.gauge("pushpull_session_variable_limit_bytes", &[], session.variable_bytes_max as f64);
}
