//! The graphs that are open on a task, and the plans of their runs. A graph belongs to the connection on
//! which it was opened.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::message::Home;

use crate::device::Devices;
use crate::error::SessionError;
use crate::memory::Share;
use crate::placement::Placement;
use crate::plan::{Plan, Signature};
use crate::read_only::check_read_only;
use crate::reads::check_reads;

/// The maximum number of open graphs of one connection of a client.
pub(crate) const GRAPHS_MAX: usize = 64;
/// The maximum size of one graph, in bytes.
pub(crate) const GRAPH_BYTES_MAX: usize = 128 << 20;
/// The number of plans that a graph keeps.
const PLANS_MAX: usize = 32;
/// The bytes that a node of a graph takes, besides those that were sent.
const NODE_BYTES: u64 = 512;

/// An open graph.
pub(crate) struct OpenGraph {
    pub spec: GraphSpec,
    /// The container of the graph's variables.
    pub container: String,
    pub soft_placement: bool,
    /// The client whose quota the variables count against.
    pub client: u64,
    pub home: Home,
    pub devices: Devices,
    pub placement: Placement,
    /// The plans that were used last, the latest one at the end.
    plans: Mutex<Vec<Kept>>,
    /// Held while a run is planned: the others that request the same run wait for its plan.
    pub planning: tokio::sync::Mutex<()>,
    /// The connection to each other task on which the graph was opened there; `None` when the client has
    /// closed the graph.
    pub opened: tokio::sync::Mutex<Option<HashMap<usize, u64>>>,
    _memory: Share,
}

/// A plan that is kept for later runs.
struct Kept {
    signature: Signature,
    plan: Arc<Plan>,
    _memory: Share,
}

/// Returns the bytes that an open graph takes. `sent` is its size as it was sent.
pub(crate) const fn bytes_of(spec: &GraphSpec, sent: usize) -> u64 {
    sent as u64 + NODE_BYTES * (spec.nodes.len() + spec.variables.len()) as u64
}

impl OpenGraph {
    /// Validates and places a graph.
    ///
    /// # Errors
    /// If the graph is not valid, or requests a device that does not exist.
    pub fn new(
        spec: GraphSpec,
        memory: Share,
        (container, soft_placement): (String, bool),
        home: Home,
        devices: Devices,
    ) -> Result<Self, SessionError> {
        spec.validate_session()?;
        check_reads(&spec)?;
        let placement = Placement::new(&spec, &devices, soft_placement)?;
        let client = home.client;
        let (plans, planning) = Default::default();
        let opened = tokio::sync::Mutex::new(Some(HashMap::new()));
        Ok(Self {
            spec,
            container,
            soft_placement,
            client,
            home,
            devices,
            placement,
            plans,
            planning,
            opened,
            _memory: memory,
        })
    }

    /// Returns the plan of a run if it is known.
    pub fn known_plan(&self, signature: &Signature) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock();
        let position = plans.iter().position(|kept| kept.signature == *signature)?;
        plans[position..].rotate_left(1);
        plans.last().map(|kept| Arc::clone(&kept.plan))
    }

    /// Plans a run for the task at index `own`. This takes long for a large graph.
    ///
    /// # Errors
    /// Those of [`Plan::new`], and if the run may not change variables but would.
    pub fn plan(&self, signature: &Signature, own: usize) -> Result<Plan, SessionError> {
        if self.home.read_only {
            check_read_only(&self.spec, signature)?;
        }
        Plan::new(&self.spec, &self.placement, &self.devices, signature, own)
    }

    /// Keeps a plan for later runs.
    pub fn keep(&self, signature: Signature, plan: &Arc<Plan>, memory: Share) {
        let mut plans = self.plans.lock();
        if plans.len() >= PLANS_MAX {
            plans.remove(0);
        }
        plans.push(Kept { signature, plan: Arc::clone(plan), _memory: memory });
    }

    /// Frees the memory that is kept for later runs.
    fn free_idle(&self) {
        for kept in std::mem::take(&mut *self.plans.lock()) {
            kept.plan.free_idle();
        }
    }
}

/// The open graphs of all connections.
#[derive(Default)]
pub(crate) struct Graphs {
    open: Mutex<HashMap<u64, HashMap<u64, Arc<OpenGraph>>>>,
}

impl Graphs {
    /// Begins to keep graphs for a connection. It has none before, and none after it has ended: a request may
    /// take so long that its connection is gone before its graph is added.
    pub fn connect(&self, connection: u64) {
        self.open.lock().entry(connection).or_default();
    }

    /// Adds a graph under the number `graph` of its connection.
    ///
    /// # Errors
    /// If the connection has ended, or if it is `limited` and has too many graphs.
    pub fn add(
        &self,
        connection: u64,
        graph: u64,
        open: Arc<OpenGraph>,
        limited: bool,
    ) -> Result<(), SessionError> {
        let mut all = self.open.lock();
        let own = all.get_mut(&connection).ok_or(SessionError::UnknownGraph(graph))?;
        if limited && own.len() >= GRAPHS_MAX {
            let (what, remedy) = ("open graphs on this connection", "close some");
            return Err(SessionError::TooMany { what, max: GRAPHS_MAX, remedy });
        }
        own.insert(graph, open);
        Ok(())
    }

    /// Returns the number of open graphs.
    pub fn count(&self) -> usize {
        self.open.lock().values().map(HashMap::len).sum()
    }

    /// Frees the memory that all graphs keep for later runs.
    pub fn free_idle(&self) {
        let all: Vec<_> = self.open.lock().values().flat_map(HashMap::values).cloned().collect();
        all.iter().for_each(|graph| graph.free_idle());
    }

    /// Returns a graph of a connection.
    ///
    /// # Errors
    /// If the connection has no such graph.
    pub fn get(&self, connection: u64, graph: u64) -> Result<Arc<OpenGraph>, SessionError> {
        let all = self.open.lock();
        let found = all.get(&connection).and_then(|own| own.get(&graph));
        found.cloned().ok_or(SessionError::UnknownGraph(graph))
    }

    /// Removes a graph of a connection, and returns it if it was open.
    pub fn remove(&self, connection: u64, graph: u64) -> Option<Arc<OpenGraph>> {
        self.open.lock().get_mut(&connection)?.remove(&graph)
    }

    /// Removes all graphs of a connection, and returns them.
    pub fn remove_all(&self, connection: u64) -> Vec<Arc<OpenGraph>> {
        self.open.lock().remove(&connection).into_iter().flat_map(HashMap::into_values).collect()
    }
}
