//! The settings of checkpoints, with their limits. Accesses no store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pushpull_messages::checkpoint::MEMORY;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::out_of_range::OutOfRange;

/// The largest value of [`CheckpointConfig::keep`].
pub const KEEP_MAX: usize = 10_000;
/// The largest value of [`CheckpointConfig::drain_timeout`].
pub const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The largest value of [`CheckpointConfig::last_save_timeout`].
pub const LAST_SAVE_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The settings of checkpoints: where they are stored, when they are made, which are kept, and which one the
/// job begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// The store: a directory that all hosts share, or a bucket, in the notation of
    /// [`Store::open`](pushpull_storage::Store::open).
    pub location: String,
    /// Makes a checkpoint at every multiple of this number of steps.
    pub save_steps: Option<u64>,
    /// Makes a checkpoint each time this interval has passed. Must be `None` if `save_steps` is set.
    pub save_secs: Option<Duration>,
    /// How many of the newest checkpoints to keep.
    pub keep: usize,
    /// In addition to the `keep` newest checkpoints, keeps one checkpoint per interval of this length,
    /// forever.
    pub keep_every: Option<Duration>,
    /// The choice of the checkpoint that the job begins with.
    pub restore: RestoreChoice,
    /// The time limit for ending the job after a signal. Workers have three fifths of this time to finish,
    /// and the rest is left for the last save. If the job fails without a signal, its last save has the
    /// whole time. If another job, such as an earlier run of this job, still saves at the same location when
    /// this job starts, this job waits for at most this time.
    pub drain_timeout: Duration,
    /// The time limit for the last save of a job that was trained to its end. If the save takes longer, the
    /// job ends without it.
    pub last_save_timeout: Duration,
}

/// How often the job keeps a checkpoint in the memory of the ps tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCheckpointConfig {
    /// At every multiple of this number of steps.
    Steps(u64),
    /// Each time this interval has passed.
    Time(Duration),
}

/// The error for a text that is not a [`MemoryCheckpointConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is neither a number of updates nor of seconds, expected a number of at least 1 such as 100, or 30s"
)]
pub struct MemoryCheckpointError(String);

/// The choice of the checkpoint that a job begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreChoice {
    /// The newest valid checkpoint, with a warning about broken newer ones; initial values if there is no
    /// checkpoint at all.
    #[default]
    LatestValid,
    /// The newest checkpoint; an error if it is broken, and initial values if there is none.
    Latest,
    /// No checkpoint: the job begins with initial values.
    None,
    /// The checkpoint of this step.
    Step(GlobalStep),
}

/// The error for a text that does not name a [`RestoreChoice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' does not name a checkpoint, expected latest-valid, latest, none, or the number of a step")]
pub struct RestoreChoiceError(String);

impl MemoryCheckpointConfig {
    /// Checks the setting.
    ///
    /// # Errors
    /// If it is out of range.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        match self {
            Self::Steps(0) => Err(OutOfRange::new("memory_checkpoint.steps", "at least 1", 0)),
            Self::Time(time) if *time < Duration::from_secs(1) => {
                Err(OutOfRange::new("memory_checkpoint.time", "at least 1 s", format!("{time:?}")))
            }
            Self::Steps(_) | Self::Time(_) => Ok(()),
        }
    }
}

impl fmt::Display for MemoryCheckpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => steps.fmt(f),
            Self::Time(time) => write!(f, "{}s", time.as_secs()),
        }
    }
}

impl FromStr for MemoryCheckpointConfig {
    type Err = MemoryCheckpointError;

    fn from_str(text: &str) -> Result<Self, MemoryCheckpointError> {
        let parsed = match text.strip_suffix('s') {
            Some(seconds) => seconds.parse().map(|seconds| Self::Time(Duration::from_secs(seconds))),
            None => text.parse().map(Self::Steps),
        };
        let wrong = || MemoryCheckpointError(text.chars().take(64).collect());
        parsed.ok().filter(|every| every.validate().is_ok()).ok_or_else(wrong)
    }
}

impl CheckpointConfig {
    /// Returns the default settings for this location. With these settings, the job saves its initial values
    /// if it does not resume from a checkpoint, and makes one more checkpoint at its end.
    pub fn new(location: impl Into<String>) -> Self {
        Self {
            location: location.into(),
            save_steps: None,
            save_secs: None,
            keep: 5,
            keep_every: None,
            restore: RestoreChoice::default(),
            drain_timeout: Duration::from_secs(25),
            last_save_timeout: Duration::from_secs(1800),
        }
    }

