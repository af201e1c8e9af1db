//! The flags that every example takes. With them, the example's model runs in this process or as a task of a
//! cluster.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use pushpull_chief::{ChiefConfig, JobProgress};
use pushpull_input::{Datasets, input_in_directory};
use pushpull_messages::cadence::EvalEverySpec;
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::distribution::DistributionSpec;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::input::InputSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::placement::{PartitionerSpec, PlacementSpec, StrategySpec};
use pushpull_ps::{PsConfig, PsDevice};
use pushpull_worker::WorkerConfig;
use tokio::sync::watch;
use tracing::Instrument;

use super::evaluator::EvaluationArgs;
use super::flags::{ClusterArgs, DeviceArgs, HangArgs, PsFailureArgs, PsSettingArgs, threads};
use super::input::InputArgs;
use super::observe::ObserveArgs;
use super::paths::{check_files, data_directory};
use super::saving::SavingArgs;
use super::task::run;
use super::updates::UpdateArgs;
use crate::embedded::Embedded;
use crate::error::Error;
use crate::hooks::Hooks;
use crate::job::Length;
use crate::programs::exit::{Failure, Outcome};
use crate::programs::http::{About, Endpoint};
use crate::programs::logging::{self, Log};
use crate::programs::progress;
use crate::programs::roles::{self, ChiefOrders, EndFiles};
use crate::programs::signals::Signals;
use crate::threads::threads_per_worker;

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Strategy {
    #[default]
    RoundRobin,
    GreedyLoadBalancing,
}

/// The flags that every example takes.
#[derive(Clone, Debug, Parser)]
#[command(about = "Train a model, in this process or as a task of a cluster")]
pub struct TrainArgs {
    /// Directory of the data; without it the example generates data itself
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Number of updates to train for
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Number of passes over the training data, instead of a number of updates
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: Option<u64>,
    /// Evaluate the model on the test set while it trains, on worker 0: each N updates, or at the end of each
    /// epoch
    #[arg(long, value_name = "N|epoch")]
    eval_every: Option<EvalEverySpec>,
    /// Number of examples in one worker's batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch_size: u32,
    /// Compute the metrics of the model on the training batches in one of N steps of each worker; 0 for never
    /// [default: in every step, or in every tenth if the metrics are costly]
    #[arg(long, value_name = "N")]
    metrics_every: Option<u64>,
    #[command(flatten)]
    update: UpdateArgs,
    /// Seed of initial values, of the order of the training examples, and of data that this program generates
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Strategy that chooses the shard of each variable [default: round_robin with ps tasks,
    /// greedy_load_balancing if workers store the variables]
    #[arg(long, value_enum)]
    placement: Option<Strategy>,
    /// How variables are split: auto, none, fixed:N, max_slice_bytes:N or min_max:N
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = partitioner)]
    partitioner: PartitionerSpec,
    /// Print where every variable lives, and where every operation runs
    #[arg(long)]
    log_placement: bool,
    /// Write the job's report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the trained model to this safetensors file, for `pushpull predict`, the library or Python
    #[arg(long, value_name = "FILE")]
    save_model: Option<PathBuf>,
    /// Write the job to this file, for the role binaries, and exit without training
    #[arg(long, value_name = "FILE")]
    export_job: Option<PathBuf>,
    /// Number of ps tasks of the embedded cluster; with 0, the workers store the variables [default: 1; 0
    /// with a strategy other than parameter_server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    ps: Option<u32>,
    /// Number of worker tasks of the embedded cluster [default: 2; 1 with the strategies mirrored,
    /// central_storage and one_device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    #[command(flatten)]
    ps_settings: PsSettingArgs,
    /// Threads for one step of each worker [default: all cores, divided among the workers of this process]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hang: HangArgs,
    #[command(flatten)]
    ps_failure: PsFailureArgs,
    #[command(flatten)]
    saving: SavingArgs,
    #[command(flatten, next_help_heading = "Training set")]
    input: InputArgs,
    #[command(flatten, next_help_heading = "Evaluator (of a cluster)")]
    evaluation: EvaluationArgs,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn partitioner(text: &str) -> Result<PartitionerSpec, String> {
    let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
    let parsed = number.map(str::parse::<u64>).transpose().ok().flatten().filter(|&number| number > 0);
    match (name, number, parsed) {
        ("auto", None, _) => Ok(PartitionerSpec::Auto),
        ("none", None, _) => Ok(PartitionerSpec::None),
        ("fixed", _, Some(slices)) if u32::try_from(slices).is_ok() => {
            Ok(PartitionerSpec::Fixed { slices: slices as u32 })
        }
        ("max_slice_bytes", _, Some(bytes)) => Ok(PartitionerSpec::MaxSliceBytes { bytes }),
        ("min_max", _, Some(bytes_min)) => Ok(PartitionerSpec::MinMax { bytes_min }),
        _ => Err("expected auto, none, fixed:N, max_slice_bytes:N or min_max:N with N of at least 1".into()),
    }
}

