//! Runs one part of a run on the current thread. It waits for the values that it needs, and passes on the
//! values that other parts need as soon as they are computed.

use std::sync::Arc;

use pushpull_engine::{ColumnRef, ColumnSource, GradientSink, Lost, StepError, StepFault};
use pushpull_messages::graph::{Op, SessionOp};
use pushpull_messages::id::{NodeId, VariableId};
use pushpull_messages::tensor::{Tensor, TensorSpec};

use crate::control::Control;
use crate::error::{NodeFault, RunError};
use crate::host;
use crate::inbox::Inbox;
use crate::plan::{EnginePart, Source};
use crate::run::Run;
use crate::variables::Declared;

/// Runs the host operations of a part. If it is the home part, returns the values of the fetches.
///
/// # Errors
/// If an operation fails, or if a value does not arrive because the run has failed elsewhere.
pub(crate) fn run_host(run: &Run, part: usize) -> Result<Vec<Arc<Tensor>>, RunError> {
    let steps = &run.plan.parts[part].steps;
    let mut values: Vec<Arc<Tensor>> = Vec::with_capacity(steps.len());
    for step in steps {
        run.control.check()?;
        let failed = |fault: NodeFault| run.node_failed(step.node, fault);
        let inputs = step.inputs.iter().map(|source| find(run, part, &values, source));
        let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let value = compute(run, step.node, &inputs).map_err(failed)?;
        for &(reader, key) in &step.sends {
            run.deliver(reader, key, Arc::clone(&value));
        }
        values.push(value);
    }
    if part != run.plan.home {
        return Ok(Vec::new());
    }
    let fetches = run.plan.fetches.iter().map(|source| find(run, part, &values, source));
    fetches.collect::<Result<_, _>>().map_err(|fault| run.node_failed(NodeId(0), fault))
}

fn find(run: &Run, part: usize, values: &[Arc<Tensor>], source: &Source) -> Result<Arc<Tensor>, NodeFault> {
    match source {
        Source::Step(step) => Ok(Arc::clone(&values[*step])),
        Source::Received(position, shape) => {
            let value = run.inboxes[part].wait(&run.control, *position).map_err(NodeFault::Ended)?;
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
    let Some(engine) = &run.plan.parts[part].engine else { return Ok(()) };
    let columns = Columns { inbox: &run.inboxes[part], control: &run.control };
    let mut sink = Sends { run, engine, buffers: engine.sends.iter().map(|_| Vec::new()).collect() };
    let spare = |bytes| run.memory.take(run.graph.client, "", bytes).ok();
    let ran = engine.with_executor(spare, |executor| executor.run_part(&columns, &mut sink, run.random()));
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

/// Provides the received values of a part as the columns of its program.
struct Columns<'a> {
    inbox: &'a Inbox,
    control: &'a Control,
}

fn lost(error: RunError) -> Lost {
    Lost(error.to_string())
}

impl ColumnSource for Columns<'_> {
    fn check(&self) -> Result<(), Lost> {
        self.control.check().map_err(lost)
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        let value = self.inbox.wait(self.control, index).map_err(lost)?;
        match (value.f32s(), value.i32s()) {
            (Some(floats), _) => Ok(ColumnRef::F32(floats)),
            (_, Some(integers)) => Ok(ColumnRef::I32(integers)),
            _ => unreachable!("the engine receives only floats and 32-bit integers, by inference"),
        }
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
