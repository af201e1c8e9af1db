//! Runs one part of a run on the current thread, or all parts of a small run. A part waits for the values
//! that it needs, and passes on the values that other parts need as soon as they are computed.

use std::cell::RefCell;
use std::sync::Arc;

use pushpull_engine::{ColumnRef, ColumnSource, GradientSink, Lost, StepError, StepFault};
use pushpull_messages::graph::{Op, SessionOp};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::{Tensor, TensorSpec};

use crate::error::{NodeFault, RunError};
use crate::host;
use crate::plan::{EnginePart, Source};
use crate::run::Run;
use crate::variables::Declared;

/// Runs the host operations of a part. If it is the home part, returns the values of the fetches.
///
/// # Errors
/// If an operation fails, or if a value does not arrive because the run has failed elsewhere.
pub(crate) fn run_host(run: &Run, part: usize) -> Result<Vec<Arc<Tensor>>, RunError> {
    let mut host = HostSteps::new(run, part);
    while host.advance()? {}
    host.fetches()
}

/// Runs all parts of a [small](crate::small) run on the current thread, and returns the values
/// of the fetches. When the engine needs a value that has not been computed, the host operations go on until
/// they have computed it: parts only need values of operations that come earlier in the graph.
///
/// # Errors
/// If an operation fails.
pub(crate) fn run_here(run: &Run) -> Result<Vec<Arc<Tensor>>, RunError> {
    let mut host = HostSteps::new(run, run.plan.home);
    if let Some(part) = run.plan.parts.iter().position(|part| part.engine.is_some()) {
        let columns = HostFirst { run, part, host: RefCell::new(host) };
        run_program(run, part, &columns)?;
        host = columns.host.into_inner();
    }
    while host.advance()? {}
    host.fetches()
}

/// The host operations of a part, and the values of those that have been computed.
struct HostSteps<'a> {
    run: &'a Run,
    part: usize,
    values: Vec<Arc<Tensor>>,
}

impl<'a> HostSteps<'a> {
    fn new(run: &'a Run, part: usize) -> Self {
        Self { run, part, values: Vec::with_capacity(run.plan.parts[part].steps.len()) }
    }

    /// Computes the next operation. Returns false if there is none.
    fn advance(&mut self) -> Result<bool, RunError> {
        let Self { run, part, values } = self;
        let Some(step) = run.plan.parts[*part].steps.get(values.len()) else { return Ok(false) };
        run.control.check()?;
        let failed = |fault: NodeFault| run.node_failed(step.node, fault);
        let inputs = step.inputs.iter().map(|source| find(run, *part, values, source));
        let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let value = compute(run, step.node, &inputs).map_err(failed)?;
        for &(reader, key) in &step.sends {
            run.deliver(reader, key, Arc::clone(&value));
        }
        values.push(value);
        Ok(true)
    }

    /// Returns the values of the fetches, if this is the home part.
    fn fetches(&self) -> Result<Vec<Arc<Tensor>>, RunError> {
        let Self { run, part, values } = self;
        if *part != run.plan.home {
            return Ok(Vec::new());
        }
        let fetches = run.plan.fetches.iter().map(|source| find(run, *part, values, source));
        fetches.collect::<Result<_, _>>().map_err(|fault| run.node_failed(NodeId(0), fault))
    }
}

fn find(run: &Run, part: usize, values: &[Arc<Tensor>], source: &Source) -> Result<Arc<Tensor>, NodeFault> {
    match source {
        Source::Step(step) => Ok(Arc::clone(&values[*step])),
        Source::Received(position, shape) => {
            let value = run.received(part, *position).map_err(NodeFault::Ended)?;
            Ok(match shape {
                None => Arc::clone(value),
                Some(shape) => {
                    let elements = value.elements().clone();
                    Arc::new(Tensor::new(shape.clone(), elements).expect("the shapes have one size"))
                }
            })
        }
    }
}

