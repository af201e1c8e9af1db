//! The results of a prediction.

use pushpull_messages::graph::{GraphSpec, OutputSpec};

use super::TensorView;
use crate::error::Error;

/// The outputs of a model for some examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// For each output, its name, its shape with the examples as the first axis, and its elements.
    outputs: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Predictions {
    /// Makes the predictions for `examples` examples from the elements of each output.
    pub(crate) fn new(
        graph: &GraphSpec,
        outputs: impl Iterator<Item = Vec<f32>>,
        examples: usize,
    ) -> Result<Self, Error> {
        let tensors = graph.infer(1)?;
        let output = |(values, output): (Vec<f32>, &OutputSpec)| {
            let name = output.name.clone();
            let mut shape = tensors[output.node.index()].shape.0.clone();
            shape[0] = examples;
            if shape.iter().product::<usize>() != values.len() {
                let text = format!(
                    "output '{name}' has {} elements for {examples} examples, expected the shape {shape:?}: its rows \
                     must not depend on the number of examples in a batch",
                    values.len()
                );
                return Err(Error::Model(text));
            }
            Ok((name, shape, values))
        };
        Ok(Self { outputs: outputs.zip(&graph.outputs).map(output).collect::<Result<_, _>>()? })
    }

    /// Returns the output called `name`: a tensor whose first axis is the examples. Returns `None` if the
    /// model has no such output.
    pub fn output(&self, name: &str) -> Option<TensorView<'_>> {
        self.iter().find(|(own, _)| *own == name).map(|(_, tensor)| tensor)
    }

    /// Returns the name and the tensor of every output, in the order in which the graph names them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.outputs.iter().map(|(name, shape, values)| (name.as_str(), TensorView::new(shape, values)))
    }

    /// Returns the index of the greatest element of each row of the output called `name`: for scores of
    /// classes, the predicted class of each example. If several elements are equal, the first is taken; NaN
    /// is ignored. Returns `None` if the model has no such output.
    pub fn classes(&self, name: &str) -> Option<Vec<usize>> {
        let scores = self.output(name)?;
        Some((0..scores.shape[0]).filter_map(|index| scores.row(index)).map(greatest).collect())
    }
}

/// Returns the index of the greatest element. If several elements are equal, the first is taken; NaN is
/// ignored.
pub(crate) fn greatest(row: &[f32]) -> usize {
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (index, &score) in row.iter().enumerate() {
        if score > highest {
            (best, highest) = (index, score);
        }
    }
    best
}
