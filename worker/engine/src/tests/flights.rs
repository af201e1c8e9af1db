//! A scheduler on one thread: advances the programs of several runs of a cut graph in any order, while values
//! arrive in any order. It stands in for tasks, and knows nothing of graphs.

use std::collections::BTreeMap;

use pushpull_messages::id::VariableId;
use pushpull_messages::input::Column;

use super::trial::Numbers;
use crate::{ColumnRef, ColumnSource, Edge, Executor, GradientSink, Lost, Progress};

/// A value on its way to a part of a run.
pub(super) struct Message {
    pub run: usize,
    pub edge: Edge,
    pub value: Column,
}

/// The source of a program's column.
pub(super) enum Source {
    /// The value is there when the run begins.
    Held(Column),
    /// The value arrives along the edge with this key.
    Edge(u64),
}

/// The buffer of a value that a program computes. If the buffer has an edge, the value is sent.
pub(super) struct Sink {
    pub buffer: Vec<f32>,
    pub edge: Option<Edge>,
}

/// One part of one run. It has an executor of its own, so that several runs can be in flight at once.
pub(super) struct Flight {
    run: usize,
    executor: Option<Executor>,
    sources: Vec<Source>,
    /// The values that have arrived, by the keys of their edges.
    pub arrived: BTreeMap<u64, Column>,
    pub sinks: Vec<Sink>,
    /// The key of the edge whose value the program waits for.
    waits: Option<u64>,
}

impl Sink {
    /// Returns a sink of this number of elements, all of which the program must overwrite.
    pub fn new(elements: usize, edge: Option<Edge>) -> Self {
        Self { buffer: vec![f32::NAN; elements], edge }
    }
}

/// The columns of a flight. A column that is read before it has arrived fails the test.
struct Columns<'a> {
    sources: &'a [Source],
    arrived: &'a BTreeMap<u64, Column>,
}

impl ColumnSource for Columns<'_> {
    fn is_ready(&self, index: usize) -> bool {
        match &self.sources[index] {
            Source::Held(_) => true,
            Source::Edge(key) => self.arrived.contains_key(key),
        }
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        Ok(ColumnRef::from(match &self.sources[index] {
            Source::Held(value) => value,
            Source::Edge(key) => &self.arrived[key],
        }))
    }
}

/// The sinks of a flight. A value with an edge is sent as soon as it is complete.
struct Outbox<'a> {
    run: usize,
    sinks: &'a mut [Sink],
    sent: &'a mut Vec<Message>,
    /// Whether the sinks are ready.
    open: bool,
}

impl GradientSink for Outbox<'_> {
    fn is_ready(&self, _: VariableId) -> bool {
        self.open
    }

    fn variable_mut(&mut self, sink: VariableId) -> &mut [f32] {
        &mut self.sinks[sink.index()].buffer
    }

    fn complete(&mut self, sink: VariableId) {
        let Sink { buffer, edge } = &mut self.sinks[sink.index()];
        if let Some(edge) = edge.clone() {
            self.sent.push(Message { run: self.run, edge, value: Column::F32(std::mem::take(buffer)) });
        }
    }
}

impl Flight {
    /// Begins a run of a program with this seed of its random numbers.
    pub fn begin(
        run: usize,
        mut executor: Option<Executor>,
        random: u64,
        sources: Vec<Source>,
        sinks: Vec<Sink>,
    ) -> Self {
        executor.iter_mut().for_each(|executor| executor.begin(random));
        Self { run, executor, sources, arrived: BTreeMap::new(), sinks, waits: None }
    }

    fn receive(&mut self, Message { edge, value, .. }: Message) {
        let elements = match &value {
            Column::F32(elements) => elements.len(),
            Column::I32(elements) => elements.len(),
        };
        assert_eq!((value.dtype(), elements), (edge.spec.dtype, edge.spec.shape.elements()));
        assert!(self.arrived.insert(edge.key, value).is_none(), "edge {} was sent twice", edge.key);
        self.waits = self.waits.filter(|&key| key != edge.key);
    }

    fn can_advance(&self) -> bool {
        self.executor.is_some() && self.waits.is_none()
    }

    /// Goes on until a value is missing. If `open` is false, the sinks are not ready.
    fn advance(&mut self, sent: &mut Vec<Message>, open: bool) {
        let Self { run, executor, sources, arrived, sinks, waits } = self;
        let columns = Columns { sources, arrived };
        let mut outbox = Outbox { run: *run, sinks, sent, open };
        match executor.as_mut().expect("the program has not ended").advance(&columns, &mut outbox).unwrap() {
            Progress::Ended => *executor = None,
            Progress::WaitsForSink(_) => assert!(!open, "waits for a sink that is ready"),
            Progress::Waits(column) => match sources[column] {
                Source::Edge(key) if !arrived.contains_key(&key) => *waits = Some(key),
                _ => panic!("waits for column {column}, which is there"),
            },
        }
    }
}

/// Advances all parts of all runs until all programs have ended. `flights` holds the parts of each run.
/// `transit` holds the values that are sent when the runs begin.
pub(super) fn fly(flights: &mut [Vec<Flight>], mut transit: Vec<Message>, seed: u64) {
    let mut numbers = Numbers::new(seed);
    loop {
        let parts =
            flights.iter().enumerate().flat_map(|(run, parts)| (0..parts.len()).map(move |part| (run, part)));
        let able: Vec<_> = parts.filter(|&(run, part)| flights[run][part].can_advance()).collect();
        let choices = able.len() + transit.len();
        if choices == 0 {
            break;
        }
        let choice = numbers.below(choices);
        match able.get(choice) {
            Some(&(run, part)) => flights[run][part].advance(&mut transit, numbers.below(4) > 0),
            None => {
                let message = transit.swap_remove(choice - able.len());
                flights[message.run][message.edge.to as usize].receive(message);
            }
        }
    }
    assert!(flights.iter().flatten().all(|flight| flight.executor.is_none()), "parts wait in a circle");
}
