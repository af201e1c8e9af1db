//! The plan of a run: the parts of a graph that some nodes need, one for each device and one for the host
//! operations of each task, and the values that cross between parts. Every task makes the same plan.
//!
//! Each part runs its operations in the order of the graph. A part waits only for values of operations that
//! come earlier in this order, so parts never wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_engine::{Cut, CutGradient, Edge, Executor, Parts, Program};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::{GraphSpec, Op, SessionOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::message::Fed;
use pushpull_messages::tensor::{Shape, TensorSpec};

use crate::device::Devices;
use crate::error::SessionError;
use crate::inbox::Received;
use crate::memory::Share;
use crate::placement::Placement;
use crate::small::{self, Work};

/// The number of executors that a part keeps for its next runs.
const IDLE_MAX: usize = 8;
/// The bytes that an entry of a plan takes: an operation, one of its inputs, or a received value.
const ENTRY_BYTES: u64 = 256;
/// The bytes that a text counts for, whose length is not known before the run.
const TEXT_BYTES: u64 = 64;

/// What a run computes: the nodes that are fed, with the specs of their values, the nodes that are fetched,
/// and the nodes that are computed besides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Signature {
    pub feeds: Vec<Fed>,
    pub fetches: Vec<NodeId>,
    pub targets: Vec<NodeId>,
}

/// A plan. Parts refer to each other by their index.
#[derive(Debug)]
pub(crate) struct Plan {
    pub parts: Vec<Part>,
    /// The part that gets the fetches.
    pub home: usize,
    /// Where the home part finds each fetch.
    pub fetches: Vec<Source>,
    /// The specs of the fetches.
    pub fetched: Vec<TensorSpec>,
    /// The bytes of all values of the run together, and of this task's working memory.
    pub bytes: u64,
    /// The bytes of the plan itself.
    pub kept_bytes: u64,
    /// Whether the run is so short that it is run at once.
    pub is_small: bool,
}

/// A part of a run: what one device, or one task's host operations, computes. It is empty if another task
/// runs it.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// The index of the task.
    pub task: usize,
    /// The operations on the host.
    pub steps: Vec<HostStep>,
    /// The operations that the engine runs, at the same time as those on the host.
    pub engine: Option<EnginePart>,
    /// The values that the part receives. The engine's columns come first.
    pub received: Received,
}

impl Part {
    /// Returns the number of entries that the part keeps in memory.
    fn entries(&self) -> usize {
        let steps = self.steps.iter().map(|step| 1 + step.inputs.len() + step.sends.len());
        let instructions = self.engine.as_ref().map_or(0, |engine| engine.program.instructions_count());
        steps.sum::<usize>() + self.received.len() + instructions
    }
}

/// An operation on the host.
#[derive(Debug)]
pub(crate) struct HostStep {
    pub node: NodeId,
    pub inputs: Vec<Source>,
    /// The parts that receive the value, and its key there.
    pub sends: Vec<(u32, u64)>,
}

/// Where a host operation finds an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The value of a step of the same part.
    Step(usize),
    /// A received value. If it comes from the engine, it may have to be given this shape.
    Received(usize, Option<Shape>),
}

/// The operations that the engine runs in one part.
pub(crate) struct EnginePart {
    program: Arc<Program>,
    /// The values that the program sends: where the sink's variable i goes.
    pub sends: Vec<Edge>,
    /// Executors that no run uses at the moment.
    idle: Mutex<Vec<(Executor, Share)>>,
}

impl std::fmt::Debug for EnginePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnginePart").field("sends", &self.sends).finish_non_exhaustive()
    }
}

impl EnginePart {
    fn flops(&self) -> u64 {
        self.program.flops()
    }

    /// Runs `work` with an executor of the part. Each run in progress has an executor of its own. Keeps the
    /// executor for later runs if `spare` returns its memory.
    pub fn with_executor<T>(
        &self,
        spare: impl FnOnce(u64) -> Option<Share>,
        work: impl FnOnce(&mut Executor) -> T,
    ) -> T {
        let idle = self.idle.lock().pop();
        let (mut executor, share) = match idle {
            Some((executor, share)) => (executor, Some(share)),
            None => (Executor::new(Arc::clone(&self.program)), None),
        };
        let result = work(&mut executor);
        if let Some(share) = share.or_else(|| spare(self.program.arena_bytes() as u64)) {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_MAX {
                idle.push((executor, share));
            }
        }
        result
    }
}

