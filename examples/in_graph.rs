//! In-graph replication: one client builds one graph with the variables on ps tasks and a copy of the model
//! on each worker task. Each copy has a training operation, which a thread of the client runs; with
//! `--average`, the gradients of all copies are averaged and applied once.
//!
//! `cargo run --release --example in_graph -- [--average] [--data-dir MNIST]` starts a cluster of two ps
//! tasks and two workers in this process; `--target pushpull://HOST:PORT` uses a cluster of pushpull-servers.

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use pushpull::{
    DatasetSpec, Examples, GraphBuilder, GraphError, GraphSpec, InitializerSpec, NodeId, OptimizerSpec,
    Server, ServerOptions, Session, SessionError, Tensor,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "in_graph", about = "Train copies of a classifier within one graph")]
struct Args {
    /// Server of a cluster that has the jobs ps and worker (default: a cluster in this process)
    #[arg(long, value_name = "pushpull://HOST:PORT")]
    target: Option<String>,
    /// Average the gradients of all copies, and apply them once for each step
    #[arg(long)]
    average: bool,
    /// Number of training steps of each copy
    #[arg(long, value_name = "N", default_value_t = 500)]
    steps: usize,
    /// Directory of MNIST (default: generated digits)
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// The number of examples in each batch of a copy.
const BATCH: usize = 32;
/// The number of test examples that are evaluated in one run.
const TEST_BATCH: usize = 500;
/// The shapes of the variables of the model, 784-128-10.
const SHAPES: [(&str, &[usize]); 4] =
    [("kernel1", &[784, 128]), ("bias1", &[128]), ("kernel2", &[128, 10]), ("bias2", &[10])];

/// A variable, and the device of the ps task that holds it.
struct Weight {
    node: NodeId,
    device: String,
}

/// A copy of the model on one worker.
struct Copy {
    features: NodeId,
    labels: NodeId,
    loss: NodeId,
    accuracy: NodeId,
}

struct Model {
    graph: GraphSpec,
    copies: Vec<Copy>,
    /// One for each copy, or a single one that averages.
    train_ops: Vec<NodeId>,
    initialize: NodeId,
}

impl Model {
    fn new(ps: usize, workers: usize, average: bool) -> Result<Self, GraphError> {
        let mut g = GraphBuilder::new("in_graph");
        let weights: Vec<Weight> = (0..SHAPES.len()).map(|index| weight(&mut g, index, ps)).collect();
        let initialize = g.initialize();
        let worker = |worker| g.device(&format!("/job:worker/task:{worker}"), |g| copy(g, worker, &weights));
        let copies: Vec<Copy> = (0..workers).map(worker).collect();
        let optimizer = OptimizerSpec::sgd(0.1);
        let train_ops = match average {
            true => vec![average_and_apply(&mut g, &weights, &copies, &optimizer)],
            false => copies.iter().map(|copy| g.minimize(&optimizer, copy.loss)).collect(),
        };
        Ok(Self { graph: g.finish_session()?, copies, train_ops, initialize })
    }
}

/// Adds a variable to a ps task. The variables are spread over the tasks.
fn weight(g: &mut GraphBuilder, index: usize, ps: usize) -> Weight {
    let (name, shape) = SHAPES[index];
    let initializer = match shape.len() {
        1 => InitializerSpec::Zeros,
        _ => InitializerSpec::GlorotUniform,
    };
    let device = format!("/job:ps/task:{}", index % ps);
    let node = g.device(&device, |g| g.variable(name, shape.to_vec(), initializer));
    Weight { node, device }
}

/// Adds a copy of the model, with its own inputs.
fn copy(g: &mut GraphBuilder, worker: usize, weights: &[Weight]) -> Copy {
    let features = g.input(&format!("features{worker}"), [784]);
    let labels = g.labels(&format!("labels{worker}"));
    let x = g.matmul(features, weights[0].node);
    let x = g.bias_add(x, weights[1].node);
    let x = g.relu(x);
    let x = g.matmul(x, weights[2].node);
    let logits = g.bias_add(x, weights[3].node);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    Copy { features, labels, loss, accuracy }
}

/// Adds an operation that applies the mean of the gradients of all copies to each variable.
fn average_and_apply(
    g: &mut GraphBuilder,
    weights: &[Weight],
    copies: &[Copy],
    optimizer: &OptimizerSpec,
) -> NodeId {
    let mut applied = Vec::new();
    for weight in weights {
        let gradients: Vec<NodeId> = copies.iter().map(|copy| g.gradient(copy.loss, weight.node)).collect();
        let mean = g.device(&weight.device, |g| {
            let sum = g.add_n(&gradients);
            g.scale(sum, 1.0 / copies.len() as f32)
        });
        applied.push(g.apply(optimizer, weight.node, mean));
    }
    g.group(&applied)
}

/// Returns the feeds of a copy: the batch of this number.
fn feeds(copy: &Copy, examples: &Examples, batch: usize, size: usize) -> [(NodeId, Tensor); 2] {
    let first = batch * size % (examples.len() - size + 1);
    let rows = first..first + size;
    let features = examples.tensor("features", rows.clone()).expect("a column of images");
    let flat = Tensor::new([size, 784], features.into_elements()).expect("images of 28×28 pixels");
    [(copy.features, flat), (copy.labels, examples.tensor("labels", rows).expect("a column of labels"))]
}

/// Runs the training operations: each in a thread of its own, as often as `steps` says.
fn train(session: &Session, model: &Model, examples: &Examples, steps: usize) -> Result<(), SessionError> {
    let copies = model.copies.len();
    let run = |thread: usize, op: NodeId| {
        for step in 0..steps {
            let own: Vec<usize> =
                if model.train_ops.len() == 1 { (0..copies).collect() } else { vec![thread] };
            let batch = |&index: &usize| feeds(&model.copies[index], examples, step * copies + index, BATCH);
            let fed: Vec<(NodeId, Tensor)> = own.iter().flat_map(batch).collect();
            session.run_targets(&model.graph, &fed, &[op])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let spawn = |(thread, &op)| scope.spawn(move || run(thread, op));
        let threads: Vec<_> = model.train_ops.iter().enumerate().map(spawn).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a copy does not panic"))
    })
}

/// Returns the mean loss and the accuracy on the test set. The first worker evaluates.
fn evaluate(session: &Session, model: &Model, test: &Examples) -> Result<[f32; 2], SessionError> {
    let (copy, batches) = (&model.copies[0], test.len() / TEST_BATCH);
    let mut sums = [0.0; 2];
    for batch in 0..batches {
        let fed = feeds(copy, test, batch, TEST_BATCH);
        let values = session.run(&model.graph, &fed, &[copy.loss, copy.accuracy])?;
        for (sum, value) in sums.iter_mut().zip(&values) {
            *sum += value.f32s().expect("a float")[0] / batches as f32;
        }
    }
    Ok(sums)
}

/// Returns the training set and the test set.
fn data(mnist: Option<PathBuf>) -> Result<[Examples; 2], pushpull::Error> {
    let [train, test] = match mnist {
        Some(directory) => ["train", "t10k"].map(|part| DatasetSpec::Idx {
            images: directory.join(format!("{part}-images-idx3-ubyte.gz")),
            labels: directory.join(format!("{part}-labels-idx1-ubyte.gz")),
        }),
        None => [(0, 10_000), (1, 2000)].map(|(seed, examples)| DatasetSpec::Digits { seed, examples }),
    };
    Ok([Examples::read(&train)?, Examples::read(&test)?])
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let own = match args.target {
        None => Server::local_cluster(&[("ps", 2), ("worker", 2)], &ServerOptions::default())?,
        Some(_) => Vec::new(),
    };
    let target = args.target.unwrap_or_else(|| own[2].target());
    let session = Session::connect(&target)?;
    let described = session.describe()?;
    let tasks = |job: &str| described.tasks.iter().filter(|task| task.task.job.to_string() == job).count();
    let (ps, workers) = (tasks("ps"), tasks("worker"));
    if ps == 0 || workers == 0 {
        return Err(
            format!("{target} has {ps} ps tasks and {workers} workers, expected at least one each").into()
        );
    }
    let model = Model::new(ps, workers, args.average)?;
    let [examples, test] = data(args.data_dir)?;

    session.run_targets(&model.graph, &[], &[model.initialize])?;
    let [before, _] = evaluate(&session, &model, &test)?;
    train(&session, &model, &examples, args.steps)?;
    let [after, accuracy] = evaluate(&session, &model, &test)?;
    println!("copies         {workers}, variables on {ps} ps tasks");
    println!("loss before    {before:.4}");
    println!("loss after     {after:.4}");
    println!("test accuracy  {:.1} %", 100.0 * accuracy);
    Ok(())
}
