//! Decides which kernels run, and in which order. It omits kernels that no target needs, merges bias and relu
//! into the product or convolution before them, and merges successive element-wise functions into one pass
//! over memory.
//!
//! Required properties: (A) every target is computed; (B) a value that no target needs is not computed; (C)
//! the kernels that every run needs are the same, whichever targets some runs need in addition.

use pushpull_kernels::cpu::{Binary, Extent, Operand, Side, Step, Unary};

use super::extent::extent;
use super::fetch::Groups;
use super::ir::{Epilogue, Ir, Kernel, Node, Value};

/// A kernel that will run, with the values that it reads. It computes the outputs of `node`.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub node: usize,
    pub kernel: Kernel,
    pub inputs: Vec<Value>,
}

/// The kernels that will run, and the number of times that each value is read.
pub(super) struct Fused {
    /// The kernels in the order in which they run.
    pub drafts: Vec<Draft>,
    pub readers: Readers,
}

/// The number of times that each value is read. A read of a view counts as a read of the viewed value. A
/// target counts as one more read of its value.
pub(super) struct Readers(Vec<Vec<usize>>);

impl Readers {
    pub fn of(&self, value: Value) -> usize {
        self.0[value.node][value.output]
    }

    /// Adds the only output of the node behind the last one, which something reads.
    pub fn add(&mut self, value: Value) {
        assert_eq!(value, Value { node: self.0.len(), output: 0 }, "the node behind the last one");
        self.0.push(vec![1]);
    }
}

/// The maximum number of steps in one pass. With more steps, the operands might not fit into the cache
/// together.
const STEPS_MAX: usize = 12;
/// The maximum number of operands of one pass.
pub(super) const OPERANDS_MAX: usize = 6;

/// Fuses the kernels that the targets need. Every run needs the targets of [`Groups::ALWAYS`]. Only some runs
/// need the other targets.
pub(super) fn fuse(ir: &Ir, targets: &[(Value, Groups)]) -> Fused {
    let of_every_run = targets.iter().filter(|(_, groups)| groups.meets(Groups::ALWAYS));
    let always = reach(ir, of_every_run.map(|&(target, _)| target));
    let all = reach(ir, targets.iter().map(|&(target, _)| target));
    let mut fusion = Fusion { ir, always: &always, all: &all, drafts: Vec::new() };
    for (position, node) in ir.nodes.iter().enumerate() {
        let draft = all.live[position].then(|| fusion.draft(position, node)).flatten();
        fusion.drafts.push(draft);
    }
    let drafts = fusion.drafts.into_iter().flatten().collect();
    Fused { drafts, readers: all.readers }
}

/// The nodes that some targets need.
pub(super) struct Reach {
    /// For each node, true if a target needs it. A view is never needed, only what it views.
    pub live: Vec<bool>,
    /// The number of times that these nodes and targets read each value.
    pub readers: Readers,
}

/// Returns the nodes that the targets need. Inputs come before their readers, so a single pass from the end
/// finds all needed nodes.
pub(super) fn reach(ir: &Ir, targets: impl Iterator<Item = Value>) -> Reach {
    let mut live = vec![false; ir.nodes.len()];
    let mut readers: Vec<Vec<usize>> = ir.nodes.iter().map(|node| vec![0; node.outputs.len()]).collect();
    for target in targets {
        let root = ir.root(target);
        live[root.node] = true;
        readers[root.node][root.output] += 1;
    }
    for position in (0..ir.nodes.len()).rev() {
        if live[position] {
            for &input in &ir.nodes[position].inputs {
                let root = ir.root(input);
                live[root.node] = true;
                readers[root.node][root.output] += 1;
            }
        }
    }
    Reach { live, readers: Readers(readers) }
}

struct Fusion<'a> {
    ir: &'a Ir,
    /// What every run needs.
    always: &'a Reach,
    /// What some runs need.
    all: &'a Reach,
    /// The draft of each node; `None` if the node does not run, or was merged into a later one.
    drafts: Vec<Option<Draft>>,
}

