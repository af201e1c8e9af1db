//! G1: every gradient agrees with finite differences, taken in f64 of a plain interpreter of the same graph; and
//! the compiled program computes what the interpreter does, whatever was fused and written over.

use std::sync::Arc;

use kernels::cpu::Threads;
use messages::buffer::{BufferPool, Payload};
use messages::graph::{GraphBuilder, GraphSpec, Op, Padding, Stride, Window};
use messages::id::{NodeId, PlacementEpoch, ShardId, VariableId};
use messages::placement::{PlacedSlice, Placement, SliceSpec};
use messages::tensor::Shape;
use messages::variable::InitializerSpec;
use proptest::prelude::*;

use super::compile::{Bias, Kernel};
use super::*;
use crate::gradients::Gradients;
use crate::input::Batch;
use crate::layout::Layout;
use crate::values::Values;

/// Every node's value, in f64, computed in the plainest way.
fn interpret(graph: &GraphSpec, batch: &Batch, variables: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let tensors = graph.infer(batch.examples).unwrap();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for node in &graph.nodes {
        let input = |position: usize| &values[node.inputs[position].index()];
        let shape = |position: usize| &tensors[node.inputs[position].index()].shape.0;
        let labels = || batch.labels.iter().map(|&label| label as usize);
        let value = match &node.op {
            Op::Input { .. } if node.name == LABELS => labels().map(|label| label as f64).collect(),
            Op::Input { .. } => batch.features.iter().map(|&x| f64::from(x)).collect(),
            Op::Variable { variable } => variables[variable.index()].clone(),
            Op::Constant { value } => vec![f64::from(*value)],
            Op::MatMul { transpose_a, transpose_b } => {
                let at = |position: usize, row: usize, col: usize, transposed: bool| {
                    let (row, col) = if transposed { (col, row) } else { (row, col) };
                    input(position)[row * shape(position)[1] + col]
                };
                let (m, k) = (shape(0)[usize::from(*transpose_a)], shape(0)[usize::from(!*transpose_a)]);
                let n = shape(1)[usize::from(!*transpose_b)];
                let cell = |row: usize, col: usize| {
                    (0..k).map(|i| at(0, row, i, *transpose_a) * at(1, i, col, *transpose_b)).sum()
                };
                (0..m)
                    .flat_map(|row| (0..n).map(move |col| (row, col)))
                    .map(|(row, col)| cell(row, col))
                    .collect()
            }
            Op::BiasAdd => {
                let bias = input(1);
                input(0).iter().enumerate().map(|(i, x)| x + bias[i % bias.len()]).collect()
            }
            Op::Relu => input(0).iter().map(|x| x.max(0.0)).collect(),
            Op::Add => input(0).iter().zip(input(1)).map(|(a, b)| a + b).collect(),
            Op::Reshape { .. } => input(0).clone(),
            Op::SoftmaxCrossEntropy => {
                let rows = input(0).chunks(shape(0)[1]).zip(labels());
                let loss =
                    rows.map(|(row, label)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[label]);
                vec![loss.sum::<f64>() / batch.examples as f64]
            }
            Op::Accuracy => {
                let rows = input(0).chunks(shape(0)[1]).zip(labels());
                // Of equal logits the first counts.
                let right = rows.filter(|(row, label)| {
                    row[..*label].iter().all(|x| *x < row[*label]) && row.iter().all(|x| *x <= row[*label])
                });
                let right = right.count();
                vec![right as f64 / batch.examples as f64]
            }
            Op::Conv2d(geometry) => {
                let (images, kernel) = (Images::of(shape(0), input(0)), shape(1));
                let windows = images.windows([kernel[0], kernel[1]], geometry.stride, geometry.padding);
                let pixel = |window: Vec<Option<usize>>| {
                    let mut sums = vec![0.0; kernel[3]];
                    for (number, at) in window.into_iter().enumerate() {
                        let Some(at) = at else { continue };
                        for channel in 0..kernel[2] {
                            for (out, sum) in sums.iter_mut().enumerate() {
                                let weight = input(1)[(number * kernel[2] + channel) * kernel[3] + out];
                                *sum += images.values[at + channel] * weight;
                            }
                        }
                    }
                    sums
                };
                windows.into_iter().flat_map(pixel).collect()
            }
            Op::MaxPool2d(geometry) | Op::AveragePool2d(geometry) => {
                let images = Images::of(shape(0), input(0));
                let windows = images.windows(geometry.window, geometry.stride, geometry.padding);
                let is_max = matches!(node.op, Op::MaxPool2d(_));
                let pixel = |window: Vec<Option<usize>>| {
                    let images = &images;
                    let inside: Vec<usize> = window.into_iter().flatten().collect();
                    (0..images.channels).map(move |channel| {
                        let values = inside.iter().map(|at| images.values[at + channel]);
                        if is_max {
                            values.fold(f64::NEG_INFINITY, f64::max)
                        } else {
                            values.sum::<f64>() / inside.len() as f64
                        }
                    })
                };
                windows.into_iter().flat_map(pixel).collect()
            }
            Op::GlobalAveragePool => {
                let (pixels, channels) = (shape(0)[1] * shape(0)[2], shape(0)[3]);
                let image = |image: &[f64]| -> Vec<f64> {
                    let sum = |channel: usize| image.iter().skip(channel).step_by(channels).sum::<f64>();
                    (0..channels).map(|channel| sum(channel) / pixels as f64).collect()
                };
                input(0).chunks(pixels * channels).flat_map(image).collect()
            }
            backward => unreachable!("only the backward pass has {}", backward.name()),
        };
        values.push(value);
    }
    values
}

