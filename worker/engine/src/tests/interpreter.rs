//! The reference implementation for the tests of the engine. It computes the value of every node in f64, for
//! one batch, by naive loops over the graph. This module must not depend on kernels. Only the mask of a
//! dropout comes from a kernel.

use pushpull_kernels::cpu::{self, Key};
use pushpull_messages::graph::{BinaryOp, GraphSpec, Op, ReductionOp, UnaryOp};
use pushpull_messages::id::VariableId;
use pushpull_messages::input::Column;

use super::images::Images;
use super::index::{Index, broadcast};

/// The result of interpreting a graph.
pub(super) struct Interpretation {
    /// The value of every node. Integers are stored as floats, too.
    pub values: Vec<Vec<f64>>,
    /// The updates to subtract from moving means and variances: one entry for each batch norm that uses the
    /// variable.
    pub updates: Vec<(VariableId, Vec<f64>)>,
    /// The distance to the nearest kink: a point where the slope of an operation jumps. For a relu, this is
    /// the distance of its input from 0. For a maximum, it is the difference between the largest element and
    /// the second largest. A distance of exactly 0 is ignored: as the numbers are random, such a distance
    /// stays 0 when the variables change slightly.
    pub margin: f64,
}

/// The inputs of an interpretation, in addition to the graph.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub columns: &'a [Column],
    pub examples: usize,
    pub variables: &'a [Vec<f64>],
    pub random: u64,
    pub pass: Pass,
}

/// The purpose for which a graph is run. Some operations, such as dropout, compute different values in
/// training and in evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Training,
    Evaluation,
}

pub(super) fn interpret(graph: &GraphSpec, given: Given<'_>) -> Interpretation {
    let tensors = graph.infer(given.examples).unwrap();
    let shapes: Vec<Vec<usize>> = tensors.into_iter().map(|tensor| tensor.shape.0).collect();
    let found = Interpretation { values: Vec::new(), updates: Vec::new(), margin: f64::INFINITY };
    let mut interpreter = Interpreter { graph, given, shapes, node: 0, found };
    for node in 0..graph.nodes.len() {
        interpreter.node = node;
        let value = interpreter.value();
        let elements: usize = interpreter.shapes[node].iter().product();
        assert_eq!(value.len(), elements, "{:?}", graph.nodes[node]);
        interpreter.found.values.push(value);
    }
    let mut found = interpreter.found;
    // If several normalisations update the same moving value, it moves towards the mean of their targets.
    let of: Vec<VariableId> = found.updates.iter().map(|&(variable, _)| variable).collect();
    for (variable, update) in &mut found.updates {
        let uses = of.iter().filter(|other| *other == variable).count() as f64;
        update.iter_mut().for_each(|update| *update /= uses);
    }
    found
}

struct Interpreter<'a> {
    graph: &'a GraphSpec,
    given: Given<'a>,
    shapes: Vec<Vec<usize>>,
    node: usize,
    found: Interpretation,
}

impl<'a> Interpreter<'a> {
    fn input(&self, position: usize) -> &[f64] {
        &self.found.values[self.graph.nodes[self.node].inputs[position].index()]
    }

    fn shape(&self, position: usize) -> &[usize] {
        &self.shapes[self.graph.nodes[self.node].inputs[position].index()]
    }

