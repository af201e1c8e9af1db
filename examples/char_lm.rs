//! A small transformer with 470 000 parameters that predicts the next character of a text. A character is a
//! byte. The text is `input.txt` in `--data-dir`, or sentences that are generated.
//!
//! `cargo run --release --example char_lm -- [--data-dir DIR]` trains in this process. In a cluster it runs
//! the task that the command line or the environment names. Test loss on a million characters of
//! Shakespeare, with the last tenth held out for testing: 1.81 nats per character.

use std::process::ExitCode;

use clap::Parser;
use pushpull::nn::{
    Layer, Sequential, dense, embedding, layer_norm, multi_head_attention, residual, sequential,
};
use pushpull::{
    BabbleSpec, DatasetSpec, Defaults, GraphBuilder, GraphError, GraphSpec, InitializerSpec, InputSpec,
    NodeId, TextSpec, TrainArgs, WindowsSpec,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of characters from which the model predicts the next one.
const LENGTH: u32 = 64;
const WIDTH: usize = 128;
const HEADS: usize = 4;
const BLOCKS: usize = 2;

#[derive(Parser)]
#[command(name = "char_lm", about = "Train a language model of characters")]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

/// Returns a transformer block: attention, followed by a network that is applied to each position
/// separately. Each of the two is preceded by normalisation (Xiong et al. 2020).
fn block(name: String) -> Sequential {
    let attention =
        residual("attention").add(layer_norm("norm")).add(multi_head_attention("heads", HEADS).causal());
    let mlp =
        residual("mlp").add(layer_norm("norm")).add(dense("up", 4 * WIDTH).gelu()).add(dense("down", WIDTH));
    sequential(name).add(attention).add(mlp)
}

/// Adds a trained vector to each position of `x`.
fn positions(g: &mut GraphBuilder, x: NodeId) -> NodeId {
    let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 0.02 };
    let positions = g.variable("positions", [LENGTH as usize, WIDTH], initializer);
    g.add(x, positions)
}

fn model() -> Result<GraphSpec, GraphError> {
    let mut g = GraphBuilder::new("char_lm");
    let characters = g.ids("features", [LENGTH as usize]);
    let next = g.ids("labels", [LENGTH as usize]);
    let mut network = sequential("lm").add(embedding("characters", 256, WIDTH)).add(positions);
    for number in 1..=BLOCKS {
        network = network.add(block(format!("block{number}")));
    }
    let network = network.add(layer_norm("norm")).add(dense("logits", 256));
    let logits = network.apply(&mut g, characters);
    let loss = g.softmax_cross_entropy(logits, next);
    let accuracy = g.accuracy(logits, next);
    g.output("logits", logits);
    g.finish(loss, &[("accuracy", accuracy)])
}

fn input(args: &TrainArgs) -> InputSpec {
    let text = |windows| DatasetSpec::Text(TextSpec { file: "input.txt".into(), windows });
    let babble = |seed, bytes, windows| DatasetSpec::Babble(BabbleSpec { seed, bytes, windows });
    let seed = args.seed.wrapping_mul(2);
    match args.data_dir {
        Some(_) => InputSpec::new(
            text(WindowsSpec::every(LENGTH, 0.0, 0.9)),
            text(WindowsSpec::apart(LENGTH, 0.9, 1.0)),
        ),
        None => InputSpec::new(
            babble(seed, 1 << 20, WindowsSpec::every(LENGTH, 0.0, 1.0)),
            babble(seed + 1, 1 << 16, WindowsSpec::apart(LENGTH, 0.0, 1.0)),
        ),
    }
}

fn main() -> ExitCode {
    pushpull::main_with(Defaults::steps(2000).batch_size(32).adam(0.001), |args: Args| {
        args.train.run(model()?, input(&args.train))
    })
}
