//! The flags of the task that hosts the chief: checkpoints, resuming, plots, the timeline, and early
//! stopping.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pushpull_chief::checkpoint::{CheckpointConfig, MemoryCheckpointConfig, RestoreChoice, WarmStartConfig};
use pushpull_chief::hooks::{Better, EarlyStopping, ReduceOnPlateau, SummaryEvery, TRAIN_LOSS, TraceFile};
use pushpull_chief::tensorboard::SummaryConfig;
use pushpull_chief::{ChiefConfig, Hook, MakeHook};
use pushpull_messages::id::GlobalStep;
use pushpull_messages::job::JobSpec;
use pushpull_messages::observe::TraceSpec;
use pushpull_storage::{EVALUATIONS, EvaluationRecord};

use super::paths::{absolute, check_writable, located, summaries_below};
use super::plots::plotter;
use crate::programs::exit::Failure;

/// The default time between two checkpoints, in seconds.
const SAVE_SECS: u64 = 600;
/// The default of `--trace-every`: one in this many steps of each worker is recorded in the timeline. With
/// this default the cost of the timeline is negligible.
const TRACE_EVERY: u64 = 100;

/// The metric that every evaluation has.
const LOSS: &str = "loss";
/// The maximum number of names of metrics that an error lists.
const METRICS_SHOWN: usize = 32;

