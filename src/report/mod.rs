//! The report of a job, as a short table for people and as JSON for programs.

mod histogram;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use pushpull_chief::JobReport;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::JobName;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::ShardSnapshot;
use serde::Serialize;

pub use self::histogram::Bucket;
use self::histogram::{buckets, mean, shares};

/// The name of the metric that is shown in per cent, because it is a fraction of the examples.
const ACCURACY: &str = "accuracy";

/// The report of a job. The field names are also the keys of its JSON; other programs rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// The synchronisation policy.
    pub sync: String,
    /// The number of ps tasks.
    pub ps: usize,
    /// The number of worker tasks.
    pub workers: usize,
    /// The number of updates that the job requested.
    pub steps: u64,
    /// The number of updates that were applied, including those in the checkpoint from which the job was
    /// resumed. This number is the same on every shard.
    pub updates_applied: u64,
    /// The number of updates in the checkpoint from which this run resumed; 0 if it did not resume.
    pub began: u64,
    /// The reason why the training ended before the last step, if it did.
    pub stopped: Option<String>,
    /// The reason why the last step was not saved; `None` if it was saved, or if the job makes no
    /// checkpoints.
    pub unsaved: Option<String>,
    /// The number of gradients that were applied to the variables, as counted by the first shard. With
    /// `sync`, each update combines several gradients.
    pub gradients: u64,
    /// The number of steps that workers dropped because their gradients were not finite.
    pub skipped: u64,
    /// The number of times that the job has rolled back to a checkpoint, because a ps task had lost its
    /// variables. Only rollbacks under the last run of the chief count.
    pub rollbacks: u64,
    /// The time from the first step to the last, in seconds, excluding start-up and evaluation.
    pub seconds: f64,
    /// The number of examples per second, over all workers, counting only examples whose gradients were
    /// applied.
    pub examples_per_second: f64,
    /// The mean of the last training losses of the workers that stayed to the end; `null` if there are none.
    pub train_loss: f32,
    /// The loss over all test examples.
    pub test_loss: f32,
    /// The metric called `accuracy`, over all test examples; `null` if the model has no such metric.
    pub test_accuracy: Option<f32>,
    /// The metrics of the model by name, over all test examples; `null` for a metric that is not finite.
    pub test_metrics: BTreeMap<String, f32>,
    /// The crc32c of the bytes of all final variables, in order of their names. It does not depend on the
    /// placement.
    pub variables_crc32c: u32,
    /// The part of the report about each shard: mainly the number of its pushes for each verdict.
    pub shards: Vec<ShardReport>,
}

/// The part of a report that is about one shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardReport {
    /// The shard, such as `ps/0/shard/1`.
    pub shard: String,
    /// The size of the shard's variables, in bytes.
    pub bytes: u64,
    /// The number of updates that the shard has applied.
    pub version: u64,
    /// The number of pushes received: the sum of the next six fields.
    pub received: u64,
    /// The number of pushes that were applied, each as a separate update.
    pub applied: u64,
    /// The number of pushes that the shard held and combined with pushes of other workers into one update.
    pub held: u64,
    /// The number of pushes that arrived after the update to which they should have contributed.
    pub stale: u64,
    /// The number of pushes that arrived after the last update of the job.
    pub stopped: u64,
    /// The number of pushes that repeated an earlier push.
    pub duplicate: u64,
    /// The number of pushes that were refused.
    pub refused: u64,
    /// The mean staleness of the applied gradients. The staleness of a gradient is the number of updates
    /// that were applied after the worker had read the values and before the gradient was applied.
    pub staleness_mean: f64,
    /// The greatest staleness of the applied gradients.
    pub staleness_max: u64,
    /// The distribution of the staleness of the applied gradients.
    pub staleness_histogram: Vec<Bucket>,
    /// The mean, over the applied gradients, of the number of steps by which the pushing worker was behind
    /// the worker that was furthest ahead.
    pub steps_behind_mean: f64,
    /// The greatest number of steps by which a pushing worker was behind the worker that was furthest ahead.
    pub steps_behind_max: u64,
    /// The distribution, over the applied gradients, of the number of steps by which the pushing worker was
    /// behind the worker that was furthest ahead.
    pub steps_behind_histogram: Vec<Bucket>,
}

impl ShardReport {
    fn new(shard: String, snapshot: &ShardSnapshot) -> Self {
        let ShardSnapshot { bytes, version, pushes, staleness, steps_behind, .. } = snapshot;
        Self {
            shard,
            bytes: *bytes,
            version: version.0,
            received: pushes.received,
            applied: pushes.applied,
            held: pushes.held,
            stale: pushes.stale,
            stopped: pushes.stopped,
            duplicate: pushes.duplicate,
            refused: pushes.refused,
            staleness_mean: mean(staleness),
            staleness_max: staleness.max,
            staleness_histogram: buckets(staleness),
            steps_behind_mean: mean(steps_behind),
            steps_behind_max: steps_behind.max,
            steps_behind_histogram: buckets(steps_behind),
        }
    }
}