impl TrainArgs {
    /// Runs a model on its data as the flags request: trains it in this process, runs one task of a cluster,
    /// or writes the job to a file.
    ///
    /// # Errors
    /// Returns a failure if the flags contradict each other, or if the job does not train to its end.
    pub fn run(&self, graph: GraphSpec, input: InputSpec) -> Outcome {
        self.run_with(graph, input, &Hooks::new())
    }

    /// Does the same as [`run`](Self::run), with hooks.
    ///
    /// # Errors
    /// Returns the same failures as [`run`](Self::run).
    pub fn run_with(&self, graph: GraphSpec, input: InputSpec, hooks: &Hooks) -> Outcome {
        let cluster = self.cluster.resolve()?;
        if cluster.is_some() && (self.ps.is_some() || self.workers.is_some()) {
            return Err(Failure::usage(
                "--ps and --workers set the size of the embedded cluster, but a cluster is given: leave them out",
            ));
        }
        let names_files = [&input.train, &input.test].into_iter().any(|set| !set.files().is_empty());
        if self.data_dir.is_some() && !names_files {
            return Err(Failure::Usage(format!(
                "--data-dir is given, but '{}' does not read files: leave out --data-dir",
                graph.name
            )));
        }
        let settings = self.update.apply(JobSpec::new(graph.clone(), input.clone(), 1));
        hooks.check(&JobSpec { batch_size: self.batch_size, ..settings }).map_err(Failure::usage)?;
        if let Some(path) = &self.export_job {
            let json = self.job(graph, input, cluster.as_ref())?.to_json();
            std::fs::write(path, json + "\n")
                .with_context(|| format!("--export-job: cannot write the job to {}", path.display()))?;
            println!("wrote the job to {}; run it with `pushpull local --job {0}`", path.display());
            return Ok(());
        }
        let writes_files = cluster
            .as_ref()
            .is_none_or(|cluster| cluster.task().job == JobName::Chief || cluster.hosts_chief());
        if writes_files {
            check_files(&self.files())?;
        }
        match cluster {
            Some(cluster) => {
                let log = logging::start(&cluster.task().to_string(), self.observe.log_format());
                run(&log, self.run_task(&cluster, graph, input, hooks, &log))
            }
            None => {
                let log = logging::start_within(&graph.name, self.observe.log_format());
                let job = self.job(graph, input, None)?;
                run(&log, self.run_embedded(job, hooks, &log))
            }
        }
    }

    /// Describes the length of the training, the batch size and the optimizer.
    #[cfg(test)]
    pub(super) fn plan(&self) -> String {
        let length = match (self.steps, self.epochs) {
            (Some(steps), _) => format!("{steps} steps"),
            (None, epochs) => format!("{} epochs", epochs.expect("one of the two")),
        };
        format!("{length} of {}, {}", self.batch_size, self.update.plan())
    }

    /// Returns the number of workers that train: the workers of `cluster`, or those of the embedded cluster
    /// if `cluster` is `None`.
    fn workers(&self, cluster: Option<&ClusterConfig>) -> u32 {
        let listed = cluster.map(|cluster| cluster.cluster().addresses(JobName::Worker).len() as u32);
        listed.or(self.workers).unwrap_or(if self.has_one_worker() { 1 } else { 2 })
    }

    /// Returns whether the strategy has exactly one worker.
    fn has_one_worker(&self) -> bool {
        self.update.strategy().is_some_and(DistributionSpec::has_one_worker)
    }

    /// Returns the number of ps tasks of the embedded cluster.
    fn ps(&self) -> u32 {
        self.ps.unwrap_or_else(|| u32::from(self.update.strategy().is_none_or(DistributionSpec::has_ps)))
    }

    /// Returns how the shard of each variable is chosen if tasks of `cluster`, or of the embedded cluster,
    /// store them.
    fn placement(&self, cluster: Option<&ClusterConfig>) -> StrategySpec {
        let has_ps = match self.update.strategy() {
            Some(strategy) => strategy.has_ps(),
            None => cluster.map_or(self.ps() > 0, |cluster| cluster.cluster().has_ps()),
        };
        match self.placement {
            Some(Strategy::RoundRobin) => StrategySpec::RoundRobin,
            Some(Strategy::GreedyLoadBalancing) => StrategySpec::GreedyLoadBalancing,
            None if has_ps => StrategySpec::RoundRobin,
            None => StrategySpec::GreedyLoadBalancing,
        }
    }

