//! The flags that control how gradients become updates: the optimizer, the processing of gradients in the
//! worker, and the synchronisation of the workers. This module must not depend on models or clusters.

use clap::{Args, ValueEnum};
use pushpull_messages::communication::CommunicationSpec;
use pushpull_messages::compression::CompressionSpec;
use pushpull_messages::distribution::DistributionSpec;
use pushpull_messages::gradient::{GradientSpec, NotFiniteSpec};
use pushpull_messages::job::{ACCUMULATE_MAX, JobSpec, MICRO_BATCHES_MAX, PIPELINE_MAX};
use pushpull_messages::optimizer::{DecaySpec, GroupSpec, ScheduleSpec};
use pushpull_messages::sync::{LeaveSpec, SyncSpec};

use super::compress::compress;
use super::groups::group;
use super::optimizers::Optimizer;
use crate::programs::exit::Failure;

/// The variables to which the weight decay applies.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WeightDecayOn {
    #[default]
    All,
    Matrices,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum NotFinite {
    #[default]
    Stop,
    Skip,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WhenWorkerLeaves {
    #[default]
    Continue,
    Fail,
}

/// The flags that control how gradients become updates.
#[derive(Clone, Debug, Args)]
pub(super) struct UpdateArgs {
    /// Number of batches in one step of a worker: it computes their gradients one after the other, and pushes
    /// the mean
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(ACCUMULATE_MAX)))]
    accumulate: u32,
    /// Optimizer that turns gradients into updates
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Optimizer,
    /// Learning rate [default: 0.3 for sgd, 0.03 for momentum, 0.001 for adam, adamw and rmsprop, 0.05 for
    /// adagrad and ftrl, 0.01 for lamb, 0.0001 for lion]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = positive)]
    learning_rate: Option<f32>,
    /// How the learning rate changes: constant, cosine, linear, step:EVERY:FACTOR or exponential:EVERY:FACTOR
    #[arg(long, value_name = "HOW", default_value = "cosine")]
    schedule: ScheduleSpec,
    /// Number of updates over which the learning rate rises linearly from 0 to its value
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,
    /// Weight decay: each value, multiplied by X, is added to its gradient; with adamw, lamb and lion, the
    /// optimizer's own decay [default: 0; 0.01 for adamw, lamb and lion]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = not_negative)]
    weight_decay: Option<f32>,
    /// Variables that the weight decay applies to: all, or matrices (variables with two or more axes), which
    /// excludes biases and the scales and offsets of normalisations
    #[arg(long, value_enum, value_name = "WHICH", default_value = "all")]
    weight_decay_on: WeightDecayOn,
    /// Use other settings for the variables whose names match PATTERN: learning-rate-factor=X,
    /// weight-decay=X, frozen, optimizer=NAME and then learning-rate=X, separated by commas. May be given
    /// several times; the first pattern that matches a variable decides. * matches any characters, ? one
    #[arg(long, value_name = "PATTERN:SETTINGS", value_parser = group)]
    group: Vec<GroupSpec>,
    /// Keep exponential moving averages of the variables with this decay, and use the averages in
    /// evaluations
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = between_zero_and_one)]
    ema_decay: Option<f32>,
    /// Keep averages only of variables that match these patterns, separated by commas; * matches any
    /// characters, ? matches one
    #[arg(long, value_name = "PATTERN,..", value_delimiter = ',', requires = "ema_decay")]
    ema_variables: Vec<String>,
    /// Clip every element of a worker's gradients to this absolute value
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = positive)]
    clip_value: Option<f32>,
    /// Maximum norm of all gradients of a worker taken together; gradients with a greater norm are scaled
    /// down to it
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = positive)]
    clip_global_norm: Option<f32>,
    /// What to do about a gradient with NaN or infinite elements: stop the job, or skip this step of the
    /// worker
    #[arg(long, value_enum, default_value = "stop")]
    not_finite: NotFinite,
    /// Send the gradients and values of the variables whose names match PATTERN (all if there is none) in
    /// fewer bytes: fp16, bf16 or int8 for both ways, none, or gradients=ENCODING (also top-k:FRACTION) and
    /// values=ENCODING, separated by commas. May be given several times; the first pattern that matches a
    /// variable decides
    #[arg(long, value_name = "[PATTERN:]ENCODINGS", value_parser = compress)]
    compress: Vec<CompressionSpec>,
    /// Distribution strategy: parameter_server (ps tasks store the variables), multi_worker_mirrored (the
    /// workers store them), mirrored and central_storage (one worker with several devices) or one_device
    /// [default: parameter_server if the cluster has ps tasks; otherwise workers store the
    /// variables]
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<DistributionSpec>,
    /// Synchronisation of the workers: async, async:staleness-lr, bounded:S (SSP), sync or sync:K [default:
    /// sync with a strategy other than parameter_server, and otherwise async]
    #[arg(long, value_name = "POLICY")]
    sync: Option<SyncSpec>,
    /// How gradients travel to the shards: direct, or over other workers, which add their own: along a chain
    /// (ring) or along a tree (halving_doubling), both with --sync sync and without --compress; auto leaves
    /// the choice to the job
    #[arg(long, value_name = "WAY", default_value = "auto")]
    communication: CommunicationSpec,
    /// Number of steps that a worker may have in flight: with 2 or more, it computes a step while the pushes
    /// of earlier steps are unanswered; needs --sync async or async:staleness-lr
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(PIPELINE_MAX)))]
    pipeline: u32,
    /// Number of equal parts of a batch that pass through the stages of a replica one after another, so that
    /// the stages compute at the same time; needs a model with operations on several worker tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MICRO_BATCHES_MAX)))]
    micro_batches: u32,
    /// Give bit-identical results on every run; needs --sync sync, or sync:K with K of at least the
    /// number of workers
    #[arg(long)]
    deterministic: bool,
    /// What to do when a worker leaves before the last step
    #[arg(long, value_enum, default_value = "continue")]
    when_worker_leaves: WhenWorkerLeaves,
}

