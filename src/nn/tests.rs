//! Tests of every layer. A layer creates the right variables and shapes, uses the same variables when it is
//! applied again, and is named in its errors.

use pushpull_messages::graph::{GraphBuilder, GraphError, GraphSpec, Op, UnaryOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::tensor::Shape;
use pushpull_messages::variable::InitializerSpec;

use super::*;

/// A model under construction: an input of floats or ids, and the layers that were applied to it so far.
struct Model {
    g: GraphBuilder,
    x: NodeId,
}

impl Model {
    fn floats(example: &[usize]) -> Self {
        let mut g = GraphBuilder::new("model");
        let x = g.input("features", Shape(example.to_vec()));
        Self { g, x }
    }

    fn ids(example: &[usize]) -> Self {
        let mut g = GraphBuilder::new("model");
        let x = g.ids("ids", Shape(example.to_vec()));
        Self { g, x }
    }

    fn then(mut self, layer: impl Layer) -> Self {
        self.x = layer.apply(&mut self.g, self.x);
        self
    }

    /// Returns the type and the shape of the output for a batch of 2, or "nothing" if the graph is invalid.
    fn gives(&self) -> String {
        self.g.tensor(self.x).map_or("nothing".into(), ToString::to_string)
    }

    fn finish(mut self) -> Result<GraphSpec, GraphError> {
        let loss = self.g.l2_loss(self.x);
        self.g.finish(loss, &[])
    }

    #[track_caller]
    fn graph(self) -> GraphSpec {
        self.finish().expect("a graph that is right")
    }

    /// Returns the names and shapes of the variables.
    #[track_caller]
    fn variables(self) -> Vec<String> {
        self.graph()
            .variables
            .iter()
            .map(|variable| format!("{} {}", variable.name, variable.shape))
            .collect()
    }

    #[track_caller]
    fn error(self) -> String {
        self.finish().expect_err("something wrong was taken").to_string()
    }
}

fn count(graph: &GraphSpec, is: impl Fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|node| is(&node.op)).count()
}

#[test]
fn dense_works_on_rows_and_on_rows_of_rows() {
    let model = Model::floats(&[5]).then(dense("hidden", 7).relu()).then(dense("logits", 3).no_bias());
    assert_eq!(model.gives(), "f32[2, 3]");
    assert_eq!(model.variables(), ["hidden/kernel [5, 7]", "hidden/bias [7]", "logits/kernel [7, 3]"]);
    assert_eq!(Model::floats(&[4, 6, 5]).then(dense("hidden", 7)).gives(), "f32[2, 4, 6, 7]");
}

#[test]
fn kernels_start_as_suits_what_follows() {
    let started = |activation: Activation| {
        let graph = Model::floats(&[5]).then(dense("layer", 5).activation(activation)).graph();
        graph.variables[0].initializer.clone()
    };
    for activation in [Activation::Relu, Activation::LeakyRelu { slope: 0.01 }, Activation::Gelu] {
        assert_eq!(started(activation), InitializerSpec::HeNormal, "{activation:?}");
    }
    for activation in [Activation::Linear, Activation::Tanh, Activation::Sigmoid] {
        assert_eq!(started(activation), InitializerSpec::GlorotUniform, "{activation:?}");
    }
    let zeros = InitializerSpec::Zeros;
    for model in [
        Model::floats(&[5]).then(dense("layer", 5).initializer(zeros.clone())),
        Model::floats(&[5, 5, 1]).then(conv2d("layer", 5, [3, 3]).initializer(zeros.clone())),
        Model::ids(&[5]).then(embedding("layer", 5, 2).initializer(zeros.clone())),
    ] {
        assert_eq!(model.graph().variables[0].initializer, zeros);
    }
}

#[test]
fn an_activation_is_a_layer_and_an_option_of_others() {
    for (activation, op) in [
        (Activation::Relu, Some(UnaryOp::Relu)),
        (Activation::LeakyRelu { slope: 0.5 }, Some(UnaryOp::LeakyRelu { slope: 0.5 })),
        (Activation::Gelu, Some(UnaryOp::Gelu)),
        (Activation::Tanh, Some(UnaryOp::Tanh)),
        (Activation::Sigmoid, Some(UnaryOp::Sigmoid)),
        (Activation::Linear, None),
    ] {
        for model in [
            Model::floats(&[5]).then(activation),
            Model::floats(&[5]).then(dense("dense", 5).activation(activation)),
            Model::floats(&[5, 5, 1]).then(conv2d("conv", 5, [1, 1]).activation(activation)),
        ] {
            let graph = model.graph();
            let is_it = |other: &Op| op.is_some_and(|op| *other == Op::Unary(op));
            assert_eq!(count(&graph, is_it), usize::from(op.is_some()), "{activation:?}");
        }
    }
}

