//! A run in progress on one task: its plan, the values that have arrived, and the way out for the values
//! that other tasks need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pushpull_messages::id::{NodeId, TaskId};
use pushpull_messages::message::RunKey;
use pushpull_messages::tensor::{Tensor, TensorSpec};
use pushpull_transport::buffer::Payload;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::control::Control;
use crate::error::{NodeFault, RunError};
use crate::graphs::OpenGraph;
use crate::inbox::Inbox;
use crate::memory::{Memory, Share};
use crate::payload::payload_of;
use crate::plan::{Part, Plan};
use crate::variables::Variables;

/// A value on its way to a part of another task.
pub(crate) struct Outgoing {
    pub part: u32,
    pub key: u64,
    pub tensor: TensorSpec,
    pub payload: Payload,
}

/// The values of the feeds.
pub(crate) type Feeds = BTreeMap<NodeId, Arc<Tensor>>;

/// What a run holds until its last thread has ended.
pub(crate) struct Held {
    pub _memory: Share,
    pub _threads: OwnedSemaphorePermit,
}

/// What a run needs of the task on which it runs.
pub(crate) struct Site {
    pub task: TaskId,
    /// The index of the task.
    pub index: usize,
    pub variables: Arc<dyn Variables>,
    pub memory: Arc<Memory>,
    /// The bytes that the texts of the run may take.
    pub text_bytes_max: u64,
}

/// A run in progress.
pub(crate) struct Run {
    pub key: RunKey,
    pub graph: Arc<OpenGraph>,
    pub plan: Arc<Plan>,
    /// This task.
    pub task: TaskId,
    /// The index of this task.
    pub index: usize,
    pub variables: Arc<dyn Variables>,
    /// Counts the memory that is kept for later runs.
    pub memory: Arc<Memory>,
    text_bytes_max: u64,
    /// The values that each part receives; empty for the parts of other tasks.
    pub inboxes: Vec<Inbox>,
    pub control: Arc<Control>,
    /// The values of the feeds, on the task that leads the run.
    feeds: Feeds,
    /// Counts the bytes of texts that the run has made: the plan does not know their lengths.
    text_bytes: AtomicU64,
    /// `None` if the run has no thread of its own.
    held: Option<Held>,
    /// Takes the values for other tasks. Each value of the plan is sent once, so the plan bounds the queue.
    outgoing: Mutex<Option<mpsc::UnboundedSender<Outgoing>>>,
}

impl Run {
    /// Makes a run that holds `held` until its last thread has ended. Returns it with the queue of the values
    /// for other tasks.
    pub fn new(
        site: Site,
        identity: (RunKey, Arc<Control>),
        graph: Arc<OpenGraph>,
        plan: Arc<Plan>,
        feeds: Feeds,
        held: Held,
    ) -> (Self, mpsc::UnboundedReceiver<Outgoing>) {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let outgoing = Mutex::new(Some(outgoing));
        (Self { held: Some(held), outgoing, ..Self::here(site, identity, graph, plan, feeds) }, queue)
    }

    /// Makes a run that has no thread of its own, and sends nothing to other tasks.
    pub fn here(
        site: Site,
        (key, control): (RunKey, Arc<Control>),
        graph: Arc<OpenGraph>,
        plan: Arc<Plan>,
        feeds: Feeds,
    ) -> Self {
        let Site { task, index, variables, memory, text_bytes_max } = site;
        let own = |part: &&Part| part.task == index;
        let inbox =
            |part| Some(part).filter(own).map_or_else(Inbox::default, |part| Inbox::new(&part.received));
        let inboxes = plan.parts.iter().map(inbox).collect();
        Self {
            key,
            graph,
            plan,
            task,
            index,
            variables,
            memory,
            text_bytes_max,
            inboxes,
            control,
            feeds,
            text_bytes: AtomicU64::new(0),
            held: None,
            outgoing: Mutex::new(None),
        }
    }