/// The flags of checkpoints, summaries, early stopping and the timeline.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Checkpoints and summaries (of the chief)")]
pub(super) struct SavingArgs {
    /// Directory of checkpoints, from which a restarted job resumes: a path that all hosts share, file://,
    /// s3:// or gs://
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<String>,
    /// Updates between two checkpoints
    #[arg(long, value_name = "N", requires = "checkpoint_dir", conflicts_with = "save_secs", value_parser = clap::value_parser!(u64).range(1..))]
    save_steps: Option<u64>,
    /// Seconds between two checkpoints [default: 600]
    #[arg(long, value_name = "N", requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    save_secs: Option<u64>,
    /// How many of the newest checkpoints to keep [default: 5]
    #[arg(long, value_name = "N", requires = "checkpoint_dir", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    keep_checkpoints: Option<u16>,
    /// Also keep one checkpoint for every X hours, and never delete it
    #[arg(long, value_name = "X", requires = "checkpoint_dir", value_parser = hours)]
    keep_every_hours: Option<Duration>,
    /// Checkpoint to resume from: latest-valid, latest, none or a step [default: latest-valid]
    #[arg(long, value_name = "WHICH", requires = "checkpoint_dir")]
    restore: Option<RestoreChoice>,
    /// Time for saving and stopping after a signal, in seconds [default: 25]
    #[arg(long, value_name = "N", requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(5..=3600))]
    drain_timeout_s: Option<u64>,
    /// Time for the last save of a trained job, in seconds; after this time, the job ends without that save
    /// [default: 1800]
    #[arg(long, value_name = "N", requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(5..=86_400))]
    last_save_timeout_s: Option<u64>,
    /// Keep a checkpoint in the memory of the ps tasks every N updates, or every N seconds with Ns, such as
    /// 30s; the job then survives the loss of one ps task without a directory. Needs 2 ps tasks
    #[arg(long, value_name = "N[s]")]
    memory_checkpoint_every: Option<MemoryCheckpointConfig>,
    /// Directory of another job's checkpoints; the job takes its initial values from one of them, and begins
    /// at step 0
    #[arg(long, value_name = "DIR")]
    warm_start: Option<String>,
    /// Step of the checkpoint for --warm-start [default: the step of the latest complete one]
    #[arg(long, value_name = "N", requires = "warm_start")]
    warm_start_step: Option<u64>,
    /// Pattern of the variables that --warm-start takes, such as 'conv*' [default: all]
    #[arg(long, value_name = "PATTERN", requires = "warm_start")]
    warm_start_variables: Option<String>,
    /// Take the variable NEW of this job from the variable OLD of the checkpoint for --warm-start; may be
    /// given several times
    #[arg(long, value_name = "NEW=OLD", requires = "warm_start", value_parser = rename)]
    warm_start_rename: Vec<(String, String)>,
    /// Directory of event files for TensorBoard [default: `summaries` below the checkpoint directory]
    #[arg(long, value_name = "DIR")]
    summary_dir: Option<PathBuf>,
    /// Maximum number of updates between two summaries [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    summary_steps: Option<u64>,
    /// Maximum number of seconds between two summaries [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    summary_secs: Option<u64>,
    /// End the job when METRIC has not improved in N evaluations in a row: METRIC:N, such as accuracy:3 or
    /// loss:5
    #[arg(long, value_name = "METRIC:N", value_parser = early_stopping)]
    early_stopping: Option<(String, u32)>,
    /// Multiply the learning rate by FACTOR (0.1 if not given) when METRIC has not improved in N evaluations
    /// in a row; the product of all factors never falls below MIN (0 if not given); the metric train_loss is
    /// the mean training loss of 100 updates or more, and needs no evaluations
    #[arg(long, value_name = "METRIC:N[:FACTOR[:MIN]]", value_parser = reduce_on_plateau)]
    reduce_on_plateau: Option<Reduction>,
    /// Write a timeline of the job to this file, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Send the timeline by OTLP to the OpenTelemetry collector at this URL, such as http://localhost:4318
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Record one in N steps of each worker in the timeline [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    trace_every: Option<u64>,
    /// Also record the time of every operation of the model, in the first N recorded steps of each worker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    trace_ops: Option<u32>,
}

/// A hook that does nothing. It replaces the timeline if the timeline cannot be written.
struct NoTimeline;

impl Hook for NoTimeline {}

fn hours(text: &str) -> Result<Duration, String> {
    let number =
        text.parse().ok().filter(|&hours: &f64| hours.is_finite() && (0.001..=876_000.0).contains(&hours));
    let hours = number.ok_or("expected a number of hours, from 0.001 to 876000")?;
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

fn rename(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((new, old)) if !new.is_empty() && !old.is_empty() => Ok((new.to_owned(), old.to_owned())),
        _ => Err("expected NEW=OLD, two names of variables".into()),
    }
}

/// Checks that evaluations of `job` have the metric that `flag` names.
fn check_metric(flag: &str, metric: &str, job: &JobSpec) -> Result<(), Failure> {
    let metrics = || job.graph.metrics.iter().map(|metric| metric.name.as_str());
    if metric == LOSS || metrics().any(|name| name == metric) {
        return Ok(());
    }
    let known: Vec<&str> = std::iter::once(LOSS).chain(metrics()).take(METRICS_SHOWN).collect();
    let known = known.join(", ");
    Err(Failure::usage(format!("{flag}: the model has no metric '{metric}': expected one of {known}")))
}

fn early_stopping(text: &str) -> Result<(String, u32), String> {
    let parsed = text.rsplit_once(':').and_then(|(metric, patience)| {
        let patience = patience.parse().ok().filter(|&patience: &u32| patience > 0)?;
        (!metric.is_empty()).then(|| (metric.to_owned(), patience))
    });
    parsed.ok_or_else(|| "expected METRIC:N with N of at least 1".into())
}

/// The value of `--reduce-on-plateau`.
#[derive(Clone, Debug, PartialEq)]
struct Reduction {
    metric: String,
    patience: u32,
    factor: f32,
    minimum: f32,
}

fn reduce_on_plateau(text: &str) -> Result<Reduction, String> {
    let expected = || {
        "expected METRIC:N, METRIC:N:FACTOR or METRIC:N:FACTOR:MIN, with N of at least 1, FACTOR between 0 and 1, and MIN from 0 to 1"
            .to_owned()
    };
    let mut parts = text.split(':');
    let (metric, patience) = (parts.next().unwrap_or_default(), parts.next());
    let patience = patience.and_then(|text| text.parse().ok()).filter(|&patience: &u32| patience > 0);
    let mut number = |usual: f32, holds: fn(f32) -> bool| match parts.next() {
        None => Some(usual),
        Some(text) => text.parse().ok().filter(|&number| holds(number)),
    };
    let factor = number(0.1, |factor| factor > 0.0 && factor < 1.0).ok_or_else(expected)?;
    let minimum = number(0.0, |minimum| (0.0..=1.0).contains(&minimum)).ok_or_else(expected)?;
    match (patience, parts.next()) {
        (Some(patience), None) if !metric.is_empty() => {
            Ok(Reduction { metric: metric.to_owned(), patience, factor, minimum })
        }
        _ => Err(expected()),
    }
}

impl SavingArgs {
    /// Returns `config` with the settings for checkpoints, warm start and tracing that these flags request.
    pub(super) fn apply(&self, config: ChiefConfig) -> Result<ChiefConfig, Failure> {
        let checkpoint = self.location()?.map(|location| self.checkpoint(location));
        let warm_start = match &self.warm_start {
            Some(from) => Some(WarmStartConfig {
                location: located("--warm-start", from)?,
                checkpoint: self.warm_start_step.map(GlobalStep),
                variables: self.warm_start_variables.clone(),
                rename: self.warm_start_rename.clone(),
            }),
            None => None,
        };
        let every = self.trace_every.unwrap_or(TRACE_EVERY);
        let ops = self.trace_ops.unwrap_or(0);
        let trace = self.traces().then_some(TraceSpec { every, ops });
        let useless = [("--trace-every", self.trace_every.is_some()), ("--trace-ops", ops > 0)];
        if let Some((flag, _)) = useless.iter().find(|(_, given)| *given && trace.is_none()) {
            return Err(Failure::Usage(format!("{flag} has no effect without --trace: add --trace FILE")));
        }
        let memory_checkpoint = self.memory_checkpoint_every.or(config.memory_checkpoint);
        let config = ChiefConfig { checkpoint, memory_checkpoint, warm_start, trace, ..config };
        config.validate().map_err(Failure::usage)?;
        Ok(config)
    }

