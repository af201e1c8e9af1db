//! All parts of a graph that a session cuts, and the edges between them. Each task cuts the whole graph,
//! which gives the same edges everywhere, and compiles only its own parts. This module must not depend on the
//! memory of a program.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::NodeId;

use super::edge::Edge;
use super::part::Part;
use super::spec::Cut;
use super::split::{Crossing, Split};
use super::whole::Whole;
use crate::error::CompileError;
use crate::ir::Value;

/// All parts of a cut graph. They compute the values of the uncut graph, bit for bit.
///
/// Each part runs on a thread of its own, and may wait whenever an instruction reads a column. This cannot
/// end in a circle, if the caller computes a given node as soon as the inputs of that node have arrived,
/// without waiting for anything else.
pub struct Parts<'a> {
    cut: Cut<'a>,
    split: Split,
    /// The wanted values: the node, the value that has the node's elements, and the part that wants it.
    wanted: Vec<(NodeId, Value, u32)>,
}

impl<'a> Parts<'a> {
    /// Lowers and differentiates the needed nodes, and finds the edges between the parts.
    ///
    /// # Errors
    /// If an operation cannot be lowered or differentiated.
    ///
    /// # Panics
    /// If the cut is not as [`Cut`] demands.
    pub fn new(cut: Cut<'a>) -> Result<Self, CompileError> {
        let nodes = cut.graph.nodes.len();
        assert!(
            [cut.tensors.len(), cut.parts.len(), cut.given.len()] == [nodes; 3],
            "a list is not of {nodes} nodes"
        );
        let below = |part: u32| part < cut.parts_count;
        let wanted_parts = cut.wanted.iter().map(|&(_, part)| part);
        assert!(cut.parts.iter().flatten().copied().chain(wanted_parts).all(below), "a part is out of range");
        let Whole { ir, values } = Whole::lower(&cut)?;
        let value = |node: NodeId| ir.root(values[node.index()].expect("a wanted node is needed"));
        let wanted: Vec<_> = cut.wanted.iter().map(|&(node, part)| (node, value(node), part)).collect();
        let targets: BTreeSet<Value> = wanted.iter().map(|&(_, value, _)| value).collect();
        let part = |node: NodeId| cut.parts[node.index()].expect("a needed node has a part");
        let tensor = |node: NodeId| cut.tensors[node.index()].clone().expect("a needed node has a tensor");
        let mut split = Split::new(ir, part, targets);
        split.connect(wanted.iter().map(|&(_, value, part)| (value, part)), tensor);
        Ok(Self { cut, split, wanted })
    }

    /// Returns the edges between the parts, and those from a part to itself, in the order of their keys.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.split.crossings.iter().map(|crossing| &crossing.edge)
    }

    /// Compiles one part, whose kernels may use this number of threads.
    ///
    /// # Errors
    /// If the part needs too much memory.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn compile(&self, part: u32, threads: Threads) -> Result<Part, CompileError> {
        let Self { cut, split, wanted } = self;
        assert!(part < cut.parts_count, "part {part} of {}", cut.parts_count);
        let others = split.crossings.iter().filter(|crossing| crossing.edge.to == part && !crossing.read);
        let received: Vec<&Crossing> = split.columns(part).chain(others).collect();
        let index: BTreeMap<Value, usize> =
            received.iter().enumerate().map(|(index, crossing)| (crossing.value, index)).collect();
        let wanted = wanted.iter().filter(|&&(_, _, to)| to == part);
        let sinks: Vec<Value> = split.sends(part).map(|crossing| crossing.value).collect();
        let edge = |crossing: &Crossing| crossing.edge.clone();
        Ok(Part {
            program: split.program(cut.graph, part, &sinks, threads)?,
            receives: received.into_iter().map(edge).collect(),
            sends: split.sends(part).map(edge).collect(),
            gives: split.gives(part).map(edge).collect(),
            wanted: wanted.map(|&(node, value, _)| (node, index[&value])).collect(),
        })
    }
}
