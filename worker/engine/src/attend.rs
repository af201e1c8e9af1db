//! Replaces softmax(q·kᵀ)·v and its gradients by kernels that keep no tensor with an element for each pair of
//! rows, for a device that has such kernels. This module must not depend on fusion or memory.
//!
//! Required properties: (A) all values that are read stay the same, up to rounding; (B) the kernels that
//! every run needs do not depend on targets of some runs; (C) attention is replaced with all of its gradients
//! or not at all.

use pushpull_cuda::{Attention, Multiplier};

use super::fetch::Groups;
use super::fuse::{Reach, reach};
use super::ir::{Epilogue, Factors, Ir, Kernel, Value};

/// Returns the nodes with attention as one kernel where every run needs it, with the same values. `targets`
/// are the results and the gradients. A target that only some runs need may still read the scores or the
/// weights: then their nodes stay for these runs. `multiplier` is that of the device.
pub(super) fn attend(ir: &Ir, targets: &[(Value, Groups)], multiplier: Multiplier) -> Ir {
    let of_every_run = targets.iter().filter(|(_, groups)| groups.meets(Groups::ALWAYS));
    let reach = reach(ir, of_every_run.map(|&(target, _)| target));
    let readers = readers(ir, &reach);
    let found: Vec<Found> = (0..ir.nodes.len())
        .filter(|&node| reach.live[node])
        .filter_map(|node| Pattern { ir, reach: &reach, readers: &readers, multiplier }.at(node))
        .collect();
    let mut ir = ir.clone();
    for own in found {
        own.replace(&mut ir);
    }
    ir
}

/// Returns the nodes that read a value of each node in every run.
fn readers(ir: &Ir, reach: &Reach) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); ir.nodes.len()];
    for (position, node) in ir.nodes.iter().enumerate().filter(|&(position, _)| reach.live[position]) {
        for &input in &node.inputs {
            readers[ir.root(input).node].push(position);
        }
    }
    readers
}

/// Attention that can be replaced.
struct Found {
    attention: Attention,
    inputs: [Value; 3],
    /// The node of the means.
    mean: usize,
    gradients: Option<Gradients>,
}

/// The gradients of attention.
struct Gradients {
    dmean: Value,
    /// The nodes of the gradients of v, k and q. The first of them is the first node.
    nodes: [usize; 3],
}

impl Found {
    /// Replaces the kernels. The nodes in between are no longer read.
    fn replace(self, ir: &mut Ir) {
        let Self { attention, inputs: [q, k, v], mean, gradients } = self;
        let own = &mut ir.nodes[mean];
        own.kernel = Kernel::Attention(attention);
        own.inputs = vec![q, k, v];
        own.outputs.push(vec![attention.all_queries()]);
        let Some(Gradients { dmean, nodes: nodes @ [first, ..] }) = gradients else { return };
        let mean = Value { node: mean, output: 0 };
        let outputs = nodes.map(|node| ir.nodes[node].outputs[0].clone());
        let own = &mut ir.nodes[first];
        own.kernel = Kernel::AttentionGrad(attention);
        own.inputs = vec![q, k, v, mean, mean.output(1), dmean];
        own.outputs = outputs.to_vec();
        for (output, node) in nodes.into_iter().enumerate().skip(1) {
            ir.nodes[node].kernel = Kernel::View;
            ir.nodes[node].inputs = vec![Value { node: first, output }];
        }
    }
}

/// What is searched for attention.
struct Pattern<'a> {
    ir: &'a Ir,
    reach: &'a Reach,
    readers: &'a [Vec<usize>],
    multiplier: Multiplier,
}

