//! Products that a library of the device computes.

use pushpull_kernels::cpu::Product;

use super::{Operation, Slot, thread_for_each};
use crate::multiplication::{Epilogue, Multiplication, Precision};
use crate::source::Library;

impl Operation {
    /// a, b, and the bias if the epilogue has one → epilogue(a · b), for `batch` products side by side. The
    /// device's library multiplies the factors, which are `bf16` if the precision is.
    pub(super) fn library_product(
        batch: usize,
        product: &Product,
        precision: Precision,
        epilogue: Epilogue,
    ) -> Self {
        let sizes @ [rows, _, columns] = product.sizes();
        let multiplication =
            Multiplication { batch, sizes, transposed: product.transposed(), precision, epilogue };
        let bias = (epilogue != Epilogue::Bare).then_some(Slot::Input(2));
        let factors = [Slot::Output(0), Slot::Input(0), Slot::Input(1)];
        let slots: Vec<Slot> = factors.into_iter().chain(bias).collect();
        Self::default().then_library(&multiplication, thread_for_each(batch * rows * columns), &slots)
    }

    /// x → x as `bf16`, each number rounded to the nearest one.
    pub fn narrow(elements: usize) -> Self {
        if elements == 0 {
            return Self::nothing();
        }
        let parameters = "unsigned short* to, const float* from";
        let body = format!("    multiply::narrow(to, from, {elements});\n");
        let grid = thread_for_each(elements.div_ceil(4));
        let slots = [Slot::Output(0), Slot::Input(0)];
        Self::default().then_generated(Library::Multiply, "narrow", [parameters, &body], grid, &slots)
    }
}
