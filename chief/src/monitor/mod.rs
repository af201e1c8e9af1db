//! Watches a running job: queries the shards, counts what workers report, and calls the hooks. Decides
//! nothing.

mod feed;
mod hook_runner;
mod report_ledger;
mod shard_monitor;
mod training_snapshot;

pub(crate) use feed::{Feed, FeedReader, HookEvent};
pub(crate) use hook_runner::HookRunner;
pub(crate) use report_ledger::{LatestReport, ReportLedger};
pub(crate) use shard_monitor::ShardMonitor;
pub use training_snapshot::{TrainingSnapshot, WorkerReport};
