//! The tool `pushpull local` and its flags.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use pushpull_chief::ChiefConfig;
use pushpull_messages::distribution::DistributionSpec;

use super::flags::{
    DeviceArgs, HangArgs, PsDeviceArgs, PsMemoryArgs, ShardHangArgs, TransportArgs, read_job, shards, threads,
};
use super::join::INSECURE_ENV;
use super::observe::ObserveArgs;
use super::paths::{absolute, check_files, data_directory};
use super::saving::SavingArgs;
use crate::embedded::Embedded;
use crate::programs::cores;
use crate::programs::exit::{Failure, Outcome};
use crate::programs::local::Local;
use crate::programs::logging::Log;
use crate::programs::roles::EndFiles;
use crate::threads::threads_per_worker;

#[derive(Debug, clap::Args)]
pub(super) struct LocalArgs {
    /// Number of ps tasks; with 0, the workers store the variables [default: 1; 0 if the job has a strategy
    /// other than parameter_server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    ps: Option<u32>,
    /// Number of worker tasks [default: 2; 1 if the job has the strategy mirrored, central_storage or
    /// one_device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Option<u32>,
    /// Job file to run; an example writes such a file with --export-job
    #[arg(long, value_name = "FILE")]
    job: PathBuf,
    /// Write the job's report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the trained model to this safetensors file, for `pushpull predict`, the library or Python
    #[arg(long, value_name = "FILE")]
    save_model: Option<PathBuf>,
    /// Print where every variable lives, and where every operation runs
    #[arg(long)]
    log_placement: bool,
    /// Number of shards of each ps task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards())]
    shards: u32,
    #[command(flatten)]
    ps_device: PsDeviceArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hang: HangArgs,
    #[command(flatten)]
    shard_hang: ShardHangArgs,
    #[command(flatten)]
    ps_memory: PsMemoryArgs,
    /// Threads for one step of each worker [default: all cores, divided among the workers]
    #[arg(long, value_name = "N", value_parser = threads())]
    threads: Option<u16>,
    /// Divide the cores among the workers, if each computes with one thread on the processor, and each core
    /// gets equally many of them: true runs each worker on one core, false lets the system choose. Linux only
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    bind_to_core: bool,
    /// No other program computes on this host, so in synchronous jobs, workers with a core each always give
    /// way to the ps task [default: they do while they hardly wait for others]
    #[arg(long)]
    dedicated: bool,
    /// Directory of the data on this host, if it differs from the directory in the job file
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    transport: TransportArgs,
    /// Time limit for all tasks to start, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    start_timeout_s: u64,
    #[command(flatten)]
    saving: SavingArgs,
    /// Let other hosts read the chief's HTTP endpoint although it has no token: everybody who reaches it can
    #[arg(long, env = INSECURE_ENV, value_parser = FalseyValueParser::new())]
    insecure: bool,
    #[command(flatten)]
    observe: ObserveArgs,
}

impl LocalArgs {
    /// Runs the cluster until the job has ended.
    pub(super) fn run(self) -> Outcome {
        // The flags are checked here, so that a mistake is reported once. Otherwise every child would report
        // it.
        check_files(&EndFiles { report: self.report.as_deref(), model: self.save_model.as_deref() })?;
        self.saving.apply(ChiefConfig::default())?;
        let job = read_job(&self.job)?;
        self.saving.hooks(&[], &job)?;
        let ps = self.ps.unwrap_or_else(|| u32::from(job.strategy.is_none_or(DistributionSpec::has_ps)));
        let has_one_worker = job.strategy.is_some_and(DistributionSpec::has_one_worker);
        let workers = self.workers.unwrap_or(if has_one_worker { 1 } else { 2 });
        job.validate_on(&Embedded::new(ps, workers).cluster()?).map_err(Failure::usage)?;
        let http = self.observe.endpoint(&Log::default())?.alone(self.insecure);
        http.check().map_err(Failure::Error)?;
        let (chief_observe, observe) = self.observe.to_flags()?;
        let local = Local {
            ps,
            workers,
            chief_flags: self.chief_flags(chief_observe)?,
            ps_flags: self.ps_flags(&observe)?,
            worker_flags: self.worker_flags(ps, workers, observe)?,
            worker_cores: self.worker_cores(ps, workers)?,
            dedicated: self.dedicated,
            drain_timeout: self.saving.drain_timeout(),
            log_format: self.observe.log_format(),
            job: self.job,
        };
        actix_rt::System::new().block_on(local.run())
    }

