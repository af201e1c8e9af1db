//! Trains a job of the library as one task of the cluster that the environment describes. The settings have
//! the defaults of the flags.

use clap::Parser;
use pushpull_chief::ChiefConfig;
use pushpull_messages::cluster::ClusterConfig;
use pushpull_messages::id::JobName;
use pushpull_ps::PsConfig;
use pushpull_worker::WorkerConfig;

use super::flags::ClusterArgs;
use super::observe::ObserveArgs;
use super::task::run;
use crate::attached::Attached;
use crate::best::BestKeeper;
use crate::collector::Collector;
use crate::error::Error;
use crate::job::Job;
use crate::programs::exit::{Failure, Outcome, exit_process};
use crate::programs::logging::{self, Log};
use crate::programs::roles::{self, ChiefOrders, EndFiles};
use crate::programs::signal_guard::SignalsKept;
use crate::progress::Watcher;
use crate::threads::threads_per_worker;
use crate::trained::Trained;

/// The settings that are read from the environment.
#[derive(Debug, Parser)]
struct EnvArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Trains `job`. Returns the result if this process hosts the chief; otherwise exits the process when its
/// task has ended. An error that is found before the process knows its task is returned, whatever the task.
pub(crate) fn train_from_env(job: &Job) -> Result<Trained, Error> {
    let args = EnvArgs::try_parse_from(["pushpull"]).map_err(|error| {
        let text = error.to_string();
        Error::Cluster(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })?;
    let resolved = args.cluster.resolve().map_err(|failure| Error::Cluster(failure.to_string()))?;
    let Some(config) = resolved else {
        return Err(Error::Cluster(
            "Cluster::from_env: no cluster is given, expected TF_CONFIG with a cluster and a task".into(),
        ));
    };
    let log = logging::start(&config.task().to_string(), args.observe.log_format());
    if config.task().job == JobName::Chief || config.hosts_chief() {
        lead(job, &args, &config, &log)
    } else {
        exit_process(follow(job, &args, &config, &log))
    }
}

/// Returns the settings of a worker in this process.
fn worker_config(job: &Job, args: &EnvArgs, best: Option<&BestKeeper>) -> WorkerConfig {
    let best = best.map(BestKeeper::hook);
    WorkerConfig {
        threads: threads_per_worker(1),
        start_timeout: args.cluster.start_timeout(),
        hooks: job.hooks.worker.iter().cloned().chain(best).collect(),
        datasets: job.datasets.clone(),
        ..Default::default()
    }
}

/// Returns the settings of a ps task in this process.
fn ps_config(args: &EnvArgs) -> PsConfig {
    PsConfig { start_timeout: args.cluster.start_timeout(), ..Default::default() }
}

/// Runs a task that does not host the chief.
fn follow(job: &Job, args: &EnvArgs, config: &ClusterConfig, log: &Log) -> Outcome {
    let network = args.cluster.network(config, args.observe.endpoint(log)?)?;
    let (task, graph) = (config.task(), Some(job.graph()));
    match task.job {
        JobName::Ps => run(log, roles::ps(config, &network, ps_config(args), graph)),
        JobName::Worker => {
            let settings = (worker_config(job, args, None), ps_config(args));
            run(log, roles::worker(config, &network, settings, graph, None))
        }
        _ => Err(Failure::usage(format!("{task}: run the evaluator with the program pushpull-evaluator"))),
    }
}

/// Runs the task that hosts the chief, and returns the trained job. Signals are handled until the function
/// returns. After that, a signal ends the process at once.
fn lead(job: &Job, args: &EnvArgs, config: &ClusterConfig, log: &Log) -> Result<Trained, Error> {
    let endpoint = args.observe.endpoint(log).map_err(|failure| Error::Cluster(failure.to_string()))?;
    let network =
        args.cluster.network(config, endpoint).map_err(|failure| Error::Cluster(failure.to_string()))?;
    let workers = config.cluster().addresses(JobName::Worker).len() as u32;
    if job.best.is_some() && config.task().job == JobName::Chief {
        return Err(Error::Cluster(
            "keep_best: worker 0 keeps the best values, but it does not run in the chief's process: leave the chief out of the cluster, so that worker 0 runs the chief as well".into(),
        ));
    }
    let best = job.best.clone().map(BestKeeper::new);
    let (spec, collector, watcher) = (job.spec(workers)?, Collector::default(), job.watcher()?);
    let orders = ChiefOrders {
        job: spec.clone(),
        config: ChiefConfig {
            start_timeout: args.cluster.start_timeout(),
            checkpoint: job.checkpoints.clone(),
            ..Default::default()
        },
        files: EndFiles::default(),
        hooks: (job.hooks.chief.iter().cloned())
            .chain(job.stopping_hook())
            .chain(watcher.as_ref().map(Watcher::hook))
            .collect(),
        library: Some(Attached { collector: Some(collector.clone()), stop: Some(job.stop_handle()) }),
    };
    let kept = SignalsKept::begin();
    let outcome: Outcome = match config.task().job {
        JobName::Chief => run(log, roles::chief(config, &network, orders)),
        _ => {
            let settings = (worker_config(job, args, best.as_ref()), ps_config(args));
            run(log, roles::worker(config, &network, settings, Some(job.graph()), Some(orders)))
        }
    };
    drop(kept);
    drop(watcher);
    match outcome {
        Err(failure) if collector.is_complete() => {
            tracing::warn!("a task failed after the job was trained: {failure}");
        }
        Err(Failure::Signal { reason, number }) => return Err(Error::Interrupted { reason, number }),
        Err(Failure::Usage(reason)) => return Err(Error::Cluster(reason)),
        Err(failure) => return Err(Error::Training(failure.to_string())),
        Ok(()) => {}
    }
    Trained::new(&spec, config.cluster(), collector, best.as_ref())
}