#[test]
fn conv2d_has_the_shape_of_its_options() {
    let model = Model::floats(&[9, 8, 3]).then(conv2d("conv", 4, [3, 2]));
    assert_eq!(model.gives(), "f32[2, 7, 7, 4]");
    assert_eq!(model.variables(), ["conv/kernel [3, 2, 3, 4]", "conv/bias [4]"]);
    let gives = |layer: Conv2d| Model::floats(&[9, 8, 3]).then(layer).gives();
    assert_eq!(gives(conv2d("conv", 4, [3, 3]).stride(2)), "f32[2, 4, 3, 4]");
    assert_eq!(gives(conv2d("conv", 4, [3, 3]).same().relu()), "f32[2, 9, 8, 4]");
    assert_eq!(gives(conv2d("conv", 4, [3, 3]).stride(2).same().gelu()), "f32[2, 5, 4, 4]");
    let model = Model::floats(&[9, 8, 3]).then(conv2d("conv", 4, [3, 3]).no_bias());
    assert_eq!(model.variables(), ["conv/kernel [3, 3, 3, 4]"]);
}

#[test]
fn pools_make_images_small() {
    let gives = |layer: Pool| Model::floats(&[9, 8, 3]).then(layer).gives();
    for pool in [max_pool, average_pool] {
        assert_eq!(gives(pool(2)), "f32[2, 4, 4, 3]");
        assert_eq!(gives(pool(3).stride(2)), "f32[2, 4, 3, 3]");
        assert_eq!(gives(pool(2).same()), "f32[2, 5, 4, 3]");
    }
    assert_eq!(Model::floats(&[9, 8, 3]).then(global_average_pool()).gives(), "f32[2, 3]");
    let graph = Model::floats(&[9, 8, 3]).then(max_pool(2)).then(average_pool(2)).graph();
    assert_eq!(count(&graph, |op| matches!(op, Op::MaxPool2d(_))), 1);
    assert_eq!(count(&graph, |op| matches!(op, Op::AveragePool2d(_))), 1);
}

#[test]
fn flatten_makes_rows() {
    assert_eq!(Model::floats(&[9, 8, 3]).then(flatten()).gives(), "f32[2, 216]");
    assert_eq!(Model::floats(&[]).then(flatten()).gives(), "f32[2, 1]");
}

#[test]
fn batch_norm_follows_its_moving_numbers_untrained() {
    let model = Model::floats(&[4, 4, 3]).then(batch_norm("bn"));
    assert_eq!(model.gives(), "f32[2, 4, 4, 3]");
    let graph = model.graph();
    let ones = InitializerSpec::Constant { value: 1.0 };
    let zeros = InitializerSpec::Zeros;
    let told: Vec<_> = graph.variables.iter().map(|v| (&v.name[..], &v.initializer, v.trainable)).collect();
    let expected = [
        ("bn/gamma", &ones, true),
        ("bn/beta", &zeros, true),
        ("bn/moving_mean", &zeros, false),
        ("bn/moving_variance", &ones, false),
    ];
    assert_eq!(told, expected);
    assert!(graph.variables.iter().all(|variable| variable.shape == [3].into()));
    assert_eq!(count(&graph, |op| *op == Op::BatchNorm { epsilon: 1e-3, momentum: 0.99 }), 1);
    let graph = Model::floats(&[3]).then(batch_norm("bn").epsilon(0.1).momentum(0.5)).graph();
    assert_eq!(count(&graph, |op| *op == Op::BatchNorm { epsilon: 0.1, momentum: 0.5 }), 1);
}