/// The device of a part: the index of its task, and of its CPU; `None` for the host operations.
type Seat = (usize, Option<u32>);

/// The bit in the key of a value that goes from a host operation to another one. The engine counts its own
/// keys from 0.
const HOST_KEY: u64 = 1 << 40;

impl Plan {
    /// Plans a run. `own` is the index of the task that the plan is for: programs are compiled for this task
    /// only.
    ///
    /// # Errors
    /// If the run does not fit the graph, lacks an input, or cannot be compiled.
    pub fn new(
        graph: &GraphSpec,
        placement: &Placement,
        devices: &Devices,
        signature: &Signature,
        own: usize,
    ) -> Result<Self, SessionError> {
        let (needed, tensors) = checked(graph, signature)?;
        let mut planner = Planner::new(graph, placement, devices, &tensors);
        for position in (0..graph.nodes.len()).filter(|&position| needed[position]) {
            planner.connect_node(NodeId(position as u32));
        }
        let home = planner.seats[&(devices.home().task, None)];
        signature.fetches.iter().for_each(|&node| planner.connect(node, home));
        planner.build(own)?;
        let fetches = match devices.home().task == own {
            true => signature.fetches.iter().map(|&node| planner.source(node, home)).collect(),
            false => Vec::new(),
        };
        let spec = |node: &NodeId| tensors[node.index()].clone().expect("a fetch is needed");
        // A value that is fetched twice is sent twice.
        let fetched: Vec<TensorSpec> = signature.fetches.iter().map(spec).collect();
        let scratch = graph.nodes.iter().zip(&tensors).filter_map(|(node, tensor)| {
            tensor.as_ref().and_then(|_| scratch(&node.op, tensors[node.inputs.first()?.index()].as_ref()?))
        });
        let bytes = tensors.iter().flatten().chain(&fetched).map(bytes);
        let arenas = planner.parts.iter().filter_map(|part| part.engine.as_ref());
        let arenas = arenas.map(|engine| engine.program.arena_bytes() as u64);
        // An operation that initialises a variable returns no value of it.
        let initialized = graph.nodes.iter().zip(&tensors).filter_map(|(node, tensor)| match &node.op {
            Op::Session(SessionOp::Initialize { variable }) if tensor.is_some() => {
                let variable = &graph.variables[variable.index()];
                Some(self::bytes(&TensorSpec::new(variable.dtype, variable.shape.clone())))
            }
            _ => None,
        });
        let bytes = bytes.chain(initialized).chain(scratch).chain(arenas).fold(0u64, u64::saturating_add);
        let entries = planner.parts.iter().map(Part::entries).sum::<usize>() + fetches.len();
        let kept_bytes = entries as u64 * ENTRY_BYTES;
        let (parts, home) = (planner.parts, home as usize);
        let is_small = is_one_thread(&parts, home) && {
            let flops = parts.iter().filter_map(|part| part.engine.as_ref()).map(EnginePart::flops).sum();
            let read_bytes = small::read_bytes(graph, &tensors, self::bytes);
            Work { bytes, read_bytes, flops, entries }.is_small()
        };
        Ok(Self { parts, home, fetches, fetched, bytes, kept_bytes, is_small })
    }

    /// Frees the working memory that is kept for later runs.
    pub fn free_idle(&self) {
        let engines = self.parts.iter().filter_map(|part| part.engine.as_ref());
        engines.for_each(|engine| engine.idle.lock().clear());
    }

    /// Returns the parts of a task, with their indices.
    pub fn parts_of(&self, task: usize) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().enumerate().filter(move |(_, part)| part.task == task)
    }

    /// Returns the tasks that run a part, besides the one at index `own`.
    pub fn others(&self, own: usize) -> BTreeSet<usize> {
        self.parts.iter().map(|part| part.task).filter(|&task| task != own).collect()
    }
}

/// Returns true if one thread of the home task can run the parts: the host operations of this task, and at
/// most one program.
fn is_one_thread(parts: &[Part], home: usize) -> bool {
    let alone = |(index, part): (usize, &Part)| {
        part.task == parts[home].task && (index == home || part.steps.is_empty())
    };
    let programs = parts.iter().filter(|part| part.engine.is_some()).count();
    programs <= 1 && parts.iter().enumerate().all(alone)
}