/// Computes a host node.
fn compute(run: &Run, id: NodeId, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>, NodeFault> {
    let graph = &run.graph.spec;
    let declared = |variable: VariableId| Declared {
        container: &run.graph.container,
        variable: &graph.variables[variable.index()],
        client: run.graph.client,
        may_create: !run.graph.home.read_only,
    };
    let variables = &run.variables;
    let done = || Ok(Arc::new(Tensor::from(true)));
    let op = match &graph.nodes[id.index()].op {
        Op::Input { .. } | Op::Session(SessionOp::Placeholder { .. }) => return Ok(run.fed(id)),
        Op::Constant { value } => return Ok(Arc::new(Tensor::from(*value))),
        Op::Variable { variable } => return Ok(variables.read(declared(*variable))?),
        Op::Session(op) => op,
        other => unreachable!("{} runs in the engine", other.name()),
    };
    match op {
        SessionOp::Identity => Ok(Arc::clone(&inputs[0])),
        SessionOp::Group => done(),
        SessionOp::Assign { variable, update } => {
            Ok(variables.update(declared(*variable), *update, &inputs[0])?)
        }
        SessionOp::Initialize { variable } => {
            variables.initialize(declared(*variable))?;
            done()
        }
        SessionOp::Apply { variable, optimizer } => {
            let gradient = inputs[0].f32s().expect("a gradient is of floats, by inference");
            variables.apply(declared(*variable), optimizer, gradient)?;
            done()
        }
        op => {
            let inputs: Vec<&Tensor> = inputs.iter().map(|input| &**input).collect();
            run.count_texts(host::text_bytes(op, &inputs))?;
            Ok(Arc::new(host::compute(op, &inputs)?))
        }
    }
}

/// Runs the operations of a part that the engine runs, if there are any.
///
/// # Errors
/// The same as those of [`run_host`].
pub(crate) fn run_engine(run: &Run, part: usize) -> Result<(), RunError> {
    run_program(run, part, &Columns { run, part })
}

/// Runs the program of a part, if it has one, with values from `columns`.
fn run_program(run: &Run, part: usize, columns: &dyn ColumnSource) -> Result<(), RunError> {
    let Some(engine) = &run.plan.parts[part].engine else { return Ok(()) };
    let mut sink = Sends { run, engine, buffers: engine.sends.iter().map(|_| Vec::new()).collect() };
    let spare = |bytes| run.memory.take(run.graph.client, "", bytes).ok();
    let ran = engine.with_executor(spare, |executor| executor.run_part(columns, &mut sink, run.random()));
    match ran {
        Ok(()) => Ok(()),
        Err(StepError { fault: StepFault::Lost(Lost(reason)), .. }) => {
            run.control.check()?;
            Err(RunError::Aborted(reason))
        }
        Err(StepError { node, fault }) => {
            Err(RunError::Node { node, task: run.task, reason: fault.to_string() })
        }
    }
}

/// Provides the received values of a part as the columns of its program. Waits for a value that has not
/// arrived.
struct Columns<'a> {
    run: &'a Run,
    part: usize,
}

fn lost(error: RunError) -> Lost {
    Lost(error.to_string())
}

impl ColumnSource for Columns<'_> {
    fn check(&self) -> Result<(), Lost> {
        self.run.control.check().map_err(lost)
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        self.run.received(self.part, index).map(|value| column_of(value)).map_err(lost)
    }
}

fn column_of(value: &Tensor) -> ColumnRef<'_> {
    match (value.f32s(), value.i32s()) {
        (Some(floats), _) => ColumnRef::F32(floats),
        (_, Some(integers)) => ColumnRef::I32(integers),
        _ => unreachable!("the engine receives only floats and 32-bit integers, by inference"),
    }
}

/// Provides the columns of a program like [`Columns`], but computes a value that has not arrived.
struct HostFirst<'a> {
    run: &'a Run,
    part: usize,
    host: RefCell<HostSteps<'a>>,
}

impl ColumnSource for HostFirst<'_> {
    fn check(&self) -> Result<(), Lost> {
        self.run.control.check().map_err(lost)
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        while !self.run.has_received(self.part, index) {
            let advanced = self.host.borrow_mut().advance().map_err(|error| {
                self.run.control.fail(error.clone());
                lost(error)
            })?;
            assert!(advanced, "the program reads a value that no operation computes");
        }
        self.run.received(self.part, index).map(|value| column_of(value)).map_err(lost)
    }
}

/// Takes the values that a part sends, and passes each on when it is complete.
struct Sends<'a> {
    run: &'a Run,
    engine: &'a EnginePart,
    /// The memory of each value that has begun and is not complete.
    buffers: Vec<Vec<f32>>,
}

impl GradientSink for Sends<'_> {
    fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        let edge = &self.engine.sends[variable.index()];
        let buffer = &mut self.buffers[variable.index()];
        buffer.resize(edge.spec.shape.elements(), 0.0);
        buffer
    }

    fn complete(&mut self, variable: VariableId) {
        let edge = &self.engine.sends[variable.index()];
        let elements = std::mem::take(&mut self.buffers[variable.index()]);
        let TensorSpec { shape, .. } = edge.spec.clone();
        let value = Tensor::new(shape, elements).expect("the buffer has the edge's size");
        self.run.deliver(edge.to, edge.key, Arc::new(value));
    }
}
