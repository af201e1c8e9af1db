//! Functions of each element of a layer's output.

use pushpull_messages::graph::{GraphBuilder, UnaryOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;

/// A function of each element: any shape → the same. It is a layer by itself, and an option of others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// x itself.
    #[default]
    Linear,
    /// max(x, 0).
    Relu,
    /// x, times the slope where it is negative: Maas et al. 2013, with 0.01.
    LeakyRelu {
        /// The factor of negative numbers, a finite number.
        slope: f32,
    },
    /// About x times the share of a normal distribution below x: Hendrycks & Gimpel 2016, by the hyperbolic
    /// tangent.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
}

impl Layer for Activation {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        let op = match *self {
            Self::Linear => return x,
            Self::Relu => UnaryOp::Relu,
            Self::LeakyRelu { slope } => UnaryOp::LeakyRelu { slope },
            Self::Gelu => UnaryOp::Gelu,
            Self::Tanh => UnaryOp::Tanh,
            Self::Sigmoid => UnaryOp::Sigmoid,
        };
        g.unary(op, x)
    }
}

impl Activation {
    /// Returns the initial values of a kernel before this function: those of He et al. 2015 for functions
    /// that are 0, or almost, on one side, and those of Glorot & Bengio 2010 for the others.
    pub(super) fn initializer(self) -> InitializerSpec {
        match self {
            Self::Relu | Self::LeakyRelu { .. } | Self::Gelu => InitializerSpec::HeNormal,
            Self::Linear | Self::Tanh | Self::Sigmoid => InitializerSpec::GlorotUniform,
        }
    }
}