/// Images, and where the pixels of every window lie in them; nothing where a pixel is padding.
struct Images<'a> {
    count: usize,
    extents: [usize; 2],
    channels: usize,
    values: &'a [f64],
}

impl<'a> Images<'a> {
    fn of(shape: &[usize], values: &'a [f64]) -> Self {
        Self { count: shape[0], extents: [shape[1], shape[2]], channels: shape[3], values }
    }

    fn windows(&self, window: [usize; 2], stride: [usize; 2], padding: Padding) -> Vec<Vec<Option<usize>>> {
        // TensorFlow's rule: with `same` as many windows as strides, and the odd pixel of padding at the end.
        let along = |axis: usize| match padding {
            Padding::Valid => ((self.extents[axis] - window[axis]) / stride[axis] + 1, 0),
            Padding::Same => {
                let windows = self.extents[axis].div_ceil(stride[axis]);
                let covered = (windows - 1) * stride[axis] + window[axis];
                (windows, covered.saturating_sub(self.extents[axis]) / 2)
            }
        };
        let ((rows, top), (cols, left)) = (along(0), along(1));
        let at = |start: usize, offset: usize, before: usize, extent: usize| {
            (start + offset).checked_sub(before).filter(|&at| at < extent)
        };
        let mut all = Vec::new();
        for image in 0..self.count {
            for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                let pixel = |(y, x): (usize, usize)| {
                    let y = at(row * stride[0], y, top, self.extents[0])?;
                    let x = at(col * stride[1], x, left, self.extents[1])?;
                    Some(((image * self.extents[0] + y) * self.extents[1] + x) * self.channels)
                };
                let offsets = (0..window[0]).flat_map(|y| (0..window[1]).map(move |x| (y, x)));
                all.push(offsets.map(pixel).collect());
            }
        }
        all
    }
}

/// One shard that owns everything.
fn layout(graph: &GraphSpec) -> Arc<Layout> {
    let shard = ShardId::new(0, 0);
    let slices = graph.variables.iter().enumerate();
    let slices = slices.map(|(id, variable)| PlacedSlice {
        slice: SliceSpec::whole(VariableId(id as u32), variable),
        shard,
    });
    let placement = Placement { epoch: PlacementEpoch(1), shards: vec![shard], slices: slices.collect() };
    Arc::new(Layout::new(&placement, &graph.variables))
}

fn values(layout: &Arc<Layout>, variables: &[Vec<f64>]) -> Values {
    let pool = BufferPool::default();
    let mut buffers = Gradients::take(layout, &pool);
    for (id, variable) in variables.iter().enumerate() {
        let floats = buffers.variable_mut(VariableId(id as u32));
        floats.iter_mut().zip(variable).for_each(|(to, from)| *to = *from as f32);
    }
    let payloads: Vec<Payload> = buffers.into_payloads();
    Values::assemble(layout, &payloads, &pool).unwrap()
}