    /// Returns true when the flags request a timeline.
    fn traces(&self) -> bool {
        #[cfg(feature = "otlp")]
        if self.otlp_endpoint.is_some() {
            return true;
        }
        self.trace.is_some()
    }

    fn summaries(&self) -> Result<Option<SummaryConfig>, Failure> {
        Ok(self.directory()?.map(|dir| {
            let usual = SummaryConfig::new(dir);
            SummaryConfig {
                every_steps: self.summary_steps.or(usual.every_steps),
                every: self.summary_secs.map(Duration::from_secs).or(usual.every),
                ..usual
            }
        }))
    }

    /// Returns the directory of event files.
    fn directory(&self) -> Result<Option<PathBuf>, Failure> {
        match &self.summary_dir {
            Some(dir) => Ok(Some(absolute("--summary-dir", dir)?)),
            None => Ok(self.location()?.as_deref().and_then(summaries_below)),
        }
    }

    /// Returns a function that plots the evaluations of an evaluator.
    pub(super) fn evaluations(&self) -> Result<impl FnMut(&EvaluationRecord) + Send + use<>, Failure> {
        Ok(plotter(self.directory()?.map(|dir| dir.join(EVALUATIONS))))
    }

    /// Checks that the flags fit the job.
    ///
    /// # Errors
    /// Returns a failure if a flag depends on evaluations, but none are made while the job trains.
    pub(super) fn check(&self, job: &JobSpec) -> Result<(), Failure> {
        let stopping = self.early_stopping.as_ref().map(|(metric, _)| ("--early-stopping", metric));
        let reduction = self.reduce_on_plateau.as_ref().filter(|reduction| reduction.metric != TRAIN_LOSS);
        let reduction = reduction.map(|reduction| ("--reduce-on-plateau", &reduction.metric));
        for (flag, metric) in stopping.into_iter().chain(reduction) {
            check_metric(flag, metric, job)?;
        }
        let (flag, more) = match (stopping.is_some(), reduction.is_some()) {
            (true, _) => ("--early-stopping", ""),
            (false, true) => ("--reduce-on-plateau", "; or use the metric train_loss"),
            (false, false) => return Ok(()),
        };
        match self.checkpoint_dir.is_none() && job.eval_every.is_none() {
            true => Err(Failure::usage(format!(
                "{flag} needs evaluations while the job trains: add --eval-every to the job, or --checkpoint-dir and an evaluator{more}",
            ))),
            false => Ok(()),
        }
    }