fn number(text: &str, expected: &str, holds: impl Fn(f32) -> bool) -> Result<f32, String> {
    let number = text.parse().ok().filter(|&number: &f32| number.is_finite() && holds(number));
    number.ok_or_else(|| format!("expected a number {expected}"))
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, "greater than 0", |number| number > 0.0)
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, "of at least 0", |number| number >= 0.0)
}

fn between_zero_and_one(text: &str) -> Result<f32, String> {
    number(text, "greater than 0 and less than 1", |number| number > 0.0 && number < 1.0)
}

impl UpdateArgs {
    /// Returns the learning rate that the flag or the example program's defaults set. If neither sets one,
    /// returns the optimizer's usual learning rate.
    fn learning_rate(&self) -> f32 {
        self.learning_rate.unwrap_or_else(|| self.optimizer.learning_rate())
    }

    /// Describes the optimizer, its learning rate, and the weight decay if a flag or the example program's
    /// defaults set it.
    #[cfg(test)]
    pub(super) fn plan(&self) -> String {
        let decay = self.weight_decay.map(|decay| format!(", weight decay {decay}")).unwrap_or_default();
        format!("{} {}{decay}", self.optimizer.name(), self.learning_rate())
    }

    /// Checks the flags against each other.
    ///
    /// # Errors
    /// Returns an error that names the flags.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let sync = self.sync();
        if let Some(strategy) = self.strategy {
            strategy.check_sync(sync).map_err(Failure::usage)?;
        }
        if self.deterministic && !matches!(sync, SyncSpec::Sync { .. }) {
            return Err(Failure::usage(format!(
                "--deterministic needs the policy sync, but --sync is {sync}, whose result depends on the order in which \
                 gradients arrive; set --sync sync"
            )));
        }
        if self.communication.has_routes() && sync != SyncSpec::SYNC {
            return Err(Failure::usage(format!(
                "--communication {} needs the policy sync, but --sync is {sync}, under which an update does not take a \
                 gradient of every worker; set --sync sync, or --communication direct",
                self.communication
            )));
        }
        if self.communication.has_routes() && !self.compress.is_empty() {
            return Err(Failure::usage(format!(
                "--communication {} adds gradients up on the way, but --compress sends them in an encoding; leave \
                 --compress out, or set --communication direct",
                self.communication
            )));
        }
        if !sync.allows_pipeline(self.pipeline) {
            return Err(Failure::usage(format!(
                "--pipeline {} needs the policy async or async:staleness-lr, but --sync is {sync}, under which a worker waits \
                 for the reply to its push; set --sync async, or --pipeline 1",
                self.pipeline
            )));
        }
        Ok(())
    }

    /// Returns the strategy, if one is chosen.
    pub(super) const fn strategy(&self) -> Option<DistributionSpec> {
        self.strategy
    }

    /// Returns the synchronisation policy: the chosen one, or the usual one of the strategy.
    fn sync(&self) -> SyncSpec {
        self.sync.unwrap_or_else(|| self.strategy.map_or(SyncSpec::ASYNC, DistributionSpec::default_sync))
    }

    /// Returns `job` with the settings that these flags give.
    pub(super) fn apply(&self, job: JobSpec) -> JobSpec {
        let mut optimizer = self.optimizer.spec(self.learning_rate());
        let mut weight_decay = self.weight_decay.unwrap_or(0.0);
        if let (Some(own), Some(_)) = (optimizer.weight_decay_mut(), self.weight_decay) {
            *own = std::mem::take(&mut weight_decay);
        }
        JobSpec {
            accumulate: self.accumulate,
            optimizer,
            schedule: self.schedule,
            warm_up: self.warm_up,
            weight_decay,
            average: self.ema_decay,
            weight_decay_on: match self.weight_decay_on {
                WeightDecayOn::All => DecaySpec::All,
                WeightDecayOn::Matrices => DecaySpec::Matrices,
            },
            groups: self.group.clone(),
            average_variables: self.ema_variables.clone(),
            gradient: GradientSpec {
                clip_value: self.clip_value,
                clip_global_norm: self.clip_global_norm,
                not_finite: match self.not_finite {
                    NotFinite::Stop => NotFiniteSpec::Stop,
                    NotFinite::Skip => NotFiniteSpec::Skip,
                },
            },
            compression: self.compress.clone(),
            strategy: self.strategy,
            sync: self.sync(),
            communication: self.communication,
            pipeline: self.pipeline,
            micro_batches: self.micro_batches,
            deterministic: self.deterministic,
            when_worker_leaves: match self.when_worker_leaves {
                WhenWorkerLeaves::Continue => LeaveSpec::Continue,
                WhenWorkerLeaves::Fail => LeaveSpec::Fail,
            },
            ..job
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use pushpull_messages::compression::EncodingSpec;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        update: UpdateArgs,
    }

    fn read(flags: &[&str]) -> Result<JobSpec, clap::Error> {
        let program = Program::try_parse_from(std::iter::once("program").chain(flags.iter().copied()))?;
        let mut g = GraphBuilder::new("plane");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let points =
            || DatasetSpec::Linear { seed: 0, examples: 9, weights: vec![1.0], bias: 0.0, noise: 0.0 };
        let job = JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(points(), points()), 10);
        Ok(program.update.apply(job))
    }

    #[test]
    fn every_optimizer_has_the_name_of_its_flag() {
        for optimizer in Optimizer::ALL {
            let shown = optimizer.to_possible_value().unwrap();
            assert_eq!(shown.get_name(), optimizer.name());
            let job = read(&["--optimizer", optimizer.name()]).unwrap();
            assert_eq!(job.optimizer, optimizer.spec(optimizer.learning_rate()));
            job.validate().unwrap();
        }
        assert_eq!(Optimizer::ALL.as_slice(), Optimizer::value_variants());
    }

    #[test]
    fn flags_become_part_of_the_job() {
        let job = read(&[
            "--accumulate=3",
            "--schedule=step:10:0.5",
            "--warm-up=7",
            "--weight-decay=0.01",
            "--weight-decay-on=matrices",
            "--group=none*:frozen",
            "--group=*:learning-rate-factor=0.5",
            "--ema-decay=0.99",
            "--ema-variables=a*,*/bias",
            "--clip-value=5",
            "--clip-global-norm=1.5",
            "--not-finite=skip",
            "--compress=*:gradients=top-k:0.05,values=bf16",
            "--sync=sync",
            "--deterministic",
            "--when-worker-leaves=fail",
        ]);
        let job = job.unwrap();
        let groups = [GroupSpec::new("none*").frozen(), GroupSpec::new("*").learning_rate_factor(0.5)];
        assert_eq!((job.weight_decay_on, &job.groups[..]), (DecaySpec::Matrices, &groups[..]));
        let error =
            JobSpec { average_variables: Vec::new(), ..job.clone() }.validate().unwrap_err().to_string();
        assert!(error.starts_with("groups: pattern 'none*' selects no variable"), "{error}");
        assert_eq!(job.average_variables, ["a*", "*/bias"]);
        let plain = JobSpec { groups: Vec::new(), average_variables: Vec::new(), ..job.clone() };
        let error = plain.validate().unwrap_err().to_string();
        assert!(error.starts_with("compression: pattern '*' selects no variable"), "{error}");
        JobSpec { compression: Vec::new(), ..plain }.validate().unwrap();
        assert_eq!(job.schedule, ScheduleSpec::Step { every: 10, factor: 0.5 });
        assert_eq!((job.warm_up, job.weight_decay, job.average), (7, 0.01, Some(0.99)));
        assert_eq!(job.accumulate, 3);
        let not_finite = NotFiniteSpec::Skip;
        let gradient = GradientSpec { clip_value: Some(5.0), clip_global_norm: Some(1.5), not_finite };
        assert_eq!(job.gradient, gradient);
        let top = CompressionSpec::new("*").gradients(EncodingSpec::TopK { fraction: 0.05 });
        assert_eq!(job.compression, [top.values(EncodingSpec::Bf16)]);
        assert_eq!((job.sync, job.deterministic), (SyncSpec::SYNC, true));
        assert_eq!(job.when_worker_leaves, LeaveSpec::Fail);
        let job = read(&["--pipeline=3", "--sync=async:staleness-lr"]).unwrap();
        job.validate().unwrap();
        assert_eq!((job.pipeline, read(&[]).unwrap().pipeline), (3, 1));
        let job = read(&["--communication=halving_doubling", "--sync=sync"]).unwrap();
        job.validate().unwrap();
        let usual = read(&[]).unwrap().communication;
        assert_eq!((job.communication, usual), (CommunicationSpec::HalvingDoubling, CommunicationSpec::Auto));
    }

    #[test]
    fn sums_of_gradients_need_the_policy_sync() {
        for (flags, works) in [
            (&["--communication=ring", "--sync=sync"][..], true),
            (&["--communication=halving_doubling", "--sync=sync", "--accumulate=2"], true),
            (&["--communication=direct", "--sync=async"], true),
            (&["--communication=ring", "--sync=sync:2"], false),
            (&["--communication=ring"], false),
            (&["--communication=halving_doubling", "--sync=sync", "--compress=bf16"], false),
        ] {
            let flags = ["program"].iter().chain(flags).map(ToString::to_string);
            let checked = Program::try_parse_from(flags).unwrap().update.check();
            assert_eq!(checked.is_ok(), works);
            if let Err(failure) = checked {
                let said = failure.to_string();
                assert!(
                    said.contains("--communication ") && said.contains("--communication direct"),
                    "{said}"
                );
            }
        }
    }

    #[test]
    fn a_pipeline_without_async_is_a_usage_error() {
        for (sync, pipeline, works) in [
            ("async", 16, true),
            ("async:staleness-lr", 2, true),
            ("sync", 1, true),
            ("sync", 2, false),
            ("bounded:2", 2, false),
        ] {
            let flags =
                ["program", &format!("--sync={sync}"), &format!("--pipeline={pipeline}")].map(str::to_owned);
            let checked = Program::try_parse_from(flags).unwrap().update.check();
            assert_eq!(checked.is_ok(), works, "{sync} {pipeline}");
        }
    }

    #[test]
    fn the_weight_decay_of_some_optimizers_is_their_own() {
        for optimizer in Optimizer::ALL {
            let decays = |flags: &[&str]| {
                let name = format!("--optimizer={}", optimizer.name());
                let mut job = read(&[&[name.as_str()], flags].concat()).unwrap();
                (job.optimizer.weight_decay_mut().copied(), job.weight_decay)
            };
            if matches!(optimizer, Optimizer::AdamW | Optimizer::Lamb | Optimizer::Lion) {
                assert_eq!(decays(&[]), (Some(0.01), 0.0));
                assert_eq!(decays(&["--weight-decay=0.2"]), (Some(0.2), 0.0));
                assert_eq!(decays(&["--weight-decay=0"]), (Some(0.0), 0.0));
            } else {
                assert_eq!(decays(&[]), (None, 0.0));
                assert_eq!(decays(&["--weight-decay=0.2"]), (None, 0.2));
            }
        }
    }

    #[test]
    fn a_bad_value_names_its_flag_and_what_is_valid() {
        for (flag, value, valid) in [
            ("--accumulate", "0", "1..=65536"),
            ("--optimizer", "adamax", "sgd, momentum, adam, adamw, adagrad, rmsprop, ftrl, lamb, lion"),
            ("--learning-rate", "0", "greater than 0"),
            ("--schedule", "step:0:0.5", "step:EVERY:FACTOR"),
            ("--warm-up", "-1", "digit"),
            ("--weight-decay", "-0.1", "of at least 0"),
            ("--weight-decay-on", "biases", "all, matrices"),
            ("--group", "bias", "PATTERN:SETTINGS"),
            ("--ema-decay", "1", "greater than 0 and less than 1"),
            ("--clip-value", "0", "greater than 0"),
            ("--clip-global-norm", "nan", "greater than 0"),
            ("--not-finite", "go", "stop, skip"),
            ("--compress", "int4", "fp16, bf16, int8"),
            ("--sync", "bounded", "bounded:S"),
            ("--communication", "nccl", "auto, direct, ring or halving_doubling"),
            ("--pipeline", "0", "1..=16"),
            ("--pipeline", "17", "1..=16"),
            ("--when-worker-leaves", "wait", "continue, fail"),
        ] {
            let error = read(&[&format!("{flag}={value}")]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(value) && error.contains(valid), "{error}");
        }
        let error = read(&["--ema-variables=a"]).unwrap_err().to_string();
        assert!(error.contains("--ema-decay <X>"), "{error}");
        let error = read(&["--clip-value", "-1"]).unwrap_err().to_string();
        assert!(error.contains("'-1' for '--clip-value <X>'"), "{error}");
    }
}
