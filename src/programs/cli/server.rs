//! The program `pushpull-server` and its flags.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pushpull_messages::cluster::{Address, ClusterSpec};
use pushpull_messages::id::TaskId;
use pushpull_ps::ContainerLimits;
use pushpull_session::SessionConfig;

use super::flags::TaskArgs;
use super::join::JoinArgs;
use super::observe::ObserveArgs;
use super::parse::main;
use super::task::run;
use crate::programs::exit::Failure;
use crate::programs::logging;
use crate::programs::loopback::names_loopback;
use crate::programs::server::{Serving, serve};
use crate::server::ServerOptions;

const JOIN_HELP: &str = "File with the cluster's join string, which only its owner can read; servers then encrypt their \
    connections and prove who they are, and clients need a client string. Without a file, the join string is taken from \
    the variable PUSHPULL_JOIN";
const AUTHORITY_HELP: &str = "File of the cluster's authority, for the first task of the cluster: that is the first one \
    that `pushpull session` shows. `pushpull join new` writes such a file. It has the join string, too";
const INSECURE_HELP: &str = "Let other hosts reach this server although it has no join string and no certificate: everybody \
    who reaches it can then run graphs, read and change variables, and take memory. Without this flag, such a server \
    listens only on loopback";

/// The cluster of a server that is started without one.
const DEFAULT_CLUSTER: &str = "local|localhost:2222";

#[derive(Debug, Parser)]
#[command(
    name = "pushpull-server",
    version,
    about = "Run a server for sessions: it holds no model, and runs the graphs of clients until a signal ends it",
    mut_arg("job_name", |arg| arg.help("Job of this task, as the cluster names it")),
    mut_arg("chief_host", |arg| arg.help("Address of the chief")),
    mut_arg("join_file", |arg| arg.help(JOIN_HELP)),
    mut_arg("authority", |arg| arg.help(AUTHORITY_HELP)),
    mut_arg("insecure", |arg| arg.help(INSECURE_HELP))
)]
pub(super) struct ServerArgs {
    #[command(flatten, next_help_heading = "Cluster (default: local|localhost:2222)")]
    task: TaskArgs,
    /// Address to listen at, if it differs from the task's address in the cluster
    #[arg(long, value_name = "HOST:PORT")]
    bind: Option<Address>,
    #[command(flatten)]
    join: JoinArgs,
    /// Number of CPU devices; operations on different devices run at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    devices: u32,
    /// Memory for the variables of all clients, in MiB
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    memory_limit: u64,
    /// Memory for the graphs and the runs of all clients, in MiB
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    run_memory_limit: u64,
    /// Memory for the variables that one client creates, and as much again for its graphs and runs, in MiB
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    client_memory_limit: u64,
    /// Time that runs in progress have to end when a signal ends the server, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3600))]
    drain_s: u64,
    #[command(flatten)]
    observe: ObserveArgs,
}

impl ServerArgs {
    /// Returns the cluster, and this process's task in it.
    fn resolve(&self) -> Result<(ClusterSpec, TaskId), Failure> {
        let mut flags = self.task.flags(self.task.job_name());
        let given = flags.resolve_server().or_else(|error| match error {
            // A job name alone is given with the default cluster.
            pushpull_messages::cluster::ClusterError::NoCluster(_) => Ok(None),
            error => Err(error),
        });
        if let Some(given) = given.map_err(|error| self.task.named(&error))? {
            return Ok(given);
        }
        flags.cluster_spec = Some(DEFAULT_CLUSTER.to_owned());
        let given = flags.resolve_server().map_err(|error| self.task.named(&error))?;
        Ok(given.expect("a cluster is given"))
    }

