//! The program `pushpull`: tools for a job, its checkpoints, its model and its progress.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use pushpull_identity::{HttpsClient, TlsFiles};

use super::checkpoint::CheckpointTool;
use super::join::{JOIN_ENV, JoinTool, join_string};
use super::local::LocalArgs;
use super::parse::main;
use super::predict::PredictArgs;
use super::session::SessionArgs;
use crate::programs::exit::{Failure, Outcome};
use crate::programs::http::{TOKEN_ENV, Token};
use crate::programs::top::{Pass, Top};

#[derive(Debug, Parser)]
#[command(
    name = "pushpull",
    version,
    about = "Tools of the parameter server pushpull",
    arg_required_else_help = false
)]
pub(super) struct ToolArgs {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Run a job on this machine, with one process for each task
    Local(Box<LocalArgs>),
    /// List, show, verify, export and import checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointTool),
    /// Make the join string with which the tasks of a job prove who they are, or print what clients of their
    /// HTTP endpoints need
    #[command(subcommand)]
    Join(JoinTool),
    /// Predict with a trained model: print one line for each example of a data set
    Predict(PredictArgs),
    /// Show the devices and variables of a cluster of servers, or evaluate a job's model with them
    Session(SessionArgs),
    /// Show the progress of a job in this terminal
    Top(TopArgs),
}

#[derive(Debug, clap::Args)]
struct TopArgs {
    /// HTTP address of the chief, or its URL. With --join-file or --tls-ca, a chief on another host is asked
    /// over HTTPS
    #[arg(long, value_name = "HOST:PORT")]
    chief: String,
    /// File with the job's join string, for a chief on another host: the chief must prove that it belongs to
    /// the job, and gets the token that `pushpull join token` prints. Without a file, the join string is
    /// taken from the variable PUSHPULL_JOIN
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
    /// File with the certificates of authorities, as PEM, for a chief on another host that was started with
    /// --tls-cert: its certificate must name the host in --chief, as for a browser. Give the chief's token,
    /// too
    #[arg(long, env = TlsFiles::CA_ENV, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// File with the chief's token, if the chief was given one; without a file, the token is taken from the
    /// variable PUSHPULL_HTTP_TOKEN
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Time between two updates of the display, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval_s: u64,
    /// Print the current state once, and exit
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    /// Shows the job until it has ended.
    fn run(self) -> Outcome {
        let Self { chief, join_file, tls_ca, http_token_file, interval_s, once } = self;
        let env = |name| std::env::var(name).ok();
        let join = join_string(join_file.as_deref(), env(JOIN_ENV).as_deref())?;
        if join.is_some() && tls_ca.is_some() {
            return Err(Failure::usage(
                "a join string and --tls-ca both say which chief is trusted: leave out one of the two",
            ));
        }
        let authorities = tls_ca.as_deref().map(HttpsClient::of_authorities);
        let authorities = authorities.transpose().map_err(Failure::usage)?;
        let token = Token::read(http_token_file.as_deref(), env(TOKEN_ENV).as_deref());
        let token = token.map_err(|error| Failure::Usage(format!("{error:#}")))?;
        Top { chief, pass: Pass { join, authorities, token }, every: Duration::from_secs(interval_s), once }
            .run()
    }
}

/// Runs the program `pushpull`.
pub fn local_main() -> ExitCode {
    main(|ToolArgs { tool }: ToolArgs| match tool {
        Tool::Local(args) => args.run(),
        Tool::Checkpoint(tool) => actix_rt::System::new().block_on(tool.run()),
        Tool::Join(tool) => tool.run(),
        Tool::Predict(args) => args.run(),
        Tool::Session(args) => args.run(),
        Tool::Top(args) => args.run(),
    })
}
