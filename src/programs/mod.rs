//! The programs: flags, endpoints, the page, `top`, logs, signals, the role binaries and the tools. They run
//! as processes of their own, and are compiled only with the feature `programs`. The rest of the library
//! does not depend on them.

mod checkpoint;
mod cli;
mod cores;
mod exit;
mod exposure;
mod format;
mod http;
mod listen;
mod local;
mod logging;
mod loopback;
mod open_files;
mod parent;
mod progress;
mod roles;
mod rows;
mod server;
mod settings;
mod shared;
mod signal_guard;
mod signals;
mod top;

pub(crate) use cli::train_from_env;
pub use cli::{
    Defaults, TrainArgs, chief_main, evaluator_main, evaluator_main_with, local_main, main, main_from,
    main_with, ps_main, server_main, worker_main, worker_main_with,
};
pub use exit::{Failure, Outcome};
#[cfg(feature = "fuzz")]
pub use http::fuzz;