    /// Returns the flags of all tasks.
    fn common_flags(&self) -> [String; 2] {
        [format!("--start-timeout-s={}", self.start_timeout_s), self.transport.to_flag()]
    }

    fn chief_flags(&self, observe: Vec<String>) -> Result<Vec<String>, Failure> {
        let mut flags = Vec::from(self.common_flags());
        flags.extend([
            format!("--shard-hung-after-s={}", self.shard_hang.shard_hung_after_s),
            // Nothing starts a lost ps task of this cluster again, so the chief does not wait for one.
            "--ps-lost-after-s=0".to_owned(),
        ]);
        if let Some(report) = &self.report {
            flags.push(format!("--report={}", absolute("--report", report)?.display()));
        }
        if let Some(model) = &self.save_model {
            flags.push(format!("--save-model={}", absolute("--save-model", model)?.display()));
        }
        flags.extend(self.log_placement.then(|| "--log-placement".to_owned()));
        flags.extend(self.insecure.then(|| "--insecure".to_owned()));
        flags.extend(self.saving.to_flags()?);
        flags.extend(observe);
        Ok(flags)
    }

    fn ps_flags(&self, observe: &[String]) -> Result<Vec<String>, Failure> {
        let own = self.common_flags().into_iter();
        Ok(own.chain(self.shard_flags()?).chain(observe.iter().cloned()).collect())
    }

    /// Returns the flags of the tasks that store the variables, about their shards.
    fn shard_flags(&self) -> Result<[String; 4], Failure> {
        let [reply, memory_checkpoint] = self.ps_memory.to_flags();
        Ok([format!("--shards={}", self.shards), reply, memory_checkpoint, self.ps_device.to_flag()?])
    }

    /// Returns the number of threads of each worker.
    fn threads(&self, workers: u32) -> usize {
        self.threads.map_or_else(|| threads_per_worker(workers as usize), usize::from)
    }

    /// Returns the core of each worker; an empty list if the system chooses. Threads that copy from and to
    /// cards are not bound.
    fn worker_cores(&self, ps: u32, workers: u32) -> Result<Vec<usize>, Failure> {
        let devices = self.device.resolve()?;
        let has_card = devices.first_card().is_some() || (ps == 0 && self.ps_device.resolve()?.is_some());
        let alone = self.threads(workers) == 1 && devices.len() == 1 && !has_card;
        Ok(if alone && self.bind_to_core { cores::divide(workers as usize) } else { Vec::new() })
    }

    fn worker_flags(&self, ps: u32, workers: u32, observe: Vec<String>) -> Result<Vec<String>, Failure> {
        let mut flags = Vec::from(self.common_flags());
        flags.extend([
            format!("--threads={}", self.threads(workers)),
            format!("--devices={}", self.device.resolve()?),
            format!("--gpu-memory-fraction={}", self.device.gpu_memory_fraction),
            format!("--precision={}", self.device.precision),
            format!("--soft-placement={}", self.device.soft_placement),
            format!("--hung-after-s={}", self.hang.hung_after_s),
        ]);
        if ps == 0 {
            flags.extend(self.shard_flags()?);
        }
        flags.extend(self.log_placement.then(|| "--log-placement".to_owned()));
        flags.extend(observe);
        if let Some(data_dir) = &self.data_dir {
            flags.push(format!("--data-dir={}", data_directory("--data-dir", data_dir)?.display()));
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::job::JobSpec;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        local: LocalArgs,
    }

    #[test]
    fn flags_of_the_chief_are_checked_before_it_starts() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let points = || DatasetSpec::Digits { seed: 1, examples: 1 };
        let mut g = GraphBuilder::new("nothing");
        let x = g.input("x", [1]);
        let loss = g.l2_loss(x);
        let job = JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(points(), points()), 1);
        std::fs::write(path("job"), job.to_json()).unwrap();
        let refused = |flag: &str| {
            let job = format!("--job={}", path("job"));
            Program::parse_from(["local", &job, flag]).local.run().expect_err("it is refused")
        };
        let Failure::Usage(reason) = refused("--trace-every=3") else { panic!("it is a wrong flag") };
        assert_eq!(reason, "--trace-every has no effect without --trace: add --trace FILE");
        let reason = refused(&format!("--trace={}", path("no/timeline"))).to_string();
        assert!(reason.starts_with("--trace: cannot write the timeline to "), "{reason}");
    }
}
