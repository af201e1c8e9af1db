//! The errors of containers.

use pushpull_messages::tensor::TensorSpec;

/// The error for a variable of a session that cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// The container has a variable of this name with another shape or type.
    #[error(
        "the container '{container}' has a variable '{name}' of {held}, expected {expected}: use another name or container, or reset the container"
    )]
    Mismatch {
        /// The variable's name.
        name: String,
        /// The container's name.
        container: String,
        /// The shape and type of the variable in the container.
        held: TensorSpec,
        /// The shape and type that the graph declares.
        expected: TensorSpec,
    },
    /// The container has no such variable, and the client may create none.
    #[error(
        "the container '{container}' has no variable '{name}', and this client has the role read, so it creates none: \
         a client with the role run must create it first"
    )]
    Missing {
        /// The variable's name.
        name: String,
        /// The container's name.
        container: String,
    },
    /// The variable does not fit within a limit.
    #[error(
        "variable '{name}' needs {bytes} bytes more, but {left} of the {max} bytes of {whose} are left: reset a container, or raise {flag}"
    )]
    NoMemory {
        /// The variable's name.
        name: String,
        /// The bytes that the variable or its slots need.
        bytes: u64,
        /// The bytes that are left.
        left: u64,
        /// The limit.
        max: u64,
        /// Whose limit it is.
        whose: &'static str,
        /// The flag that sets the limit.
        flag: &'static str,
    },
    /// There are too many variables.
    #[error(
        "variable '{name}' is one too many: the task has {max} variables, which is the maximum; reset a container"
    )]
    TooMany {
        /// The variable's name.
        name: String,
        /// The maximum.
        max: usize,
    },
    /// A gradient has NaN or infinite elements. The variable is unchanged.
    #[error("the gradient of variable '{0}' has NaN or infinite elements: the variable is unchanged")]
    NotFinite(String),
}
