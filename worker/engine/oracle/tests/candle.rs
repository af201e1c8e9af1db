//! Compares the results and gradients of each operation with those of another engine, candle. The
//! interpreter in the engine's own tests was written together with the engine, so both might misunderstand
//! an operation in the same way. Candle was written independently.
//!
//! Tolerance: 10⁻⁵ of the largest number of candle's tensor (but at least 10⁻⁵); both engines compute in
//! f32.

use candle_core::{Device, Result, Tensor, Var};
use candle_nn::{loss, ops};
use pushpull_messages::graph::{BinaryOp, GraphBuilder, Padding, ReductionOp, Stride, UnaryOp, Window};
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec;

use pushpull_engine::{CompileError, Executor, Feed, GradientSink, Program};
use pushpull_messages::input::Column;

use self::trial::{Bounds, Numbers, Trial};

// These modules are shared with the engine's own tests.
#[path = "../../src/tests/images.rs"]
mod images;
#[path = "../../src/tests/index.rs"]
mod index;
#[path = "../../src/tests/interpreter.rs"]
mod interpreter;
#[expect(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../src/tests/trial.rs"]
mod trial;

/// The number of examples in a batch. This is also the batch size for which a graph builder infers shapes.
const EXAMPLES: usize = 2;
const ROUNDS: u64 = 6;

/// Compares a computation on some variables with the same computation in candle. The loss is the mean of the
/// squares of the result, or the result itself if it is a single number. The loss and its gradient with
/// respect to every variable must agree.
fn compare(
    what: &str,
    shapes: &[&[usize]],
    seed: u64,
    ours: impl Fn(&mut GraphBuilder, &[NodeId]) -> NodeId,
    theirs: impl Fn(&[Tensor], &Trial) -> Result<Tensor>,
) {
    let mut g = GraphBuilder::new("compared");
    let variables: Vec<NodeId> = shapes
        .iter()
        .enumerate()
        .map(|(id, shape)| {
            let shape = pushpull_messages::tensor::Shape(shape.to_vec());
            g.variable(&format!("v{id}"), shape, InitializerSpec::Zeros)
        })
        .collect();
    let mut y = ours(&mut g, &variables);
    let rank = g.rank(y);
    if rank > 0 {
        let axes: Vec<usize> = (0..rank).collect();
        let square = g.unary(UnaryOp::Square, y);
        y = g.reduce(ReductionOp::Mean, square, &axes, false);
    }
    let graph = g.finish(y, &[]).unwrap();
    let bounds = Bounds::from([("labels".into(), 3), ("ids".into(), 3), ("shares".into(), 1)]);
    // Both engines get the same numbers, away from kinks.
    let trial = Trial::smooth(&graph, &bounds, EXAMPLES, seed).unwrap();
    let trained = trial.train();

    let vars: Vec<Var> = trial
        .variables
        .iter()
        .zip(shapes)
        .map(|(numbers, shape)| {
            let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
            Var::from_vec(numbers, *shape, &Device::Cpu).unwrap()
        })
        .collect();
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let run = || -> Result<(f32, Vec<Vec<f32>>)> {
        let mut y = theirs(&tensors, &trial)?;
        if y.rank() > 0 {
            y = y.sqr()?.mean_all()?;
        }
        let store = y.backward()?;
        let gradient = |tensor: &Tensor| store.get(tensor).expect("it is used").flatten_all()?.to_vec1();
        Ok((y.to_scalar()?, tensors.iter().map(gradient).collect::<Result<_>>()?))
    };
    let (wanted, gradients) = run().unwrap_or_else(|error| panic!("{what}: {error}"));
    close(what, &[trained.loss], &[wanted]);
    for (id, (got, wanted)) in trained.gradients.iter().zip(&gradients).enumerate() {
        close(&format!("{what}, variable {id}"), got, wanted);
    }
}

fn close(what: &str, got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let largest = wanted.iter().fold(1.0f32, |most, x| most.max(x.abs()));
    for (position, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(
            (got - wanted).abs() <= 1e-5 * largest,
            "{what}, element {position}: {got}, candle has {wanted}"
        );
    }
}

/// Draws `N` sizes from 1 to `most`.
fn extents<const N: usize>(seed: u64, most: usize) -> [usize; N] {
    let mut numbers = Numbers::new(seed);
    [(); N].map(|()| 1 + numbers.below(most))
}

/// Returns the trial's first column of integers as a candle tensor.
fn integers(trial: &Trial, shape: &[usize]) -> Result<Tensor> {
    let column = trial.batch.columns.iter().find_map(Column::i32).expect("a column of integers");
    Tensor::from_vec(column.iter().map(|&label| label as u32).collect::<Vec<u32>>(), shape, &Device::Cpu)
}