/// A repeatable stream of numbers in −1..1.
fn numbers(mut seed: u64) -> impl FnMut() -> f64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }
}

/// What a random network is made of, layer by layer.
#[derive(Clone, Debug)]
struct Layer {
    width: usize,
    transposed: bool,
    bias: bool,
    relu: bool,
    /// The layer's output is added to itself after another product with the same, shared kernel.
    residual: bool,
}

fn any_layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer = (1usize..7, any::<[bool; 4]>()).prop_map(|(width, [transposed, bias, relu, residual])| {
        Layer { width, transposed, bias, relu, residual }
    });
    prop::collection::vec(layer, 1..4)
}

fn network(layers: &[Layer], features: [usize; 2], classes: usize) -> GraphSpec {
    let mut g = GraphBuilder::new("network");
    let x = g.input(FEATURES, features);
    let labels = g.labels(LABELS);
    let mut width = features[0] * features[1];
    let mut x = g.reshape(x, [width]);
    let normal = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
    for (position, layer) in layers.iter().enumerate() {
        let shape = if layer.transposed { [layer.width, width] } else { [width, layer.width] };
        let kernel = g.variable(&format!("{position}/kernel"), shape, normal.clone());
        let product = Op::MatMul { transpose_a: false, transpose_b: layer.transposed };
        x = g.push("product", product, &[x, kernel]);
        width = layer.width;
        if layer.bias {
            let bias = g.variable(&format!("{position}/bias"), [width], normal.clone());
            x = g.bias_add(x, bias);
        }
        if layer.relu {
            x = g.relu(x);
        }
        if layer.residual {
            let square = g.variable(&format!("{position}/square"), [width, width], normal.clone());
            let once = g.matmul(x, square);
            let twice =
                g.push("again", Op::MatMul { transpose_a: false, transpose_b: true }, &[once, square]);
            x = g.add(x, twice);
        }
    }
    let kernel = g.variable("logits/kernel", [width, classes], normal);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).unwrap()
}

fn batch(graph: &GraphSpec, examples: usize, classes: usize, next: &mut impl FnMut() -> f64) -> Batch {
    let features = graph.infer(examples).unwrap()[0].shape.elements();
    Batch {
        features: (0..features).map(|_| next() as f32).collect(),
        labels: (0..examples).map(|_| ((next() + 1.0) / 2.0 * classes as f64) as i32).collect(),
        examples,
        resume_at: None,
    }
}