    /// Returns the hooks `more`, followed by the chief's hooks that these flags request for `job`.
    pub(super) fn hooks(&self, more: &[MakeHook], job: &JobSpec) -> Result<Vec<MakeHook>, Failure> {
        self.check(job)?;
        let mut hooks = more.to_vec();
        if let Some(summaries) = self.summaries()? {
            hooks.push(Arc::new(move || Box::new(SummaryEvery::new(summaries.clone()))));
        }
        if let Some(path) = &self.trace {
            check_writable("--trace", "the timeline", path)?;
            let path = path.clone();
            hooks.push(Arc::new(move || match TraceFile::create(&path) {
                Ok(timeline) => Box::new(timeline),
                Err(error) => {
                    tracing::error!("could not write the timeline to {}: {error}", path.display());
                    Box::new(NoTimeline)
                }
            }));
        }
        #[cfg(feature = "otlp")]
        if let Some(endpoint) = &self.otlp_endpoint {
            // The exporter is made here only to report a bad endpoint before the training.
            drop(
                pushpull_chief::hooks::Otlp::new(endpoint)
                    .map_err(|error| Failure::Usage(format!("--otlp-endpoint: {error}")))?,
            );
            let endpoint = endpoint.clone();
            hooks.push(Arc::new(move || match pushpull_chief::hooks::Otlp::new(&endpoint) {
                Ok(collector) => Box::new(collector),
                Err(error) => {
                    tracing::error!("could not send the timeline: {error}");
                    Box::new(NoTimeline)
                }
            }));
        }
        if let Some((metric, patience)) = self.early_stopping.clone() {
            let better = Better::usual(&metric);
            hooks.push(Arc::new(move || Box::new(EarlyStopping::new(metric.clone(), better, patience, 0.0))));
        }
        if let Some(Reduction { metric, patience, factor, minimum }) = self.reduce_on_plateau.clone() {
            let hook = ReduceOnPlateau::new(metric.clone(), Better::usual(&metric), patience);
            let hook = hook.factor(factor).minimum(minimum);
            hooks.push(Arc::new(move || Box::new(hook.clone())));
        }
        Ok(hooks)
    }

    fn checkpoint(&self, location: String) -> CheckpointConfig {
        let usual = CheckpointConfig::new(location);
        let save_secs = match self.save_steps {
            Some(_) => None,
            None => Some(Duration::from_secs(self.save_secs.unwrap_or(SAVE_SECS))),
        };
        CheckpointConfig {
            save_steps: self.save_steps,
            save_secs,
            keep: self.keep_checkpoints.map_or(usual.keep, usize::from),
            keep_every: self.keep_every_hours,
            restore: self.restore.unwrap_or_default(),
            drain_timeout: self.drain_timeout(),
            last_save_timeout: self.last_save_timeout_s.map_or(usual.last_save_timeout, Duration::from_secs),
            ..usual
        }
    }

    /// Returns the time limit for saving and ending the job after a signal.
    pub(super) fn drain_timeout(&self) -> Duration {
        let usual = || CheckpointConfig::new("").drain_timeout;
        self.drain_timeout_s.map_or_else(usual, Duration::from_secs)
    }

