//! The models whose steps are measured. `benches/peers/torch_step.py` has the same ones. This module must not
//! depend on devices.

use clap::ValueEnum;
use pushpull::nn::{
    Layer, Sequential, conv2d, dense, embedding, flatten, layer_norm, max_pool, multi_head_attention,
    residual, sequential,
};
use pushpull::{GraphBuilder, GraphSpec, InitializerSpec, NodeId};

/// A model to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// 32C3-P2-64C3-P2-128-10 for images of 28×28 pixels, batch 256
    Cnn,
    /// 4096-4096-4096-1000, batch 1024
    Mlp,
    /// 6 blocks of width 512 with 8 heads, batch 32 of 256 tokens
    Transformer,
}

/// A model with the size of its batch.
pub(crate) struct Model {
    pub name: &'static str,
    pub graph: GraphSpec,
    /// The number of examples.
    pub batch: usize,
    /// All integers of the batch are below this number.
    pub integers_below: usize,
}

/// The sizes of the transformer.
struct Sizes {
    length: usize,
    width: usize,
    heads: usize,
    blocks: usize,
}

/// The number of characters.
const CHARACTERS: usize = 256;

impl Kind {
    /// Returns the model. If it is tiny, it has the same structure.
    pub(crate) fn model(self, tiny: bool) -> anyhow::Result<Model> {
        Ok(match self {
            Self::Cnn => {
                let (channels, batch) = if tiny { ([2, 3, 8], 2) } else { ([32, 64, 128], 256) };
                Model { name: "cnn", graph: cnn(channels)?, batch, integers_below: 10 }
            }
            Self::Mlp => {
                let (width, classes, batch) = if tiny { (24, 10, 4) } else { (4096, 1000, 1024) };
                Model { name: "mlp", graph: mlp(width, classes)?, batch, integers_below: classes }
            }
            Self::Transformer => {
                let sizes = match tiny {
                    true => Sizes { length: 8, width: 16, heads: 2, blocks: 1 },
                    false => Sizes { length: 256, width: 512, heads: 8, blocks: 6 },
                };
                let batch = if tiny { 2 } else { 32 };
                Model { name: "transformer", graph: transformer(&sizes)?, batch, integers_below: CHARACTERS }
            }
        })
    }
}

fn cnn([first, second, hidden]: [usize; 3]) -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("cnn");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [28, 28, 1]);
    let x = conv2d("conv1", first, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = conv2d("conv2", second, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = flatten().apply(&mut g, x);
    let x = dense("dense1", hidden).relu().apply(&mut g, x);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    Ok(g.finish(loss, &[])?)
}

fn mlp(width: usize, classes: usize) -> anyhow::Result<GraphSpec> {
    let mut g = GraphBuilder::new("mlp");
    let mut x = g.input("features", [width]);
    let labels = g.labels("labels");
    for layer in ["dense1", "dense2"] {
        x = dense(layer, width).relu().apply(&mut g, x);
    }
    let logits = dense("logits", classes).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    Ok(g.finish(loss, &[])?)
}

/// Returns the model of the example `char_lm` with these sizes.
fn transformer(&Sizes { length, width, heads, blocks }: &Sizes) -> anyhow::Result<GraphSpec> {
    let positions = move |g: &mut GraphBuilder, x: NodeId| {
        let initializer = InitializerSpec::Normal { mean: 0.0, stddev: 0.02 };
        let positions = g.variable("positions", [length, width], initializer);
        g.add(x, positions)
    };
    let block = |name: String| -> Sequential {
        let heads = multi_head_attention("heads", heads).causal();
        let attention = residual("attention").add(layer_norm("norm")).add(heads);
        let up = dense("up", 4 * width).gelu();
        let mlp = residual("mlp").add(layer_norm("norm")).add(up).add(dense("down", width));
        sequential(name).add(attention).add(mlp)
    };
    let mut g = GraphBuilder::new("transformer");
    let characters = g.ids("features", [length]);
    let next = g.ids("labels", [length]);
    let mut network = sequential("lm").add(embedding("characters", CHARACTERS, width)).add(positions);
    for number in 1..=blocks {
        network = network.add(block(format!("block{number}")));
    }
    let network = network.add(layer_norm("norm")).add(dense("logits", CHARACTERS));
    let logits = network.apply(&mut g, characters);
    let loss = g.softmax_cross_entropy(logits, next);
    Ok(g.finish(loss, &[])?)
}