#[test]
fn layer_norm_works_on_rows() {
    let model = Model::floats(&[4, 3]).then(layer_norm("ln"));
    assert_eq!(model.gives(), "f32[2, 4, 3]");
    assert_eq!(model.variables(), ["ln/gamma [3]", "ln/beta [3]"]);
    let graph = Model::floats(&[3]).then(layer_norm("ln")).then(layer_norm("other").epsilon(0.1)).graph();
    assert_eq!(count(&graph, |op| *op == Op::LayerNorm { epsilon: 1e-5 }), 1);
    assert_eq!(count(&graph, |op| *op == Op::LayerNorm { epsilon: 0.1 }), 1);
}

#[test]
fn an_embedding_has_a_row_for_each_id() {
    let model = Model::ids(&[5]).then(embedding("tokens", 256, 8));
    assert_eq!(model.gives(), "f32[2, 5, 8]");
    assert_eq!(model.variables(), ["tokens/table [256, 8]"]);
    assert_eq!(Model::ids(&[]).then(embedding("tokens", 256, 8)).gives(), "f32[2, 8]");
}

#[test]
fn attention_is_made_of_four_projections() {
    let model = Model::floats(&[6, 8]).then(multi_head_attention("attn", 2).causal());
    assert_eq!(model.gives(), "f32[2, 6, 8]");
    let graph = model.graph();
    let scores = graph.nodes.iter().position(|node| node.op == Op::Softmax { causal: true }).unwrap();
    assert_eq!(graph.infer(5).unwrap()[scores].to_string(), "f32[5, 2, 6, 6]");
    let scale = &graph.nodes[graph.find("attn/constant").unwrap().index()].op;
    assert_eq!(*scale, Op::Constant { value: 0.5 }, "1 / √4");
    let names: Vec<&str> = graph.variables.iter().map(|variable| &variable.name[..]).collect();
    let expected = ["query", "key", "value", "output"]
        .map(|part| [format!("attn/{part}/kernel"), format!("attn/{part}/bias")])
        .concat();
    assert_eq!(names, expected);
    for variable in &graph.variables {
        let expected = if variable.name.ends_with("bias") { [8][..].into() } else { vec![8, 8] };
        assert_eq!(variable.shape.0, expected, "{}", variable.name);
    }
    let graph = Model::floats(&[6, 8]).then(multi_head_attention("attn", 8)).graph();
    assert_eq!(count(&graph, |op| *op == Op::Softmax { causal: false }), 1);
}

#[test]
fn dropout_keeps_the_shape() {
    let model = Model::floats(&[6, 8]).then(dropout(0.1));
    assert_eq!(model.gives(), "f32[2, 6, 8]");
    assert_eq!(count(&model.graph(), |op| *op == Op::Dropout { rate: 0.1 }), 1);
}

#[test]
fn a_sequence_is_a_scope_and_a_layer() {
    let inner = sequential("inner").add(dense("dense1", 4)).add(Activation::Tanh);
    let trunk =
        sequential("trunk").add(dense("dense1", 7)).add(inner).add(|g: &mut GraphBuilder, x| g.relu(x));
    let model = Model::floats(&[5]).then(trunk).then(sequential("nothing"));
    assert_eq!(model.gives(), "f32[2, 4]");
    let expected = [
        "trunk/dense1/kernel [5, 7]",
        "trunk/dense1/bias [7]",
        "trunk/inner/dense1/kernel [7, 4]",
        "trunk/inner/dense1/bias [4]",
    ];
    assert_eq!(model.variables(), expected);
}

#[test]
fn a_residual_block_adds_its_input() {
    let graph = Model::floats(&[5]).then(residual("block").add(dense("inner", 5).relu())).graph();
    let last = graph.nodes.iter().find(|node| node.name == "block/add").expect("an addition");
    assert_eq!(last.inputs[0], graph.find("features").unwrap());
    let block = residual("block")
        .add(conv2d("conv", 8, [3, 3]).stride(2).same())
        .shortcut(conv2d("shortcut", 8, [1, 1]).stride(2).no_bias());
    let model = Model::floats(&[5, 5, 3]).then(block);
    assert_eq!(model.gives(), "f32[2, 3, 3, 8]");
    let expected =
        ["block/conv/kernel [3, 3, 3, 8]", "block/conv/bias [8]", "block/shortcut/kernel [1, 1, 3, 8]"];
    assert_eq!(model.variables(), expected);
}

