//! Command lines: flags of every program, and how a program begins and ends.

mod checkpoint;
mod defaults;
mod evaluator;
mod flags;
mod observe;
mod parse;
mod programs;
mod saving;
mod settings;
mod train;
mod updates;

pub use defaults::Defaults;
pub use evaluator::evaluator_main;
pub use parse::{main, main_with};
pub use programs::{chief_main, local_main, ps_main, worker_main};
pub use train::TrainArgs;

pub(crate) use settings::{Setting, settings};
