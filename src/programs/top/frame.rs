//! Draws a job as lines of text: the same snapshot always gives the same frame. This module must not depend
//! on the terminal or on the clock.
//!
//! Wanted properties: (A) no line is wider and no frame is higher than requested; (B) if not all tasks fit,
//! tasks with problems are shown before others; (C) text from the snapshot reaches the terminal only as
//! text, never as control characters.

use std::collections::BTreeSet;

use pushpull_messages::observe::{ChiefSnapshot, JobPhase, ShardRow, ShardState, WorkerRow, WorkerState};

use super::line::{Line, Tone};
use super::number::{ago, clock, micros, rate, real, whole};
use super::table::{Align, Cell, Column, Table};
use crate::programs::format::bytes_shown;

/// The size of the screen, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The maximum number of findings that are shown, so that a small screen has room for the tables.
const FINDINGS_MAX: usize = 5;
const BAR_MAX: usize = 60;
/// The maximum number of metrics shown; they are measured on the training batches.
const METRICS_MAX: usize = 4;
/// A shard is marked as almost overloaded if it is busy for at least this fraction of the time.
const BUSY_HIGH: f64 = 0.85;

/// Draws the job. If the connection to the chief has a problem, `trouble` describes it and is shown on a
/// line of its own.
pub(super) fn frame(job: &ChiefSnapshot, trouble: Option<&str>, size: Size) -> Vec<Line> {
    let mut lines = head(job, size.columns);
    lines.extend(trouble.map(|trouble| Line::new().with(format!("last known state: {trouble}"), Tone::Bad)));
    lines.extend(findings(job));
    let foot = foot(job);
    let (workers, shards) = (workers(job), shards(job));
    // Each of the two tables also needs an empty line and a heading.
    let taken = lines.len() + foot.len() + 4;
    let room = size.rows.saturating_sub(taken);
    let for_shards = shards.len().min((room / 3).max(room.saturating_sub(workers.len())));
    let for_workers = room.saturating_sub(for_shards);
    for (table, rows) in [(workers, for_workers), (shards, for_shards)] {
        lines.push(Line::new());
        lines.extend(table.lines(size.columns, rows));
    }
    lines.extend(foot);
    lines.truncate(size.rows);
    lines.into_iter().map(|line| line.cut(size.columns)).collect()
}

fn head(job: &ChiefSnapshot, columns: usize) -> Vec<Line> {
    let name = if job.job.name.is_empty() { "pushpull" } else { &job.job.name };
    let (phase, tone) = match job.phase {
        JobPhase::Starting => ("starting", Tone::Quiet),
        JobPhase::Training => ("training", Tone::Good),
        JobPhase::Evaluating => ("evaluating", Tone::Done),
        JobPhase::Failing => ("failing", Tone::Bad),
        JobPhase::Ended if job.failed => ("failed", Tone::Bad),
        JobPhase::Ended => ("ended", Tone::Done),
    };
    let share = match job.last_step.0 {
        0 => 0.0,
        last => (job.step.0 as f64 / last as f64).clamp(0.0, 1.0),
    };
    let step = format!("step {} of {}", whole(job.step.0), whole(job.last_step.0));
    let up = format!("up {}", clock(job.up_ms));
    let left = job.last_step.0.saturating_sub(job.step.0) as f64 / job.steps_per_s * 1e3;
    let left =
        (job.phase == JobPhase::Training && left.is_finite()).then(|| format!("{} left", clock(left as u64)));
    let mut first = Line::new().with(phase, tone).with(format!("  {step}"), Tone::Strong);
    first = first.with(format!("  {:.1} %", (share * 1000.0).floor() / 10.0), Tone::Plain);
    first = first.with(left.map(|left| format!("  {left}")).unwrap_or_default(), Tone::Plain);
    first = first.with(format!("  {up}  "), Tone::Quiet).with(name, Tone::Strong);

    let width = columns.min(BAR_MAX);
    let done = (share * width as f64) as usize;
    let bar = Line::new().with("━".repeat(done), Tone::Done).with("─".repeat(width - done), Tone::Quiet);

    let loss = job.loss.map_or_else(|| "-".to_owned(), real);
    let mut numbers = Line::new().with("loss ", Tone::Quiet).with(loss, Tone::Strong);
    let mut number = |name: &str, value: String| {
        numbers =
            std::mem::take(&mut numbers).with(format!("  {name} "), Tone::Quiet).with(value, Tone::Strong);
    };
    for metric in job.metrics.iter().take(METRICS_MAX) {
        number(&metric.name, real(metric.value));
    }
    if let Some((step, metrics)) = &job.evaluation {
        for metric in metrics.iter().filter(|metric| metric.name != "loss") {
            number(&format!("test {}", metric.name), format!("{} (step {step})", real(metric.value)));
        }
    }
    number("examples/s", rate(job.examples_per_s));
    number("steps/s", rate(job.steps_per_s));
    let times = if job.job.accumulate > 1 { format!(" x {}", job.job.accumulate) } else { String::new() };
    let about = format!("  {}  {}  batch {}{times}", job.job.sync, job.job.optimizer, job.job.batch_size);
    let mut lines = vec![first, bar, numbers.with(about, Tone::Quiet)];
    lines.extend(job.reason.as_deref().map(|reason| Line::new().with(reason, Tone::Warning)));
    lines
}

