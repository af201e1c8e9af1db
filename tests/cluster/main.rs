//! Tests that need two tasks at once: the real programs on loopback, and the embedded cluster, driven by
//! users and by enemies. Knows the programs by their flags, exit statuses, logs and reports, and the wire as
//! any peer may.

#[path = "../support/browser.rs"]
mod browser;
mod harness;
#[path = "../support/promtool.rs"]
mod promtool;
#[path = "../support/venv.rs"]
mod venv;

mod accuracy;
mod bad_data;
mod bad_flags;
mod bad_peers;
mod checkpoint_tool;
mod checkpoints;
mod devices;
mod embedded;
mod evaluator;
mod faults;
mod hooks;
mod hostile;
mod input;
mod leaving;
mod local;
mod modes;
mod observing;
mod rejoining;
mod signals;
mod starting;
mod synchronous;
mod training;
mod updates;
