//! A part of a cut graph: its program, and the values that it receives and sends. This module must not depend
//! on the whole graph.

use pushpull_messages::id::NodeId;

use super::edge::Edge;
use crate::program::Program;

/// A part of a cut graph.
#[derive(Debug)]
pub struct Part {
    /// The program, which [`Executor::run_part`](crate::Executor::run_part) runs; `None` if the part computes
    /// nothing.
    pub program: Option<Program>,
    /// The values that the part receives. The first ones are the program's columns: column i is the value of
    /// edge i. The others are only wanted by the caller.
    pub receives: Vec<Edge>,
    /// The values that the program sends: the sink's variable i is the value of edge i.
    pub sends: Vec<Edge>,
    /// The values of given nodes of this part, which the caller sends.
    pub gives: Vec<Edge>,
    /// The wanted values that are delivered to this part: the node, and the index of the edge in `receives`.
    /// The value has the shape of the node's tensor.
    pub wanted: Vec<(NodeId, usize)>,
}
