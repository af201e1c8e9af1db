//! The fully connected layer.

use messages::graph::GraphBuilder;
use messages::id::NodeId;
use messages::variable::InitializerSpec;

/// What is done to a layer's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    Linear,
    /// max(x, 0).
    Relu,
}

/// activation(x·kernel + bias): `[batch, n]` → `[batch, units]`, with the variables `name/kernel` `[n, units]` and
/// `name/bias` `[units]`. Before a relu the kernel starts as He et al. proposed, else as Glorot and Bengio did.
pub fn dense(g: &mut GraphBuilder, name: &str, x: NodeId, units: usize, activation: Activation) -> NodeId {
    // Where the shape of x is not known something is wrong already, and the builder will tell.
    let inputs = g.example_shape(x).and_then(|shape| shape.0.last().copied()).unwrap_or(1);
    let initializer = match activation {
        Activation::Linear => InitializerSpec::GlorotUniform,
        Activation::Relu => InitializerSpec::HeNormal,
    };
    let kernel = g.variable(&format!("{name}/kernel"), [inputs, units], initializer);
    let bias = g.variable(&format!("{name}/bias"), [units], InitializerSpec::Zeros);
    let product = g.matmul(x, kernel);
    let sum = g.bias_add(product, bias);
    match activation {
        Activation::Linear => sum,
        Activation::Relu => g.relu(sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_bear_the_layers_name_and_fit_its_input() {
        let mut g = GraphBuilder::new("two");
        let x = g.input("features", [5]);
        let labels = g.labels("labels");
        let hidden = dense(&mut g, "hidden", x, 7, Activation::Relu);
        let logits = dense(&mut g, "logits", hidden, 3, Activation::Linear);
        let loss = g.softmax_cross_entropy(logits, labels);
        let graph = g.finish(loss, &[]).unwrap();
        let described: Vec<String> =
            graph.variables.iter().map(|variable| format!("{} {}", variable.name, variable.shape)).collect();
        let expected = ["hidden/kernel [5, 7]", "hidden/bias [7]", "logits/kernel [7, 3]", "logits/bias [3]"];
        assert_eq!(described, expected);
    }

    #[test]
    fn a_layers_name_used_twice_is_refused_by_that_name() {
        let mut g = GraphBuilder::new("twice");
        let x = g.input("features", [5]);
        let labels = g.labels("labels");
        let x = dense(&mut g, "layer", x, 5, Activation::Relu);
        let logits = dense(&mut g, "layer", x, 3, Activation::Linear);
        let loss = g.softmax_cross_entropy(logits, labels);
        let error = g.finish(loss, &[]).unwrap_err().to_string();
        assert!(error.contains("'layer/kernel' is there twice"), "{error}");
    }
}