#[test]
fn products() {
    for seed in 0..ROUNDS {
        let [batch, m, k, n] = extents(seed, 6);
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            let turn = |x: &Tensor, turned: bool| if turned { x.t()?.contiguous() } else { Ok(x.clone()) };
            let theirs = |v: &[Tensor], _: &Trial| {
                turn(&v[0], transpose_a)?.broadcast_matmul(&turn(&v[1], transpose_b)?)
            };
            let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
                g.matmul_transposed(v[0], v[1], [transpose_a, transpose_b])
            };
            compare("matrices", &[&a, &b], seed, ours, theirs);
            let [outer_a, outer_b] = [[&[batch, 2][..], &a].concat(), [&[batch, 2][..], &b].concat()];
            compare("batches of matrices", &[&outer_a, &outer_b], seed, ours, theirs);
            if !transpose_a {
                compare("rows and a matrix", &[&outer_a, &b], seed, ours, theirs);
            }
        }
    }
}

#[test]
fn convolutions() {
    for seed in 0..ROUNDS {
        let [images, h, w, cin, cout] = extents(seed, 3);
        for (stride, padding, size) in [
            (1, Padding::Valid, 2),
            (1, Padding::Valid, 3),
            (2, Padding::Valid, 3),
            (1, Padding::Same, 3),
            (1, Padding::Same, 1),
        ] {
            // With a stride, candle's gradient needs windows that end at the image's edge.
            let [h, w] = [h, w].map(|extent| 2 * extent + 3);
            let shapes: [&[usize]; 2] = [&[images, h, w, cin], &[size, size, cin, cout]];
            let around = if padding == Padding::Same { size / 2 } else { 0 };
            let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
                g.conv2d(v[0], v[1], Stride { stride: [stride, stride], padding })
            };
            // Channels are the first axis in candle, and the last one here.
            compare("conv2d", &shapes, seed, ours, |v, _| {
                let images = v[0].permute((0, 3, 1, 2))?.contiguous()?;
                let kernel = v[1].permute((3, 2, 0, 1))?.contiguous()?;
                images.conv2d(&kernel, around, stride, 1, 1)?.permute((0, 2, 3, 1))?.contiguous()
            });
        }
    }
}

#[test]
fn pools() {
    for seed in 0..ROUNDS {
        let [images, h, w, channels] = extents(seed, 3);
        let size = 1 + seed as usize % 3;
        let shape: &[usize] = &[images, h * size, w * size, channels];
        let first = |x: &Tensor| x.permute((0, 3, 1, 2))?.contiguous();
        let last = |x: Tensor| x.permute((0, 2, 3, 1))?.contiguous();
        let window = Window::tiles(size);
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.max_pool2d(v[0], window);
        // Candle's pooling divides its gradient by the number of pixels in a window. The comparison uses
        // maxima over two axes instead, whose gradient is not divided.
        compare("max_pool2d", &[shape], seed, ours, |v, _| {
            let windows = v[0].reshape((images * h, size, w, size, channels))?;
            windows.max_keepdim(3)?.max_keepdim(1)?.reshape((images, h, w, channels))
        });
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.average_pool2d(v[0], window);
        compare("average_pool2d", &[shape], seed, ours, |v, _| last(first(&v[0])?.avg_pool2d(size)?));
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.global_average_pool(v[0]);
        compare("global_average_pool", &[shape], seed, ours, |v, _| v[0].mean((1, 2)));
    }
}

#[test]
fn losses() {
    for seed in 0..ROUNDS {
        let [rows] = extents(seed, 5);
        let shape: &[usize] = &[EXAMPLES, rows, 3];
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let labels = g.ids("labels", [rows]);
            g.softmax_cross_entropy(v[0], labels)
        };
        compare("softmax_cross_entropy", &[shape], seed, ours, |v, trial| {
            loss::cross_entropy(&v[0].flatten(0, 1)?, &integers(trial, &[EXAMPLES * rows])?)
        });
        let shares = |trial: &Trial| {
            let numbers = trial.batch.columns[0].f32().expect("a column of floats").to_vec();
            Tensor::from_vec(numbers, shape, &Device::Cpu)
        };
        let with_shares = |loss: fn(&mut GraphBuilder, NodeId, NodeId) -> NodeId| {
            move |g: &mut GraphBuilder, v: &[NodeId]| {
                let shares = g.input("shares", [rows, 3]);
                loss(g, v[0], shares)
            }
        };
        let ours = with_shares(GraphBuilder::softmax_cross_entropy);
        compare("softmax_cross_entropy of shares", &[shape], seed, ours, |v, trial| {
            let log = ops::log_softmax(&v[0], 2)?;
            (log * shares(trial)?)?.sum_all()?.affine(-1.0 / (EXAMPLES * rows) as f64, 0.0)
        });
        let ours = with_shares(GraphBuilder::sigmoid_cross_entropy);
        compare("sigmoid_cross_entropy", &[shape], seed, ours, |v, trial| {
            loss::binary_cross_entropy_with_logit(&v[0], &shares(trial)?)
        });
        let ours = with_shares(GraphBuilder::mean_squared_error);
        compare("mean_squared_error", &[shape], seed, ours, |v, trial| loss::mse(&v[0], &shares(trial)?));
    }
}

