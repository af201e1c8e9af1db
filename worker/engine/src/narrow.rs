//! Stores the factors of products in two bytes each, once, for a device whose library multiplies them so.
//! Products of batches keep their factors, because each of their factors is read once only.
//!
//! Required properties: (A) both factors of each product are narrow; (B) no value is narrowed twice; (C)
//! nothing else changes.

use std::collections::BTreeMap;

use pushpull_cuda::Precision;

use super::fuse::{Draft, Fused};
use super::ir::{Ir, Kernel, Node, Value};

/// Returns the kernels with those that store factors as `precision` says, and the nodes with theirs.
pub(super) fn narrow(ir: &Ir, fused: Fused, precision: Precision) -> (Ir, Fused) {
    let (mut ir, Fused { drafts, mut readers }) = (ir.clone(), fused);
    let (mut narrowed, mut all) = (BTreeMap::new(), Vec::with_capacity(drafts.len()));
    for mut draft in drafts {
        if let Kernel::Product(..) = draft.kernel {
            for factor in &mut draft.inputs[..2] {
                let wide = *factor;
                *factor = *narrowed.entry(wide).or_insert_with(|| {
                    let own = add(&mut ir, wide, precision);
                    readers.add(own);
                    let kernel = ir.nodes[own.node].kernel.clone();
                    all.push(Draft { node: own.node, kernel, inputs: vec![wide] });
                    own
                });
            }
        }
        all.push(draft);
    }
    (ir, Fused { drafts: all, readers })
}

/// Adds a node that stores a value as `precision` says.
fn add(ir: &mut Ir, value: Value, precision: Precision) -> Value {
    let (elements, origin) = (ir.elements(value), ir.nodes[value.node].origin);
    // Behind numbers in `fp16` is a float.
    let more = usize::from(precision == Precision::Fp16 && elements > 0);
    let outputs = vec![vec![elements.div_ceil(2) + more]];
    ir.nodes.push(Node {
        kernel: Kernel::Narrow { elements, precision },
        inputs: vec![value],
        outputs,
        origin,
    });
    Value { node: ir.nodes.len() - 1, output: 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pushpull_cuda::Multiplier;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::ColumnSpec;
    use pushpull_messages::tensor::{Shape, TensorSpec};
    use pushpull_messages::variable::InitializerSpec::Zeros;

    use super::*;
    use crate::memory::Place;
    use crate::{Program, Target};

    /// Compiles the training of two layers that share a kernel.
    fn program(precision: Precision) -> Program {
        let mut g = GraphBuilder::new("twice");
        let x = g.input("x", [6]);
        let labels = g.labels("labels");
        let kernel = g.variable("kernel", [6, 6], Zeros);
        let hidden = g.matmul(x, kernel);
        let hidden = g.relu(hidden);
        let logits = g.matmul(hidden, kernel);
        let loss = g.softmax_cross_entropy(logits, labels);
        let graph = g.finish(loss, &[]).unwrap();
        let columns = [
            ColumnSpec::new("x", TensorSpec::f32(Shape::from([6]))),
            ColumnSpec::new("labels", TensorSpec::i32(Shape::scalar())),
        ];
        let target = Target::Cuda { multiplier: Multiplier::Library(precision), attention: true };
        Program::training(&graph, 4, &columns, target).unwrap()
    }

    #[test]
    fn each_factor_is_narrowed_once_and_before_its_products() {
        for (precision, scales) in [(Precision::Bf16, 0), (Precision::Fp16, 1)] {
            check(&program(precision), scales);
        }
    }

    /// Checks a program whose narrow factors have this number of floats behind them.
    fn check(program: &Program, scales: usize) {
        let (mut narrowed, mut wide, mut products) = (BTreeSet::new(), Vec::new(), 0);
        for own in &program.instructions {
            match own.kernel {
                Kernel::Narrow { elements, .. } => {
                    let stored = elements.div_ceil(2) + scales;
                    assert_eq!([own.sizes.inputs[0], own.sizes.outputs[0]], [elements, stored]);
                    wide.push(format!("{:?}", own.inputs[0]));
                    narrowed.insert(format!("{:?}", own.outputs[0]));
                }
                Kernel::Product(..) => {
                    products += 1;
                    for factor in &own.inputs[..2] {
                        assert!(narrowed.contains(&format!("{factor:?}")), "{factor:?} is narrowed");
                    }
                }
                _ => {}
            }
        }
        // The products are those of two layers, of both gradients of the kernel, and of that of `hidden`.
        // Their factors are x, the kernel, `hidden`, and the gradients of both results.
        assert_eq!([products, wide.len()], [5, 5]);
        assert_eq!(wide.iter().filter(|place| place.contains("Variable")).count(), 1);
    }

    #[test]
    fn other_precisions_have_the_kernels_of_the_processor() {
        let kernels = |program: Program| -> Vec<String> {
            program.instructions.iter().map(|own| own.kernel.name()).collect()
        };
        let all = kernels(program(Precision::F32));
        assert_eq!(all, kernels(program(Precision::Tf32)));
        let narrowed = kernels(program(Precision::Bf16));
        let others: Vec<String> = narrowed.into_iter().filter(|name| name != "Narrow").collect();
        assert_eq!(others, all);
        let given =
            program(Precision::Bf16).instructions.iter().any(|own| own.inputs.contains(&Place::Column(0)));
        assert!(given, "the batch is narrowed, too");
    }
}