#[test]
fn a_layer_that_is_used_again_shares_its_variables() {
    fn twice(layer: impl Layer + Clone, example: &[usize]) -> usize {
        let clone = layer.clone();
        let once = Model::floats(example).then(layer.clone()).variables();
        let again = |g: &mut GraphBuilder, x| {
            let x = layer.apply(g, x);
            clone.apply(g, x)
        };
        let twice = Model::floats(example).then(again);
        assert_eq!(twice.variables(), once);
        once.len()
    }
    assert_eq!(twice(dense("it", 5), &[5]), 2);
    assert_eq!(twice(conv2d("it", 3, [3, 3]).same(), &[4, 4, 3]), 2);
    assert_eq!(twice(batch_norm("it"), &[5]), 4);
    assert_eq!(twice(layer_norm("it"), &[5]), 2);
    assert_eq!(twice(multi_head_attention("it", 2), &[6, 4]), 8);
    assert_eq!(twice(sequential("it").add(dense("dense", 5)).add(layer_norm("norm")), &[5]), 4);
    assert_eq!(twice(residual("it").add(dense("dense", 5)).shortcut(dense("around", 5)), &[5]), 4);
    let tokens = embedding("tokens", 10, 3);
    let both = |g: &mut GraphBuilder, x| {
        let (a, b) = (tokens.apply(g, x), tokens.apply(g, x));
        g.add(a, b)
    };
    assert_eq!(Model::ids(&[5]).then(both).variables(), ["tokens/table [10, 3]"]);
}

/// Returns a layer that applies `one` and then `other` to the same input, and returns the output of `other`.
fn both(one: impl Layer, other: impl Layer) -> impl Layer {
    move |g: &mut GraphBuilder, x| {
        let _ = one.apply(g, x);
        other.apply(g, x)
    }
}

#[test]
fn two_layers_of_one_name_are_refused_by_that_name() {
    let expected = "layer 'it' is defined twice";
    let twice = |a: Model| {
        let error = a.error();
        assert!(error.starts_with(expected), "{error}");
    };
    twice(Model::floats(&[5]).then(dense("it", 5)).then(dense("it", 3)));
    twice(Model::floats(&[5, 5, 3]).then(both(conv2d("it", 5, [3, 3]), conv2d("it", 5, [3, 3]))));
    twice(Model::floats(&[5]).then(batch_norm("it")).then(batch_norm("it")));
    twice(Model::floats(&[5]).then(layer_norm("it")).then(layer_norm("it")));
    twice(Model::ids(&[5]).then(both(embedding("it", 5, 2), embedding("it", 5, 2))));
    twice(Model::floats(&[5, 4]).then(multi_head_attention("it", 2)).then(multi_head_attention("it", 2)));
    twice(Model::floats(&[5]).then(sequential("it")).then(sequential("it")));
    twice(Model::floats(&[5]).then(residual("it")).then(dense("it", 5)));
    let block = || sequential("block").add(dense("it", 5)).add(dense("it", 5));
    let error = Model::floats(&[5]).then(block()).error();
    assert!(error.starts_with("layer 'block/it' is defined twice"), "{error}");
}

#[test]
fn a_shared_layer_that_does_not_fit_is_named() {
    fn refuses(layer: impl Layer + Clone, examples: [&[usize]; 2], expected: &str) {
        let mut g = GraphBuilder::new("model");
        let [a, b] = [0, 1].map(|at| g.input(["a", "b"][at], Shape(examples[at].to_vec())));
        let _ = layer.apply(&mut g, a);
        let x = layer.apply(&mut g, b);
        let error = Model { g, x }.error();
        assert!(error.starts_with(expected), "{error}");
    }
    refuses(dense("it", 5), [&[3], &[4]], "layer 'it' is used again, but variable 'it/kernel'");
    refuses(conv2d("it", 5, [1, 1]), [&[3, 3, 1], &[3, 3, 2]], "layer 'it' is used again");
    refuses(batch_norm("it"), [&[3], &[4]], "layer 'it' is used again, but variable 'it/gamma'");
    refuses(layer_norm("it"), [&[3], &[4]], "layer 'it' is used again, but variable 'it/gamma'");
    refuses(
        multi_head_attention("it", 1),
        [&[3, 3], &[3, 4]],
        "layer 'it/query' is used again, but variable 'it/query/kernel'",
    );
    refuses(sequential("it").add(dense("in", 5)), [&[3], &[4]], "layer 'it/in' is used again");
}