impl Pattern<'_> {
    /// Returns the attention whose means a node computes.
    fn at(&self, mean: usize) -> Option<Found> {
        let (number, of_mean, [weights, v]) = self.product(mean)?;
        let softmax = self.only_output(weights)?;
        let Kernel::Softmax { width, causal } = self.ir.nodes[softmax].kernel else { return None };
        let scores = self.ir.root(self.ir.nodes[softmax].inputs[0]);
        let (of_scores, [q, k]) = match self.product(self.only_output(scores)?)? {
            (own, of_scores, inputs) if own == number => (of_scores, inputs),
            _ => return None,
        };
        let Factors { m: queries, k: size, n: keys, .. } = of_scores;
        let as_expected = of_scores == factors([queries, size, keys], [false, true])
            && of_mean == factors([queries, keys, size], [false, false])
            && width == keys;
        // The scores are square matrices for causal softmax, however they are divided into products.
        let attention =
            Attention::new(number, [queries, keys], size, causal, self.multiplier).filter(|_| as_expected)?;
        let gradients = self.gradients(mean, [softmax, scores.node], [q, k], v, (number, of_scores))?;
        Some(Found { attention, inputs: [q, k, v], mean, gradients })
    }

    /// Returns the gradients of attention, if every run needs all of them; `Some(None)` if it needs none, and
    /// `None` if it needs only some, or if something else reads the scores or the weights.
    fn gradients(
        &self,
        mean: usize,
        [softmax, scores]: [usize; 2],
        [q, k]: [Value; 2],
        v: Value,
        (number, Factors { m, k: size, n, .. }): (usize, Factors),
    ) -> Option<Option<Gradients>> {
        if self.readers_of(scores)? != [softmax] {
            return None;
        }
        let others: Vec<usize> =
            self.readers_of(softmax)?.iter().copied().filter(|&reader| reader != mean).collect();
        let (dvalue, softmax_grad) = match others[..] {
            [] => return Some(None),
            [dvalue, softmax_grad] => (dvalue, softmax_grad),
            _ => return None,
        };
        let is = |node: usize, sizes: [usize; 3], transposed: [bool; 2], a: Value, b: Option<Value>| {
            let own = self.product(node).filter(|&(own_number, own, [first, second])| {
                (own_number, own) == (number, factors(sizes, transposed))
                    && first == a
                    && b.is_none_or(|b| second == b)
            });
            own.map(|(_, _, [_, second])| second)
        };
        let weights = Value { node: softmax, output: 0 };
        let dmean = is(dvalue, [n, m, size], [true, false], weights, None)?;
        let Kernel::SoftmaxGrad { width } = self.ir.nodes[softmax_grad].kernel else { return None };
        let [y, dweights] = self.roots(softmax_grad)?;
        let of_weights = self.only_output(dweights)?;
        is(of_weights, [m, size, n], [false, true], dmean, Some(v))?;
        let [dkey, dquery] = self.readers_of(softmax_grad)?[..] else { return None };
        let dscores = Value { node: softmax_grad, output: 0 };
        is(dkey, [n, m, size], [true, false], dscores, Some(q))?;
        is(dquery, [m, n, size], [false, false], dscores, Some(k))?;
        let alone = y == weights && width == n && self.readers_of(of_weights)? == [softmax_grad];
        let in_order = dvalue < dkey && dvalue < dquery;
        (alone && in_order).then_some(Some(Gradients { dmean, nodes: [dvalue, dkey, dquery] }))
    }

    /// Returns the readers of a node; `None` if a target reads it as well.
    fn readers_of(&self, node: usize) -> Option<&[usize]> {
        let own = &self.readers[node];
        (self.reach.readers.of(Value { node, output: 0 }) == own.len()).then_some(own)
    }

    /// Returns the node of a value that is its first output.
    fn only_output(&self, value: Value) -> Option<usize> {
        (value.output == 0).then_some(value.node)
    }

    /// Returns the inputs of a node with two of them.
    fn roots(&self, node: usize) -> Option<[Value; 2]> {
        let [a, b] = self.ir.nodes[node].inputs[..] else { return None };
        Some([a, b].map(|input| self.ir.root(input)))
    }

    /// Returns the number of products that a node computes, their sizes, and the factors.
    fn product(&self, node: usize) -> Option<(usize, Factors, [Value; 2])> {
        let (number, factors) = match self.ir.nodes[node].kernel {
            Kernel::Product(factors, Epilogue::Bare) => (1, factors),
            Kernel::BatchedProduct(number, factors) => (number, factors),
            _ => return None,
        };
        Some((number, factors, self.roots(node)?))
    }
}

const fn factors([m, k, n]: [usize; 3], [transpose_a, transpose_b]: [bool; 2]) -> Factors {
    Factors { m, k, n, transpose_a, transpose_b }
}