impl Fusion<'_> {
    fn draft(&mut self, position: usize, node: &Node) -> Option<Draft> {
        let inputs: Vec<Value> = node.inputs.iter().map(|&input| self.ir.root(input)).collect();
        match node.kernel {
            Kernel::Column(_) | Kernel::Variable(_) | Kernel::View => None,
            Kernel::Unary(_) | Kernel::UnaryGrad(_) | Kernel::Binary(..) => {
                let links = links(self.ir, position, node, &inputs);
                let joined = links.iter().find_map(|link| self.join(position, link));
                joined
                    .or_else(|| self.begin(position, &links))
                    .or_else(|| Some(Draft { node: position, kernel: node.kernel.clone(), inputs }))
            }
            _ => Some(Draft { node: position, kernel: node.kernel.clone(), inputs }),
        }
    }

    /// Returns how many reads of a value count when the node at `position` is fused. If every run needs the
    /// node, reads that happen only in some runs do not count. If they counted, a target of some runs could
    /// prevent a merge. That would change bits, because a kernel with an epilogue rounds differently from two
    /// separate kernels.
    fn readers(&self, position: usize, value: Value) -> usize {
        let reach = if self.always.live[position] { self.always } else { self.all };
        reach.readers.of(value)
    }

    /// Merges the node at `position` into the kernel that computes `link.first`. Returns `None` if the two
    /// cannot be merged, or if [`readers`](Self::readers) counts another reader of `link.first`. If another
    /// reader needs `link.first` in some runs only, the unmerged kernel is kept for these runs, too.
    fn join(&mut self, position: usize, link: &Link) -> Option<Draft> {
        if self.readers(position, link.first) != 1 || link.first.output != 0 {
            return None;
        }
        let rows_of = link.operand.map_or(0, |operand| self.ir.elements(operand));
        let mut draft = self.drafts[link.first.node].clone()?;
        match (&mut draft.kernel, &link.function) {
            (Kernel::Product(factors, epilogue @ Epilogue::Bare), Function::AddRow)
                if factors.n == rows_of =>
            {
                *epilogue = Epilogue::Bias;
                draft.inputs.extend(link.operand);
            }
            (Kernel::Conv2d(conv, epilogue @ Epilogue::Bare), Function::AddRow)
                if conv.kernel()[3] == rows_of =>
            {
                *epilogue = Epilogue::Bias;
                draft.inputs.extend(link.operand);
            }
            (
                Kernel::Product(_, epilogue @ Epilogue::Bias) | Kernel::Conv2d(_, epilogue @ Epilogue::Bias),
                Function::Unary(Unary::Relu),
            ) => *epilogue = Epilogue::BiasRelu,
            (Kernel::Chain(steps), function)
                if steps.len() < STEPS_MAX && draft.inputs.len() <= OPERANDS_MAX =>
            {
                steps.push(function.step(draft.inputs.len() - 1));
                draft.inputs.extend(link.operand);
            }
            _ => return None,
        }
        if self.all.readers.of(link.first) == 1 {
            self.drafts[link.first.node] = None;
        }
        draft.node = position;
        Some(draft)
    }

    /// Begins a new pass with one step. If `links` allows a choice, the pass begins with a value that may be
    /// overwritten.
    fn begin(&self, position: usize, links: &[Link]) -> Option<Draft> {
        let lasting = |link: &&Link| self.readers(position, link.first) != 1;
        let link = links.iter().min_by_key(lasting)?;
        let inputs = [link.first].into_iter().chain(link.operand).collect();
        Some(Draft { node: position, kernel: Kernel::Chain(vec![link.function.step(0)]), inputs })
    }
}

/// A way to treat a node as one step of a pass: a function of the value `first` and an optional operand.
struct Link {
    first: Value,
    function: Function,
    operand: Option<Value>,
}

/// The function of a step, before the step's operand gets an index.
#[derive(Clone, Copy)]
enum Function {
    Unary(Unary),
    UnaryGrad(Unary),
    /// The addition of a row, which the epilogue of a product or a convolution can do as well.
    AddRow,
    Binary(Binary, Extent, Side),
}

impl Function {
    /// Returns the step. `index` is the position of the step's operand among the operands of the pass; it is
    /// ignored if the step has no operand.
    fn step(self, index: usize) -> Step {
        let operand = |extent| Operand { index, extent };
        match self {
            Self::Unary(op) => Step::Unary(op),
            Self::UnaryGrad(op) => Step::UnaryGrad(op, operand(Extent::Whole)),
            Self::AddRow => Step::Binary(Binary::Add, operand(Extent::Row), Side::B),
            Self::Binary(op, extent, side) => Step::Binary(op, operand(extent), side),
        }
    }
}

/// Returns all ways to treat a node as one step of a pass. The list is empty for a node that broadcasts
/// along an inner axis.
fn links(ir: &Ir, position: usize, node: &Node, inputs: &[Value]) -> Vec<Link> {
    let within = &node.outputs[0];
    let extent = |input: usize| extent(ir.shape(ir.nodes[position].inputs[input]), within);
    match node.kernel {
        Kernel::Unary(op) => vec![Link { first: inputs[0], function: Function::Unary(op), operand: None }],
        Kernel::UnaryGrad(op) => {
            vec![Link { first: inputs[1], function: Function::UnaryGrad(op), operand: Some(inputs[0]) }]
        }
        Kernel::Binary(op, _) => {
            let way = |first: usize, side: Side| {
                let other = 1 - first;
                let repeated = extent(other).filter(|_| extent(first) == Some(Extent::Whole))?;
                let function = match (op, repeated) {
                    (Binary::Add, Extent::Row) => Function::AddRow,
                    _ => Function::Binary(op, repeated, side),
                };
                Some(Link { first: inputs[first], function, operand: Some(inputs[other]) })
            };
            [way(0, Side::B), way(1, Side::A)].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}