#[test]
fn what_a_layer_cannot_take_is_refused_by_its_name() {
    let f32s = Model::floats;
    for (model, expected) in [
        (f32s(&[]).then(dense("it", 5)), "layer 'it' expects f32 [batch, .., n], got f32[2]"),
        (Model::ids(&[3]).then(dense("it", 5)), "layer 'it' expects f32 [batch, .., n], got i32[2, 3]"),
        (f32s(&[3]).then(dense("it", 0)), "variable 'it/kernel' has shape [3, 0]"),
        (
            f32s(&[784]).then(conv2d("it", 5, [3, 3])),
            "layer 'it' expects f32 images [batch, h, w, channels], got f32[2, 784]",
        ),
        (Model::ids(&[8, 8, 3]).then(conv2d("it", 5, [3, 3])), "layer 'it' expects f32 images"),
        (f32s(&[8, 2, 3]).then(conv2d("it", 5, [3, 3])), "(conv2d 'it/conv2d') expects room for the kernel"),
        (f32s(&[8, 8, 3]).then(conv2d("it", 5, [3, 3]).stride(0)), "(conv2d 'it/conv2d') expects room"),
        (f32s(&[8, 8, 3]).then(conv2d("it", 5, [0, 3])), "variable 'it/kernel' has shape [0, 3, 3, 5]"),
        (f32s(&[]).then(batch_norm("it")), "layer 'it' expects f32 [batch, .., channels], got f32[2]"),
        (f32s(&[3]).then(batch_norm("it").epsilon(0.0)), "(batch_norm 'it/batch_norm') has the epsilon 0"),
        (f32s(&[3]).then(batch_norm("it").momentum(2.0)), "(batch_norm 'it/batch_norm') has the momentum 2"),
        (f32s(&[]).then(layer_norm("it")), "layer 'it' expects f32 [batch, .., n], got f32[2]"),
        (f32s(&[3]).then(layer_norm("it").epsilon(-1.0)), "(layer_norm 'it/layer_norm') has the epsilon -1"),
        (f32s(&[3]).then(embedding("it", 5, 2)), "layer 'it' expects i32 ids, got f32[2, 3]"),
        (Model::ids(&[3]).then(embedding("it", 0, 2)), "variable 'it/table' has shape [0, 2]"),
        (
            f32s(&[6, 7]).then(multi_head_attention("it", 4)),
            "layer 'it' expects f32 [batch, length, width] with a width that is a multiple of the number of heads, \
             4, got f32[2, 6, 7]",
        ),
        (f32s(&[6, 8]).then(multi_head_attention("it", 0)), "layer 'it' expects f32 [batch, length, width]"),
        (f32s(&[8]).then(multi_head_attention("it", 4)), "layer 'it' expects f32 [batch, length, width]"),
        (Model::ids(&[6, 8]).then(multi_head_attention("it", 4)), "layer 'it' expects f32"),
        (
            f32s(&[5]).then(sequential("block").add(max_pool(2))),
            "(max_pool2d 'block/max_pool2d') expects f32 images [batch, h, w, c], got f32[2, 5]",
        ),
        (
            f32s(&[5]).then(sequential("block").add(dropout(1.5))),
            "(dropout 'block/dropout') has the rate 1.5",
        ),
        (f32s(&[5]).then(sequential("block").add(global_average_pool())), "'block/global_average_pool'"),
        (
            Model::ids(&[5]).then(sequential("block").add(Activation::Relu)),
            "layer 'block' expects f32, got i32[2, 5]",
        ),
        (
            f32s(&[5]).then(sequential("block").add(sequential("in").add(conv2d("it", 5, [3, 3])))),
            "layer 'block/in/it' expects f32 images",
        ),
        (
            f32s(&[5]).then(residual("it").add(dense("in", 1))),
            "layer 'it' expects layers and a shortcut with the same output shape, got f32[2, 1] and f32[2, 5]",
        ),
        (f32s(&[5]).then(dense("a b", 3)), "variable name 'a b/kernel' is not valid"),
    ] {
        let error = model.error();
        assert!(error.contains(expected), "expected '{expected}' in: {error}");
    }
}

#[test]
fn a_scalar_cannot_be_flattened() {
    let mut g = GraphBuilder::new("scalars");
    let x = g.constant(1.0);
    let x = flatten().apply(&mut g, x);
    assert_eq!(Model { g, x }.error(), "layer 'scalars' expects [batch, ..], got f32[]");
}
