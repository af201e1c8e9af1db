//! Reductions of tensors along some of their axes.

use pushpull_kernels::cpu::{Broadcast, Reduction, Side};

use super::axes::{Axis, index_type, offset};
use super::columns::{as_columns, reduce_columns};
use super::element::repeated;
use super::{Operation, Slot, block_for_each, thread_for_each};
use crate::source::Library;

/// The largest number of elements that one thread reduces. More elements are shared by a block, or by several
/// if they are columns.
const OF_THREAD_MAX: usize = 32;

impl Operation {
    /// x, of the shape of the broadcast's result → x reduced to its first shape.
    pub fn reduce(reduction: Reduction, shapes: &Broadcast) -> Self {
        let Some(halves) = Halves::of(shapes) else { return Self::nothing() };
        if halves.reduced == 0 {
            let number = match reduction {
                Reduction::Sum => 0.0,
                Reduction::Mean => f32::NAN,
                Reduction::Max => f32::NEG_INFINITY,
            };
            return Self::fill(number, halves.kept);
        }
        if let Some(columns) = as_columns(shapes).filter(|_| halves.reduced > OF_THREAD_MAX) {
            return reduce_columns(reduction, columns);
        }
        let [begin, add, of_block] = match reduction {
            Reduction::Sum | Reduction::Mean => ["0.0f", "own + ", "sum_of_block"],
            Reduction::Max => ["MINUS_INFINITY", "larger(own, ", "max_of_block"],
        };
        let end = if reduction == Reduction::Max { ")" } else { "" };
        let finish = match reduction {
            Reduction::Mean => format!(" / {:?}f", halves.reduced as f32),
            _ => String::new(),
        };
        let each = format!("own = {add}from[base + {}]{end};", halves.within);
        halves.operation("reduce", ["float* to, const float* from", begin, &each, of_block], |own| {
            format!("to[at] = {own}{finish};")
        })
    }

    /// x, its maxima, the adjoint of the maxima → the adjoint of x. Equal maxima get equal parts of the
    /// adjoint, as [`reduce_max_grad`](pushpull_kernels::cpu::reduce_max_grad) says.
    pub fn max_grad(shapes: &Broadcast) -> Self {
        let Some(halves) = Halves::of(shapes).filter(|halves| halves.reduced > 0) else {
            return Self::nothing();
        };
        let each = format!("own += from[base + {}] == maxima[at] ? 1.0f : 0.0f;", halves.within);
        let parameters = "float* ties, const float* from, const float* maxima";
        let arguments = [Slot::Scratch(0), Slot::Input(0), Slot::Input(1)];
        let counted = halves
            .operation("count_maxima", [parameters, "0.0f", &each, "sum_of_block"], |own| {
                format!("ties[at] = {own};")
            })
            .with_arguments(&arguments);
        let elements = shapes.len();
        let index = index_type(elements);
        let at = offset("at", repeated(shapes, Side::A));
        let body = format!(
            "    FOR_EACH(each, {elements}) {{\n        {index} at = ({index})each;\n        \
             {index} own = {at};\n        \
             to[at] = from[at] == maxima[own] ? gradient[own] / ties[own] : 0.0f;\n    }}\n"
        );
        let parameters =
            "float* to, const float* from, const float* maxima, const float* gradient, const float* ties";
        let arguments = [Slot::Output(0), Slot::Input(0), Slot::Input(1), Slot::Input(2), Slot::Kept(0)];
        counted
            .then_generated(
                Library::Prelude,
                "max_grad",
                [parameters, &body],
                thread_for_each(elements),
                &arguments,
            )
            .with_scratch(4 * halves.kept as u64)
    }

    /// x of the shape `[rows, n]` → the sum of its rows, `[n]`.
    pub fn sum_rows(rows: usize, n: usize) -> Self {
        Self::reduce(Reduction::Sum, &Broadcast::new(&[1, n], &[rows, n]).expect("a row fits its matrix"))
    }

    /// Replaces the arguments of the only kernel.
    fn with_arguments(mut self, arguments: &[Slot]) -> Self {
        self.stages[0].arguments = arguments.to_vec();
        self
    }
}

/// The axes of a tensor, divided into those that a reduction keeps and those that it reduces.
struct Halves {
    /// The number of elements of the result.
    kept: usize,
    /// The number of elements that are reduced to one.
    reduced: usize,
    /// The number of elements of the tensor.
    elements: usize,
    /// The expression of the place of the first element that is reduced to the element `at`.
    base: String,
    /// The expression of how far the element `part` is from that one.
    within: String,
}

impl Halves {
    /// Returns `None` if the result has no elements.
    fn of(shapes: &Broadcast) -> Option<Self> {
        let (mut stride, mut kept, mut reduced) = (1, Vec::new(), Vec::new());
        for (size, [has, _]) in shapes.axes() {
            let axes = if has { &mut kept } else { &mut reduced };
            axes.push(Axis { size, stride });
            stride *= size;
        }
        let size = |axes: &[Axis]| axes.iter().map(|axis| axis.size).product::<usize>();
        let (kept_count, reduced_count) = (size(&kept), size(&reduced));
        (kept_count > 0).then(|| Self {
            kept: kept_count,
            reduced: reduced_count,
            elements: kept_count * reduced_count,
            base: offset("at", kept),
            within: offset("part", reduced),
        })
    }

    /// Returns an operation that begins with the number `begin`, runs `each` for every element, which may
    /// change `own`, and writes what `write` says of it.
    fn operation(
        &self,
        kind: &str,
        [parameters, begin, each, of_block]: [&str; 4],
        write: impl Fn(&str) -> String,
    ) -> Operation {
        let Self { kept, reduced, base, .. } = self;
        let index = index_type(self.elements);
        let arguments = [Slot::Output(0), Slot::Input(0)];
        let (body, grid) = if *reduced <= OF_THREAD_MAX {
            let write = write("own");
            let body = format!(
                "    FOR_EACH(index, {kept}) {{\n        {index} at = ({index})index, base = {base};\n        \
                 float own = {begin};\n        \
                 for ({index} part = 0; part < {reduced}; part++) {each}\n        {write}\n    }}\n"
            );
            (body, thread_for_each(*kept))
        } else {
            let write = write("own");
            let body = format!(
                "    for ({index} at = blockIdx.x; at < {kept}; at += gridDim.x) {{\n        \
                 {index} base = {base};\n        float own = {begin};\n        \
                 for ({index} part = threadIdx.x; part < {reduced}; part += LANES) {each}\n        \
                 own = {of_block}(own);\n        if (threadIdx.x == 0) {write}\n    }}\n"
            );
            (body, block_for_each(*kept))
        };
        Operation::default().then_generated(Library::Prelude, kind, [parameters, &body], grid, &arguments)
    }
}