/// Holds every gradient of a training program against finite differences of the interpreter.
fn check_gradients(
    graph: &GraphSpec,
    examples: usize,
    classes: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    let mut next = numbers(seed);
    let batch = batch(graph, examples, classes, &mut next);
    let mut variables: Vec<Vec<f64>> = graph
        .variables
        .iter()
        // Through f32, so that both sides see the same numbers.
        .map(|variable| (0..variable.shape.elements()).map(|_| f64::from(next() as f32)).collect())
        .collect();
    let layout = layout(graph);
    let mut executor = Executor::new(Program::training(graph, examples).unwrap());
    let pool = BufferPool::default();
    let mut gradients = Gradients::take(&layout, &pool);
    // Left-over memory must not shine through.
    for id in 0..variables.len() {
        gradients.variable_mut(VariableId(id as u32)).fill(f32::NAN);
    }
    let at = values(&layout, &variables);
    let loss = executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap()[0];
    let expected = interpret(graph, &batch, &variables)[graph.loss.index()][0];
    prop_assert!((f64::from(loss) - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{loss} {expected}");
    // The same again, in an arena that is no longer all zeros.
    let first: Vec<Vec<f32>> =
        (0..variables.len()).map(|id| gradients.variable_mut(VariableId(id as u32)).to_vec()).collect();
    executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap();
    const STEP: f64 = 1e-5;
    for id in 0..variables.len() {
        let computed = gradients.variable_mut(VariableId(id as u32)).to_vec();
        prop_assert_eq!(&computed, &first[id]);
        for element in 0..variables[id].len() {
            let mut loss_at = |shift: f64| {
                variables[id][element] += shift;
                let loss = interpret(graph, &batch, &variables)[graph.loss.index()][0];
                variables[id][element] -= shift;
                loss
            };
            let (up, down, here) = (loss_at(STEP), loss_at(-STEP), loss_at(0.0));
            let (right, left) = ((up - here) / STEP, (here - down) / STEP);
            // At the kink of a relu there is no derivative; both sides then differ.
            if (right - left).abs() > 1e-3 * (1.0 + right.abs()) {
                continue;
            }
            let expected = (up - down) / (2.0 * STEP);
            let got = f64::from(computed[element]);
            prop_assert!(
                (got - expected).abs() <= 1e-3 * (1.0 + expected.abs()),
                "{}[{element}]: {got}, and by differences {expected}",
                graph.variables[id].name
            );
        }
    }
    Ok(())
}

/// A layer of a random network over images.
#[derive(Clone, Debug)]
struct ImageLayer {
    kind: u8,
    window: [usize; 2],
    stride: [usize; 2],
    padding: Padding,
    channels: usize,
    bias: bool,
    relu: bool,
}

fn any_image_layer() -> impl Strategy<Value = ImageLayer> {
    let pair = (1usize..4, 1usize..4).prop_map(|(down, right)| [down, right]);
    let padding = prop::sample::select(vec![Padding::Valid, Padding::Same]);
    (0u8..4, pair.clone(), pair, padding, 1usize..4, any::<(bool, bool)>()).prop_map(
        |(kind, window, stride, padding, channels, (bias, relu))| ImageLayer {
            kind,
            window,
            stride,
            padding,
            channels,
            bias,
            relu,
        },
    )
}

/// As many of these layers as fit on such images, then a classifier.
fn image_network(layers: &[ImageLayer], image: [usize; 3], flat: bool) -> GraphSpec {
    let mut g = GraphBuilder::new("images");
    let mut x = g.input(FEATURES, image);
    let labels = g.labels(LABELS);
    let normal = InitializerSpec::Normal { mean: 0.0, stddev: 1.0 };
    for (position, layer) in layers.iter().enumerate() {
        let shape = g.example_shape(x).unwrap().0;
        let ImageLayer { window, stride, padding, .. } = *layer;
        if padding == Padding::Valid && (window[0] > shape[0] || window[1] > shape[1]) {
            continue;
        }
        match layer.kind {
            0 => x = g.max_pool2d(x, Window { window, stride, padding }),
            1 => x = g.average_pool2d(x, Window { window, stride, padding }),
            _ => {
                let shape = [window[0], window[1], shape[2], layer.channels];
                let kernel = g.variable(&format!("{position}/kernel"), shape, normal.clone());
                x = g.conv2d(x, kernel, Stride { stride, padding });
                if layer.bias {
                    let bias = g.variable(&format!("{position}/bias"), [layer.channels], normal.clone());
                    x = g.bias_add(x, bias);
                }
                if layer.relu {
                    x = g.relu(x);
                }
            }
        }
    }
    let shape = g.example_shape(x).unwrap();
    x = if flat { g.reshape(x, [shape.elements()]) } else { g.global_average_pool(x) };
    let width = g.example_shape(x).unwrap().elements();
    let kernel = g.variable("logits/kernel", [width, 3], normal);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    g.finish(loss, &[]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn gradients_agree_with_finite_differences(
        layers in any_layers(),
        features in (1usize..4, 1usize..4),
        classes in 2usize..5,
        examples in 1usize..5,
        seed: u64,
    ) {
        check_gradients(&network(&layers, [features.0, features.1], classes), examples, classes, seed)?;
    }

    #[test]
    fn gradients_of_convolutions_and_pools_agree_with_finite_differences(
        layers in prop::collection::vec(any_image_layer(), 1..4),
        extents in (1usize..7, 1usize..7),
        channels in 1usize..3,
        flat: bool,
        examples in 1usize..4,
        seed: u64,
    ) {
        let graph = image_network(&layers, [extents.0, extents.1, channels], flat);
        check_gradients(&graph, examples, 3, seed)?;
    }

    #[test]
    fn evaluation_computes_the_loss_and_every_metric(
        layers in any_layers(),
        classes in 2usize..5,
        examples in 1usize..9,
        seed: u64,
    ) {
        let graph = network(&layers, [2, 3], classes);
        let mut next = numbers(seed);
        let batch = batch(&graph, examples, classes, &mut next);
        let variables: Vec<Vec<f64>> = graph
            .variables
            .iter()
            .map(|variable| (0..variable.shape.elements()).map(|_| f64::from(next() as f32)).collect())
            .collect();
        let mut executor = Executor::new(Program::evaluation(&graph, examples).unwrap());
        let at = values(&layout(&graph), &variables);
        let scalars = executor.run(&batch, &at, None, Threads::One).unwrap().to_vec();
        let expected = interpret(&graph, &batch, &variables);
        prop_assert!((f64::from(scalars[0]) - expected[graph.loss.index()][0]).abs() < 1e-3);
        prop_assert!((f64::from(scalars[1]) - expected[graph.metrics[0].node.index()][0]).abs() < 1e-6);
    }
}

fn mlp() -> GraphSpec {
    let layer = |width| Layer { width, transposed: false, bias: true, relu: true, residual: false };
    network(&[layer(32), layer(16)], [4, 4], 3)
}

#[test]
fn an_mlp_compiles_without_a_needless_pass_over_memory() {
    let program = Program::training(&mlp(), 8).unwrap();
    let kernels: Vec<Kernel> = program.instructions.iter().map(|instruction| instruction.kernel).collect();
    let count = |wanted: fn(&Kernel) -> bool| kernels.iter().filter(|kernel| wanted(kernel)).count();
    // Forward three products, backward five: nothing is computed for the features.
    assert_eq!(count(|kernel| matches!(kernel, Kernel::MatMul { .. })), 8);
    assert_eq!(count(|kernel| *kernel == Kernel::BiasAdd { in_place: true, relu: true }), 2);
    assert_eq!(count(|kernel| *kernel == Kernel::ReluGrad { in_place: true }), 2);
    assert_eq!(count(|kernel| matches!(kernel, Kernel::Copy | Kernel::Relu { .. } | Kernel::Add { .. })), 0);
    assert_eq!(count(|kernel| *kernel == Kernel::Accuracy), 0, "a metric is not computed in training");
    // Both hidden layers, their gradients, the logits: far from one place for each of the 30 nodes.
    assert!(program.arena_bytes() <= 4 * 8 * (32 + 32 + 16 + 16 + 16 + 64), "{}", program.arena_bytes());
}

#[test]
fn a_convolution_takes_its_bias_and_relu_along() {
    let layer = |kind| ImageLayer {
        kind,
        window: [2, 2],
        stride: [2, 2],
        padding: Padding::Valid,
        channels: 4,
        bias: true,
        relu: true,
    };
    let graph = image_network(&[layer(2), layer(0)], [8, 8, 1], true);
    let program = Program::training(&graph, 4).unwrap();
    let kernels: Vec<Kernel> = program.instructions.iter().map(|instruction| instruction.kernel).collect();
    assert!(matches!(kernels[0], Kernel::Conv2d { bias: Bias::AddRelu, .. }), "{kernels:?}");
    assert!(matches!(kernels[1], Kernel::MaxPool2d(_)));
    let count = |wanted: fn(&Kernel) -> bool| kernels.iter().filter(|kernel| wanted(kernel)).count();
    assert_eq!(
        count(|kernel| matches!(kernel, Kernel::BiasAdd { .. } | Kernel::Relu { .. } | Kernel::Copy)),
        0
    );
    // Nothing is computed for the images themselves.
    assert_eq!(count(|kernel| matches!(kernel, Kernel::Conv2dInputGrad(_))), 0);
}

#[test]
fn the_gradient_of_a_pooling_must_be_given_the_pooling() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input(FEATURES, [2, 2, 1]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [4, 2], InitializerSpec::Zeros);
    let geometry = Window::tiles(1);
    let odd = g.push("odd", Op::MaxPool2dGrad { geometry, example: [2, 2, 1].into() }, &[x, x]);
    let flat = g.reshape(odd, [4]);
    let logits = g.matmul(flat, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let error = Program::evaluation(&g.finish(loss, &[]).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("(max_pool2d_grad 'odd') must be given"), "{error}");
}

#[test]
fn a_variable_beside_the_loss_has_a_zero_gradient_and_one_used_twice_the_sum() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let aside = g.variable("aside", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let again = g.push("again", Op::Variable { variable: VariableId(0) }, &[]);
    let more = g.matmul(x, again);
    let both = g.add(logits, more);
    let beside = g.matmul(x, aside);
    let metric = g.accuracy(beside, labels);
    let loss = g.softmax_cross_entropy(both, labels);
    let graph = g.finish(loss, &[("beside", metric)]).unwrap();
    let layout = layout(&graph);
    let mut gradients = Gradients::take(&layout, &BufferPool::default());
    gradients.variable_mut(VariableId(1)).fill(7.0);
    let batch = Batch { features: vec![1.0, 2.0], labels: vec![0], examples: 1, resume_at: None };
    let at = values(&layout, &[vec![0.0; 4], vec![0.0; 4]]);
    let mut executor = Executor::new(Program::training(&graph, 1).unwrap());
    executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap();
    // softmax is even, so dlogits = (−1/2, 1/2), and the kernel is there twice.
    assert_eq!(gradients.variable_mut(VariableId(0)), [-1.0, 1.0, -2.0, 2.0]);
    assert_eq!(gradients.variable_mut(VariableId(1)), [0.0; 4]);
}

#[test]
fn a_loss_that_is_a_variable_itself_runs() {
    let mut g = GraphBuilder::new("odd");
    let loss = g.variable("loss", Shape::scalar(), InitializerSpec::Zeros);
    let graph = g.finish(loss, &[]).unwrap();
    let layout = layout(&graph);
    let mut gradients = Gradients::take(&layout, &BufferPool::default());
    let batch = Batch { features: vec![], labels: vec![0], examples: 1, resume_at: None };
    let mut executor = Executor::new(Program::training(&graph, 1).unwrap());
    let at = values(&layout, &[vec![2.5]]);
    assert_eq!(executor.run(&batch, &at, Some(&mut gradients), Threads::One).unwrap(), [2.5]);
    assert_eq!(gradients.variable_mut(VariableId(0)), [1.0]);
}

#[test]
fn what_cannot_be_trained_or_fed_is_refused_with_the_node_named() {
    let mut g = GraphBuilder::new("odd");
    let x = g.input("pixels", [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let error = Program::training(&g.finish(loss, &[]).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("input 'pixels'"), "{error}");

    let mut g = GraphBuilder::new("odd");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let accuracy = g.accuracy(logits, labels);
    let error = Program::training(&g.finish(accuracy, &[]).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("(accuracy 'accuracy')"), "{error}");
}

#[test]
fn a_label_beyond_the_classes_is_an_error() {
    let graph = mlp();
    let at = values(
        &layout(&graph),
        &graph.variables.iter().map(|v| vec![0.0; v.shape.elements()]).collect::<Vec<_>>(),
    );
    let mut executor = Executor::new(Program::evaluation(&graph, 1).unwrap());
    let batch = Batch { features: vec![0.0; 16], labels: vec![3], examples: 1, resume_at: None };
    let error = executor.run(&batch, &at, None, Threads::One).unwrap_err();
    assert_eq!((error.label, error.classes), (3, 3));
}

fn any_window() -> impl Strategy<Value = Window> {
    let pair = (0usize..3, 0usize..3).prop_map(|(down, right)| [down, right]);
    let padding = prop::sample::select(vec![Padding::Valid, Padding::Same]);
    (pair.clone(), pair, padding).prop_map(|(window, stride, padding)| Window { window, stride, padding })
}

fn any_wild_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        prop::collection::vec(1usize..4, 0..3).prop_map(|shape| Op::Reshape { shape: Shape(shape) }),
        any_window().prop_map(Op::MaxPool2d),
        any_window().prop_map(Op::AveragePool2d),
        any_window().prop_map(|w| Op::Conv2d(Stride { stride: w.stride, padding: w.padding })),
        any_window().prop_map(|geometry| Op::MaxPool2dGrad { geometry, example: [2, 1, 1].into() }),
        any_window().prop_map(|geometry| Op::AveragePool2dGrad { geometry, example: [2, 1, 1].into() }),
        any_window().prop_map(|w| {
            let geometry = Stride { stride: w.stride, padding: w.padding };
            Op::Conv2dInputGrad { geometry, example: [2, 1, 1].into() }
        }),
        any_window().prop_map(|w| {
            let geometry = Stride { stride: w.stride, padding: w.padding };
            Op::Conv2dKernelGrad { geometry, window: w.window }
        }),
        Just(Op::GlobalAveragePoolGrad { example: [1, 2, 1].into() }),
        (0u32..4).prop_map(|variable| Op::Variable { variable: VariableId(variable) }),
        any::<(bool, bool)>().prop_map(|(transpose_a, transpose_b)| Op::MatMul { transpose_a, transpose_b }),
        prop::sample::select(vec![
            Op::Constant { value: 2.0 },
            Op::BiasAdd,
            Op::Relu,
            Op::Add,
            Op::SoftmaxCrossEntropy,
            Op::Accuracy,
            Op::ReluGrad,
            Op::SumRows,
            Op::GlobalAveragePool,
            Op::SoftmaxCrossEntropyGrad,
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A graph from outside that passes the check compiles and runs, or is refused; it never panics.
    #[test]
    fn any_valid_graph_runs_or_is_refused(
        ops in prop::collection::vec((any_wild_op(), prop::collection::vec(any::<prop::sample::Index>(), 3)), 1..12),
        loss: prop::sample::Index,
    ) {
        const EXAMPLES: usize = 2;
        let mut g = GraphBuilder::new("wild");
        g.input(FEATURES, [2]);
        g.labels(LABELS);
        let shapes = [("square", vec![2, 2]), ("vector", vec![2]), ("scalar", vec![]), ("image", vec![2, 2, 1, 1])];
        for (name, shape) in shapes {
            g.variable(name, Shape(shape), InitializerSpec::Zeros);
        }
        let mut graph = g.finish(NodeId(4), &[]).unwrap();
        for (op, picks) in ops {
            // The first choice of inputs that fits, if there is any: else almost no graph would be valid.
            let count = graph.nodes.len();
            let (arity, name) = (op.arity(), format!("n{count}"));
            for shift in 0..count.pow(arity.min(2) as u32) {
                let inputs = (0..arity).map(|i| NodeId(((picks[i].index(count) + shift / count.pow(i.min(1) as u32)) % count) as u32));
                let inputs: Vec<NodeId> = inputs.collect();
                graph.nodes.push(messages::graph::NodeSpec { name: name.clone(), op: op.clone(), inputs });
                if graph.infer(EXAMPLES).is_ok() {
                    break;
                }
                graph.nodes.pop();
            }
        }
        graph.loss = NodeId(loss.index(graph.nodes.len()) as u32);
        let batch = Batch { features: vec![0.5; 4], labels: vec![0, 1], examples: EXAMPLES, resume_at: None };
        let layout = layout(&graph);
        let at = values(&layout, &[vec![0.5; 4], vec![1.0; 2], vec![3.0], vec![0.5; 4]]);
        if let Ok(program) = Program::training(&graph, EXAMPLES) {
            let mut gradients = Gradients::take(&layout, &BufferPool::default());
            let _ = Executor::new(program).run(&batch, &at, Some(&mut gradients), Threads::One);
        }
        if let Ok(program) = Program::evaluation(&graph, EXAMPLES) {
            let _ = Executor::new(program).run(&batch, &at, None, Threads::One);
        }
    }
}

#[test]
fn a_graph_that_fits_only_one_batch_is_refused_before_the_training() {
    use crate::replica::{GraphReplica, Replica, ReplicaError};
    let mut g = GraphBuilder::new("fixed");
    let x = g.input(FEATURES, [2]);
    let labels = g.labels(LABELS);
    let kernel = g.variable("kernel", [2, 2], InitializerSpec::Zeros);
    let table = g.variable("table", [2, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let logits = g.add(logits, table);
    let loss = g.softmax_cross_entropy(logits, labels);
    let graph = g.finish(loss, &[]).unwrap();
    let mut replica = GraphReplica::new(graph.clone(), 2, &[2].into(), 1).unwrap();
    assert!(replica.prepare(2).is_ok());
    assert!(replica.prepare(3).unwrap_err().to_string().contains("(add 'add')"));
    let other = GraphReplica::new(graph, 2, &[3].into(), 1).err().unwrap();
    assert!(matches!(other, ReplicaError::Features { .. }));
}
