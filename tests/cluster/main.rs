//! Tests that need at least two tasks: the real programs on loopback and embedded clusters, with ordinary
//! users and with hostile peers. They depend only on flags, exit statuses, logs, reports and the public
//! protocol.

#[cfg(target_os = "linux")]
#[path = "../support/anybody.rs"]
mod anybody;
#[path = "../support/browser.rs"]
mod browser;
mod harness;
#[path = "../support/organisation.rs"]
mod organisation;
#[path = "../support/promtool.rs"]
mod promtool;
#[path = "../support/secret.rs"]
mod secret;
#[path = "../support/venv.rs"]
mod venv;

mod accuracy;
#[cfg(target_os = "linux")]
mod attacks;
mod bad_data;
mod bad_flags;
mod bad_peers;
mod certified;
mod checkpoint_tool;
mod checkpoints;
mod compressing;
mod cuda;
mod devices;
mod elastic;
mod embedded;
mod evaluator;
mod faults;
#[cfg(target_os = "linux")]
mod hanging;
mod hooks;
mod hostile;
mod input;
mod joining;
mod leaving;
mod library;
mod local;
mod memory_checkpoints;
mod mirrored;
mod modes;
mod observing;
#[cfg(target_os = "linux")]
mod one_host;
mod predicting;
mod pushing;
mod rejoining;
mod returning;
mod rolling_back;
mod routes;
mod signals;
mod stages;
mod starting;
mod synchronous;
mod training;
mod updates;
