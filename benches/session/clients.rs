//! Many clients at once: each runs small graphs with its own values, and all count in one variable.

use std::time::Instant;

use anyhow::ensure;
use pushpull::{DType, GraphBuilder, InitializerSpec, Server, Tensor, TensorSpec};

const CLIENTS: i64 = 8;

/// Returns the runs per second of all clients together, each of which makes `runs` runs. Fails if an answer
/// or a count is lost or mixed up.
pub(crate) fn runs_per_second(runs: i64) -> anyhow::Result<f64> {
    let server = Server::local()?;
    let mut g = GraphBuilder::new("counting");
    let fed = g.placeholder("fed", TensorSpec::new(DType::I64, []));
    let one = g.value(1i64);
    let next = g.add(fed, one);
    let steps = g.variable_of("steps", [], DType::I64, InitializerSpec::Zeros);
    let counted = g.assign_add(steps, one);
    let graph = g.finish_session()?;
    let began = Instant::now();
    let client = |number: i64| {
        let session = server.session()?;
        for run in 0..runs {
            let value = number << 32 | run;
            let fetched = session.run_with(&graph, &[(fed, Tensor::from(value))], &[next], &[counted])?;
            ensure!(
                fetched[0].i64s() == Some(&[value + 1]),
                "client {number} got another value in run {run}"
            );
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no client panics"))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let counted = server.session()?.run(&graph, &[], &[steps])?;
    ensure!(counted[0].i64s() == Some(&[CLIENTS * runs]), "a count is lost: {counted:?}");
    Ok((CLIENTS * runs) as f64 / seconds)
}
