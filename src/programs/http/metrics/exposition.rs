//! Collects the samples of one scrape in families, and writes them as text. All families are defined in the
//! table `FAMILIES`, except those of the process metrics.
//!
//! Wanted properties: (A) buckets are cumulative, and the last bucket equals the count; (B) no two samples
//! of a family have the same labels; (C) a family without samples is left out.

use std::collections::BTreeMap;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use pushpull_messages::id::TaskId;
use pushpull_messages::message::StalenessHistogram;
use pushpull_messages::observe::TimeHistogram;

use super::families::{FAMILIES, Kind};

/// The families of one scrape.
pub(super) struct Exposition(BTreeMap<&'static str, (Kind, MetricFamily)>);

/// The samples of one task, or of the process.
pub(super) struct Samples<'a> {
    families: &'a mut BTreeMap<&'static str, (Kind, MetricFamily)>,
    /// `None` for samples of the process.
    task: Option<TaskId>,
}

/// The labels of a sample, without the labels that name the task.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

impl Exposition {
    pub(super) fn new() -> Self {
        Self(FAMILIES.iter().map(|&(name, kind, help)| (name, (kind, empty(name, kind, help)))).collect())
    }

    /// Returns the collector for the samples of a task.
    pub(super) const fn of(&mut self, task: TaskId) -> Samples<'_> {
        Samples { families: &mut self.0, task: Some(task) }
    }

    /// Returns the collector for the samples of the process. They name no task.
    pub(super) const fn of_process(&mut self) -> Samples<'_> {
        Samples { families: &mut self.0, task: None }
    }

    /// Returns the text that Prometheus reads. It also contains the operating system's metrics of this
    /// process.
    pub(super) fn text(self) -> String {
        let mut families = self.families();
        families.extend(process());
        TextEncoder::new().encode_to_string(&families).expect("every family has a name and samples")
    }

    pub(super) fn families(self) -> Vec<MetricFamily> {
        let families = self.0.into_values().map(|(_, family)| family);
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

/// Returns a family without samples.
fn empty(name: &str, kind: Kind, help: &str) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(match kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    family
}

/// Sets the value of a counter.
fn set_counter(metric: &mut Metric, value: f64) {
    let mut counter = Counter::default();
    counter.set_value(value);
    metric.set_counter(counter);
}

/// Sets the value of a gauge.
fn set_gauge(metric: &mut Metric, value: f64) {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    metric.set_gauge(gauge);
}

#[cfg(target_os = "linux")]
fn process() -> Vec<MetricFamily> {
    let family = |(name, kind, help, value)| {
        let mut family = empty(name, kind, help);
        let mut metric = Metric::default();
        let set = if kind == Kind::Counter { set_counter } else { set_gauge };
        set(&mut metric, value);
        family.mut_metric().push(metric);
        family
    };
    super::process::readings().into_iter().map(family).collect()
}

#[cfg(not(target_os = "linux"))]
const fn process() -> Vec<MetricFamily> {
    Vec::new()
}

impl Samples<'_> {
    fn put(&mut self, name: &str, kind: Kind, labels: Labels<'_>, fill: impl FnOnce(&mut Metric)) {
        let pair = |name: &str, value: &str| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let own =
            self.task.map(|task| [pair("job", task.job.as_str()), pair("task", &task.index.to_string())]);
        let labels = labels.iter().map(|(name, value)| pair(name, value));
        let labels = own.into_iter().flatten().chain(labels).collect();
        let (listed, family) = self.families.get_mut(name).expect("every family is in the table");
        assert_eq!(*listed, kind, "{name}");
        let mut metric = Metric::from_label(labels);
        fill(&mut metric);
        family.mut_metric().push(metric);
    }

    /// Adds a sample of a number that only increases.
    pub(super) fn counter(&mut self, name: &str, labels: Labels<'_>, value: u64) {
        self.put(name, Kind::Counter, labels, |metric| set_counter(metric, value as f64));
    }

    /// Adds a sample of a number that goes up and down.
    pub(super) fn gauge(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.put(name, Kind::Gauge, labels, |metric| set_gauge(metric, value));
    }

    /// Adds one sample for each state in `all`. The sample is 1 for the state that `one` names, and 0 for
    /// every other state.
    pub(super) fn one_of(&mut self, name: &str, label: &'static str, all: &[&str], one: &str) {
        for state in all {
            self.gauge(name, &[(label, state)], f64::from(u8::from(*state == one)));
        }
    }

    /// Adds a histogram of times, in seconds.
    pub(super) fn times(&mut self, name: &str, labels: Labels<'_>, times: &TimeHistogram) {
        let bounds = TimeHistogram::BOUNDS_US.iter().map(|&us| us as f64 / 1e6);
        self.histogram(name, labels, bounds, times.buckets.as_slice(), times.sum_us as f64 / 1e6);
    }

    /// Adds a histogram of the staleness of gradients.
    pub(super) fn staleness(&mut self, name: &str, labels: Labels<'_>, staleness: &StalenessHistogram) {
        let bounds = (0..StalenessHistogram::BUCKETS - 1).map(|bucket| ((1u64 << bucket) - 1) as f64);
        self.histogram(name, labels, bounds, staleness.buckets.as_slice(), staleness.sum as f64);
    }

    /// Adds a histogram. `bounds` are the upper bounds of the buckets. `counts` has one count for each
    /// bound, and one more for all values above the last bound.
    fn histogram(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let mut count = 0u64;
        let cumulative = counts.iter().map(|&inside| {
            count = count.saturating_add(inside);
            count
        });
        let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(cumulative).collect();
        let bucket = |&(bound, count): &(f64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        };
        let (_, count) = *buckets.last().expect("there is at least the last one");
        // The bucket with the infinite bound is left out, because the encoder adds it.
        let finite = buckets[..buckets.len() - 1].iter().map(bucket).collect();
        self.put(name, Kind::Histogram, labels, |metric| {
            let mut histogram = Histogram::default();
            histogram.set_bucket(finite);
            histogram.set_sample_count(count);
            histogram.set_sample_sum(sum);
            metric.set_histogram(histogram);
        });
    }
}
