//! The arithmetic of a program's products and convolutions, by which a benchmark compares devices. This
//! module must not depend on memory.

use pushpull_kernels::cpu::Conv2d;

use super::ir::{Factors, Kernel};
use super::program::Program;

impl Program {
    /// Returns the number of floating-point operations of all products and convolutions of a step, forward
    /// and backward. A multiplication and an addition count as two. Pixels beyond the edges of images count
    /// as others do, and so do the elements that a causal attention leaves out.
    pub fn flops(&self) -> u64 {
        self.instructions.iter().map(|instruction| flops(&instruction.kernel)).sum()
    }
}

fn flops(kernel: &Kernel) -> u64 {
    let product = |&Factors { m, k, n, .. }: &Factors| 2 * m as u64 * k as u64 * n as u64;
    let convolution = |conv: &Conv2d| {
        let ([height, width, channels, _], outputs) = (conv.kernel(), conv.output());
        2 * (height * width * channels) as u64 * outputs.iter().product::<usize>() as u64
    };
    match kernel {
        Kernel::Product(factors, _) => product(factors),
        Kernel::BatchedProduct(batch, factors) => *batch as u64 * product(factors),
        Kernel::Attention(attention) => 2 * 2 * attention.multiplications() as u64,
        // The products of the gradients, without those that are computed again.
        Kernel::AttentionGrad(attention) => 4 * 2 * attention.multiplications() as u64,
        Kernel::Conv2d(conv, _) | Kernel::Conv2dInputGrad(conv) | Kernel::Conv2dKernelGrad(conv) => {
            convolution(conv)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use pushpull_kernels::cpu::Threads;
    use pushpull_messages::graph::{GraphBuilder, Stride};
    use pushpull_messages::input::ColumnSpec;
    use pushpull_messages::tensor::{Shape, TensorSpec};
    use pushpull_messages::variable::InitializerSpec::Zeros;

    use super::*;

    #[test]
    fn each_product_of_a_step_is_counted_once() {
        let mut g = GraphBuilder::new("convolution and product");
        let images = g.input("images", [6, 6, 2]);
        let (kernel, weights) =
            (g.variable("kernel", [3, 3, 2, 4], Zeros), g.variable("weights", [64, 5], Zeros));
        let x = g.conv2d(images, kernel, Stride::ONE);
        let x = g.reshape(x, [64]);
        let logits = g.matmul(x, weights);
        let labels = g.labels("labels");
        let loss = g.softmax_cross_entropy(logits, labels);
        let graph = g.finish(loss, &[]).unwrap();
        let columns = [
            ColumnSpec::new("images", TensorSpec::f32([6, 6, 2])),
            ColumnSpec::new("labels", TensorSpec::i32(Shape::scalar())),
        ];
        let flops = |program: Result<Program, _>| program.unwrap().flops();
        let (convolution, product) = (2 * 7 * 16 * 4 * 18, 2 * 7 * 64 * 5);
        // The gradient of the images is not needed.
        let training = Program::training(&graph, 7, &columns, Threads::One);
        assert_eq!(flops(training), 2 * convolution + 3 * product);
        assert_eq!(flops(Program::evaluation(&graph, 7, &columns, Threads::One)), convolution + product);
    }
}