    /// Returns command-line flags that give another process the same settings. Paths are absolute, because
    /// that process may have a different working directory.
    pub(super) fn to_flags(&self) -> Result<Vec<String>, Failure> {
        let text = |value: &dyn ToString| value.to_string();
        let location = |flag: &str, place: &Option<String>| {
            place.as_deref().map(|place| located(flag, place)).transpose()
        };
        let summary_dir =
            self.summary_dir.as_deref().map(|dir| absolute("--summary-dir", dir)).transpose()?;
        let trace = self.trace.as_deref().map(|path| absolute("--trace", path)).transpose()?;
        let hours = self.keep_every_hours.map(|time| time.as_secs_f64() / 3600.0);
        let mut flags = vec![
            ("checkpoint-dir", location("--checkpoint-dir", &self.checkpoint_dir)?),
            ("save-steps", self.save_steps.as_ref().map(|value| text(value))),
            ("save-secs", self.save_secs.as_ref().map(|value| text(value))),
            ("keep-checkpoints", self.keep_checkpoints.as_ref().map(|value| text(value))),
            ("keep-every-hours", hours.as_ref().map(|value| text(value))),
            ("restore", self.restore.as_ref().map(|value| text(value))),
            ("drain-timeout-s", self.drain_timeout_s.as_ref().map(|value| text(value))),
            ("last-save-timeout-s", self.last_save_timeout_s.as_ref().map(|value| text(value))),
            ("memory-checkpoint-every", self.memory_checkpoint_every.as_ref().map(|value| text(value))),
            ("warm-start", location("--warm-start", &self.warm_start)?),
            ("warm-start-step", self.warm_start_step.as_ref().map(|value| text(value))),
            ("warm-start-variables", self.warm_start_variables.clone()),
            ("summary-dir", summary_dir.map(|dir| dir.display().to_string())),
            ("summary-steps", self.summary_steps.as_ref().map(|value| text(value))),
            ("summary-secs", self.summary_secs.as_ref().map(|value| text(value))),
            ("trace", trace.map(|path| path.display().to_string())),
            #[cfg(feature = "otlp")]
            ("otlp-endpoint", self.otlp_endpoint.clone()),
            ("trace-every", self.trace_every.as_ref().map(|value| text(value))),
            ("trace-ops", self.trace_ops.as_ref().map(|value| text(value))),
            (
                "early-stopping",
                self.early_stopping.as_ref().map(|(metric, patience)| format!("{metric}:{patience}")),
            ),
            (
                "reduce-on-plateau",
                self.reduce_on_plateau.as_ref().map(|Reduction { metric, patience, factor, minimum }| {
                    format!("{metric}:{patience}:{factor}:{minimum}")
                }),
            ),
        ];
        let renames = self.warm_start_rename.iter();
        flags.extend(renames.map(|(new, old)| ("warm-start-rename", Some(format!("{new}={old}")))));
        Ok(flags.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect())
    }

