//! Where every value of a program lies: in the arena, in the buffers of gradients, or where it came from. A
//! pass over elements writes over its first value where that is needed no more.

use std::ops::Range;

use pushpull_messages::id::{NodeId, VariableId};

use super::fuse::{Draft, Fused};
use super::ir::{Ir, Kernel, Value};
use super::plan::{Lifetime, plan};

/// One step of a program.
#[derive(Debug)]
pub(super) struct Instruction {
    pub kernel: Kernel,
    pub inputs: Vec<Place>,
    pub outputs: Vec<Place>,
    /// The first output is where the first input is.
    pub in_place: bool,
    /// Memory that holds nothing before and after.
    pub scratch: Range<usize>,
    /// The gradient that is complete behind it.
    pub completes: Option<VariableId>,
    /// The node of the graph that it is there for.
    pub origin: NodeId,
}

/// Where a value lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In floats.
    Arena(Range<usize>),
    Variable(VariableId),
    Gradient(VariableId),
    Column(usize),
}

/// Everything in its place.
pub(super) struct Memory {
    pub instructions: Vec<Instruction>,
    /// Floats in the arena.
    pub arena: usize,
    /// Where each result lies.
    pub results: Vec<Place>,
}

/// Gives everything a place. `results` are read when all is done; `gradients` are written to the variables'
/// own memory, without another copy where nobody else reads them. `scratch` tells what a kernel needs.
pub(super) fn lay_out(
    ir: &Ir,
    fused: Fused,
    results: &[Value],
    gradients: &[(VariableId, Value)],
    scratch: impl Fn(&Kernel) -> usize,
) -> Memory {
    let Fused { drafts, readers } = fused;
    let mut steps: Vec<Draft> = Vec::with_capacity(drafts.len() + gradients.len());
    let mut targets: Vec<Target> = gradients
        .iter()
        .map(|&(variable, value)| Target { variable, value: ir.root(value), placed: false })
        .collect();
    // For every step the variable whose gradient it writes.
    let mut writes: Vec<Option<VariableId>> = Vec::with_capacity(steps.capacity());
    let copy = |value: Value| Draft { node: value.node, kernel: Kernel::Copy, inputs: vec![value] };
    for target in targets.iter_mut().filter(|target| is_given(ir, target.value)) {
        target.placed = true;
        steps.push(copy(target.value));
        writes.push(Some(target.variable));
    }
    for draft in drafts {
        let node = draft.node;
        let direct = ir.nodes[node].outputs.len() == 1 && readers.of(Value { node, output: 0 }) == 1;
        steps.push(draft);
        writes.push(None);
        for target in targets.iter_mut().filter(|target| !target.placed && target.value.node == node) {
            target.placed = true;
            if direct {
                *writes.last_mut().expect("just pushed") = Some(target.variable);
            } else {
                steps.push(copy(target.value));
                writes.push(Some(target.variable));
            }
        }
    }
    place(ir, &steps, &writes, results, scratch)
}

/// A gradient, and whether it has been given its memory.
struct Target {
    variable: VariableId,
    value: Value,
    placed: bool,
}

/// Whether a value is there without being computed.
fn is_given(ir: &Ir, value: Value) -> bool {
    matches!(ir.nodes[value.node].kernel, Kernel::Column(_) | Kernel::Variable(_))
}

fn place(
    ir: &Ir,
    steps: &[Draft],
    writes: &[Option<VariableId>],
    results: &[Value],
    scratch: impl Fn(&Kernel) -> usize,
) -> Memory {
    let mut last_read: Vec<Vec<usize>> = ir.nodes.iter().map(|node| vec![0; node.outputs.len()]).collect();
    for (time, step) in steps.iter().enumerate() {
        for input in &step.inputs {
            last_read[input.node][input.output] = time;
        }
    }
    for result in results {
        let root = ir.root(*result);
        last_read[root.node][root.output] = steps.len();
    }
    // Values that are written one over the other share a home, which lives from the first one's start to the
    // last one's end.
    let mut homes: Vec<Vec<Option<usize>>> =
        ir.nodes.iter().map(|node| vec![None; node.outputs.len()]).collect();
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    let mut in_place = vec![false; steps.len()];
    let mut scratches: Vec<Option<usize>> = vec![None; steps.len()];
    for (time, step) in steps.iter().enumerate() {
        for (output, shape) in ir.nodes[step.node].outputs.iter().enumerate() {
            if step.kernel == Kernel::Copy || writes[time].is_some() {
                continue;
            }
            let last = last_read[step.node][output].max(time);
            let over = (output == 0).then(|| written_over(ir, step, time, &last_read)).flatten();
            if let Some(home) = over.and_then(|value| homes[value.node][value.output]) {
                in_place[time] = true;
                lifetimes[home].last = last;
                homes[step.node][output] = Some(home);
            } else {
                let elements = shape.iter().product();
                lifetimes.push(Lifetime { elements, first: time, last });
                homes[step.node][output] = Some(lifetimes.len() - 1);
            }
        }
        let elements = scratch(&step.kernel);
        if elements > 0 {
            lifetimes.push(Lifetime { elements, first: time, last: time });
            scratches[time] = Some(lifetimes.len() - 1);
        }
    }
    let plan = plan(&lifetimes);
    let place_of = |value: Value| match ir.nodes[value.node].kernel {
        Kernel::Column(column) => Place::Column(column),
        Kernel::Variable(variable) => Place::Variable(variable),
        _ => {
            let home = homes[value.node][value.output].expect("what is read has been computed");
            Place::Arena(plan.places[home].clone())
        }
    };
    let instruction = |(time, step): (usize, &Draft)| {
        let outputs = match writes[time] {
            Some(variable) => vec![Place::Gradient(variable)],
            None => {
                let outputs = 0..ir.nodes[step.node].outputs.len();
                outputs.map(|output| place_of(Value { node: step.node, output })).collect()
            }
        };
        let read = step.inputs.iter().skip(usize::from(in_place[time]));
        Instruction {
            kernel: step.kernel.clone(),
            inputs: read.map(|&input| place_of(input)).collect(),
            outputs,
            in_place: in_place[time],
            scratch: scratches[time].map(|home| plan.places[home].clone()).unwrap_or_default(),
            completes: writes[time],
            origin: ir.nodes[step.node].origin,
        }
    };
    Memory {
        instructions: steps.iter().enumerate().map(instruction).collect(),
        arena: plan.arena,
        results: results.iter().map(|&result| place_of(ir.root(result))).collect(),
    }
}

/// The value that a pass over elements may write over: its first one, if it is computed, as large as the
/// output, and not read again, now or later.
fn written_over(ir: &Ir, step: &Draft, time: usize, last_read: &[Vec<usize>]) -> Option<Value> {
    let works_in_place = matches!(step.kernel, Kernel::Chain(_) | Kernel::Dropout { .. });
    let first = *step.inputs.first().filter(|_| works_in_place)?;
    let once = step.inputs.iter().filter(|&&input| input == first).count() == 1;
    let as_large = ir.elements(first) == ir.elements(Value { node: step.node, output: 0 });
    (once && as_large && last_read[first.node][first.output] == time).then_some(first)
}
