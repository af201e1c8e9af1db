//! All parts of a cut graph, and the edges between them. Each task cuts the whole graph, which gives the same
//! edges everywhere, and compiles only its own parts. This module must not depend on the memory of a program.
//!
//! Required properties: (A) the values are those of the uncut program, bit for bit; (B) nothing is computed
//! twice, except constants and views; (C) parts that run at the same time never wait for each other in a
//! circle.

use std::collections::{BTreeMap, BTreeSet};

use pushpull_kernels::cpu::Threads;
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::TensorSpec;

use super::edge::Edge;
use super::homes::{Home, homes};
use super::part::Part;
use super::part_ir::PartIr;
use super::spec::Cut;
use super::whole::Whole;
use crate::error::CompileError;
use crate::fuse::reach;
use crate::ir::Value;
use crate::program::Program;

/// All parts of a cut graph.
///
/// Each part runs on a thread of its own, and may wait whenever an instruction reads a column. This cannot
/// end in a circle (C). The list of the whole graph's kernels is a global order: each kernel comes after
/// those whose values it reads. Every part executes its instructions in this order; a merged instruction
/// counts as its last kernel, and reads only values of kernels before that. Now consider the instruction that
/// is the first in the global order among those that have not been executed. The instructions before it,
/// those of its own part and those that compute its inputs, have been executed, and their values were sent at
/// once, because sending never blocks. So this instruction can run. The caller must keep to the same rule: it
/// computes a given node as soon as the inputs of that node have arrived, without waiting for anything else.
pub struct Parts<'a> {
    cut: Cut<'a>,
    whole: Whole,
    homes: Vec<Home>,
    /// For each kernel, true if a wanted value needs it; false for views.
    live: Vec<bool>,
    /// The wanted values: the node, the value that has the node's elements, and the part that wants it.
    wanted: Vec<(NodeId, Value, u32)>,
    /// The edges, in the order of their keys.
    crossings: Vec<Crossing>,
}

/// A value that crosses along an edge. `read` is true if the program of the receiving part reads the value.
struct Crossing {
    value: Value,
    edge: Edge,
    read: bool,
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
        let whole = Whole::lower(&cut)?;
        let value =
            |node: NodeId| whole.ir.root(whole.values[node.index()].expect("a wanted node is needed"));
        let wanted: Vec<_> = cut.wanted.iter().map(|&(node, part)| (node, value(node), part)).collect();
        let targets: BTreeSet<Value> = wanted.iter().map(|&(_, value, _)| value).collect();
        let targets: Vec<Value> = targets.into_iter().collect();
        let live = reach(&whole.ir, targets.iter().copied()).live;
        let homes = homes(&cut, &whole.ir, &targets);
        let mut parts = Self { cut, whole, homes, live, wanted, crossings: Vec::new() };
        parts.connect();
        Ok(parts)
    }

    /// Returns the edges between the parts, and those from a part to itself, in the order of their keys.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.crossings.iter().map(|crossing| &crossing.edge)
    }

    /// Compiles one part, whose kernels may use this number of threads.
    ///
    /// # Errors
    /// If the part needs too much memory.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn compile(&self, part: u32, threads: Threads) -> Result<Part, CompileError> {
        assert!(part < self.cut.parts_count, "part {part} of {}", self.cut.parts_count);
        let here = self.crossings.iter().filter(|crossing| crossing.edge.to == part);
        let (columns, others): (Vec<&Crossing>, Vec<_>) = here.partition(|crossing| crossing.read);
        let received = || columns.iter().chain(&others);
        let index: BTreeMap<Value, usize> =
            received().enumerate().map(|(index, crossing)| (crossing.value, index)).collect();
        let wanted = self.wanted.iter().filter(|&&(_, _, to)| to == part);
        let from_here = self.crossings.iter().filter(|crossing| crossing.edge.from == part);
        let (given, sent): (Vec<&Crossing>, Vec<_>) =
            from_here.partition(|crossing| crossing.edge.given.is_some());
        let edge = |crossing: &&Crossing| crossing.edge.clone();
        Ok(Part {
            program: self.program(part, &columns, &sent, threads)?,
            receives: received().map(edge).collect(),
            sends: sent.iter().map(edge).collect(),
            gives: given.iter().map(edge).collect(),
            wanted: wanted.map(|&(node, value, _)| (node, index[&value])).collect(),
        })
    }

    /// Compiles the kernels that run in one part; `None` if the part sends nothing.
    fn program(
        &self,
        part: u32,
        columns: &[&Crossing],
        sends: &[&Crossing],
        threads: Threads,
    ) -> Result<Option<Program>, CompileError> {
        if sends.is_empty() {
            return Ok(None);
        }
        let mut own = PartIr::new(&self.whole.ir, columns.iter().map(|crossing| crossing.value));
        for (position, home) in self.homes.iter().enumerate() {
            if self.live[position] && *home == Home::Within(part) {
                own.add(position);
            }
        }
        let specs: Vec<&TensorSpec> = columns.iter().map(|crossing| &crossing.edge.spec).collect();
        let send =
            |(sink, crossing): (usize, &&Crossing)| (VariableId(sink as u32), own.value(crossing.value));
        let sends: Vec<(VariableId, Value)> = sends.iter().enumerate().map(send).collect();
        Program::of_part(self.cut.graph, part, &specs, threads, &own.ir, &sends).map(Some)
    }

    /// Finds the values that cross, and numbers their edges in the order of the kernels.
    fn connect(&mut self) {
        let Self { whole: Whole { ir, .. }, homes, live, wanted, .. } = self;
        let wanted = wanted.iter().map(|&(_, value, part)| ((value, part), false));
        let mut crossing: BTreeMap<(Value, u32), bool> = wanted.collect();
        for (node, home) in
            ir.nodes.iter().zip(&*homes).zip(&*live).filter_map(|(own, live)| live.then_some(own))
        {
            let Home::Within(part) = *home else { continue };
            let inputs = node.inputs.iter().map(|&input| ir.root(input));
            let elsewhere = inputs.filter(|input| ![Home::Everywhere, *home].contains(&homes[input.node]));
            crossing.extend(elsewhere.map(|input| ((input, part), true)));
        }
        for (key, ((value, to), read)) in crossing.into_iter().enumerate() {
            let (from, given) = match homes[value.node] {
                Home::Everywhere => (to, None),
                Home::Beside(part) => (part, Some(ir.nodes[value.node].origin)),
                Home::Within(part) => (part, None),
            };
            let spec = match given {
                Some(given) => self.cut.tensors[given.index()].clone().expect("a needed node has a tensor"),
                None => TensorSpec::f32(ir.shape(value).to_vec()),
            };
            let edge = Edge { key: key as u64, from, to, spec, given };
            self.crossings.push(Crossing { value, edge, read });
        }
    }
}
