//! The flags of a role binary that hosts the chief: the job file, the report, the model and
//! the checkpoints.

use std::path::PathBuf;

use pushpull_chief::ChiefConfig;

use super::flags::{ClusterArgs, PsFailureArgs, read_job};
use super::paths::check_files;
use super::saving::SavingArgs;
use crate::programs::exit::Failure;
use crate::programs::roles::{ChiefOrders, EndFiles};

/// The flags of the task that hosts the chief.
#[derive(Debug, clap::Args)]
pub(super) struct JobArgs {
    /// Job file to run; an example writes such a file with --export-job
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Write the job's report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the trained model to this safetensors file, for `pushpull predict`, the library or Python
    #[arg(long, value_name = "FILE")]
    save_model: Option<PathBuf>,
    #[command(flatten)]
    ps_failure: PsFailureArgs,
    #[command(flatten)]
    saving: SavingArgs,
}

impl JobArgs {
    /// Reads the job and checks the flags. `host` is the name of the task that needs the job; if no job is
    /// given, the error begins with this name.
    pub(super) fn orders(
        &self,
        cluster: &ClusterArgs,
        host: &str,
        log_placement: bool,
    ) -> Result<ChiefOrders<'_>, Failure> {
        let Some(job) = &self.job else {
            return Err(Failure::Usage(format!("{host} needs --job FILE")));
        };
        let config = self.ps_failure.apply(ChiefConfig {
            start_timeout: cluster.start_timeout(),
            log_placement,
            ..Default::default()
        });
        let files = EndFiles { report: self.report.as_deref(), model: self.save_model.as_deref() };
        check_files(&files)?;
        let (config, job) = (self.saving.apply(config)?, read_job(job)?);
        let hooks = self.saving.hooks(&[], &job)?;
        Ok(ChiefOrders { job, config, files, hooks, library: None })
    }
}
