//! Tests which attention a device computes with one kernel, and that it computes what the processor computes.

use std::collections::BTreeMap;

use pushpull_cuda::{Multiplier, Precision};
use pushpull_kernels::cpu::Threads;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::NodeId;
use pushpull_messages::variable::InitializerSpec::Zeros;

use super::cuda::{BF16_TOLERANCE, EXAMPLES, TOLERANCE, agree, device, library};
use super::trial::{Bounds, Trial};
use crate::{Fetch, Groups, Program, Target};

const ATTENDS: Target = Target::Cuda { multiplier: Multiplier::Own, attention: true };
const SEPARATE: Target = Target::Cuda { multiplier: Multiplier::Own, attention: false };

/// A graph with attention.
#[derive(Clone, Copy)]
struct Model {
    length: usize,
    heads: usize,
    size: usize,
    causal: bool,
    /// The share of the weights that is dropped out; `None` if there is no dropout.
    dropout: Option<f32>,
    /// Whether queries and keys have variables, so that their gradients are needed.
    trained: bool,
}

const MODEL: Model = Model { length: 9, heads: 2, size: 5, causal: true, dropout: None, trained: true };

/// The nodes of a model's attention.
struct Nodes {
    scores: NodeId,
    weights: NodeId,
    mean: NodeId,
}

impl Model {
    /// Returns a trial, and the nodes of its attention. The layer is that of the facade.
    fn trial(self) -> (Trial, Nodes) {
        let Self { length, heads, size, causal, dropout, trained } = self;
        let width = heads * size;
        let mut g = GraphBuilder::new("attention");
        let x = g.input("x", [length, width]);
        let labels = g.labels("labels");
        let [query, key, value] =
            [("query", trained), ("key", trained), ("value", true)].map(|(name, has)| {
                let x = if has {
                    let kernel = g.variable(name, [width, width], Zeros);
                    g.matmul(x, kernel)
                } else {
                    x
                };
                let x = g.reshape(x, [length, heads, size]);
                g.transpose(x, &[0, 2, 1, 3])
            });
        let query = g.scale(query, 1.0 / (size as f32).sqrt());
        let scores = g.matmul_transposed(query, key, [false, true]);
        let weights = if causal { g.causal_softmax(scores) } else { g.softmax(scores) };
        let kept = dropout.map_or(weights, |rate| g.dropout(weights, rate));
        let mean = g.matmul(kept, value);
        let back = g.transpose(mean, &[0, 2, 1, 3]);
        let back = g.reshape(back, [length * width]);
        let last = g.variable("last", [length * width, 2], Zeros);
        let logits = g.matmul(back, last);
        let loss = g.softmax_cross_entropy(logits, labels);
        let graph = g.finish(loss, &[]).unwrap();
        (Trial::new(&graph, &Bounds::new(), EXAMPLES, 0.7, 3), Nodes { scores, weights, mean })
    }

    fn training(self, target: Target, fetches: impl Fn(&Nodes) -> Vec<Fetch>) -> Program {
        let (Trial { graph, columns, .. }, nodes) = self.trial();
        Program::training_with(&graph, EXAMPLES, &columns, target, &fetches(&nodes)).unwrap()
    }
}

fn none(_: &Nodes) -> Vec<Fetch> {
    Vec::new()
}

/// Returns how often a step that asks for these groups runs the kernels of attention: whole attention and its
/// gradient, then softmax and its gradient.
fn kernels(program: &Program, groups: Groups) -> [usize; 4] {
    let mut counts = BTreeMap::new();
    for own in program.instructions.iter().filter(|own| own.groups.meets(groups.with(Groups::ALWAYS))) {
        *counts.entry(own.kernel.name()).or_insert(0) += 1;
    }
    ["Attention", "AttentionGrad", "Softmax", "SoftmaxGrad"]
        .map(|kernel| counts.get(kernel).copied().unwrap_or(0))
}

#[test]
fn attention_and_its_gradient_are_found() {
    for causal in [false, true] {
        let program = Model { causal, ..MODEL }.training(ATTENDS, none);
        assert_eq!(kernels(&program, Groups::NONE), [1, 1, 0, 0]);
        let separate = Model { causal, ..MODEL }.training(SEPARATE, none);
        assert_eq!(kernels(&separate, Groups::NONE), [0, 0, 1, 1]);
        assert_eq!(program.flops(), separate.flops());
        assert!(program.gradient_order().eq(separate.gradient_order()), "the order of the gradients");
    }
}