    /// Returns the seed of the run's random numbers, which is the same on all tasks.
    pub const fn random(&self) -> u64 {
        self.key.incarnation.0 ^ self.key.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the value that the client has fed for a node.
    pub fn fed(&self, node: NodeId) -> Arc<Tensor> {
        Arc::clone(self.feeds.get(&node).expect("the plan checks that inputs are fed"))
    }

    /// Passes a value to a part of this task or of another one.
    pub fn deliver(&self, part: u32, key: u64, value: Arc<Tensor>) {
        if self.plan.parts[part as usize].task != self.index {
            if let Some(outgoing) = &*self.outgoing.lock() {
                // This fails only if the run has failed.
                let (tensor, payload) = (value.spec(), payload_of([&*value]));
                let _ = outgoing.send(Outgoing { part, key, tensor, payload });
            }
        } else if let Err(reason) = self.arrive(part, key, value) {
            self.control.fail(RunError::Task { task: self.task, reason });
        }
    }

    /// Stores a value that has arrived for a part of this task.
    ///
    /// # Errors
    /// If no part of this task receives such a value.
    pub fn arrive(&self, part: u32, key: u64, value: Arc<Tensor>) -> Result<(), String> {
        let (Some(inbox), Some(own)) = (self.inboxes.get(part as usize), self.plan.parts.get(part as usize))
        else {
            return Err(format!("got a value for part {part} of {}", self.plan.parts.len()));
        };
        if own.task != self.index {
            return Err(format!("got a value for part {part}, which another task runs"));
        }
        inbox.put(&own.received, &self.control, key, value)
    }

    /// Returns a value that a part of this task receives. Waits for it if other threads run the other parts.
    ///
    /// # Errors
    /// Returns the error if the run has failed.
    pub fn received(&self, part: usize, position: usize) -> Result<&Arc<Tensor>, RunError> {
        let arrived = self.has_received(part, position);
        assert!(arrived || self.held.is_some(), "the only thread of a run waits for itself");
        self.inboxes[part].wait(&self.control, position)
    }

    /// Returns true if a part of this task has received the value at this position.
    pub fn has_received(&self, part: usize, position: usize) -> bool {
        self.inboxes[part].has(position)
    }

    /// Checks that a part of this task receives a value of this spec.
    ///
    /// # Errors
    /// If it does not.
    pub fn expects(&self, part: u32, key: u64, tensor: &TensorSpec) -> Result<(), String> {
        let Some(own) = self.plan.parts.get(part as usize) else {
            return Err(format!("got a value for part {part} of {}", self.plan.parts.len()));
        };
        own.received.find(key, tensor).map(|_| ())
    }

    /// Counts the bytes of texts that are about to be made.
    ///
    /// # Errors
    /// If the texts of the run take too much memory.
    pub fn count_texts(&self, bytes: u64) -> Result<(), NodeFault> {
        let before = self.text_bytes.fetch_add(bytes.min(self.text_bytes_max), Ordering::Relaxed);
        let (got, max) = (before.saturating_add(bytes), self.text_bytes_max);
        if bytes > 0 && got > max { Err(NodeFault::Texts { got, max }) } else { Ok(()) }
    }

    /// Ends the queue of values for other tasks: no part sends any more.
    pub fn close(&self) {
        self.outgoing.lock().take();
    }

    /// Returns the error for a node that failed on this task.
    pub fn node_failed(&self, node: NodeId, fault: NodeFault) -> RunError {
        match fault {
            NodeFault::Ended(error) => error,
            fault => {
                let node = self.graph.spec.label(node);
                RunError::Node { node, task: self.task, reason: fault.to_string() }
            }
        }
    }

    /// Returns the error for an operation that panicked.
    pub fn panicked(&self) -> RunError {
        RunError::Task { task: self.task, reason: "an operation panicked: see the log of the task".into() }
    }
}