/// Returns the bytes of the rows that an operation on the host sorts.
fn scratch(op: &Op, input: &TensorSpec) -> Option<u64> {
    let sorts = matches!(op, Op::Session(SessionOp::TopValues { .. } | SessionOp::TopIndices { .. }));
    let row = *input.shape.0.last().filter(|_| sorts)? as u64;
    Some(row.saturating_mul(size_of::<(usize, usize)>() as u64))
}

/// Returns the bytes of a value; of a text, those that it counts for.
fn bytes(spec: &TensorSpec) -> u64 {
    let elements = spec.shape.checked_elements().unwrap_or(usize::MAX) as u64;
    elements.saturating_mul(spec.dtype.bytes().map_or(TEXT_BYTES, |bytes| bytes as u64))
}

/// Returns which nodes the run needs, and the specs of their values.
fn checked(
    graph: &GraphSpec,
    signature: &Signature,
) -> Result<(Vec<bool>, Vec<Option<TensorSpec>>), SessionError> {
    let Signature { feeds, fetches, targets } = signature;
    let fed = feeds.iter().map(|fed| ("a feed", fed.node));
    let fetched = fetches.iter().map(|&node| ("a fetch", node));
    for (what, node) in fed.chain(fetched).chain(targets.iter().map(|&node| ("a target", node))) {
        if node.index() >= graph.nodes.len() {
            return Err(SessionError::UnknownNode { what, node: node.0, nodes: graph.nodes.len() });
        }
    }
    let wanted: Vec<NodeId> = fetches.iter().chain(targets).copied().collect();
    let needed = with_variables(graph, graph.needed(&wanted))?;
    let by_node: BTreeMap<NodeId, &TensorSpec> = feeds.iter().map(|fed| (fed.node, &fed.tensor)).collect();
    let mut batch = None;
    for (position, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(position as u32);
        let got = by_node.get(&id);
        match (&node.op, got) {
            (Op::Input { example }, Some(got)) => {
                let rows = batch_of(got, example);
                let agrees = |rows: usize| batch.is_none_or(|batch| batch == rows);
                let Some(rows) = rows.filter(|&rows| rows > 0 && agrees(rows)) else {
                    let rows = batch.map_or("a batch".to_owned(), |batch| format!("a batch of {batch}"));
                    let (node, got) = (graph.label(id), TensorSpec::clone(got));
                    return Err(SessionError::Feed { node, got, expected: format!("{rows} of {example}") });
                };
                batch = Some(rows);
            }
            (Op::Session(SessionOp::Placeholder { tensor }), Some(got)) if tensor != *got => {
                let (node, got) = (graph.label(id), TensorSpec::clone(got));
                return Err(SessionError::Feed { node, got, expected: tensor.to_string() });
            }
            (Op::Input { .. } | Op::Session(SessionOp::Placeholder { .. }), _) => {}
            (_, Some(got)) => {
                let (node, got) = (graph.label(id), TensorSpec::clone(got));
                return Err(SessionError::Feed { node, got, expected: "no feed: it is computed".into() });
            }
            _ => {}
        }
    }
    let missing = (0..graph.nodes.len()).find(|&position| {
        let input =
            matches!(graph.nodes[position].op, Op::Input { .. } | Op::Session(SessionOp::Placeholder { .. }));
        input && needed[position] && !by_node.contains_key(&NodeId(position as u32))
    });
    if let Some(position) = missing {
        let expected = match &graph.nodes[position].op {
            Op::Session(SessionOp::Placeholder { tensor }) => tensor.to_string(),
            Op::Input { example } => format!("a batch of {example}"),
            other => unreachable!("{} is no input", other.name()),
        };
        return Err(SessionError::NotFed { node: graph.label(NodeId(position as u32)), expected });
    }
    let tensors = graph.infer_session(batch.unwrap_or(1), &needed)?;
    Ok((needed, tensors))
}

/// Returns the needed nodes, with the variables by which a needed gradient differentiates.
fn with_variables(graph: &GraphSpec, mut needed: Vec<bool>) -> Result<Vec<bool>, SessionError> {
    let first_uses = first_uses(graph);
    for (position, node) in graph.nodes.iter().enumerate() {
        let Op::Session(SessionOp::Gradient { variable }) = node.op else { continue };
        if needed[position] {
            let Some(of) = first_uses[variable.index()] else {
                let (node, name) =
                    (graph.label(NodeId(position as u32)), &graph.variables[variable.index()].name);
                let reason = format!("{node} differentiates by variable '{name}', which no node reads");
                return Err(SessionError::Malformed(reason));
            };
            needed[of.index()] = true;
        }
    }
    Ok(needed)
}

