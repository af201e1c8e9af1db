//! An in-graph step of an MLP, whose layers are on one task or on two.

use std::time::Instant;

use pushpull::{
    ClusterSpec, GraphBuilder, InitializerSpec, OptimizerSpec, Server, ServerOptions, Session, Tensor,
};
use pushpull_messages::id::JobName;

const STEPS: usize = 60;
const WARM: usize = 10;
const BATCH: usize = 64;
const WIDTH: usize = 256;

/// Returns the steps per second of an MLP whose layers are spread over this number of tasks.
pub(crate) fn steps_per_second(tasks: usize) -> anyhow::Result<f64> {
    let listen = |_| std::net::TcpListener::bind("127.0.0.1:0");
    let listeners = (0..tasks).map(listen).collect::<Result<Vec<_>, _>>()?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses = addresses.collect::<Result<Vec<_>, std::io::Error>>()?;
    let target = format!("pushpull://{}", addresses[0]);
    let cluster = ClusterSpec::new([(JobName::Worker, addresses)])?;
    let members: Vec<_> = cluster.tasks().map(|(task, _)| task).collect();
    let start = |(listener, &task)| Server::start(cluster.clone(), task, listener, ServerOptions::default());
    let _servers = listeners.into_iter().zip(&members).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut g = GraphBuilder::new("mlp");
    let mut x = g.value(Tensor::new([BATCH, WIDTH], vec![0.5f32; BATCH * WIDTH])?);
    let goal = g.value(Tensor::new([BATCH, WIDTH], vec![0.25f32; BATCH * WIDTH])?);
    for layer in 0..4 {
        let device = format!("/job:worker/task:{}", layer * tasks / 4);
        x = g.device(&device, |g| {
            let name = format!("kernel{layer}");
            let kernel = g.variable(&name, [WIDTH, WIDTH], InitializerSpec::HeNormal);
            let product = g.matmul(x, kernel);
            g.relu(product)
        });
    }
    let loss = g.mean_squared_error(x, goal);
    let train = g.minimize(&OptimizerSpec::sgd(0.01), loss);
    let graph = g.finish_session()?;
    let session = Session::connect(&target)?;
    let mut began = Instant::now();
    for step in 0..WARM + STEPS {
        if step == WARM {
            began = Instant::now();
        }
        session.run_targets(&graph, &[], &[train])?;
    }
    Ok(STEPS as f64 / began.elapsed().as_secs_f64())
}
