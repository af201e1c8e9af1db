//! Computes the plotted metrics of a job for the interval between two snapshots. Writes no file. Wanted
//! properties: (A) the counts of the intervals add up to the counts of the shards; (B) the number of values
//! of a histogram is the sum of its buckets' counts, all values are between its minimum and its maximum, and
//! the limits of its buckets increase; (C) only finite values are plotted; (D) arbitrary counts are
//! accepted, even decreasing ones, although the counts of a correct shard never decrease.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::message::{Evaluation, ShardCounters, ShardSnapshot, StalenessHistogram};
use pushpull_messages::optimizer::UpdateSpec;
use pushpull_messages::summary::{HistogramSpec, SummarySpec, SummaryValue};

use crate::monitor::TrainingSnapshot;

/// The counts of all shards at one time.
#[derive(Clone, Debug, Default)]
struct Totals {
    /// The number of gradients that the first shard has accepted. Every gradient goes to all shards.
    gradients: u64,
    pushes: Pushes,
    staleness: StalenessHistogram,
    steps_behind: StalenessHistogram,
}

/// The number of pushes that received each verdict.
type Pushes = [u64; 6];

const VERDICTS: [&str; 6] = ["applied", "held", "stale", "stopped", "duplicate", "refused"];

fn pushes(counters: &ShardCounters) -> Pushes {
    let ShardCounters { received: _, applied, held, stale, stopped, duplicate, refused } = *counters;
    [applied, held, stale, stopped, duplicate, refused]
}

impl Totals {
    fn new(snapshot: &TrainingSnapshot) -> Self {
        let mut totals = Self::default();
        for (position, (_, shard)) in snapshot.shards.iter().enumerate() {
            let ShardSnapshot { pushes: counters, staleness, steps_behind, .. } = shard;
            if position == 0 {
                totals.gradients = counters.applied.saturating_add(counters.held);
            }
            for (sum, own) in totals.pushes.iter_mut().zip(pushes(counters)) {
                *sum = sum.saturating_add(own);
            }
            add(&mut totals.staleness, staleness);
            add(&mut totals.steps_behind, steps_behind);
        }
        totals
    }
}

/// The shortest interval for which a rate is computed, in seconds.
const RATE_SECONDS_MIN: f64 = 0.1;

/// A collector of the metrics of one job.
#[derive(Debug)]
pub(crate) struct Collector {
    update: UpdateSpec,
    last_step: GlobalStep,
    /// The last known factor by which hooks have multiplied the learning rate.
    rate_factor: f32,
    /// The number of examples from which a gradient is computed.
    step_examples: u64,
    /// The time, the step and the counts of the last snapshot that had shards.
    before: (Duration, GlobalStep, Totals),
    /// Whether each verdict has occurred. A verdict is plotted only after its first occurrence.
    seen: [bool; VERDICTS.len()],
    /// The gradient norm that each worker has reported last, if it has reported one since the last summary.
    /// The norm is kept because the worker may report no other one before the next summary.
    gradient_norms: BTreeMap<u32, f32>,
}

impl Collector {
    /// Creates the collector of a job whose training begins at `step`, with all counts at 0.
    pub(crate) fn new(job: &JobSpec, step: GlobalStep) -> Self {
        Self {
            update: job.update(),
            last_step: job.last_step,
            rate_factor: 1.0,
            step_examples: job.step_examples(),
            before: (Duration::ZERO, step, Totals::default()),
            seen: [false; VERDICTS.len()],
            gradient_norms: BTreeMap::new(),
        }
    }

    /// Records the gradient norms that workers have reported in `snapshot`, for the next summary.
    pub(crate) fn note(&mut self, snapshot: &TrainingSnapshot) {
        let norms =
            snapshot.reports.iter().filter_map(|(&worker, report)| Some((worker, report.gradient_norm?)));
        self.gradient_norms.extend(norms);
    }

