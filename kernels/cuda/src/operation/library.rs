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
        let own = Self::default().then_library(&multiplication, thread_for_each(elements), &slots);
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