    /// Returns the address to listen at.
    ///
    /// # Errors
    /// If others than this host can reach the address, unless they must prove who they are or this is wanted.
    fn address(&self, cluster: &ClusterSpec, task: TaskId, proved: bool) -> Result<Address, Failure> {
        let own = cluster.address(task).expect("the task is in its cluster");
        let address = self.bind.clone().unwrap_or_else(|| own.clone());
        if !proved && !self.join.insecure() && !names_loopback(address.host()) {
            let flag = if self.bind.is_some() { "--bind" } else { "--cluster-spec" };
            return Err(Failure::Usage(format!(
                "{flag}: the server would listen at {address}, where other hosts may reach it, and peers need no proof \
                 of identity: give it a join string with --join-file or a certificate with --tls-cert, listen on loopback, such \
                 as localhost:{}, or pass --insecure",
                address.port()
            )));
        }
        Ok(address)
    }
}

/// Runs the program `pushpull-server`.
pub fn server_main() -> ExitCode {
    main(|args: ServerArgs| {
        let (cluster, task) = args.resolve()?;
        let credentials = args.join.server_credentials(&cluster, task)?;
        let address = args.address(&cluster, task, credentials.is_some())?;
        let insecure = args.join.insecure();
        let log = logging::start(&task.to_string(), args.observe.log_format());
        let client_bytes_max = args.client_memory_limit << 20;
        let options = ServerOptions {
            cpus: args.devices,
            limits: ContainerLimits { bytes_max: args.memory_limit << 20, client_bytes_max },
            config: SessionConfig {
                bytes_max: args.run_memory_limit << 20,
                client_bytes_max,
                drain: Duration::from_secs(args.drain_s),
                ..SessionConfig::default()
            },
        };
        let http = args.observe.endpoint(&log)?.identified(credentials.clone(), insecure);
        run(&log, serve(Serving { cluster, task, address, credentials, insecure, options, http }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<(TaskId, String), String> {
        read_as(args, false)
    }

    /// Reads a command line. `proved` is whether the server has a join string.
    fn read_as(args: &[&str], proved: bool) -> Result<(TaskId, String), String> {
        let args = ServerArgs::try_parse_from(std::iter::once(&"pushpull-server").chain(args)).unwrap();
        let resolve = || {
            let (cluster, task) = args.resolve()?;
            Ok((task, args.address(&cluster, task, proved)?.to_string()))
        };
        resolve().map_err(|failure: Failure| failure.to_string())
    }

    #[test]
    fn a_server_is_any_task_of_any_cluster() {
        for (args, task, address) in [
            (&[][..], "local/0", "localhost:2222"),
            (&["--job-name=local", "--task-index=0"], "local/0", "localhost:2222"),
            (
                &["--cluster-spec=local|localhost:2222;localhost:2223", "--task-index=1"],
                "local/1",
                "localhost:2223",
            ),
            (
                &["--cluster-spec=trainer|127.0.0.1:1,ps|[::1]:2", "--job-name=ps", "--task-index=0"],
                "ps/0",
                "[::1]:2",
            ),
            (&["--cluster-spec=a|far:1", "--bind=127.0.0.1:9"], "a/0", "127.0.0.1:9"),
            (&["--cluster-spec=a|far:1", "--insecure"], "a/0", "far:1"),
        ] {
            let (got, at) = read(args).unwrap();
            assert_eq!((got.to_string().as_str(), at.as_str()), (task, address), "{args:?}");
        }
    }

    #[test]
    fn other_hosts_are_let_in_only_if_that_is_said() {
        let error = read(&["--cluster-spec=a|far:7"]).unwrap_err();
        assert_eq!(
            error,
            "--cluster-spec: the server would listen at far:7, where other hosts may reach it, and peers need no proof \
             of identity: give it a join string with --join-file or a certificate with --tls-cert, listen on loopback, such as \
             localhost:7, or pass --insecure"
        );
        let error = read(&["--cluster-spec=a|localhost:7", "--bind=0.0.0.0:7"]).unwrap_err();
        assert!(error.starts_with("--bind: the server would listen at 0.0.0.0:7"), "{error}");
        let (_, address) = read_as(&["--cluster-spec=a|far:7"], true).unwrap();
        assert_eq!(address, "far:7", "others must prove who they are");
    }
}