impl Report {
    /// Makes the report of `job` on `cluster` from the chief's report.
    pub fn new(job: &JobSpec, cluster: &ClusterSpec, report: &JobReport) -> Self {
        let seconds = report.training.as_secs_f64();
        // A chief that resumed or continued the job has measured the time of its own updates only.
        let timed = report.updates_timed as f64 / report.updates_applied.max(1) as f64;
        let examples = timed * report.gradients as f64 * job.step_examples() as f64;
        let evaluation = &report.evaluation;
        let metrics = evaluation.metrics.iter().map(|metric| (metric.name.clone(), metric.value));
        let test_metrics: BTreeMap<String, f32> = metrics.collect();
        let shards = report.shards.iter();
        let shards = shards.map(|(shard, snapshot)| ShardReport::new(shard.to_string(), snapshot)).collect();
        Self {
            model: job.graph.name.clone(),
            sync: job.sync.to_string(),
            ps: cluster.ps_addresses().len(),
            workers: cluster.addresses(JobName::Worker).len(),
            steps: job.last_step.0,
            updates_applied: report.steps.0,
            began: report.steps.0 - report.updates_applied,
            stopped: report.stopped.clone(),
            unsaved: report.unsaved.clone(),
            gradients: report.gradients,
            skipped: report.skipped,
            rollbacks: report.rollbacks,
            seconds,
            examples_per_second: if seconds > 0.0 { examples / seconds } else { 0.0 },
            train_loss: report.train_loss,
            test_loss: evaluation.loss,
            test_accuracy: test_metrics.get(ACCURACY).copied(),
            test_metrics,
            variables_crc32c: evaluation.variables_crc32c,
            shards,
        }
    }

    /// Prints a short table for people to standard output.
    pub fn print(&self) {
        // An error here means that the reader has closed the pipe; the job has not failed.
        let _ = self.write_table(&mut std::io::stdout().lock());
    }

    fn write_table(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(out, "model          {}", self.model)?;
        writeln!(out, "cluster        {} ps, {} worker(s), {}", self.ps, self.workers, self.sync)?;
        writeln!(out, "updates        {} of {} applied", self.updates_applied, self.steps)?;
        if self.began > 0 {
            writeln!(out, "resumed from   step {}", self.began)?;
        }
        if let Some(reason) = &self.stopped {
            writeln!(out, "stopped early  {reason}")?;
        }
        if let Some(reason) = &self.unsaved {
            writeln!(out, "not saved      {reason}")?;
        }
        // With backup workers, a gradient may reach one shard in time and another one too late.
        let (held, held_vary) = range(self.shards.iter().map(|shard| shard.held));
        let (stale, stale_vary) = range(self.shards.iter().map(|shard| shard.stale));
        if self.shards.iter().any(|shard| shard.held > 0 || shard.stale > 0) {
            let vary = if held_vary || stale_vary { ", depending on the shard" } else { "" };
            writeln!(out, "gradients      {held} applied, {stale} too late{vary}")?;
        }
        if self.skipped > 0 {
            writeln!(out, "skipped        {} step(s) whose gradients were not finite", self.skipped)?;
        }
        if self.rollbacks > 0 {
            writeln!(
                out,
                "rolled back    {} time(s), because a ps task had lost its variables",
                self.rollbacks
            )?;
        }
        let staleness = self.shards.iter().map(|shard| (&shard.staleness_histogram[..], shard.staleness_max));
        if let Some(shares) = shares(staleness) {
            writeln!(out, "staleness      {shares}")?;
        }
        let behind =
            self.shards.iter().map(|shard| (&shard.steps_behind_histogram[..], shard.steps_behind_max));
        match shares(behind) {
            Some(shares) if self.sync.starts_with("bounded") => writeln!(out, "steps behind   {shares}")?,
            _ => {}
        }
        writeln!(out, "time           {:.2} s, {:.0} examples/s", self.seconds, self.examples_per_second)?;
        if self.train_loss.is_finite() {
            writeln!(out, "train loss     {:.4}", self.train_loss)?;
        }
        writeln!(out, "test loss      {:.4}", self.test_loss)?;
        self.test_metrics.iter().try_for_each(|(name, value)| {
            let title = format!("test {name}");
            match name.as_str() {
                ACCURACY => writeln!(out, "{title:13}  {:.2} %", value * 100.0),
                _ => writeln!(out, "{title:13}  {value:.4}"),
            }
        })
    }

    /// Writes the report as JSON to a file. The file is replaced in one step, so no reader sees an
    /// incomplete report. If `path` is a device or a pipe, writes to it instead of replacing it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
        let written = if is_special(path) {
            std::fs::write(path, json + "\n")
        } else {
            // The file that a link leads to is replaced, and not the link.
            let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
            let partial = partial(path);
            std::fs::write(&partial, json + "\n").and_then(|()| std::fs::rename(&partial, path))
        };
        written.with_context(|| format!("cannot write the report to {}", path.display()))
    }
}