/// Returns the number of examples in a feed of an input, or `None` if the feed does not fit.
fn batch_of(got: &TensorSpec, example: &TensorSpec) -> Option<usize> {
    let (&rows, rest) = got.shape.0.split_first()?;
    (got.dtype == example.dtype && rest == &example.shape.0[..]).then_some(rows)
}

/// Returns true if the operation runs on the host, and not in the engine.
pub(crate) const fn is_host(op: &Op) -> bool {
    match op {
        Op::Input { .. } | Op::Variable { .. } => true,
        Op::Session(op) => !matches!(op, SessionOp::Gradient { .. }),
        _ => false,
    }
}

/// Builds a plan.
struct Planner<'a> {
    graph: &'a GraphSpec,
    tensors: &'a [Option<TensorSpec>],
    seats: BTreeMap<Seat, u32>,
    parts: Vec<Part>,
    /// The part of each needed node. Constants have none: each part makes its own.
    part_of: Vec<Option<u32>>,
    /// The values of host operations that other host parts receive.
    host_edges: BTreeSet<(NodeId, u32)>,
    /// The values of the engine that host parts receive.
    wanted: BTreeSet<(NodeId, u32)>,
    /// The step of each host operation, and of each constant, in each part of this task that has it.
    steps: BTreeMap<(NodeId, u32), usize>,
    /// Where each host part of this task finds the values that it receives.
    received: BTreeMap<(NodeId, u32), Source>,
}

impl<'a> Planner<'a> {
    fn new(
        graph: &'a GraphSpec,
        placement: &'a Placement,
        devices: &Devices,
        tensors: &'a [Option<TensorSpec>],
    ) -> Self {
        let seat = |position: usize| {
            let device = placement.of(NodeId(position as u32));
            (device.task, (!is_host(&graph.nodes[position].op)).then_some(device.cpu))
        };
        let counts = |position: usize| {
            tensors[position].is_some() && !matches!(graph.nodes[position].op, Op::Constant { .. })
        };
        let counted = (0..graph.nodes.len()).filter(|&position| counts(position));
        let mut seats: BTreeSet<Seat> = counted.map(seat).collect();
        seats.insert((devices.home().task, None));
        let parts = seats.iter().map(|&(task, _)| Part { task, ..Part::default() }).collect();
        let seats: BTreeMap<Seat, u32> = seats.into_iter().zip(0..).collect();
        let part_of = |position: usize| match &graph.nodes[position].op {
            // The engine wants a part for each node, and does not use that of a constant.
            Op::Constant { .. } => tensors[position].as_ref().map(|_| 0),
            _ => counts(position).then(|| seats[&seat(position)]),
        };
        let part_of = (0..graph.nodes.len()).map(part_of).collect();
        let (host_edges, wanted, steps, received) = Default::default();
        Self { graph, tensors, seats, parts, part_of, host_edges, wanted, steps, received }
    }

