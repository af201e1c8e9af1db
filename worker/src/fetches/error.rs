//! The errors of fetches.

use pushpull_messages::tensor::{Shape, TensorSpec};

use super::limits::{FETCH_BYTES_MAX, FETCH_NAMES_MAX};

/// An error in what a hook fetches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The list of names is empty or too long.
    #[error("got {0} names to fetch, expected 1 to {FETCH_NAMES_MAX}")]
    Names(usize),
    /// The interval between two fetches is 0 steps.
    #[error("tensors are fetched every 0 steps, expected at least 1")]
    Never,
    /// The graph has no tensor, or no variable, of this name.
    #[error("cannot fetch '{name}': the graph has no {what} of this name{near}")]
    Unknown {
        /// The name that was requested.
        name: String,
        /// The text `tensor`, or the text `variable` for a gradient.
        what: &'static str,
        /// A list of similar names, or an empty text.
        near: String,
    },
    /// The part of the name after its last colon is unknown.
    #[error("cannot fetch '{name}': expected a tensor, VARIABLE:grad or VARIABLE:grad_norm")]
    Suffix {
        /// The name that was requested.
        name: String,
    },
    /// The variable has no gradient.
    #[error("cannot fetch '{name}': the variable is not trained, so it has no gradient")]
    Untrained {
        /// The name that was requested.
        name: String,
    },
    /// The tensor's elements are not floats.
    #[error("cannot fetch '{name}': it is {tensor}, expected f32")]
    NotFloats {
        /// The name that was requested.
        name: String,
        /// The shape and type of the tensor for one batch.
        tensor: TensorSpec,
    },
    /// Each device has a part of the tensor, and these parts cannot be joined.
    #[error(
        "cannot fetch {name} from {devices} devices: in its shape {shape}, an axis other than the first depends on the number of examples: use one device"
    )]
    Apart {
        /// The label of the tensor's node.
        name: String,
        /// The shape for one batch.
        shape: Shape,
        /// The number of devices of the worker.
        devices: usize,
    },
    /// The tensors are too large.
    #[error(
        "the tensors to fetch, such as '{name}', take {bytes} bytes in one step, expected at most {FETCH_BYTES_MAX}: fetch smaller ones"
    )]
    TooLarge {
        /// The name of the largest tensor.
        name: String,
        /// The size of all requested tensors together, in bytes.
        bytes: u64,
    },
    /// The engine of this worker does not return tensors.
    #[error("the engine of this worker returns no tensors, so '{name}' cannot be fetched")]
    NotReturned {
        /// The name of the first requested tensor.
        name: String,
    },
}
