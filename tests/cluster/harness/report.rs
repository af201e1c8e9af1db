//! Reads reports as other programs do: as JSON with names that must not change.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pushpull_messages::sync::SyncSpec;
use serde_json::Value;

/// The keys that other programs rely on.
const KEYS: [&str; 19] = [
    "examples_per_second",
    "steps",
    "began",
    "stopped",
    "unsaved",
    "seconds",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "test_metrics",
    "model",
    "sync",
    "ps",
    "workers",
    "updates_applied",
    "gradients",
    "skipped",
    "rollbacks",
    "variables_crc32c",
];

/// A parsed report.
pub(crate) struct Report(Value);

impl Report {
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(serde_json::from_str(&text).expect("a report is JSON"))
    }

    #[track_caller]
    pub(crate) fn count(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or_else(|| panic!("{key} is no count in {:#}", self.0))
    }

    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.0[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {:#}", self.0))
    }

    #[track_caller]
    pub(crate) fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {:#}", self.0))
    }

    /// Returns a metric of the test set.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.0["test_metrics"][name].as_f64().unwrap_or_else(|| panic!("no metric {name} in {:#}", self.0))
    }

    pub(crate) fn variables_crc32c(&self) -> u64 {
        self.count("variables_crc32c")
    }

    pub(crate) fn shards(&self) -> &[Value] {
        self.0["shards"].as_array().expect("shards is a list")
    }

    /// Checks the invariants of a job that ended without an error: the keys of the report, V2, V3 and S2, and
    /// that the training was timed. The job made all `steps`, unless it was stopped.
    #[track_caller]
    pub(crate) fn holds(&self, steps: u64, ps: u64, workers: u64) {
        self.holds_but_for_times(steps, ps, workers);
        // A job that had nothing left to train has no speed.
        let timed = self.number("seconds") > 0.0 && self.number("examples_per_second") > 0.0;
        assert!(timed || self.count("began") == self.count("updates_applied"), "no speed in {:#}", self.0);
    }

    /// Checks the same, except the times. A chief that was started again times only what it has seen of the
    /// training, perhaps nothing.
    #[track_caller]
    pub(crate) fn holds_but_for_times(&self, steps: u64, ps: u64, workers: u64) {
        let keys: BTreeSet<&str> =
            self.0.as_object().expect("a report is an object").keys().map(String::as_str).collect();
        let expected: BTreeSet<&str> = KEYS.into_iter().chain(["shards"]).collect();
        assert_eq!(keys, expected);
        assert!(["mlp", "cnn"].contains(&self.text("model")));
        assert_eq!((self.count("ps"), self.count("workers")), (ps, workers));
        assert_eq!(self.count("steps"), steps);
        let requested = steps;
        let steps = self.count("updates_applied");
        match self.0["stopped"].is_null() {
            true => assert_eq!(steps, requested),
            false => assert!(steps < requested, "{steps} of {requested}, although it was stopped"),
        }
        assert!(self.variables_crc32c() <= u64::from(u32::MAX));
        let began = self.count("began");
        // A job that had nothing left to train has no training loss.
        let trained = began < steps;
        for loss in ["train_loss", "test_loss"].into_iter().skip(usize::from(!trained)) {
            // The loss of a random guess among ten classes is ln 10 = 2.3.
            assert!((0.0..5.0).contains(&self.number(loss)), "{loss} in {:#}", self.0);
        }
        assert!((0.0..=1.0).contains(&self.number("test_accuracy")));
        assert_eq!(self.0["test_metrics"]["accuracy"], self.0["test_accuracy"]);
        let sync: SyncSpec = self.text("sync").parse().expect("a policy");
        let first = |key: &str| self.shards()[0][key].as_u64().expect("a count");
        assert_eq!(self.count("gradients"), first("applied") + first("held"));
        for shard in self.shards() {
            let count = |key: &str| shard[key].as_u64().unwrap_or_else(|| panic!("{key} in {shard:#}"));
            let sum: u64 =
                ["applied", "held", "stale", "stopped", "duplicate", "refused"].into_iter().map(count).sum();
            assert_eq!(count("received"), sum, "V2 in {shard:#}");
            assert_eq!(count("version"), steps, "V3 in {shard:#}");
            match sync {
                SyncSpec::Sync { .. } => {
                    assert!(count("applied") == 0 && count("held") >= steps - began, "V3 in {shard:#}");
                }
                _ => assert_eq!((count("applied"), count("held")), (steps - began, 0), "V3 in {shard:#}"),
            }
            if let SyncSpec::Bounded { staleness } = sync {
                assert!(count("steps_behind_max") <= u64::from(staleness), "S2 in {shard:#}");
            }
            let histogram = shard["staleness_histogram"].as_array().expect("a list of buckets");
            let counted: u64 = histogram.iter().filter_map(|bucket| bucket["count"].as_u64()).sum();
            assert_eq!(
                counted,
                count("applied") + count("held"),
                "every gradient has a staleness in {shard:#}"
            );
        }
    }
}