    /// Returns the location of the checkpoints.
    pub(super) fn location(&self) -> Result<Option<String>, Failure> {
        self.checkpoint_dir.as_deref().map(|dir| located("--checkpoint-dir", dir)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use pushpull_messages::cadence::EvalEverySpec;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        saving: SavingArgs,
    }

    fn read(flags: &[String]) -> Result<SavingArgs, clap::Error> {
        Ok(Program::try_parse_from(std::iter::once("program".to_owned()).chain(flags.iter().cloned()))?
            .saving)
    }

    #[test]
    fn flags_are_passed_on_unchanged() {
        let flags: Vec<String> = [
            "--checkpoint-dir=/c",
            "--save-steps=7",
            "--keep-checkpoints=3",
            "--keep-every-hours=0.5",
            "--restore=latest",
            "--drain-timeout-s=9",
            "--last-save-timeout-s=99",
            "--memory-checkpoint-every=30s",
            "--warm-start=s3://b/w",
            "--warm-start-step=5",
            "--warm-start-variables=conv*",
            "--summary-dir=/s",
            "--summary-steps=11",
            "--summary-secs=12",
            "--trace=/t.json",
            "--trace-every=13",
            "--trace-ops=14",
            "--early-stopping=top:k:4",
            "--reduce-on-plateau=accuracy:3:0.5:0.01",
            "--warm-start-rename=a=b",
            "--warm-start-rename=c=d",
        ]
        .map(String::from)
        .into();
        let Ok(again) = read(&flags).unwrap().to_flags() else { panic!("they are flags") };
        assert_eq!(again, flags);
        let Ok(config) = read(&flags).unwrap().apply(ChiefConfig::default()) else { panic!("a config") };
        let checkpoint = config.checkpoint.expect("it saves");
        assert_eq!((checkpoint.save_steps, checkpoint.save_secs, checkpoint.keep), (Some(7), None, 3));
        assert_eq!(checkpoint.keep_every, Some(Duration::from_secs(1800)));
        let in_memory = MemoryCheckpointConfig::Time(Duration::from_secs(30));
        assert_eq!(config.memory_checkpoint, Some(in_memory));
        assert_eq!(config.trace, Some(TraceSpec { every: 13, ops: 14 }));
        assert_eq!(config.warm_start.expect("it starts warm").rename.len(), 2);
    }

    #[test]
    fn by_default_it_saves_every_ten_minutes_and_plots() {
        let args = read(&["--checkpoint-dir=/c".into()]).unwrap();
        let Ok(config) = args.apply(ChiefConfig::default()) else { panic!("a config") };
        assert_eq!(config.checkpoint.expect("it saves").save_secs, Some(Duration::from_secs(600)));
        let Ok(Some(summaries)) = args.summaries() else { panic!("it plots") };
        assert_eq!(summaries.dir, PathBuf::from("/c/summaries"));
        let Ok(none) = read(&[]).unwrap().apply(ChiefConfig::default()) else { panic!("a config") };
        assert!(none.checkpoint.is_none() && none.warm_start.is_none());
    }

    #[test]
    fn a_bad_value_names_its_flag_and_what_is_valid() {
        for (flags, words) in [
            (&["--save-steps=5"][..], "--checkpoint-dir"),
            (&["--checkpoint-dir=/c", "--save-steps=5", "--save-secs=5"], "--save-secs"),
            (&["--checkpoint-dir=/c", "--keep-every-hours=nan"], "from 0.001"),
            (&["--checkpoint-dir=/c", "--restore=newest"], "latest-valid"),
            (&["--memory-checkpoint-every=0"], "at least 1"),
            (&["--early-stopping=accuracy"], "METRIC:N"),
            (&["--early-stopping=accuracy:0"], "METRIC:N"),
            (&["--reduce-on-plateau=loss"], "METRIC:N:FACTOR:MIN"),
            (&["--reduce-on-plateau=loss:0"], "N of at least 1"),
            (&["--reduce-on-plateau=loss:2:1"], "FACTOR between 0 and 1"),
            (&["--reduce-on-plateau=loss:2:nan"], "FACTOR between 0 and 1"),
            (&["--reduce-on-plateau=loss:2:0.5:2"], "MIN from 0 to 1"),
            (&["--reduce-on-plateau=loss:2:0.5:0:9"], "METRIC:N:FACTOR:MIN"),
            (&["--warm-start=/c", "--warm-start-rename=x"], "NEW=OLD"),
            (&["--warm-start-variables=x"], "--warm-start"),
            (&["--trace=t", "--trace-every=0"], "1.."),
            (&["--trace=t", "--trace-ops=0"], "1..=1000"),
        ] {
            let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
            let error = read(&flags).unwrap_err().to_string();
            assert!(error.contains(words), "{words} in {error}");
        }
    }

    #[test]
    fn what_waits_for_evaluations_needs_some() {
        let points = || DatasetSpec::Digits { seed: 1, examples: 1 };
        let mut g = GraphBuilder::new("nothing");
        let x = g.input("x", [1]);
        let loss = g.l2_loss(x);
        let plain = JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(points(), points()), 1);
        let job = |eval_every| JobSpec { eval_every, ..plain.clone() };
        for flag in ["--early-stopping=loss:3", "--reduce-on-plateau=loss:3"] {
            let unknown = read(&[flag.replace("loss", "auc")]).unwrap();
            let error = unknown.check(&job(Some(EvalEverySpec::Epoch))).unwrap_err().to_string();
            assert!(error.ends_with(": the model has no metric 'auc': expected one of loss"), "{error}");
            let flags = read(&[flag.to_owned()]).unwrap();
            let error = flags.check(&job(None)).unwrap_err().to_string();
            assert!(
                flag.starts_with(error.split(' ').next().unwrap()) && error.contains("--eval-every"),
                "{error}"
            );
            assert!(flags.check(&job(Some(EvalEverySpec::Epoch))).is_ok());
            let saving = read(&[flag.to_owned(), "--checkpoint-dir=/c".to_owned()]).unwrap();
            assert!(saving.check(&job(None)).is_ok());
        }
        assert!(read(&["--reduce-on-plateau=train_loss:3".to_owned()]).unwrap().check(&job(None)).is_ok());
    }
}
