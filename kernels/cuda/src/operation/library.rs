//! Products that a library of the device computes.

use pushpull_kernels::cpu::Product;

use super::tile::Epilogue;
use super::{Operation, Slot, thread_for_each};
use crate::multiplication::{Multiplication, Precision};
use crate::source::Library;

impl Operation {
    /// a, b, and the bias if the epilogue has one → epilogue(a · b), for `batch` products side by side. The
    /// factors are rounded to the precision, and the device's library multiplies them.
    pub(super) fn library_product(
        batch: usize,
        product: &Product,
        precision: Precision,
        epilogue: Epilogue,
    ) -> Self {
        let sizes @ [rows, terms, columns] = product.sizes();
        let multiplication =
            Multiplication { batch, sizes, transposed: product.transposed(), precision, epilogue };
        let elements = [rows * terms, terms * columns].map(|size| batch * size);
        let bias = (epilogue != Epilogue::Bare).then_some(Slot::Input(2));
        let multiplied = |own: Self, factors: [Slot; 2]| {
            let slots: Vec<Slot> = [Slot::Output(0)].into_iter().chain(factors).chain(bias).collect();
            own.then_library(&multiplication, thread_for_each(batch * rows * columns), &slots)
        };
        match precision {
            Precision::F32 | Precision::Tf32 => multiplied(Self::default(), [Slot::Input(0), Slot::Input(1)]),
            Precision::Bf16 => {
                let behind = 2 * (elements[0] as u64).next_multiple_of(HALVES_OF_LINE);
                let own =
                    Self::default().then_narrowed(0, 0, elements[0]).then_narrowed(1, behind, elements[1]);
                let bytes = behind + 2 * elements[1] as u64;
                multiplied(own, [Slot::Kept(0), Slot::Kept(behind)]).with_scratch(bytes)
            }
        }
    }

    /// Adds the kernel that stores an input as `bf16` in the scratch memory.
    fn then_narrowed(self, input: usize, first: u64, elements: usize) -> Self {
        let parameters = "unsigned short* to, const float* from";
        let body = format!("    multiply::narrow(to, from, {elements});\n");
        let grid = thread_for_each(elements.div_ceil(4));
        let slots = [Slot::Scratch(first), Slot::Input(input)];
        self.then_generated(Library::Multiply, "narrow", [parameters, &body], grid, &slots)
    }
}

/// The number of `bf16` in a line of memory. Matrices begin at lines.
const HALVES_OF_LINE: u64 = 128;
