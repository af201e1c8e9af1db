//! How the values of a run leave a stage. This module must not depend on programs.

use pushpull_engine::Edge;
use pushpull_transport::buffer::Payload;

/// The way on which the values of one run leave and arrive.
pub(super) trait Transfers: Sync {
    /// Sends a value of a micro-batch along an edge. Does not block.
    fn send(&self, edge: &Edge, micro_batch: u32, value: Payload);

    /// Prepares the arrival of a micro-batch's value along an edge. Does not block.
    fn expect(&self, edge: &Edge, micro_batch: u32);
}
