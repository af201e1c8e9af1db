//! Model parallelism: a model whose variables do not fit in the memory of one task is cut over two workers.
//! The first layer and its variables are on task 0, the second and third layer on task 1. Activations go to
//! task 1 and gradients back by themselves.
//!
//! `cargo run --release --example model_parallel` starts two workers with 1 MiB for variables each in this
//! process; `--target pushpull://HOST:PORT` uses pushpull-servers with `--memory-limit 1`.

use std::error::Error;

use clap::Parser;
use pushpull::nn::{Layer, dense, flatten};
use pushpull::{
    ContainerLimits, DatasetSpec, Examples, GraphBuilder, GraphError, GraphSpec, NodeId, OptimizerSpec,
    Server, ServerOptions, Session, SessionOptions, Tensor,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "model_parallel", about = "Train a model that is cut over two workers")]
struct Args {
    /// Server of a cluster that has two workers (default: a cluster in this process)
    #[arg(long, value_name = "pushpull://HOST:PORT")]
    target: Option<String>,
    /// Number of training steps
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: usize,
}

/// The number of examples in a batch.
const BATCH: usize = 64;
/// The container of the model that is on one task alone.
const ALONE: &str = "alone";

struct Model {
    graph: GraphSpec,
    features: NodeId,
    labels: NodeId,
    loss: NodeId,
    train: NodeId,
}

impl Model {
    /// Builds the model 784-256-512-10. Its variables take 0.8 MiB before the cut and 0.5 MiB after it.
    fn new(first: &str, second: &str) -> Result<Self, GraphError> {
        let mut g = GraphBuilder::new("model_parallel");
        let features = g.input("features", [28, 28]);
        let labels = g.labels("labels");
        let x = g.device(first, |g| {
            let x = flatten().apply(g, features);
            dense("layer1", 256).relu().apply(g, x)
        });
        let loss = g.device(second, |g| {
            let x = dense("layer2", 512).relu().apply(g, x);
            let logits = dense("layer3", 10).apply(g, x);
            g.softmax_cross_entropy(logits, labels)
        });
        let train = g.minimize(&OptimizerSpec::sgd(0.1), loss);
        Ok(Self { graph: g.finish_session()?, features, labels, loss, train })
    }

    /// Returns the feeds of a step.
    fn feeds(&self, examples: &Examples, step: usize) -> [(NodeId, Tensor); 2] {
        let first = step * BATCH % (examples.len() - BATCH + 1);
        let column = |name| examples.tensor(name, first..first + BATCH).expect("a column of the digits");
        [(self.features, column("features")), (self.labels, column("labels"))]
    }

    /// Makes a training step, and returns the loss before it.
    fn step(
        &self,
        session: &Session,
        examples: &Examples,
        step: usize,
    ) -> Result<f32, pushpull::SessionError> {
        let fed = self.feeds(examples, step);
        let values = session.run_with(&self.graph, &fed, &[self.loss], &[self.train])?;
        Ok(values[0].f32s().expect("a float")[0])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let limits = ContainerLimits { bytes_max: 1 << 20, client_bytes_max: 1 << 20 };
    let own = match args.target {
        None => {
            Server::local_cluster(&[("worker", 2)], &ServerOptions { limits, ..ServerOptions::default() })?
        }
        Some(_) => Vec::new(),
    };
    let target = args.target.unwrap_or_else(|| own[0].target());
    let examples = Examples::read(&DatasetSpec::Digits { seed: 0, examples: 5000 })?;
    let [first, second] = ["/job:worker/task:0", "/job:worker/task:1"];

    let options = SessionOptions { container: ALONE.to_owned(), ..SessionOptions::default() };
    let alone = Session::connect_with(&target, options)?;
    match Model::new(first, first)?.step(&alone, &examples, 0) {
        Ok(_) => println!("one task       fits; start the servers with --memory-limit 1"),
        Err(refused) => println!("one task       {refused}"),
    }
    alone.reset(&[ALONE])?;

    let session = Session::connect(&target)?;
    let model = Model::new(first, second)?;
    let before = model.step(&session, &examples, 0)?;
    let mut after = before;
    for step in 1..args.steps.max(1) {
        after = model.step(&session, &examples, step)?;
    }
    println!("loss           {before:.4} before, {after:.4} after");
    for task in session.describe()?.tasks {
        let containers = task.containers.iter();
        let names: Vec<&str> =
            containers.flat_map(|all| &all.variables).map(|variable| variable.name.as_str()).collect();
        let (kib, max) = (task.bytes >> 10, task.bytes_max >> 10);
        println!("{:<14} {kib} of {max} KiB: {}", task.task.to_string(), names.join(", "));
    }
    Ok(())
}
