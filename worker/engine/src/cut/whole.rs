//! The kernels of a whole graph with its gradients, before they are cut. This module must not depend on
//! parts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pushpull_messages::graph::{GraphSpec, Op};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;

use super::spec::{Cut, CutGradient};
use crate::autodiff::{adjoints, depends};
use crate::error::CompileError;
use crate::fuse::reach;
use crate::ir::{Ir, Kernel, Value};
use crate::lower::{Lowering, Mode};

/// The maximum number of kernels. A bound is needed because the gradients of many losses multiply the
/// kernels.
const KERNELS_MAX: usize = 1 << 20;
/// The maximum number of losses in one run. A bound is needed because each of them takes time for all
/// kernels.
const LOSSES_MAX: usize = 256;

/// The kernels of a graph. A given node is the column whose index is the number of the node.
pub(super) struct Whole {
    pub ir: Ir,
    /// The value of each node; `None` if the node is not needed.
    pub values: Vec<Option<Value>>,
}

impl Whole {
    /// Lowers the needed nodes in the order of the list, and differentiates a loss when the first of its
    /// gradients is needed.
    ///
    /// # Errors
    /// If the kernels cannot compute or differentiate an operation, or there are too many kernels.
    pub fn lower(cut: &Cut<'_>) -> Result<Self, CompileError> {
        let mode = if cut.training { Mode::Training } else { Mode::Evaluation };
        let needed =
            |own: &&CutGradient| cut.tensors[own.node.index()].is_some() && !cut.given[own.node.index()];
        let gradients = cut.gradients.iter().filter(needed).map(|own| (own.node, *own)).collect();
        let lowering = Lowering::new(cut.graph, &[], mode, cut.tensors);
        let (adjoints, backward) = (BTreeMap::new(), Vec::new());
        let mut whole = Lowered { cut, gradients, lowering, adjoints, backward };
        for node in (0..cut.graph.nodes.len() as u32).map(NodeId) {
            whole.node(node)?;
            if whole.lowering.ir.nodes.len() > KERNELS_MAX {
                return Err(CompileError::TooManyKernels { max: KERNELS_MAX });
            }
        }
        let Lowering { ir, values, .. } = whole.lowering;
        Ok(Self { ir, values })
    }
}

/// The nodes that have been lowered so far.
struct Lowered<'a> {
    cut: &'a Cut<'a>,
    gradients: BTreeMap<NodeId, CutGradient>,
    lowering: Lowering<'a>,
    /// For each loss that has been differentiated, the adjoint of each kernel that it was differentiated with
    /// respect to and depends on.
    adjoints: BTreeMap<NodeId, BTreeMap<usize, Value>>,
    /// The kernels of the backward passes, which cannot be differentiated again, and the updates of variables
    /// that are not trained.
    backward: Vec<Range<usize>>,
}

