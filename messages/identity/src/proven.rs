//! Who the other end of a connection has proved to be.

use pushpull_messages::id::TaskId;

use crate::client_role::ClientRole;

/// Who the other end of a connection has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proven {
    /// A process of the cluster. Its certificate names these tasks.
    Tasks(Vec<TaskId>),
    /// A client with this role. It has no certificate and is no task.
    Client(ClientRole),
}
