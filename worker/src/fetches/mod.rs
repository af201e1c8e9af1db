//! The tensors that a worker reads out of training steps, in addition to the loss and the gradients. This
//! module must not depend on devices or connections.

mod config;
mod error;
mod limits;
mod metric_cost;
mod plan;
mod similar;

pub use config::FetchConfig;
pub(crate) use config::WantedGradient;
pub use error::FetchError;
pub use limits::{FETCH_BYTES_MAX, FETCH_NAMES_MAX};
pub use plan::FetchedTensor;
pub(crate) use plan::{FetchPlan, FetchedPart, StepFetches};