    fn op(&self, node: NodeId) -> &'a Op {
        &self.graph.nodes[node.index()].op
    }

    fn part_of(&self, node: NodeId) -> u32 {
        self.part_of[node.index()].expect("a node that is read is needed")
    }

    /// Finds the values that a host node needs from other parts.
    fn connect_node(&mut self, node: NodeId) {
        if is_host(self.op(node)) {
            let part = self.part_of(node);
            self.graph.nodes[node.index()].inputs.iter().for_each(|&input| self.connect(input, part));
        }
    }

    /// Has a node's value sent to a host part, if the part does not compute it.
    fn connect(&mut self, node: NodeId, reader: u32) {
        if matches!(self.op(node), Op::Constant { .. }) || self.part_of(node) == reader {
            return;
        }
        match is_host(self.op(node)) {
            true => self.host_edges.insert((node, reader)),
            false => self.wanted.insert((node, reader)),
        };
    }

    /// Builds the parts of the task `own`.
    fn build(&mut self, own: usize) -> Result<(), SessionError> {
        let given: Vec<bool> = self
            .graph
            .nodes
            .iter()
            .map(|node| matches!(&node.op, Op::Session(op) if !matches!(op, SessionOp::Gradient { .. })))
            .collect();
        let (gradients, wanted): (Vec<_>, Vec<_>) =
            (self.gradients()?, self.wanted.iter().copied().collect());
        let (part_of, parts_count) = (self.part_of.clone(), self.parts.len() as u32);
        let cut = Parts::new(Cut {
            graph: self.graph,
            tensors: self.tensors,
            parts: &part_of,
            parts_count,
            given: &given,
            wanted: &wanted,
            gradients: &gradients,
            training: !gradients.is_empty(),
        })?;
        for part in 0..parts_count {
            if self.parts[part as usize].task == own {
                self.receive(part, cut.compile(part, Threads::One)?);
            }
        }
        for position in 0..self.graph.nodes.len() {
            let node = NodeId(position as u32);
            let Some(part) = self.part_of[position] else { continue };
            if is_host(self.op(node)) && self.parts[part as usize].task == own {
                let inputs = &self.graph.nodes[position].inputs;
                let inputs = inputs.iter().map(|&input| self.source(input, part)).collect();
                self.step(part, node, inputs);
            }
        }
        for edge in cut.edges() {
            if let Some(step) = edge.given.and_then(|given| self.steps.get(&(given, edge.from)).copied()) {
                self.parts[edge.from as usize].steps[step].sends.push((edge.to, edge.key));
            }
        }
        for &(node, reader) in &self.host_edges {
            let part = self.part_of[node.index()].expect("a node that is read is needed");
            if let Some(&step) = self.steps.get(&(node, part)) {
                self.parts[part as usize].steps[step].sends.push((reader, HOST_KEY | u64::from(node.0)));
            }
        }
        Ok(())
    }

    /// Takes the program of a part, and notes what the part receives.
    fn receive(&mut self, part: u32, compiled: pushpull_engine::Part) {
        let pushpull_engine::Part { program, receives, sends, wanted, .. } = compiled;
        let spec = |node: NodeId| self.tensors[node.index()].clone().expect("a node that is read is needed");
        let mut received = Received::default();
        for edge in receives {
            received.add(edge.key, edge.spec);
        }
        for (node, position) in wanted {
            let shape = (spec(node) != *received.spec(position)).then(|| spec(node).shape);
            self.received.insert((node, part), Source::Received(position, shape));
        }
        for &(node, _) in self.host_edges.iter().filter(|&&(_, reader)| reader == part) {
            let position = received.add(HOST_KEY | u64::from(node.0), spec(node));
            self.received.insert((node, part), Source::Received(position, None));
        }
        let own = &mut self.parts[part as usize];
        own.received = received;
        own.engine =
            program.map(|program| EnginePart { program: Arc::new(program), sends, idle: Mutex::default() });
    }

    fn step(&mut self, part: u32, node: NodeId, inputs: Vec<Source>) -> usize {
        let steps = &mut self.parts[part as usize].steps;
        steps.push(HostStep { node, inputs, sends: Vec::new() });
        let step = steps.len() - 1;
        self.steps.insert((node, part), step);
        step
    }

    /// Returns where a host part of this task finds the value of a node that comes before.
    fn source(&mut self, node: NodeId, part: u32) -> Source {
        if let Some(received) = self.received.get(&(node, part)) {
            return received.clone();
        }
        let known = self.steps.get(&(node, part)).copied();
        Source::Step(known.unwrap_or_else(|| self.step(part, node, Vec::new())))
    }

    /// Returns the gradients that the run needs.
    fn gradients(&self) -> Result<Vec<CutGradient>, SessionError> {
        let (mut found, first_uses) = (Vec::new(), first_uses(self.graph));
        for (position, node) in self.graph.nodes.iter().enumerate() {
            let Op::Session(SessionOp::Gradient { variable }) = node.op else { continue };
            if self.tensors[position].is_none() {
                continue;
            }
            let of = first_uses[variable.index()].expect("the variable of a gradient is needed");
            found.push(CutGradient { node: NodeId(position as u32), loss: node.inputs[0], of });
        }
        Ok(found)
    }
}

