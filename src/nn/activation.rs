//! Activation functions, which are applied to each element of a layer's output.

use pushpull_messages::graph::{GraphBuilder, UnaryOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;
use super::layer::floats;

/// An activation function, applied to each element of a tensor of any shape. It can be used as a layer by
/// itself, or as an option of other layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// x itself, unchanged.
    #[default]
    Linear,
    /// max(x, 0).
    Relu,
    /// x where it is positive, and x · `slope` where it is negative. Maas et al. 2013 use a slope of 0.01.
    LeakyRelu {
        /// The factor for negative numbers. It must be finite.
        slope: f32,
    },
    /// x · Φ(x), where Φ is the cumulative distribution function of the standard normal distribution
    /// (Hendrycks & Gimpel 2016). It is approximated with the hyperbolic tangent.
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
        // A session has some of these functions for integers, too, but a model that is trained has not.
        if g.tensor(x).is_some() && floats(g, x).is_none() {
            return g.refuse("f32", &[x]);
        }
        g.unary(op, x)
    }
}

impl Activation {
    /// Returns the initializer for a kernel whose output goes through this function. If the function is 0,
    /// or almost 0, for negative numbers, this is the initializer of He et al. 2015; otherwise, it is the
    /// initializer of Glorot & Bengio 2010.
    pub(super) fn initializer(self) -> InitializerSpec {
        match self {
            Self::Relu | Self::LeakyRelu { .. } | Self::Gelu => InitializerSpec::HeNormal,
            Self::Linear | Self::Tanh | Self::Sigmoid => InitializerSpec::GlorotUniform,
        }
    }
}