#[test]
fn an_evaluation_has_attention_without_a_gradient() {
    let Trial { graph, columns, .. } = MODEL.trial().0;
    let program = |target: Target| Program::evaluation(&graph, EXAMPLES, &columns, target).unwrap();
    assert_eq!(kernels(&program(ATTENDS), Groups::NONE), [1, 0, 0, 0]);
    assert_eq!(kernels(&program(Target::Cpu(Threads::One)), Groups::NONE), [0, 0, 1, 0]);
    assert_eq!(program(ATTENDS).flops(), program(SEPARATE).flops());
}

#[test]
fn weights_that_are_dropped_out_stay() {
    let program = Model { dropout: Some(0.5), ..MODEL }.training(ATTENDS, none);
    assert_eq!(kernels(&program, Groups::NONE), [0, 0, 1, 1]);
}

#[test]
fn attention_of_which_not_all_gradients_are_needed_stays() {
    let program = Model { trained: false, ..MODEL }.training(ATTENDS, none);
    assert_eq!(kernels(&program, Groups::NONE), [0, 0, 1, 0]);
}

#[test]
fn queries_of_other_sizes_stay() {
    for (size, expected) in [(128, [1, 1, 0, 0]), (129, [0, 0, 1, 1])] {
        let program = Model { size, heads: 1, ..MODEL }.training(ATTENDS, none);
        assert_eq!(kernels(&program, Groups::NONE), expected, "{size}");
    }
}

#[test]
fn weights_that_every_run_reads_stay() {
    let fetch = |node: NodeId| Fetch { node, groups: Groups::ALWAYS };
    for fetched in [|nodes: &Nodes| nodes.scores, |nodes: &Nodes| nodes.weights] {
        let program = MODEL.training(ATTENDS, |nodes| vec![fetch(fetched(nodes))]);
        assert_eq!(kernels(&program, Groups::NONE), [0, 0, 1, 1]);
    }
    let program = MODEL.training(ATTENDS, |nodes| vec![fetch(nodes.mean)]);
    assert_eq!(kernels(&program, Groups::NONE), [1, 1, 0, 0]);
}

#[test]
fn a_fetch_of_the_weights_does_not_change_the_step() {
    let own = Groups::only(2);
    let program = MODEL.training(ATTENDS, |nodes| vec![Fetch { node: nodes.weights, groups: own }]);
    assert_eq!(kernels(&program, Groups::NONE), [1, 1, 0, 0]);
    assert_eq!(kernels(&program, own), [1, 1, 1, 0]);
}

#[test]
fn long_texts_need_less_memory() {
    let model = Model { length: 512, heads: 2, size: 8, ..MODEL };
    let bytes = |target: Target| model.training(target, none).arena_bytes();
    // One matrix of all weights.
    let weights = 4 * EXAMPLES * 2 * 512 * 512;
    assert!(bytes(ATTENDS) < weights, "{}", bytes(ATTENDS));
    assert!(bytes(SEPARATE) > 2 * weights, "{}", bytes(SEPARATE));
}

#[test]
fn attention_on_a_device_is_that_of_the_processor() {
    let models = [
        MODEL,
        Model { length: 40, heads: 1, size: 16, causal: false, ..MODEL },
        Model { length: 1, ..MODEL },
    ];
    let trials: Vec<(u64, Trial)> = (0..).zip(models.map(|model| model.trial().0)).collect();
    let Some(mut device) = device(1.0) else { return };
    agree(&mut device, &trials, TOLERANCE);
}

#[test]
fn tensor_cores_have_attention_of_small_queries() {
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        let target = Target::Cuda { multiplier: Multiplier::Library(precision), attention: true };
        for (size, is_small) in [(64, true), (65, false)] {
            let program = Model { size, heads: 1, ..MODEL }.training(target, none);
            let expected = if is_small || precision == Precision::F32 { [1, 1, 0, 0] } else { [0, 0, 1, 1] };
            assert_eq!(kernels(&program, Groups::NONE), expected, "{size} in {precision}");
        }
    }
}

#[test]
fn attention_of_tensor_cores_is_near_that_of_the_processor() {
    let Some(mut device) = library(Precision::Tf32) else { return };
    agree(&mut device, &[(0, MODEL.trial().0)], BF16_TOLERANCE);
}
