//! The errors of sessions. Each becomes the reason of a refusal, so each is one line for the user.

use pushpull_engine::CompileError;
use pushpull_messages::device::OpDeviceSpec;
use pushpull_messages::graph::GraphError;
use pushpull_messages::id::TaskId;
use pushpull_messages::tensor::{TensorError, TensorSpec};

use crate::variables::VariableError;

/// The error for a graph that cannot be opened, or for a run that cannot begin.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// The graph is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The bytes of a value do not fit its spec.
    #[error("the value of a feed is not valid: {0}")]
    Tensor(#[from] TensorError),
    /// A node requests a device that does not exist.
    #[error("{node} requests {request}, expected {expected}")]
    Device {
        /// The label of the node.
        node: String,
        /// The device that the node requests.
        request: OpDeviceSpec,
        /// The devices that it may request.
        expected: String,
    },
    /// A fetch, a target or a feed is not in the graph.
    #[error("{what} is node {node}, but the graph has {nodes} nodes")]
    UnknownNode {
        /// What the node was named for, such as `a fetch`.
        what: &'static str,
        /// The number of the node.
        node: u32,
        /// The number of nodes of the graph.
        nodes: usize,
    },
    /// A node reads a variable after another node has changed it.
    #[error(
        "{node} reads its variable after {change} changes it: read it before, or use the value that the change returns"
    )]
    ReadAgain {
        /// The label of the node that reads.
        node: String,
        /// The label of the node that changes the variable.
        change: String,
    },
    /// An input that the run needs was not fed.
    #[error("{node} must be fed with {expected}: the run needs it")]
    NotFed {
        /// The label of the node.
        node: String,
        /// The shape and type of the value.
        expected: String,
    },
    /// A feed has another shape or type than the node.
    #[error("{node} was fed with {got}, expected {expected}")]
    Feed {
        /// The label of the node.
        node: String,
        /// The shape and type of the value that was fed.
        got: TensorSpec,
        /// The shape and type of the node.
        expected: String,
    },
    /// The graph cannot be compiled.
    #[error(transparent)]
    Compile(std::sync::Arc<CompileError>),
    /// A limit would be exceeded.
    #[error("{what} takes {got} bytes, more than the limit of {max}: {remedy}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size in bytes.
        got: u64,
        /// The limit in bytes.
        max: u64,
        /// What the user can do.
        remedy: &'static str,
    },
    /// What a client needs does not fit into the memory that is left.
    #[error(
        "{what} need {bytes} bytes, but {left} of the {max} bytes of {whose} are left: wait until some runs have ended, close graphs, or raise {flag}"
    )]
    NoMemory {
        /// What needs the memory.
        what: String,
        /// The bytes that it needs.
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
    /// There are too many of something.
    #[error("there are {max} {what} already, which is the maximum: {remedy}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The maximum.
        max: usize,
        /// What the user can do.
        remedy: &'static str,
    },
    /// Another task could not be reached, before the run has begun.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The server is about to stop.
    #[error("the server is stopping and begins no more runs")]
    Draining,
    /// The client may not do what it has requested. The value says what that is.
    #[error("{0}, and this client has the role read: it needs a client string of the role run")]
    NotAllowed(String),
    /// A request cannot be understood.
    #[error("{0}")]
    Malformed(String),
    /// The run has begun and failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The same run was requested twice.
    #[error("run {0} has begun or ended already")]
    RunAgain(u64),
    /// The server does not know the graph.
    #[error("graph {0} is not open on this connection")]
    UnknownGraph(u64),
}

/// The error for another task that could not be reached. It names the task.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub(crate) String);

/// The error for a run that has begun and failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// A node failed.
    #[error("{node} on {task} failed: {reason}")]
    Node {
        /// The label of the node.
        node: String,
        /// The task that ran it.
        task: TaskId,
        /// Why it failed.
        reason: String,
    },
    /// A task failed to run its part, or could not be reached.
    #[error("{task} failed: {reason}")]
    Task {
        /// The task.
        task: TaskId,
        /// Why it failed.
        reason: String,
    },
    /// Another task could not be reached.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The run was ended from outside.
    #[error("{0}")]
    Aborted(String),
}

impl From<CompileError> for SessionError {
    fn from(error: CompileError) -> Self {
        Self::Compile(std::sync::Arc::new(error))
    }
}

/// The reason why a node failed, without the node.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NodeFault {
    /// The variable could not be read or changed.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The operation cannot be computed.
    #[error(transparent)]
    Host(#[from] crate::host::HostFault),
    /// The texts that the run has made take too much memory.
    #[error(
        "the texts of the run take {got} bytes, more than the limit of {max}: raise --client-memory-limit"
    )]
    Texts {
        /// The bytes of the texts.
        got: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The run has failed elsewhere.
    #[error(transparent)]
    Ended(RunError),
}
