//! What every layer is, and what makes one of a name the same when it is used again.

use pushpull_messages::graph::{GraphBuilder, LayerId};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;

/// A part of a model that can be applied to a tensor.
///
/// A layer with a name keeps its variables in the scope of that name. Applied again, also as a clone, it shares them;
/// in another scope it has others. Two layers of one name are an error, and so is an input that a layer cannot take:
/// [`GraphBuilder::finish`] tells, with the layer's name.
///
/// Any function of a builder and a node is a layer, too:
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
    /// Appends what it computes from `x` to the graph.
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId;
}

impl<F: Fn(&mut GraphBuilder, NodeId) -> NodeId> Layer for F {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self(g, x)
    }
}

/// A layer's name, and that it is this layer and no other of the name. A clone is the same layer.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    name: String,
    id: LayerId,
}

impl Identity {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), id: LayerId::new() }
    }

    /// Builds the layer in its scope.
    pub(super) fn build(
        &self,
        g: &mut GraphBuilder,
        build: impl FnOnce(&mut GraphBuilder) -> NodeId,
    ) -> NodeId {
        g.layer(&self.name, self.id, build)
    }
}

/// The extents of a tensor of floats, the batch first; none where it is something else.
pub(super) fn floats(g: &GraphBuilder, x: NodeId) -> Option<&[usize]> {
    g.tensor(x).filter(|tensor| tensor.dtype == DType::F32).map(|tensor| &tensor.shape.0[..])
}
