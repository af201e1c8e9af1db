//! Trains on a data set of one's own: two spirals that a function makes, one for each class.
//!
//! `cargo run --release --example own_data` trains in this process. Test accuracy after 20 epochs: 99 %.
//! In a cluster, `own_data job > job.json` prints the job for the chief. With `TF_CONFIG` or flags of
//! `pushpull-worker`, the program is a worker that has the data set.

use std::process::ExitCode;
use std::sync::Arc;

use pushpull::data::{Column, Dataset, Datasets, from_fn};
use pushpull::prelude::*;
use pushpull::{ColumnSpec, ShuffleSpec, TensorSpec};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let ended = match std::env::args().nth(1).as_deref() {
        Some("job") => print_job(),
        Some(_) => return worker(),
        None if std::env::var_os("TF_CONFIG").is_some() => return worker(),
        None => train(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn print_job() -> Result<(), Error> {
    println!("{}", job()?.spec(2)?.to_json());
    Ok(())
}

fn train() -> Result<(), Error> {
    let trained = job()?.train(Cluster::embedded(1, 2))?;
    trained.report.print();
    Ok(())
}

/// Runs a worker that knows the data set by its name.
fn worker() -> ExitCode {
    let mut datasets = Datasets::default();
    datasets.insert("spirals", Arc::new(spirals(0)));
    datasets.insert("more spirals", Arc::new(spirals(1)));
    pushpull::worker_main_with(datasets)
}

fn job() -> Result<Job, Error> {
    let mut g = GraphBuilder::new("spirals");
    let x = g.input("point", [2]);
    let labels = g.labels("spiral");
    let x = dense("dense1", 64).relu().apply(&mut g, x);
    let x = dense("dense2", 64).relu().apply(&mut g, x);
    let logits = dense("logits", 2).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.output("logits", logits);
    let graph = g.finish(loss, &[("accuracy", accuracy)])?;
    let custom = |name: &str| DatasetSpec::Custom(name.to_owned());
    let input = InputSpec::new(custom("spirals"), custom("more spirals"));
    let job = Job::new(graph, input).dataset("spirals", spirals(0)).dataset("more spirals", spirals(1));
    // The points are made again in each epoch. Only the shuffle buffer is in memory.
    let job = job.shuffle(ShuffleSpec::Buffer(1000));
    Ok(job.optimizer(OptimizerSpec::adam(0.005)).epochs(20))
}

/// Returns a data set of points on two spirals. Point `i` is the same each time it is read, as the trait
/// [`Dataset`] requires.
fn spirals(part: u64) -> impl Dataset + 'static {
    let columns =
        vec![ColumnSpec::new("point", TensorSpec::f32([2])), ColumnSpec::new("spiral", TensorSpec::i32([]))];
    from_fn(columns, Some(4000), move |index| {
        // The fractional parts of multiples of the golden ratio are spread evenly.
        let along = ((2 * index + part) as f32 * 0.618_034).fract();
        let spiral = (index % 2) as i32;
        let (radius, angle) = (along, along * 6.0 + spiral as f32 * std::f32::consts::PI);
        vec![Column::F32(vec![radius * angle.cos(), radius * angle.sin()]), Column::I32(vec![spiral])]
    })
}