    /// Returns the summaries of this snapshot, and of the interval since the last snapshot that had shards.
    pub(crate) fn collect(&mut self, snapshot: &TrainingSnapshot) -> Vec<SummarySpec> {
        let step = snapshot.step();
        self.rate_factor = snapshot.learning_rate_factor().unwrap_or(self.rate_factor);
        let mut summaries = Vec::new();
        let mut plot = |tag: &str, value: f64| {
            if value.is_finite() {
                summaries.push(SummarySpec::scalar(tag, step, value as f32));
            }
        };
        plot("train/loss", snapshot.progress.loss.map_or(f64::NAN, f64::from));
        for metric in &snapshot.progress.metrics {
            plot(&metric_tag("train", &TRAIN_TAGS, &metric.name), metric.value.into());
        }
        plot(
            "train/learning_rate",
            (self.update.learning_rate(step.0, self.last_step.0) * self.rate_factor).into(),
        );
        let norms = std::mem::take(&mut self.gradient_norms);
        plot("train/gradient_norm", mean(norms.values().map(|&norm| f64::from(norm))));
        plot("train/workers", snapshot.progress.workers as f64);
        if snapshot.shards.is_empty() {
            return summaries;
        }
        let versions = snapshot.shards.iter().map(|(_, shard)| shard.version.0);
        let spread = versions.clone().max().unwrap_or(0) - versions.min().unwrap_or(0);
        plot("shards/version_spread", spread as f64);
        plot("shards/waiting", snapshot.shards.iter().map(|(_, shard)| f64::from(shard.waiting)).sum());
        let now = Totals::new(snapshot);
        let (before_at, before_step, before) = &self.before;
        let seconds = snapshot.at.saturating_sub(*before_at).as_secs_f64();
        if seconds >= RATE_SECONDS_MIN {
            plot("train/steps_per_second", step.0.saturating_sub(before_step.0) as f64 / seconds);
            let gradients = since(now.gradients, before.gradients) as f64;
            plot("train/examples_per_second", gradients * self.step_examples as f64 / seconds);
        }
        let verdicts = now.pushes.iter().zip(&before.pushes).zip(&mut self.seen).zip(VERDICTS);
        for (((&now, &before), seen), verdict) in verdicts {
            *seen |= now > 0;
            if *seen {
                plot(&format!("pushes/{verdict}"), since(now, before) as f64);
            }
        }
        let staleness = difference(&now.staleness, &before.staleness);
        let behind = difference(&now.steps_behind, &before.steps_behind);
        for (tag, interval) in [("staleness", &staleness), ("steps_behind", &behind)] {
            if interval.count() > 0 {
                plot(&format!("{tag}/mean"), interval.sum as f64 / interval.count() as f64);
                plot(&format!("{tag}/max"), interval.max as f64);
            }
        }
        for (tag, interval) in [("staleness", staleness), ("steps_behind", behind)] {
            if interval.count() > 0 {
                let value = SummaryValue::Histogram(distribution(&interval));
                summaries.push(SummarySpec { tag: tag.into(), step, value });
            }
        }
        self.before = (snapshot.at, step, now);
        summaries
    }
}

/// The tags in the group `train` that do not belong to metrics of the graph.
const TRAIN_TAGS: [&str; 6] =
    ["loss", "learning_rate", "gradient_norm", "workers", "steps_per_second", "examples_per_second"];

/// Returns the tag of a metric in a group of plots. `taken` lists the tags of the other summaries of the
/// group. Metrics with different names have different tags, and no metric has the tag of another summary.
fn metric_tag(group: &str, taken: &[&str], name: &str) -> String {
    let renamed = taken.contains(&name) || name.starts_with("metric/");
    if renamed { format!("{group}/metric/{name}") } else { format!("{group}/{name}") }
}

/// Returns the summaries of an evaluation.
pub fn evaluated(step: GlobalStep, evaluation: &Evaluation) -> Vec<SummarySpec> {
    let loss = [("eval/loss".to_owned(), evaluation.loss)];
    let metrics = evaluation.metrics.iter();
    loss.into_iter()
        .chain(metrics.map(|metric| (metric_tag("eval", &["loss"], &metric.name), metric.value)))
        .filter(|(_, value)| value.is_finite())
        .map(|(tag, value)| SummarySpec::scalar(tag, step, value))
        .collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// Returns the increase of a count between two times, or the new count if it has decreased.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn add(sum: &mut StalenessHistogram, other: &StalenessHistogram) {
    for (sum, own) in sum.buckets.iter_mut().zip(other.buckets) {
        *sum = sum.saturating_add(own);
    }
    sum.max = sum.max.max(other.max);
    sum.sum = sum.sum.saturating_add(other.sum);
}

