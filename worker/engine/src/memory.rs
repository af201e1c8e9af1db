//! Assigns memory to every value of a program: in the arena, in a gradient's buffer, or where the value is
//! stored already. An element-wise pass or a dropout overwrites its first input if no later read needs that
//! input. This module must not depend on operations.

use std::ops::Range;

use pushpull_messages::id::{NodeId, VariableId};

use super::fetch::Groups;
use super::fuse::{Draft, Fused};
use super::ir::{Ir, Kernel, Value};
use super::plan::{Lifetime, plan};

/// One instruction of a program: a kernel, and the memory of its inputs and outputs.
#[derive(Debug)]
pub(super) struct Instruction {
    pub kernel: Kernel,
    pub sizes: Sizes,
    /// The places of the inputs, without the first one if it is written over.
    pub inputs: Vec<Place>,
    pub outputs: Vec<Place>,
    /// True if the first output is written over the first input.
    pub in_place: bool,
    /// The range of the arena that the kernel uses as scratch memory.
    pub scratch: Range<usize>,
    /// The variable whose gradient is complete after this instruction.
    pub completes: Option<VariableId>,
    /// The node of the graph that the instruction belongs to.
    pub origin: NodeId,
    /// The groups of results that need the instruction. The instruction is executed only in runs of the
    /// program that compute one of these groups.
    pub groups: Groups,
}

/// The sizes of all values that a kernel reads and writes, in floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
}

impl Sizes {
    fn of(ir: &Ir, step: &Draft) -> Self {
        let inputs: Vec<usize> = step.inputs.iter().map(|&input| ir.elements(input)).collect();
        let outputs = match step.kernel {
            Kernel::Copy => inputs.clone(),
            _ => ir.nodes[step.node].outputs.iter().map(|shape| shape.iter().product()).collect(),
        };
        Self { inputs, outputs }
    }
}

/// The memory that holds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A range of the arena, in floats.
    Arena(Range<usize>),
    Variable(VariableId),
    Gradient(VariableId),
    Column(usize),
}

/// The instructions of a program, with a place for each value.
pub(super) struct Memory {
    pub instructions: Vec<Instruction>,
    /// The size of the arena, in floats.
    pub arena: usize,
    /// The place of each result.
    pub results: Vec<Place>,
}