    /// Returns the rows of an input: its slices along the last axis.
    fn rows(&self, position: usize) -> std::slice::Chunks<'_, f64> {
        self.input(position).chunks(*self.shape(position).last().unwrap())
    }

    fn output(&self) -> &[usize] {
        &self.shapes[self.node]
    }

    /// Records the distance of a number from a kink; a distance of exactly 0 is ignored.
    fn kink(&mut self, distance: f64) {
        if distance != 0.0 {
            self.found.margin = self.found.margin.min(distance.abs());
        }
    }

    fn largest(&mut self, numbers: impl Iterator<Item = f64>) -> f64 {
        let mut sorted: Vec<f64> = numbers.collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        // Numbers equal to the largest one are skipped.
        if let Some(second) = sorted.iter().find(|&&number| number != sorted[0]) {
            self.kink(sorted[0] - second);
        }
        sorted[0]
    }

    fn value(&mut self) -> Vec<f64> {
        let graph: &'a GraphSpec = self.graph;
        let node = &graph.nodes[self.node];
        match &node.op {
            Op::Input { .. } => self.column(&node.name),
            Op::Variable { variable } => self.given.variables[variable.index()].clone(),
            Op::Constant { value } => vec![f64::from(*value)],
            Op::ToFloat | Op::Reshape { .. } => self.input(0).to_vec(),
            Op::Unary(op) => {
                if matches!(op, UnaryOp::Abs | UnaryOp::Relu | UnaryOp::LeakyRelu { .. }) {
                    self.input(0).to_vec().into_iter().for_each(|x| self.kink(x));
                }
                self.input(0).iter().map(|&x| unary(*op, x)).collect()
            }
            Op::Binary(op) => {
                let both = [self.shape(0).to_vec(), self.shape(1).to_vec()];
                let pair = |at: &[usize]| {
                    let [a, b] = [0, 1].map(|side| self.input(side)[broadcast(&both[side], at)]);
                    binary(*op, a, b)
                };
                Index::all(self.output()).map(|at| pair(&at)).collect()
            }
            Op::BiasAdd => {
                let bias = self.input(1);
                self.rows(0).flat_map(|row| row.iter().zip(bias).map(|(x, b)| x + b)).collect()
            }
            Op::Reduce { reduction, axes, .. } => self.reduce(*reduction, axes),
            Op::MatMul { transpose_a, transpose_b } => self.mat_mul(*transpose_a, *transpose_b),
            Op::Embedding => {
                let (table, width) = (self.input(0), self.shape(0)[1]);
                let row = |&id: &f64| &table[id as usize * width..][..width];
                self.input(1).iter().flat_map(row).copied().collect()
            }
            Op::Transpose { .. } | Op::Concat { .. } | Op::Slice { .. } => self.moved(),
            Op::Conv2d(_) | Op::MaxPool2d(_) | Op::AveragePool2d(_) | Op::GlobalAveragePool => self.image(),
            Op::BatchNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Dropout { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax => self.row(),
            Op::SoftmaxCrossEntropy
            | Op::SigmoidCrossEntropy
            | Op::MeanSquaredError
            | Op::Accuracy
            | Op::TopK { .. }
            | Op::AucCounts { .. } => self.score(),
            Op::Session(_) => unreachable!("a training job has no such operation"),
        }
    }

    /// Returns the value of a transposition, a concatenation or a slice.
    fn moved(&self) -> Vec<f64> {
        let graph: &'a GraphSpec = self.graph;
        match &graph.nodes[self.node].op {
            Op::Transpose { axes } => {
                let from = self.shape(0);
                let moved = |at: &[usize]| {
                    let mut back = vec![0; axes.len()];
                    axes.iter().zip(at).for_each(|(&axis, &at)| back[axis] = at);
                    self.input(0)[Index::flat(from, &back)]
                };
                Index::all(self.output()).map(|at| moved(&at)).collect()
            }
            Op::Concat { axis } => {
                let element = |mut at: Vec<usize>| {
                    let mut part = 0;
                    while at[*axis] >= self.shape(part)[*axis] {
                        at[*axis] -= self.shape(part)[*axis];
                        part += 1;
                    }
                    self.input(part)[Index::flat(self.shape(part), &at)]
                };
                Index::all(self.output()).map(element).collect()
            }
            Op::Slice { axis, start, .. } => {
                let element = |mut at: Vec<usize>| {
                    at[*axis] += start;
                    self.input(0)[Index::flat(self.shape(0), &at)]
                };
                Index::all(self.output()).map(element).collect()
            }
            op => unreachable!("{op:?}"),
        }
    }

    /// Returns the value of a convolution or a pooling.
    fn image(&mut self) -> Vec<f64> {
        let graph: &'a GraphSpec = self.graph;
        match &graph.nodes[self.node].op {
            Op::Conv2d(geometry) => {
                let (images, [kh, kw, cin, cout]) =
                    (Images::of(self.shape(0)), self.shape(1).try_into().unwrap());
                let mut output = Vec::new();
                for window in images.windows([kh, kw], geometry.stride, geometry.padding) {
                    for out in 0..cout {
                        let pixel = |(number, at): (usize, Option<usize>)| -> f64 {
                            let Some(at) = at else { return 0.0 };
                            let weight =
                                |channel: usize| self.input(1)[(number * cin + channel) * cout + out];
                            (0..cin).map(|channel| self.input(0)[at + channel] * weight(channel)).sum()
                        };
                        output.push(window.iter().copied().enumerate().map(pixel).sum());
                    }
                }
                output
            }
            Op::MaxPool2d(geometry) | Op::AveragePool2d(geometry) => {
                let images = Images::of(self.shape(0));
                let x = self.input(0).to_vec();
                let is_max = matches!(graph.nodes[self.node].op, Op::MaxPool2d(_));
                let mut output = Vec::new();
                for window in images.windows(geometry.window, geometry.stride, geometry.padding) {
                    let inside: Vec<usize> = window.into_iter().flatten().collect();
                    for channel in 0..images.channels {
                        let values = inside.iter().map(|at| x[at + channel]);
                        output.push(match is_max {
                            true => self.largest(values),
                            false => values.sum::<f64>() / inside.len() as f64,
                        });
                    }
                }
                output
            }
            Op::GlobalAveragePool => {
                let &[images, height, width, channels] = self.shape(0) else { unreachable!() };
                let mut output = vec![0.0; images * channels];
                for (at, x) in self.input(0).iter().enumerate() {
                    let image = at / (height * width * channels);
                    output[image * channels + at % channels] += x / (height * width) as f64;
                }
                output
            }
            op => unreachable!("{op:?}"),
        }
    }

    /// Returns the value of a normalisation, a dropout or a softmax.
    fn row(&mut self) -> Vec<f64> {
        let graph: &'a GraphSpec = self.graph;
        match &graph.nodes[self.node].op {
            Op::BatchNorm { epsilon, momentum } => self.batch_norm(f64::from(*epsilon), f64::from(*momentum)),
            Op::LayerNorm { epsilon } => {
                let norm = |row: &[f64]| -> Vec<f64> {
                    let (mean, variance) = moments(row.iter().copied());
                    let scale = 1.0 / (variance + f64::from(*epsilon)).sqrt();
                    let affine = |(x, (gamma, beta)): (&f64, (&f64, &f64))| (x - mean) * scale * gamma + beta;
                    row.iter().zip(self.input(1).iter().zip(self.input(2))).map(affine).collect()
                };
                self.rows(0).flat_map(norm).collect()
            }
            Op::Dropout { rate } => {
                let x = self.input(0);
                if self.given.pass == Pass::Evaluation {
                    return x.to_vec();
                }
                let mut mask = vec![0.0; x.len()];
                let key = Key { seed: self.given.random, stream: self.node as u64 };
                cpu::dropout(&mut mask, &vec![1.0; x.len()], key, 0, *rate);
                let kept = |(x, mask): (&f64, f32)| {
                    if mask == 0.0 { 0.0 } else { x / (1.0 - f64::from(*rate)) }
                };
                x.iter().zip(mask).map(kept).collect()
            }
            Op::Softmax { causal } => {
                let width = *self.shape(0).last().unwrap();
                let softmax = |(number, row): (usize, &[f64])| -> Vec<f64> {
                    let counts = if *causal { number % width + 1 } else { width };
                    let log = log_softmax(&row[..counts]);
                    log.into_iter().map(f64::exp).chain(std::iter::repeat(0.0)).take(width).collect()
                };
                self.rows(0).enumerate().flat_map(softmax).collect()
            }
            Op::LogSoftmax => self.rows(0).flat_map(log_softmax).collect(),
            op => unreachable!("{op:?}"),
        }
    }

    /// Returns the value of a loss or a metric.
    fn score(&self) -> Vec<f64> {
        let graph: &'a GraphSpec = self.graph;
        match &graph.nodes[self.node].op {
            Op::SoftmaxCrossEntropy => {
                let rows = self.rows(0).map(log_softmax).enumerate();
                let dense = self.shape(0) == self.shape(1);
                let loss = |(number, log): (usize, Vec<f64>)| match dense {
                    true => {
                        -log.iter().zip(&self.input(1)[number * log.len()..]).map(|(l, y)| l * y).sum::<f64>()
                    }
                    false => -log[self.input(1)[number] as usize],
                };
                vec![rows.map(loss).sum::<f64>() / self.rows(0).len() as f64]
            }
            Op::SigmoidCrossEntropy => {
                let loss = |(&x, &y): (&f64, &f64)| -y * log_sigmoid(x) - (1.0 - y) * log_sigmoid(-x);
                vec![mean(self.input(0).iter().zip(self.input(1)).map(loss))]
            }
            Op::MeanSquaredError => {
                vec![mean(self.input(0).iter().zip(self.input(1)).map(|(a, b)| (a - b).powi(2)))]
            }
            Op::Accuracy => {
                // Of equal logits, the first one is the prediction.
                let right = |(row, &label): (&[f64], &f64)| {
                    let label = label as usize;
                    let first = row[..label].iter().all(|&x| x < row[label]);
                    f64::from(first && row.iter().all(|&x| x <= row[label]))
                };
                vec![mean(self.rows(0).zip(self.input(1)).map(right))]
            }
            Op::TopK { k } => {
                let right = |(row, &label): (&[f64], &f64)| {
                    let (label, own) = (label as usize, row[label as usize]);
                    let before = |&(class, &x): &(usize, &f64)| x > own || x == own && class < label;
                    f64::from(row.iter().enumerate().filter(before).count() < *k)
                };
                vec![mean(self.rows(0).zip(self.input(1)).map(right))]
            }
            Op::AucCounts { bins } => {
                let mut counts = vec![0.0; 2 * bins];
                for (&x, &label) in self.input(0).iter().zip(self.input(1)) {
                    let bin = (log_sigmoid(x).exp() * *bins as f64) as usize;
                    counts[label as usize * bins + bin.min(bins - 1)] += 1.0;
                }
                counts
            }
            op => unreachable!("{op:?}"),
        }
    }

    fn column(&self, name: &str) -> Vec<f64> {
        // A column has the name of its input node; the trial stores columns in the order of the graph's
        // inputs.
        let inputs = self.graph.nodes.iter().filter(|node| matches!(node.op, Op::Input { .. }));
        let position = inputs.map(|node| &node.name).position(|other| other == name).unwrap();
        match &self.given.columns[position] {
            Column::F32(numbers) => numbers.iter().map(|&x| f64::from(x)).collect(),
            Column::I32(numbers) => numbers.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    fn reduce(&mut self, reduction: ReductionOp, axes: &[usize]) -> Vec<f64> {
        let (from, x) = (self.shape(0).to_vec(), self.input(0).to_vec());
        let kept: Vec<usize> =
            from.iter().enumerate().map(|(axis, &n)| if axes.contains(&axis) { 1 } else { n }).collect();
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); kept.iter().product()];
        for (at, x) in Index::all(&from).zip(x) {
            groups[broadcast(&kept, &at)].push(x);
        }
        let reduced = |group: Vec<f64>| match reduction {
            ReductionOp::Sum => group.into_iter().sum(),
            ReductionOp::Mean => mean(group.into_iter()),
            ReductionOp::Max => self.largest(group.into_iter()),
        };
        groups.into_iter().map(reduced).collect()
    }

    fn mat_mul(&self, transpose_a: bool, transpose_b: bool) -> Vec<f64> {
        let (a, b) = (self.shape(0), self.shape(1));
        let inner = a[a.len() - 1 - usize::from(transpose_a)];
        let cell = |at: Vec<usize>| -> f64 {
            let (outer, &[row, col]) = at.split_last_chunk().unwrap();
            let factor = |shape: &[usize], position: usize, [first, second]: [usize; 2], turn: bool| {
                let last = if turn { [second, first] } else { [first, second] };
                let outer = if shape.len() == 2 { &[][..] } else { outer };
                self.input(position)[Index::flat(shape, &[outer, &last].concat())]
            };
            let product =
                |i: usize| factor(a, 0, [row, i], transpose_a) * factor(b, 1, [i, col], transpose_b);
            (0..inner).map(product).sum()
        };
        Index::all(self.output()).map(cell).collect()
    }

    fn batch_norm(&mut self, epsilon: f64, momentum: f64) -> Vec<f64> {
        let channels = *self.shape(0).last().unwrap();
        let mut statistics = [self.input(3).to_vec(), self.input(4).to_vec()];
        if self.given.pass == Pass::Training {
            let of = |channel: usize| moments(self.rows(0).map(|row| row[channel]));
            let (means, variances): (Vec<f64>, Vec<f64>) = (0..channels).map(of).unzip();
            for (position, batch) in [(3, &means), (4, &variances)] {
                let node = self.graph.nodes[self.node].inputs[position].index();
                let Op::Variable { variable } = self.graph.nodes[node].op else { unreachable!() };
                let update = self.input(position).iter().zip(batch);
                let update = update.map(|(moving, batch)| (1.0 - momentum) * (moving - batch)).collect();
                self.found.updates.push((variable, update));
            }
            statistics = [means, variances];
        }
        let [means, mut variances] = statistics;
        // The variance may be negative after updates by several workers.
        variances.iter_mut().for_each(|variance| *variance = variance.max(0.0));
        let norm = |row: &[f64]| -> Vec<f64> {
            let channel = |channel: usize| {
                let x = (row[channel] - means[channel]) / (variances[channel] + epsilon).sqrt();
                x * self.input(1)[channel] + self.input(2)[channel]
            };
            (0..channels).map(channel).collect()
        };
        self.rows(0).flat_map(norm).collect()
    }
}

fn unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Square => x * x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sigmoid => log_sigmoid(x).exp(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::LeakyRelu { slope } => x * if x < 0.0 { f64::from(slope) } else { 1.0 },
        UnaryOp::Gelu => {
            let inner = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
    }
}

fn binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
    }
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len() as f64;
    numbers.sum::<f64>() / count
}

/// Returns the mean and the biased variance of `numbers`.
fn moments(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> (f64, f64) {
    let center = mean(numbers.clone());
    (center, mean(numbers.map(|x| (x - center).powi(2))))
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = most + row.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
    row.iter().map(|x| x - sum).collect()
}

fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}