/// Returns the first node that reads each variable.
fn first_uses(graph: &GraphSpec) -> Vec<Option<NodeId>> {
    let mut first = vec![None; graph.variables.len()];
    for (position, node) in graph.nodes.iter().enumerate() {
        if let Op::Variable { variable } = node.op {
            first[variable.index()].get_or_insert(NodeId(position as u32));
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use pushpull_messages::cluster::ClusterSpec;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::{JobName, NodeId, TaskId};
    use pushpull_messages::message::Fed;
    use pushpull_messages::tensor::DType;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;

    /// Plans a run that fetches the node that `build` returns, for the first of two tasks with two CPUs each.
    fn is_small(build: impl FnOnce(&mut GraphBuilder) -> NodeId) -> bool {
        let mut g = GraphBuilder::new("g");
        let fetch = build(&mut g);
        let graph = g.finish_session().unwrap();
        let cluster = ClusterSpec::new([(JobName::Worker, vec!["a:1", "b:1"])]).unwrap();
        let devices = Devices::new(&cluster, &[2, 2], TaskId::worker(0)).unwrap();
        let placement = Placement::new(&graph, &devices, false).unwrap();
        let fed = graph.nodes.iter().enumerate().filter_map(|(position, node)| match &node.op {
            Op::Session(SessionOp::Placeholder { tensor }) => {
                Some(Fed { node: NodeId(position as u32), tensor: tensor.clone() })
            }
            _ => None,
        });
        let signature = Signature { feeds: fed.collect(), fetches: vec![fetch], targets: vec![] };
        Plan::new(&graph, &placement, &devices, &signature, 0).unwrap().is_small
    }

    fn vector(g: &mut GraphBuilder, elements: usize) -> NodeId {
        g.placeholder("x", TensorSpec::f32([elements]))
    }

    #[test]
    fn operations_on_few_numbers_are_small() {
        assert!(is_small(|g| vector(g, 1)));
        assert!(is_small(|g| {
            let x = vector(g, 100);
            let x = g.relu(x);
            let x = g.cast(x, DType::I64);
            let x = g.mul(x, x);
            let x = g.cast(x, DType::F32);
            g.reduce(pushpull_messages::graph::ReductionOp::Sum, x, &[0], false)
        }));
        assert!(is_small(|g| {
            let v = g.variable("v", [100], InitializerSpec::Zeros);
            let x = vector(g, 100);
            g.assign_add(v, x)
        }));
    }

    #[test]
    fn large_values_are_not_small() {
        assert!(!is_small(|g| vector(g, 1 << 15)));
        assert!(!is_small(|g| {
            let x = vector(g, 1);
            let wide = g.variable("wide", [1 << 14], InitializerSpec::Zeros);
            g.mul(x, wide)
        }));
    }

    #[test]
    fn values_that_are_read_often_are_not_small() {
        let sum = |elements: usize, times: usize| {
            is_small(|g| {
                let x = g.placeholder("x", TensorSpec::new(DType::I64, [elements]));
                g.add_n(&vec![x; times])
            })
        };
        assert!(sum(1024, 30));
        assert!(!sum(1024, 40));
        assert!(sum(1, 500));
        assert!(!sum(1, 600));
    }

    #[test]
    fn many_products_are_not_small() {
        let product = |size: usize| {
            is_small(|g| {
                let x = g.placeholder("x", TensorSpec::f32([size, size]));
                g.matmul(x, x)
            })
        };
        assert!(product(40));
        // All values together are within the bound, but not the products.
        assert!(!product(60));
    }

    #[test]
    fn runs_on_several_devices_are_not_small() {
        let device = |device: &str| {
            is_small(|g| {
                let x = vector(g, 2);
                let y = g.relu(x);
                g.device(device, |g| g.relu(y))
            })
        };
        assert!(device("/job:worker/task:0/device:CPU:0"));
        assert!(!device("/job:worker/task:0/device:CPU:1"));
        assert!(!device("/job:worker/task:1"));
    }

    #[test]
    fn texts_of_unknown_length_are_not_small() {
        let text = || TensorSpec::new(DType::Text, Shape::scalar());
        assert!(is_small(|g| {
            let x = g.placeholder("x", text());
            let y = g.text("hello");
            g.group(&[x, y])
        }));
        assert!(!is_small(|g| g.text(&"long ".repeat(1 << 16))));
        assert!(!is_small(|g| {
            let x = g.placeholder("x", text());
            g.equal(x, x)
        }));
        assert!(!is_small(|g| g.variable_of("v", [], DType::Text, InitializerSpec::Zeros)));
    }
}
