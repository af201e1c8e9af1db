//! The program `pushpull`: tools for a job, its checkpoints, its model and its progress.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::checkpoint::CheckpointTool;
use super::join::JoinTool;
use super::local::LocalArgs;
use super::parse::main;
use super::predict::PredictArgs;
use super::session::SessionArgs;
use crate::programs::top::Top;

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
    /// Make the join string with which the tasks of a job prove who they are
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
    /// HTTP address of the chief
    #[arg(long, value_name = "HOST:PORT")]
    chief: String,
    /// Time between two updates of the display, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval_s: u64,
    /// Print the current state once, and exit
    #[arg(long)]
    once: bool,
}

/// Runs the program `pushpull`.
pub fn local_main() -> ExitCode {
    main(|ToolArgs { tool }: ToolArgs| match tool {
        Tool::Local(args) => args.run(),
        Tool::Checkpoint(tool) => actix_rt::System::new().block_on(tool.run()),
        Tool::Join(tool) => tool.run(),
        Tool::Predict(args) => args.run(),
        Tool::Session(args) => args.run(),
        Tool::Top(TopArgs { chief, interval_s, once }) => {
            Top { chief, every: Duration::from_secs(interval_s), once }.run()
        }
    })
}
