//! Vectors for ids, such as words, characters and categories.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;
use super::layer::Identity;

/// ids i32 `[batch, …]` → `[batch, …, width]`: the row of each id, with the variable `table` `[rows, width]`.
/// An id that is not in the table fails the step.
///
/// The table starts from a normal distribution with the standard deviation 0.02 for every size, as GPT-2's
/// does: an id picks one row, so a scale that depends on the number of rows would mean nothing.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Embedding {
    identity: Identity,
    rows: usize,
    width: usize,
    initializer: InitializerSpec,
}

/// Makes an embedding of ids from 0 to less than `rows` in vectors of `width` numbers.
pub fn embedding(name: impl Into<String>, rows: usize, width: usize) -> Embedding {
    let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 0.02 };
    Embedding { identity: Identity::new(name), rows, width, initializer }
}

impl Embedding {
    /// Sets the initial values of the table.
    pub fn initializer(mut self, initializer: InitializerSpec) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Layer for Embedding {
    fn apply(&self, g: &mut GraphBuilder, x: NodeId) -> NodeId {
        self.identity.build(g, |g| {
            if g.tensor(x).is_none_or(|ids| ids.dtype != DType::I32) {
                return g.refuse("i32 ids", &[x]);
            }
            let table = g.variable("table", [self.rows, self.width], self.initializer.clone());
            g.embedding(table, x)
        })
    }
}