    /// Makes the job for a model and its data, on `cluster` or the embedded cluster.
    fn job(
        &self,
        graph: GraphSpec,
        input: InputSpec,
        cluster: Option<&ClusterConfig>,
    ) -> Result<JobSpec, Failure> {
        self.update.check()?;
        let input = match &self.data_dir {
            Some(directory) => input_in_directory(&input, &data_directory("--data-dir", directory)?)?,
            None => input,
        };
        let input = self.input.apply(input);
        let length = match self.steps {
            Some(steps) => Length::Steps(steps),
            None => Length::Epochs(self.epochs.expect("one of steps and epochs has a default")),
        };
        let job = JobSpec {
            batch_size: self.batch_size,
            metrics_every: self.metrics_every,
            eval_every: self.eval_every,
            placement: PlacementSpec { strategy: self.placement(cluster), partitioner: self.partitioner },
            seed: self.seed,
            ..self.update.apply(JobSpec::new(graph, input, 1))
        };
        length.set(job, self.workers(cluster), &Datasets::default()).map_err(|error| match error {
            Error::Job(error) => Failure::usage(error),
            error => error.into(),
        })
    }

    fn files(&self) -> EndFiles<'_> {
        EndFiles { report: self.report.as_deref(), model: self.save_model.as_deref() }
    }

    fn ps_config(&self) -> Result<PsConfig, Failure> {
        self.ps_settings.clone().config_on(&self.cluster, self.device_of_variables()?)
    }

    /// Returns the device on which the strategy stores the variables.
    fn device_of_variables(&self) -> Result<PsDevice, Failure> {
        match self.update.strategy() {
            Some(DistributionSpec::Mirrored | DistributionSpec::OneDevice) => {
                Ok(self.device.resolve()?.first_card().map_or(PsDevice::Cpu, PsDevice::Card))
            }
            _ => Ok(PsDevice::Cpu),
        }
    }

    fn worker_config(&self, workers: u32, hooks: &Hooks) -> Result<WorkerConfig, Failure> {
        let threads = self.threads.map_or_else(|| threads_per_worker(workers as usize), usize::from);
        Ok(WorkerConfig {
            data_dir: self.data_dir.clone(),
            start_timeout: self.cluster.start_timeout(),
            hung_after: self.hang.after(),
            hooks: hooks.worker.clone(),
            ..self.device.config(threads, self.log_placement)?
        })
    }

    fn chief_config(&self) -> Result<ChiefConfig, Failure> {
        self.saving.apply(self.ps_failure.apply(ChiefConfig {
            start_timeout: self.cluster.start_timeout(),
            log_placement: self.log_placement,
            ..Default::default()
        }))
    }

    async fn run_task(
        &self,
        cluster: &ClusterConfig,
        graph: GraphSpec,
        input: InputSpec,
        hooks: &Hooks,
        log: &Log,
    ) -> Outcome {
        let network = self.cluster.network(cluster, self.observe.endpoint(log)?)?;
        let leads = cluster.task().job == JobName::Chief || cluster.hosts_chief();
        let digest_of = graph.clone();
        let orders = if leads {
            let job = self.job(graph, input, Some(cluster))?;
            let (config, files) = (self.chief_config()?, self.files());
            let hooks = self.saving.hooks(&hooks.chief, &job)?;
            Some(ChiefOrders { job, config, files, hooks, library: None })
        } else {
            None
        };
        match (cluster.task().job, orders) {
            (JobName::Ps, _) => roles::ps(cluster, &network, self.ps_config()?, Some(&digest_of)).await,
            (JobName::Worker, orders) => {
                let config = self.worker_config(1, hooks)?;
                let settings = (config, self.ps_config()?);
                roles::worker(cluster, &network, settings, Some(&digest_of), orders).await
            }
            (JobName::Chief, Some(orders)) => roles::chief(cluster, &network, orders).await,
            (JobName::Evaluator, _) => match self.saving.location()? {
                Some(location) => {
                    let config = self.evaluation.config(self.worker_config(1, hooks)?);
                    roles::evaluator(&location, config, &network.http, self.saving.evaluations()?).await
                }
                None => Err(Failure::usage("an evaluator needs --checkpoint-dir")),
            },
            (JobName::Chief, None) => unreachable!("a chief has orders"),
            (JobName::Other(_), _) => unreachable!("a cluster that trains has only roles"),
        }
    }

    async fn run_embedded(&self, job: JobSpec, hooks: &Hooks, log: &Log) -> Outcome {
        let signals = Signals::listen()?;
        let workers = self.workers(None);
        let embedded = Embedded {
            ps: self.ps(),
            workers,
            ps_config: self.ps_config()?,
            worker_config: self.worker_config(workers, hooks)?,
            chief_config: self.chief_config()?,
            hooks: self.saving.hooks(&hooks.chief, &job)?,
        };
        embedded.ps_config.validate().map_err(Failure::usage)?;
        embedded.worker_config.validate().map_err(Failure::usage)?;
        let (tell, told) = watch::channel(JobProgress::default());
        let shown = tokio::spawn(progress::show(told, job.step_examples()).in_current_span());
        let cluster = embedded.cluster()?;
        job.validate_on(&cluster).map_err(Failure::usage)?;
        let about = About::new(cluster.tasks_and_hosted().map(|(task, _)| task), Some(&cluster));
        // The tasks of one process need no join string.
        let http = self.observe.endpoint(log)?.alone(self.cluster.insecure());
        let endpoint = Endpoint::bind(&http, about)?;
        endpoint.announce(true);
        let ending = signals.interrupt.clone();
        let (observers, attached) = (endpoint.observers(), self.files().attached());
        let run = embedded.run_observed(job.clone(), tell, ending, observers, &attached);
        let result = Box::pin(run).await;
        let _ = shown.await;
        let outcome = match result {
            Err(error) if signals.interrupt.is_cancelled() => {
                Err(Failure::Signal { reason: format!("{error:#}"), number: signals.number() })
            }
            Err(error) => Err(Failure::Error(error)),
            Ok(end) => roles::tell_end(&job, &cluster, end, self.files(), attached.collector),
        };
        roles::closed(endpoint, TaskId::CHIEF, outcome, &signals).await
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::DatasetSpec;

    use super::*;

    #[test]
    fn a_useless_data_directory_is_refused() {
        let mut g = GraphBuilder::new("plane");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let graph = g.finish(loss, &[]).unwrap();
        let points =
            || DatasetSpec::Linear { seed: 0, examples: 9, weights: vec![1.0], bias: 0.0, noise: 0.0 };
        let args = TrainArgs::parse_from(["plane", "--data-dir=data"]);
        let Err(Failure::Usage(reason)) = args.run(graph, InputSpec::new(points(), points())) else {
            panic!("it was accepted")
        };
        assert_eq!(reason, "--data-dir is given, but 'plane' does not read files: leave out --data-dir");
    }

    #[test]
    fn an_epoch_takes_fewer_updates_with_sync() {
        let steps = |flags: &[&str]| {
            let mut g = GraphBuilder::new("plane");
            let x = g.input("features", [1]);
            let loss = g.l2_loss(x);
            let points =
                || DatasetSpec::Linear { seed: 0, examples: 100, weights: vec![1.0], bias: 0.0, noise: 0.0 };
            let usual = ["plane", "--epochs=2", "--batch-size=10"];
            let args = TrainArgs::parse_from([&usual[..], flags].concat());
            let cluster = args.cluster.resolve().unwrap_or_else(|_| panic!("a cluster"));
            let input = InputSpec::new(points(), points());
            let Ok(job) = args.job(g.finish(loss, &[]).unwrap(), input, cluster.as_ref()) else {
                panic!("a job")
            };
            job.last_step.0
        };
        let cluster = "--cluster-spec=ps|a:1,worker|b:1;b:2;b:3;b:4;b:5";
        assert_eq!(steps(&[]), 20);
        assert_eq!(steps(&["--workers=4", "--sync=bounded:1"]), 20);
        assert_eq!(steps(&["--accumulate=4"]), 5);
        assert_eq!(steps(&["--accumulate=3", "--sync=sync", "--workers=3"]), 3);
        assert_eq!(steps(&["--sync=sync"]), 10);
        assert_eq!(steps(&["--sync=sync", "--workers=3"]), 7);
        assert_eq!(steps(&["--sync=sync:2", "--workers=4"]), 10);
        assert_eq!(steps(&["--sync=sync:10", "--workers=4"]), 2);
        assert_eq!(steps(&["--sync=sync", cluster, "--job-name=ps"]), 4);
    }

    #[test]
    fn a_data_directory_keeps_files_apart() {
        let mut g = GraphBuilder::new("images");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let graph = g.finish(loss, &[]).unwrap();
        let files = |path: &str| DatasetSpec::Cifar10 { files: vec![path.into()] };
        let args = TrainArgs::parse_from(["images", "--data-dir=data"]);
        let input = InputSpec::new(files("train/data.bin"), files("test/data.bin"));
        let Err(Failure::Error(error)) = args.job(graph, input, None) else { panic!("it was accepted") };
        assert!(error.to_string().starts_with("train/data.bin and test/data.bin would both be "), "{error}");
    }
}
