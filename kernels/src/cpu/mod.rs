//! The CPU kernels. They work on plain slices of `f32` in row-major order; the caller owns every buffer and
//! every thread.
//!
//! A kernel overwrites its destination unless its name says otherwise. It panics on a shape mismatch, which
//! is the caller's bug. At run time it picks the widest instruction set of this machine (AVX-512, AVX2, NEON
//! or a baseline). Only the last bits of matrix products and convolutions depend on this choice.

mod dispatch;
mod epilogue;
mod exp;
mod labels;
mod row_kernel;
mod rows;
mod shape;
#[cfg(test)]
mod tests;
mod threads;
mod tile;
mod window;

mod accuracy;
mod auc;
mod axis_part;
mod batch;
mod bias;
mod broadcast;
mod causal;
mod chain;
mod conv2d;
mod dropout;
mod elementwise;
mod embedding;
mod encoding;
mod loss;
mod norm;
mod optimizer;
mod past_caches;
mod pool;
mod product;
mod reduce;
mod relu;
mod repeat;
mod softmax;
mod transpose;
mod unary;

mod philox;
mod random;

pub use accuracy::{count_correct, count_in_top_k};
pub use auc::{auc, auc_counts};
pub use axis_part::{AxisPart, copy_part, paste_part};
pub use batch::{BatchThreads, become_batch_work};
pub use bias::sum_rows;
pub use broadcast::{BadShapes, Binary, Broadcast, Reduction, Side, binary, reduce};
pub use causal::causal_softmax;
pub use chain::{Extent, Operand, Step, chain};
pub use conv2d::{Conv2d, conv2d, conv2d_input_grad, conv2d_kernel_grad};
pub use dropout::{dropout, dropout_in_place};
pub use elementwise::{accumulate, add_into, clip_in_place, scale_in_place};
pub use embedding::{IdOutOfRange, check_ids, gather_rows, scatter_add_rows};
pub use encoding::{BadIndex, Encoding};
pub use epilogue::Epilogue;
pub use labels::{LabelOutOfRange, check_labels};
pub use loss::{
    mean_squared_error, mean_squared_error_grad, sigmoid_cross_entropy, sigmoid_cross_entropy_grad,
    softmax_cross_entropy, softmax_cross_entropy_dense, softmax_cross_entropy_dense_grad,
    softmax_cross_entropy_grad,
};
pub use norm::{
    batch_norm, batch_norm_grad, column_moments, layer_norm, layer_norm_grad, norm_scratch, reciprocal_stddev,
};
pub use optimizer::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, GradientTerms, LambStep, LionStep, MomentumStep,
    OptimizerStep, RmsPropStep, adagrad, adam, adamw, average, ftrl, lamb, lion, momentum, rmsprop, sgd,
    sgd_past_caches,
};
pub use pool::{
    Pool2d, average_pool, average_pool_grad, global_average_pool, global_average_pool_grad, max_pool,
    max_pool_grad,
};
pub use product::{Product, batched_matmul, batched_matmul_scratch, matmul, matmul_accumulate};
pub use random::{Key, fill_normal, fill_truncated_normal, fill_uniform};
pub use reduce::{all_below, all_finite, dot, mean, sum, sum_of_squares};
pub use repeat::{expand, reduce_max_grad};
pub use softmax::{log_softmax, log_softmax_grad, softmax, softmax_grad};
pub use threads::Threads;
pub use transpose::transpose;
pub use unary::{Saved, Unary, unary, unary_grad, unary_in_place};
pub use window::{BadGeometry, Padding};
