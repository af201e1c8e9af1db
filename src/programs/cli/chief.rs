//! The program `pushpull-chief` and its flags.

use std::process::ExitCode;

use clap::Parser;
use pushpull_messages::id::JobName;

use super::flags::ClusterArgs;
use super::job::JobArgs;
use super::observe::ObserveArgs;
use super::parse::main;
use super::task::run;
use crate::programs::{logging, roles};

#[derive(Debug, Parser)]
#[command(
    name = "pushpull-chief",
    version,
    about = "Run the chief task of a cluster, which controls the whole job"
)]
pub(super) struct ChiefArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    orders: JobArgs,
    /// Print where every variable lives
    #[arg(long)]
    log_placement: bool,
    #[command(flatten)]
    observe: ObserveArgs,
}

/// Runs the program `pushpull-chief`.
pub fn chief_main() -> ExitCode {
    main(|args: ChiefArgs| {
        let cluster = args.cluster.resolve_as(JobName::Chief)?;
        let orders = args.orders.orders(&args.cluster, "the chief", args.log_placement)?;
        let log = logging::start(&cluster.task().to_string(), args.observe.log_format());
        let network = args.cluster.network(&cluster, args.observe.endpoint(&log)?)?;
        run(&log, roles::chief(&cluster, &network, orders))
    })
}