#[test]
fn normalisations() {
    for seed in 0..ROUNDS {
        let [rows, n] = extents(seed, 5);
        let shapes: [&[usize]; 3] = [&[2, rows + 1, n + 1], &[n + 1], &[n + 1]];
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.layer_norm(v[0], [v[1], v[2]], 1e-2);
        compare("layer_norm", &shapes, seed, ours, |v, _| ops::layer_norm_slow(&v[0], &v[1], &v[2], 1e-2));
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let moving = ["mean", "variance"].map(|name| g.untrained(name, [n + 1], InitializerSpec::Zeros));
            g.batch_norm(v[0], [v[1], v[2]], moving, 1e-2, 0.9)
        };
        let theirs = |v: &[Tensor]| {
            let x = v[0].flatten(0, 1)?;
            let x = x.broadcast_sub(&x.mean_keepdim(0)?)?;
            let deviation = x.sqr()?.mean_keepdim(0)?.affine(1.0, 1e-2)?.sqrt()?;
            x.broadcast_div(&deviation)?.broadcast_mul(&v[1])?.broadcast_add(&v[2])
        };
        compare("batch_norm", &shapes, seed, ours, |v, _| theirs(v));
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.softmax(v[0]);
        compare("softmax", &shapes[..1], seed, ours, |v, _| ops::softmax(&v[0], 2));
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.log_softmax(v[0]);
        compare("log_softmax", &shapes[..1], seed, ours, |v, _| ops::log_softmax(&v[0], 2));
    }
}

#[test]
fn functions_of_elements() {
    type Theirs = fn(&Tensor) -> Result<Tensor>;
    let all: [(UnaryOp, Theirs); 9] = [
        (UnaryOp::Neg, |x| x.neg()),
        (UnaryOp::Abs, |x| x.abs()),
        (UnaryOp::Square, |x| x.sqr()),
        (UnaryOp::Exp, |x| x.exp()),
        (UnaryOp::Sigmoid, ops::sigmoid),
        (UnaryOp::Tanh, |x| x.tanh()),
        (UnaryOp::Relu, |x| x.relu()),
        (UnaryOp::LeakyRelu { slope: 0.25 }, |x| ops::leaky_relu(x, 0.25)),
        (UnaryOp::Gelu, |x| x.gelu()),
    ];
    for seed in 0..ROUNDS {
        let shape: [usize; 2] = extents(seed, 20);
        for (op, theirs) in all {
            let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.unary(op, v[0]);
            compare(&format!("{op:?}"), &[&shape], seed, ours, |v, _| theirs(&v[0]));
        }
        let roots: [(UnaryOp, Theirs); 2] = [(UnaryOp::Sqrt, |x| x.sqrt()), (UnaryOp::Log, |x| x.log())];
        for (op, theirs) in roots {
            let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
                let (square, half) = (g.unary(UnaryOp::Square, v[0]), g.constant(0.5));
                let positive = g.add(square, half);
                g.unary(op, positive)
            };
            compare(&format!("{op:?}"), &[&shape], seed, ours, |v, _| theirs(&v[0].sqr()?.affine(1.0, 0.5)?));
        }
    }
}

