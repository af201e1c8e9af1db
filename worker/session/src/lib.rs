//! Runs graphs for clients. A server keeps graphs and runs parts of them: it places each node on a device of
//! a task, has every task run its part, and sends the values that cross between tasks. This crate must not
//! depend on the storage of variables, on data sets or on training jobs.

#![forbid(unsafe_code)]

mod config;
mod control;
mod device;
mod error;
mod follow;
mod graphs;
mod host;
mod inbox;
mod lead;
mod memory;
mod meter;
mod open;
mod part;
mod parts;
mod payload;
mod peers;
mod placement;
mod plan;
mod read_only;
mod reads;
mod run;
mod runs;
mod server;
mod service;
mod small;
mod state;
mod threads;
mod variables;
mod view;

pub use config::{SessionConfig, SessionConfigError};
pub use device::Devices;
pub use error::{RunError, SessionError, Unreachable};
pub use payload::{payload_of, payload_of_bytes, tensors_of};
pub use server::SessionServer;
pub use variables::{Declared, VariableError, Variables};
pub use view::SessionView;
