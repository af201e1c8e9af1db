//! The kernels of a whole graph, spread over parts, and the values that cross between the parts. Sessions and
//! jobs cut their graphs with it. This module must not depend on what callers want from the parts.
//!
//! Required properties: (A) the values are those of the uncut program, bit for bit; (B) nothing is computed
//! twice, except constants and views; (C) parts that run at the same time never wait for each other in a
//! circle.

use std::collections::BTreeMap;

use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::TensorSpec;

use super::edge::Edge;
use super::homes::{Home, homes};
use super::part_ir::PartIr;
use crate::error::CompileError;
use crate::fuse::reach;
use crate::ir::{Ir, Value};
use crate::program::Program;

/// The kernels of a whole graph, and the part in which each of them runs.
///
/// A part may wait whenever an instruction reads a column. This cannot end in a circle (C), if each part runs
/// on a thread of its own, or one thread advances all parts that can go on. The list of the whole graph's
/// kernels is a global order: each kernel comes after those whose values it reads. Every part executes its
/// instructions in this order; a merged instruction counts as its last kernel, and reads only values of
/// kernels before that. Now consider the instruction that is the first in the global order among those that
/// have not been executed. The instructions before it, those of its own part and those that compute its
/// inputs, have been executed, and their values were sent at once, because sending never blocks. So this
/// instruction can run. The caller must keep to the same rule: it sends the value of a given node as soon as
/// it has it, and computes it as soon as the inputs of that node have arrived, without waiting for anything
/// else.
pub(super) struct Split {
    pub ir: Ir,
    homes: Vec<Home>,
    /// For each kernel, true if a wanted value needs it; false for views.
    live: Vec<bool>,
    /// The values that cross, in the order of the keys of their edges.
    pub crossings: Vec<Crossing>,
}

/// A value that crosses along an edge. `read` is true if the program of the receiving part reads the value.
pub(super) struct Crossing {
    pub value: Value,
    pub edge: Edge,
    pub read: bool,
}

impl Split {
    /// Spreads the kernels that the wanted values need. `part` returns the part of a node.
    pub fn new(ir: Ir, part: impl Fn(NodeId) -> u32, wanted: impl IntoIterator<Item = Value>) -> Self {
        let targets: Vec<Value> = wanted.into_iter().map(|value| ir.root(value)).collect();
        let live = reach(&ir, targets.iter().copied()).live;
        let homes = homes(part, &ir, &targets);
        Self { ir, homes, live, crossings: Vec::new() }
    }

    /// Returns the place where the value of a kernel comes from.
    pub fn home(&self, value: Value) -> Home {
        self.homes[value.node]
    }

    /// Finds the values that cross, and numbers their edges in the order of the kernels. A value crosses if a
    /// kernel of another part reads it, or if it is given. The values in `wanted` cross to a part as well,
    /// which may be their own. `tensor` returns the tensor of a given node.
    pub fn connect(
        &mut self,
        wanted: impl Iterator<Item = (Value, u32)>,
        tensor: impl Fn(NodeId) -> TensorSpec,
    ) {
        let Self { ir, homes, live, .. } = self;
        let wanted = wanted.map(|(value, part)| ((ir.root(value), part), false));
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
            let spec = given.map_or_else(|| TensorSpec::f32(ir.shape(value).to_vec()), &tensor);
            let edge = Edge { key: key as u64, from, to, spec, given };
            self.crossings.push(Crossing { value, edge, read });
        }
    }

    /// Returns the values that the program of a part reads: its columns.
    pub fn columns(&self, part: u32) -> impl Iterator<Item = &Crossing> {
        self.crossings.iter().filter(move |crossing| crossing.edge.to == part && crossing.read)
    }

    /// Returns the values that the program of a part computes and that cross.
    pub fn sends(&self, part: u32) -> impl Iterator<Item = &Crossing> {
        self.from(part).filter(|crossing| crossing.edge.given.is_none())
    }

    /// Returns the edges along which the given values of a part cross.
    pub fn gives(&self, part: u32) -> impl Iterator<Item = &Crossing> {
        self.from(part).filter(|crossing| crossing.edge.given.is_some())
    }

    fn from(&self, part: u32) -> impl Iterator<Item = &Crossing> {
        self.crossings.iter().filter(move |crossing| crossing.edge.from == part)
    }

    /// Compiles the kernels that run in one part. The program reads the part's [`columns`](Self::columns),
    /// and writes these values to its sink. Returns `None` if there are none.
    ///
    /// # Errors
    /// If the part needs too much memory.
    pub fn program(
        &self,
        graph: &GraphSpec,
        part: u32,
        sinks: &[Value],
        threads: Threads,
    ) -> Result<Option<Program>, CompileError> {
        if sinks.is_empty() {
            return Ok(None);
        }
        let mut own = PartIr::new(&self.ir, self.columns(part).map(|crossing| crossing.value));
        for (position, home) in self.homes.iter().enumerate() {
            if self.live[position] && *home == Home::Within(part) {
                own.add(position);
            }
        }
        let specs: Vec<&TensorSpec> = self.columns(part).map(|crossing| &crossing.edge.spec).collect();
        let sink = |(sink, &value): (usize, &Value)| (VariableId(sink as u32), own.value(value));
        let sinks: Vec<(VariableId, Value)> = sinks.iter().enumerate().map(sink).collect();
        Program::of_part(graph, part, &specs, threads, &own.ir, &sinks).map(Some)
    }
}
