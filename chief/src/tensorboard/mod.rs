//! The output of a job for TensorBoard: the metrics that are plotted, and the files with the plots.

mod collect;
mod config;
mod events;
mod graph;
mod image;
mod proto;
mod text;

pub(crate) use collect::Collector;
pub use collect::evaluated;
pub use config::SummaryConfig;
pub use events::{EventError, EventWriter};
