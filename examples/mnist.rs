//! Handwritten digits, 28×28, 10 classes: MNIST from `--data-dir`, or digits that are drawn on the spot.
//!
//! `cargo run --release --example mnist` trains in this process; with a cluster it plays the task it is told to be.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pushpull::nn::{Activation, conv2d, dense, flatten};
use pushpull::{DatasetSpec, GraphBuilder, GraphError, GraphSpec, InputSpec, Stride, TrainArgs, Window};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "mnist", about = "Train a classifier of handwritten digits")]
struct Args {
    /// What to train
    #[arg(long, value_enum, default_value = "mlp")]
    model: Model,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// 784-512-512-10, fully connected
    Mlp,
    /// 32C3-P2-64C3-P2-128-10: two convolutions with pooling, two fully connected layers
    Cnn,
}

fn mlp() -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [784]);
    let x = dense(&mut g, "dense1", x, 512, Activation::Relu);
    let x = dense(&mut g, "dense2", x, 512, Activation::Relu);
    let logits = dense(&mut g, "logits", x, 10, Activation::Linear);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)])
}

fn cnn() -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("cnn");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [28, 28, 1]);
    let x = conv2d(&mut g, "conv1", x, 32, 3, Stride::ONE, Activation::Relu);
    let x = g.max_pool2d(x, Window::tiles(2));
    let x = conv2d(&mut g, "conv2", x, 64, 3, Stride::ONE, Activation::Relu);
    let x = g.max_pool2d(x, Window::tiles(2));
    let x = flatten(&mut g, x);
    let x = dense(&mut g, "dense1", x, 128, Activation::Relu);
    let logits = dense(&mut g, "logits", x, 10, Activation::Linear);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)])
}

fn input(args: &TrainArgs) -> InputSpec {
    let idx = |images: &str, labels: &str| DatasetSpec::Idx { images: images.into(), labels: labels.into() };
    match args.data_dir {
        Some(_) => InputSpec {
            train: idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
            test: idx("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
        },
        None => InputSpec {
            train: DatasetSpec::Digits { seed: args.seed.wrapping_mul(2), examples: 20_000 },
            test: DatasetSpec::Digits { seed: args.seed.wrapping_mul(2) + 1, examples: 5_000 },
        },
    }
}

fn main() -> ExitCode {
    pushpull::main(|args: Args| {
        let graph = match args.model {
            Model::Mlp => mlp()?,
            Model::Cnn => cnn()?,
        };
        args.train.run(graph, input(&args.train))
    })
}
