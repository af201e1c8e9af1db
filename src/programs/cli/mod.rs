//! The command lines: the flags of every program, and how a program starts and ends.

mod checkpoint;
mod chief;
mod compress;
mod evaluator;
mod example_defaults;
mod flags;
mod from_env;
mod groups;
mod input;
mod job;
mod join;
mod local;
mod observe;
mod optimizers;
mod parse;
mod paths;
mod plots;
mod predict;
mod ps;
#[cfg(test)]
mod reference;
mod saving;
mod server;
mod session;
mod settings;
mod task;
mod tls;
mod tool;
mod train;
mod updates;
mod worker;

pub use chief::chief_main;
pub use evaluator::{evaluator_main, evaluator_main_with};
pub use example_defaults::Defaults;
pub(crate) use from_env::train_from_env;
pub(crate) use join::{AUTHORITY_ENV, JOIN_ENV};
pub use parse::{main, main_from, main_with};
pub use ps::ps_main;
pub use server::server_main;
pub use tool::local_main;
pub use train::TrainArgs;
pub use worker::{worker_main, worker_main_with};
