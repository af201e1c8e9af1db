//! The trait of all layers, and the identity of a layer. All applications of one layer share its variables.

use pushpull_messages::graph::{GraphBuilder, LayerId};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;

/// A part of a model that can be applied to a tensor.
///
/// A layer with a name puts its variables into a scope of that name. If the layer or a clone of it is
/// applied again in the same enclosing scope, it uses the same variables. In a different enclosing scope it
/// gets variables of its own. Two different layers with the same name in one scope are an error, and so is
/// an input with an unsuitable type or shape. [`GraphBuilder::finish`] returns the error, with the layer's
/// name.
///
/// Every function that takes a builder and a node, and returns a node, also implements `Layer`:
///
/// ```
/// use pushpull::GraphBuilder;
/// use pushpull::nn::{Layer, dense, sequential};
///
/// let mut g = GraphBuilder::new("model");
/// let x = g.input("features", [8]);
/// let halve = |g: &mut GraphBuilder, x| g.scale(x, 0.5);
/// let x = sequential("trunk").add(dense("hidden", 32).relu()).add(halve).apply(&mut g, x);
/// assert_eq!(g.example_shape(x), Some([32].into()));
/// ```
pub trait Layer {
    /// Appends the layer's operations on `x` to the graph, and returns the layer's output.
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId;
}

impl<F: Fn(&mut GraphBuilder, NodeId) -> NodeId> Layer for F {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self(g, x)
    }
}

/// The name of a layer, and an id that distinguishes it from other layers with that name. A clone has the
/// same id.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    name: String,
    id: LayerId,
}

impl Identity {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), id: LayerId::new() }
    }

    /// Calls `build` within the layer's scope, and returns the output of `build`.
    pub(super) fn build(
        &self,
        g: &mut GraphBuilder,
        build: impl FnOnce(&mut GraphBuilder) -> NodeId,
    ) -> NodeId {
        g.layer(&self.name, self.id, build)
    }
}

/// Returns the shape of a tensor of floats, whose first axis is the batch. Returns `None` for a node of any
/// other type.
pub(super) fn floats(g: &GraphBuilder, x: NodeId) -> Option<&[usize]> {
    g.tensor(x).filter(|tensor| tensor.dtype == DType::F32).map(|tensor| &tensor.shape.0[..])
}

/// Defines the method that sets the field `epsilon` of a normalisation.
macro_rules! epsilon_setter {
    ($layer:ty) => {
        impl $layer {
            /// Sets the number that is added to the variance before its square root is taken. It must be
            /// greater than 0.
            pub fn epsilon(mut self, epsilon: f32) -> Self {
                self.epsilon = epsilon;
                self
            }
        }
    };
}
pub(super) use epsilon_setter;
