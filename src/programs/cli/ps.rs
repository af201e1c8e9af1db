//! The program `pushpull-ps` and its flags.

use std::process::ExitCode;

use clap::Parser;
use pushpull_messages::id::JobName;
use pushpull_ps::PsConfig;

use super::flags::{ClusterArgs, LeaseArgs, PsDeviceArgs, PsMemoryArgs, shards};
use super::observe::ObserveArgs;
use super::parse::main;
use super::task::run;
use crate::programs::{logging, roles};

#[derive(Debug, Parser)]
#[command(name = "pushpull-ps", version, about = "Run a ps task of a cluster, which stores variables")]
pub(super) struct PsArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of shards; each shard of 1 MiB or more runs on a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards())]
    shards: u32,
    #[command(flatten)]
    device: PsDeviceArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    memory: PsMemoryArgs,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Runs the program `pushpull-ps`.
pub fn ps_main() -> ExitCode {
    main(|args: PsArgs| {
        let cluster = args.cluster.resolve_as(JobName::Ps)?;
        let log = logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(args.observe.endpoint(&log)?);
        let config = args.memory.apply(PsConfig {
            shards: args.shards,
            start_timeout: args.cluster.start_timeout(),
            chief_lease: args.lease.time(),
            device: args.device.resolve()?,
            ..Default::default()
        });
        run(&log, roles::ps(&cluster, &network, config, None))
    })
}
