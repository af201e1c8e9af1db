//! One of the processes that reduce: a ps task and a worker without a model, as in the process of a worker in
//! a cluster without ps tasks.

use std::sync::Arc;

use actix_rt::Arbiter;
use anyhow::Context;
use pushpull::{PsConfig, SyncSpec};
use pushpull_messages::id::{LocalStep, TaskId, VariableId, Version};
use pushpull_ps::Ps;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{RetryConfig, SharedPort, Tcp, Transport};
use pushpull_worker::{ClientConfig, Parameters};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::case::{START, Setup};
use crate::exchange::{Orders, obey, say_ready};

/// The gradient bytes that a worker may have in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 30;
/// The number of exchanges that write their gradients. Later ones push what the buffers hold, so that the
/// worker's own work does not count.
const WRITTEN: u64 = 5;

/// Starts the ps task of this process on the worker's thread, and returns the port.
async fn serve(setup: &Setup, index: u32, tcp: &Tcp, pool: &BufferPool) -> anyhow::Result<SharedPort> {
    let (sender, opened) = oneshot::channel();
    let (tcp, pool, identity) = (tcp.clone(), pool.clone(), setup.identity(TaskId::ps(index)));
    let own = setup.cluster.reached_at(TaskId::ps(index)).context("in the cluster")?.to_string();
    Arbiter::current().spawn_fn(move || {
        actix_rt::spawn(async move {
            let listener = tcp.listen(&own).await.expect("the address was free");
            let port = SharedPort::open(listener, &identity);
            let own = port.listener(identity.task).expect("its only listener");
            let ps = Ps::start(PsConfig::default(), identity, own, &pool).expect("valid settings");
            let _ = sender.send(port);
            // The benchmark kills this process.
            let _ = ps.run(CancellationToken::new()).await;
        });
    });
    Ok(opened.await?)
}

/// A worker, and where it is in its exchanges.
struct Worker {
    parameters: Parameters,
    versions: Vec<Version>,
    pushed: u64,
    variables: u32,
}

impl Worker {
    fn gradients(&self) -> Vec<Payload> {
        let mut gradients = self.parameters.gradients();
        if self.pushed < WRITTEN {
            (0..self.variables).for_each(|variable| gradients.variable_mut(VariableId(variable)).fill(1e-3));
        }
        gradients.into_payloads()
    }

    async fn exchange(&mut self) -> anyhow::Result<()> {
        let (gradients, step) = (self.gradients(), self.pushed + 1);
        let pushed = self.parameters.push_pull(gradients, LocalStep(step), step, &self.versions, false);
        self.versions = pushed.await?.versions;
        self.pushed = step;
        Ok(())
    }
}

/// Reduces with the other processes, as the process with this index.
pub(crate) async fn run(setup: &Setup, index: u32) -> anyhow::Result<()> {
    let local = setup.case.shares_memory;
    let pool = if local { BufferPool::shared() } else { BufferPool::default() };
    let tcp = Tcp::new(pool.clone()).with_local(local);
    let port = serve(setup, index, &tcp, &pool).await?;
    let mut orders = Orders::read();
    say_ready()?;
    orders.next().await.context("told to join")?;
    let own = setup.cluster.reached_at(TaskId::ps(index)).context("in the cluster")?.to_string();
    let task = TaskId::worker(index);
    let transport = port.transport(task, own, Arc::new(tcp));
    let config = ClientConfig {
        start_timeout: START,
        retry: RetryConfig::default(),
        in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
    };
    let (identity, placement, variables) = (setup.identity(task), setup.placement(), setup.variables());
    let mut parameters =
        Parameters::connect(&transport, &identity, &placement, &variables, &pool, config).await?;
    let joined = parameters.join(SyncSpec::SYNC).await?;
    let (versions, variables) = (joined.versions, variables.len() as u32);
    let mut worker = Worker { parameters, versions, pushed: 0, variables };
    obey(orders, async || worker.exchange().await).await
}
