//! Products of matrices, single and in batches.

use pushpull_kernels::cpu::Product;

use super::Operation;
use super::tile::Products;
use crate::multiplication::{Epilogue, Multiplier, Precision};

impl Operation {
    /// a, b, and the bias if the epilogue has one → epilogue(a · b). It computes what
    /// [`matmul`](pushpull_kernels::cpu::matmul) computes.
    /// With [`Precision::Bf16`] and [`Precision::Fp16`], a and b are what [`narrow`](Self::narrow) writes.
    pub fn product(product: &Product, epilogue: Epilogue, multiplier: Multiplier) -> Self {
        products(1, product, epilogue, multiplier)
    }

    /// `batch` matrices a, as many matrices b → the product of each pair. It computes what
    /// [`batched_matmul`](pushpull_kernels::cpu::batched_matmul) computes.
    /// With [`Precision::Bf16`] and [`Precision::Fp16`], the factors are rounded to [`Precision::Tf32`] only:
    /// to store them in two bytes takes longer than it saves.
    pub fn batched_product(batch: usize, product: &Product, multiplier: Multiplier) -> Self {
        let multiplier = match multiplier {
            Multiplier::Library(precision) if precision.is_narrow() => Multiplier::Library(Precision::Tf32),
            other => other,
        };
        products(batch, product, Epilogue::Bare, multiplier)
    }
}

fn products(batch: usize, product: &Product, epilogue: Epilogue, multiplier: Multiplier) -> Operation {
    let [rows, terms, columns] = product.sizes();
    // A library has no sums of nothing.
    if let Multiplier::Library(precision) = multiplier
        && batch * rows * terms * columns > 0
    {
        return Operation::library_product(batch, product, precision, epilogue);
    }
    let [transpose_a, transpose_b] = product.transposed();
    let products = Products {
        kind: "product",
        number: batch,
        rows,
        terms,
        columns,
        elements: batch * rows * columns,
        largest: batch * [rows * terms, terms * columns, rows * columns].into_iter().max().unwrap_or(0),
    };
    let index = products.index();
    let matrices = format!(
        "product::Matrices<{index}, {batch}, {rows}, {terms}, {columns}, {transpose_a}, {transpose_b}>"
    );
    products.operation(&matrices, epilogue)
}