/// Returns the histogram of the values that were recorded between two times, or `now` if a count has
/// decreased. The maximum is exact if it exceeds all earlier values; otherwise it is an upper bound, at most
/// the upper end of the last bucket that is not empty.
fn difference(now: &StalenessHistogram, before: &StalenessHistogram) -> StalenessHistogram {
    let back = now.buckets.iter().zip(&before.buckets).any(|(now, before)| now < before);
    if back || now.sum < before.sum {
        return *now;
    }
    let mut buckets = now.buckets;
    buckets.iter_mut().zip(&before.buckets).for_each(|(now, before)| *now -= before);
    let last = buckets.iter().rposition(|&count| count > 0).unwrap_or(0);
    let max = if now.max > before.max { now.max } else { now.max.min(greatest(last).unwrap_or(now.max)) };
    StalenessHistogram { buckets, max, sum: now.sum - before.sum }
}

/// Returns the least staleness of a bucket.
const fn least(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { 1 << (bucket - 1) }
}

/// Returns the greatest staleness of a bucket, or `None` for the last bucket, which has no upper end.
const fn greatest(bucket: usize) -> Option<u64> {
    if bucket == StalenessHistogram::BUCKETS - 1 { None } else { Some((1 << bucket) - 1) }
}

/// Returns a histogram in the form that is plotted, without the empty buckets at its beginning and its end.
/// The sum of squares is computed from the middles of the buckets.
fn distribution(histogram: &StalenessHistogram) -> HistogramSpec {
    let used = |count: &u64| *count > 0;
    let first = histogram.buckets.iter().position(used).unwrap_or(0);
    let last = histogram.buckets.iter().rposition(used).unwrap_or(0);
    let mut spec = HistogramSpec {
        min: least(first) as f64,
        max: (histogram.max as f64).max(least(last) as f64),
        count: histogram.count() as f64,
        sum: histogram.sum as f64,
        ..Default::default()
    };
    for bucket in first..=last {
        let (count, least) = (histogram.buckets[bucket] as f64, least(bucket) as f64);
        let greatest = greatest(bucket).map_or(spec.max, |greatest| (greatest as f64).min(spec.max));
        let middle = (least + greatest) / 2.0;
        spec.sum_squares += count * middle * middle;
        // The limit is between two whole numbers, so that no value is equal to it.
        spec.buckets.push((greatest + 0.5, count));
    }
    spec
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use pushpull_messages::id::{ShardId, Version};
    use pushpull_messages::message::MetricValue;

    use super::*;
    use crate::job::tests::job;
    use crate::monitor::WorkerReport;
    use crate::report::JobProgress;

    /// The pushes that a shard answers between two snapshots: their number for each verdict except
    /// `applied`, and the staleness of each applied push.
    type Interval = ([u8; 5], Vec<u16>);

    fn interval() -> impl Strategy<Value = Interval> {
        (any::<[u8; 5]>(), prop::collection::vec(prop_oneof![0u16..4, any::<u16>()], 0..20))
    }

    fn count(shard: &mut ShardSnapshot, (others, applied): &Interval) {
        let ShardCounters { held, stale, stopped, duplicate, refused, .. } = &mut shard.pushes;
        for (sum, &more) in [held, stale, stopped, duplicate, refused].into_iter().zip(others) {
            *sum += u64::from(more);
        }
        shard.pushes.applied += applied.len() as u64;
        shard.version.0 += applied.len() as u64;
        for &staleness in applied {
            shard.staleness.record(staleness.into());
        }
    }

    fn snapshot(at: u64, shards: &[ShardSnapshot]) -> TrainingSnapshot {
        let shards = shards.iter().enumerate().map(|(ps, shard)| (ShardId::new(ps as u32, 0), shard.clone()));
        TrainingSnapshot { at: Duration::from_secs(at), shards: shards.collect(), ..Default::default() }
    }

    fn scalar(summaries: &[SummarySpec], tag: &str) -> Option<f32> {
        summaries.iter().find_map(|summary| match summary.value {
            SummaryValue::Scalar(value) if summary.tag == tag => Some(value),
            _ => None,
        })
    }

    fn histogram<'a>(summaries: &'a [SummarySpec], tag: &str) -> Option<&'a HistogramSpec> {
        summaries.iter().find_map(|summary| match &summary.value {
            SummaryValue::Histogram(histogram) if summary.tag == tag => Some(histogram),
            _ => None,
        })
    }

    proptest! {
        /// Checks that the counts of the intervals add up (A), that each histogram agrees with its values
        /// (B), and that only finite values are plotted (C), for two shards that answer random pushes
        /// between snapshots.
        #[test]
        fn intervals_add_up_and_every_histogram_is_one(
            intervals in prop::collection::vec((interval(), interval()), 1..20),
        ) {
            let mut collector = Collector::new(&job(), GlobalStep(0));
            let mut shards = vec![ShardSnapshot::default(), ShardSnapshot::default()];
            collector.collect(&snapshot(0, &shards));
            let mut wanted = [0u64; 6];
            let (mut sums, mut gradients) = ([0.0f64; 6], (0u64, 0.0));
            for (at, (first, second)) in intervals.iter().enumerate() {
                let both = [first, second];
                both.iter().zip(&mut shards).for_each(|(interval, shard)| count(shard, interval));
                for (others, applied) in both {
                    let own = [vec![applied.len() as u64], others.map(u64::from).into()].concat();
                    wanted.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                }
                let summaries = collector.collect(&snapshot(at as u64 + 1, &shards));
                for summary in &summaries {
                    prop_assert!(summary.validate().is_ok(), "{:?}", summary);
                }
                for (sum, verdict) in sums.iter_mut().zip(VERDICTS) {
                    *sum += scalar(&summaries, &format!("pushes/{verdict}")).map_or(0.0, f64::from);
                }
                let stale: Vec<u64> = first.1.iter().chain(&second.1).map(|&stale| stale.into()).collect();
                gradients.0 += (first.1.len() + usize::from(first.0[0])) as u64;
                gradients.1 += f64::from(scalar(&summaries, "train/examples_per_second").unwrap());
                let Some(histogram) = histogram(&summaries, "staleness") else {
                    prop_assert!(stale.is_empty());
                    continue;
                };
                let in_buckets: f64 = histogram.buckets.iter().map(|&(_, count)| count).sum();
                prop_assert_eq!((histogram.count, in_buckets), (stale.len() as f64, stale.len() as f64));
                prop_assert_eq!(histogram.sum, stale.iter().sum::<u64>() as f64);
                let (least, greatest) = (*stale.iter().min().unwrap(), *stale.iter().max().unwrap());
                prop_assert!(histogram.min <= least as f64 && greatest as f64 <= histogram.max);
                let max = scalar(&summaries, "staleness/max").unwrap();
                prop_assert!(greatest as f32 <= max);
                // The last bucket has no upper end.
                prop_assert!(greatest >= 1 << 14 || max < (2 * greatest).max(1) as f32);
                // Every value of a bucket is above the limit before it.
                let mut below = 0.0;
                for &(limit, count) in &histogram.buckets {
                    let within = stale.iter().filter(|&&own| below <= own as f64 && (own as f64) < limit).count();
                    prop_assert_eq!(within as f64, count, "{:?} {:?}", histogram, stale);
                    below = limit;
                }
            }
            prop_assert_eq!(sums.map(|sum| sum as u64), wanted);
            prop_assert_eq!(gradients.0 as f64 * f64::from(job().batch_size), gradients.1);
        }

        /// Checks that only finite values are plotted (C) and that arbitrary counts are accepted (D): each
        /// snapshot has random counts, which may be lower than the previous ones.
        #[test]
        fn counts_of_any_kind_are_plotted_or_left_out(
            shards in prop::collection::vec((any::<[u64; 6]>(), any::<[u64; 16]>(), any::<u64>(), any::<u64>()), 1..6),
            times in prop::collection::vec(any::<u32>(), 6),
        ) {
            let mut collector = Collector::new(&job(), GlobalStep(0));
            for ((counts, buckets, max, sum), at) in shards.into_iter().zip(times) {
                let [applied, held, stale, stopped, duplicate, refused] = counts;
                let shard = ShardSnapshot {
                    version: Version(max),
                    pushes: ShardCounters { received: sum, applied, held, stale, stopped, duplicate, refused },
                    staleness: StalenessHistogram { buckets: buckets.into(), max, sum },
                    ..Default::default()
                };
                for summary in collector.collect(&snapshot(at.into(), &[shard.clone(), shard])) {
                    prop_assert!(summary.validate().is_ok(), "{:?}", summary);
                    let finite = !matches!(summary.value, SummaryValue::Scalar(value) if !value.is_finite());
                    prop_assert!(finite, "{:?}", summary);
                }
            }
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_snapshot() {
        let mut collector = Collector::new(&job(), GlobalStep(0));
        let shard = |version| ShardSnapshot { version: Version(version), ..Default::default() };
        collector.collect(&snapshot(2, &[shard(0), shard(0)]));
        let norm = |norm| WorkerReport { gradient_norm: Some(norm), ..Default::default() };
        // A worker that has measured nothing since then keeps its last value.
        collector.note(&TrainingSnapshot {
            reports: [(0, norm(1.0)), (1, norm(2.0))].into(),
            ..Default::default()
        });
        let mut now = snapshot(4, &[shard(7), shard(9)]);
        let metric = |name: &str, value| MetricValue { name: name.into(), value };
        let metrics = vec![metric("accuracy", 0.75), metric("loss", 0.25)];
        now.progress = JobProgress { loss: Some(0.5), metrics, workers: 2, ..Default::default() };
        now.reports = [(1, norm(4.0))].into();
        collector.note(&now);
        let summaries = collector.collect(&now);
        for (tag, value) in [
            ("train/loss", Some(0.5)),
            ("train/accuracy", Some(0.75)),
            ("train/metric/loss", Some(0.25)),
            ("train/learning_rate", Some(0.1)),
            ("train/gradient_norm", Some(2.5)),
            ("train/workers", Some(2.0)),
            ("train/steps_per_second", Some(4.5)),
            ("shards/version_spread", Some(2.0)),
            ("pushes/applied", None),
            ("staleness/mean", None),
        ] {
            assert_eq!(scalar(&summaries, tag), value, "{tag}");
        }
        assert!(summaries.iter().all(|summary| summary.step == GlobalStep(9)));
        // If the shards do not reply, the loss is still plotted.
        let silent = TrainingSnapshot { progress: now.progress, at: now.at, ..Default::default() };
        let tags: Vec<String> = collector.collect(&silent).into_iter().map(|summary| summary.tag).collect();
        let expected =
            ["train/loss", "train/accuracy", "train/metric/loss", "train/learning_rate", "train/workers"];
        assert_eq!(tags, expected);
    }

    #[test]
    fn an_evaluation_has_its_loss_and_metrics() {
        let metrics = vec![
            MetricValue { name: "accuracy".into(), value: 0.75 },
            MetricValue { name: "auc".into(), value: f32::NAN },
        ];
        let evaluation = Evaluation { loss: 0.25, metrics, examples: 4, variables_crc32c: 1 };
        let summaries = evaluated(GlobalStep(3), &evaluation);
        assert_eq!(summaries.len(), 2);
        assert_eq!(scalar(&summaries, "eval/loss"), Some(0.25));
        assert_eq!(scalar(&summaries, "eval/accuracy"), Some(0.75));
    }

    #[test]
    fn metrics_of_any_names_have_tags_of_their_own() {
        let names =
            ["loss", "metric/loss", "metric/metric/loss", "workers", "metric/workers", "metric/", "x"];
        let metrics: Vec<_> = (2..)
            .zip(names)
            .map(|(value, name)| MetricValue { name: name.into(), value: value as f32 })
            .collect();
        let progress = JobProgress { loss: Some(1.0), metrics: metrics.clone(), ..Default::default() };
        let trained = Collector::new(&job(), GlobalStep(0))
            .collect(&TrainingSnapshot { progress, ..Default::default() });
        let evaluation = Evaluation { loss: 1.0, metrics, examples: 1, variables_crc32c: 1 };
        // The training also has a learning rate and a number of workers.
        for (summaries, count) in
            [(trained, 3 + names.len()), (evaluated(GlobalStep(1), &evaluation), 1 + names.len())]
        {
            let tags: BTreeSet<_> = summaries.iter().map(|summary| summary.tag.clone()).collect();
            assert_eq!((tags.len(), summaries.len()), (count, count), "{tags:?}");
        }
    }
}
