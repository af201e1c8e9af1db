//! The tensors that a worker reads out of training steps, in addition to the loss and the gradients. This
//! module must not depend on devices or connections.

mod metric_cost;
mod plan;

pub(crate) use plan::{FetchPlan, Fetched};