/// Returns counts as text: one number if all are equal, otherwise the least and the greatest. Also returns
/// whether they differ.
fn range(counts: impl Iterator<Item = u64> + Clone) -> (String, bool) {
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    if least == most { (most.to_string(), false) } else { (format!("{least} to {most}"), true) }
}

/// Returns true if `path` exists and is neither a regular file nor a directory. An example is the device
/// `/dev/null`. Such a path must not be replaced by a file.
pub(crate) fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Returns the temporary path of a file that is renamed to `path` when it is complete. The path contains the
/// process id, because several processes may be started with the same flags.
pub(crate) fn partial(path: &Path) -> OsString {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    partial
}

#[cfg(test)]
mod tests {
    use pushpull_messages::message::ShardCounters;

    use super::*;

    fn report(metrics: &[(&str, f32)]) -> Report {
        let test_metrics: BTreeMap<String, f32> =
            metrics.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Report {
            model: "wide".into(),
            sync: "async".into(),
            ps: 1,
            workers: 2,
            steps: 10,
            updates_applied: 10,
            began: 0,
            stopped: None,
            unsaved: None,
            gradients: 10,
            skipped: 0,
            rollbacks: 0,
            seconds: 2.0,
            examples_per_second: 320.0,
            train_loss: 0.5,
            test_loss: 0.25,
            test_accuracy: test_metrics.get(ACCURACY).copied(),
            test_metrics,
            variables_crc32c: 7,
            shards: Vec::new(),
        }
    }

    fn table(report: &Report) -> Vec<String> {
        let mut text = Vec::new();
        report.write_table(&mut text).unwrap();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn all_metrics_are_in_the_table_and_the_json() {
        let report = report(&[("auc", 0.875), ("accuracy", 0.9785), ("recall_at_five", 0.5)]);
        let lines = table(&report);
        assert_eq!(
            lines[lines.len() - 4..],
            [
                "test loss      0.2500",
                "test accuracy  97.85 %",
                "test auc       0.8750",
                "test recall_at_five  0.5000"
            ]
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["test_metrics"]["auc"], 0.875);
        assert_eq!(json["test_metrics"]["recall_at_five"], 0.5);
        assert_eq!(json["test_accuracy"], json["test_metrics"]["accuracy"]);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        report(&[]).write(&link).unwrap();
        assert!(is_special(&link), "the link still leads to a device");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        report(&[]).write(&dir.path().join("file")).unwrap();
        assert!(!is_special(&dir.path().join("file")) && !is_special(&dir.path().join("none")));
    }

    #[test]
    fn a_model_without_metrics_has_no_line_for_them() {
        let report = report(&[]);
        assert_eq!(table(&report).last().unwrap(), "test loss      0.2500");
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["test_accuracy"].is_null());
        assert_eq!(json["test_metrics"], serde_json::json!({}));
    }

    #[test]
    fn verdicts_are_shown_where_there_are_any() {
        let mut report = report(&[]);
        assert_eq!(
            table(&report)[2..4],
            ["updates        10 of 10 applied", "time           2.00 s, 320 examples/s"]
        );
        let mut snapshot = ShardSnapshot::default();
        for staleness in [0, 1, 1, 1, 3] {
            snapshot.staleness.record(staleness);
            snapshot.steps_behind.record(1);
        }
        (snapshot.pushes.received, snapshot.pushes.held, snapshot.pushes.stale) = (7, 5, 2);
        (report.sync, report.skipped) = ("bounded:3".into(), 4);
        report.shards = vec![ShardReport::new("ps/0".into(), &snapshot)];
        let expected = [
            "updates        10 of 10 applied",
            "gradients      5 applied, 2 too late",
            "skipped        4 step(s) whose gradients were not finite",
            "staleness      0: 20 %, 1: 60 %, 2-3: 20 %, max 3",
            "steps behind   1: 100 %, max 1",
        ];
        assert_eq!(table(&report)[2..7], expected);
        let pushes = ShardCounters { received: 8, held: 5, stale: 3, ..Default::default() };
        report.shards.push(ShardReport::new("ps/1".into(), &ShardSnapshot { pushes, ..Default::default() }));
        assert_eq!(table(&report)[3], "gradients      5 applied, 2 to 3 too late, depending on the shard");
        report.sync = "async".into();
        assert!(!table(&report).iter().any(|line| line.starts_with("steps behind")));
        let json = serde_json::to_value(&report).unwrap();
        let shard = &json["shards"][0];
        assert_eq!((&shard["held"], &shard["stale"], &json["skipped"]), (&5.into(), &2.into(), &4.into()));
        assert_eq!(shard["staleness_histogram"][2], serde_json::json!({"from": 2, "to": 3, "count": 1}));
        assert_eq!(shard["steps_behind_max"], 1);
    }
}
