//! An exchange of the values that cross between the parts of a cut graph, each on a thread of its own. It
//! stands in for the transport, and knows nothing of graphs.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use pushpull_messages::id::VariableId;
use pushpull_messages::input::Column;

use crate::{ColumnRef, ColumnSource, Edge, GradientSink, Lost};

/// The time after which a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The values that have been sent.
#[derive(Default)]
pub(super) struct Exchange {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    values: BTreeMap<u64, Column>,
    lost: Option<Lost>,
}

impl Exchange {
    pub fn send(&self, key: u64, value: Column) {
        let before = self.state.lock().unwrap().values.insert(key, value);
        assert!(before.is_none(), "edge {key} was sent twice");
        self.arrived.notify_all();
    }

    /// Ends the wait for every value that has not arrived. The first reason counts.
    pub fn abort(&self, reason: &str) {
        self.state.lock().unwrap().lost.get_or_insert_with(|| Lost(reason.into()));
        self.arrived.notify_all();
    }

    /// Waits until a value arrives, and takes it out.
    pub fn receive(&self, key: u64) -> Result<Column, Lost> {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut State| !state.values.contains_key(&key) && state.lost.is_none();
        let (mut state, timeout) = self.arrived.wait_timeout_while(state, PATIENCE, waits).unwrap();
        assert!(!timeout.timed_out(), "edge {key} never arrived");
        let lost = state.lost.clone();
        state.values.remove(&key).ok_or_else(|| lost.expect("a value or a reason"))
    }
}

/// The columns of a part, each received when it is first read.
pub(super) struct Incoming<'a> {
    exchange: &'a Exchange,
    edges: &'a [Edge],
    columns: Vec<OnceLock<Column>>,
}

impl<'a> Incoming<'a> {
    pub fn new(exchange: &'a Exchange, edges: &'a [Edge]) -> Self {
        Self { exchange, edges, columns: edges.iter().map(|_| OnceLock::new()).collect() }
    }

    pub fn get(&self, index: usize) -> Result<&Column, Lost> {
        if self.columns[index].get().is_none() {
            let column = self.exchange.receive(self.edges[index].key)?;
            assert_eq!(column.dtype(), self.edges[index].spec.dtype);
            self.columns[index].set(column).expect("one thread reads it");
        }
        Ok(self.columns[index].get().expect("just set"))
    }
}

impl ColumnSource for Incoming<'_> {
    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        self.get(index).map(ColumnRef::from)
    }
}

/// The buffers of the values that a part sends.
pub(super) struct Outgoing<'a> {
    exchange: &'a Exchange,
    edges: &'a [Edge],
    buffers: Vec<Vec<f32>>,
}

impl<'a> Outgoing<'a> {
    pub fn new(exchange: &'a Exchange, edges: &'a [Edge]) -> Self {
        let buffers = edges.iter().map(|edge| vec![f32::NAN; edge.spec.shape.elements()]).collect();
        Self { exchange, edges, buffers }
    }
}

impl GradientSink for Outgoing<'_> {
    fn variable_mut(&mut self, edge: VariableId) -> &mut [f32] {
        &mut self.buffers[edge.index()]
    }

    fn complete(&mut self, edge: VariableId) {
        let value = std::mem::take(&mut self.buffers[edge.index()]);
        self.exchange.send(self.edges[edge.index()].key, Column::F32(value));
    }
}