fn findings(job: &ChiefSnapshot) -> Vec<Line> {
    let line = |finding: &pushpull_messages::observe::Finding| {
        let what = finding.kind.says();
        let who = Line::new().with("! ", Tone::Warning).with(&finding.name, Tone::Warning);
        who.with(format!(" {what}: {}", finding.reason), Tone::Plain)
    };
    let mut lines: Vec<_> = job.findings.iter().take(FINDINGS_MAX).map(line).collect();
    let more = job.findings.len().saturating_sub(FINDINGS_MAX);
    if more > 0 {
        lines.push(Line::new().with(format!("! and {more} more"), Tone::Warning));
    }
    lines
}

fn workers(job: &ChiefSnapshot) -> Table {
    let found: BTreeSet<_> = job.findings.iter().map(|finding| finding.name.as_str()).collect();
    let columns = [
        ("WORKER", Align::Left),
        ("STATE", Align::Left),
        ("STEP", Align::Right),
        ("STEPS/S", Align::Right),
        ("STALENESS", Align::Right),
        ("SLOWEST PHASE", Align::Left),
        ("LOSS", Align::Right),
        ("EXAMPLES/S", Align::Right),
        ("APPLIED", Align::Right),
        ("HELD", Align::Right),
        ("STALE", Align::Right),
        ("SKIPPED", Align::Right),
        ("RECONNECTED", Align::Right),
        ("RESENT", Align::Right),
        ("REPORTED", Align::Right),
    ];
    let mut table = Table::new(&columns.map(|(name, align)| Column { name, align }), "workers");
    for row in &job.workers {
        let name = format!("worker/{}", row.worker);
        let is_found = found.contains(name.as_str());
        let troubled = is_found || matches!(row.state, WorkerState::Away | WorkerState::Lost);
        table.push(troubled, worker_cells(row, name, is_found));
    }
    table
}

