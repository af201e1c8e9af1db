//! Shape inference for normalisations, dropout and softmax. Also checks the ranges of their settings.

use super::super::error::GraphError;
use super::super::op::Op;
use super::{Site, f32_of};
use crate::tensor::TensorSpec;

impl Site<'_> {
    fn check_epsilon(&self, epsilon: f32) -> Result<(), GraphError> {
        if epsilon.is_finite() && epsilon > 0.0 {
            Ok(())
        } else {
            Err(self.out_of_range("epsilon", "finite and more than 0", epsilon))
        }
    }

    pub(super) fn batch_norm(&self, epsilon: f32, momentum: f32) -> Result<TensorSpec, GraphError> {
        self.check_epsilon(epsilon)?;
        if !(0.0..=1.0).contains(&momentum) {
            return Err(self.out_of_range("momentum", "from 0 to 1", momentum));
        }
        for position in [3, 4] {
            let node = &self.graph.nodes[self.graph.nodes[self.id.index()].inputs[position].index()];
            match node.op {
                Op::Variable { variable } if !self.graph.variables[variable.index()].trainable => {}
                _ => {
                    return Err(self
                        .misfit("a moving mean and variance that are variables with \"trainable\": false"));
                }
            }
        }
        let x = self.floats(0).filter(|x| x.len() >= 2);
        let fits = |x: &&[usize]| {
            (1..5).all(|position| self.floats(position) == x.last_chunk::<1>().map(|c| &c[..]))
        };
        let x = x.filter(fits);
        x.map(f32_of)
            .ok_or_else(|| self.misfit("f32 x [.., c], and gamma, beta, moving mean and variance [c]"))
    }

    pub(super) fn layer_norm(&self, epsilon: f32) -> Result<TensorSpec, GraphError> {
        self.check_epsilon(epsilon)?;
        match (self.floats(0), self.floats(1), self.floats(2)) {
            (Some(x @ [.., last]), Some([gamma]), Some([beta])) if last == gamma && last == beta => {
                Ok(f32_of(x))
            }
            _ => Err(self.misfit("f32 x [.., n], gamma [n] and beta [n]")),
        }
    }

    pub(super) fn dropout(&self, rate: f32) -> Result<TensorSpec, GraphError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(self.out_of_range("rate", "from 0 to less than 1", rate));
        }
        self.floats(0).map(f32_of).ok_or_else(|| self.misfit("f32"))
    }

    pub(super) fn softmax(&self, causal: bool) -> Result<TensorSpec, GraphError> {
        match self.floats(0) {
            Some(x @ [.., rows, cols]) if causal && rows == cols => Ok(f32_of(x)),
            Some(x @ [_, ..]) if !causal => Ok(f32_of(x)),
            _ if causal => Err(self.misfit("f32 [.., n, n]")),
            _ => Err(self.misfit("f32 [.., n]")),
        }
    }
}
