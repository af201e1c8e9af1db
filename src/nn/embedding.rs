//! The embedding: a vector for each id, such as that of a word, a character or a category.

use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::DType;
use pushpull_messages::variable::InitializerSpec;

use super::Layer;
use super::layer::Identity;

/// An embedding: i32 ids `[batch, …]` → `[batch, …, width]`. It looks up the row of each id in the variable
/// `table` `[rows, width]`. The step fails if an id is not in the table.
///
/// The initial values come from a normal distribution with the standard deviation 0.02, as in GPT-2. The
/// deviation does not depend on the size of the table, because each id selects only one row.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing before it is applied"]
pub struct Embedding {
    identity: Identity,
    rows: usize,
    width: usize,
    initializer: InitializerSpec,
}

/// Makes an embedding that maps ids from 0 to `rows` − 1 to vectors of `width` numbers.
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
