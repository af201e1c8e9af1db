//! Products that a library of the device computes.

use pushpull_kernels::cpu::Product;

use super::{Operation, Slot, thread_for_each};
use crate::driver::Grid;
use crate::multiplication::{Epilogue, Multiplication, Precision};
use crate::source::Library;

/// The largest number of parts of a matrix, each of which one block searches for its largest number.
const PARTS_MAX: u32 = 1024;

impl Operation {
    /// a, b, and the bias if the epilogue has one → epilogue(a · b), for `batch` products side by side. The
    /// device's library multiplies the factors, which are what [`narrow`](Self::narrow) writes if the
    /// precision is narrow.
    pub(super) fn library_product(
        batch: usize,
        product: &Product,
        precision: Precision,
        epilogue: Epilogue,
    ) -> Self {
        let sizes @ [rows, terms, columns] = product.sizes();
        // The library's own ReLU may hide NaN.
        let (added, is_relu) = match epilogue {
            Epilogue::BiasRelu => (Epilogue::Bias, true),
            other => (other, false),
        };
        let transposed = product.transposed();
        let multiplication = Multiplication { batch, sizes, transposed, precision, epilogue: added };
        let bias = (added != Epilogue::Bare).then_some(Slot::Input(2));
        let factors = [Slot::Output(0), Slot::Input(0), Slot::Input(1)];
        let slots: Vec<Slot> = factors.into_iter().chain(bias).collect();
        let elements = batch * rows * columns;
        let own = match precision {
            Precision::Fp16 => Self::default().then_alpha([rows * terms, terms * columns]),
            _ => Self::default(),
        };
        let scale = (precision == Precision::Fp16).then_some(Slot::Kept(0));
        let slots: Vec<Slot> = slots.into_iter().chain(scale).collect();
        let own = own.then_library(&multiplication, thread_for_each(elements), &slots);
        if is_relu { own.then_relu(elements) } else { own }
    }

    /// Adds the kernel that replaces the negative numbers of the output with 0, and keeps NaN.
    fn then_relu(self, elements: usize) -> Self {
        let parameters = "float* to, const float* from";
        let body = format!(
            "    FOR_EACH(at, {elements}) {{\n        float number = from[at];\n        \
             to[at] = number < 0.0f ? 0.0f : number;\n    }}\n"
        );
        let slots = [Slot::Output(0), Slot::Made(0)];
        let grid = thread_for_each(elements);
        self.then_generated(Library::Multiply, "relu", [parameters, &body], grid, &slots)
    }

    /// Adds the kernel that computes the factor of the sums of products in `fp16`, from the scales behind the
    /// matrices, which have these numbers of elements. It writes the factor and a 0 to the scratch memory.
    fn then_alpha(self, elements: [usize; 2]) -> Self {
        let [a, b] = elements.map(|elements| elements.div_ceil(2));
        let parameters = "float* to, const float* a, const float* b";
        let body = format!("    multiply::alpha(to, a[{a}], b[{b}]);\n");
        let slots = [Slot::Scratch(0), Slot::Input(0), Slot::Input(1)];
        let grid = Grid { blocks: [1, 1, 1], threads: [1, 1, 1] };
        self.then_generated(Library::Multiply, "alpha", [parameters, &body], grid, &slots).with_scratch(8)
    }

    /// x → x in two bytes each, as `precision` says: each number is rounded to the nearest one. With
    /// [`Precision::Fp16`], the numbers are multiplied by a power of two first, and behind them, at a
    /// multiple of four bytes, is a float by which products have to be multiplied.
    ///
    /// # Panics
    /// If the precision is not narrow.
    pub fn narrow(elements: usize, precision: Precision) -> Self {
        assert!(precision.is_narrow(), "numbers in {precision} take four bytes");
        if elements == 0 {
            return Self::nothing();
        }
        let grid = thread_for_each(elements.div_ceil(4));
        if precision == Precision::Fp16 {
            return Self::half(elements, grid);
        }
        let parameters = "unsigned short* to, const float* from";
        let body = format!("    multiply::narrow(to, from, {elements});\n");
        let slots = [Slot::Output(0), Slot::Input(0)];
        Self::default().then_generated(Library::Multiply, "narrow", [parameters, &body], grid, &slots)
    }

    /// x → x as `fp16`, and a float.
    fn half(elements: usize, grid: Grid) -> Self {
        // Each block of the second kernel reads what the first one has found in all parts.
        let parts = grid.blocks[0].min(PARTS_MAX);
        let few = Grid { blocks: [parts, 1, 1], ..grid };
        let body = format!("    multiply::largest<{parts}>(to, from, {elements});\n");
        let slots = [Slot::Scratch(0), Slot::Input(0)];
        let parameters = "float* to, const float* from";
        let own =
            Self::default().then_generated(Library::Multiply, "largest", [parameters, &body], few, &slots);
        let parameters = "unsigned short* to, const float* from, const float* largest";
        let body = format!("    multiply::half<{parts}>(to, from, largest, {elements});\n");
        let slots = [Slot::Output(0), Slot::Input(0), Slot::Kept(0)];
        own.then_generated(Library::Multiply, "half", [parameters, &body], grid, &slots)
            .with_scratch(4 * u64::from(parts))
    }
}
