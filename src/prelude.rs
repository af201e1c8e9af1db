//! The names that most programs need: `use pushpull::prelude::*;`.

pub use crate::nn::{Layer, conv2d, dense, flatten, max_pool};
pub use crate::{
    Cluster, DatasetSpec, Error, Examples, GraphBuilder, InputSpec, Job, Model, OptimizerSpec, SyncSpec,
    Trained,
};
