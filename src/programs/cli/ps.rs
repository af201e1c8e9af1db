//! The program `pushpull-ps` and its flags.

use std::process::ExitCode;

use clap::Parser;
use pushpull_messages::id::JobName;

use super::flags::{ClusterArgs, PsSettingArgs};
use super::observe::ObserveArgs;
use super::parse::main;
use super::task::run;
use crate::programs::{logging, roles};

#[derive(Debug, Parser)]
#[command(name = "pushpull-ps", version, about = "Run a ps task of a cluster, which stores variables")]
pub(super) struct PsArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    settings: PsSettingArgs,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Runs the program `pushpull-ps`.
pub fn ps_main() -> ExitCode {
    main(|args: PsArgs| {
        let cluster = args.cluster.resolve_as(JobName::Ps)?;
        let log = logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(&cluster, args.observe.endpoint(&log)?)?;
        let config = args.settings.config(&args.cluster)?;
        run(&log, roles::ps(&cluster, &network, config, None))
    })
}
