//! The kernels of one part, while they are taken from the whole graph. This module must not depend on edges.

use std::collections::BTreeMap;

use crate::ir::{Ir, Kernel, Value};

/// The kernels of one part, in the order of the whole graph.
pub(super) struct PartIr<'a> {
    whole: &'a Ir,
    pub ir: Ir,
    /// The values of the whole graph that the part has: where they are in `ir`.
    values: BTreeMap<Value, Value>,
}

impl<'a> PartIr<'a> {
    /// Returns the kernels of a part that receives these values of the whole graph as its columns.
    pub fn new(whole: &'a Ir, columns: impl Iterator<Item = Value>) -> Self {
        let mut own = Self { whole, ir: Ir::default(), values: BTreeMap::new() };
        for (column, value) in columns.enumerate() {
            let (origin, shape) = (whole.nodes[value.node].origin, whole.shape(value).to_vec());
            let received = own.ir.push(origin, Kernel::Column(column), &[], [shape]);
            own.values.insert(value, received);
        }
        own
    }

    /// Adds a kernel of the whole graph. The part must have the values that the kernel reads, apart from
    /// constants and views.
    pub fn add(&mut self, node: usize) {
        let whole = self.whole;
        let inputs: Vec<Value> = whole.nodes[node].inputs.iter().map(|&input| self.value(input)).collect();
        self.add_with(node, &inputs);
    }

    /// Returns a value of the whole graph. Constants and views are made again where they are used: only the
    /// viewed value is received.
    pub fn value(&mut self, value: Value) -> Value {
        let nodes = &self.whole.nodes;
        // A loop, because a chain of views may be too long for a recursion.
        let mut chain = vec![value];
        while let Some(&last) = chain.last()
            && !self.values.contains_key(&last)
            && nodes[last.node].kernel == Kernel::View
        {
            chain.push(nodes[last.node].inputs[0]);
        }
        for value in chain.into_iter().rev() {
            if !self.values.contains_key(&value) {
                let inputs: Vec<Value> =
                    nodes[value.node].inputs.iter().map(|input| self.values[input]).collect();
                self.add_with(value.node, &inputs);
            }
        }
        self.values[&value]
    }

    /// Adds a kernel of the whole graph, with inputs of this part.
    fn add_with(&mut self, position: usize, inputs: &[Value]) {
        let node = &self.whole.nodes[position];
        let own = self.ir.push(node.origin, node.kernel.clone(), inputs, node.outputs.clone());
        for output in 0..node.outputs.len() {
            self.values.insert(Value { node: position, output }, own.output(output));
        }
    }
}