/// Assigns a place to every value. Each of the `results` has groups, and is read at the end of every run that
/// computes one of these groups. `gradients` are written to buffers of their own. If no kernel reads a
/// gradient, and the kernel that computes it has no other output, the gradient is computed directly in its
/// buffer. Otherwise the gradient is copied to its buffer. The callback `scratch` returns the number of
/// floats of scratch memory that a kernel needs for values of these sizes.
pub(super) fn lay_out(
    ir: &Ir,
    fused: Fused,
    results: &[(Value, Groups)],
    gradients: &[(VariableId, Value)],
    scratch: impl Fn(&Kernel, &Sizes) -> usize,
) -> Memory {
    let Fused { drafts, readers } = fused;
    let mut steps: Vec<Draft> = Vec::with_capacity(drafts.len() + gradients.len());
    let mut targets: Vec<Target> = gradients
        .iter()
        .map(|&(variable, value)| Target { variable, value: ir.root(value), placed: false })
        .collect();
    // For every step, the variable whose gradient the step writes.
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

/// A variable's gradient. `placed` is true if an instruction already writes the gradient to its buffer.
struct Target {
    variable: VariableId,
    value: Value,
    placed: bool,
}

/// Returns true if a value is an input column or a variable, which no instruction computes.
fn is_given(ir: &Ir, value: Value) -> bool {
    matches!(ir.nodes[value.node].kernel, Kernel::Column(_) | Kernel::Variable(_))
}

/// Returns, for each output of each node, the index in `steps` of the last instruction that reads it. For a
/// result, this index is the length of `steps`, because results are read after the last instruction.
fn last_reads(ir: &Ir, steps: &[Draft], results: &[(Value, Groups)]) -> Vec<Vec<usize>> {
    let mut last_read: Vec<Vec<usize>> = ir.nodes.iter().map(|node| vec![0; node.outputs.len()]).collect();
    for (time, step) in steps.iter().enumerate() {
        for input in &step.inputs {
            last_read[input.node][input.output] = time;
        }
    }
    for &(result, _) in results {
        let root = ir.root(result);
        last_read[root.node][root.output] = steps.len();
    }
    last_read
}

/// The blocks of memory that the values need, before the blocks are placed in the arena. A block is called a
/// home. Values that overwrite each other share a home. A home is needed from the instruction that writes
/// its first value to the last read of its last value.
struct Homes {
    /// The index of the home of each output of each node; `None` if the output is not stored in the arena.
    of_values: Vec<Vec<Option<usize>>>,
    /// The index of the home of each instruction's scratch memory; `None` if the instruction needs no
    /// scratch memory.
    of_scratch: Vec<Option<usize>>,
    /// True for each instruction whose first output is written over its first input.
    in_place: Vec<bool>,
    /// The size of each home, and the instructions during which it is needed.
    lifetimes: Vec<Lifetime>,
}

impl Homes {
    fn new(
        ir: &Ir,
        steps: &[Draft],
        writes: &[Option<VariableId>],
        last_read: &[Vec<usize>],
        scratch: impl Fn(&Kernel, &Sizes) -> usize,
    ) -> Self {
        let mut homes = Self {
            of_values: ir.nodes.iter().map(|node| vec![None; node.outputs.len()]).collect(),
            of_scratch: vec![None; steps.len()],
            in_place: vec![false; steps.len()],
            lifetimes: Vec::new(),
        };
        for (time, step) in steps.iter().enumerate() {
            for (output, shape) in ir.nodes[step.node].outputs.iter().enumerate() {
                if step.kernel == Kernel::Copy || writes[time].is_some() {
                    continue;
                }
                let last = last_read[step.node][output].max(time);
                let over = (output == 0).then(|| written_over(ir, step, time, last_read)).flatten();
                let home = over.and_then(|value| homes.of_values[value.node][value.output]);
                homes.in_place[time] |= home.is_some();
                let home = home.unwrap_or_else(|| homes.add(shape.iter().product(), time));
                homes.lifetimes[home].last = last;
                homes.of_values[step.node][output] = Some(home);
            }
            let elements = scratch(&step.kernel, &Sizes::of(ir, step));
            if elements > 0 {
                homes.of_scratch[time] = Some(homes.add(elements, time));
            }
        }
        homes
    }

    /// Adds a home that is needed only by the instruction at index `time`, and returns its index.
    fn add(&mut self, elements: usize, time: usize) -> usize {
        self.lifetimes.push(Lifetime { elements, first: time, last: time });
        self.lifetimes.len() - 1
    }
}

fn place(
    ir: &Ir,
    steps: &[Draft],
    writes: &[Option<VariableId>],
    results: &[(Value, Groups)],
    scratch: impl Fn(&Kernel, &Sizes) -> usize,
) -> Memory {
    let last_read = last_reads(ir, steps, results);
    let Homes { of_values, of_scratch, in_place, lifetimes } =
        Homes::new(ir, steps, writes, &last_read, scratch);
    let plan = plan(&lifetimes);
    let groups = groups_of(ir, steps, writes, results);
    let place_of = |value: Value| match ir.nodes[value.node].kernel {
        Kernel::Column(column) => Place::Column(column),
        Kernel::Variable(variable) => Place::Variable(variable),
        _ => {
            let home = of_values[value.node][value.output].expect("a value is computed before it is read");
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
            sizes: Sizes::of(ir, step),
            inputs: read.map(|&input| place_of(input)).collect(),
            outputs,
            in_place: in_place[time],
            scratch: of_scratch[time].map(|home| plan.places[home].clone()).unwrap_or_default(),
            completes: writes[time],
            origin: ir.nodes[step.node].origin,
            groups: groups[time],
        }
    };
    Memory {
        instructions: steps.iter().enumerate().map(instruction).collect(),
        arena: plan.arena,
        results: results.iter().map(|&(result, _)| place_of(ir.root(result))).collect(),
    }
}

/// Returns, for each instruction, the groups of results that need it. An instruction that the gradients need
/// belongs to [`Groups::ALWAYS`].
fn groups_of(
    ir: &Ir,
    steps: &[Draft],
    writes: &[Option<VariableId>],
    results: &[(Value, Groups)],
) -> Vec<Groups> {
    let mut of_nodes = vec![Groups::NONE; ir.nodes.len()];
    for &(result, groups) in results {
        let node = &mut of_nodes[ir.root(result).node];
        *node = node.with(groups);
    }
    let mut of_steps = vec![Groups::NONE; steps.len()];
    // The readers of a value come after the step that computes it.
    for (time, step) in steps.iter().enumerate().rev() {
        let own = if writes[time].is_some() { Groups::ALWAYS } else { of_nodes[step.node] };
        of_steps[time] = own;
        for input in &step.inputs {
            of_nodes[input.node] = of_nodes[input.node].with(own);
        }
    }
    of_steps
}

/// Returns the input that an element-wise pass or a dropout may overwrite. This is the first input, if it is
/// as large as the output, occurs only once among the inputs, and is not read later.
fn written_over(ir: &Ir, step: &Draft, time: usize, last_read: &[Vec<usize>]) -> Option<Value> {
    let works_in_place = matches!(step.kernel, Kernel::Chain(_) | Kernel::Dropout { .. });
    let first = *step.inputs.first().filter(|_| works_in_place)?;
    let once = step.inputs.iter().filter(|&&input| input == first).count() == 1;
    let as_large = ir.elements(first) == ir.elements(Value { node: step.node, output: 0 });
    (once && as_large && last_read[first.node][first.output] == time).then_some(first)
}
