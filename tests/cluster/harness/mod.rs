//! The harness of these tests: supervised programs, clusters whose tasks are started one by one, job files,
//! reports, snapshots of running shards, and an unreliable network. Tests wait for a condition with a
//! deadline, and never for a fixed time.

mod cluster;
mod endpoint;
#[cfg(target_os = "linux")]
mod frozen_thread;
mod hostile_bytes;
mod idx;
mod job;
mod joined;
mod model;
mod policies;
#[path = "../../support/ports.rs"]
mod ports;
mod program;
mod proxy;
mod real_data;
mod report;
mod running;
mod slowed;
mod spy;
mod two_shards;
mod wait;

pub(crate) use cluster::{Cluster, all_end_well};
pub(crate) use endpoint::{Endpoint, Metrics};
#[cfg(target_os = "linux")]
pub(crate) use frozen_thread::freeze_shards;
pub(crate) use hostile_bytes::{frame, noise, prefix};
pub(crate) use idx::TinyDigits;
pub(crate) use job::Job;
pub(crate) use joined::{Joined, TCP, write_secret};
pub(crate) use model::write_model;
pub(crate) use policies::under_each;
pub(crate) use ports::free_port;
pub(crate) use program::{Ended, Program, example, example_called, linear_regression, mnist, role, tool};
pub(crate) use proxy::{Proxy, Rates};
pub(crate) use real_data::{data_dir, mnist_dir};
pub(crate) use report::Report;
pub(crate) use running::{ENDLESS, Running};
pub(crate) use slowed::Slowed;
pub(crate) use spy::{wait_for_shard, wait_for_version, whisper};
pub(crate) use two_shards::{TwoShards, create_order, ones};
pub(crate) use wait::{PATIENCE, wait_until};
