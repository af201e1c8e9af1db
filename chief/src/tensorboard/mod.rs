//! What a job plots for TensorBoard: the numbers, and the files that they are written to.

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