impl Lowered<'_> {
    fn node(&mut self, node: NodeId) -> Result<(), CompileError> {
        if self.cut.tensors[node.index()].is_none() || self.lowering.values[node.index()].is_some() {
            return Ok(());
        }
        if let Some(&gradient) = self.gradients.get(&node) {
            let value = self.gradient(gradient)?;
            self.lowering.values[node.index()] = Some(value);
        } else if self.cut.is_external(node) {
            self.external(node)?;
        } else {
            self.lowering.lower(node)?;
        }
        Ok(())
    }

    /// Lowers an input, a variable or a given node.
    fn external(&mut self, node: NodeId) -> Result<(), CompileError> {
        let is_variable = matches!(self.graph().nodes[node.index()].op, Op::Variable { .. });
        if is_variable && !self.cut.given[node.index()] {
            self.lowering.lower(node)?;
        } else {
            let shape = self.lowering.tensor(node).shape.0.clone();
            let value = self.lowering.ir.push(node, Kernel::Column(node.index()), &[], [shape]);
            self.lowering.values[node.index()] = Some(value);
        }
        Ok(())
    }

    fn graph(&self) -> &GraphSpec {
        self.cut.graph
    }

    /// Returns the value of a gradient node. The loss is differentiated with respect to everything that any
    /// gradient node of the same loss asks for, so that it is differentiated only once.
    fn gradient(&mut self, gradient: CutGradient) -> Result<Value, CompileError> {
        let CutGradient { node, loss, of } = gradient;
        let (of_loss, of_value) = (self.lowering.tensor(loss), self.lowering.tensor(of));
        if of_loss.dtype != DType::F32 || of_loss.shape.elements() != 1 {
            let node = self.graph().label(loss);
            return Err(CompileError::NotOneNumber { node, tensor: of_loss.clone() });
        }
        if of_value.dtype != DType::F32 || !self.cut.is_external(of) {
            let node = self.graph().label(of);
            return Err(CompileError::NotDifferentiable { node, tensor: of_value.clone() });
        }
        if !self.adjoints.contains_key(&loss) {
            let adjoints = self.differentiate(loss)?;
            self.adjoints.insert(loss, adjoints);
        }
        let shape = of_value.shape.0.clone();
        let update = self.update(of);
        self.backward.extend(update.map(|update| update.node..update.node + 1));
        let Some(found) = update.or_else(|| self.adjoint(loss, of)) else {
            return Ok(self.lowering.ir.push(node, Kernel::Constant(0.0), &[], [shape]));
        };
        // An adjoint may have another shape of the same size, but the nodes that read it count on its shape.
        Ok(match self.lowering.ir.shape(found) == shape {
            true => found,
            false => self.lowering.ir.push(node, Kernel::View, &[found], [shape]),
        })
    }

    /// Returns the adjoint of a node, after the loss has been differentiated.
    fn adjoint(&self, loss: NodeId, of: NodeId) -> Option<Value> {
        let value = self.lowering.values[of.index()]?;
        self.adjoints[&loss].get(&value.node).copied()
    }

    /// Returns what batch normalisations subtract from an untrained variable.
    fn update(&mut self, of: NodeId) -> Option<Value> {
        let Op::Variable { variable } = self.graph().nodes[of.index()].op else { return None };
        if self.graph().variables[variable.index()].trainable {
            return None;
        }
        let Lowering { updates, ir, .. } = &mut self.lowering;
        let own = updates.iter().filter(|(moved, _)| *moved == variable).map(|&(_, update)| update);
        // Two normalisations may update the same variable.
        own.reduce(|before, update| ir.add(before, update))
    }

    /// Appends the backward pass of a loss, and returns the adjoints: see [`Lowered::adjoints`].
    fn differentiate(&mut self, loss: NodeId) -> Result<BTreeMap<usize, Value>, CompileError> {
        let graph = self.cut.graph;
        if self.adjoints.len() == LOSSES_MAX {
            return Err(CompileError::TooManyLosses { max: LOSSES_MAX });
        }
        let of_loss: Vec<CutGradient> =
            self.gradients.values().filter(|own| own.loss == loss).copied().collect();
        let mut leaves = BTreeSet::new();
        for CutGradient { of, .. } in of_loss {
            // A variable may be listed after the gradient, but be the same as one before the loss.
            if matches!(graph.nodes[of.index()].op, Op::Variable { .. }) {
                self.node(of)?;
            }
            if self.update(of).is_none() {
                leaves.extend(self.lowering.values[of.index()].map(|value| value.node));
            }
        }
        let value = self.lowering.values[loss.index()].expect("a gradient comes after its loss");
        let ir = &mut self.lowering.ir;
        let wanted: Vec<bool> = (0..ir.nodes.len()).map(|node| leaves.contains(&node)).collect();
        let (reached, depends) = (reach(ir, [value].into_iter()), depends(ir, &wanted));
        let mut backward = self.backward.iter().cloned().flatten();
        if backward.any(|node| reached.live[node] && depends[node] && !wanted[node]) {
            return Err(CompileError::SecondDerivative { node: graph.label(loss) });
        }
        let forward = ir.nodes.len();
        let adjoints = adjoints(ir, graph, (loss, value), &wanted)?;
        self.backward.push(forward..ir.nodes.len());
        Ok(leaves.into_iter().filter_map(|leaf| Some((leaf, adjoints[leaf]?))).collect())
    }
}
