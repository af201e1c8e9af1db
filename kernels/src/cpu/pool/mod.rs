//! Pooling: the maximum or the mean of each channel in windows of images (`[n, h, w, channels]`), and their
//! gradients.
//!
//! A window is cut off at the image's edge, so a maximum or mean does not include padding. This module must
//! not depend on layers.

mod average;
mod geometry;
mod global;
mod max;

pub use average::{average_pool, average_pool_grad};
pub use geometry::Pool2d;
pub use global::{global_average_pool, global_average_pool_grad};
pub use max::{max_pool, max_pool_grad};

#[cfg(test)]
mod tests;