#[test]
fn arithmetic_that_repeats_operands() {
    type Theirs = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let all: [(BinaryOp, Theirs); 4] = [
        (BinaryOp::Add, Tensor::broadcast_add),
        (BinaryOp::Sub, Tensor::broadcast_sub),
        (BinaryOp::Mul, Tensor::broadcast_mul),
        (BinaryOp::Div, Tensor::broadcast_div),
    ];
    for seed in 0..ROUNDS {
        let [a, b, c] = extents(seed, 4);
        let shapes: [[&[usize]; 2]; 8] = [
            [&[a, b, c], &[a, b, c]],
            [&[a, b, c], &[c]],
            [&[a, b, c], &[b, 1]],
            [&[a, b, c], &[a, 1, 1]],
            [&[a, b, c], &[]],
            [&[a, 1, c], &[1, b, 1]],
            [&[b, c], &[a, 1, c]],
            [&[1], &[a, b]],
        ];
        for (op, theirs) in all {
            for shapes in shapes {
                // The divisor stays away from 0 in both engines.
                let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
                    let under = g.unary(UnaryOp::Exp, v[1]);
                    g.binary(op, v[0], under)
                };
                compare(&format!("{op:?} of {shapes:?}"), &shapes, seed, ours, |v, _| {
                    theirs(&v[0], &v[1].exp()?)
                });
            }
        }
    }
}

#[test]
fn reductions() {
    for seed in 0..ROUNDS {
        let shape: [usize; 3] = extents(seed, 4);
        for axis in 0..3 {
            for keep in [false, true] {
                let with = |reduction| {
                    move |g: &mut GraphBuilder, v: &[NodeId]| g.reduce(reduction, v[0], &[axis], keep)
                };
                compare("sum", &[&shape], seed, with(ReductionOp::Sum), |v, _| v[0].sum_keepdim(axis));
                compare("mean", &[&shape], seed, with(ReductionOp::Mean), |v, _| v[0].mean_keepdim(axis));
                compare("max", &[&shape], seed, with(ReductionOp::Max), |v, _| v[0].max_keepdim(axis));
            }
        }
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| g.reduce(ReductionOp::Mean, v[0], &[0, 2], false);
        compare("mean of two axes", &[&shape], seed, ours, |v, _| v[0].mean((0, 2)));
    }
}

#[test]
fn operations_that_move_elements() {
    for seed in 0..ROUNDS {
        let [a, b, c] = extents(seed, 4);
        let shape: &[usize] = &[a, b, c];
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let turned = g.transpose(v[0], &[2, 0, 1]);
            let flat = g.reshape(turned, [a * b]);
            let scale = g.slice(flat, 1, 0, 1);
            g.mul(flat, scale)
        };
        compare("transpose, reshape, slice", &[shape], seed, ours, |v, _| {
            let flat = v[0].permute((2, 0, 1))?.reshape((c, a * b))?;
            flat.broadcast_mul(&flat.narrow(1, 0, 1)?)
        });
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let both = g.concat(&[v[0], v[1], v[0]], 1);
            let squares = g.unary(UnaryOp::Square, both);
            g.slice(squares, 1, 1, b + 1)
        };
        compare("concat", &[shape, &[a, 2, c]], seed, ours, |v, _| {
            Tensor::cat(&[&v[0], &v[1], &v[0]], 1)?.sqr()?.narrow(1, 1, b + 1)
        });
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let ids = g.ids("ids", [b + 2]);
            g.embedding(v[0], ids)
        };
        compare("embedding", &[&[3, c]], seed, ours, |v, trial| {
            let rows = v[0].embedding(&integers(trial, &[EXAMPLES * (b + 2)])?)?;
            rows.reshape((EXAMPLES, b + 2, c))
        });
    }
}

/// Compares an attention head with its residual connection, its layer normalisation and a GELU.
#[test]
fn attention() {
    for seed in 0..ROUNDS {
        let [time, width] = extents::<2>(seed, 4).map(|extent| extent + 1);
        let x: &[usize] = &[EXAMPLES, time, width];
        let square: &[usize] = &[width, width];
        let shapes = [x, square, square, square, &[width], &[width]];
        let ours = |g: &mut GraphBuilder, v: &[NodeId]| {
            let [query, key, value] = [1, 2, 3].map(|kernel| g.matmul(v[0], v[kernel]));
            let scores = g.matmul_transposed(query, key, [false, true]);
            let scores = g.scale(scores, 0.5);
            let shares = g.softmax(scores);
            let mixed = g.matmul(shares, value);
            let sum = g.add(v[0], mixed);
            let sum = g.layer_norm(sum, [v[4], v[5]], 1e-2);
            g.unary(UnaryOp::Gelu, sum)
        };
        compare("attention", &shapes, seed, ours, |v, _| {
            let project = |kernel: usize| v[0].broadcast_matmul(&v[kernel]);
            let scores = project(1)?.matmul(&project(2)?.transpose(1, 2)?.contiguous()?)?;
            let shares = ops::softmax(&scores.affine(0.5, 0.0)?, 2)?;
            let sum = (&v[0] + shares.matmul(&project(3)?)?)?;
            ops::layer_norm_slow(&sum, &v[4], &v[5], 1e-2)?.gelu()
        });
    }
}
