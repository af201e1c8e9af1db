//! Layers, built on the graph builder. A layer is an ordinary value that can be cloned, stored and applied
//! again. The name of a variable begins with the name of its layer, for example `dense1/kernel`.

mod activation;
mod attention;
mod batch_norm;
mod conv2d;
mod dense;
mod dropout;
mod embedding;
mod flatten;
mod layer;
mod layer_norm;
mod pool;
mod residual;
mod sequential;
#[cfg(test)]
mod tests;
mod weights;

pub use activation::Activation;
pub use attention::{MultiHeadAttention, multi_head_attention};
pub use batch_norm::{BatchNorm, batch_norm};
pub use conv2d::{Conv2d, conv2d};
pub use dense::{Dense, dense};
pub use dropout::{Dropout, dropout};
pub use embedding::{Embedding, embedding};
pub use flatten::{Flatten, flatten};
pub use layer::Layer;
pub use layer_norm::{LayerNorm, layer_norm};
pub use pool::{GlobalAveragePool, Pool, average_pool, global_average_pool, max_pool};
pub use residual::{Residual, residual};
pub use sequential::{Sequential, sequential};