fn worker_cells(row: &WorkerRow, name: String, found: bool) -> Vec<Cell> {
    let tone = match row.state {
        WorkerState::Training => Tone::Good,
        WorkerState::Away | WorkerState::Lost => Tone::Bad,
        WorkerState::Finished | WorkerState::Evaluating => Tone::Done,
        WorkerState::Absent | WorkerState::Preparing | WorkerState::Left => Tone::Quiet,
    };
    let total: u64 = row.phases_us.iter().fold(0, |sum, (_, us)| sum.saturating_add(*us));
    let slowest = row.phases_us.iter().max_by_key(|(_, us)| *us).filter(|_| total > 0);
    let slowest = slowest.map(|(name, us)| format!("{name} {} of {}", micros(*us), micros(total)));
    vec![
        Cell::new(name, if found { Tone::Warning } else { Tone::Plain }),
        Cell::new(row.state.as_str(), tone),
        Cell::number(row.local_step.0),
        Cell::plain(rate(row.steps_per_s)),
        Cell::or_dash(row.staleness.map(|mean| format!("{mean:.1}"))),
        Cell::or_dash(slowest),
        Cell::or_dash(row.loss.map(real)),
        Cell::plain(rate(row.examples_per_s)),
        Cell::number(row.verdicts.applied),
        Cell::number(row.verdicts.held),
        Cell::worry(row.verdicts.stale),
        Cell::worry(row.skipped),
        Cell::worry(row.reconnections),
        Cell::worry(row.resends),
        Cell::or_dash(row.reported_ms.map(ago)),
    ]
}

fn shards(job: &ChiefSnapshot) -> Table {
    let found: BTreeSet<_> = job.findings.iter().map(|finding| finding.name.as_str()).collect();
    let columns = [
        ("SHARD", Align::Left),
        ("STATE", Align::Left),
        ("VERSION", Align::Right),
        ("BUSY", Align::Right),
        ("QUEUE", Align::Right),
        ("WAIT", Align::Right),
        ("HANDLING", Align::Right),
        ("ROUND TRIP", Align::Right),
        ("UPDATES/S", Align::Right),
        ("BYTES", Align::Right),
        ("BESIDE", Align::Right),
        ("VARIABLES", Align::Right),
        ("STALE", Align::Right),
        ("REFUSED", Align::Right),
        ("WAITING", Align::Right),
    ];
    let mut table = Table::new(&columns.map(|(name, align)| Column { name, align }), "shards");
    for row in &job.shards {
        let name = row.shard.to_string();
        let is_found = found.contains(name.as_str());
        let away = matches!(row.state, ShardState::Unreachable | ShardState::Silent);
        table.push(is_found || away, shard_cells(row, name, is_found));
    }
    table
}

fn shard_cells(row: &ShardRow, name: String, found: bool) -> Vec<Cell> {
    let tone = match row.state {
        ShardState::Serving => Tone::Good,
        ShardState::Leaving => Tone::Warning,
        ShardState::Silent | ShardState::Unreachable => Tone::Bad,
        ShardState::Ended => Tone::Done,
    };
    let busy = if row.busy >= BUSY_HIGH { Tone::Warning } else { Tone::Plain };
    vec![
        Cell::new(name, if found { Tone::Warning } else { Tone::Plain }),
        Cell::new(row.state.as_str(), tone),
        Cell::number(row.version.0),
        Cell::new(format!("{:.0} %", row.busy * 100.0), busy),
        Cell::number(row.queue),
        Cell::plain(micros(row.waited_us)),
        Cell::plain(micros(row.handling_us)),
        Cell::or_dash(row.round_trip_us.map(micros)),
        Cell::plain(rate(row.updates_per_s)),
        Cell::plain(bytes_shown(row.bytes)),
        Cell::plain(bytes_shown(row.more_bytes)),
        Cell::number(row.variables),
        Cell::worry(row.pushes.stale),
        Cell::worry(row.pushes.refused),
        Cell::number(u64::from(row.waiting)),
    ]
}

fn foot(job: &ChiefSnapshot) -> Vec<Line> {
    let Some(made) = &job.checkpoints else { return Vec::new() };
    let newest = made.last.as_deref().unwrap_or("none yet");
    let mut line = Line::new().with("checkpoints  newest ", Tone::Quiet).with(newest, Tone::Strong);
    if let Some(age) = made.age_ms {
        line = line.with(format!(" ({} ago)", ago(age).replace("now", "0 s")), Tone::Plain);
    }
    line = line.with(format!("  {} saved", made.saves), Tone::Plain);
    if made.failed > 0 {
        line = line.with(format!("  {} failed", made.failed), Tone::Bad);
    }
    vec![Line::new(), line.with(format!("  in {}", made.location), Tone::Quiet)]
}
