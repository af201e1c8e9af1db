//! Renders the tasks' snapshots in Prometheus' text format, version 0.0.4. The table `FAMILIES` contains the
//! names, units and help texts of all metrics except those of the process. The number of label values is
//! bounded by the size of the cluster.

mod chief;
mod evaluator;
mod exposition;
mod families;
#[cfg(target_os = "linux")]
mod process;
mod ps;
mod session;
mod task;
#[cfg(test)]
mod tests;
mod worker;

use actix_web::HttpResponse;
use pushpull_messages::observe::{RoleSnapshot, TaskSnapshot};

use self::exposition::Exposition;
use super::access::Access;
use super::body::shared;
use super::views::Seen;

/// Answers a scrape. While the snapshots are fresh, the text is written only once for all clients.
pub(super) fn answer(seen: &Seen, access: &Access, insecure: bool) -> HttpResponse {
    let page = seen.written.metrics.get_or_init(|| text(&seen.tasks, access.refused(), insecure).into());
    shared(prometheus::TEXT_FORMAT, page.clone())
}

/// Returns the metrics of these tasks and of the process that they run in. `refused` is the number of HTTP
/// requests that its endpoint has refused, for each reason. `insecure` says whether other hosts may reach the
/// tasks without a proof of who they are.
fn text(
    tasks: &[TaskSnapshot],
    refused: impl IntoIterator<Item = (&'static str, u64)>,
    insecure: bool,
) -> String {
    let mut page = Exposition::new();
    let mut samples = page.of_process();
    samples.gauge("pushpull_insecure", &[], f64::from(u8::from(insecure)));
    for (reason, count) in refused {
        samples.counter("pushpull_http_refused_total", &[("reason", reason)], count);
    }
    for task in tasks {
        let mut samples = page.of(task.task);
        task::samples(task, &mut samples);
        match &task.role {
            RoleSnapshot::Chief(job) => chief::samples(job, &mut samples),
            RoleSnapshot::Ps(ps) => ps::samples(ps, &mut samples),
            RoleSnapshot::Worker(worker) => worker::samples(worker, &mut samples),
            RoleSnapshot::Evaluator(evaluator) => evaluator::samples(evaluator, &mut samples),
            RoleSnapshot::Session(session) => session::samples(session, &mut samples),
        }
    }
    page.text()
}
