//! Shape inference: what each node gives for a batch of a given size. All shapes are known before anything runs.

use super::op::Op;
use super::spec::{GraphError, GraphSpec, TENSOR_ELEMENTS_MAX};
use crate::id::NodeId;
use crate::tensor::{DType, Shape, TensorSpec};

impl GraphSpec {
    /// The shape and type of every node's output for batches of `batch` examples.
    ///
    /// # Errors
    /// The first node whose inputs do not fit, by name.
    pub fn infer(&self, batch: usize) -> Result<Vec<TensorSpec>, GraphError> {
        let mut tensors: Vec<TensorSpec> = Vec::with_capacity(self.nodes.len());
        for position in 0..self.nodes.len() {
            let id = NodeId(position as u32);
            let output = self.infer_node(id, &tensors, batch)?;
            let elements = output.shape.checked_elements().unwrap_or(usize::MAX);
            if elements > TENSOR_ELEMENTS_MAX {
                return Err(GraphError::TooLarge { node: self.label(id), tensor: output });
            }
            tensors.push(output);
        }
        Ok(tensors)
    }

    /// What node `id` gives, from what the nodes before it give. Its inputs exist and their number is right.
    pub(super) fn infer_node(
        &self,
        id: NodeId,
        tensors: &[TensorSpec],
        batch: usize,
    ) -> Result<TensorSpec, GraphError> {
        let node = &self.nodes[id.index()];
        let input = |position: usize| &tensors[node.inputs[position].index()];
        let misfit = |expected: String| GraphError::Shape {
            node: self.label(id),
            expected,
            got: node
                .inputs
                .iter()
                .map(|input| tensors[input.index()].to_string())
                .collect::<Vec<_>>()
                .join(", "),
        };
        let f32 = |position: usize| input(position).dtype == DType::F32;
        let matrix = |position: usize, transposed: bool| match input(position).shape.0[..] {
            [rows, cols] if f32(position) => Some(if transposed { (cols, rows) } else { (rows, cols) }),
            _ => None,
        };
        let image = |position: usize| match input(position).shape.0[..] {
            [batch, height, width, channels] if f32(position) && height * width * channels > 0 => {
                Some([batch, height, width, channels])
            }
            _ => None,
        };
        let classified = || match (matrix(0, false), input(1)) {
            (Some((rows, classes)), TensorSpec { dtype: DType::I32, shape })
                if shape.0 == [rows] && classes >= 1 && rows >= 1 =>
            {
                Ok(())
            }
            _ => Err(misfit("f32 logits [batch, classes] and i32 labels [batch]".into())),
        };
        match &node.op {
            Op::Input { example } => {
                Ok(TensorSpec { shape: example.shape.with_leading(batch), dtype: example.dtype })
            }
            Op::Variable { variable } => Ok(TensorSpec::f32(self.variables[variable.index()].shape.clone())),
            Op::Constant { .. } => Ok(TensorSpec::f32(Shape::scalar())),
            Op::MatMul { transpose_a, transpose_b } => {
                match (matrix(0, *transpose_a), matrix(1, *transpose_b)) {
                    (Some((m, inner)), Some((k, n))) if inner == k => Ok(TensorSpec::f32([m, n])),
                    _ => Err(misfit(format!(
                        "f32 {} and {}",
                        if *transpose_a { "[k, m]" } else { "[m, k]" },
                        if *transpose_b { "[n, k]" } else { "[k, n]" },
                    ))),
                }
            }
            Op::BiasAdd => match (&input(0).shape.0[..], &input(1).shape.0[..]) {
                ([_, .., last], [bias]) if last == bias && f32(0) && f32(1) => Ok(input(0).clone()),
                _ => Err(misfit("f32 [.., n] of two axes or more, and f32 [n]".into())),
            },
            Op::Relu => {
                if f32(0) {
                    Ok(input(0).clone())
                } else {
                    Err(misfit("f32".into()))
                }
            }
            Op::Add | Op::ReluGrad => {
                if f32(0) && input(0) == input(1) {
                    Ok(input(0).clone())
                } else {
                    Err(misfit("two f32 of one shape".into()))
                }
            }
            Op::Reshape { shape } => {
                let wanted = shape.with_leading(input(0).shape.0.first().copied().unwrap_or(0));
                let fits = input(0).shape.rank() >= 1
                    && wanted.checked_elements() == input(0).shape.checked_elements();
                if fits {
                    Ok(TensorSpec { shape: wanted, dtype: input(0).dtype })
                } else {
                    Err(misfit(format!("as many elements in an example as {shape} has")))
                }
            }
            Op::SoftmaxCrossEntropy | Op::Accuracy => {
                classified()?;
                Ok(TensorSpec::f32(Shape::scalar()))
            }
            Op::SoftmaxCrossEntropyGrad => {
                classified()?;
                if f32(2) && input(2).shape.rank() == 0 {
                    Ok(input(0).clone())
                } else {
                    Err(misfit("f32 logits, i32 labels and an f32 scalar".into()))
                }
            }
            Op::Conv2d(geometry) => match (image(0), &input(1).shape.0[..]) {
                (Some([batch, height, width, channels]), &[kh, kw, cin, cout])
                    if channels == cin && f32(1) =>
                {
                    let output = geometry.output([height, width], [kh, kw]);
                    let [height, width] =
                        output.ok_or_else(|| misfit(format!("room for the kernel, with {geometry:?}")))?;
                    Ok(TensorSpec::f32([batch, height, width, cout]))
                }
                _ => Err(misfit("f32 images [batch, h, w, cin] and kernel [kh, kw, cin, cout]".into())),
            },
            Op::MaxPool2d(geometry) | Op::AveragePool2d(geometry) => {
                let [batch, height, width, channels] =
                    image(0).ok_or_else(|| misfit("f32 images [batch, h, w, c]".into()))?;
                let [height, width] = geometry
                    .output([height, width])
                    .ok_or_else(|| misfit(format!("room for the window, with {geometry:?}")))?;
                Ok(TensorSpec::f32([batch, height, width, channels]))
            }
            Op::GlobalAveragePool => {
                let [batch, _, _, channels] =
                    image(0).ok_or_else(|| misfit("f32 images [batch, h, w, c]".into()))?;
                Ok(TensorSpec::f32([batch, channels]))
            }
            Op::Conv2dInputGrad { geometry, example } => {
                match (&input(0).shape.0[..], image(1), &example.0[..]) {
                    (&[kh, kw, cin, cout], Some([batch, height, width, channels]), &[h, w, c])
                        if f32(0)
                            && (cin, cout) == (c, channels)
                            && geometry.output([h, w], [kh, kw]) == Some([height, width]) =>
                    {
                        Ok(TensorSpec::f32(example.with_leading(batch)))
                    }
                    _ => Err(misfit(format!("the kernel and the output of a convolution of {example}"))),
                }
            }
            Op::Conv2dKernelGrad { geometry, window: [kh, kw] } => match (image(0), image(1)) {
                (Some([batch, h, w, cin]), Some([same, height, width, cout]))
                    if batch == same && geometry.output([h, w], [*kh, *kw]) == Some([height, width]) =>
                {
                    Ok(TensorSpec::f32([*kh, *kw, cin, cout]))
                }
                _ => Err(misfit(format!("the images and the output of a convolution by {kh}x{kw}"))),
            },
            Op::MaxPool2dGrad { geometry, example } | Op::AveragePool2dGrad { geometry, example } => {
                let output = input(node.inputs.len() - 1);
                match (&output.shape.0[..], &example.0[..]) {
                    (&[batch, height, width, channels], &[h, w, c])
                        if output.dtype == DType::F32
                            && input(0) == output
                            && c == channels
                            && geometry.output([h, w]) == Some([height, width]) =>
                    {
                        Ok(TensorSpec::f32(example.with_leading(batch)))
                    }
                    _ => Err(misfit(format!("the output of a pooling of {example}"))),
                }
            }
            Op::GlobalAveragePoolGrad { example } => match (matrix(0, false), &example.0[..]) {
                (Some((batch, channels)), &[h, w, c])
                    if c == channels && h.checked_mul(w).is_some_and(|pixels| pixels > 0) =>
                {
                    Ok(TensorSpec::f32([batch, h, w, c]))
                }
                _ => Err(misfit(format!("the means of {example}"))),
            },
            Op::SumRows => match input(0).shape.0[..] {
                [_, .., last] if f32(0) => Ok(TensorSpec::f32([last])),
                _ => Err(misfit("f32 [.., n] of two axes or more".into())),
            },
        }
    }
}
