//! The identity of a client program, which is not a task of a cluster.

use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::message::{Hello, PROTOCOL};

/// The identity of a client program. Such a program knows only the address of one task; that task must admit
/// guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// A random number, which distinguishes the clients of a cluster.
    pub index: u32,
    /// The incarnation of the client, taken from the clock when its process started.
    pub incarnation: Incarnation,
    /// A random number, which distinguishes two clients that have the same index and incarnation.
    pub nonce: u64,
}

impl Guest {
    /// Returns the id by which the tasks of the cluster call this client, such as `client/7`.
    pub const fn task(&self) -> TaskId {
        TaskId::new(JobName::CLIENT, self.index)
    }

    /// Returns the first message that this client sends after dialling.
    pub const fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            task: self.task(),
            incarnation: self.incarnation,
            to: None,
            cluster: None,
            graph: None,
            http: None,
            nonce: self.nonce,
        }
    }
}