    /// Returns the settings of checkpoints in the memory of the ps tasks. The newest two are kept, because
    /// the newest one may have lost files together with a ps task.
    pub(crate) fn in_memory(every: MemoryCheckpointConfig) -> Self {
        let (save_steps, save_secs) = match every {
            MemoryCheckpointConfig::Steps(steps) => (Some(steps), None),
            MemoryCheckpointConfig::Time(time) => (None, Some(time)),
        };
        Self { save_steps, save_secs, keep: 2, ..Self::new(MEMORY) }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error that names the first setting that is out of range.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let wrong = |key, expected: String, got: String| Err(OutOfRange::new(key, expected, got));
        let short = |time: Option<Duration>| time.is_some_and(|time| time < Duration::from_secs(1));
        if self.location.is_empty() {
            return wrong("checkpoint.location", "a directory or a bucket".into(), "empty".into());
        }
        if self.save_steps == Some(0) {
            return wrong("checkpoint.save_steps", "at least 1".into(), "0".into());
        }
        if short(self.save_secs) {
            let got = format!("{:?}", self.save_secs.unwrap_or_default());
            return wrong("checkpoint.save_secs", "at least 1 s".into(), got);
        }
        if let (Some(steps), Some(_)) = (self.save_steps, self.save_secs) {
            let got = format!("given together with save_steps {steps}");
            return wrong("checkpoint.save_secs", "left out if save_steps is given".into(), got);
        }
        if !(1..=KEEP_MAX).contains(&self.keep) {
            return wrong("checkpoint.keep", format!("from 1 to {KEEP_MAX}"), self.keep.to_string());
        }
        if short(self.keep_every) {
            let got = format!("{:?}", self.keep_every.unwrap_or_default());
            return wrong("checkpoint.keep_every", "at least 1 s".into(), got);
        }
        if !(Duration::from_millis(1)..=DRAIN_TIMEOUT_MAX).contains(&self.drain_timeout) {
            let (expected, got) = (
                format!("from 1 ms to {} s", DRAIN_TIMEOUT_MAX.as_secs()),
                format!("{:?}", self.drain_timeout),
            );
            return wrong("checkpoint.drain_timeout", expected, got);
        }
        if !(Duration::from_millis(1)..=LAST_SAVE_TIMEOUT_MAX).contains(&self.last_save_timeout) {
            let expected = format!("from 1 ms to {} s", LAST_SAVE_TIMEOUT_MAX.as_secs());
            return wrong("checkpoint.last_save_timeout", expected, format!("{:?}", self.last_save_timeout));
        }
        Ok(())
    }
}

impl fmt::Display for RestoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LatestValid => f.write_str("latest-valid"),
            Self::Latest => f.write_str("latest"),
            Self::None => f.write_str("none"),
            Self::Step(step) => step.fmt(f),
        }
    }
}

impl FromStr for RestoreChoice {
    type Err = RestoreChoiceError;

    fn from_str(text: &str) -> Result<Self, RestoreChoiceError> {
        match text {
            "latest-valid" => Ok(Self::LatestValid),
            "latest" => Ok(Self::Latest),
            "none" => Ok(Self::None),
            step => match step.parse() {
                Ok(step) => Ok(Self::Step(GlobalStep(step))),
                Err(_) => Err(RestoreChoiceError(text.chars().take(64).collect())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_parsed_as_it_is_displayed() {
        for text in ["latest-valid", "latest", "none", "0", "1200"] {
            assert_eq!(text.parse::<RestoreChoice>().unwrap().to_string(), text);
        }
        for text in ["", "newest", "-1", "step-5"] {
            let error = text.parse::<RestoreChoice>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' does not name a checkpoint")), "{error}");
        }
    }

    #[test]
    fn an_interval_in_memory_is_parsed_as_it_is_displayed() {
        for text in ["1", "100", "1s", "30s"] {
            assert_eq!(text.parse::<MemoryCheckpointConfig>().unwrap().to_string(), text);
        }
        for text in ["", "0", "0s", "s", "-1", "1.5", "1m", "18446744073709551616"] {
            let error = text.parse::<MemoryCheckpointConfig>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}' is neither a number of updates")), "{error}");
        }
    }

    #[test]
    fn a_setting_out_of_range_is_named() {
        let usual = CheckpointConfig::new("here");
        let second = Duration::from_secs(1);
        assert!(usual.validate().is_ok());
        let often = CheckpointConfig { save_secs: Some(second), keep_every: Some(second), ..usual.clone() };
        assert!(often.validate().is_ok());
        for (wrong, key) in [
            (CheckpointConfig::new(""), "location must be a directory or a bucket"),
            (CheckpointConfig { save_steps: Some(0), ..usual.clone() }, "save_steps must be at least 1"),
            (
                CheckpointConfig { save_secs: Some(second / 2), ..usual.clone() },
                "save_secs must be at least 1 s",
            ),
            (CheckpointConfig { save_steps: Some(9), ..often.clone() }, "save_secs must be left out"),
            (CheckpointConfig { keep: 0, ..usual.clone() }, "keep must be from 1 to 10000, but is 0"),
            (
                CheckpointConfig { keep_every: Some(second / 2), ..usual.clone() },
                "keep_every must be at least 1 s",
            ),
            (
                CheckpointConfig { drain_timeout: Duration::ZERO, ..usual.clone() },
                "drain_timeout must be from 1 ms",
            ),
            (
                CheckpointConfig { last_save_timeout: Duration::MAX, ..usual },
                "last_save_timeout must be from 1 ms",
            ),
        ] {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("checkpoint.{key}")), "{error}");
        }
    }
}
