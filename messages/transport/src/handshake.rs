//! The rules of the handshake: which tasks may talk to each other.

use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{Hello, PROTOCOL, Refusal, RefusalCode};

/// The identity of a task, which it sends to every peer.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The id of the task: its role and index.
    pub task: TaskId,
    /// The incarnation of the task. Each start of the task has a new one.
    pub incarnation: Incarnation,
    /// The cluster spec with which the task was started.
    pub cluster: ClusterSpec,
    /// The digest of the graph that the task was started with, if any.
    pub graph: Option<u32>,
    /// The address of the task's HTTP server, which shows the task's state, as `host:port`; `None` if the
    /// task has no HTTP server.
    pub http: Option<String>,
    /// A random number, which distinguishes two starts of the task that have the same incarnation; 0 if the
    /// task has none.
    pub nonce: u64,
}

impl Identity {
    /// Returns the first message that this task sends to `to` after dialling it.
    pub fn hello(&self, to: TaskId) -> Hello {
        Hello {
            protocol: PROTOCOL,
            task: self.task,
            incarnation: self.incarnation,
            to,
            cluster: self.cluster.clone(),
            graph: self.graph,
            http: self.http.clone(),
            nonce: self.nonce,
        }
    }

    /// Checks whether the peer that sent `hello` belongs to this cluster.
    ///
    /// # Errors
    /// Refuses a peer of another cluster. The refusal names the difference in one line, and both
    /// ends log it.
    pub fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let mismatch = |reason: String| Err(Refusal::new(RefusalCode::Mismatch, reason));
        let (me, peer) = (self.task, hello.task);
        if hello.protocol != PROTOCOL {
            return Err(Refusal::new(
                RefusalCode::Protocol,
                format!("{peer} speaks protocol version {}, but {me} speaks {PROTOCOL}", hello.protocol),
            ));
        }
        if let Some(difference) = self.cluster.difference(&hello.cluster) {
            return mismatch(format!(
                "the cluster specs of {me} (here) and {peer} (there) differ: {difference}"
            ));
        }
        if hello.to != me {
            return mismatch(format!("{peer} dialled {}, but reached {me}", hello.to));
        }
        let known = self.cluster.address(peer).is_some() || peer == TaskId::CHIEF;
        if !known {
            return mismatch(format!("{peer} is not in the cluster spec"));
        }
        match (self.graph, hello.graph) {
            (Some(mine), Some(theirs)) if mine != theirs => mismatch(format!(
                "the graphs of {me} ({mine:08x}) and {peer} ({theirs:08x}) differ; start every task with the same model and flags"
            )),
            _ => Ok(()),
        }
    }
}
